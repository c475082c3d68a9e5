"""A network with the weights of W workers in one flat buffer, so that N workers cost little more than one.

Shapes: w worker, p parameter, b sample of a minibatch, i input unit, o output unit.

All weights lie in ``theta_wp`` (W, P) and all gradients in ``grad_wp`` (W, P): a layer's tensors are views, one
communication call moves a whole model without packing, and one optimiser step updates every worker.

A pass under autograd is one of training, a pass without it one of evaluation; where the two differ (statistics of a
minibatch, dropout), this decides.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Self

import torch
import torch.nn.functional as F

from implementations.models.linear import AffineGradient

Axes = Mapping[str, tuple[str | None, ...]]


class WorkerModel(ABC):
    """Base of all models: buffers, their views, and loss and gradient of all workers at once.

    A model that can be split into *units* says how: ``axes`` gives each weight the label of each of its axes (None:
    never split), the axis of workers aside, and ``units`` the number of units of a label. A *subnet* is a model of
    the same kind with fewer units; a weight of it is the block at its units. Where subnets of unequal sizes are held
    in one object, the smaller ones are padded: all weights of a padded unit are zero, and stay so under SGD if
    ``zero_units_stay``.
    """

    zero_units_stay = True
    sliceable = False  # whether some workers can take a step apart from the others, as ``some_workers``
    # How many workers take a step together; None: all. Their activations are alive at once; gradients are the same.
    workers_at_once: int | None = None
    evaluation_batch: int | None = (
        None  # samples whose statistics are evaluated with; None: any number gives the same
    )
    needs_samples = False  # whether ``prepare_evaluation`` wants to see samples

    def __init__(self, shapes: dict[str, tuple[int, ...]], workers: int, axes: Axes | None = None) -> None:
        """Lay out one tensor per name and shape, in order, for ``workers`` workers; all zero."""
        self.params_per_worker = sum(math.prod(shape) for shape in shapes.values())
        self.theta_wp = torch.zeros(workers, self.params_per_worker)
        self.grad_wp = torch.zeros(workers, self.params_per_worker)
        self.weights = self._views(self.theta_wp, shapes)
        self.grads = self._views(self.grad_wp, shapes)
        # By name of the weight; empty but for an optimiser that needs more than the gradient.
        self.affine_gradients: dict[str, AffineGradient] = {}
        self._shapes = shapes
        self.axes: dict[str, tuple[str | None, ...]] = dict(axes or {})  # {}: cannot be split
        self.units: dict[str, int] = _count_units(shapes, self.axes)
        self.min_units: dict[str, int] = dict.fromkeys(self.units, 1)  # least number in a subnet
        # Of a net put together of subnets: the share of a label's units that a subnet had in training. Evaluation
        # scales what reads them by it, as is done after dropout, where no normalisation does.
        self.shares: dict[str, float] = {}

    @staticmethod
    def _views(flat_wp: torch.Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
        views, start = {}, 0
        for name, shape in shapes.items():
            size = math.prod(shape)
            views[name] = flat_wp[:, start : start + size].view(len(flat_wp), *shape)
            start += size
        return views

    @property
    def workers(self) -> int:
        """Workers whose weights this object holds."""
        return self.theta_wp.shape[0]

    @property
    def affine_layers(self) -> tuple[str, ...]:
        """Names of the weights whose gradient ``affine_gradients`` may take over, in order of the layers."""
        return ()

    @property
    @abstractmethod
    def flops_per_sample(self) -> int:
        """Floating-point operations of forward and backward for one training sample (multiply and add: two)."""

    @abstractmethod
    def logits(self, x_wbi: torch.Tensor) -> torch.Tensor:
        """Scores (W, B, classes); under autograd, backward writes the gradients into ``grad_wp``."""

    @abstractmethod
    def to_module(self, worker: int = 0) -> torch.nn.Module:
        """A plain torch module with a copy of one worker's weights."""

    def loss_sum(self, scores_no: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy summed over the samples (0-d)."""
        return F.cross_entropy(scores_no, labels, reduction="sum")

    def loss_and_grad(self, x_wbi: torch.Tensor, y_wb: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over the held workers (0-d); ``grad_wp`` then holds each worker's mean gradient.

        Labels are (W, B), or (W, B, m) for a model that takes several of a sample.
        """
        if self.workers_at_once is not None and self.workers > self.workers_at_once:
            turns = -(-self.workers // self.workers_at_once)
            edges = [self.workers * turn // turns for turn in range(turns + 1)]
            losses = [
                self.some_workers(first, last).loss_and_grad(x_wbi[first:last], y_wb[first:last])
                * (last - first)
                for first, last in itertools.pairwise(edges)
            ]
            return torch.stack(losses).sum() / self.workers
        scores_wbo = self.logits(x_wbi)
        loss = self.loss_sum(scores_wbo.flatten(0, 1), y_wb.flatten(0, 1)) / y_wb.shape[1]
        loss.backward()
        return loss.detach() / self.workers

    def prepare_evaluation(self, x_batches: Iterable[torch.Tensor], worker: int = 0) -> None:
        """Estimate what evaluation needs to know of the inputs (b, features) of training, for one worker's weights.

        Nothing unless ``needs_samples``. To be called again when the weights have changed. ``x_batches`` is gone
        through once.
        """
        assert not self.needs_samples  # or this would be overridden

    @torch.no_grad()
    def evaluate(self, x_bi: torch.Tensor, y_b: torch.Tensor, worker: int = 0) -> tuple[int, float]:
        """Correct predictions (the best class is a label) and summed loss of one worker's model on these samples."""
        scores_bo = self.one_worker(worker).logits(x_bi.unsqueeze(0)).squeeze(0)
        right_bm = scores_bo.argmax(1, keepdim=True) == y_b.view(len(y_b), -1)
        return int(right_bm.any(1).sum()), float(self.loss_sum(scores_bo, y_b))

    def drop_gradients(self) -> None:
        """Give back the memory of the gradients, of a model that is only evaluated."""
        self.grad_wp = self.theta_wp.new_zeros(1, 1).expand_as(self.theta_wp)
        self.grads = {name: weight.new_zeros(1).expand_as(weight) for name, weight in self.weights.items()}

    def one_worker(self, worker: int) -> Self:
        """This model restricted to one worker; weights are shared, not copied."""
        return self.some_workers(worker, worker + 1)

    def some_workers(self, first: int, last: int) -> Self:
        """This model restricted to workers ``first`` to ``last`` (excluded); weights are shared, not copied."""
        some = object.__new__(type(self))
        some.__dict__.update(self.__dict__)
        some.theta_wp, some.grad_wp = self.theta_wp[first:last], self.grad_wp[first:last]
        some.weights = self._views(some.theta_wp, self._shapes)
        some.grads = self._views(some.grad_wp, self._shapes)
        some.affine_gradients = {}  # those keep statistics of all workers
        some.workers_at_once = None
        return some


def _count_units(shapes: dict[str, tuple[int, ...]], axes: Axes) -> dict[str, int]:
    """Units of each label, in order of first appearance; ValueError where shapes and axes do not agree."""
    units: dict[str, int] = {}
    for name, labels in axes.items():
        for label, size in zip(labels, shapes[name], strict=True):
            if label is not None and units.setdefault(label, size) != size:
                raise ValueError(f"{name}: {size} units of {label}, which has {units[label]}")
    return units
