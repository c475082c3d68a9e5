"""What the search minimises, and what a plan is predicted to take: ``tables`` and ``predict``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from implementations.cluster.machine import Cluster
from implementations.errors import UserError
from implementations.layerwise import algebra, traffic
from implementations.layerwise.costmodel import ITEMSIZE, CostModel, Times, choices
from implementations.layerwise.graph import CONV, LINEAR, Config, Graph, Strategy
from implementations.layerwise.options import OBJECTIVES
from implementations.layerwise.plan import Plan
from implementations.layerwise.timeline import Transfer, Work, simulate

if TYPE_CHECKING:
    from implementations.layerwise.search_problem import Problem


@dataclass(frozen=True)
class Tables:
    """What the search needs.

    Attributes:
        configs: of each leader, in the order of the tables' axes.
        problem: seconds, with a node for each leader and an edge for each read of a group's output by another.
        memory: bytes, likewise; no device needs more than a plan's sum.
        seconds: how long they took to make.
    """

    configs: dict[str, list[Config]]
    problem: Problem
    memory: Problem
    seconds: float
    leaders: dict[str, str]

    def strategy(self, choice: Mapping[str, int]) -> dict[str, Config]:
        """The configuration of every layer, given the index of each leader's."""
        return {name: self.configs[leader][choice[leader]] for name, leader in self.leaders.items()}


def tables(
    graph: Graph,
    batch: int,
    devices: int,
    cluster: Cluster,
    times: Times,
    *,
    sync: str = "server",
    objective: str = "additive",
    degrees: str = "powers",
    idle: bool = True,
) -> Tables:
    """The cost of each choice, and of each pair of choices, for the search.

    Args:
        graph: the network.
        batch: samples of all devices together.
        devices: how many there are; block k of a layer is on device k.
        cluster: the links.
        times: where t_C comes from.
        sync: "server" or "allreduce".
        objective: "additive" or "hidden".
        degrees: which degrees are considered: "powers" of two or "all".
        idle: whether configurations that leave devices idle are considered, too.
    """
    from implementations.layerwise.search_problem import Problem

    if objective not in OBJECTIVES:
        raise UserError(f"objective {objective!r}: allowed: {' | '.join(OBJECTIVES)}")
    began = perf_counter()
    model = CostModel(graph, batch, devices, cluster, times, sync)
    allowed, leaders = choices(graph, batch, devices, degrees, idle), graph.leaders()
    configs = {name: allowed[name] for name in dict.fromkeys(leaders.values())}
    seconds = {name: np.zeros(len(configs[name])) for name in configs}
    held = {name: np.zeros(len(configs[name])) for name in configs}
    edges, gathered = [], []
    for layer in graph:
        leader = leaders[layer.name]
        seconds[leader] += [model.layer(layer, config).value(objective) for config in configs[leader]]
        held[leader] += [model.held_bytes(layer, config) for config in configs[leader]]
        for place, source in enumerate(layer.inputs):
            if leaders[source] != leader:
                ends = (leaders[source], leader)
                moving, bytes_in = model.edge(layer, place, configs[ends[0]], configs[ends[1]])
                edges.append((*ends, moving))
                gathered.append((*ends, bytes_in))
    problem, memory = Problem(seconds, edges), Problem(held, gathered)
    return Tables(configs, problem, memory, perf_counter() - began, leaders)


@dataclass(frozen=True)
class Prediction:
    """What a step of a strategy takes.

    Attributes:
        step_s: with what overlaps in the executor (``timeline``).
        additive_s, hidden_s: the two objectives.
        compute_s, transfer_s, sync_s: the parts of the additive one: blocks and updates; activations and their
            gradients; parameters, and statistics of normalisations.
        overlap_s: by how much the step is shorter than the additive objective; 0 where it is not.
        network_bytes: really sent in a step, by all (``traffic``).
        paper_bytes: as the paper counts them.
        state_bytes_max: parameters, gradients, momentum, outputs, and inputs from elsewhere, on the fullest device.
        rows: for each layer: layer, kind, config, forward_s, backward_s, update_s, sync_s, statistics_forward_s,
            statistics_backward_s, transfer_s.
    """

    step_s: float
    additive_s: float
    hidden_s: float
    compute_s: float
    transfer_s: float
    sync_s: float
    overlap_s: float
    network_bytes: int
    paper_bytes: int
    state_bytes_max: int
    rows: list[dict[str, Any]]

    def value(self, objective: str) -> float:
        """The value of an objective."""
        return self.additive_s if objective == "additive" else self.hidden_s


