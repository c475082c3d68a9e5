"""What each method would take: seconds, bytes and memory of an epoch, by the cost models that the suite has.

Methods that train replicas or subnets: their own code, run dry (``projection``), and the time model. Layer-wise: the
planner. Spark: its cost model. Both are scaled so that their step of one worker is the time model's, which knows more
of a step than its products: else models would be compared, and not methods.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from implementations import holding, registry
from implementations.advice import parts
from implementations.advice.nets import Subject
from implementations.advice.parts import Seconds
from implementations.cluster import timemodel
from implementations.cluster.booked import BookedCommunicator
from implementations.cluster.ledger import Ledger
from implementations.cluster.machine import Cluster
from implementations.errors import UserError
from implementations.layerwise import costs, planner, strategies
from implementations.layerwise.search import NoPlan
from implementations.point import Point
from implementations.projection import project
from implementations.spark import costs as spark_costs

ITEM = 4  # bytes of a value


@dataclass(frozen=True)
class Way:
    """A method with its settings, as it is told: ``averaging, K=10``."""

    told: str
    method: str
    variant: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """An epoch of a way on so many workers of a machine; nothing but ``reason`` where it cannot be."""

    way: Way
    workers: int
    seconds: Seconds | None = None
    sent_bytes: float = math.nan  # of all workers together
    memory_bytes: float = math.nan  # of the busiest worker: weights, gradients, momentum if any, activations
    steps: int = 0
    source: str = ""  # of a step's seconds
    reason: str = ""


SEQUENTIAL = Way("sequential", "sequential", "default")


def ways(period: int, subnet_period: int) -> list[Way]:
    """All that are compared; ``period``: local steps of averaging, ``subnet_period``: of subnet training."""
    return [
        SEQUENTIAL,
        Way("data parallel", "data_parallel", "default"),
        Way(f"averaging, K={period}", "averaging", "default", {"sync_period": period}),
        Way(f"subnets, J={subnet_period}", "ist", "corrected", {"sync_period": subnet_period}),
        Way("layer-wise", "layerwise", "layerwise"),
        Way("Spark, data", "spark", "data", {"execution": "barrier"}),
        Way("Spark, data by jobs", "spark", "data", {"execution": "job_per_exchange"}),
        Way("Spark, model", "spark", "model", {"execution": "barrier"}),
    ]


def estimates(
    net: Subject,
    cluster: Cluster,
    workers: Sequence[int],
    minibatch: int,
    ways: Sequence[Way],
    results: Path = Path("results"),
) -> Iterator[Estimate]:
    """One for each way and number of workers, in this order; ``minibatch``: samples of a worker and step."""
    for way in ways:
        counts = [1] if way.method == "sequential" else [count for count in workers if count > 1]
        for count in counts:
            try:
                yield _estimate(net, cluster, count, minibatch, way, results)
            except UserError as error:
                yield Estimate(way, count, reason=str(error))


def _estimate(
    net: Subject, cluster: Cluster, workers: int, minibatch: int, way: Way, results: Path
) -> Estimate:
    if workers > cluster.capacity:
        raise UserError(f"{cluster.name} has places for {cluster.capacity}")
    if net.samples < workers * minibatch:
        raise UserError(f"{net.samples:,} samples are less than one step of {workers} x {minibatch}")
    if way.method == "layerwise":
        return _layerwise(net, cluster, workers, minibatch, way, results)
    if way.method == "spark":
        return _spark(net, cluster, workers, minibatch, way)
    columns, events, sent, activations = _projected(net, workers, minibatch, way)
    steps = columns["steps"]

    def seconds(machine: Cluster) -> tuple[float, float]:
        timing = timemodel.predict(events, machine, workers, model_params=columns["worker_params"])
        longer = timing.scaled(steps)
        return longer.train_s, longer.straggler_s

    source = timemodel.predict(events, cluster, workers, model_params=columns["worker_params"]).compute_source
    memory = columns["state_bytes_per_worker"] + columns["server_bytes"] + activations
    return Estimate(way, workers, parts.split(seconds, cluster), sent, memory, steps, source)


def _projected(
    net: Subject, workers: int, minibatch: int, way: Way
) -> tuple[dict[str, Any], timemodel.Groups, float, float]:
    """Columns of the record, trace, bytes of an epoch and activations of a minibatch: the same for every machine."""
    key = (way.told, workers, minibatch)
    if key not in net.traces:
        point = _point(net, workers, minibatch, way)
        if problems := registry.get(way.method).check(point):
            raise UserError(problems[0])
        columns, trace = project(point, net.sizes)
        events = timemodel.group(trace)
        sent = float(trace["sent_bytes_total"].sum()) * columns["steps"] / max(1, events.steps)
        net.traces[key] = columns, events, sent, activation_bytes(point, net)
    return net.traces[key]


def _point(net: Subject, workers: int, minibatch: int, way: Way) -> Point:
    model = net.model
    if way.method == "ist":
        if isinstance(net.split_model, str):
            raise UserError(net.split_model)
        model = net.split_model
    return Point(
        paper="suite", method=way.method, variant=way.variant, dataset="own", model=model, workers=workers,
        evidence="projected", seed=0, method_params=dict(way.settings), data_size=net.samples, minibatch=minibatch,
    )  # fmt: skip


def activation_bytes(point: Point, net: Subject) -> float:
    """What a forward pass over a minibatch keeps for the backward pass, in bytes; NaN where it cannot be told.

    Weights aside. Of a pass without memory: of tensors that share theirs one counts.
    """
    held = holding.dry(point, net.features, net.classes, BookedCommunicator(point.workers, Ledger()))
    weights = held.net.theta_wp.untyped_storage()._cdata
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata != weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.device("meta"):
            samples = torch.empty(1, point.minibatch, net.features)
            scores = held.net.logits(samples)
    except (RuntimeError, NotImplementedError, TypeError):  # a network that looks at values
        return math.nan
    del scores  # until here nothing that was kept was given back, so that no place counts for two
    return float(sum(kept.values()))


def _layerwise(
    net: Subject, cluster: Cluster, workers: int, minibatch: int, way: Way, results: Path
) -> Estimate:
    graph = net.graph
    if isinstance(graph, str):
        raise UserError(graph)
    batch = minibatch * workers
    settings = {"degrees": "powers"}
    specs = planner.needed(strategies.LAYERWISE, settings, graph, batch, workers)
    alone_s, source = _alone(net, cluster, minibatch)
    alone = strategies.fixed(strategies.SINGLE, graph, minibatch, 1)
    by_layers = costs.predict(graph, alone, minibatch, 1, cluster, planner.Roofline(cluster.device)).step_s
    scale = alone_s / by_layers if by_layers > 0 else 1.0
    times = planner.times_for(cluster, specs, workers, results, scale)
    try:
        found = planner.find(graph, batch, workers, cluster, times, sync="allreduce").strategy
    except NoPlan as error:
        raise UserError(str(error)) from None
    steps = max(1, net.samples // batch)

    def on(machine: Cluster) -> costs.Prediction:
        return costs.predict(graph, found, batch, workers, machine, times, sync="allreduce")

    predicted = on(cluster)

    def seconds(machine: Cluster) -> tuple[float, float]:
        return steps * (predicted if machine is cluster else on(machine)).step_s, 0.0

    return Estimate(
        way,
        workers,
        parts.split(seconds, cluster),
        steps * predicted.network_bytes,
        predicted.state_bytes_max,
        steps,
        source,
    )


def _alone(net: Subject, cluster: Cluster, minibatch: int) -> tuple[float, str]:
    """Seconds of one worker's step by the time model, and whence they come."""
    columns, events, _, _ = _projected(net, 1, minibatch, SEQUENTIAL)
    timing = timemodel.predict(events, cluster, 1, model_params=columns["worker_params"])
    return timing.step_s, timing.compute_source


