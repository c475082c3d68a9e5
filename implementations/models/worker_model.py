"""A network with the weights of W workers in one flat buffer, so that N workers cost little more than one.

Shapes: w worker, p parameter, b sample of a minibatch, i input unit, o output unit.

All weights lie in ``theta_wp`` (W, P) and all gradients in ``grad_wp`` (W, P): a layer's tensors are views, one
communication call moves a whole model without packing, and one optimiser step updates every worker.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F

from implementations.models.linear import AffineGradient


class WorkerModel(ABC):
    """Base of all models: buffers, their views, and loss and gradient of all workers at once."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], workers: int) -> None:
        """Lay out one tensor per name and shape, in order, for ``workers`` workers; all zero."""
        self.params_per_worker = sum(math.prod(shape) for shape in shapes.values())
        self.theta_wp = torch.zeros(workers, self.params_per_worker)
        self.grad_wp = torch.zeros(workers, self.params_per_worker)
        self.weights = self._views(self.theta_wp, shapes)
        self.grads = self._views(self.grad_wp, shapes)
        # By name of the weight; empty but for an optimiser that needs more than the gradient.
        self.affine_gradients: dict[str, AffineGradient] = {}
        self._shapes = shapes

    @staticmethod
    def _views(flat_wp: torch.Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
        views, start = {}, 0
        for name, shape in shapes.items():
            size = math.prod(shape)
            views[name] = flat_wp[:, start : start + size].view(-1, *shape)
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

    def loss_and_grad(self, x_wbi: torch.Tensor, y_wb: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over the held workers (0-d); ``grad_wp`` then holds each worker's mean gradient."""
        scores_wbo = self.logits(x_wbi)
        loss = F.cross_entropy(scores_wbo.flatten(0, 1), y_wb.flatten(), reduction="sum") / y_wb.shape[1]
        loss.backward()
        return loss.detach() / self.workers

    @torch.no_grad()
    def evaluate(self, x_bi: torch.Tensor, y_b: torch.Tensor, worker: int = 0) -> tuple[int, float]:
        """Correct predictions and summed cross-entropy of one worker's model on the samples given."""
        scores_bo = self.one_worker(worker).logits(x_bi.unsqueeze(0)).squeeze(0)
        correct = int((scores_bo.argmax(1) == y_b).sum())
        return correct, float(F.cross_entropy(scores_bo, y_b, reduction="sum"))

    def one_worker(self, worker: int) -> WorkerModel:
        """This model restricted to one worker; weights are shared, not copied."""
        one = object.__new__(type(self))
        one.__dict__.update(self.__dict__)
        one.theta_wp, one.grad_wp = self.theta_wp[worker : worker + 1], self.grad_wp[worker : worker + 1]
        one.weights = self._views(one.theta_wp, self._shapes)
        one.grads = self._views(one.grad_wp, self._shapes)
        one.affine_gradients = {}  # those keep statistics of all workers
        return one
