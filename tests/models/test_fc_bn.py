"""The normalised network against torch's own layers, and against itself with fewer workers and units."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from implementations.errors import UserError
from implementations.models import build, narrow
from implementations.seeds import torch_stream

FEATURES, CLASSES = 12, 5


@pytest.fixture
def _double():
    """Networks in double precision: normalising a few samples amplifies rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def net_of(hidden, workers, features=FEATURES, classes=CLASSES, **arguments):
    """A network whose workers differ, scales and shifts too."""
    model = {"name": "fc_bn", "hidden": hidden, **arguments}
    net = build(model, features, classes, workers, torch_stream(3, "init"))
    net.theta_wp += 0.3 * torch.randn(net.theta_wp.shape, generator=torch_stream(4, "noise"))
    return net


def minibatches(workers, batch):
    x_wbi = torch.randn(workers, batch, FEATURES, generator=torch_stream(5, "x"))
    return x_wbi, torch.randint(0, CLASSES, (workers, batch), generator=torch_stream(5, "y"))


@pytest.mark.usefixtures("_double")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hidden=st.lists(st.integers(1, 9), max_size=3),
    workers=st.integers(1, 4),
    batch=st.integers(2, 9),
    output=st.sampled_from(["norm", "mean"]),
)
def test_loss_and_gradient_equal_torchs_layers_for_every_worker(hidden, workers, batch, output):
    net = net_of(hidden, workers, output=output)
    x_wbi, y_wb = minibatches(workers, batch)
    net.grad_wp.fill_(float("nan"))  # whatever the buffer held before must not matter
    loss = net.loss_and_grad(x_wbi, y_wb)
    losses = []
    for worker in range(workers):
        module = net.to_module(worker)
        expected = F.cross_entropy(module(x_wbi[worker]), y_wb[worker])
        expected.backward()
        losses.append(expected.detach())
        expected_p = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
        torch.testing.assert_close(net.grad_wp[worker], expected_p)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


@pytest.mark.parametrize("hidden", [[16], [16, 8]])
def test_many_workers_train_as_each_alone(hidden):
    together = net_of(hidden, 3)
    alone = [net_of(hidden, 3).one_worker(worker) for worker in range(3)]
    for step in range(5):
        x_wbi, y_wb = minibatches(3, 8 + step)
        together.loss_and_grad(x_wbi, y_wb)
        together.theta_wp -= 0.1 * together.grad_wp
        for worker, one in enumerate(alone):
            one.loss_and_grad(x_wbi[worker : worker + 1], y_wb[worker : worker + 1])
            one.theta_wp.sub_(0.1 * one.grad_wp)
    torch.testing.assert_close(together.theta_wp, torch.cat([one.theta_wp for one in alone]))


def test_units_of_zero_weights_stay_zero_and_change_nothing():
    """Workers with 5 and 3 of 7 units in each hidden layer, padded, against nets of that width."""
    model = {"name": "fc_bn", "hidden": [7, 7]}
    padded = build(model, FEATURES, CLASSES, 2, torch_stream(3, "init"))
    narrows = []
    for worker, width in enumerate((5, 3)):
        narrows.append(net_of([width, width], 1))
        assert narrow(model, {"h1": width, "h2": width}) == {"name": "fc_bn", "hidden": [width, width]}
        for name, weight in padded.weights.items():
            weight[worker].zero_()
            small = narrows[-1].weights[name][0]
            weight[worker][tuple(slice(size) for size in small.shape)] = small
    for _ in range(6):
        x_wbi, y_wb = minibatches(2, 9)
        padded.loss_and_grad(x_wbi, y_wb)
        padded.theta_wp -= 0.5 * padded.grad_wp
        for worker, net in enumerate(narrows):
            net.loss_and_grad(x_wbi[worker : worker + 1], y_wb[worker : worker + 1])
            net.theta_wp.sub_(0.5 * net.grad_wp)
    for worker, net in enumerate(narrows):
        for name, weight in padded.weights.items():
            small = net.weights[name][0]
            part = tuple(slice(size) for size in small.shape)
            torch.testing.assert_close(weight[worker][part], small)
            assert weight[worker].count_nonzero() == weight[worker][part].count_nonzero()


def test_the_axes_name_what_can_be_split():
    net = net_of([8, 6], 1)
    assert net.units == {"h1": 8, "h2": 6} and net.min_units == {"h1": 1, "h2": 1}
    assert net.axes == {
        "w0": ("h1", None), "g0": ("h1",), "s0": ("h1",),
        "w1": ("h2", "h1"), "g1": ("h2",), "s1": ("h2",),
        "w2": (None, "h2"),
    }  # fmt: skip
    assert {name: weight.shape[1:] for name, weight in net.weights.items()}["w1"] == (6, 8)
    assert set(net.axes) == set(net.weights)


def test_first_weights_are_torchs_rule_with_scale_one():
    net = build({"name": "fc_bn", "hidden": [16]}, FEATURES, CLASSES, 3, torch_stream(3, "init"))
    assert torch.equal(net.theta_wp[0], net.theta_wp[2])
    assert 0 < net.weights["w0"].abs().max() <= FEATURES**-0.5
    assert torch.equal(net.weights["g0"], torch.ones(3, 16)) and not net.weights["s0"].any()


def test_flops_equal_torchs_counter():
    net = net_of([32, 16], 1)
    module = net.to_module()
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(7, FEATURES)).sum().backward()
    assert net.flops_per_sample * 7 == counter.get_total_flops()


