"""The check of a strategy itself: it must tell what is wrong, and try what it says."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from implementations.layerwise import algebra, executor, kernels, strategies, tracing
from implementations.layerwise.equivalence import LR, Reference, follow, random_strategy, uniform_strategies
from implementations.layerwise.plan import Plan
from tests.layerwise.networks import branched, chain


@pytest.fixture
def reference():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    traced = tracing.trace(module, (2, 6, 6), "net")
    return Reference(module.double(), traced, torch.randn(4, 2, 6, 6).double(), torch.tensor([0, 1, 2, 1]))


def data_parallel(reference):
    return strategies.fixed("data", reference.traced.graph, 4, 2)


def test_a_right_strategy_is_exact(reference):
    found = reference.difference(data_parallel(reference), 2)
    assert found.worst < 1e-14 and found.bytes_as_predicted
    assert found.worst == max(found.loss, found.gradients, found.weights)


def test_the_reference_is_a_plain_step(reference):
    for name, before in reference.before.items():
        assert torch.equal(reference.after[name], before - LR * reference.gradients[name])
    scores = nn.functional.relu(
        nn.functional.conv2d(reference.x, reference.before["0.weight"], reference.before["0.bias"])
    )
    scores = scores.flatten(1) @ reference.before["3.weight"].T + reference.before["3.bias"]
    picked = scores.log_softmax(1)[range(4), reference.labels]
    assert reference.loss == pytest.approx(-float(picked.mean()), rel=1e-12)


def test_wrong_gradients_are_seen_in_their_share(reference, monkeypatch):
    right = kernels.weight_gradients

    def larger(layer, grad, x, weights, pads, into):
        right(layer, grad, x, weights, pads, into)
        if layer.kind == "linear":
            into["weight"].mul_(1.01)

    monkeypatch.setattr(kernels, "weight_gradients", larger)
    found = reference.difference(data_parallel(reference), 2)
    assert found.gradients == pytest.approx(0.01, rel=1e-6) and found.loss < 1e-14
    moved = LR * 0.01 * float(reference.gradients["3.weight"].abs().max())
    assert found.weights == pytest.approx(moved / float(reference.after["3.weight"].abs().max()), rel=1e-6)


def test_a_gradient_that_is_not_written_is_infinitely_wrong(reference, monkeypatch):
    monkeypatch.setattr(kernels, "weight_gradients", lambda *_: None)
    found = reference.difference(data_parallel(reference), 2)
    assert math.isinf(found.gradients) and math.isinf(found.weights)


def test_a_wrong_loss_is_seen(reference, monkeypatch):
    right = kernels.loss_sum
    monkeypatch.setattr(kernels, "loss_sum", lambda scores, labels: 1.5 * right(scores, labels))
    found = reference.difference(data_parallel(reference), 2)
    assert found.loss == pytest.approx(0.5 * reference.loss / max(1, reference.loss))


def test_a_sum_that_is_left_out_is_seen(reference, monkeypatch):
    """Data parallelism without the sum of gradients."""
    monkeypatch.setattr(executor.Executor, "_split", lambda self, stage: {})
    found = reference.difference(data_parallel(reference), 2)
    assert found.gradients > 0.1 and not found.bytes_as_predicted
    alone = reference.difference(follow(reference.traced.graph, (1, 1, 1, 1), 4, 2), 2)
    assert alone.gradients < 1e-14 and alone.bytes_as_predicted


def test_bytes_that_were_not_foretold_are_seen(reference, monkeypatch):
    right = Plan.sent_bytes
    monkeypatch.setattr(Plan, "sent_bytes", lambda self, itemsize: [*right(self, itemsize), 1])
    assert not reference.difference(data_parallel(reference), 2).bytes_as_predicted


def test_following_takes_as_much_as_a_layer_has():
    graph = branched()  # 6 channels of 7 x 6 behind a, 10 features, 5 classes
    found = follow(graph, (2, 3, 2, 2), 6, 24)
    assert found["input"] == (6, 1, 1, 1)  # each device its own samples, as far as there are any
    assert found["a"] == found["n"] == found["r"] == (2, 3, 2, 2)
    assert found["c"] == (2, 2, 2, 2)  # two groups of channels
    assert found["w"] == (2, 3) and found["loss"] == (2,)
    algebra.check(graph, found, 6, 24)
    assert follow(graph, (1, 8, 1, 1), 6, 8)["v"] == (1, 5)


@pytest.mark.parametrize(
    ("devices", "degrees", "count"),
    [
        # products of four factors in order: 1 way to write 1, 4 a prime, 10 its square, 20 its cube, 16 two primes
        (1, "all", 1),
        (4, "all", 1 + 4 + 4 + 10),
        (4, "powers", 1 + 4 + 10),
        (6, "all", 1 + 4 + 4 + 10 + 4 + 16),
        (8, "powers", 1 + 4 + 10 + 20),
    ],
)
def test_uniform_strategies_are_all_ways_to_use_the_devices(devices, degrees, count):
    graph = chain()
    found = dict(uniform_strategies(graph, 8, devices, degrees))
    assert len(found) == count
    for config, strategy in found.items():
        algebra.check(graph, strategy, 8, devices)
        assert strategy["a"] == config  # 8 samples, channels, rows and columns are enough for any


def test_random_strategies_are_allowed_and_reach_every_configuration():
    graph, draws = branched(), np.random.default_rng(0)
    seen = {layer.name: set() for layer in graph}
    for _ in range(300):
        strategy = random_strategy(graph, 3, 3, draws)
        algebra.check(graph, strategy, 3, 3)
        for name, config in strategy.items():
            seen[name].add(config)
    assert seen["input"] == {(3, 1, 1, 1)}
    for layer in list(graph)[1:]:
        assert seen[layer.name] == set(algebra.configurations(layer, 3, 3, "all"))
    again = random_strategy(graph, 3, 3, np.random.default_rng(5))
    assert again == random_strategy(graph, 3, 3, np.random.default_rng(5))
