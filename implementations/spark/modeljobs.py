"""Steps of a program whose phases are Spark jobs: exchanges go through the driver, state stays with executors.

Shapes: w worker, p parameter of a worker's row.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from implementations.spark import tasks
from implementations.spark.frames import pack, unpack
from implementations.spark.jobsteps import JobSteps
from implementations.spark.phases import Phase, phases
from implementations.spark.program import GATHER, SUM
from implementations.spark.spmd import combined
from implementations.spark.tasks import Report, Step
from implementations.spark.traffic import UPDATE, through_driver, update_only
from implementations.training import Batch, Training


class ModelSteps(JobSteps):
    """Steps of a program, whose phases are jobs."""

    def __init__(self, run: Training) -> None:
        super().__init__(run)
        layout = run.holding.layout
        self._program, self._groups = layout.program, layout.groups
        self._phases = phases(layout.program, layout.groups)
        self._workers = range(run.comm.size)
        self._here = run.done_steps  # the step that the driver's copy is of
        self._step = run.done_steps
        self._begin()

    def _begin(self) -> None:
        """States out of the driver's copy."""
        with self.cluster.apart("other"):
            self._states = self.states([pack(self._state(worker)) for worker in self._workers])
        self._version = self.run.net.theta_wp._version

    def _state(self, worker: int) -> dict[str, torch.Tensor]:
        """A worker's state, as views of the driver's copy."""
        size = self._program.params(worker % self._program.workers)
        slots = {
            f"slot/{name}": slot[worker : worker + 1, :size] if slot.dim() else slot
            for name, slot in self.slots.items()
            if torch.is_tensor(slot)
        }
        return {"theta": self.run.net.theta_wp[worker : worker + 1, :size], **slots}

    def make(self, batch: Batch) -> torch.Tensor:
        """The step; the mean over workers of their groups' losses (0-d)."""
        if self.run.net.theta_wp._version != self._version:  # the epoch before was undone
            self._states.close()
            self._begin()
        received: list[list[Any]] = [[None] for _ in self._workers]
        losses: list[float] = []
        for number, phase in enumerate(self._phases):
            with self.ledger.call() as call:
                reports, handed = self._job(batch, received, number)
                losses = [report.loss for report in reports]
                call.kind = self._booked(phase)
                if phase.exchange is not None:
                    for mine, sent in zip(received, self._carried(phase, handed), strict=True):
                        mine.append(sent)
        steps = [
            partial(tasks.advance, self.cluster.sent_spec, self._work(batch, received, r))
            for r in self._workers
        ]
        self._states.advance(steps, list({id(one): one for mine in received for one in mine if one}.values()))
        self._step = batch.step
        if self._states.due:
            with self.cluster.apart("other"):
                self._states.write()
        if batch.last_of_epoch:
            with self.cluster.apart("eval"), self.run.uncounted():
                self._fetch()
        return torch.tensor(losses).mean()

    def _work(self, batch: Batch, received: list[list[Any]], worker: int) -> Step:
        return Step(worker, batch.step, *self.place(batch), self.lr, tuple(received[worker]))

    def _job(
        self, batch: Batch, received: list[list[Any]], number: int
    ) -> tuple[list[Report], list[bytearray | None]]:
        spec = self.cluster.sent_spec
        rdds = [
            rdd.mapPartitions(partial(tasks.hand_over, spec, self._work(batch, received, worker), number))
            for worker, rdd in enumerate(self._states.rdds)
        ]
        told = self.cluster.collect(rdds, lambda one: [one[0]])
        if number == 0:
            self._states.settled()
        return [report for report, _ in told], [frame for _, frame in told]

    def _teams(self, phase: Phase) -> list[range]:
        """The workers of each exchange of a phase: of a group, or of equal place in all groups."""
        k = self._program.workers
        if phase.across:
            return [self._workers[place::k] for place in range(k)]
        return [self._workers[group * k : (group + 1) * k] for group in range(self._groups)]

    def _booked(self, phase: Phase) -> int:
        """The ledger's number of a phase's job, which carries the exchanges of all teams."""
        if phase.exchange is None:
            return update_only(len(self._workers)).book(self.ledger, UPDATE)
        teams = self._teams(phase)
        return (
            through_driver(phase.exchange, len(teams[0]))
            .beside(len(teams))
            .book(self.ledger, phase.exchange.kind)
        )

    def _carried(self, phase: Phase, handed: list[bytearray | None]) -> list[Any]:
        """Broadcasts of what each worker receives; one and the same where all of a team get the same."""
        sent: list[Any] = [None] * len(handed)
        exchange = phase.exchange
        for team in self._teams(phase):
            with self.cluster.serialising():
                wholes = [tasks.of_frame(exchange, handed[worker]) for worker in team]
            results = combined(exchange, wholes)
            if phase.across:
                results = [results[0] / len(team)] * len(team)
            with self.cluster.serialising():
                if exchange.kind in (GATHER, SUM):
                    one = self.cluster.send(tasks.frame_of(results[0]))
                    parts = [one] * len(team)
                else:
                    parts = [self.cluster.send(tasks.frame_of(result)) for result in results]
            for worker, part in zip(team, parts, strict=True):
                sent[worker] = part
        return sent

    def _fetch(self) -> None:
        """Bring the driver's copy up to date, in place."""
        if self._here == self._step:
            return
        for worker, frame in enumerate(self._states.pull()):
            for name, tensor in unpack(frame).items():
                if name == "theta":
                    self.run.net.theta_wp[worker, : tensor.shape[1]] = tensor[0]
                    continue
                slot = self.slots.setdefault(
                    name.removeprefix("slot/"),
                    torch.zeros_like(self.run.net.theta_wp) if tensor.dim() else torch.zeros_like(tensor),
                )
                if tensor.dim():
                    slot[worker, : tensor.shape[1]] = tensor[0]
                else:
                    slot.copy_(tensor)
        self._here, self._version = self._step, self.run.net.theta_wp._version

    def pull(self) -> dict[str, Any]:
        """See ``JobSteps``."""
        self._fetch()
        return super().pull()

    def close(self) -> None:
        """See ``JobSteps``."""
        self._states.close()
        super().close()
