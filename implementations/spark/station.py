"""What a process that runs Spark's tasks has of a run: its data, program and network, kept from task to task.

Shapes: w worker of a group, b sample of a minibatch, i input feature.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from implementations import models, recipe
from implementations.data import loading
from implementations.data.dataset import DataSet
from implementations.errors import UserError
from implementations.models.worker_model import WorkerModel
from implementations.point import Point
from implementations.spark import nets
from implementations.spark.options import members
from implementations.spark.phases import Phase, phases
from implementations.spark.program import Program, shares, start_of
from implementations.training import Shards, order_of


@dataclass(frozen=True)
class Spec:
    """A run as its tasks are told of it. ``token`` tells it from all others, also from an attempt before."""

    point: Point
    settings: dict[str, Any]
    features: int
    classes: int
    results: str  # the folder, absolute
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


class Station:
    """What the tasks of a run share in one process."""

    def __init__(self, spec: Spec) -> None:
        torch.set_num_threads(1)
        self.spec, self.point = spec, spec.point
        self.members = members(spec.point, spec.settings)
        self.options = recipe.settings(spec.point)

    @cached_property
    def minibatches(self) -> Minibatches:
        """The training samples."""
        point = self.point
        wanted = point.data_size
        if wanted is not None and point.scaling == "weak":
            wanted *= point.workers
        return Minibatches(point, loading.load(point.dataset, self.spec.results, data_size=wanted))

    @cached_property
    def program(self) -> Program:
        """The step of a group's workers."""
        spec, k = self.spec, self.members
        batch = k * self.point.minibatch
        return nets.program(self.point.model, spec.features, spec.classes, k, batch, spec.settings["cut"])

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The step's jobs."""
        return phases(self.program, self.point.workers // self.members)

    @cached_property
    def net(self) -> WorkerModel:
        """A whole network, whose weights are for a task to set."""
        return models.build(self.point.model, self.spec.features, self.spec.classes, 1, torch.Generator())


_station: Station | None = None


def at(spec: Spec) -> Station:
    """The run's station in this process; that of another run is given up."""
    global _station
    if _station is None or _station.spec.token != spec.token:
        _station = Station(spec)
    return _station


class Minibatches:
    """The samples of each step, by epoch and place in it; those of workers that nobody asks for are not read."""

    def __init__(self, point: Point, dataset: DataSet) -> None:
        self._name, self._dataset, self._minibatch = dataset.name, dataset, point.minibatch
        self._workers = point.workers
        self._order = order_of(point, dataset)
        self._shards: dict[range, Shards] = {}
        self._rows: dict[range, tuple[int, torch.Tensor]] = {}
        self._last: tuple[Any, tuple[Any, torch.Tensor]] = (None, (None, torch.empty(0)))

    def take(self, workers: range, epoch: int, index: int) -> tuple[Any, torch.Tensor]:
        """Inputs (b, i) and labels (b, ...) of these workers in one step, worker by worker; the latest are kept.

        Step ``index`` (from 0) of epoch 1, 2, ... UserError naming the data set and the sample with a value that is
        not a finite number.
        """
        key = (workers, epoch, index)
        if self._last[0] != key:
            self._last = (key, self._read(workers, epoch, index))
        return self._last[1]

    def part(self, part: int, parts: int, epoch: int, index: int) -> tuple[Any, torch.Tensor]:
        """One of ``parts`` pieces of the minibatch of all workers, as ``numpy.array_split`` cuts it; may be empty."""
        sizes = shares(self._workers * self._minibatch, parts)
        first, count = start_of(sizes, part), sizes[part]
        workers = range(first // self._minibatch, -(-(first + count) // self._minibatch))
        if not count:
            return torch.empty(0, 0), torch.empty(0)
        x_bi, y_b = self.take(workers, epoch, index)
        start = first - workers.start * self._minibatch
        return x_bi[start : start + count], y_b[start : start + count]

    def _read(self, workers: range, epoch: int, index: int) -> tuple[Any, torch.Tensor]:
        if workers not in self._shards:
            self._shards[workers] = Shards(self._dataset, self._order, tuple(workers))
        shards = self._shards[workers]
        if self._rows.get(workers, (0,))[0] != epoch:
            self._rows[workers] = (epoch, shards.epoch(epoch))
        x_wbi, y_wb = shards.take(self._rows[workers][1][index])
        x_bi, y_b = x_wbi.flatten(0, 1), y_wb.flatten(0, 1)
        good_b = x_bi.isfinite().all(1)
        if not good_b.all():
            bad = int((~good_b).nonzero()[0])
            worker = workers[bad // self._minibatch]
            position = self._order.epoch(epoch, worker)[index, bad % self._minibatch]
            sample = int(self._order.shard(worker)[position])
            raise UserError(
                f"data set {self._name!r}: training sample {sample} has a value that is not a finite number; "
                f"mend or leave out that row and prepare the data anew"
            )
        return x_bi, y_b
