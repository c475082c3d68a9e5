"""Short in-process runs on scikit-learn's digits, for tests of methods."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from implementations import record, registry
from implementations.clock import Clock
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.harness import Run
from implementations.point import Point
from implementations.progress import Bar
from implementations.run import Job, run_points

METHODS = sorted(registry.load())


def point_of(method: str, workers: int = 1, **changes: Any) -> Point:
    """A point of two short epochs; ``changes`` replace its fields."""
    values: dict[str, Any] = {
        "paper": "averaging",
        "method": method,
        "variant": registry.get(method).variants[0],
        "dataset": "digits",
        "data_size": 480,
        "model": {"name": "fc", "hidden": [16, 12]},
        "workers": workers,
        "evidence": "simulated",
        "seed": 3,
        "epochs": 2,
        "minibatch": 8,
        "lr": 0.2,
    }
    return Point(**(values | changes))


def trained(point: Point, results: Path, communicator: Any = None, **options: Any) -> Run:
    """The run of a point after training, without record or files."""
    make = communicator or (lambda ledger: SimulatedCommunicator(point.workers, ledger, None))
    run = options.get("kind", Run)(point, make, results, Clock(), "")
    run.resume()
    time.sleep(options.get("pause_s", 0))
    run.warm_up()
    run.start_clock()
    run.train(options.get("report_progress", lambda done, total: None))
    run.stop_clock()
    return run


class Killed(Exception):
    """What ends a run in these tests before its time."""


def kill_after(steps: int) -> Callable[[int, int], None]:
    """A report of progress that raises Killed once more than so many steps are done."""

    def kill(done: int, total: int) -> None:
        if done > steps:
            raise Killed

    return kill


def run_job(points: list[Point], job: Job) -> dict[str, str]:
    """The points run by processes of their own; the status of each by its run id."""
    return run_points(points, job, Bar(Console(quiet=True)))


def record_of(job: Job, point: Point) -> dict[str, Any]:
    """What a job's run has left."""
    return record.read(record.record_path(job.results, point.run_id))


def whole_model(run: Run) -> torch.Tensor | None:
    """All weights (P,) of the model that is evaluated, where this process has it."""
    with run.holding.whole() as net:
        return None if net is None else net.theta_wp[0].clone()
