"""Whether a strategy does what one device does: loss, gradients and weights after a step, against the plain module.

The devices live in this process and exchange blocks with each other; the arithmetic of every device is that of a real
one. The plain module is run by torch alone, so that nothing of the partition is checked against itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.layerwise import algebra
from implementations.layerwise.executor import Executor
from implementations.layerwise.graph import INPUT, Config, Graph, Strategy
from implementations.layerwise.holding import scatter
from implementations.layerwise.plan import Plan
from implementations.layerwise.tracing import Traced

LR = 0.1


@dataclass(frozen=True)
class Difference:
    """Largest differences, and whether bytes were foretold.

    Those of gradients and weights are over the largest value of the tensor concerned, or a tenth of that of all
    tensors where this is larger; that of the loss is over the loss, or 1.
    """

    loss: float
    gradients: float
    weights: float
    bytes_as_predicted: bool

    @property
    def worst(self) -> float:
        """The largest of them."""
        return max(self.loss, self.gradients, self.weights)


class Reference:
    """One step of plain SGD on one device, for a module that draws no dropout."""

    def __init__(self, module: nn.Module, traced: Traced, x: torch.Tensor, labels: torch.Tensor) -> None:
        """``x``: (samples, ...) in the module's dtype; ``labels``: int64 (samples,)."""
        self.traced, self.x, self.labels = traced, x, labels
        self.before = {name: p.detach().clone() for name, p in module.named_parameters()}
        module.train().zero_grad()
        loss = nn.functional.cross_entropy(module(x), labels)
        loss.backward()
        self.loss = float(loss.detach())
        self.gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
        # a parameter in front of a normalisation may have a gradient of 0, but for rounding
        self._least = {
            "gradients": 0.1 * _largest(self.gradients.values()),
            "weights": 0.1 * _largest(self.before.values()),
        }
        self.after = {name: self.before[name] - LR * grad for name, grad in self.gradients.items()}

    def rounding(self, exact: Reference) -> float:
        """How far this step is from the same one in higher precision: what rounding alone does."""
        pairs = [(self.gradients, exact.gradients, "gradients"), (self.after, exact.after, "weights")]
        return max(
            _error(ours[name].double(), theirs[name], theirs[name], exact._least[kind])
            for ours, theirs, kind in pairs
            for name in theirs
        )

    def difference(self, strategy: Strategy, devices: int) -> Difference:
        """How far the strategy's step on ``devices`` devices is from this one."""
        dtype = self.x.dtype
        plan = Plan(self.traced.graph, strategy, len(self.x), devices)
        ledger = Ledger()
        comm = SimulatedCommunicator(devices, ledger)
        theta = [torch.zeros(plan.params(device), dtype=dtype) for device in range(devices)]
        grads = [torch.full_like(part, float("nan")) for part in theta]
        for device, part in enumerate(theta):
            scatter(plan.slots[device], self.traced.parameters, self.before, part)
        blocks = [slice(*box[0]) for box in plan.stages[0].blocks]
        executor = Executor(plan, comm, theta, grads)
        loss = executor.gradients([self.x[b] for b in blocks], [self.labels[b] for b in blocks], 0)
        worst = {"gradients": 0.0, "weights": 0.0}
        for device, slots in enumerate(plan.slots):
            for slot in slots:
                name = self.traced.parameters[slot.layer][slot.weight]
                part, channels = slice(slot.start, slot.start + slot.size), slice(*slot.channels)
                grad = grads[device][part].view(slot.shape)
                after = theta[device][part].view(slot.shape) - LR * grad
                for kind, ours, theirs in (
                    ("gradients", grad, self.gradients),
                    ("weights", after, self.after),
                ):
                    error = _error(ours, theirs[name][channels], theirs[name], self._least[kind])
                    worst[kind] = max(worst[kind], error)
        sent = ledger.sent_bytes_total
        return Difference(
            loss=abs(float(loss) - self.loss) / max(1.0, abs(self.loss)),
            bytes_as_predicted=sent == sum(plan.sent_bytes(dtype.itemsize)),
            **worst,
        )


def _largest(tensors: Iterable[torch.Tensor]) -> float:
    return max(float(tensor.abs().max()) for tensor in tensors)


def _error(ours: torch.Tensor, theirs: torch.Tensor, whole: torch.Tensor, least: float) -> float:
    """Largest difference over the largest value, but at least ``least``; NaN counts as infinitely far."""
    error = float((ours - theirs).abs().max()) / max(_largest([whole]), least)
    return error if error == error else float("inf")


def uniform_strategies(
    graph: Graph, batch: int, devices: int, degrees: str = "all"
) -> Iterator[tuple[Config, dict[str, Config]]]:
    """For every configuration of an image layer the strategy that has all layers follow it as far as they can.

    A layer takes of each degree as much as it has; vectors take the sample's and the channel's, the loss the sample's.
    """
    choices = [d for d in range(1, devices + 1) if degrees == "all" or d & (d - 1) == 0]
    for config in itertools.product(choices, repeat=4):
        if np.prod(config) <= devices:
            yield config, follow(graph, config, batch, devices)


def follow(graph: Graph, config: Config, batch: int, devices: int) -> dict[str, Config]:
    """The strategy that splits every layer as ``config`` (n, c, h, w) says, or as much as the layer can."""
    strategy = {}
    for layer in graph:
        if layer.kind == INPUT:
            strategy[layer.name] = (min(devices, batch), *[1] * len(layer.out))
        else:
            most = (batch, *layer.splittable)
            strategy[layer.name] = tuple(min(*one) for one in zip(config, most))
    return strategy


def random_strategy(graph: Graph, batch: int, devices: int, draws: np.random.Generator) -> dict[str, Config]:
    """Any allowed configuration for each layer, drawn independently."""
    strategy = {}
    for layer in graph:
        allowed = algebra.configurations(layer, batch, devices, "all")
        if layer.kind == INPUT:
            allowed = [(min(devices, batch), *[1] * len(layer.out))]
        strategy[layer.name] = allowed[draws.integers(len(allowed))]
    return strategy
