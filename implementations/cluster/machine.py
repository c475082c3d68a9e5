"""Machines: devices, links and measured tables, read from cluster files; what a message costs on them.

A cluster file (``config/clusters/NAME.yaml``; or, written by calibration, ``results/calibration/this-host.yaml`` and
one for each network of emulated hosts) describes ``nodes`` equal nodes with ``devices_per_node`` places for one worker
each. Workers are placed block-wise: worker r sits on node ``r // devices_per_node``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import yaml

from implementations.cluster import collectives
from implementations.cluster.collectives import Link
from implementations.cluster.hosts.plan import is_emulated
from implementations.errors import UserError
from implementations.yamlfile import load_yaml

THIS_HOST = "this-host"
LOOPBACK = "loopback"  # the network of measured points whose ranks share this machine's memory
_CONFIG = Path(__file__).parents[2] / "config"


class NotCalibrated(UserError):
    """This machine, or one that is described as like it, is asked for before it was calibrated."""


# Algorithms of what goes through Spark's driver, and of what goes to and from a parameter server.
DRIVER, SERVER = "driver", "server"
MEASURED = "measured"  # in place of an algorithm's name
PACKED = ("scatter", "gather", "alltoall")  # operations whose messages are put together first


@dataclass(frozen=True)
class Device:
    """What one worker computes on. ``flops_by_shape`` rows are (batch, width, flop/s), a full grid.

    ``efficiency_by_kind`` has the share of the peak for kinds of layers ("conv", ...), where it is known.
    """

    name: str
    kind: str
    peak_flops: float
    memory_bandwidth_bytes_per_s: float
    efficiency: float = 1.0
    flops_by_shape: tuple[tuple[float, float, float], ...] = ()
    launch_overhead_s: float = 0.0
    step_variation: float = 0.0
    host_copy: Link | None = None
    efficiency_by_kind: dict[str, float] = field(default_factory=dict)
    kernel_overhead_s: float = 0.0
    packing_bytes_per_s: float | None = None

    def packing_s(self, nbytes: float) -> float:
        """Seconds in which blocks are cut out of larger tensors and, elsewhere, put into others.

        By its own rate, each of the two; where that is not known, as a copy that reads and writes them once.
        """
        return 2 * nbytes / (self.packing_bytes_per_s or self.memory_bandwidth_bytes_per_s)

    def flops_per_s(self, samples: float, flops: float) -> float:
        """Sustained flop/s of a step of ``flops`` operations on ``samples`` samples.

        The table is entered by the minibatch and the width of the square layer that would take as many operations
        (6 per weight and sample), linearly in the logarithms, clamped to its edges.
        """
        if not self.flops_by_shape:
            return self.peak_flops * self.efficiency
        batches, widths, log_rates = self._grid
        at_width = [np.interp(np.log(np.sqrt(flops / (6 * samples))), widths, row) for row in log_rates]
        return float(np.exp(np.interp(np.log(samples), batches, at_width)))

    @functools.cached_property
    def _grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = np.array(sorted(self.flops_by_shape))
        batches, widths = np.unique(rows[:, 0]), np.unique(rows[:, 1])
        return np.log(batches), np.log(widths), np.log(rows[:, 2]).reshape(len(batches), len(widths))


@dataclass(frozen=True)
class Step:
    """A measured training step of one worker while ``busy_ranks`` processes compute on the node."""

    model: str
    model_params: int
    flops_per_sample: float
    minibatch: int
    busy_ranks: int
    threads: int
    step_s: float
    step_sd_s: float
    data_s: float


@dataclass(frozen=True)
class Spark:
    """What Apache Spark costs on a machine, beside the links between its nodes.

    job_s, task_s: a job lasts ``job_s``, and ``task_s`` more for each of its tasks, whatever they do.
    up_bytes_per_s, down_bytes_per_s: at which tasks hand the driver results, and the driver hands them data, with the
        packing; links between nodes come on top.
    start_s: of a session. memory_bytes: what a worker may take; None where that is not said.
    """

    job_s: float
    task_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    start_s: float = 0.0
    memory_bytes: float | None = None


@dataclass(frozen=True)
class Cluster:
    """A machine. ``collectives`` maps (op, algorithm, ranks) to measured (bytes, seconds), ascending in bytes.

    ``pairs`` has the links of pairs of devices that have one of their own, by (smaller, larger) device;
    ``inside_node`` is then that of the other pairs on a node, or the slowest of them where they cover all.
    ``tasks`` joins Spark's tasks on a node, which do not use MPI. ``refills`` maps ranks to (bytes, seconds): what a
    step and the collective before it take longer by turns than each by itself. ``shared_devices``: those that all
    nodes have together, where nodes are hosts emulated on one machine.
    """

    name: str
    nodes: int
    devices_per_node: int
    device: Device
    inside_node: Link
    between_nodes: Link | None = None
    steps: tuple[Step, ...] = ()
    collectives: dict[tuple[str, str, int], tuple[tuple[float, float], ...]] = field(default_factory=dict)
    pairs: dict[tuple[int, int], Link] = field(default_factory=dict)
    spark: Spark | None = None
    tasks: Link | None = None
    refills: dict[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    shared_devices: int | None = None

    @property
    def capacity(self) -> int:
        """Places for workers."""
        return self.nodes * self.devices_per_node

    @property
    def devices(self) -> int:
        """Workers that have a device of their own."""
        return min(self.capacity, self.shared_devices or self.capacity)

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, whatever joins its workers."""
        return self.name == THIS_HOST or is_emulated(self.name)

    def between_tasks(self) -> Cluster:
        """The machine as Spark's tasks see it: on a node joined by ``tasks`` where that is known, not by MPI."""
        if self.tasks is None:
            return self
        return dataclasses.replace(self, inside_node=self.tasks, collectives={})

    def oversubscription(self, workers: int) -> float:
        """Workers that share a device, on average; 1 when each has its own."""
        return max(1.0, workers / self.devices)

    def workers_per_node(self, workers: int) -> int:
        """Workers on a full node: its devices, or more when there are more workers than devices."""
        return self.devices_per_node if workers <= self.capacity else -(-workers // self.nodes)

    def nodes_used(self, workers: int) -> int:
        """Nodes that ``workers`` workers take."""
        return -(-workers // self.workers_per_node(workers))

    def busy_ranks(self, workers: int) -> int:
        """Processes that compute at once on the fullest node, or on the machine that all nodes are on."""
        return min(workers, self.shared_devices or self.devices_per_node)

    def node_of(self, worker: int, workers: int | None = None) -> int:
        """The node of a worker, one of ``workers`` (as many as there are devices by default)."""
        return worker // self.workers_per_node(workers or 1)

    def own_link(self, a: int, b: int) -> Link | None:
        """The link that joins devices a and b only; None where they share one with others.

        What a file says of two devices of the first node holds on the other nodes, which are equal to it.
        """
        place = self.devices_per_node
        found = self.pairs.get((min(a, b), max(a, b)))
        if found is None and a // place == b // place:
            found = self.pairs.get((min(a % place, b % place), max(a % place, b % place)))
        return found

    def link(self, a: int, b: int, workers: int | None = None) -> Link:
        """The link between workers a and b, each way."""
        if max(a, b) < self.capacity and (own := self.own_link(a, b)) is not None:
            return own
        inside = self.node_of(a, workers) == self.node_of(b, workers)
        return self.inside_node if inside or self.between_nodes is None else self.between_nodes

    def communication_s(
        self,
        op: str,
        algorithm: str,
        ranks: int,
        payload_bytes: float,
        sent_bytes: float | None = None,
        messages: int = 1,
        workers: int | None = None,
    ) -> float:
        """Seconds of one collective over a group of ``ranks`` consecutive workers out of ``workers``.

        A measured table for the operation wins; else latency and bandwidth of the links in use
        (``collectives.seconds``), and the copies between device and host memory where the cluster has them. Then
        what it costs the step after it (``refill_s``).
        ``sent_bytes`` and ``messages`` are those of the worker that sends most, as a trace has them.
        What goes through Spark's driver (algorithm "driver", which is one more member) takes a job of its own.
        """
        if ranks < 2:
            return 0.0
        if algorithm == DRIVER:
            volume = driver_bytes(op, ranks - 1, payload_bytes, sent_bytes or 0.0)
            return sum(self.job_s(ranks - 1, *volume))
        if algorithm == SERVER:
            # which is one more member, whose adapter all messages share
            inside = self.between_nodes is None or ranks - 1 <= self.workers_per_node(ranks - 1)
            link = self.inside_node if inside else self.between_nodes
            return link.latency_s + (ranks - 1) * payload_bytes / link.bandwidth_bytes_per_s
        refill_s = self.refill_s(ranks, payload_bytes)
        table = self._table(op, algorithm, ranks)
        if table is not None:
            return _interpolate(table, payload_bytes) + refill_s
        places = self._places(ranks, workers)
        seconds = collectives.seconds(op, algorithm, places, payload_bytes, sent_bytes, messages)
        if op in PACKED:
            seconds += self.device.packing_s(payload_bytes)
        if self.device.host_copy is not None and payload_bytes:
            seconds += 2 * self.device.host_copy.seconds(payload_bytes)
        return seconds + refill_s

    def chosen(
        self, op: str, algorithm: str, ranks: int, payload_bytes: float, workers: int | None = None
    ) -> str | None:
        """Which algorithm ``communication_s`` takes an all-reduce to go by; MEASURED: a table has its seconds.

        None for other operations, of which each has one form.
        """
        if not op.endswith("allreduce") or algorithm in (DRIVER, SERVER) or ranks < 2:
            return None
        if self._table(op, algorithm, ranks) is not None:
            return MEASURED
        return collectives.fastest(algorithm, self._places(ranks, workers), payload_bytes)[0]

    def with_nodes(self, nodes: int | None) -> Cluster:
        """As many nodes of this kind, joined as these are; None: as many as there are.

        UserError where nothing says how nodes are joined.
        """
        if nodes is None or nodes == self.nodes:
            return self
        if nodes > 1 and self.between_nodes is None:
            raise UserError(
                f"cluster {self.name}: nodes {nodes}, but its file does not say what joins nodes; allowed: 1, "
                f"or a cluster with links.between_nodes"
            )
        return dataclasses.replace(self, nodes=nodes)

    def _table(self, op: str, algorithm: str, ranks: int) -> tuple[tuple[float, float], ...] | None:
        # what was measured of a library is its own choice
        names = (algorithm, "library") if algorithm == "auto" else (algorithm,)
        tables = (self.collectives.get((op.removeprefix("i"), name, ranks)) for name in names)
        return next((table for table in tables if table is not None), None)

    def _places(self, ranks: int, workers: int | None) -> collectives.Placement:
        per_node = self.workers_per_node(max(ranks, workers or ranks))
        between = self.between_nodes or self.inside_node
        return collectives.Placement(ranks, per_node, self.inside_node, between)

    def refill_s(self, ranks: int, payload_bytes: float) -> float:
        """What a step takes longer after ``payload_bytes`` were exchanged, as caches hold other things than before.

        Linear between the sizes that were measured, with as many ranks or the nearest number; beyond the largest at
        its rate. 0 where none were.
        """
        if not self.refills:
            return 0.0
        sizes, seconds = np.array(self.refills[min(self.refills, key=lambda known: abs(known - ranks))]).T
        if payload_bytes > sizes[-1]:
            return float(seconds[-1] * payload_bytes / sizes[-1])
        return float(np.interp(payload_bytes, [0.0, *sizes], [0.0, *seconds]))

    def job_s(self, tasks: int, up_bytes: float, down_bytes: float) -> tuple[float, float]:
        """Seconds of a Spark job whose tasks get ``down_bytes`` of the driver and hand it ``up_bytes``, all together.

        Scheduling, and the way of the bytes: packed and unpacked, and over the driver's adapter where tasks are not on
        its node, which is the first. UserError for a machine whose file has no ``spark``.
        """
        spark = self.spark
        if spark is None:
            raise UserError(f"cluster {self.name}: its file has no section spark, so jobs take no known time")
        near = min(tasks, self.workers_per_node(tasks))
        wire = 0.0
        if self.between_nodes is not None and tasks > near:
            wire = (1 - near / tasks) / self.between_nodes.bandwidth_bytes_per_s
        transfer = up_bytes * (1 / spark.up_bytes_per_s + wire) + down_bytes * (
            1 / spark.down_bytes_per_s + wire
        )
        return spark.job_s + tasks * spark.task_s, transfer


def driver_bytes(op: str, workers: int, payload_bytes: float, sent_bytes: float) -> tuple[float, float]:
    """Bytes up to Spark's driver and down again in one exchange, of all workers together.

    ``payload_bytes``: the most that a worker hands over or is given; ``sent_bytes``: the most that a worker, or the
    driver, sends. Of a whole tensor of W bytes on k workers, gather: up W, down k W; scatter_sum: up k W, down W;
    sum: k W both ways; pairs: what is sent, both ways; update, the job that ends a step: nothing.
    """
    match op:
        case "gather":
            return payload_bytes, workers * payload_bytes
        case "scatter_sum":
            return workers * payload_bytes, payload_bytes
        case "sum":
            return workers * payload_bytes, workers * payload_bytes
        case "pairs":
            return sent_bytes, sent_bytes
        case "update":
            return 0.0, 0.0
    raise ValueError(f"operation {op!r} does not go through the driver")


def _interpolate(table: Iterable[tuple[float, float]], nbytes: float) -> float:
    """Seconds at ``nbytes``: piecewise linear in the logarithms; constant below the table, at its last rate above."""
    sizes, seconds = np.array(list(table), dtype=float).T
    if nbytes > sizes[-1]:
        return float(seconds[-1] * nbytes / sizes[-1])
    return float(np.exp(np.interp(np.log(max(nbytes, sizes[0])), np.log(sizes), np.log(seconds))))


def of_network(network: str | None) -> str:
    """The name of the cluster that a measured point of this network ran on; None is this machine's memory."""
    return THIS_HOST if network in (None, LOOPBACK) else network


def find(name: str, results_dir: str | Path = "results", clusters_dir: str | Path | None = None) -> Path:
    """The file of the cluster called ``name``; UserError naming those that there are when there is none."""
    folder = Path(clusters_dir) if clusters_dir is not None else _CONFIG / "clusters"
    if name == THIS_HOST or is_emulated(name):
        calibration = Path(results_dir) / "calibration" / f"{name}.yaml"
        if not calibration.is_file():
            how = f"--out {calibration}" if name == THIS_HOST else f"--network {name}"
            raise NotCalibrated(
                f"cluster {name}: {calibration} does not exist; measure this machine with "
                f"'python -m implementations calibrate {how}'"
            )
        return calibration
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join([*sorted(file.stem for file in folder.glob("*.yaml")), THIS_HOST])
        raise UserError(f"cluster {name!r}: {path} does not exist; allowed: {known}")
    return path


def load(
    cluster: str | Path, results_dir: str | Path = "results", clusters_dir: str | Path | None = None
) -> Cluster:
    """The cluster of a file, or of a name that ``find`` knows.

    All problems of the file come in one UserError, each with file, key path and what is allowed.
    """
    path = Path(cluster)
    if path.suffix not in (".yaml", ".yml"):
        path = find(str(cluster), results_dir, clusters_dir)
    return build(_resolve(path, results_dir, clusters_dir, ()), str(path))


def build(values: dict[str, Any], source: str = "cluster") -> Cluster:
    """The cluster that the values of a file describe; ``source`` names the file in error messages."""
    problems = list(_problems(values))
    if not problems and values["nodes"] > 1 and "between_nodes" not in values["links"]:
        problems.append("links.between_nodes: missing; needed where nodes > 1")
    if not problems:
        problems += _grid_problems(values["device"].get("flops_by_shape", [])) + _pair_problems(values)
    if problems:
        raise UserError("\n".join(f"{source}: {problem}" for problem in problems))
    device, links = values["device"], values["links"]
    pairs = {tuple(sorted(row["devices"])): _link({**row, "per": "device"}) for row in links.get("pairs", [])}
    tables: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for row in values.get("collectives", []):
        tables.setdefault((row["op"], row["algorithm"], row["ranks"]), []).append(
            (row["bytes"], row["seconds"])
        )
    refills: dict[int, list[tuple[float, float]]] = {}
    for row in values.get("refills", []):
        refills.setdefault(row["ranks"], []).append((row["bytes"], row["seconds"]))
    return Cluster(
        name=values["name"],
        nodes=values["nodes"],
        devices_per_node=values["devices_per_node"],
        device=Device(
            name=device["name"],
            kind=device["kind"],
            peak_flops=device["peak_flops"]["float32"]["value"],
            memory_bandwidth_bytes_per_s=device["memory_bandwidth_bytes_per_s"]["value"],
            efficiency=_value(device, "efficiency", 1.0),
            flops_by_shape=tuple(
                (row["batch"], row["width"], row["flops_per_s"]) for row in device.get("flops_by_shape", [])
            ),
            launch_overhead_s=_value(device, "launch_overhead_s", 0.0),
            step_variation=_value(device, "step_variation", 0.0),
            host_copy=_link(device.get("host_copy")),
            efficiency_by_kind={
                kind: share["value"] for kind, share in device.get("efficiency_by_kind", {}).items()
            },
            kernel_overhead_s=_value(device, "kernel_overhead_s", 0.0),
            packing_bytes_per_s=_value(device, "packing_bytes_per_s", None),
        ),
        inside_node=_link(links.get("inside_node")) or _slowest(pairs.values()),
        between_nodes=_link(links.get("between_nodes")),
        steps=tuple(
            Step(**{key: row.get(key, 1) for key in Step.__dataclass_fields__})
            for row in values.get("steps", [])
        ),
        collectives={key: tuple(sorted(rows)) for key, rows in tables.items()},
        pairs=pairs,
        spark=_spark(values.get("spark")),
        tasks=_link(links.get("tasks")),
        refills={ranks: tuple(sorted(rows)) for ranks, rows in refills.items()},
        shared_devices=values.get("shared_devices"),
    )


def _spark(values: dict[str, Any] | None) -> Spark | None:
    return None if values is None else Spark(**{name: figure["value"] for name, figure in values.items()})


def _resolve(
    path: Path, results_dir: str | Path, clusters_dir: str | Path | None, seen: tuple[Path, ...]
) -> dict[str, Any]:
    """The values of a file, with those of the cluster it is ``like`` where it gives none."""
    values = _read(path)
    if path in seen:
        raise UserError(f"{path}: like: clusters name each other in a circle; one of them must stand alone")
    return complete(values, results_dir, clusters_dir, str(path), (*seen, path))


def complete(
    values: dict[str, Any],
    results_dir: str | Path = "results",
    clusters_dir: str | Path | None = None,
    source: str = "cluster",
    seen: tuple[Path, ...] = (),
) -> dict[str, Any]:
    """``values`` of a file, with those of the cluster that they are ``like`` where they give none."""
    like = values.get("like")
    if not isinstance(like, str):
        return values
    try:
        base_path = find(like, results_dir, clusters_dir)
    except UserError as error:
        raise type(error)(f"{source}: like: {error}") from None
    base = _resolve(base_path, results_dir, clusters_dir, seen)
    build(base, str(base_path))  # so that its mistakes are told under its own name
    merged = {**base, **values}
    if isinstance(values.get("links", {}), dict) and isinstance(base.get("links"), dict):
        merged["links"] = {**base["links"], **values.get("links", {})}
    if "collectives" not in values:
        # a table measured on one node says nothing about ranks on several
        fits = merged.get("devices_per_node")
        rows = base.get("collectives", [])
        merged["collectives"] = [row for row in rows if isinstance(fits, int) and row["ranks"] <= fits]
    return merged


def _read(path: Path) -> dict[str, Any]:
    try:
        values = load_yaml(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a cluster file") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: is no YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds no mapping; see config/schemas/cluster.schema.yaml")
    return values


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = load_yaml(_CONFIG / "schemas" / "cluster.schema.yaml")
    return jsonschema.Draft202012Validator(schema)


def _problems(values: dict[str, Any]) -> Iterable[str]:
    for error in sorted(
        _validator().iter_errors(values), key=lambda error: list(map(str, error.absolute_path))
    ):
        where = ".".join(map(str, error.absolute_path)) or "(top)"
        meaning = f" ({error.schema['description']})" if "description" in error.schema else ""
        if error.validator == "anyOf":
            keys = [key for option in error.validator_value for key in option["required"]]
            yield f"{where}: needs one of {', '.join(keys)}"
        else:
            yield f"{where}: {error.message}{meaning}"


def _grid_problems(rows: list[dict[str, float]]) -> list[str]:
    cells = {(row["batch"], row["width"]) for row in rows}
    full = {(batch, width) for batch, _ in cells for _, width in cells}
    missing = sorted(full - cells)
    problems = [
        f"device.flops_by_shape: no row for batch {b:g}, width {w:g}; the grid must be full"
        for b, w in missing
    ]
    if len(cells) < len(rows):
        problems.append("device.flops_by_shape: a batch and width is given twice; allowed: once")
    return problems


def _pair_problems(values: dict[str, Any]) -> list[str]:
    """What is wrong with ``links.pairs``; without ``inside_node`` they must join all devices of the first node."""
    links, place = values["links"], values["devices_per_node"]
    given = [tuple(sorted(row["devices"])) for row in links.get("pairs", [])]
    devices = values["nodes"] * place
    problems = []
    for a, b in dict.fromkeys(given):
        if a == b or b >= devices:
            problems.append(
                f"links.pairs: devices {a} and {b}; allowed: two different ones of 0 to {devices - 1}"
            )
        elif given.count((a, b)) > 1:
            problems.append(f"links.pairs: devices {a} and {b} stand twice; allowed: once")
    if "inside_node" not in links:
        problems += [
            f"links.pairs: no link between devices {a} and {b}; add it, or give links.inside_node for all others"
            for a, b in itertools.combinations(range(place), 2)
            if (a, b) not in given
        ]
    return problems


def _slowest(links: Iterable[Link]) -> Link | None:
    """A link as slow as the slowest ones, in latency and in bandwidth: it governs a ring over all of them."""
    links = list(links)
    if not links:
        return None
    return Link(
        max(link.latency_s for link in links), min(link.bandwidth_bytes_per_s for link in links), shared=False
    )


def _value(values: dict[str, Any], key: str, default: float | None) -> Any:
    return values[key]["value"] if key in values else default


def _link(values: dict[str, Any] | None) -> Link | None:
    if values is None:
        return None
    return Link(
        values["latency_s"]["value"],
        values["bandwidth_bytes_per_s"]["value"],
        values.get("per", "node") == "node",
    )
