"""Measures this machine, alone, into a cluster file: training steps, data gathering, collectives, links, roofline.

python -m implementations calibrate --out results/calibration/this-host.yaml [--quick]

Steps are those of the training loop: the same network code, optimiser, gathering of a minibatch and clock, each by
model and minibatch, with one process computing and with every core computing (they share caches and memory). The
collectives run through the MPI communicator that training uses. Each part runs in fresh processes, one thread each
(``python -m implementations.cluster.calibrate --worker``, under mpiexec where there are several).

Of each quantity several blocks are timed; the file has the median of the blocks' means, and the spread of single
steps, estimated from their interquartile range so that a single interruption does not count as variation.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import yaml

from implementations import host, record
from implementations.cluster import launcher, machine, sparktimes
from implementations.errors import UserError


def _plain(width: int, sizes: dict[str, int], minibatch: int) -> dict[str, Any]:
    """Two layers trained by plain SGD."""
    model = {"name": "fc", "hidden": [width, width]}
    return {"label": f"fc-{width}-{width}", "model": model, **sizes, "minibatch": minibatch}


# What is measured whatever the points use: sizes to interpolate between.
DIGITS = {"features": 64, "classes": 10}
IMAGES = {"features": 784, "classes": 10}
FIXED_SHAPES: tuple[dict[str, Any], ...] = (
    _plain(64, DIGITS, 16),
    *(_plain(width, IMAGES, 64) for width in (128, 256, 512, 1024)),
    *(_plain(512, IMAGES, minibatch) for minibatch in (16, 256)),
)
QUICK_SHAPES = FIXED_SHAPES[:2]

_IQR_OF_NORMAL = 1.349
_DATA_BYTES = 96_000_000  # samples to gather from: beyond any cache, as a real training set
_LIMIT_S = 600.0
_QUIET_PERCENT = 15.0


def calibrate(
    out: str | Path,
    quick: bool = False,
    shapes: Sequence[dict[str, Any]] | None = None,
    *,
    settings: dict[str, Any] | None = None,
    spark: bool = False,
    report: Callable[[str], None] = lambda line: print(line, flush=True),
) -> Path:
    """Measure this host and write the cluster file ``out`` atomically; returns its path.

    ``shapes``: what to time besides the fixed list, as ``shapes_of`` gives those of a list of points.
    ``settings``: config's ``launcher``.
    ``spark``: time Spark's jobs too; where it does not start, the file has nothing of them, which is said.
    ``quick``: few sizes and blocks, for a smoke run; the numbers are rough.
    Raises UserError when MPI is missing or a measuring process fails.
    """
    out = Path(out)
    began = perf_counter()
    cores = host.cores()
    wanted = _distinct([*(QUICK_SHAPES if quick else FIXED_SHAPES), *(shapes or [])])
    ranks_for_steps = sorted({min(2, cores), min(cores, 8)} - {1})
    ranks_for_collectives = [2] if quick else sorted({2, 4, *ranks_for_steps})

    launcher.find_launcher(settings)  # rather now than after the first part
    report(f"calibrate: {len(wanted)} models and minibatches on {cores} cores")
    others_percent = psutil.cpu_percent(interval=0.5)
    if others_percent > _QUIET_PERCENT:
        report(
            f"calibrate: other work takes {others_percent:.0f} % of the processor; the numbers will be too slow"
        )
    alone = _measure(
        1, {"shapes": wanted, "quick": quick, "device": True, "threads": sorted({1, cores})}, settings
    )
    steps = [{**row, "busy_ranks": 1} for row in alone["steps"]]
    collectives: list[dict[str, Any]] = []
    link: dict[str, float] = {}
    for ranks in sorted({*ranks_for_steps, *ranks_for_collectives}):
        busy = ranks in ranks_for_steps
        report(f"calibrate: {ranks} ranks" + ("" if ranks <= cores else f" on {cores} cores"))
        part = _measure(
            ranks,
            {
                "shapes": wanted if busy else [],
                "quick": quick,
                "threads": [1],
                "collectives": ranks in ranks_for_collectives,
                "memory": ranks == min(cores, 8),
            },
            settings,
        )
        steps += [{**row, "busy_ranks": ranks} for row in part["steps"]]
        collectives += part["collectives"]
        link = link or part["link"]
        # with every core at work each has less of the memory's bandwidth: that is what training sees
        alone["memory_bytes_per_s"] = part.get("memory_bytes_per_s", alone["memory_bytes_per_s"])
        alone["mpi"] = part["mpi"]

    values = _file(alone, steps, collectives, link, cores, quick, others_percent)
    if spark:
        report(f"calibrate: a Spark session of {sparktimes.SLOTS} slots")
        try:
            values["spark"] = sparktimes.section(quick)
        except UserError as error:
            report(f"calibrate: nothing of Spark: {error}")
    machine.build(values, str(out))  # a file that would not load is never written
    record.write_text(out, yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=180))
    report(f"calibrate: {out} written after {perf_counter() - began:.0f} s")
    return out


def shapes_of(points: Iterable[Any]) -> list[dict[str, Any]]:
    """The distinct training steps of points; the cards of their data sets tell the sizes.

    Steps on sparse inputs are not timed: how long they take depends on the samples. Nor are those of points that are
    not ``timed``.
    """
    from implementations import recipe, registry
    from implementations.data.cards import load_card
    from implementations.models import BUILDERS

    shapes = []
    for point in points:
        method = registry.get(point.method)
        if BUILDERS[point.model["name"]]["inputs"] == "sparse" or not timed(point):
            continue
        sizes = load_card(point.dataset).sizes
        point = method.worker_point(point)
        shapes.append(
            {
                "label": point.step_label,
                "model": dict(point.model),
                "features": math.prod(sizes["input_shape"]),
                "classes": sizes["classes"],
                "minibatch": point.minibatch,
            }
        )
        if point.optimizer != "sgd":
            shapes[-1]["optimizer"] = {"name": point.optimizer, **recipe.settings(point)}
    return _distinct(shapes)


def timed(point: Any) -> bool:
    """Whether a point's step is worth timing by itself.

    Not where its method has a cost model of its own, nor where gradients' norms are taken, which show convergence.
    """
    from implementations import registry

    return not registry.get(point.method).own_cost_model and not point.gradient_norms


def _distinct(shapes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(shape, sort_keys=True) for shape in shapes)]


def _measure(ranks: int, order: dict[str, Any], settings: dict[str, Any] | None) -> dict[str, Any]:
    """What ``ranks`` fresh processes measured. A process that computes with several threads is started with one."""
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        asked, answer = Path(folder) / "order.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(order))
        command = launcher.mpi_command(ranks, settings) if ranks > 1 else []
        command += [
            sys.executable,
            "-m",
            "implementations.cluster.calibrate",
            "--worker",
            str(asked),
            str(answer),
        ]
        environment = launcher.rank_environment(1)
        output, errors, code = launcher._run(command, environment, _LIMIT_S)
        if code != 0 or not answer.is_file():
            last = "\n".join((errors or output).strip().splitlines()[-8:]) or f"exit code {code}"
            raise UserError(
                f"calibrate: {ranks} measuring process(es) failed:\n{last}\n"
                "run `python -m implementations doctor` to see whether MPI works here"
            )
        return json.loads(answer.read_text())


def _file(
    alone: dict[str, Any],
    steps: list[dict[str, Any]],
    collectives: list[dict[str, Any]],
    link: dict[str, float],
    cores: int,
    quick: bool,
    others_percent: float,
) -> dict[str, Any]:
    """The cluster file's values."""
    cpu, memory_gib = host.cpu_model(), psutil.virtual_memory().total / 2**30

    def measured(value: float, what: str) -> dict[str, Any]:
        return {"value": _short(value), "source": what, "how": "measured"}

    variation = float(np.median([row["step_sd_s"] / row["step_s"] for row in steps]))
    return {
        "name": machine.THIS_HOST,
        "description": "This machine, measured" + (" in haste (--quick)" if quick else ""),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": f"{cpu}, {cores} cores, {memory_gib:.0f} GiB memory",
        "source": "python -m implementations calibrate"
        + (" --quick" if quick else "")
        + f"; other work took {others_percent:.0f} % of the processor as it began",
        "nodes": 1,
        "devices_per_node": cores,
        "device": {
            "name": f"one core of {cpu}",
            "kind": "cpu",
            "peak_flops": {
                "float32": measured(alone["peak_flops"], "square matrix product, one thread, best rate")
            },
            "flops_by_shape": [
                {**row, "flops_per_s": _short(row["flops_per_s"])} for row in alone["flops_by_shape"]
            ],
            "memory_bandwidth_bytes_per_s": measured(
                alone["memory_bytes_per_s"], "copy of 64 MB, bytes read and written, all cores at once"
            ),
            "launch_overhead_s": measured(
                alone["overhead_s"], "training step of a network of 8 units, one sample"
            ),
            "step_variation": measured(variation, "median over the step table"),
        },
        "steps": [{key: _short(value) for key, value in row.items()} for row in steps],
        "links": {
            "inside_node": {
                "latency_s": measured(link["latency_s"], "4-byte exchange of two ranks, one way"),
                "bandwidth_bytes_per_s": measured(
                    link["bandwidth_bytes_per_s"], "16 MB exchange of two ranks, each way at once"
                ),
                "per": "device",
            }
        },
        "collectives": [{key: _short(value) for key, value in row.items()} for row in collectives],
        "software": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "mpi4py": version("mpi4py"),
            "mpi": alone["mpi"],
        },
    }


