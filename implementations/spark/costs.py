"""Cost model: what a training step on Spark takes on a machine, from sizes alone; nothing is run or allocated.

The paper announces a cost analysis that could not be read; this one is derived. A step of the slowest worker takes

    flops / rate  +  scheduling  +  transfer

where one exchange among workers schedules for a latency of each message and transfers the bytes of a ring, and one
through Spark's driver is a job: ``job_s + tasks task_s``, and the bytes up and down at the driver's rates and over its
adapter (``machine.Cluster.job_s``). Model parallelism has its exchanges in every step (``Net.gathers``, ``Net.sums``),
data parallelism one sum of all parameters every ``period`` steps. In numbers of values, with B samples a step, layers'
outputs n_1 .. n_L, P parameters, k workers of model and m of data parallelism:

* model, through the driver: up ``B (sum_l n_l + k sum_{l<L} n_l)``, down ``B (k sum_l n_l + sum_{l<L} n_l)``;
* model, between workers: each sends ``(k-1)/k B (sum_l n_l + sum_{l<L} n_l)``;
* data: up and down ``m P`` through the driver, ``2 (m-1)/m P`` sent by each between workers.

A speedup is against one worker that trains alone on the machine, without Spark and without exchanges.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from implementations.cluster.machine import Cluster

ITEM = 4  # bytes of a value
KINDS = ("fc", "cnn", "rnn", "lstm")
_GATES = {"rnn": 1, "lstm": 4}


@dataclass(frozen=True)
class Layer:
    """Units that workers share out, and what they come to: operations of a sample, forward and back, and parameters."""

    units: int
    flops: int
    params: int

    def share(self, workers: int) -> float:
        """The largest worker's share of the units."""
        return math.ceil(self.units / workers) / self.units


@dataclass(frozen=True)
class Net:
    """A network as far as costs go.

    gathers, sums: values of a sample in each all-gather and each reduce-scatter of a model-parallel step.
    activations: values of a sample that are kept for the backward pass, on every worker.
    """

    kind: str
    layers: tuple[Layer, ...]
    gathers: tuple[int, ...]
    sums: tuple[int, ...]
    activations: int

    @property
    def params(self) -> int:
        """All parameters."""
        return self.worker_params(1)

    def worker_params(self, workers: int) -> int:
        """Those of the largest of ``workers`` shares."""
        return sum(round(layer.params * layer.share(workers)) for layer in self.layers)

    def flops(self, workers: int = 1) -> float:
        """Operations for one sample, forward and backward, of the largest of ``workers`` shares."""
        return sum(layer.flops * layer.share(workers) for layer in self.layers)


def net(model: Mapping[str, Any], features: int, classes: int) -> Net:
    """The network that a point's ``model`` describes, of samples of ``features`` values."""
    kind, hidden = model["name"], list(model.get("hidden", ()))
    if kind not in KINDS:
        raise ValueError(f"model {kind}: no costs; allowed: {', '.join(KINDS)}")
    if kind in _GATES:
        return _recurrent(model, features, classes)
    layers: list[Layer] = []
    outputs, inputs = [], features

    def add(units: int, weights: int, uses: int, values: int) -> None:
        """A layer of so many weights without biases, each used so often, and of so many output values."""
        # the sample has no derivative
        layers.append(Layer(units, (6 if layers else 4) * weights * uses, weights + units))
        outputs.append(values)

    if kind == "cnn":
        kernel = model.get("kernel", 5)
        side, channels = _image(features)
        for filters in model["filters"]:
            weights, pixels = kernel**2 * channels * filters, side**2
            side, channels = side // 2, filters
            add(filters, weights, pixels, side**2 * channels)
        inputs = side**2 * channels
    for units in (*hidden, classes):
        add(units, inputs * units, 1, units)
        inputs = units
    # kept: the sample, and before each pooling maps four times as large
    kept = features + sum(outputs) + (4 * sum(outputs[: len(model["filters"])]) if kind == "cnn" else 0)
    return Net(kind, tuple(layers), tuple(outputs), tuple(outputs[:-1]), kept)


