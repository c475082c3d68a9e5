"""What a process holds in training on Spark: its workers' blocks of the network, or one replica on the driver.

Shapes: w worker hosted by this process, p parameter, b sample of a minibatch, i input feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from implementations import models
from implementations.cluster.communicator import Communicator
from implementations.holding import Holding, Replicas
from implementations.models.worker_model import WorkerModel
from implementations.point import Point
from implementations.seeds import torch_stream
from implementations.spark import nets
from implementations.spark.options import by_driver, members, splits_layers
from implementations.spark.program import Program
from implementations.spark.spmd import Spmd
from implementations.spark.station import Spec
from implementations.spark.versions import Versions


@dataclass(frozen=True)
class Layout:
    """What the closed form of a run's traffic needs to know."""

    program: Program
    groups: int
    driver: bool

    @property
    def exchanges(self) -> int:
        """Exchanges of a step: those of the program, and the average over groups."""
        own = (
            sum(exchange is not None for exchange in self.program.exchanges)
            if self.program.workers > 1
            else 0
        )
        return own + (self.groups > 1)


class BlockNet(WorkerModel):
    """The hosted workers' blocks, one behind the other in their rows of ``theta_wp``; rows end with zeros."""

    def __init__(self, program: Program, workers: int) -> None:
        self._most = max(program.params(place) for place in range(program.workers))
        super().__init__({"block": (self._most,)}, workers)
        flops = max(program.flops_per_sample(place) for place in range(program.workers))
        self._flops = flops * program.workers  # a worker computes on the samples of all of its group

    @property
    def flops_per_sample(self) -> int:
        """Operations of the worker that computes most, divided by the samples that a worker draws."""
        return self._flops

    def logits(self, x_wbi: torch.Tensor) -> torch.Tensor:
        """NotImplementedError: no worker has the network; ``Blocks.whole`` has."""
        raise NotImplementedError("a worker of model parallelism has no whole network")

    def to_module(self, worker: int = 0) -> torch.nn.Module:
        """NotImplementedError, as ``logits``."""
        raise NotImplementedError("a worker of model parallelism has no whole network")


class _ByJobs(Holding):
    """What is with Spark's executors where jobs make the steps (``jobs``); else nothing.

    spec: the run as tasks are told of it; None without jobs.
    cluster: the run's jobs, once there are any.
    pull: brings what a checkpoint needs to the driver.
    kept: what an earlier attempt's ``pull`` gave.
    """

    spec: Spec | None = None

    def _tell(
        self, point: Point, settings: dict[str, Any], features: int, classes: int, results: Path
    ) -> None:
        self.cluster: Any = None
        self.pull: Callable[[], dict[str, Any]] | None = None
        self.kept: dict[str, Any] = {}
        if point.evidence == "measured" and by_driver(settings):
            self.spec = Spec(point, settings, features, classes, str(results.resolve()))

    def state(self) -> dict[str, Any]:
        """What is with the executors, beside the net; that is brought up to date."""
        return self.pull() if self.pull else {}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Holding``."""
        self.kept = state

    def _warm_up_jobs(self, whole: bool) -> None:
        from implementations.spark.jobs import warm_up

        warm_up(self, whole)


class Blocks(_ByJobs):
    """A network cut inside its layers over the workers of each group; put together of the first group's blocks."""

    everywhere = False

    def __init__(
        self,
        point: Point,
        settings: dict[str, Any],
        features: int,
        classes: int,
        comm: Communicator,
        results: Path,
    ) -> None:
        k = members(point, settings)
        self._build = partial(models.build, point.model, features, classes, 1)
        full = self._build(torch_stream(point.seed, "init"))
        self.program = nets.program(point.model, features, classes, k, k * point.minibatch, settings["cut"])
        self.net = BlockNet(self.program, len(comm.hosted))
        self.model, self.full_params = point.model, full.params_per_worker
        self.layout = Layout(self.program, comm.size // k, by_driver(settings))
        self._comm = comm
        self._tell(point, settings, features, classes, results)
        for row, worker in enumerate(comm.hosted):
            views = self.program.views(worker % k, self.net.theta_wp[row])
            for name, block in self.program.blocks(worker % k).items():
                views[name].copy_(block.of(full.weights[name][0]))

    @contextmanager
    def whole(self) -> Iterator[WorkerModel | None]:
        """The network on the process of worker 0, of the first group's blocks."""
        program, workers = self.program, range(self._comm.size)
        sizes = [program.params(worker) if worker < program.workers else 0 for worker in workers]
        mine = [row_p[: sizes[r]] for row_p, r in zip(self.net.theta_wp, self._comm.hosted, strict=True)]
        parts = self._comm.control_collect(mine, sizes)
        if parts is None:
            yield None
            return
        with self.net.theta_wp.device:
            net = self._build(torch.Generator())
        for place in range(program.workers):
            views = program.views(place, parts[place])
            for name, block in program.blocks(place).items():
                block.of(net.weights[name][0]).copy_(views[name])
        yield net

    def warm_up(self, x_wbi: Any, y_wb: torch.Tensor) -> None:
        """A pass whose exchanges are not booked; where Spark's jobs make the steps, executors load what they need."""
        if self.spec is not None:
            self._warm_up_jobs(whole=False)
            return
        spmd = Spmd(self.program, self._comm, self.net.theta_wp, self.net.grad_wp)
        with self._comm.ledger.muted():
            spmd.gradients(
                x_wbi.view(-1, self.program.batch, x_wbi.shape[-1]), y_wb.view(-1, self.program.batch)
            )


class OneReplica(_ByJobs, Replicas):
    """The whole network once, on Spark's driver, whatever the number of workers."""

    def __init__(
        self,
        point: Point,
        settings: dict[str, Any],
        features: int,
        classes: int,
        comm: Communicator,
        results: Path,
    ) -> None:
        self.net = models.build(point.model, features, classes, 1, torch_stream(point.seed, "init"))
        self.full_params, self.model = self.net.params_per_worker, point.model
        self._tell(point, settings, features, classes, results)

    def warm_up(self, x_wbi: Any, y_wb: torch.Tensor) -> None:
        """Executors load what they need; the driver computes no gradients."""
        self._warm_up_jobs(whole=True)


def make(point: Point, settings: dict[str, Any], **parts: Any) -> Holding:
    """What the variant and its execution give this process."""
    if splits_layers(point.variant):
        return Blocks(point, settings, **parts)
    if point.evidence == "measured" and by_driver(settings):
        return OneReplica(point, settings, **parts)
    if point.variant == "async":
        return Versions(point, settings, **parts)
    return Replicas(point, settings, **parts)