def _short(value: Any) -> Any:
    """Four digits: more would claim what was not measured."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


# What runs in the measuring processes


def _worker(asked: Path, answer: Path) -> None:
    """Carry out an order; the first rank writes the answer."""
    order = json.loads(asked.read_text())
    group = _Ranks()
    quick = order["quick"]
    found: dict[str, Any] = {
        "steps": [
            row for threads in order["threads"] for row in _steps(order["shapes"], threads, quick, group)
        ],
        "collectives": [],
        "link": {},
        "mpi": group.library,
    }
    if order.get("device"):
        found |= _device(quick)
    if order.get("memory"):
        found["memory_bytes_per_s"] = _memory_bytes_per_s(group)
    if order.get("collectives"):
        found["link"] = _link(group)
        found["collectives"] = _collectives(quick, group)
    if group.rank == 0:
        answer.write_text(json.dumps(found))


class _Ranks:
    """The processes that measure together; one alone needs no MPI."""

    def __init__(self) -> None:
        self.world: Any = None
        self.rank, self.size, self.library = 0, 1, "none"
        if any(name in os.environ for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")):
            from mpi4py import MPI

            self.world = MPI.COMM_WORLD
            self.rank, self.size = self.world.rank, self.world.size
            words = MPI.Get_library_version().splitlines()[0].split(",")[0].replace("\x00", "").split()
            self.library = " ".join(words)

    def barrier(self) -> None:
        if self.world is not None:
            self.world.Barrier()

    def slowest(self, seconds: float) -> float:
        return seconds if self.world is None else max(self.world.allgather(seconds))

    def all(self, values: np.ndarray) -> np.ndarray:
        """The values of all ranks, side by side along the last axis."""
        return values if self.world is None else np.concatenate(self.world.allgather(values), axis=-1)


def _steps(shapes: list[dict[str, Any]], threads: int, quick: bool, group: _Ranks) -> list[dict[str, Any]]:
    """A row of the step table for each shape (``busy_ranks`` is added by the caller)."""
    import torch

    torch.set_num_threads(threads)
    rows = []
    pools: dict[int, torch.Tensor] = {}
    for shape in shapes:
        features = shape["features"]
        if features not in pools:
            pools.clear()
            samples = max(1000, min(60_000, _DATA_BYTES // (4 * features)))
            pools[features] = torch.rand(samples, features)
        step = _TrainingStep(shape, pools[features])
        blocks, block_s = (3, 0.05) if quick else (9, 0.12)
        step.run(3)
        step_s = group.slowest(float(step.run(2).sum()) / 2)
        count = min(2000, max(3, int(block_s / step_s)))
        timed: list[np.ndarray] = []
        began = perf_counter()
        # on a machine that is not alone a step may take a hundred times as long: three blocks must do then
        while len(timed) < 3 or (
            len(timed) < blocks and group.slowest(perf_counter() - began) < 2 * blocks * block_s
        ):
            group.barrier()
            timed.append(step.run(count))
        # seconds (part: step, data; block; step of each rank)
        seconds = group.all(np.stack(timed, axis=1))
        median, (low, high) = np.median(seconds.mean(axis=2), axis=1), np.percentile(seconds[0], [25, 75])
        rows.append(
            {
                "model": shape["label"],
                "model_params": step.net.params_per_worker,
                "flops_per_sample": float(step.net.flops_per_sample),
                "minibatch": shape["minibatch"],
                "threads": threads,
                "step_s": float(median[0]),
                "step_sd_s": float((high - low) / _IQR_OF_NORMAL),
                "step_iqr_s": float(high - low),
                "data_s": float(median[1]),
                "repeats": len(timed),
            }
        )
    torch.set_num_threads(1)
    return rows


class _TrainingStep:
    """One worker's training step as the harness and the sequential method do it, on random samples."""

    def __init__(self, shape: dict[str, Any], x_ni: Any) -> None:
        import torch

        from implementations import models
        from implementations.clock import Clock
        from implementations.training import make_optimizer

        generator = torch.Generator().manual_seed(1)
        self.net = models.build(shape["model"], shape["features"], shape["classes"], 1, generator)
        self.minibatch, self.features = shape["minibatch"], shape["features"]
        self.x_ni, self.y_n = x_ni, torch.randint(shape["classes"], (len(x_ni),), generator=generator)
        # small rates: thousands of steps on noise must not lead the weights astray
        options = shape.get("optimizer", {"name": "sgd", "momentum": 0.0})
        lr = 0.01 if options["name"] == "sgd" else 1e-4
        self.optimizer = make_optimizer(self.net, options["name"], lr, options)
        self.clock, self.loss_sum, self.generator = Clock(), torch.zeros(()), generator

    def run(self, steps: int) -> np.ndarray:
        """Seconds (2, steps): of the step without data, and of gathering its minibatch."""
        import torch

        clock = self.clock
        rows = torch.randint(len(self.x_ni), (steps, self.minibatch), generator=self.generator)
        seconds = np.empty((2, steps))
        for index in range(steps):
            began = perf_counter()
            with clock("data"):
                x_wbi = self.x_ni.index_select(0, rows[index]).view(1, -1, self.features)
                y_wb = self.y_n.index_select(0, rows[index]).view(1, -1)
            gathered = perf_counter()
            with clock("compute"):
                loss = self.net.loss_and_grad(x_wbi, y_wb)
                self.optimizer.step()
            with clock("other"):
                self.loss_sum += loss
            seconds[:, index] = perf_counter() - gathered, gathered - began
        return seconds


