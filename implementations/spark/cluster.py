"""The driver's side of Spark's jobs: they are run, timed and counted, and their failures told in one line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from implementations.clock import Clock
from implementations.errors import UserError
from implementations.spark.spans import Span, split
from implementations.spark.station import Spec

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkContext

# What Spark says, or the process that it lost, when there was too little memory.
_OUT_OF_MEMORY = (
    *("OutOfMemoryError", "MemoryError", "not enough memory", "exited with code 52", "exit code 52"),
    *("exited with code 137", "exit code 137", "Cannot allocate memory"),
)


class Cluster:
    """Jobs of one run.

    clock: what their time is charged to, if anything.
    seconds: wall time of jobs and of the driver beside them, as the record's columns have it.
    jobs: their number.
    written_bytes: of workers' states that were written down.
    """

    def __init__(self, context: SparkContext, spec: Spec) -> None:
        self.context, self.spec = context, spec
        self.sent_spec = context.broadcast(spec)
        self.open_books(None)

    def open_books(self, clock: Clock | None) -> None:
        """Begin to count: what was before was no part of training."""
        self.clock = clock
        self.seconds = {"schedule_s": 0.0, "serialise_s": 0.0}
        self.jobs = self.written_bytes = 0

    def collect(self, rdds: list[RDD], found: Callable[[Any], Iterable[Any]] = lambda one: ()) -> list[Any]:
        """All elements of these RDDs, one job; ``found``: the reports in an element, whose times are booked."""
        return self.run(
            lambda: self.context.union(rdds).collect(), lambda all_: [r for one in all_ for r in found(one)]
        )

    def run(
        self, action: Callable[[], Any], reports: Callable[[Any], Iterable[Any]] = lambda result: ()
    ) -> Any:
        """The result of an action, which is one job; UserError where it fails for good.

        Jobs with ``reports`` of their tasks stand in a call of the ledger, which charges their wall time to ``comm``.
        The moments in which any task computed, or read samples, are then moved to ``compute`` and ``data``: the clock's
        parts still add up to the wall.
        """
        began = time.time()
        try:
            result = action()
        except Exception as error:
            raise _in_words(error, self.spec) from error
        self.jobs += 1
        told = list(reports(result))
        problem = next((one.problem for one in told if one.problem), None)
        if problem is not None:
            raise UserError(problem)
        if told:
            self._book([span for one in told for span in one.spans], began, time.time())
        return result

    def _book(self, spans: list[Span], began: float, ended: float) -> None:
        parts = split(spans, began, ended)
        self.seconds["schedule_s"] += parts["schedule"]
        self.seconds["serialise_s"] += parts["serialise"]
        if self.clock is not None:
            for label in ("compute", "data"):
                self.clock.seconds["comm"] -= parts[label]
                self.clock.seconds[label] += parts[label]

    @contextmanager
    def serialising(self) -> Iterator[None]:
        """A block of the driver's that packs, unpacks or hands out what is exchanged."""
        began = time.time()
        try:
            yield
        finally:
            self.seconds["serialise_s"] += time.time() - began

    @contextmanager
    def apart(self, label: str) -> Iterator[None]:
        """A block that the clock charges to ``label``: what is no part of an exchange."""
        with self.clock(label) if self.clock is not None else nullcontext():
            yield

    def send(self, frame: bytearray) -> Broadcast:
        """A broadcast of a frame."""
        return self.context.broadcast(frame)

    def close(self) -> None:
        """Give back what is held on the executors."""
        drop([self.sent_spec])


def drop(broadcasts: Iterable[Broadcast]) -> None:
    """Destroy broadcasts, of a context that may have ended."""
    for one in broadcasts:
        try:
            one.destroy()
        except Exception:
            return


def _in_words(error: Exception, spec: Spec) -> Exception:
    """A failure of Spark's as one that a user can mend, where it is one."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    if isinstance(error, Py4JNetworkError | ConnectionError):
        return UserError(
            "Spark's Java process has ended in the middle of a job: if it ran out of memory, raise "
            "spark: driver_memory_mb"
        )
    if not isinstance(error, Py4JError | PySparkException):
        return error
    text = str(error)
    if any(word in text for word in _OUT_OF_MEMORY):
        return UserError(
            f"a Spark executor ran out of memory with model {spec.point.model['name']} and minibatch "
            f"{spec.point.minibatch} on {spec.point.workers} workers: raise spark: executor_memory_mb (or "
            f"driver_memory_mb with cluster local), lower minibatch, or take more workers"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "UserError: " in line]
    if told:
        return UserError(told[0].partition("UserError: ")[2])
    causes = [line for line in lines if "rror: " in line or "xception: " in line]
    return UserError(f"a Spark job failed: {(causes or lines or [type(error).__name__])[-1][:300]}")
