"""Any module as a model of many workers: against torch's autograd, and trained by the baselines."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from training_runs import point_of, trained

from implementations import harness, models
from implementations.data import loading
from implementations.data.dataset import DataSet
from implementations.models.module_net import ModuleNet
from implementations.seeds import torch_stream

SAMPLE, CLASSES = (2, 6, 6), 5


def plain():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 7),
        nn.Tanh(),
        nn.Linear(7, CLASSES),
    )


def normalised():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, CLASSES),
    )


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def net_of(make, workers, noise=0.1):
    """Workers that differ."""
    with torch.device("meta"):
        module = make()
    net = ModuleNet(module, SAMPLE, workers)
    net.initialise(torch_stream(3, "init"))
    net.theta_wp += noise * torch.randn(net.theta_wp.shape, generator=torch_stream(4, "noise"))
    return net


def minibatches(workers, batch, name="x"):
    x_wbi = torch.randn(workers, batch, math.prod(SAMPLE), generator=torch_stream(5, name))
    return x_wbi, torch.randint(0, CLASSES, (workers, batch), generator=torch_stream(5, "y"))


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("make", [plain, normalised])
def test_loss_and_gradient_are_torchs_for_every_worker(make, workers):
    net, (x_wbi, y_wb) = net_of(make, workers), minibatches(workers, 4)
    net.grad_wp.fill_(float("nan"))  # whatever the buffer held before must not matter
    for _ in range(2):  # nor what the step before left
        torch.manual_seed(1)
        loss = net.loss_and_grad(x_wbi, y_wb)
    losses = []
    for worker in range(workers):
        torch.manual_seed(1)  # each draws as it would in a process of its own
        module = net.to_module(worker)
        expected = F.cross_entropy(module(x_wbi[worker].view(-1, *SAMPLE)), y_wb[worker])
        expected.backward()
        losses.append(expected.detach())
        for name, parameter in module.named_parameters():
            assert torch.equal(parameter.data, net.weights[name][worker])
            torch.testing.assert_close(net.grads[name][worker], parameter.grad)
        assert sum(parameter.numel() for parameter in module.parameters()) == net.params_per_worker
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_a_step_on_the_buffer_is_one_of_the_modules():
    net, (x_wbi, y_wb) = net_of(plain, 1), minibatches(1, 4)
    module = net.to_module()
    ours, theirs = torch.optim.SGD([net.theta_wp], lr=0.1), torch.optim.SGD(module.parameters(), lr=0.1)
    net.theta_wp.grad = net.grad_wp
    for _ in range(3):
        net.loss_and_grad(x_wbi, y_wb)
        ours.step()
        theirs.zero_grad()
        F.cross_entropy(module(x_wbi[0].view(-1, *SAMPLE)), y_wb[0]).backward()
        theirs.step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(net.weights[name][0], parameter.data)


@pytest.mark.parametrize("worker", [0, 1])
def test_evaluation_takes_many_samples_in_parts(worker, monkeypatch):
    monkeypatch.setattr("implementations.models.module_net.EVALUATED_AT_ONCE", 5)
    net, (x_wbi, y_wb) = net_of(plain, 2), minibatches(1, 12)
    scores = net.to_module(worker)(x_wbi[0].view(-1, *SAMPLE)).detach()
    correct, loss = net.evaluate(x_wbi[0], y_wb[0], worker)
    assert correct == int((scores.argmax(1) == y_wb[0]).sum())
    assert loss == pytest.approx(float(F.cross_entropy(scores, y_wb[0], reduction="sum")), rel=1e-5)


@pytest.mark.usefixtures("_double")
def test_statistics_of_normalisation_are_means_over_the_minibatches():
    net, parts = net_of(normalised, 2), minibatches(1, 30, "reference")[0][0].split(10)
    assert net.needs_samples
    x_wbi, y_wb = minibatches(1, 12)
    with pytest.raises(RuntimeError, match="not known yet"):
        net.evaluate(x_wbi[0], y_wb[0], worker=1)
    net.prepare_evaluation([3 + x_wbi[0]], worker=1)  # to be forgotten
    net.prepare_evaluation(iter(parts), worker=1)
    module = net.to_module(1).eval()
    outputs = [module[0](part.view(-1, *SAMPLE)).detach().transpose(0, 1).flatten(1) for part in parts]
    torch.testing.assert_close(
        module[1].running_mean, torch.stack([part.mean(1) for part in outputs]).mean(0)
    )
    torch.testing.assert_close(module[1].running_var, torch.stack([part.var(1) for part in outputs]).mean(0))
    scores = module(x_wbi[0].view(-1, *SAMPLE)).detach()
    _, loss = net.evaluate(x_wbi[0], y_wb[0], worker=1)
    assert loss == pytest.approx(float(F.cross_entropy(scores, y_wb[0], reduction="sum")))


def test_training_leaves_the_estimates_alone_and_draws_dropout():
    net, (x_wbi, y_wb) = net_of(normalised, 1), minibatches(1, 12)
    net.prepare_evaluation([minibatches(1, 30, "reference")[0][0]])
    state = torch.get_rng_state()
    before = net.evaluate(x_wbi[0], y_wb[0])
    assert torch.equal(state, torch.get_rng_state())
    losses = {float(net.loss_and_grad(x_wbi, y_wb)) for _ in range(3)}
    assert len(losses) == 3 and not torch.equal(state, torch.get_rng_state())
    assert net.evaluate(x_wbi[0], y_wb[0]) == before


def test_a_worker_alone_shares_weights_and_gradients():
    net, (x_wbi, y_wb) = net_of(plain, 3), minibatches(3, 4)
    net.loss_and_grad(x_wbi, y_wb)
    expected = net.grad_wp[1].clone()
    net.grad_wp.fill_(7)
    one = net.one_worker(1)
    one.loss_and_grad(x_wbi[1:2], y_wb[1:2])
    torch.testing.assert_close(net.grad_wp[1], expected)
    assert (net.grad_wp[[0, 2]] == 7).all()


def test_without_gradients_it_is_evaluated_alone():
    net, (x_wbi, y_wb) = net_of(plain, 1), minibatches(1, 4)
    expected = net.evaluate(x_wbi[0], y_wb[0])
    net.drop_gradients()
    assert net.grad_wp.untyped_storage().nbytes() == 4 and net.evaluate(x_wbi[0], y_wb[0]) == expected
    assert all(parameter.grad is None for parameter in net._modules_w[0].parameters())


@pytest.mark.parametrize(
    ("model", "features"),
    [
        ({"name": "lenet5"}, 784),
        ({"name": "alexnet_small", "width": 0.25}, 3072),
        ({"name": "resnet50", "width": 0.1}, 3072),
    ],
)
def test_operations_are_those_that_torch_counts(model, features):
    net = models.build(model, features, 10, 1, torch_stream(1, "init"))
    module = net.to_module()
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(2, *net.sample)).sum().backward()
    assert net.flops_per_sample == counter.get_total_flops() / 2


def test_a_module_with_weights_starts_every_worker():
    torch.manual_seed(1)
    module = plain()
    net = ModuleNet(module, SAMPLE, 2)
    x = torch.randn(3, *SAMPLE)
    scores_wbo = net.logits(x.flatten(1).expand(2, -1, -1))
    torch.testing.assert_close(scores_wbo, module(x).expand(2, -1, -1))
    assert scores_wbo.shape == (2, 3, CLASSES)


def test_sizes_take_no_memory():
    with torch.device("meta"):
        net = models.build({"name": "vgg16"}, 3072, 10, 4, torch.Generator())
    assert net.theta_wp.is_meta and net.grad_wp.is_meta and net.params_per_worker == 33_638_218


class Enlarged(DataSet):
    """The digits as images of another side and channels."""

    def __init__(self, digits, image):
        channels, side = image
        super().__init__({**digits.summary, "features": channels * side**2}, digits.sizes["train"])
        self._digits, self._image = digits, image

    def tensors(self, split, indices=None):
        x_nf, y_n = self._digits.tensors(split, indices)
        channels, side = self._image
        x = F.interpolate(x_nf.view(-1, 1, 8, 8), size=(side, side))
        return x.expand(-1, channels, -1, -1).flatten(1).contiguous(), y_n

    def split(self, split):
        return self._digits.split(split)


@pytest.mark.parametrize(("method", "workers"), [("sequential", 1), ("data_parallel", 3)])
@pytest.mark.parametrize(
    ("model", "image", "lr"),
    [
        ({"name": "lenet5"}, (1, 28), 0.1),
        ({"name": "alexnet_small", "width": 0.2}, (3, 32), 0.05),
        ({"name": "resnet50", "width": 0.03}, (3, 32), 0.02),
    ],
)
def test_the_baselines_train_them(method, workers, model, image, lr, results, monkeypatch):
    small, load = Enlarged, loading.load
    monkeypatch.setattr(harness.loading, "load", lambda *given, **named: small(load(*given, **named), image))
    point = point_of(method, workers, model=model, data_size=240, minibatch=8, lr=lr, epochs=3)
    run = trained(point, results)
    losses = [row["train_loss"] for row in run.curve]
    assert losses[-1] < losses[1] and math.isfinite(run.curve[-1]["valid_loss"])
    if not run.net.needs_samples:  # statistics of eight samples are far from the population's
        assert run.curve[-1]["valid_loss"] < math.log(10)
    assert torch.equal(run.net.theta_wp, run.net.theta_wp[:1].expand_as(run.net.theta_wp))
    again = trained(point, results)
    assert torch.equal(run.net.theta_wp, again.net.theta_wp)
    assert run.columns()["sent_bytes_total"] == run.columns()["sent_bytes_predicted"]
