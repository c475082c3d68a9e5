"""The side of the benchmarks that needs no ranks.

python -m benchmarks.alone simulated 2       (two threads)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.statistics import compare
from implementations import data
from implementations.clock import Clock
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.harness import Run
from implementations.point import Point

RESULTS = Path("results")
SAMPLES = 16_384
MINIBATCH = 64
MANY, MANY_MINIBATCH, MANY_SAMPLES = 1024, 8, 49_152  # workers of a small net, and six steps of theirs


def point_of(
    method: str, workers: int, hidden: list[int], evidence: str = "simulated", **changes: Any
) -> Point:
    """Fashion-MNIST, minibatch 64, averaging every 10 minibatches: the sizes of the default experiments."""
    values: dict[str, Any] = {
        "paper": "averaging",
        "method": method,
        "dataset": "fashion_mnist",
        "data_size": SAMPLES,
        "model": {"name": "fc", "hidden": hidden},
        "workers": workers,
        "evidence": evidence,
        "seed": 1,
        "minibatch": MINIBATCH,
        "method_params": {"sync_period": 10} if method == "averaging" else {},
        "lr": 0.01,
    }
    return Point(**(values | changes))


def _warm_run(point: Point) -> Run:
    run = Run(
        point,
        lambda ledger: SimulatedCommunicator(point.workers, ledger, None),
        RESULTS,
        Clock(),
        "benchmark",
    )
    run.warm_up()
    return run


def train_s(point: Point) -> float:
    """Training seconds of a run through the harness, evaluation aside."""
    run = _warm_run(point)
    run.start_clock()
    run.train(lambda done, total: None)
    return run.clock.training_s


def simulated() -> list[dict[str, Any]]:
    """Training N simulated workers against one worker on the same number of samples."""
    threads = torch.get_num_threads()
    goal = {1: 1.5, 2: 1.3}[threads]
    rows = []
    small = {"minibatch": MANY_MINIBATCH, "data_size": MANY_SAMPLES}
    for workers, hidden, changes in ((4, [512, 512], {}), (32, [512, 512], {}), (MANY, [32, 32], small)):
        many, one = (
            point_of("averaging", workers, hidden, **changes),
            point_of("sequential", 1, hidden, **changes),
        )
        times = compare(lambda p=many: train_s(p), lambda p=one: train_s(p), invert=True)
        rows.append(
            {
                "name": f"{workers} workers / sequential, {threads} threads",
                # of a small net the calls are what costs, and a thousand workers share them
                "goal": {32: goal, MANY: 1.0}.get(workers),
                "at_most": True,
                **times,
            }
        )
    return rows


def harness() -> list[dict[str, Any]]:
    """A run through the harness against the bare loop over the same network, data and optimiser."""
    rows = []
    for hidden in ([128, 128], [512, 512]):
        point = point_of("sequential", 1, hidden)
        times = compare(lambda p=point: train_s(p), lambda p=point: _bare_s(p), invert=True)
        for key in ("ratio", "ratio_low", "ratio_high"):
            times[key] = 1 - 1 / times[key]  # share of the wall that the bare loop does not need
        rows.append({"name": f"harness share of wall, {hidden}", "goal": 0.10, "at_most": True, **times})
    return rows


def _bare_s(point: Point) -> float:
    run = _warm_run(point)
    net, shards = run.net, run.training._shards
    optimizer = run.training.optimizer(point.lr)
    began = time.perf_counter()
    for rows in shards.epoch(1):
        net.loss_and_grad(*shards.take(rows))
        optimizer.step()
    return time.perf_counter() - began


BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {"simulated": simulated, "harness": harness}

if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    data.prepare("fashion_mnist", RESULTS)
    print(json.dumps(BENCHMARKS[sys.argv[1]]()))
