"""results/spark.parquet: what training on Spark would take elsewhere and at other sizes, by the cost model alone.

A row for each projected point of the method ``spark``, on the cluster that its ``network`` names; for the points of
sweeps whose names begin with ``map``, one for each bandwidth of ``BANDWIDTHS`` as well, with the fewest steps between
two exchanges that reach ``GOAL`` times one worker.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from implementations import registry
from implementations.cluster import machine
from implementations.data.cards import load_card
from implementations.errors import UserError
from implementations.point import Point
from implementations.spark import costs
from implementations.spark.options import by_driver

METHOD = "spark"
MAP = "map"
GOAL = 11.0  # the paper's best speedup
# Megabits a second between nodes, of the map: what the paper's cluster had is not known.
BANDWIDTHS = (10, 30, 100, 300, 1000, 3000, 10_000)
_COSTS = (
    "compute_s", "schedule_s", "transfer_s", "exchanges", "up_bytes", "down_bytes", "sent_bytes", "state_bytes",
    "alone_bytes",
)  # fmt: skip
_STATE = {"rmsprop": 1}  # values that an optimiser keeps for each parameter
COLUMNS = [
    "run_id", "paper", "experiments", "what", "model_kind", "model", "params", "dataset", "data_size", "minibatch",
    "global_batch", "workers", "group_size", "cluster", "mbit_s", "execution", "variant", "optimizer",
    "steps_per_job", "least_steps_per_job", "steps_per_epoch", "step_s", "epoch_s", "alone_epoch_s", "samples_per_s",
    "speedup", "capped_by", "compute_s", "schedule_s", "transfer_s", "exchanges", "up_bytes", "down_bytes",
    "sent_bytes", "state_bytes", "state_bytes_fp64", "alone_bytes", "alone_bytes_fp64", "memory_bytes",
    "status", "reason", "evidence", "constants",
]  # fmt: skip


def of(points: Sequence[Point]) -> list[Point]:
    """The points that are projected by this cost model."""
    return [point for point in points if point.method == METHOD and point.evidence == "projected"]


def make(
    points: Sequence[Point], results: str | Path, clusters_dir: str | Path | None = None
) -> pd.DataFrame:
    """Rows of spark.parquet for the points of ``of``; a point on a machine that is not calibrated gets none."""
    load = functools.cache(lambda name: machine.load(name, results, clusters_dir))
    rows = []
    told = set()
    for point in of(points):
        try:
            rows += _rows(point, load(point.network))
        except UserError as error:
            if point.network not in told:
                told.add(point.network)
                print(
                    f"paratrain: warning: no projection of Spark on {point.network}: {error}", file=sys.stderr
                )
    frame = pd.DataFrame(rows, columns=COLUMNS)
    whole = ["least_steps_per_job", "memory_bytes", "group_size"]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def _rows(point: Point, cluster: machine.Cluster) -> Iterator[dict[str, Any]]:
    """A row for each sweep that asks for the point, and one for each bandwidth where one of them is a map."""
    case = case_of(point)
    sweeps = dict.fromkeys(MAP if name.startswith(MAP) else name for name in map(_sweep, point.experiments))
    for what in sweeps:
        yield _row(point, what, case, cluster)
    if MAP in sweeps:
        for mbit_s in BANDWIDTHS:
            yield _row(point, MAP, case, with_bandwidth(cluster, mbit_s * 1e6 / 8))


def _sweep(title: str) -> str:
    return title.partition("/")[2]


def case_of(point: Point) -> costs.Case:
    """What the cost model is asked about a point; the card of its data set tells the sizes."""
    settings = registry.get(METHOD).settings(point)
    sizes = load_card(point.dataset).sizes
    network = costs.net(point.model, math.prod(sizes["input_shape"]), sizes["classes"])
    return costs.Case(
        net=network,
        variant=point.variant,
        driver=by_driver(settings),
        workers=point.workers,
        minibatch=point.minibatch,
        samples=point.data_size or sizes["train"],
        group=settings["group_size"],
        period=settings["sync_period"],
        state=_STATE.get(point.optimizer, 0),
    )


def with_bandwidth(cluster: machine.Cluster, bytes_per_s: float) -> machine.Cluster:
    """The cluster with another rate of the links between its nodes."""
    if cluster.between_nodes is None:
        raise UserError(f"cluster {cluster.name}: one node has no links between nodes to be changed")
    link = dataclasses.replace(cluster.between_nodes, bandwidth_bytes_per_s=bytes_per_s)
    return dataclasses.replace(cluster, between_nodes=link)


def _row(point: Point, what: str, case: costs.Case, cluster: machine.Cluster) -> dict[str, Any]:
    settings = registry.get(METHOD).settings(point)
    found = costs.cost(case, cluster)
    memory = cluster.spark.memory_bytes if cluster.spark else None
    status, reason = _fits(found, memory)
    link = cluster.between_nodes
    least = costs.least_steps_per_job(case, cluster, GOAL) if case.variant == "data" else None
    doubles = 8 // costs.ITEM
    return {
        "run_id": point.run_id,
        "paper": point.paper,
        "experiments": list(point.experiments),
        "what": what,
        "model_kind": case.net.kind,
        "model": point.model_label,
        "params": case.net.params,
        "dataset": point.dataset,
        "data_size": case.samples,
        "minibatch": point.minibatch,
        "global_batch": point.global_batch,
        "workers": point.workers,
        "group_size": settings["group_size"] if point.variant == "hybrid" else None,
        "cluster": cluster.name,
        "mbit_s": 8e-6 * link.bandwidth_bytes_per_s if link else math.nan,
        "execution": settings["execution"],
        "variant": point.variant,
        "optimizer": point.optimizer,
        "steps_per_job": case.steps_per_job,
        "least_steps_per_job": least,
        "steps_per_epoch": case.steps,
        "step_s": found.step_s,
        "epoch_s": case.steps * found.step_s,
        "alone_epoch_s": case.steps * found.alone_s,
        "samples_per_s": point.global_batch / found.step_s,
        "speedup": found.speedup,
        "capped_by": found.capped_by,
        **{name: getattr(found, name) for name in _COSTS},
        "state_bytes_fp64": doubles * found.state_bytes,
        "alone_bytes_fp64": doubles * found.alone_bytes,
        "memory_bytes": None if memory is None else round(memory),
        "status": status,
        "reason": reason,
        "evidence": "projected",
        "constants": json.dumps(_constants(case, cluster)),
    }


def _fits(found: costs.Cost, memory: float | None) -> tuple[str, str | None]:
    """Whether a worker's state fits its memory; that of one worker alone is told, as the speedup is against it."""
    if memory is None or max(found.state_bytes, found.alone_bytes) <= memory:
        return "ok", None
    if found.state_bytes > memory:
        return (
            "over_memory",
            f"a worker needs {found.state_bytes / 1e9:.1f} GB, the machine has {memory / 1e9:.1f} GB",
        )
    return (
        "ok",
        f"one worker alone would need {found.alone_bytes / 1e9:.1f} GB of {memory / 1e9:.1f} GB: the speedup is "
        f"against a worker that could not be",
    )


def _constants(case: costs.Case, cluster: machine.Cluster) -> dict[str, Any]:
    """What the projection was made with, in SI units."""
    flops = case.net.flops(case.members) * case.minibatch * case.members
    values: dict[str, Any] = {
        "flops_per_s": cluster.device.flops_per_s(case.minibatch * case.members, flops),
        "flops_per_sample": case.net.flops(),
        "bytes_per_value": costs.ITEM,
    }
    for name, link in (("inside_node", cluster.inside_node), ("between_nodes", cluster.between_nodes)):
        if link is not None:
            values |= {
                f"{name}_latency_s": link.latency_s,
                f"{name}_bytes_per_s": link.bandwidth_bytes_per_s,
            }
    return values | (dataclasses.asdict(cluster.spark) if cluster.spark else {})