def test_statistics_of_the_population_are_those_of_all_samples_layer_by_layer():
    net = net_of([16, 8], 2)
    x_ni = torch.randn(50, FEATURES, generator=torch_stream(6, "x")) * 3 + 1
    net.prepare_evaluation(iter(x_ni.split(17)), worker=1)
    (x_wbi, y_wb), h = minibatches(1, 20), x_ni.double().numpy()
    test = x_wbi[0].double().numpy()
    for layer in range(3):
        w = net.weights[f"w{layer}"][1].double().numpy()
        h, test = h @ w.T, test @ w.T
        mean, std = h.mean(0), np.sqrt(h.var(0, ddof=1) + 1e-5)
        h, test = (h - mean) / std, (test - mean) / std
        if layer < 2:
            scale, shift = (net.weights[f"{letter}{layer}"][1].double().numpy() for letter in "gs")
            h, test = np.maximum(h * scale + shift, 0), np.maximum(test * scale + shift, 0)
    with torch.no_grad():
        scores = net.one_worker(1).logits(x_wbi)[0]
    np.testing.assert_allclose(scores.numpy(), test, rtol=1e-4, atol=1e-4)
    correct, loss = net.evaluate(x_wbi[0], y_wb[0], worker=1)
    assert correct == int((test.argmax(1) == y_wb[0].numpy()).sum())
    log_sum = np.log(np.exp(test).sum(1))
    assert loss == pytest.approx(float((log_sum - test[np.arange(20), y_wb[0].numpy()]).sum()), rel=1e-4)


def test_statistics_are_those_of_torchs_module_in_evaluation():
    net = net_of([16], 1)
    x_wbi, y_wb = minibatches(1, 30)
    net.prepare_evaluation([x_wbi[0]])
    scores = net.to_module().eval()(x_wbi[0]).detach()
    expected = F.cross_entropy(scores, y_wb[0], reduction="sum")
    assert net.evaluate(x_wbi[0], y_wb[0])[1] == pytest.approx(float(expected), rel=1e-5)


def test_a_model_cannot_be_evaluated_before_its_statistics_are_known():
    net, (x_wbi, y_wb) = net_of([4], 1), minibatches(1, 3)
    assert net.needs_samples and net.evaluation_batch is None
    with pytest.raises(RuntimeError, match="not known yet"):
        net.evaluate(x_wbi[0], y_wb[0])


def test_a_unit_that_never_changes_has_no_variance():
    net, (x_wbi, _) = net_of([4], 1), minibatches(1, 30)
    net.weights["w0"][0, 2] = 0
    net.prepare_evaluation(x_wbi[0].split(7))
    norm = net.to_module()[1]
    assert norm.running_var[2] == 0 and norm.running_var.count_nonzero() == 3
    with pytest.raises(ValueError, match="no samples"):
        net.prepare_evaluation([])


def test_a_model_that_has_diverged_can_be_evaluated():
    net, (x_wbi, y_wb) = net_of([4], 2), minibatches(1, 3)
    net.theta_wp.fill_(float("nan"))
    net.prepare_evaluation([x_wbi[0]])
    assert np.isnan(net.evaluate(x_wbi[0], y_wb[0])[1])


def test_statistics_of_the_batch_need_no_samples():
    net, (x_wbi, y_wb) = net_of([16], 1, statistics="batch"), minibatches(1, 30)
    assert not net.needs_samples and net.evaluation_batch == 128
    net.prepare_evaluation([])
    scores = net.to_module().eval()(x_wbi[0]).detach()  # tracks no statistics
    expected = F.cross_entropy(scores, y_wb[0], reduction="sum")
    assert net.evaluate(x_wbi[0], y_wb[0])[1] == pytest.approx(float(expected), rel=1e-5)


def test_shares_scale_only_what_no_normalisation_follows():
    (x_wbi, _), scores = minibatches(1, 9), {}
    for output in ("norm", "mean"):
        net = net_of([16, 8], 1, output=output)
        net.prepare_evaluation([x_wbi[0]])
        for shares in ({}, {"h1": 0.5, "h2": 0.25}):
            net.shares = shares
            with torch.no_grad():
                scores[output, bool(shares)] = net.logits(x_wbi)
    assert torch.equal(scores["norm", True], scores["norm", False])
    torch.testing.assert_close(scores["mean", True], scores["mean", False] / 4)


def test_dropout_drops_its_share_of_hidden_units_and_keeps_the_mean():
    """One hidden unit whose output is known (scale 0, shift 2), summed by the only class beside a constant one."""
    net = build(
        {"name": "fc_bn", "hidden": [1000], "output": "mean", "dropout": 0.3}, 4, 1, 1, torch_stream(1)
    )
    net.weights["g0"].zero_()
    net.weights["s0"].fill_(2.0)
    net.weights["w1"].fill_(1.0)
    x_wbi = torch.randn(1, 2000, 4)
    torch.manual_seed(7)
    sums = net.logits(x_wbi).detach().flatten()
    kept = sums / (2 / 0.7)  # of 1000 units, binomial with 0.7
    torch.testing.assert_close(kept, kept.round(), rtol=1e-4, atol=1e-3)
    assert kept.mean() == pytest.approx(700, abs=5 * (1000 * 0.21 / 2000) ** 0.5)
    assert kept.var() == pytest.approx(210, rel=5 * (2 / 2000) ** 0.5)
    torch.manual_seed(7)
    assert torch.equal(net.logits(x_wbi).detach().flatten(), sums)
    net.prepare_evaluation([x_wbi[0]])
    with torch.no_grad():
        torch.testing.assert_close(net.logits(x_wbi), torch.full((1, 2000, 1), 2000.0))


def test_dropout_is_for_one_worker():
    with pytest.raises(UserError, match="dropout"):
        net_of([4], 2, dropout=0.5)