def predict(
    graph: Graph,
    strategy: Strategy,
    batch: int,
    devices: int,
    cluster: Cluster,
    times: Times,
    *,
    sync: str = "server",
    background: bool | None = None,
) -> Prediction:
    """What a step of ``strategy`` takes, which has a configuration for every layer.

    Other arguments as for ``tables``; ``background``: whether links work by themselves while devices compute (by
    default those of GPUs do, and those between hosts of one device each). Raises UserError for a strategy that does
    not fit.
    """
    plan = Plan(graph, strategy, batch, devices)
    model = CostModel(graph, batch, devices, cluster, times, sync)
    rows, works = [], []
    update = np.zeros(devices)
    additive = hidden = 0.0
    for stage in plan.stages:
        layer, config = stage.layer, stage.config
        cost = model.layer(layer, config)
        transfers, transfer_s = [], 0.0
        for edge in stage.edges:
            nbytes = np.zeros((devices, devices))
            for pair, box in edge.far().items():
                nbytes[pair] = ITEMSIZE * algebra.volume(box)
            busy = model.transfer_s(nbytes)
            transfers.append(Transfer(edge.source, nbytes > 0, busy, edge.gradient))
            transfer_s += (1 + edge.gradient) * float(busy.max())
        volumes = np.zeros(devices)
        volumes[: stage.devices] = [algebra.volume(box) for box in stage.blocks]
        params = np.zeros(devices)
        if layer.weights:
            per_channel = layer.params / layer.out[0]
            params[: stage.devices] = [per_channel * (box[1][1] - box[1][0]) for box in stage.blocks]
        share = volumes / volumes.max()
        # half of the backward pass is for the parameters, or all of it where the input needs no gradient
        of_weights = (
            0.0 if layer.kind not in (CONV, LINEAR) else 0.5 if any(t.gradient for t in transfers) else 1.0
        )
        update += params / max(params.max(), 1) * cost.update_s
        works.append(
            Work(
                name=layer.name,
                forward=share * cost.forward_s,
                input_backward=share * (1 - of_weights) * cost.backward_s,
                weight_backward=share * of_weights * cost.backward_s,
                transfers=transfers,
                groups=stage.groups,
                sync_s=cost.sync_s,
                statistics=(cost.statistics_forward_s, cost.statistics_backward_s),
            )
        )
        additive += cost.value("additive") + transfer_s
        hidden += cost.value("hidden") + transfer_s
        rows.append(
            {
                "layer": layer.name,
                "kind": layer.kind,
                "config": tuple(config),
                **asdict(cost),
                "transfer_s": transfer_s,
            }
        )
    if background is None:
        # between hosts of one device each the kernel's connections send what they were given
        background = cluster.device.kind == "gpu" or (cluster.nodes > 1 and cluster.devices_per_node == 1)
    step_s = simulate(works, update, background).step_s

    def total(*names: str) -> float:
        return sum(row[name] for row in rows for name in names)

    return Prediction(
        step_s=step_s,
        additive_s=additive,
        hidden_s=hidden,
        compute_s=total("forward_s", "backward_s", "update_s"),
        transfer_s=total("transfer_s"),
        sync_s=total("sync_s", "statistics_forward_s", "statistics_backward_s"),
        overlap_s=max(0.0, additive - step_s),
        network_bytes=sum(plan.sent_bytes()),
        paper_bytes=traffic.paper_bytes_of(plan).total,
        state_bytes_max=max(plan.state_bytes()),
        rows=rows,
    )
