"""What a method gets to train with: the network, its workers' data, a communicator, an optimiser.

Shapes: w worker hosted by this process, b sample of a minibatch, i input feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from implementations.clock import Clock
from implementations.cluster.communicator import Communicator
from implementations.data.dataset import DataSet
from implementations.data.shards import Order
from implementations.models.worker_model import WorkerModel
from implementations.point import Point

OPTIMIZERS = {"sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Plan:
    """The sizes of a run that are known before it starts, for closed forms. ``model_bytes`` is one worker's."""

    workers: int
    epochs: int
    steps_per_epoch: int
    model_bytes: int
    settings: dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """The minibatches of all hosted workers in one step; steps count from 1, over the run and in the epoch."""

    step: int
    step_in_epoch: int
    last_of_epoch: bool
    samples: int  # of all workers of the run, hosted here or not
    x: torch.Tensor  # x_wbi float32
    y: torch.Tensor  # y_wb int64


class Shards:
    """The training samples of the hosted workers, in memory, and their order."""

    def __init__(self, dataset: DataSet, order: Order, hosted: tuple[int, ...]) -> None:
        self.order, self._hosted = order, hosted
        if order.sharding == "static":
            shards = [order.shard(worker) for worker in hosted]
            self._starts = np.cumsum([0, *map(len, shards)])[:-1]
            wanted = np.concatenate(shards)
        else:
            self._starts = np.zeros(len(hosted), dtype=int)
            wanted = None
        self._x_ni, self._y_n = dataset.tensors("train", wanted)

    def epoch(self, epoch: int) -> torch.Tensor:
        """Rows of the stored samples for each step of an epoch: (steps, W * minibatch)."""
        rows = [self.order.epoch(epoch, worker) + start for worker, start in zip(self._hosted, self._starts)]
        return torch.from_numpy(np.concatenate(rows, axis=1))

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples and labels of one step: (W, minibatch, features) and (W, minibatch)."""
        workers = len(self._hosted)
        return self._x_ni[rows].view(workers, -1, self._x_ni.shape[1]), self._y_n[rows].view(workers, -1)


class Training:
    """The run as its method sees it."""

    def __init__(
        self,
        point: Point,
        settings: dict[str, Any],
        net: WorkerModel,
        comm: Communicator,
        shards: Shards,
        clock: Clock,
    ) -> None:
        self.point, self.settings, self.net, self.comm = point, settings, net, comm
        self.plan = Plan(
            comm.size, point.epochs, shards.order.steps_per_epoch, net.params_per_worker * 4, settings
        )
        self.done_steps = 0  # set by a resume before the method starts
        self._shards, self._clock = shards, clock
        self._optimizer: torch.optim.Optimizer | None = None
        self._optimizer_state: dict[str, Any] | None = None

    def optimizer(self, lr: float) -> torch.optim.Optimizer:
        """The point's optimiser over all hosted workers' weights; elementwise, so workers stay independent."""
        self.net.theta_wp.grad = self.net.grad_wp
        self._optimizer = OPTIMIZERS[self.point.optimizer]([self.net.theta_wp], lr=lr)
        if self._optimizer_state is not None:
            self._optimizer.load_state_dict(self._optimizer_state)
        return self._optimizer

    def batches(self) -> Iterator[Batch]:
        """The minibatches of the run from where it stands, in order; time spent here is charged to ``data``."""
        plan, minibatch, ledger = self.plan, self.point.minibatch, self.comm.ledger
        flops = minibatch * self.net.flops_per_sample
        for epoch in range(self.done_steps // plan.steps_per_epoch + 1, plan.epochs + 1):
            with self._clock("data"):
                rows = self._shards.epoch(epoch)
            first = max(0, self.done_steps - (epoch - 1) * plan.steps_per_epoch)
            for index in range(first, plan.steps_per_epoch):
                with self._clock("data"):
                    x_wbi, y_wb = self._shards.take(rows[index])
                step = (epoch - 1) * plan.steps_per_epoch + index + 1
                ledger.step = step
                ledger.compute(self.point.model_label, minibatch, flops)
                last = index + 1 == plan.steps_per_epoch
                yield Batch(step, index + 1, last, self.comm.size * minibatch, x_wbi, y_wb)

    def state(self) -> dict[str, Any]:
        """What a resume needs of the method's part: weights and optimiser."""
        optimizer = self._optimizer.state_dict() if self._optimizer else None
        return {"theta_wp": self.net.theta_wp, "optimizer": optimizer}

    def restore(self, state: dict[str, Any], done_steps: int) -> None:
        """Take up a saved state, before the method starts."""
        self.net.theta_wp.copy_(state["theta_wp"])
        self._optimizer_state = state["optimizer"]
        self.done_steps = done_steps

    @property
    def state_bytes_per_worker(self) -> int:
        """Bytes of one worker's live parameters, gradients and optimiser state."""
        tensors = [self.net.theta_wp, self.net.grad_wp]
        if self._optimizer:
            for slots in self._optimizer.state.values():
                tensors += [slot for slot in slots.values() if torch.is_tensor(slot) and slot.dim() > 0]
        return sum(tensor.nbytes for tensor in tensors) // self.net.workers
