"""What a method gets to train with: the network, its workers' data, a communicator, an optimiser.

Shapes: w worker hosted by this process, b sample of a minibatch, i input feature.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from implementations import recipe, schedules
from implementations.clock import Clock
from implementations.cluster.communicator import Communicator
from implementations.data.dataset import DataSet
from implementations.data.shards import Order
from implementations.devices import Device
from implementations.holding import Holding
from implementations.models.worker_model import WorkerModel
from implementations.optimizers.ng_sgd import NaturalGradientSGD
from implementations.point import Point

DRIFT_BLOCK = 1 << 24  # values handled at once, in double precision: of 64 workers 262,144 parameters

Optimizer = torch.optim.Optimizer | NaturalGradientSGD


@dataclass(frozen=True)
class Plan:
    """The sizes of a run that are known before it starts, for closed forms.

    ``model_bytes`` is what one worker trains; ``layout`` describes the tensors of a network that is split.
    """

    workers: int
    epochs: int
    steps_per_epoch: int
    model_bytes: int
    settings: dict[str, Any]
    seed: int = 0
    layout: Any = None


@dataclass(frozen=True)
class Batch:
    """The minibatches in one step of the workers whose samples this process reads.

    Steps count from 1, over the run and in the epoch.
    """

    step: int
    step_in_epoch: int
    last_of_epoch: bool
    samples: int  # of all workers of the run, hosted here or not
    x: torch.Tensor  # x_wbi float32, or SparseRows
    y: torch.Tensor  # y_wb int64; (W, B, most labels) where a sample may have several


def order_of(point: Point, dataset: DataSet) -> Order:
    """Which sample each worker of a point sees in which step."""
    return Order(
        dataset.sizes["train"],
        point.workers,
        point.minibatch,
        point.sharding,
        point.seed,
        groups=dataset.groups("train") if point.sharding == "balanced" else None,
        labels=dataset.labels("train") if point.sharding == "skewed" else None,
        skew=point.skew,
        passes=point.passes,
    )


class Shards:
    """The training samples of some workers, as a rule those that this process hosts, and their order."""

    def __init__(
        self, dataset: DataSet, order: Order, hosted: tuple[int, ...], device: Device | None = None
    ) -> None:
        """``device``: where minibatches are wanted; the CPU unless given."""
        self.order, self._hosted, self.device = order, hosted, device or Device()
        if hosted and not order.private:
            self._starts = np.zeros(len(hosted), dtype=int)
            wanted = None
        else:
            shards = [order.shard(worker) for worker in hosted]
            self._starts = np.cumsum([0, *map(len, shards)])[:-1]
            wanted = np.concatenate([np.empty(0, np.int64), *shards])
        self._samples = dataset.samples("train", wanted)

    def epoch(self, epoch: int) -> torch.Tensor:
        """Rows of the stored samples for each step of an epoch: (steps, W * minibatch)."""
        if not self._hosted:
            return torch.empty(self.order.steps_per_epoch, 0, dtype=torch.int64)
        rows = [self.order.epoch(epoch, worker) + start for worker, start in zip(self._hosted, self._starts)]
        return torch.from_numpy(np.concatenate(rows, axis=1))

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples and labels of one step: (W, minibatch, features) and (W, minibatch, ...)."""
        workers = len(self._hosted)
        x_ni, y_n = self.device.take(self._samples, rows)
        if not workers:
            return x_ni, y_n
        return x_ni.view(workers, -1, x_ni.shape[1]), y_n.view(workers, -1, *y_n.shape[1:])


def make_optimizer(net: WorkerModel, name: str, lr: float, options: Mapping[str, Any]) -> Optimizer:
    """The optimiser of a network's weights; ``options`` as ``recipe.settings`` gives them."""
    net.theta_wp.grad = net.grad_wp
    if name == "ng_sgd":
        return NaturalGradientSGD(
            net,
            lr,
            alpha=options["ng_alpha"],
            rank_in=options["ng_rank_in"],
            rank_out=options["ng_rank_out"],
            history=options["ng_history"],
            update_period=options["ng_update_period"],
            max_change=options["max_change"],
            max_change_rule=options["max_change_rule"],
            reduction=options["reduction"],
        )
    if name == "rmsprop":
        return torch.optim.RMSprop(
            [net.theta_wp],
            lr=lr,
            alpha=options["rms_decay"],
            eps=options["rms_epsilon"],
            momentum=options["momentum"],
        )
    return torch.optim.SGD([net.theta_wp], lr=lr, momentum=options["momentum"])


