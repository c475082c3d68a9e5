"""The Spark side of the benchmarks: executions against each other, against MPI and against pyspark's TorchDistributor.

    python -m benchmarks.spark exchange            prints one JSON list of rows
    mpiexec -n 2 python -m benchmarks.spark mpi    the steps of `against_mpi` on MPI ranks, one JSON list of seconds

Whoever runs it needs Java; a session on local[2] is started once. Steps are timed inside the tasks, the slowest
worker's, so that starting a session or a stage counts only where that is what is measured.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.statistics import compare
from implementations import models, record
from implementations.cluster.launcher import mpi_command, rank_environment
from implementations.cluster.ledger import Ledger
from implementations.cluster.spark import session as spark_session
from implementations.cluster.spark import stage
from implementations.point import Point
from implementations.progress import Bar
from implementations.run import Job, run_points
from implementations.seeds import torch_stream
from implementations.spark import nets
from implementations.spark.spmd import Spmd

RESULTS = Path("results")
RANKS, ROUNDS, LIMIT_S = 2, 5, 300.0
FEATURES, CLASSES = 784, 10
BATCH = 128  # of the group
# Three sizes of each kind of network: (model, steps that are timed).
SIZES: dict[str, list[tuple[dict[str, Any], int]]] = {
    "fc": [({"name": "fc", "hidden": [width] * 2}, steps) for width, steps in ((256, 100), (1024, 20), (4096, 3))],
    "cnn": [
        ({"name": "cnn", "filters": filters, "kernel": 5, "hidden": [width]}, steps)
        for filters, width, steps in (([8, 16], 64, 20), ([32, 64], 256, 5), ([64, 128], 1024, 2))
    ],
    "rnn": [
        ({"name": "rnn", "steps": 28, "hidden": [width]}, steps) for width, steps in ((64, 20), (256, 10), (1024, 2))
    ],
    "lstm": [
        ({"name": "lstm", "steps": 28, "hidden": [width]}, steps) for width, steps in ((64, 20), (256, 5), (1024, 1))
    ],
}  # fmt: skip


@cache
def session() -> spark_session.Session:
    """One session of two tasks, for all benchmarks of a process."""
    return spark_session.start(RANKS, "local", {})


def steps_s(model: dict[str, Any], steps: int, comm: Any) -> float:
    """Seconds of a step of model parallelism over all workers of ``comm``, one of them in this process."""
    torch.set_num_threads(1)
    program = nets.program(model, FEATURES, CLASSES, comm.size, BATCH, "auto")
    full = models.build(model, FEATURES, CLASSES, 1, torch_stream(1, "init"))
    place = comm.hosted[0]
    theta_wp = torch.zeros(1, max(program.params(worker) for worker in range(comm.size)))
    views = program.views(place, theta_wp[0])
    for name, block in program.blocks(place).items():
        views[name].copy_(block.of(full.weights[name][0]))
    grad_wp = torch.zeros_like(theta_wp)
    spmd = Spmd(program, comm, theta_wp, grad_wp)
    stream = torch_stream(2, "samples")
    x_gbi = torch.randn(1, BATCH, FEATURES, generator=stream)
    y_gb = torch.randint(0, CLASSES, (1, BATCH), generator=stream)
    optimizer = torch.optim.SGD([theta_wp], lr=1e-3)
    theta_wp.grad = grad_wp
    spmd.gradients(x_gbi, y_gb)
    comm.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        spmd.gradients(x_gbi, y_gb)
        optimizer.step()
    return (time.perf_counter() - began) / steps


def _in_stage(model: dict[str, Any], steps: int, rank: int) -> float:
    from implementations.cluster.sockets import SocketCommunicator

    return steps_s(model, steps, SocketCommunicator(Ledger()))


def staged_s(model: dict[str, Any], steps: int, workers: int) -> float:
    """The same in a barrier stage of so many tasks."""
    outcome = stage.run_in_barrier(session(), workers, partial(_in_stage, model, steps), LIMIT_S)
    return max(outcome.values)


def speedup() -> list[dict[str, Any]]:
    """Model parallelism over two workers against one, of four kinds of network in three sizes."""
    rows = []
    for kind, sizes in SIZES.items():
        for model, steps in sizes:
            params = models.build(model, FEATURES, CLASSES, 1, torch.Generator()).params_per_worker
            label = f"{kind}, {params:.2g} parameters"
            times = compare(
                lambda m=model, n=steps: staged_s(m, n, RANKS),
                lambda m=model, n=steps: staged_s(m, n, 1),
                rounds=3,
            )
            rows.append({"name": f"{label}: 2 workers against 1", "goal": None, "ranks": RANKS, **times})
    return rows


def against_mpi() -> list[dict[str, Any]]:
    """A step in a barrier stage, by gloo, against the same arithmetic on MPI ranks."""
    rows = []
    for kind in ("fc", "lstm"):
        model, steps = SIZES[kind][1]
        times = compare(
            lambda m=model, n=steps: staged_s(m, n, RANKS),
            lambda m=model, n=steps: _on_ranks(m, n),
            invert=True,
            rounds=ROUNDS,
        )
        name = f"{kind} {model['hidden']}: step in a barrier stage / on MPI ranks"
        rows.append({"name": name, "goal": 2.0, "at_most": True, "ranks": RANKS, **times})
    return rows


def _on_ranks(model: dict[str, Any], steps: int) -> float:
    command = [
        *mpi_command(RANKS, {}),
        sys.executable,
        "-m",
        "benchmarks.spark",
        "mpi",
        json.dumps(model),
        str(steps),
    ]
    done = subprocess.run(
        command,
        env=os.environ | rank_environment(1),
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def _mpi(model: dict[str, Any], steps: int) -> None:
    from mpi4py import MPI

    from implementations.cluster.mpi import MpiCommunicator

    seconds = MPI.COMM_WORLD.allreduce(
        steps_s(model, steps, MpiCommunicator(Ledger(), MPI.COMM_WORLD)), op=MPI.MAX
    )
    if MPI.COMM_WORLD.rank == 0:
        print(seconds)


def exchange() -> list[dict[str, Any]]:
    """Seconds of an exchange: as a Spark job through the driver, against between tasks that stay alive."""
    rows = []
    for width in (64, 512):
        seconds = {}
        # three layers forward and two backward; by jobs a sixth one ends the step
        for execution, epochs, shares in (("barrier", 15, 5), ("job_per_exchange", 2, 6)):
            point = _point({"name": "fc", "hidden": [width] * 2}, epochs, {"execution": execution})
            found = _records(point, 3)
            seconds[execution] = [values["comm_s"] / (shares * values["steps"]) for values in found]
        ratios = sorted(
            slow / fast for slow, fast in zip(seconds["job_per_exchange"], seconds["barrier"], strict=True)
        )
        rows.append(
            {
                "name": f"exchange of fc {width}: barrier against a job each", "goal": 10.0, "ranks": RANKS,
                "ours_s": statistics.median(seconds["barrier"]),
                "reference_s": statistics.median(seconds["job_per_exchange"]),
                "ratio": statistics.median(ratios), "ratio_low": ratios[0], "ratio_high": ratios[-1],
            }
        )  # fmt: skip
    return rows


def start_up() -> list[dict[str, Any]]:
    """What a point costs that finds a session running, against the first one, which starts it (with its data)."""
    point = _point({"name": "fc", "hidden": [64]}, 1, {})
    records = _records(point, 3)
    first = records[0]["session_s"] + records[0]["setup_s"]
    later = [values["setup_s"] for values in records[1:]]
    ratio = first / statistics.median(later)
    return [
        {
            "name": "set-up of a later point of a job against the first", "goal": None, "ranks": RANKS,
            "ours_s": statistics.median(later), "reference_s": first,
            "ratio": ratio, "ratio_low": first / max(later), "ratio_high": first / min(later),
        }
    ]  # fmt: skip


def against_distributor() -> list[dict[str, Any]]:
    """An epoch of data parallelism in a barrier stage against pyspark's TorchDistributor with DDP."""
    rows = []
    for kind in ("fc", "cnn"):
        model, steps = SIZES[kind][1]
        times = compare(
            lambda m=model, n=steps: _data_parallel_s(m, n),
            lambda m=model, n=steps: _distributed_s(m, n),
            rounds=ROUNDS,
        )
        rows.append(
            {"name": f"{kind}: data-parallel steps against DDP", "goal": 1.0, "ranks": RANKS, **times}
        )
    return rows


