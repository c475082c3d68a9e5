"""results/plans.parquet and results/search.parquet: every strategy's plan and what it costs by the cost model.

A plan is made for each point of the method ``layerwise`` that is projected, on the cluster that its ``network`` names,
and for each that is measured, on this host or its emulated network: its step is predicted from blocks measured here,
and held against the point's own time by the tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from implementations import models, registry
from implementations.cluster import machine
from implementations.data.cards import load_card
from implementations.errors import UserError
from implementations.layerwise import costs, planner, searchtimes, strategies, tracing
from implementations.layerwise.blocktimes import MeasuredBlocks, measure_all
from implementations.layerwise.costmodel import BlockSpec
from implementations.layerwise.graph import Graph, Strategy
from implementations.layerwise.plan import Plan
from implementations.layerwise.search import NoPlan
from implementations.point import Point
from implementations.seeds import torch_stream

METHOD = "layerwise"
MEASURED, ROOFLINE = "measured blocks", "roofline"  # where times of blocks come from
BASELINES = ("depth_first", "branch_and_bound")


def of(points: Sequence[Point]) -> list[Point]:
    """The points whose plans are of interest: projected or measured ones of the method, each but once."""
    found: dict[str, Point] = {}
    for point in points:
        if point.method == METHOD and point.evidence in ("projected", "measured"):
            key = dataclasses.replace(point, repeat=0, seed=0).run_id
            found.setdefault(key, point)
    return list(found.values())


def make(
    points: Sequence[Point],
    results: str | Path,
    clusters_dir: str | Path | None = None,
    launcher: dict[str, Any] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of plans.parquet and of search.parquet for the points of ``of``; measures blocks that are missing.

    A machine that is not calibrated gets no rows of measured points.
    """
    plans, searches = [], []
    planned = []
    for point in of(points):
        name = machine.of_network(point.network) if point.evidence == "measured" else point.network
        with contextlib.suppress(machine.NotCalibrated):
            planned.append((point, machine.load(name, results, clusters_dir)))
    _measure_blocks([point for point, cluster in planned if cluster.is_here], Path(results), launcher)
    for point, cluster in planned:
        try:
            plan, search = _rows(point, cluster, Path(results), launcher)
        except UserError as error:
            reason = str(error).replace("\n", " ")
            print(f"paratrain: warning: no plan for {point.run_id}: {reason}", file=sys.stderr)
            plan, search = _identity(point, cluster) | {"status": "failed", "reason": reason}, []
        plans.append(plan)
        searches += search
    return pd.DataFrame(plans), pd.DataFrame(searches)


