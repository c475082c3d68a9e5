"""Seconds of what one process computes: training steps, matrix products, copies. Runs in the measuring processes.

A step is that of the training loop: the same network code, optimiser, gathering of a minibatch and clock. All steps
are timed in rounds, a block of each at a time, so that seconds in which the machine is slow fall on all of them alike;
the first steps of a block, for which the others have emptied the caches, are not counted. Of each quantity the median
of the blocks' means stands for it; the spread of single steps comes from the interquartile range inside a block, so
that neither an interruption nor the machine's drift counts as variation.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch

from implementations import models
from implementations.clock import Clock
from implementations.cluster.peers import Ranks
from implementations.cluster.shapes import PACE, TINY
from implementations.training import make_optimizer

IQR_OF_NORMAL = 1.349
_DATA_BYTES = 96_000_000  # samples to gather from: beyond any cache, as a real training set
COLD = 2  # steps of a block that are not counted
BLOCKS, BLOCK_S = 9, 0.08
QUICK_BLOCKS, QUICK_BLOCK_S = 3, 0.05


class TrainingStep:
    """One worker's training step as the harness and the sequential method do it, on random samples."""

    def __init__(self, shape: dict[str, Any], x_ni: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(1)
        self.net = models.build(shape["model"], shape["features"], shape["classes"], 1, generator)
        self.minibatch, self.features = shape["minibatch"], shape["features"]
        self.x_ni, self.y_n = x_ni, torch.randint(shape["classes"], (len(x_ni),), generator=generator)
        # small rates: thousands of steps on noise must not lead the weights astray
        options = shape.get("optimizer", {"name": "sgd", "momentum": 0.0})
        lr = 0.01 if options["name"] == "sgd" else 1e-4
        self.optimizer = make_optimizer(self.net, options["name"], lr, options)
        self.clock, self.loss_sum, self.generator = Clock(), torch.zeros(()), generator

    def run(self, steps: int, exchange: Callable[[], Any] | None = None) -> np.ndarray:
        """Seconds (2, steps): of the step without data, and of gathering its minibatch.

        ``exchange``: called between gradient and update, within the step.
        """
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
                if exchange is not None:
                    exchange()
                self.optimizer.step()
            with clock("other"):
                self.loss_sum += loss
            seconds[:, index] = perf_counter() - gathered, gathered - began
        return seconds


def samples(features: int) -> torch.Tensor:
    """Random samples (n, features), more than a cache holds."""
    return torch.rand(max(1000, min(60_000, _DATA_BYTES // (4 * features))), features)


def rows(shapes: list[dict[str, Any]], threads: int, quick: bool, group: Ranks) -> list[dict[str, Any]]:
    """A row of the step table for each shape (``busy_ranks`` is added by the caller)."""
    torch.set_num_threads(threads)
    pools = {features: samples(features) for features in {shape["features"] for shape in shapes}}
    steps = [TrainingStep(shape, pools[shape["features"]]) for shape in shapes]
    blocks, block_s = (QUICK_BLOCKS, QUICK_BLOCK_S) if quick else (BLOCKS, BLOCK_S)
    counts = []
    for step in steps:
        step.run(3)
        step_s = group.slowest(float(step.run(2).sum()) / 2)
        counts.append(min(2000, max(3, int(block_s / step_s))))
    timed: list[list[np.ndarray]] = [[] for _ in steps]
    began, enough_s = perf_counter(), 2 * blocks * block_s * len(steps)
    # on a machine that is not alone a step may take a hundred times as long: three rounds must do then
    for done in range(blocks):
        if done >= 3 and group.slowest(perf_counter() - began) > enough_s:
            break
        for step, count, found in zip(steps, counts, timed, strict=True):
            group.barrier()
            step.run(COLD)
            found.append(step.run(count))
    # seconds (part: step, data; block; step of each rank)
    return [
        _row(shape, step, threads, group.all(np.stack(found, axis=1)))
        for shape, step, found in zip(shapes, steps, timed, strict=True)
    ]


def company(quick: bool, group: Ranks) -> float:
    """What the step ``PACE`` takes while all ranks are busy, over what it takes the first of them alone.

    By turns, so that both are taken at the same pace of the machine.
    """
    torch.set_num_threads(1)
    step = TrainingStep(PACE, samples(PACE["features"]))
    blocks, block_s = (QUICK_BLOCKS, QUICK_BLOCK_S) if quick else (BLOCKS, BLOCK_S)
    step.run(3)
    count = max(3, int(block_s / group.slowest(float(step.run(2).sum()) / 2)))
    alone, together = np.zeros(blocks), np.zeros(blocks)
    for block in range(blocks):
        group.barrier()
        if group.rank == 0:
            step.run(COLD)
            alone[block] = step.run(count)[0].mean()
        else:
            sleep(block_s)  # who waits at the barrier keeps a core busy
        group.barrier()
        step.run(COLD)
        together[block] = step.run(count)[0].mean()
    return float(np.median(group.all(together)) / group.slowest(float(np.median(alone))))


def _row(shape: dict[str, Any], step: TrainingStep, threads: int, seconds: np.ndarray) -> dict[str, Any]:
    step_s, data_s = np.median(seconds.mean(axis=2), axis=1)
    iqr_s = inside_blocks_iqr(seconds[0])
    return {
        "model": shape["label"],
        "model_params": step.net.params_per_worker,
        "flops_per_sample": float(step.net.flops_per_sample),
        "minibatch": shape["minibatch"],
        "threads": threads,
        "step_s": float(step_s),
        "step_sd_s": iqr_s / IQR_OF_NORMAL,
        "step_iqr_s": iqr_s,
        "data_s": float(data_s),
        "repeats": seconds.shape[1],
    }


def inside_blocks_iqr(seconds: np.ndarray) -> float:
    """Median over blocks of the interquartile range of steps; ``seconds`` (block, step)."""
    low, high = np.percentile(seconds, [25, 75], axis=1)
    return float(np.median(high - low))


def device(quick: bool) -> dict[str, Any]:
    """Matrix products by shape, memory bandwidth and the fixed cost of a step, on one thread."""
    torch.set_num_threads(1)

    def rate(batch: int, width: int) -> float:
        a, b = torch.rand(batch, width), torch.rand(width, width)
        out = torch.empty(batch, width)
        return 2 * batch * width * width / best_s(lambda: torch.mm(a, b, out=out), 0.02 if quick else 0.08)

    table = [
        {"batch": batch, "width": width, "flops_per_s": rate(batch, width)}
        for batch in (16, 64, 256)
        for width in (64, 256, 1024)
    ]
    peak = max([rate(1024, 1024), *(row["flops_per_s"] for row in table)])
    step = TrainingStep(TINY, torch.rand(1000, 8))
    step.run(20)
    return {
        "flops_by_shape": table,
        "peak_flops": peak,
        "overhead_s": float(np.median(step.run(200)[0])),
        "memory_bytes_per_s": memory_bytes_per_s(Ranks()),
        "packing_bytes_per_s": packing_bytes_per_s(Ranks()),
    }


def memory_bytes_per_s(group: Ranks) -> float:
    """Bytes read and written per second by one rank's copy while all ranks copy."""
    source, target = torch.rand(16_000_000), torch.empty(16_000_000)
    target.copy_(source)
    group.barrier()
    return 2 * source.nbytes / group.slowest(best_s(lambda: target.copy_(source), 0.3, median=True))


def packing_bytes_per_s(group: Ranks) -> float:
    """Bytes of blocks that a rank cuts out of larger tensors, or puts back into them, in a second, while all ranks do.

    Half the rows of a matrix, cut out flat, put into a smaller one, and back again; training has been at other things
    in between, so that caches hold none of it.
    """
    store, rows = torch.rand(2000, 1000), torch.arange(0, 2000, 2)
    flat, smaller, other = torch.empty(1000, 1000), torch.empty(1000, 1000), torch.zeros(8_000_000)
    seconds = []
    for _ in range(9):
        other.add_(1.0)
        group.barrier()
        began = perf_counter()
        torch.index_select(store, 0, rows, out=flat)
        smaller.copy_(flat)
        flat.copy_(smaller)
        store.index_copy_(0, rows, flat)
        seconds.append(perf_counter() - began)
    return 4 * flat.nbytes / group.slowest(float(np.median(seconds)))


def best_s(work: Callable[[], Any], budget_s: float, median: bool = False) -> float:
    """Seconds of one call: the least (or the median) over calls that fill ``budget_s``, at least five."""
    work()
    seconds: list[float] = []
    while len(seconds) < 5 or sum(seconds) < budget_s:
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return float(np.median(seconds)) if median else min(seconds)
