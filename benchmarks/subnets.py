"""The side of the benchmarks that concerns subnets, in one process on one thread, and what the ranks' side needs of it.

python -m benchmarks.subnets subnet_step

Data are noise of the shape that is wanted: neither time nor memory depends on what it says. Batch statistics serve in
evaluation too (``statistics: batch``), so that torch's modules of the same net keep no running ones either.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.alone import point_of
from benchmarks.speech import Steps
from benchmarks.statistics import compare
from implementations import models, registry
from implementations.data.arrays import write_splits
from implementations.data.summary import SPLITS, data_hash, sha256
from implementations.point import Point
from implementations.seeds import numpy_stream, torch_stream

NOISE = "noise"
HELD_OUT = 64  # samples of noise for validation, and for the test
WORKERS = 4  # whose subnets are timed
# Features, hidden layers, classes, minibatch, and steps a turn of the subnet; the small net is that of the default
# experiments, the others are the published ones.
NETS = (
    (1960, [1024], 12, 32, 32),
    (1960, [1024], 12, 128, 16),
    (4096, [4096], 35, 128, 2),
    (4096, [4096, 4096], 35, 128, 2),
)


def point_of_net(method: str, workers: int, hidden: list[int], **changes: Any) -> Point:
    """A measured point that trains a batch-normalised net on noise; ``changes`` replace its fields."""
    values = {
        "dataset": NOISE,
        "model": {"name": "fc_bn", "hidden": hidden, "statistics": "batch"},
        "processes": workers,
        "variant": registry.get(method).variants[0],
        "method_params": {},
    }
    return dataclasses.replace(point_of(method, workers, hidden, "measured"), **(values | changes))


def write_noise(results: Path, features: int, classes: int, samples: int) -> None:
    """Write the data set ``NOISE`` with so many training samples into a results folder."""
    folder = results / "data" / NOISE
    folder.mkdir(parents=True)
    draws = numpy_stream(1, NOISE)
    counts = dict.fromkeys(SPLITS, HELD_OUT) | {"train": samples}
    splits = {
        part: (draws.standard_normal((count, features), dtype="f4"), draws.integers(0, classes, count))
        for part, count in counts.items()
    }
    summary = {"name": NOISE, "kind": NOISE, **write_splits(folder, splits, classes)}
    summary["arrays"] = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in folder.glob("*.npy")
    }
    summary["data_hash"] = data_hash(summary)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


class SubnetSteps(Steps):
    """Training steps by SGD of a described model, ``workers`` of them side by side, on noise."""

    def __init__(
        self, model: dict[str, Any], features: int, classes: int, minibatch: int, workers: int = 1
    ) -> None:
        self.net = models.build(model, features, classes, workers, torch_stream(1, "init"))
        noise = torch_stream(1, "samples")
        self.x_wbi = torch.randn(workers, minibatch, features, generator=noise)
        self.y_wb = torch.randint(0, classes, (workers, minibatch), generator=noise)
        self.net.theta_wp.grad = self.net.grad_wp
        self.optimizer = torch.optim.SGD([self.net.theta_wp], lr=1e-3)


def subnet_step() -> list[dict[str, Any]]:
    """A step of one of four workers' subnets over one of the full net, and of four subnets at once over four steps.

    The first ratio is divided by the subnet's share of the full net's operations: 1 is as fast as these tell.
    """
    rows = []
    for features, hidden, classes, minibatch, calls in NETS:
        point = point_of_net("ist", WORKERS, hidden)
        narrow = registry.get("ist").worker_model(point)
        full, one, stacked = (
            SubnetSteps(model, features, classes, minibatch, workers)
            for model, workers in ((point.model, 1), (narrow, 1), (narrow, WORKERS))
        )
        share = one.net.flops_per_sample / full.net.flops_per_sample
        label, fewer = f"fc_bn {hidden}, minibatch {minibatch}", max(1, calls // WORKERS)
        times = compare(lambda o=one, n=calls: o(n), lambda f=full, n=fewer: f(n), invert=True)
        for key in ("ratio", "ratio_low", "ratio_high"):
            times[key] /= share
        rows.append(
            {
                "name": f"subnet / full / FLOP share {share:.3f}, {label}",
                "goal": 1.5,
                "at_most": True,
                **times,
            }
        )
        times = compare(lambda s=stacked, n=fewer: s(n), lambda o=one, n=calls: WORKERS * o(n), invert=True)
        rows.append(
            {
                "name": f"{WORKERS} subnets at once / one by one, {label}",
                "goal": 1.1,
                "at_most": True,
                **times,
            }
        )
    return rows


def resident_bytes() -> int:
    """Resident memory of this process."""
    return psutil.Process().memory_info().rss


BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {"subnet_step": subnet_step}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(BENCHMARKS[sys.argv[1]]()))