def make_schedule(point: Point) -> schedules.Schedule:
    """The point's schedule of rates relative to its learning rate."""
    options = recipe.settings(point)
    if point.schedule == "exponential":
        return schedules.Exponential(1.0, point.epochs, options["lr_final"])
    if point.schedule == "newbob":
        return schedules.Newbob(
            1.0,
            options["newbob_start_below"],
            options["newbob_stop_below"],
            options["newbob_factor"],
            point.epochs,
            options["newbob_criterion"],
            options["reject_worse"],
        )
    return schedules.Exponential(1.0, point.epochs, final=1.0)


class Training:
    """The run as its method sees it."""

    def __init__(
        self,
        point: Point,
        settings: dict[str, Any],
        holding: Holding,
        comm: Communicator,
        shards: Shards,
        clock: Clock,
    ) -> None:
        self.point, self.settings, self.comm = point, settings, comm
        self.holding, self.net = holding, holding.net
        self.plan = Plan(
            comm.size,
            point.epochs,
            shards.order.steps_per_epoch,
            self.net.params_per_worker * 4,
            settings,
            point.seed,
            getattr(holding, "layout", None),
        )
        self.done_steps = 0  # set by a resume before the method starts
        self.schedule = make_schedule(point)
        # a block whose traffic is no training's, and is left out where the kernel counts
        self.uncounted: Callable[[], AbstractContextManager[None]] = nullcontext
        self.drift: float | None = None  # before the latest average that ``measure_drift`` was called for
        self.own_theta_p: torch.Tensor | None = None  # see ``keep_own``
        self.notes: dict[
            str, Any
        ] = {}  # further columns of the record that the method knows; equal on all processes
        self._recipe = recipe.settings(point)
        self._shards, self._clock = shards, clock
        self._optimizer: Optimizer | None = None
        self._optimizer_state: dict[str, Any] | None = None
        self._base_lr = math.nan
        self._accepted: torch.Tensor | None = None  # weights to go back to when an epoch is undone

    def optimizer(self, lr: float) -> Optimizer:
        """The point's optimiser over all hosted workers' weights; workers stay independent.

        The schedule changes ``lr`` from epoch to epoch.
        """
        self._base_lr = lr
        self._optimizer = make_optimizer(self.net, self.point.optimizer, lr, self._recipe)
        if self._optimizer_state is not None:
            self._optimizer.load_state_dict(self._optimizer_state)
        return self._optimizer

    @property
    def moves_wp(self) -> torch.Tensor | None:
        """The optimiser's momentum of all hosted workers, (W, P); None before the first step or without momentum."""
        return (
            self._optimizer.state.get(self.net.theta_wp, {}).get("momentum_buffer")
            if self._optimizer
            else None
        )

    def first_minibatches(self) -> tuple[Any, torch.Tensor]:
        """The first samples of the first epoch, for trying the network out."""
        return self._shards.take(self._shards.epoch(1)[0])

    def batches(self) -> Iterator[Batch]:
        """The minibatches of the run from where it stands, in order; time spent here is charged to ``data``.

        Ends where the schedule says so, at the latest after the plan's epochs.
        """
        plan, minibatch, ledger = self.plan, self.point.minibatch, self.comm.ledger
        flops = minibatch * self.net.flops_per_sample
        label = dataclasses.replace(self.point, model=self.holding.model).step_label
        for epoch in range(self.done_steps // plan.steps_per_epoch + 1, plan.epochs + 1):
            if self.schedule.finished:
                return
            first = max(0, self.done_steps - (epoch - 1) * plan.steps_per_epoch)
            self._start_epoch(fresh=first == 0)
            with self._clock("data"):
                rows = self._shards.epoch(epoch)
            for index in range(first, plan.steps_per_epoch):
                with self._clock("data"):
                    x_wbi, y_wb = self._shards.take(rows[index])
                step = (epoch - 1) * plan.steps_per_epoch + index + 1
                ledger.step = step
                ledger.compute(label, minibatch, flops)
                last = index + 1 == plan.steps_per_epoch
                yield Batch(step, index + 1, last, self.comm.size * minibatch, x_wbi, y_wb)

    def _start_epoch(self, fresh: bool) -> None:
        """Set the epoch's rate; estimates that last an epoch start anew, unless a resume is in its middle."""
        lr = self._base_lr * self.schedule.rate
        if self.point.optimizer == "sgd" and self._recipe["reduction"] == "sum":
            lr *= self.point.minibatch  # the loss is a mean over the minibatch
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        if fresh and isinstance(self._optimizer, NaturalGradientSGD):
            self._optimizer.new_epoch()

    def end_epoch(self, accuracy: float, loss: float) -> bool:
        """Tell the schedule what the validation set says; False where it had the epoch undone."""
        accepted = self.schedule.observe(loss if self._recipe.get("newbob_criterion") == "loss" else accuracy)
        if self._recipe.get("reject_worse"):
            if accepted or self._accepted is None:
                self._accepted = self.net.theta_wp.clone()
            else:
                self.net.theta_wp.copy_(self._accepted)
        return accepted

    def start_schedule(self, accuracy: float, loss: float) -> None:
        """Tell the schedule what the first weights are worth; the first epoch's gain counts from there."""
        if isinstance(self.schedule, schedules.Newbob) and self.schedule.best is None:
            self.schedule.best = loss if self.schedule.criterion == "loss" else accuracy
        if self._recipe.get("reject_worse"):
            self._accepted = self.net.theta_wp.clone()

    def measure_drift(self) -> None:
        """How far the workers' weights are from their mean: root mean square distance over the mean's norm.

        A step of the measuring, off the ledger; call it before an average, on all processes.
        """
        if self.comm.size == 1:
            return
        with self._clock("eval"), self.uncounted():
            totals = np.zeros(2)  # squares of the workers' weights, and of their mean's
            for part_wp in self.net.theta_wp.split(max(1, DRIFT_BLOCK // max(64, self.comm.size)), dim=1):
                part_wp = part_wp.to(torch.float64, copy=True)
                sums = self.comm.control_sum(
                    np.append(part_wp.sum(0).cpu().numpy(), part_wp.square_().sum().cpu())
                )
                totals += sums[-1] / self.comm.size, np.square(sums[:-1] / self.comm.size).sum()
            squares, norm = totals
            self.drift = math.sqrt(max(0.0, squares - norm) / norm) if norm > 0 else math.nan

    def keep_own(self) -> None:
        """Keep the first hosted worker's weights, to be tested beside the final average."""
        with self._clock("eval"):
            self.own_theta_p = self.net.theta_wp[0].clone()

    def state(self) -> dict[str, Any]:
        """What a resume needs of the method's part: weights and optimiser."""
        optimizer = self._optimizer.state_dict() if self._optimizer else None
        return {
            "theta_wp": self.net.theta_wp,
            "optimizer": optimizer,
            "schedule": self.schedule.state_dict(),
            "accepted": self._accepted,
            "drift": self.drift,
            "holding": self.holding.state(),
            "rng": torch.get_rng_state(),  # of dropout
            "device_rng": self._shards.device.random_state(),
        }

    def restore(self, state: dict[str, Any], done_steps: int) -> None:
        """Take up a saved state, before the method starts."""
        self.net.theta_wp.copy_(state["theta_wp"])
        self._optimizer_state = state["optimizer"]
        self.schedule.load_state_dict(state["schedule"])
        accepted, self.drift = state["accepted"], state["drift"]
        self._accepted = None if accepted is None else accepted.to(self.net.theta_wp.device)
        self.holding.restore(state["holding"])
        torch.set_rng_state(state["rng"])
        self._shards.device.restore_random(state["device_rng"])
        self.done_steps = done_steps

    @property
    def state_bytes_per_worker(self) -> int:
        """Bytes of one worker's live parameters, gradients and optimiser state; the largest of those hosted."""
        tensors = [self.net.theta_wp, self.net.grad_wp]
        if self._optimizer:
            for slots in self._optimizer.state.values():
                tensors += [slot for slot in slots.values() if torch.is_tensor(slot) and slot.dim() > 0]
        return sum(tensor.nbytes for tensor in tensors) // self.net.workers