def _device(quick: bool) -> dict[str, Any]:
    """Matrix products by shape, memory bandwidth and the fixed cost of a step, on one thread."""
    import torch

    def rate(batch: int, width: int) -> float:
        a, b = torch.rand(batch, width), torch.rand(width, width)
        out = torch.empty(batch, width)
        return 2 * batch * width * width / _best_s(lambda: torch.mm(a, b, out=out), 0.02 if quick else 0.08)

    table = [
        {"batch": batch, "width": width, "flops_per_s": rate(batch, width)}
        for batch in (16, 64, 256)
        for width in (64, 256, 1024)
    ]
    peak = max([rate(1024, 1024), *(row["flops_per_s"] for row in table)])
    tiny = {
        "label": "fc-8",
        "model": {"name": "fc", "hidden": [8]},
        "features": 8,
        "classes": 2,
        "minibatch": 1,
    }
    step = _TrainingStep(tiny, torch.rand(1000, 8))
    step.run(20)
    return {
        "flops_by_shape": table,
        "peak_flops": peak,
        "overhead_s": float(np.median(step.run(200)[0])),
        "memory_bytes_per_s": _memory_bytes_per_s(_Ranks()),
    }


def _memory_bytes_per_s(group: _Ranks) -> float:
    """Bytes read and written per second by one rank's copy while all ranks copy."""
    import torch

    source, target = torch.rand(16_000_000), torch.empty(16_000_000)
    target.copy_(source)
    group.barrier()
    return 2 * source.nbytes / group.slowest(_best_s(lambda: target.copy_(source), 0.3, median=True))