def _data_parallel_s(model: dict[str, Any], steps: int) -> float:
    outcome = stage.run_in_barrier(session(), RANKS, partial(_replica_steps, model, steps), LIMIT_S)
    return max(outcome.values)


def _replica_steps(model: dict[str, Any], steps: int, rank: int) -> float:
    from implementations.cluster.sockets import SocketCommunicator
    from implementations.spark.replicas import average_

    torch.set_num_threads(1)
    comm = SocketCommunicator(Ledger())
    net = models.build(model, FEATURES, CLASSES, 1, torch_stream(1, "init"))
    x_wbi, y_wb = torch.randn(1, BATCH // RANKS, FEATURES), torch.randint(0, CLASSES, (1, BATCH // RANKS))
    optimizer = torch.optim.SGD([net.theta_wp], lr=1e-3)
    net.theta_wp.grad = net.grad_wp

    def step() -> None:
        net.loss_and_grad(x_wbi, y_wb)
        average_(comm, net.grad_wp, driver=False)
        optimizer.step()

    return _timed(step, steps, comm.barrier)


def _distributed_s(model: dict[str, Any], steps: int) -> float:
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate()  # around the running context, which the distributor asks for
    return TorchDistributor(num_processes=RANKS, local_mode=True, use_gpu=False).run(_ddp_steps, model, steps)


def _ddp_steps(model: dict[str, Any], steps: int) -> float:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module = models.build(model, FEATURES, CLASSES, 1, torch_stream(1, "init")).to_module()
    replica = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    sample = (BATCH // RANKS, FEATURES) if model["name"] == "fc" else (BATCH // RANKS, 1, 28, 28)
    x, labels = torch.randn(sample), torch.randint(0, CLASSES, (BATCH // RANKS,))
    optimizer = torch.optim.SGD(replica.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(replica(x), labels).backward()
        optimizer.step()

    seconds = torch.tensor([_timed(step, steps, dist.barrier)])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    dist.destroy_process_group()
    return float(seconds)


def _timed(step: Callable[[], None], steps: int, barrier: Callable[[], None]) -> float:
    step()
    barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps


def _point(model: dict[str, Any], epochs: int, params: dict[str, Any]) -> Point:
    """Model parallelism over two workers, four steps an epoch."""
    return Point(
        paper="spark", method="spark", variant="model", dataset="digits", model=model, workers=RANKS,
        processes=RANKS, evidence="measured", seed=1, minibatch=128, data_size=1024, epochs=epochs,
        method_params=params,
    )  # fmt: skip


def _records(point: Point, repeats: int) -> list[dict[str, Any]]:
    """Records of a point run so many times in one job; RuntimeError where one of them failed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").symlink_to((RESULTS / "data").resolve())
        points = [dataclasses.replace(point, repeat=repeat) for repeat in range(repeats)]
        run_points(points, Job(Path(folder), {"command": "auto", "args": []}), Bar(Console(quiet=True)))
        found = [record.read(record.record_path(Path(folder), one.run_id)) for one in points]
    failed = [values["reason"] for values in found if values["status"] != "ok"]
    if failed:
        raise RuntimeError(failed[0])
    return found


BENCHMARKS = {
    "exchange": exchange,
    "against_mpi": against_mpi,
    "against_distributor": against_distributor,
    "speedup": speedup,
    "start_up": start_up,
}


if __name__ == "__main__":
    if sys.argv[1] == "mpi":
        _mpi(json.loads(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(BENCHMARKS[sys.argv[1]]()))