def _rows(
    point: Point, cluster: machine.Cluster, results: Path, launcher: dict[str, Any] | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    graph, side = network(point)
    settings = registry.get(METHOD).settings(point)
    batch, devices = point.global_batch, point.workers
    times = _times(point, graph, cluster, settings, results, launcher)
    row = _identity(point, cluster) | {
        "params": graph.params,
        "image": side,
        "compute_source": MEASURED if isinstance(times, MeasuredBlocks) else ROOFLINE,
        "status": "ok",
        "reason": None,
    }
    searches: list[dict[str, Any]] = []
    if point.variant == strategies.LAYERWISE:
        try:
            found = planner.find(
                graph, batch, devices, cluster, times,
                sync=settings["plan_sync"], objective=settings["objective"], degrees=settings["degrees"],
                memory_limit=point.memory_limit_bytes,
            )  # fmt: skip
        except NoPlan as error:
            return row | {"status": "over_memory", "reason": str(error)}, []
        strategy = found.strategy
        row |= _search_columns(graph, found)
        searches = list(_searches(point, row, found, settings))
    else:
        strategy = strategies.fixed(point.variant, graph, batch, devices)
    predicted = costs.predict(graph, strategy, batch, devices, cluster, times, sync=settings["plan_sync"])
    if point.memory_limit_bytes is not None and predicted.state_bytes_max > point.memory_limit_bytes:
        row |= {
            "status": "over_memory",
            "reason": f"the fullest device needs {predicted.state_bytes_max / 1e6:.1f} MB, the limit is "
            f"{point.memory_limit_bytes / 1e6:.1f} MB",
        }
    return row | cost_columns(predicted, settings["objective"], batch) | {
        "strategy_hash": Plan(graph, strategy, batch, devices).hash,
        "plan": plan_json(graph, strategy, predicted),
    }, searches


def _measure_blocks(points: Sequence[Point], results: Path, launcher: dict[str, Any] | None) -> None:
    """All that is missing for these points, at once; what goes wrong comes up again with the point that it is of."""
    wanted = []
    for point in points:
        with contextlib.suppress(UserError):
            wanted.append(
                (MeasuredBlocks(results / planner.BLOCKS, point.workers), _needed(point, network(point)[0]))
            )
    with contextlib.suppress(UserError):
        measure_all(wanted, launcher)


def _needed(point: Point, graph: Graph) -> list[BlockSpec]:
    settings = registry.get(METHOD).settings(point)
    return planner.needed(point.variant, settings, graph, point.global_batch, point.workers)


def _identity(point: Point, cluster: machine.Cluster) -> dict[str, Any]:
    """What is planned, as far as the point says."""
    settings = registry.get(METHOD).settings(point)
    return {
        "run_id": point.run_id,
        "paper": point.paper,
        "experiments": list(point.experiments),
        "model": point.model_label,
        "dataset": point.dataset,
        "minibatch": point.minibatch,
        "global_batch": point.global_batch,
        "workers": point.workers,
        "cluster": cluster.name,
        "strategy": point.variant,
        "objective": settings["objective"],
        "sync": settings["plan_sync"],
        "degrees": settings["degrees"],
        "memory_limit_bytes": point.memory_limit_bytes,
        "evidence": "projected",
    }


def cost_columns(predicted: costs.Prediction, objective: str, batch: int) -> dict[str, Any]:
    """The columns of a plan that say what it costs."""
    names = (
        "step_s", "additive_s", "compute_s", "transfer_s", "sync_s", "overlap_s", "network_bytes", "paper_bytes",
        "state_bytes_max",
    )  # fmt: skip
    return {name: getattr(predicted, name) for name in names} | {
        "objective_s": predicted.value(objective),
        "samples_per_s": batch / predicted.step_s,
        "additive_samples_per_s": batch / predicted.additive_s,
    }


def plan_json(graph: Graph, strategy: Strategy, predicted: costs.Prediction) -> str:
    """A plan layer by layer, as JSON: how each is split, and its seconds."""
    leaders = graph.leaders()
    rows = {row["layer"]: row for row in predicted.rows}
    return json.dumps(
        [
            {
                "layer": layer.name,
                "kind": layer.kind,
                "leader": leaders[layer.name],
                "config": list(strategy[layer.name]),
                "out": list(layer.out),
                "params": layer.params,
                "inputs": list(layer.inputs),
                "compute_s": sum(rows[layer.name][part] for part in ("forward_s", "backward_s", "update_s")),
                "sync_s": sum(
                    rows[layer.name][part]
                    for part in ("sync_s", "statistics_forward_s", "statistics_backward_s")
                ),
                "transfer_s": rows[layer.name]["transfer_s"],
            }
            for layer in graph
        ]
    )


def _search_columns(graph: Graph, found: planner.Found) -> dict[str, Any]:
    problem, solution = found.tables.problem, found.solution
    return {
        "layers": graph.counted,
        "nodes": len(problem.nodes),
        "edges": len(problem.edges),
        "configurations": max(problem.sizes().values()),
        "node_eliminations": solution.node_eliminations,
        "edge_eliminations": solution.edge_eliminations,
        "remaining": solution.remaining,
        "tables_s": found.tables.seconds,
        "search_s": solution.seconds,
        "gap": solution.gap,
        "finished": solution.finished,
    }


def _searches(
    point: Point, row: dict[str, Any], found: planner.Found, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The search once more, and those that it is compared with, as the point asks for."""
    if settings["searches"] == "none":
        return
    algorithms = ("elimination", *(BASELINES if settings["searches"] == "all" else ()))
    names = (
        "run_id", "paper", "experiments", "model", "params", "workers", "cluster", "degrees", "layers", "tables_s",
    )  # fmt: skip
    for times in searchtimes.search_times(found.tables.problem, algorithms, settings["search_limit_s"]):
        yield {name: row[name] for name in names} | {"repeat": point.repeat, "status": "ok"} | times


def network(point: Point) -> tuple[Graph, int | None]:
    """The graph of a point's network, and the side of its images; nothing is allocated."""
    sizes = load_card(point.dataset).sizes
    shape = tuple(sizes["input_shape"])
    side = point.model.get("image", shape[-1] if len(shape) > 1 else None)
    channels = shape[0] if len(shape) == 3 else 1
    features = channels * side**2 if "image" in point.model else int(np.prod(shape))
    return _graph(json.dumps(point.model, sort_keys=True), features, sizes["classes"]), side


@functools.cache
def _graph(model: str, features: int, classes: int) -> Graph:
    description = json.loads(model)
    with torch.device("meta"):
        net = models.build(description, features, classes, 1, torch_stream(0, "init"))
        module = net.to_module()
    return tracing.trace(module, getattr(net, "sample", (features,)), description["name"]).graph


def _times(
    point: Point,
    graph: Graph,
    cluster: machine.Cluster,
    settings: dict[str, Any],
    results: Path,
    launcher: dict[str, Any] | None,
) -> costs.Times:
    """Where a point's t_C comes from; blocks that are not yet measured on this host are."""
    scale = 1.0
    if settings["device_rate"]:
        minibatch = settings["rate_minibatch"] or point.minibatch
        scale = planner.scale_to(graph, cluster, minibatch, settings["device_rate"])
    specs = _needed(point, graph)
    if cluster.is_here:
        MeasuredBlocks(results / planner.BLOCKS, point.workers).measure(specs, launcher)
    return planner.times_for(cluster, specs, point.workers, results, scale)