def _best_s(work: Callable[[], Any], budget_s: float, median: bool = False) -> float:
    """Seconds of one call: the least (or the median) over calls that fill ``budget_s``, at least five."""
    work()
    seconds: list[float] = []
    while len(seconds) < 5 or sum(seconds) < budget_s:
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return float(np.median(seconds)) if median else min(seconds)


def _link(group: _Ranks) -> dict[str, float]:
    """Latency and bandwidth of neighbours in a ring that send and receive at once."""
    world, following, previous = group.world, (group.rank + 1) % group.size, (group.rank - 1) % group.size

    def exchange_s(nbytes: int, times: int) -> float:
        send, receive = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        seconds = []
        for _ in range(5):
            world.Barrier()
            began = perf_counter()
            for _ in range(times):
                world.Sendrecv(send, following, recvbuf=receive, source=previous)
            seconds.append((perf_counter() - began) / times)
        return group.slowest(float(np.median(seconds[1:])))

    latency_s, large = exchange_s(4, 200), 16_000_000
    return {
        "latency_s": latency_s,
        "bandwidth_bytes_per_s": large / max(exchange_s(large, 3) - latency_s, 1e-9),
    }


def _collectives(quick: bool, group: _Ranks) -> list[dict[str, Any]]:
    """All-reduce (mean, as training calls it) by algorithm and size."""
    import torch

    from implementations.cluster.ledger import Ledger
    from implementations.cluster.mpi import MpiCommunicator

    comm = MpiCommunicator(Ledger(None, keep_times=False), comm=group.world)
    large = [] if quick else [4096, 262_144, 4 << 20, 16 << 20, 64 << 20]
    algorithms = ["library", "ring", *(["butterfly"] if group.size & (group.size - 1) == 0 else [])]
    repeats, block_s = (3, 0.02) if quick else (7, 0.04)
    rows = []
    for nbytes in sorted([4, 65_536, 1 << 20, *large]):
        buffer = torch.zeros(1, nbytes // 4)
        for algorithm in algorithms:
            call = partial(comm.allreduce_, buffer, "mean", algorithm)
            first_s = min(_calls_s(call, 1, group) for _ in range(3))
            count = min(500, max(1, int(block_s / first_s)))
            seconds = np.array([_calls_s(call, count, group) for _ in range(repeats if first_s < 0.1 else 5)])
            low, high = np.percentile(seconds, [25, 75])
            rows.append(
                {
                    "op": "allreduce",
                    "algorithm": algorithm,
                    "ranks": group.size,
                    "bytes": nbytes,
                    "seconds": float(np.median(seconds)),
                    "iqr_s": float(high - low),
                    "repeats": len(seconds),
                }
            )
    return rows


def _calls_s(call: Callable[[], Any], count: int, group: _Ranks) -> float:
    """Seconds of one of ``count`` calls in a row on the slowest rank, the same number on all."""
    group.barrier()
    began = perf_counter()
    for _ in range(count):
        call()
    return group.slowest((perf_counter() - began) / count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One measuring process; started by `calibrate`.")
    parser.add_argument("--worker", nargs=2, metavar=("ORDER", "ANSWER"), type=Path, required=True)
    _worker(*parser.parse_args().worker)
