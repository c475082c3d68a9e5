"""A step as Spark jobs, one for each exchange, whose data go through the driver.

Variants ``model`` and ``hybrid`` run the segments of a ``program`` as ``spmd`` does; a worker's state stays in an RDD
(``lineage``) and what it holds in the middle of a step with its executor (``scratch``). Variant ``data`` sends weights
out and sums gradients up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

from implementations.errors import UserError
from implementations.registry import Progress
from implementations.spark import tasks
from implementations.spark.datajobs import GradientSteps, LocalPeriods
from implementations.spark.jobsteps import JobSteps, cluster_of
from implementations.spark.modeljobs import ModelSteps
from implementations.training import Training


def warm_up(holding: Any, whole: bool) -> None:
    """Have executors' Python processes load torch and their samples."""
    cluster = cluster_of(holding)
    seed = cluster.context.parallelize([0], 1)
    workers = range(cluster.spec.point.workers)
    prepared = [seed.mapPartitions(partial(tasks.prepare, cluster.sent_spec, whole, r)) for r in workers]
    try:
        cluster.collect(prepared, lambda report: [report])
    except BaseException:
        cluster.close()
        raise


def model_jobs(run: Training) -> Iterator[Progress]:
    """Each layer cut over the workers of a group, gradients averaged over groups; needs a Spark session.

    The driver's copy of weights and optimiser is brought up to date at the ends of epochs and for checkpoints.
    """
    return _steps(run, ModelSteps)


def data_jobs(run: Training) -> Iterator[Progress]:
    """Each part of the minibatch a task: gradients summed in each step, or weights after ``sync_period`` steps alone.

    Steps alone are made when the last of them is due, as one job. Each worker keeps its optimiser's slots (momentum,
    mean squares) from period to period, as simulated workers do; only weights are averaged. ``partitions`` are the
    parts; the books are those of ``workers`` parts.
    """
    kind = GradientSteps if run.settings["sync_period"] == 1 else LocalPeriods
    return _steps(run, lambda run: kind(run, _parts(run)))


def _parts(run: Training) -> int:
    parts = run.settings["partitions"] or run.comm.size
    rows = run.comm.size * run.point.minibatch
    if parts > rows:
        raise UserError(
            f"partitions: got {parts}; allowed: at most the {rows} rows of a minibatch (of all {run.comm.size} workers)"
        )
    return parts


def _steps(run: Training, make: Callable[[Training], JobSteps]) -> Iterator[Progress]:
    with closing(cluster_of(run.holding)), closing(make(run)) as steps:
        for batch in run.batches():
            loss = steps.make(batch)
            steps.note()
            yield Progress(batch.step, batch.samples, loss, synced=steps.in_step)
