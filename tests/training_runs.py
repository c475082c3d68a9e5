"""Short in-process runs on scikit-learn's digits, for tests of methods."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from implementations import registry
from implementations.clock import Clock
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.harness import Run
from implementations.point import Point

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


def whole_model(run: Run) -> torch.Tensor | None:
    """All weights (P,) of the model that is evaluated, where this process has it."""
    with run.holding.whole() as net:
        return None if net is None else net.theta_wp[0].clone()
