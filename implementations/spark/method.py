"""Backpropagation on Apache Spark, by parallelism of model and of data (Shrivastava, Chaudhury and Jayadeva 2017).

Variants: ``model`` cuts every layer over all workers, ``data`` gives each worker its samples, ``hybrid`` has groups of
model-parallel workers that share out the data, ``async`` a parameter server that applies gradients late. All but
``async``, and ``data`` with local steps, do the arithmetic of one device with the whole minibatch, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from implementations.registry import Param, Progress, Volume, method
from implementations.spark import options

if TYPE_CHECKING:
    from implementations.holding import Holding
    from implementations.point import Point
    from implementations.training import Plan, Training


def volume(plan: Plan) -> Volume:
    """The exchanges of every step, or what replicas send each other, or the driver."""
    from implementations.spark import volumes

    return volumes.of_plan(plan)


def holding(**parts: Any) -> Holding:
    """Blocks of a network, or replicas."""
    from implementations.spark.holding import make

    return make(**parts)


def checks(point: Point) -> list[str]:
    """What does not fit together."""
    settings = {name: point.method_params.get(name, param.default) for name, param in PARAMS.items()}
    return options.check(point, settings)


def reads(point: Point, settings: dict[str, Any], hosted: tuple[int, ...]) -> tuple[int, ...]:
    """The workers whose samples a process reads."""
    return options.group_mates(point, settings, hosted)


PARAMS = {
    "execution": Param(
        str,
        "barrier",
        "barrier: tasks that stay alive exchange among themselves; job_per_exchange: each exchange is a Spark job "
        "and goes through the driver",
        choices=options.EXECUTIONS,
    ),
    "cluster": Param(
        str,
        "local",
        "where measured points run: threads of one JVM, executors of their own, a standalone master with workers, "
        "or the master that config names",
        choices=options.CLUSTERS,
    ),
    "group_size": Param(int, 0, "of variant hybrid: workers that share one copy of the network", minimum=0),
    "cut": Param(
        str,
        "auto",
        "how convolutions are cut: by filters (auto), or by rows of the images with their borders exchanged",
        choices=("auto", "units", "filters", "rows"),
    ),
    "sync_period": Param(
        int, 1, "of variant data: steps that a worker makes alone before weights are averaged", minimum=1
    ),
    "partitions": Param(
        int,
        0,
        "of variant data, job_per_exchange: parts of a minibatch that are tasks; 0: the workers",
        minimum=0,
    ),
    "staleness": Param(
        int, 0, "of variant async: updates that a gradient may be late by", "updates", minimum=0
    ),
    "delay": Param(
        str,
        "uniform",
        "of variant async, simulated: by how much gradients are late: drawn up to staleness, or always the most",
        choices=("uniform", "most"),
    ),
    "lineage_steps": Param(
        int, 20, "of job_per_exchange: steps after which state is written down and lineage is cut", minimum=1
    ),
}


@method(
    "spark",
    volume=volume,
    variants=options.VARIANTS,
    params=PARAMS,
    checks=checks,
    exemptions={"workers_agree": "a worker of model parallelism holds its own blocks of the network"},
    holding=holding,
    reads=reads,
    runs_on="spark",
)
def train(run: Training) -> Iterator[Progress]:
    """The variant's steps; see ``steps``."""
    from implementations.spark import steps

    return steps.TRAINERS[run.point.variant](run)