def _spark(net: Subject, cluster: Cluster, workers: int, minibatch: int, way: Way) -> Estimate:
    if way.variant == "model" and not net.cuts_layers:
        raise UserError(f"its layers cannot be cut; allowed: {', '.join(spark_costs.KINDS)}")
    case = spark_costs.Case(
        net=net.spark_net,
        variant=way.variant,
        driver=way.settings["execution"] == "job_per_exchange",
        workers=workers,
        minibatch=minibatch,
        samples=net.samples,
    )

    alone_s, source = _alone(net, cluster, minibatch)
    one = spark_costs.cost(dataclasses.replace(case, variant="data", workers=1), cluster)
    scale = alone_s / one.compute_s if one.compute_s > 0 else 1.0

    def seconds(machine: Cluster) -> tuple[float, float]:
        found = spark_costs.cost(case, machine)
        return case.steps * (scale * found.compute_s + found.schedule_s + found.transfer_s), 0.0

    found = spark_costs.cost(case, cluster)
    memory = cluster.spark.memory_bytes if cluster.spark else None
    reason = ""
    if memory is not None and found.state_bytes > memory:
        reason = f"needs {found.state_bytes / 1e9:.1f} GB of {memory / 1e9:.1f} GB"
    held = found.state_bytes
    if way.variant == "data":  # a whole replica, of any network
        columns, _, _, activations = _projected(net, 1, minibatch, SEQUENTIAL)
        held = columns["state_bytes_per_worker"] + activations
    sent = case.steps * found.sent_bytes
    return Estimate(way, workers, parts.split(seconds, cluster), sent, held, case.steps, source, reason)
