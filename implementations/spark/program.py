"""A training step of one network over the k workers of a group, as segments of arithmetic between exchanges.

Every worker owns a block of the units of each layer: rows of a weight matrix, filters of a convolution, hidden units
of a recurrent layer with all their gates. A segment computes on what a worker owns and on what the exchange before
it brought; between two segments the workers of a group exchange activations or their derivatives. Weight gradients
and optimiser state never leave their owner.

The segments are spelled out, rather than hidden in one function, because they are run in two ways: one after the
other inside workers that stay alive (``spmd``), and each as a Spark job of its own, which a worker that has only its
saved state must be able to take up (``jobs``).

Shapes: b sample of the group's minibatch, u unit, i input value, o class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

GATHER, SCATTER_SUM, SUM, PAIRS = "gather", "scatter_sum", "sum", "pairs"


@dataclass(frozen=True)
class Block:
    """The part of a parameter that a worker owns: ``parameter.view(shape)``, then ``start`` to ``stop`` of ``axis``.

    ``shape`` is the parameter's own where its units lie along one of its axes, and another where they do not: the
    four gates of an LSTM are (4, hidden, inputs). A block of the whole axis on every worker is replicated, and its
    program sums its gradient.
    """

    shape: tuple[int, ...]
    axis: int
    start: int
    stop: int

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return (*self.shape[: self.axis], self.stop - self.start, *self.shape[self.axis + 1 :])

    @property
    def size(self) -> int:
        """Values of the part."""
        return math.prod(self.own_shape)

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The part of a whole parameter, as a view."""
        return parameter.view(self.shape).narrow(self.axis, self.start, self.stop - self.start)


@dataclass(frozen=True)
class Exchange:
    """What the k workers of a group hand each other after a segment. Shapes are known before, the same on all.

    kind:
        ``gather``: each worker's block along ``axis``, joined; everybody gets the whole, of ``shape``.
        ``scatter_sum``: each worker has a whole tensor of ``shape``; worker j gets block j along ``axis`` of the sum.
        ``sum``: each worker has a tensor of ``shape``; everybody gets the sum.
        ``pairs``: worker s has a tensor for worker t, of shape ``pairs[s, t]`` (rows of images at a border, say).
    sizes: of the workers' blocks along ``axis``; a worker may have none (0).
    """

    kind: str
    shape: tuple[int, ...] = ()
    axis: int = 0
    sizes: tuple[int, ...] = ()
    pairs: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def block_shape(self, worker: int) -> tuple[int, ...]:
        """Shape of a worker's block of the whole."""
        return (*self.shape[: self.axis], self.sizes[worker], *self.shape[self.axis + 1 :])

    def values(self, worker: int) -> int:
        """Numbers that the worker hands over."""
        if self.kind == GATHER:
            return math.prod(self.block_shape(worker))
        if self.kind == PAIRS:
            return sum(math.prod(shape) for (source, _), shape in self.pairs.items() if source == worker)
        return math.prod(self.shape)

    def received(self, worker: int) -> int:
        """Numbers that the worker is given in the end."""
        if self.kind == SCATTER_SUM:
            return math.prod(self.block_shape(worker))
        if self.kind == PAIRS:
            return sum(math.prod(shape) for (_, target), shape in self.pairs.items() if target == worker)
        return math.prod(self.shape)


@dataclass
class State:
    """What a worker has in a step. ``saved`` and ``loss`` live from segment to segment, and end with the step.

    weights, grads: of its blocks, by the names of the parameters; views of its row of the flat buffers.
    x_bi, y_b: the group's minibatch, the same on all its workers.
    saved: activations and whatever else a later segment wants; float32 or integer tensors of its own.
    loss: the mean over the group's minibatch (0-d), once a segment has computed it; equal on all workers.
    """

    weights: Mapping[str, torch.Tensor]
    grads: Mapping[str, torch.Tensor]
    x_bi: torch.Tensor
    y_b: torch.Tensor
    saved: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: torch.Tensor | None = None


# What a segment hands over: a tensor, for ``pairs`` one for each target, and nothing at the end of the step.
Handed = torch.Tensor | dict[int, torch.Tensor] | None


class Program(ABC):
    """The step of a network on ``workers`` workers and a minibatch of ``batch`` samples a group."""

    def __init__(self, workers: int, batch: int) -> None:
        self.workers, self.batch = workers, batch

    @property
    @abstractmethod
    def exchanges(self) -> tuple[Exchange | None, ...]:
        """What follows each segment, in order; None after the last, and after one that hands nothing over."""

    @abstractmethod
    def blocks(self, worker: int) -> dict[str, Block]:
        """What the worker owns of each parameter, in the order and by the names of the whole network's."""

    @abstractmethod
    def run(self, segment: int, worker: int, state: State, received: Any) -> Handed:
        """One segment on one worker; ``received`` is what the exchange before brought it (first: None).

        Of ``gather`` and ``sum`` the whole tensor, of ``scatter_sum`` the worker's block, of ``pairs`` a dict by
        source. Changes ``state``, whose gradients are overwritten, and only there; no autograd graph outlives it. A
        received tensor may be shared with other workers and is not written to.
        """

    @abstractmethod
    def flops_per_sample(self, worker: int) -> int:
        """Operations of the worker for one sample of the group, forward and backward."""

    def params(self, worker: int) -> int:
        """Parameters that the worker owns."""
        return sum(block.size for block in self.blocks(worker).values())

    def views(self, worker: int, flat_p: torch.Tensor) -> dict[str, torch.Tensor]:
        """The worker's blocks as views of a flat vector, one behind the other."""
        views, start = {}, 0
        for name, block in self.blocks(worker).items():
            views[name] = flat_p[start : start + block.size].view(block.own_shape)
            start += block.size
        return views

    @property
    def segments(self) -> int:
        """Segments of a step."""
        return len(self.exchanges)


def shares(units: int, workers: int) -> tuple[int, ...]:
    """Units of each worker: as equal as can be, the first ones one more where it does not divide."""
    return tuple(units // workers + (worker < units % workers) for worker in range(workers))


def start_of(sizes: tuple[int, ...], worker: int) -> int:
    """Where the worker's block begins."""
    return sum(sizes[:worker])


def loss_and_slope(scores_bo: torch.Tensor, y_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy (0-d) and its derivative by the scores, (b, o)."""
    with torch.enable_grad():
        scores_bo = scores_bo.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(scores_bo, y_b, reduction="sum") / len(y_b)
        (slope_bo,) = torch.autograd.grad(loss, scores_bo)
    return loss.detach(), slope_bo


def through(function: Any, inputs: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The derivative by ``inputs`` of a cheap function of one tensor, given that by its result; computed anew."""
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_()
        (found,) = torch.autograd.grad(function(inputs), inputs, slope)
    return found
