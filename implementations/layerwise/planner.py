"""From a network and a machine to a strategy: a fixed rule, or the best by the cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implementations.cluster import machine
from implementations.cluster.machine import Cluster
from implementations.layerwise import costmodel, costs, search, strategies
from implementations.layerwise.blocktimes import MeasuredBlocks
from implementations.layerwise.costmodel import BlockSpec
from implementations.layerwise.graph import Config, Graph
from implementations.layerwise.roofline import Roofline

BLOCKS = "calibration/blocks.parquet"


@dataclass(frozen=True)
class Found:
    """A strategy that was searched for, how it was found, and the tables that it was found in."""

    strategy: dict[str, Config]
    solution: search.Solution
    tables: costs.Tables


def find(
    graph: Graph,
    batch: int,
    devices: int,
    cluster: Cluster,
    times: costs.Times,
    *,
    sync: str = "server",
    objective: str = "additive",
    degrees: str = "powers",
    idle: bool = True,
    memory_limit: float | None = None,
) -> Found:
    """The best strategy for ``batch`` samples in all; arguments as for ``costs.tables``.

    ``memory_limit``: bytes that the fullest device may need. Raises ``search.NoPlan`` where no strategy keeps it.
    """
    tables = costs.tables(
        graph, batch, devices, cluster, times, sync=sync, objective=objective, degrees=degrees, idle=idle
    )
    if memory_limit is None:
        solution = search.solve(tables.problem)
    else:
        solution = search.solve_within(tables.problem, tables.memory, memory_limit)
    return Found(tables.strategy(solution.choice), solution, tables)


def strategy(
    variant: str,
    settings: Mapping[str, Any],
    graph: Graph,
    batch: int,
    devices: int,
    memory_limit: float | None = None,
    results: str | Path = "results",
) -> dict[str, Config]:
    """The strategy of a run: ``variant`` and ``settings`` as the method has them."""
    if variant != strategies.LAYERWISE:
        return strategies.fixed(variant, graph, batch, devices)
    cluster = machine.load(settings["plan_for"], results)
    return find(
        graph,
        batch,
        devices,
        cluster,
        times_for(cluster, needed(variant, settings, graph, batch, devices), devices, results),
        sync=settings["plan_sync"],
        objective=settings["objective"],
        degrees=settings["degrees"],
        memory_limit=memory_limit,
    ).strategy


def times_for(
    cluster: Cluster, specs: Sequence[BlockSpec], busy: int, results: str | Path, scale: float = 1.0
) -> costs.Times:
    """Where a cluster's t_C comes from: blocks measured on this host, where all of ``specs`` were; else the rates.

    ``busy``: processes that compute at once; ``scale`` multiplies what follows from the device's rates.
    """
    if cluster.is_here:
        blocks = MeasuredBlocks(Path(results) / BLOCKS, busy)
        if not blocks.missing(specs):
            return blocks
    return Roofline(cluster.device, scale, busy, cluster.devices)


def needed(
    variant: str, settings: Mapping[str, Any], graph: Graph, batch: int, devices: int
) -> list[BlockSpec]:
    """The blocks whose times a plan of this variant rests on."""
    if variant == strategies.LAYERWISE:
        return costmodel.specs(graph, costmodel.choices(graph, batch, devices, settings["degrees"]), batch)
    fixed = strategies.fixed(variant, graph, batch, devices)
    return costmodel.specs(graph, {name: [config] for name, config in fixed.items()}, batch)


def scale_to(graph: Graph, cluster: Cluster, batch: int, samples_per_s: float) -> float:
    """The factor on a device's times with which one device trains ``samples_per_s`` samples of ``batch`` a step."""
    alone = strategies.fixed(strategies.SINGLE, graph, batch, 1)
    step_s = costs.predict(graph, alone, batch, 1, cluster, Roofline(cluster.device)).step_s
    return batch / samples_per_s / step_s
