"""Points to jobs: a few compatible points share one, since starting a process costs more than a small point."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from implementations.point import Point
from implementations.registry import Method

# At most this many a job: starting one takes two seconds, but cores must stay busy to the end.
MEASURED_POINTS, SIMULATED_POINTS = 24, 8
SPARK_POINTS = 80  # of a Spark session, which takes longer to start than most of its points to run


@dataclass(frozen=True)
class Batch:
    """Points that one job runs, one after the other: of one experiment (but for Spark's), data set and evidence."""

    id: str
    sweep: str  # "experiment/sweep" of the points, the first where a point has several
    evidence: str
    dataset: str
    methods: tuple[str, ...]
    processes: int
    threads_per_worker: int
    run_ids: tuple[str, ...]  # in the order in which they run

    @property
    def machine_alone(self) -> bool:
        """Whether nothing else may run beside it: timings are taken."""
        return self.evidence == "measured"


def make_batches(points: Iterable[Point], methods: Mapping[str, Method]) -> tuple[Batch, ...]:
    """Every point in exactly one batch; an edit of one experiment leaves the batches of the others as they are.

    Measured points of Spark share a session whatever the experiment: starting it takes ten seconds.

    Repeats of measured points take turns, so that a slow spell of the machine hits all that are compared.
    """

    def key(point: Point) -> tuple[str | int, ...]:
        together = point.workers if point.evidence == "measured" else 0
        session = methods[point.method].session(point)
        return (
            "" if session else point.experiments[0].partition("/")[0],
            point.evidence,
            point.dataset,
            together,
            point.processes,
            point.threads_per_worker,
            point.network,
            session or "",
        )

    groups: dict[tuple[str | int, ...], list[Point]] = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    batches = []
    for group in groups.values():
        if group[0].evidence == "measured":
            group.sort(key=lambda point: point.repeat)
        limit = MEASURED_POINTS if group[0].evidence == "measured" else SIMULATED_POINTS
        if methods[group[0].method].session(group[0]):
            limit = SPARK_POINTS
        size = math.ceil(len(group) / math.ceil(len(group) / limit))
        batches += [_batch(group[start : start + size]) for start in range(0, len(group), size)]
    return tuple(batches)


def _batch(points: list[Point]) -> Batch:
    first = points[0]
    run_ids = tuple(point.run_id for point in points)
    digest = hashlib.sha256("\n".join(run_ids).encode()).hexdigest()[:8]
    words = [
        first.experiments[0].replace("/", "_"),
        first.dataset,
        first.evidence,
        f"p{first.processes}",
        digest,
    ]
    return Batch(
        id="_".join(words),
        sweep=first.experiments[0],
        evidence=first.evidence,
        dataset=first.dataset,
        methods=tuple(dict.fromkeys(point.method for point in points)),
        processes=first.processes,
        threads_per_worker=first.threads_per_worker,
        run_ids=run_ids,
    )