def _image(features: int) -> tuple[int, int]:
    """Side and channels of square images: of one channel, or of three."""
    for channels in (1, 3):
        side = math.isqrt(features // channels)
        if side**2 * channels == features:
            return side, channels
    raise ValueError(f"samples of {features} values are no square images of one channel or three")


def _recurrent(model: Mapping[str, Any], features: int, classes: int) -> Net:
    """Hidden units gathered in each time step, and the derivative by them summed on the way back."""
    steps, hidden, gates = model["steps"], list(model["hidden"]), _GATES[model["name"]]
    inputs = features // steps - bool(model.get("masked"))
    layers, states = [], []
    for units in hidden:
        # the sample has no derivative, and the first step no state before it
        uses = (6 if layers else 4) * steps * inputs + 6 * (steps - 1) * units
        layers.append(Layer(units, gates * units * uses, gates * units * (inputs + units + 2)))
        states += [units] * steps
        inputs = units
    layers.append(Layer(classes, 6 * inputs * classes, (inputs + 1) * classes))
    kept = features + classes + steps * sum((1 + gates) * units for units in hidden)
    return Net(model["name"], tuple(layers), (*states, classes), tuple(states), kept)


@dataclass(frozen=True)
class Case:
    """What is to be timed.

    variant: ``model``, ``data`` or ``hybrid``, whose groups have ``group`` workers.
    driver: whether exchanges are Spark jobs, rather than among tasks that stay alive.
    minibatch: samples of a step for each worker.
    period: of ``data``, steps between two exchanges; at most an epoch's.
    state: values that the optimiser keeps for each parameter.
    """

    net: Net
    variant: str
    driver: bool
    workers: int
    minibatch: int
    samples: int
    group: int = 1
    period: int = 1
    state: int = 0

    @property
    def members(self) -> int:
        """Workers that share one copy of the network."""
        return {"model": self.workers, "hybrid": self.group}.get(self.variant, 1)

    @property
    def groups(self) -> int:
        """Copies of the network."""
        return self.workers // self.members

    @property
    def steps(self) -> int:
        """Of an epoch; the last may be short of samples, and counts in full."""
        return max(1, math.ceil(self.samples / (self.minibatch * self.workers)))

    @property
    def steps_per_job(self) -> int:
        """Steps between two exchanges of data parallelism."""
        return min(self.period, self.steps)


@dataclass(frozen=True)
class Cost:
    """Seconds and bytes of a step, on average over an epoch.

    ``up_bytes`` and ``down_bytes`` go through the driver, ``sent_bytes`` is what all workers, and the driver, send.
    ``exchanges`` are jobs where the driver carries them, and the update of cut layers is one more. ``state_bytes``: of
    the largest worker, weights, gradients, the optimiser's state and activations; ``alone_bytes``: of one worker that
    trains alone.
    """

    compute_s: float
    schedule_s: float
    transfer_s: float
    alone_s: float  # of the same samples on one worker
    exchanges: float
    up_bytes: float
    down_bytes: float
    sent_bytes: float
    state_bytes: int
    alone_bytes: int

    @property
    def step_s(self) -> float:
        """All parts together; nothing overlaps."""
        return self.compute_s + self.schedule_s + self.transfer_s

    @property
    def speedup(self) -> float:
        """Over one worker alone."""
        return self.alone_s / self.step_s

    @property
    def capped_by(self) -> str:
        """What takes the largest part of a step: the workers' computing, jobs (or latencies), or bytes."""
        parts = {"compute": self.compute_s, "jobs": self.schedule_s, "transfer": self.transfer_s}
        return max(parts, key=parts.__getitem__)


def cost(case: Case, cluster: Cluster) -> Cost:
    """What a step of ``case`` takes on ``cluster``. UserError where the cluster says nothing of Spark's jobs."""
    network, k, groups = case.net, case.members, case.groups
    batch = case.minibatch * k  # of a group
    parts = []
    if k > 1:
        parts += [_exchange("gather", values * batch, k, groups, case, cluster) for values in network.gathers]
        parts += [
            _exchange("scatter_sum", values * batch, k, groups, case, cluster) for values in network.sums
        ]
    if case.driver and k > 1:
        schedule_s, _ = cluster.job_s(case.workers, 0, 0)
        parts.append((0, schedule_s, 0, 0, 0, 0))  # the last gradients and the update are a job of their own
    if groups > 1:
        # blocks of equal place meet side by side
        rows = _exchange("sum", network.worker_params(k), groups, k, case, cluster)
        parts.append(tuple(part / case.steps_per_job for part in rows))
    exchanges, schedule_s, transfer_s, up, down, sent = (
        sum(column) for column in zip((0.0,) * 6, *parts, strict=True)
    )
    alone = network.params * (2 + case.state)
    held = network.worker_params(k) * (2 + case.state)
    return Cost(
        compute_s=cluster.oversubscription(case.workers) * _compute_s(network, k, batch, cluster),
        schedule_s=schedule_s,
        transfer_s=transfer_s,
        alone_s=groups * _compute_s(network, 1, batch, cluster),
        exchanges=exchanges,
        up_bytes=up,
        down_bytes=down,
        sent_bytes=sent,
        state_bytes=ITEM * (held + batch * network.activations),
        alone_bytes=ITEM * (alone + batch * network.activations),
    )


def _compute_s(network: Net, workers: int, batch: int, cluster: Cluster) -> float:
    flops = network.flops(workers) * batch
    return flops / cluster.device.flops_per_s(batch, flops)


def _exchange(
    kind: str, values: int, workers: int, beside: int, case: Case, cluster: Cluster
) -> tuple[float, ...]:
    """Exchanges (1), scheduling, transfer, bytes up, down and sent of one over ``workers``, ``beside`` such at once."""
    size = ITEM * values
    if case.driver:
        up = size if kind == "gather" else workers * size
        down = size if kind == "scatter_sum" else workers * size
        schedule_s, transfer_s = cluster.job_s(workers * beside, beside * up, beside * down)
        return 1, schedule_s, transfer_s, beside * up, beside * down, beside * (up + down)
    op, rounds = {"gather": ("allgather", 1), "scatter_sum": ("reduce_scatter", 1), "sum": ("allreduce", 2)}[
        kind
    ]
    each = rounds * (workers - 1) / workers * size

    def seconds(payload: float) -> float:
        return cluster.communication_s(
            op, "ring", workers, payload, payload * each / size, workers=case.workers
        )

    latency_s = seconds(0.0)
    return 1, latency_s, seconds(size) - latency_s, 0, 0, beside * workers * each


def least_steps_per_job(case: Case, cluster: Cluster, speedup: float) -> int | None:
    """Fewest steps between two exchanges of data parallelism that reach ``speedup``; None if an epoch has too few.

    With c seconds of a worker's step, J of an exchange and m workers, H steps take ``H c + J`` and would take one
    worker ``m H c``: H must be at least ``speedup J / (c (m - speedup))``, and m more than ``speedup``.
    """
    found = cost(dataclasses.replace(case, period=1), cluster)
    gain = found.alone_s / found.compute_s - speedup
    if gain <= 0:
        return None
    steps = max(1, math.ceil(speedup * (found.schedule_s + found.transfer_s) / (found.compute_s * gain)))
    return steps if steps <= case.steps else None
