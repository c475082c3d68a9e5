"""Any strategy does what one device does: against torch's own pass through the plain module."""

import numpy as np
import pytest
import torch
from torch import nn

from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.layerwise import equivalence, tracing
from implementations.layerwise.equivalence import Reference, follow, random_strategy, uniform_strategies
from implementations.layerwise.executor import Executor
from implementations.layerwise.plan import Plan
from implementations.models import convnets


class Branches(nn.Module):
    """All kinds of layers in one: branches that join, a residual, windows of unequal sides, groups and dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8, eps=1e-3)
        self.point = nn.Conv2d(8, 4, 1)
        self.row, self.column = (
            nn.Conv2d(8, 6, (1, 7), padding=(0, 3)),
            nn.Conv2d(6, 5, (7, 1), padding=(3, 0)),
        )
        self.grouped = nn.Conv2d(8, 6, 3, padding=2, dilation=2, groups=2)
        self.same = nn.Conv2d(8, 8, 3, padding=1)
        self.mean = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.last_norm = nn.BatchNorm1d(23)
        self.linear = nn.Linear(23, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = x + torch.tanh(self.same(x))
        branches = [self.point(x), self.column(torch.sigmoid(self.row(x))), self.grouped(x), self.mean(x)]
        y = nn.functional.max_pool2d(torch.cat(branches, 1), 3, 2, ceil_mode=True)
        return self.linear(self.last_norm(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)))


def reference(module, sample, classes, batch, dtype=torch.float64):
    traced = tracing.trace(module, sample, "net")
    stream = torch.Generator().manual_seed(1)
    x = torch.randn(batch, *sample, generator=stream).to(dtype)
    labels = torch.randint(0, classes, (batch,), generator=stream)
    return Reference(module.to(dtype), traced, x, labels)


def check(one, strategies, devices, tolerance):
    for strategy in strategies:
        found = one.difference(strategy, devices)
        assert found.worst < tolerance, strategy
        assert found.bytes_as_predicted, strategy


@pytest.fixture(scope="module")
def branches():
    torch.manual_seed(0)
    return reference(Branches(), (3, 13, 11), 5, 6)


@pytest.mark.parametrize("devices", [1, 2, 3, 6])
def test_any_mixture_of_configurations(branches, devices):
    draws = np.random.default_rng(devices)
    check(
        branches,
        [random_strategy(branches.traced.graph, 6, devices, draws) for _ in range(12)],
        devices,
        1e-10,
    )


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_every_configuration_for_all_layers_at_once(devices):
    torch.manual_seed(0)
    one = reference(convnets.module({"name": "lenet5"}, (1, 28, 28), 10), (1, 28, 28), 10, 4)
    found = list(uniform_strategies(one.traced.graph, 4, devices))
    assert len(found) == {2: 5, 3: 9, 4: 19}[devices]  # ways to write a product of at most N in order
    check(one, [strategy for _, strategy in found], devices, 1e-10)


@pytest.mark.parametrize(
    "config", [(8, 1, 1, 1), (1, 8, 1, 1), (1, 1, 8, 1), (1, 1, 1, 8), (2, 1, 2, 2), (1, 2, 2, 2)]
)
def test_eight_devices(config):
    torch.manual_seed(0)
    small = {"name": "alexnet_small", "width": 0.125, "dropout": 0}
    one = reference(convnets.module(small, (3, 32, 32), 10), (3, 32, 32), 10, 8)
    check(one, [follow(one.traced.graph, config, 8, 8)], 8, 1e-10)


def test_single_precision():
    torch.manual_seed(0)
    module = Branches()
    module.last_norm = nn.Identity()  # over six samples it makes much of their rounding
    one = reference(module, (3, 13, 11), 5, 6, torch.float32)
    draws = np.random.default_rng(0)
    check(one, [random_strategy(one.traced.graph, 6, 4, draws) for _ in range(8)], 4, 1e-5)


def test_residual_network():
    torch.manual_seed(0)
    module = convnets.module({"name": "resnet50", "width": 0.0625}, (3, 40, 40), 4)
    one = reference(module, (3, 40, 40), 4, 4)
    draws = np.random.default_rng(0)
    check(one, [random_strategy(one.traced.graph, 4, 4, draws)], 4, 1e-8)


def executed(strategy_of, seed, step, devices=4):
    """Loss and gradients of a net with dropout under a strategy."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Dropout(0.4), nn.Linear(30, 5)).double()
    traced = tracing.trace(module.float(), (12,), "net")
    module.double()
    plan = Plan(traced.graph, strategy_of(traced.graph), 8, devices)
    theta = [torch.zeros(plan.params(device), dtype=torch.float64) for device in range(devices)]
    grads = [torch.zeros_like(part) for part in theta]
    parameters = dict(module.named_parameters())
    for device, part in enumerate(theta):
        equivalence.scatter(plan.slots[device], traced.parameters, parameters, part)
    run = Executor(plan, SimulatedCommunicator(devices, Ledger()), theta, grads, seed)
    stream = torch.Generator().manual_seed(3)
    x = torch.randn(8, 12, generator=stream, dtype=torch.float64)
    labels = torch.randint(0, 5, (8,), generator=stream)
    loss = run.gradients(list(x.chunk(devices)), list(labels.chunk(devices)), step)
    whole = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for slots, part in zip(plan.slots, grads):
        for slot in slots:
            target = whole[traced.parameters[slot.layer][slot.weight]]
            target[slice(*slot.channels)] = part[slot.start : slot.start + slot.size].view(slot.shape)
    return loss, whole


def test_dropout_is_the_same_under_every_strategy():
    first = executed(lambda graph: follow(graph, (1, 1, 1, 1), 8, 4), 5, 1)
    for config in [(4, 1, 1, 1), (1, 4, 1, 1), (2, 2, 1, 1)]:
        loss, grads = executed(lambda graph, config=config: follow(graph, config, 8, 4), 5, 1)
        torch.testing.assert_close(loss, first[0])
        for name in grads:
            torch.testing.assert_close(grads[name], first[1][name])
    for seed, step in [(6, 1), (5, 2)]:
        assert not torch.equal(
            executed(lambda graph: follow(graph, (1, 1, 1, 1), 8, 4), seed, step)[0], first[0]
        )


def test_dropout_drops_the_share_and_keeps_the_mean():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Dropout(0.25), nn.Flatten(), nn.Linear(4000, 3, bias=False))
    traced = tracing.trace(module, (4, 40, 25), "net")
    plan = Plan(traced.graph, follow(traced.graph, (1, 1, 1, 1), 4, 1), 4, 1)
    theta = [torch.ones(plan.params(0))]
    run = Executor(plan, SimulatedCommunicator(1, Ledger()), theta, [torch.zeros(plan.params(0))])
    (scores,) = run.scores([torch.ones(4, 4, 40, 25)], step=1).values()
    # a sum of 4000 values of 4/3 with probability 3/4: mean 4000, deviation 4/3 sqrt(4000 * 3/16)
    assert ((scores - 4000).abs() < 5 * 36.6).all() and scores.std() > 0
