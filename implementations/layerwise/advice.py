"""A user's own network on a user's own machine: every strategy's plan, step time, bytes and memory.

python -m implementations layerwise --model mymodule:Net --input 32,3,224,224 --cluster config/clusters/mine.yaml
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from implementations import models
from implementations.cluster import machine
from implementations.cluster.machine import Cluster
from implementations.errors import UserError
from implementations.layerwise import costs, planner, plantable, strategies, tracing
from implementations.layerwise.blocktimes import MeasuredBlocks
from implementations.layerwise.graph import Graph, Strategy
from implementations.layerwise.search import NoPlan
from implementations.models import convnets, user


@dataclass(frozen=True)
class Question:
    """What is asked; ``sample`` are the sizes of one sample, ``minibatch`` the samples of each device."""

    graph: Graph
    minibatch: int
    devices: int
    cluster: Cluster
    settings: Mapping[str, Any]  # objective, plan_sync, degrees
    memory_limit: float | None = None
    results: Path = Path("results")

    @property
    def batch(self) -> int:
        """Samples of all devices in a step."""
        return self.minibatch * self.devices


def sizes(text: str) -> tuple[int, ...]:
    """``32,3,224,224`` as numbers: the samples of a device, and the sizes of one; UserError for anything else."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) not in (2, 4) or min(found) < 1:
        raise UserError(
            f"--input {text}: write samples,channels,height,width or samples,features, as in 32,3,224,224"
        )
    return found


def module_named(name: str, sample: tuple[int, ...], classes: int) -> nn.Module:
    """The module that ``name`` means: ``package.module:Net``, or one of the suite's networks.

    What stands behind the colon is a class or function that is called without arguments, or a module.
    UserError in one line for what cannot be found, called, or is no module.
    """
    if ":" not in name:
        suite = [known for known, builder in models.BUILDERS.items() if builder.get("named")]
        if name not in suite:
            raise UserError(f"--model {name}: write MODULE:CLASS, or one of {', '.join(suite)}")
        if len(sample) != 3:
            raise UserError(f"--model {name}: --input needs samples,channels,height,width")
        with torch.device("meta"):
            return convnets.module({"name": name}, sample, classes)
    return user.module_of(name, said="--model")


def graph_of(name: str, sample: tuple[int, ...], classes: int) -> Graph:
    """The graph of the network that ``name`` means."""
    return tracing.trace(module_named(name, sample, classes), sample, name).graph


def measure(question: Question, launcher: Mapping[str, Any] | None = None) -> int:
    """Time the blocks of all strategies on this host; how many were not known yet.

    UserError for another cluster than this host's.
    """
    if question.cluster.name != machine.THIS_HOST:
        raise UserError(
            f"--measure: times blocks on this machine, for --cluster {machine.THIS_HOST}, not "
            f"{question.cluster.name}"
        )
    blocks = MeasuredBlocks(question.results / planner.BLOCKS, question.devices)
    return blocks.measure(_needed(question), launcher)


def _needed(question: Question) -> list[Any]:
    """The blocks of all strategies: they are compared, so that all times come from one source."""
    return [
        spec
        for name in strategies.STRATEGIES
        for spec in planner.needed(name, question.settings, question.graph, question.batch, question.devices)
    ]


def answer(question: Question) -> tuple[list[dict[str, Any]], dict[str, Strategy], str]:
    """A row for each strategy with the columns of plans.parquet, the strategies, and what the search did, in words.

    Where no plan keeps the memory limit there is none of the search, and what that needs is told instead.
    """
    rows, found, told = [], {}, ""
    times = planner.times_for(question.cluster, _needed(question), question.devices, question.results)
    for name in strategies.STRATEGIES:
        if name == strategies.LAYERWISE:
            try:
                searched = planner.find(
                    question.graph, question.batch, question.devices, question.cluster, times,
                    sync=question.settings["plan_sync"], objective=question.settings["objective"],
                    degrees=question.settings["degrees"], memory_limit=question.memory_limit,
                )  # fmt: skip
            except NoPlan as error:
                if all(row["reason"] for row in rows):
                    raise
                told = str(error)
                continue
            found[name], told = searched.strategy, _told(searched, times)
        else:
            found[name] = strategies.fixed(name, question.graph, question.batch, question.devices)
        predicted = costs.predict(
            question.graph, found[name], question.batch, question.devices, question.cluster, times,
            sync=question.settings["plan_sync"],
        )  # fmt: skip
        too_much = question.memory_limit is not None and predicted.state_bytes_max > question.memory_limit
        rows.append(
            {"strategy": name, "reason": "over the memory limit" if too_much else None}
            | {
                key: getattr(predicted, key)
                for key in ("step_s", "network_bytes", "paper_bytes", "state_bytes_max")
            }
            | {"samples_per_s": question.batch / predicted.step_s}
        )
    return rows, found, told


def _told(found: planner.Found, times: costs.Times) -> str:
    solution, problem = found.solution, found.tables.problem
    source = "blocks measured here" if isinstance(times, MeasuredBlocks) else "the device's rates"
    gap = f", at most {solution.gap:.2%} above the optimum" if solution.gap else ""
    return (
        f"found by {solution.node_eliminations} node and {solution.edge_eliminations} edge eliminations of "
        f"{len(problem.nodes)} nodes (up to {max(problem.sizes().values())} configurations) down to "
        f"{solution.remaining}, in {solution.seconds:.3f} s after {found.tables.seconds:.2f} s for the tables{gap}; "
        f"times of blocks: {source}"
    )


def text(question: Question, markdown: bool = False) -> str:
    """The answer for the terminal."""
    graph = question.graph
    rows, found, told = answer(question)
    head = (
        f"{graph.name}: {len(graph)} layers, {graph.params:,} parameters, {graph.flops / 1e9:.2f} GFLOP forward a "
        f"sample\n{question.devices} devices of {question.cluster.name}, {question.minibatch} samples each"
    )
    if question.devices > question.cluster.capacity:
        head += f" (it has {question.cluster.capacity}: oversubscribed)"
    plan = found.get(strategies.LAYERWISE)
    tables = [plantable.plan_table(graph, plan, question.devices, markdown=markdown)] if plan else []
    return "\n\n".join([head, *tables, told, plantable.comparison_table(rows, markdown=markdown)])
