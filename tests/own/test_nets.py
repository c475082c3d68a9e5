"""A user's own network: trained like the suite's own of the same layers, by every method, and refused in one line."""

import itertools
import sys

import pytest
import torch
from training_runs import point_of, trained, whole_model

from implementations import codehash, config, models
from implementations.errors import UserError
from implementations.layerwise import tracing
from implementations.own import chain, nets
from implementations.seeds import torch_stream

CODE = """
import torch
from torch import nn

from {name}_parts import head


class Plain(nn.Module):
    def __init__(self, hidden=16, act=nn.ReLU):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), act(), nn.Linear(hidden, 12), act(), head(12))

    def forward(self, x):
        return self.layers(x)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4 * 9, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(self.drop(x.flatten(1)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.full((64,), 2.0), persistent=False)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1)) * self.scale))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        return self.head(self.lstm(x.flatten(1, 2))[0][:, -1])


class Looking(Plain):
    def forward(self, x):
        return super().forward(x) if x.sum().item() > -1e9 else None


def sigmoid():
    return Plain(act=nn.Sigmoid)


def normalised():
    layers = [nn.Flatten(), nn.Linear(64, 9, bias=False), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 10, bias=False)]
    return nn.Sequential(*layers)


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 10))


def flat():
    return nn.Linear(64, 10)


def double():
    return flat().double()


def probabilities():
    return nn.Sequential(nn.Flatten(), flat(), nn.Softmax(1))


def five():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 10))


def volume():
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 4, 4, 4)), nn.BatchNorm3d(1), nn.Flatten(), flat())


def several():
    class Two(Plain):
        def forward(self, x):
            return super().forward(x), 1

    return Two()


def constant():
    return nn.Sequential(nn.Flatten())


made = flat()
"""
PARTS = """
from torch import nn


def head(inputs):
    return nn.Linear(inputs, 10)
"""
NAMES = (f"nets_of_mine_{k}" for k in itertools.count())  # a module is imported but once


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The module's name; it lies in the current folder."""
    name = next(NAMES)
    (tmp_path / f"{name}.py").write_text(CODE.replace("{name}", name))
    (tmp_path / f"{name}_parts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    for one in (name, f"{name}_parts"):
        sys.modules.pop(one, None)


def model(mine, net, **arguments):
    return nets.fitted(f"{mine}:{net}", arguments, (1, 8, 8), 10).model


def test_the_same_layers_train_like_the_suites_own(mine, results):
    for method, workers in (("sequential", 1), ("data_parallel", 3), ("averaging", 3)):
        own, built_in = (
            whole_model(trained(point_of(method, workers, model=one), results))
            for one in (model(mine, "Plain"), {"name": "fc", "hidden": [16, 12]})
        )
        torch.testing.assert_close(own, built_in, rtol=1e-5, atol=1e-6)


def test_the_first_weights_and_the_operations_are_those_of_the_suites_own(mine):
    nets_of = [
        models.build(one, 64, 10, 2, torch_stream(3, "init"))
        for one in (model(mine, "Plain"), {"name": "fc", "hidden": [16, 12]})
    ]
    torch.testing.assert_close(nets_of[0].theta_wp, nets_of[1].theta_wp, rtol=0, atol=1e-7)
    assert nets_of[0].flops_per_sample == nets_of[1].flops_per_sample


@pytest.mark.parametrize("net", ["Conv", "Tied", "Recurrent", "Looking", "lazy"])
def test_data_parallel_workers_stay_equal_and_learn(mine, net, results):
    run = trained(point_of("data_parallel", 2, model=model(mine, net), epochs=3), results)
    torch.testing.assert_close(run.net.theta_wp[0], run.net.theta_wp[1], rtol=0, atol=0)
    assert run.curve[-1]["train_loss"] < run.curve[1]["train_loss"]
    assert run.net.flops_per_sample > 0


def test_a_shared_weight_is_one(mine):
    net = models.build(model(mine, "Tied"), 64, 10, 2, torch_stream(0, "init"))
    module = net.to_module(1)
    assert net.params_per_worker == 64 * 64 + 64 + 64 + 640 + 10
    assert module.first.weight is module.second.weight
    assert torch.equal(module.scale, torch.full((64,), 2.0))


def test_masks_do_not_depend_on_who_hosts_whom(mine):
    """Two workers of one process draw what each would draw alone: as ranks of a measured run do."""
    described = model(mine, "Conv")
    x_wbi, y_wb = torch.randn(2, 5, 64), torch.randint(10, (2, 5))
    both = models.build(described, 64, 10, 2, torch_stream(0, "init"))
    torch.manual_seed(7)
    both.loss_and_grad(x_wbi, y_wb)
    for worker in range(2):
        alone = models.build(described, 64, 10, 1, torch_stream(0, "init"))
        torch.manual_seed(7)
        alone.loss_and_grad(x_wbi[worker : worker + 1], y_wb[worker : worker + 1])
        assert torch.equal(alone.grad_wp[0], both.grad_wp[worker])


def test_layerwise_and_spark_train_it(mine, results):
    whole = whole_model(trained(point_of("sequential", model=model(mine, "Plain"), minibatch=16), results))
    for method, variant in (("layerwise", "data"), ("spark", "data")):
        point = point_of(method, 2, variant=variant, model=model(mine, "Plain"))
        split = whole_model(trained(point, results))
        assert split.shape == whole.shape and split.isfinite().all()


def test_memory_is_known_without_making_it(mine):
    from implementations import holding
    from implementations.cluster.booked import BookedCommunicator
    from implementations.cluster.ledger import Ledger

    point = point_of("averaging", 4, model=model(mine, "Looking"))
    held = holding.dry(point, 64, 10, BookedCommunicator(4, Ledger()))
    assert held.net.theta_wp.is_meta
    assert held.state_bytes(point) == 2 * 4 * (64 * 16 + 16 + 16 * 12 + 12 + 120 + 10)


def test_a_chain_is_the_suites_own_network(mine):
    def described(net):
        fitted = nets.fitted(f"{mine}:{net}", {}, (1, 8, 8), 10)
        return nets.model_for(fitted, "ist")

    assert described("Plain") == {"name": "fc", "hidden": [16, 12]}
    assert described("sigmoid") == {"name": "fc", "hidden": [16, 12], "activation": "sigmoid"}
    assert described("normalised") == {"name": "fc_bn", "hidden": [9], "output": "mean"}


@pytest.mark.parametrize(
    "description",
    [
        {"name": "fc", "hidden": [5]},
        {"name": "fc", "hidden": [5, 7], "activation": "tanh"},
        {"name": "fc_bn", "hidden": [6, 5], "output": "mean"},
        {"name": "fc_bn", "hidden": [6], "output": "norm"},
    ],
)
def test_the_suites_own_networks_come_back(description):
    module = models.build(description, 8, 3, 1, torch_stream(0, "init")).to_module()
    found = chain.described(tracing.trace(module, (8,), "net").graph)
    assert models.without_defaults(found) == models.without_defaults(description)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        ("Missing", "AttributeError: module"),
        ("five", "gives 2 x 5 values for 2 samples of 1 x 8 x 8; needed: 2 x 10"),
        ("wide", "does not take samples of 1 x 8 x 8: RuntimeError: "),
        ("double", "parameter weight is float64; needed: float32"),
        ("probabilities", "gives probabilities; needed: scores without the Softmax"),
        ("volume", "layer 2: BatchNorm3d keeps statistics"),
        ("several", "gives a tuple; needed: a tensor of scores"),
        ("constant", "has no parameters to train"),
        ("made", "a module that is made already"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(mine, net, words):
    with pytest.raises(UserError) as told:
        model(mine, net)
    assert str(told.value).startswith(f"model {mine}:{net}: ") and words in str(told.value)
    assert "\n" not in str(told.value)


def test_other_refusals(mine):
    with pytest.raises(
        UserError, match=f"model {mine}:Plain: TypeError: .*unexpected keyword argument 'width'"
    ):
        model(mine, "Plain", width=3)
    with pytest.raises(UserError, match="model nowhere_at_all:Net: ModuleNotFoundError: No module named"):
        nets.fitted("nowhere_at_all:Net", {}, (1, 8, 8), 10)
    conv = nets.fitted(f"{mine}:Conv", {}, (1, 8, 8), 10)
    for method, variant in (("ist", None), ("spark", None), ("spark", "hybrid")):
        with pytest.raises(
            UserError, match=f"method {method}.*conv is of kind conv.*data_parallel, averaging"
        ):
            nets.model_for(conv, method, variant)
    with pytest.raises(UserError, match=r"method layerwise: .*any network: sequential"):
        nets.model_for(nets.fitted(f"{mine}:Recurrent", {}, (1, 8, 8), 10), "layerwise")
    assert nets.model_for(conv, "spark", "async") == conv.model


def test_flat_samples_are_tried_where_images_do_not_fit(mine):
    assert model(mine, "flat")["input"] == [64]
    assert nets.fitted(f"{mine}:Conv", {}, (8, 8), 10).sample == (1, 8, 8)


def test_an_edit_of_the_network_or_of_what_it_imports_reruns(mine, tmp_path):
    def hashed():
        codehash.normalised.cache_clear()
        return codehash.code_hash("averaging", "simulated", "user", f"{mine}:Plain")

    before = hashed()
    code = tmp_path / f"{mine}.py"
    code.write_text(f"# a comment\n{code.read_text()}")
    assert hashed() == before
    parts = tmp_path / f"{mine}_parts.py"
    parts.write_text(parts.read_text().replace("inputs, 10", "inputs, 11"))
    after = hashed()
    assert after != before
    code.write_text(code.read_text().replace("hidden=16", "hidden=17"))
    assert hashed() not in (before, after)


def test_a_point_of_it_has_a_name_that_a_folder_may_have(mine):
    point = point_of(
        "sequential", model=model(mine, "Plain", hidden=24) | {"args": {"hidden": 24, "a/b": "c:d"}}
    )
    assert point.model_label == f"user.{mine}.Plain_a.bc.d_hidden24"
    assert point.run_id != point_of("sequential", model=model(mine, "Plain", hidden=25)).run_id


def test_config_takes_it(mine, root):
    settings = config.load(root / "config/smoke.yaml")
    values = {"method": "averaging", "dataset": "digits", "workers": 2, "model": model(mine, "Conv")}
    assert config.point_from_arguments(settings, values).model["path"] == f"{mine}:Conv"
    with pytest.raises(UserError, match=r"model\.path.*MODULE:CLASS"):
        config.point_from_arguments(
            settings, values | {"model": {"name": "user", "path": "x", "input": [64]}}
        )
