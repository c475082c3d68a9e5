"""What a point of this method asks for, in terms of its parameters; no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from implementations.point import Point

VARIANTS = ("model", "data", "hybrid", "async")
EXECUTIONS = ("barrier", "job_per_exchange")
# Where measured points run: in this process's JVM, in executors of its own, in a standalone cluster of master and
# workers started for them, or on the master that the tier's config names.
CLUSTERS = ("local", "local_cluster", "standalone", "given")


# How a layer is cut, by kind of network; the first is the usual one.
CUTS = {"fc": ("units",), "cnn": ("filters", "rows"), "rnn": ("units",), "lstm": ("units",)}


def splits_layers(variant: str) -> bool:
    """Whether a worker holds blocks of layers, not the whole network."""
    return variant in ("model", "hybrid")


def by_driver(settings: Mapping[str, Any]) -> bool:
    """Whether each exchange is a Spark job whose data go through the driver."""
    return settings["execution"] == "job_per_exchange"


def members(point: Point, settings: Mapping[str, Any]) -> int:
    """Workers of a group that share one copy of the network: k of the model-parallel formulas."""
    if point.variant == "hybrid":
        return settings["group_size"]
    return point.workers if point.variant == "model" else 1


def group_mates(point: Point, settings: Mapping[str, Any], hosted: tuple[int, ...]) -> tuple[int, ...]:
    """The workers whose samples a process reads: those of all groups that its workers belong to."""
    if point.evidence == "measured" and by_driver(settings):
        return ()  # Spark's tasks read their own
    k = members(point, settings)
    groups = sorted({worker // k for worker in hosted})
    return tuple(group * k + place for group in groups for place in range(k))


def check(point: Point, settings: Mapping[str, Any]) -> list[str]:
    """What does not fit together, as lines ``key: got X; allowed: Y``."""
    problems = []
    if point.variant == "hybrid":
        size = settings["group_size"]
        if size < 1 or point.workers % size:
            wanted = f"a divisor of the {point.workers} workers"
            problems.append(f"group_size: got {size}; allowed: {wanted} (with variant hybrid)")
    elif settings["group_size"]:
        got = f"{settings['group_size']} with variant {point.variant}"
        problems.append(f"group_size: got {got}; allowed: 0 (it is for variant hybrid)")
    cuts = CUTS.get(point.model["name"], ())
    if splits_layers(point.variant) and settings["cut"] != "auto" and settings["cut"] not in cuts:
        got = f"{settings['cut']!r} with model {point.model['name']}"
        problems.append(f"cut: got {got}; allowed: {' | '.join(('auto', *cuts))}")
    if settings["partitions"] and not (point.variant == "data" and by_driver(settings)):
        problems.append(
            f"partitions: got {settings['partitions']}; allowed: 0 (they are for variant data by job_per_exchange)"
        )
    if point.variant == "async" and by_driver(settings):
        problems.append("execution: got 'job_per_exchange'; allowed: barrier (with variant async)")
    if point.variant == "async" and point.recipe.get("reject_worse"):
        problems.append("reject_worse: got True; allowed: False (the server of variant async undoes nothing)")
    if point.variant != "async" and settings["staleness"]:
        got = f"{settings['staleness']} with variant {point.variant}"
        problems.append(f"staleness: got {got}; allowed: 0 (gradients are late with variant async)")
    if settings["delay"] != "uniform" and (point.variant != "async" or point.evidence == "measured"):
        got = f"{settings['delay']!r} with variant {point.variant}, {point.evidence}"
        problems.append(f"delay: got {got}; allowed: uniform (it is of simulated points of variant async)")
    if point.variant != "data" and settings["sync_period"] > 1:
        got = f"{settings['sync_period']} with variant {point.variant}"
        problems.append(f"sync_period: got {got}; allowed: 1 (local steps are of variant data)")
    if point.optimizer not in ("sgd", "rmsprop"):
        problems.append(f"optimizer: got {point.optimizer!r}; allowed: sgd | rmsprop")
    if point.init != "uniform":
        problems.append(f"init: got {point.init!r}; allowed: uniform")
    if point.evidence == "simulated" and by_driver(settings) and point.processes > 1:
        problems.append(
            f"processes: got {point.processes}; allowed: 1 (simulated with execution job_per_exchange)"
        )
    return problems
