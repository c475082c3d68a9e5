"""Steps of Spark jobs whose tasks have the whole network and a part of the samples.

Shapes: w worker (the driver has one), p parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from implementations.spark import tasks
from implementations.spark.cluster import drop
from implementations.spark.frames import pack, unpack
from implementations.spark.jobsteps import JobSteps
from implementations.spark.program import SUM
from implementations.spark.tasks import LocalSteps, Sums
from implementations.spark.traffic import DriverTraffic
from implementations.training import Batch, Training

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast


class _DataSteps(JobSteps):
    """Steps in which every task has the whole network and a part of the samples."""

    def __init__(self, run: Training, parts: int) -> None:
        super().__init__(run)
        self.parts = parts

    def summed(self, sums: Callable[[Broadcast], RDD]) -> tuple[Sums, Broadcast]:
        """The sum of what tasks make of the weights, in one exchange; and the weights that they were sent."""
        with self.ledger.call() as call:
            with self.cluster.serialising():
                theta = self.cluster.send(pack({"theta": self.run.net.theta_wp}))
            try:
                total = self.cluster.run(
                    lambda: sums(theta).treeReduce(tasks.add), lambda total: total.reports
                )
            except BaseException:
                drop([theta])
                raise
            # what has really been sent: the weights to each part, and a sum from each
            form = DriverTraffic(
                (total.values.nbytes,) * self.parts, (self.run.net.theta_wp.nbytes,) * self.parts
            )
            call.kind = form.book(self.ledger, SUM)
        return total, theta


class GradientSteps(_DataSteps):
    """The gradient of the whole minibatch in each step: sums over its samples, divided by how many there are."""

    def make(self, batch: Batch) -> torch.Tensor:
        """The step; the mean loss over all samples (0-d)."""
        parts, where = self.parts, (batch.step, *self.place(batch))

        def sums(theta: Broadcast) -> RDD:
            task = partial(tasks.gradient, self.cluster.sent_spec, theta, parts, where)
            return self.cluster.context.parallelize(range(parts), parts).mapPartitionsWithIndex(task)

        total, theta = self.summed(sums)
        drop([theta])
        rows = int(total.rows.sum())
        torch.div(torch.from_numpy(total.values), rows, out=self.run.net.grad_wp[0])
        self.optimizer.step()
        return torch.tensor(float(total.losses.sum()) / rows)


class LocalPeriods(_DataSteps):
    """Steps that workers make alone; each part of the minibatches is a worker with an optimiser of its own."""

    def __init__(self, run: Training, parts: int) -> None:
        super().__init__(run, parts)
        self._period = run.settings["sync_period"]
        slots = self.holding.kept.get("slots") or [{}] * parts
        with self.cluster.apart("other"):
            self._states = self.states([pack(mine) for mine in slots])

    def make(self, batch: Batch) -> torch.Tensor:
        """The step, or nothing where a later one will make it; the sum of the mean losses of what was made (0-d)."""
        self.in_step = batch.step_in_epoch % self._period == 0 or batch.last_of_epoch
        if not self.in_step:
            return torch.zeros(())
        epoch, last = self.place(batch)
        span = (batch.step, epoch, last - last % self._period, last, self.lr)
        works: list[LocalSteps] = []

        def sums(theta: Broadcast) -> RDD:
            works[:] = [LocalSteps(part, self.parts, *span, (theta,)) for part in range(self.parts)]
            return self.cluster.context.union(
                [
                    rdd.mapPartitions(partial(tasks.hand_over, self.cluster.sent_spec, work, 0))
                    for rdd, work in zip(self._states.rdds, works, strict=True)
                ]
            )

        total, theta = self.summed(sums)
        self._states.settled()
        torch.div(torch.from_numpy(total.values), float(total.rows.sum()), out=self.run.net.theta_wp[0])
        self._states.advance(
            [partial(tasks.advance, self.cluster.sent_spec, work) for work in works], [theta]
        )
        if self._states.due:
            with self.cluster.apart("other"):
                self._states.write()
        return torch.tensor(float((total.losses / total.rows).sum()))

    def pull(self) -> dict[str, Any]:
        """See ``JobSteps``; slots by worker."""
        return {**super().pull(), "slots": [unpack(frame) for frame in self._states.pull()]}

    def close(self) -> None:
        """See ``JobSteps``."""
        self._states.close()
        super().close()
