"""The residual network against torch's own layers, and against itself with fewer workers and blocks."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from implementations.errors import UserError
from implementations.models import build, narrow, resnet
from implementations.seeds import torch_stream

CLASSES = 5
MODEL = {"name": "resnet", "hidden": [4, 6, 8], "blocks": [1, 0, 3]}
COLOURS = 3 * 8 * 8


@pytest.fixture
def _double():
    """Networks in double precision: normalising a few samples amplifies rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def net_of(workers, features=COLOURS, noise=0.1, **arguments):
    """A network whose workers differ, scales and shifts too."""
    net = build({**MODEL, **arguments}, features, CLASSES, workers, torch_stream(3, "init"))
    net.theta_wp += noise * torch.randn(net.theta_wp.shape, generator=torch_stream(4, "noise"))
    return net


def minibatches(workers, batch, features=COLOURS, name="x"):
    x_wbi = torch.randn(workers, batch, features, generator=torch_stream(5, name))
    return x_wbi, torch.randint(0, CLASSES, (workers, batch), generator=torch_stream(5, "y"))


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize(("workers", "features"), [(1, COLOURS), (3, COLOURS), (2, 81)])
def test_loss_and_gradient_equal_torchs_layers_for_every_worker(workers, features):
    net, (x_wbi, y_wb) = net_of(workers, features), minibatches(workers, 4, features)
    net.grad_wp.fill_(float("nan"))  # whatever the buffer held before must not matter
    loss, losses = net.loss_and_grad(x_wbi, y_wb), []
    gradients = net_of(workers, features)
    gradients.theta_wp.copy_(net.grad_wp)  # so that its module has them where torch has them
    for worker in range(workers):
        module = net.to_module(worker)
        expected = F.cross_entropy(module(x_wbi[worker]), y_wb[worker])
        expected.backward()
        losses.append(expected.detach())
        for mine, torchs in zip(gradients.to_module(worker).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(mine.data, torchs.grad)
        assert sum(parameter.numel() for parameter in module.parameters()) == net.params_per_worker
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_evaluation_equals_torchs_layers_with_the_populations_statistics(monkeypatch):
    monkeypatch.setattr(resnet, "EVALUATED_AT_ONCE", 5)  # of twelve
    net, (x_wbi, y_wb) = net_of(2), minibatches(1, 12)
    net.prepare_evaluation(minibatches(1, 30, name="reference")[0][0].split(11), worker=1)
    scores = net.to_module(1).eval()(x_wbi[0]).detach()
    correct, loss = net.evaluate(x_wbi[0], y_wb[0], worker=1)
    assert correct == int((scores.argmax(1) == y_wb[0]).sum())
    assert loss == pytest.approx(float(F.cross_entropy(scores, y_wb[0], reduction="sum")), rel=1e-4)


def test_statistics_of_the_batch_are_those_of_what_is_evaluated():
    net, (x_wbi, y_wb) = net_of(1, statistics="batch"), minibatches(1, 12)
    assert not net.needs_samples and net.evaluation_batch == 128
    scores = net.to_module().eval()(x_wbi[0]).detach()  # tracks no statistics
    expected = float(F.cross_entropy(scores, y_wb[0], reduction="sum"))
    assert net.evaluate(x_wbi[0], y_wb[0])[1] == pytest.approx(expected, rel=1e-4)


def test_population_statistics_are_those_of_what_each_normalisation_sees():
    """Torch's modules in evaluation, with hooks on what reaches them."""
    net, x_ni = net_of(1), minibatches(1, 30)[0][0]
    net.prepare_evaluation(x_ni.split(13))
    module, seen = net.to_module().eval(), []
    norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.register_forward_hook(lambda norm, inputs, _: seen.append((norm, inputs[0].detach())))
    module(x_ni)
    assert len(seen) == len(norms) == 2 * (1 + 1 + 1 + 3) + 1
    for norm, z in seen:
        torch.testing.assert_close(norm.running_mean, z.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var, z.var((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_several_workers_train_as_each_alone():
    together, alone = net_of(3), [net_of(3).one_worker(worker) for worker in range(3)]
    for step in range(3):
        x_wbi, y_wb = minibatches(3, 6, name=f"x{step}")
        together.loss_and_grad(x_wbi, y_wb)
        together.theta_wp -= 0.1 * together.grad_wp
        for worker, one in enumerate(alone):
            own = slice(worker, worker + 1)
            one.loss_and_grad(x_wbi[own], y_wb[own])
            one.theta_wp.sub_(0.1 * one.grad_wp)
    torch.testing.assert_close(
        together.theta_wp, torch.cat([one.theta_wp for one in alone]), rtol=1e-4, atol=1e-4
    )


def test_a_block_of_zero_weights_is_the_identity_and_stays_so():
    shallow_model = narrow(MODEL, {"s3": 2})
    assert shallow_model == {**MODEL, "blocks": [1, 0, 2]}
    shallow = net_of(1, blocks=shallow_model["blocks"])
    padded = net_of(2)
    for name, weight in padded.weights.items():
        if padded.axes[name][0] == "s3":
            weight[1].zero_()[:2] = shallow.weights[name][0]
        else:
            weight[1] = shallow.weights[name][0]
    for step in range(3):
        x_wbi, y_wb = minibatches(2, 6, name=f"x{step}")
        padded.loss_and_grad(x_wbi, y_wb)
        padded.theta_wp -= 0.1 * padded.grad_wp
        shallow.loss_and_grad(x_wbi[1:], y_wb[1:])
        shallow.theta_wp -= 0.1 * shallow.grad_wp
    for name, weight in padded.weights.items():
        own = weight[1]
        if padded.axes[name][0] == "s3":
            own, more = own[:2], own[2:]
            assert not more.any()
        torch.testing.assert_close(own, shallow.weights[name][0], rtol=1e-4, atol=1e-4)


def test_a_share_of_the_blocks_weakens_their_branches_in_evaluation_alone():
    net, (x_wbi, y_wb) = net_of(1), minibatches(1, 8)
    net.loss_and_grad(x_wbi, y_wb)
    before_p, reference_ni = net.grad_wp.clone(), minibatches(1, 30, name="reference")[0][0]
    net.shares = {"s3": 0.25}
    net.loss_and_grad(x_wbi, y_wb)
    assert torch.equal(net.grad_wp, before_p)
    net.prepare_evaluation([reference_ni])
    scaled = net_of(1)
    scaled.weights["s3_w1"].mul_(0.25)
    scaled.prepare_evaluation([reference_ni])
    with torch.no_grad():
        torch.testing.assert_close(net.logits(x_wbi), scaled.logits(x_wbi), rtol=1e-4, atol=1e-4)


def test_the_blocks_of_the_sections_that_are_split_are_units():
    assert (net_of(1).units, net_of(1).min_units) == ({"s3": 3}, {"s3": 1})
    net = net_of(1, blocks=[1, 2, 3], split=[3, 2], min_blocks=3)
    assert net.units == {"s2": 2, "s3": 3} and net.min_units == {"s2": 2, "s3": 3}
    assert net.axes["s3_w0"] == ("s3", None, None, None, None) and net.axes["s3_g0"] == ("s3", None)
    shared = {name for name, labels in net.axes.items() if not any(labels)}
    assert {name.partition("_")[0] for name in shared} == {"in", "s1", "t2", "t3", "out"}
    assert set(net.axes) == set(net.weights)


def test_workers_start_equal_with_kernels_of_he():
    net = net_of(2, noise=0, hidden=[32], blocks=[3])
    assert torch.equal(net.theta_wp[0], net.theta_wp[1])
    assert net.weights["s1_w0"].std() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.02)
    assert torch.equal(net.weights["s1_g1"], torch.ones(2, 3, 32)) and not net.weights["out_s"].any()


@pytest.mark.parametrize("features", [COLOURS, 81])
def test_flops_equal_torchs_counter(features):
    net, (x_wbi, y_wb) = net_of(1, features), minibatches(1, 4, features)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(net.to_module()(x_wbi[0]), y_wb[0]).backward()
    assert net.flops_per_sample * 4 == counter.get_total_flops()


@pytest.mark.parametrize(
    ("arguments", "features", "what"),
    [
        ({}, 50, "50 values"),
        ({"blocks": [1, 2]}, COLOURS, "blocks"),
        ({"split": [4]}, COLOURS, "split"),
    ],
)
def test_what_does_not_fit_is_named(arguments, features, what):
    with pytest.raises(UserError, match=what):
        net_of(1, features, **arguments)
