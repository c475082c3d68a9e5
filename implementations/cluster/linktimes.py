"""Seconds of what processes exchange: messages, all-reduces, and what these cost the steps between them.

Runs in the measuring processes. All-reduces go through the communicator that training uses, first in a loop of their
own (``collectives``). In training each is called on a gradient just computed, and the next computation finds other
things in the caches than it left there: what both together take longer is timed on networks of the fixed list
(``refills``), with steps and calls by turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from implementations.cluster.peers import Ranks

LARGE_BYTES = 16_000_000  # a message by which a link's bandwidth shows
SIZES = (4, 4096, 65_536, 262_144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
QUICK_SIZES = (4, 65_536, 1 << 20)
ALGORITHMS = ("library", "ring", "butterfly")


def link(group: Ranks, largest_bytes: int = LARGE_BYTES) -> dict[str, float]:
    """Latency and bandwidth of neighbours in a ring that send and receive at once, by MPI."""
    following, previous = (group.rank + 1) % group.size, (group.rank - 1) % group.size

    def swap(outgoing: np.ndarray, incoming: np.ndarray) -> None:
        group.world.Sendrecv(outgoing, following, recvbuf=incoming, source=previous)

    return _link(group, swap, largest_bytes)


def tasks(group: Ranks, folder: Path) -> dict[str, float]:
    """The same of two processes that are joined as Spark's tasks are, by connections of their own.

    ``folder``: a file in it tells them of each other.
    """
    import torch.distributed as dist

    from implementations.cluster import sockets

    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=group.rank, world_size=group.size
    )
    links = sockets.join()
    following, previous = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    try:
        return _link(
            group, lambda outgoing, incoming: links.swap(following, outgoing, previous, incoming), LARGE_BYTES
        )
    finally:
        sockets.close_all()
        dist.destroy_process_group()


def _link(
    group: Ranks, swap: Callable[[np.ndarray, np.ndarray], None], largest_bytes: int
) -> dict[str, float]:
    def exchange_s(nbytes: int, times: int) -> float:
        outgoing, incoming = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        seconds = []
        for _ in range(5):
            group.barrier()
            began = perf_counter()
            for _ in range(times):
                swap(outgoing, incoming)
            seconds.append((perf_counter() - began) / times)
        return group.slowest(float(np.median(seconds[1:])))

    latency_s = exchange_s(4, 200)
    return {
        "latency_s": latency_s,
        "bandwidth_bytes_per_s": largest_bytes / max(exchange_s(largest_bytes, 3) - latency_s, 1e-9),
    }


def collectives(
    sizes: Sequence[int], quick: bool, group: Ranks, algorithms: Sequence[str] = ALGORITHMS
) -> list[dict[str, Any]]:
    """All-reduce (mean, as training calls it) by algorithm and size; a butterfly of a power of two of ranks only."""
    import torch

    comm = _communicator(group)
    if group.size & (group.size - 1):
        algorithms = [name for name in algorithms if name != "butterfly"]
    repeats, block_s = (3, 0.02) if quick else (7, 0.04)
    rows = []
    for nbytes in sorted(sizes):
        buffer = torch.zeros(1, nbytes // 4)
        for algorithm in algorithms:
            call = partial(comm.allreduce_, buffer, "mean", algorithm)
            first_s = min(calls_s(call, 1, group) for _ in range(3))
            count = min(500, max(1, int(block_s / first_s)))
            times = repeats if first_s < 0.1 else min(repeats, 3 if first_s > 0.3 else 5)
            seconds = np.array([calls_s(call, count, group) for _ in range(times)])
            rows.append(
                {"op": "allreduce", "algorithm": algorithm, "ranks": group.size, "bytes": nbytes}
                | _summary(seconds)
            )
    return rows


def refills(shapes: Sequence[dict[str, Any]], quick: bool, group: Ranks) -> list[dict[str, Any]]:
    """What a step and an all-reduce of its gradient take longer by turns than each in a loop of its own.

    Without what the slowest of the ranks' steps takes beyond the mean, for which the time model has a term.
    """
    from implementations.cluster import steptimes
    from implementations.cluster.timemodel import expected_max

    comm = _communicator(group)
    repeats, block_s = (3, 0.02) if quick else (9, 0.05)
    rows = []
    for shape in shapes:
        step = steptimes.TrainingStep(shape, steptimes.samples(shape["features"]))
        buffer = step.net.grad_wp
        call = partial(comm.allreduce_, buffer, "mean", "library")
        step.run(3, call)
        count = max(3, int(block_s / group.slowest(float(step.run(3).sum()) / 3)))
        count = round(group.slowest(float(count)))
        found = []
        for _ in range(repeats):
            group.barrier()
            alone = step.run(count)
            group.barrier()
            together = step.run(count, call)
            sd_s = steptimes.inside_blocks_iqr(alone[:1]) / steptimes.IQR_OF_NORMAL
            found.append(
                extra_s(
                    group.slowest(float(together.sum(axis=0).mean())),
                    group.slowest(float(alone.sum(axis=0).mean())),
                    calls_s(call, count, group),
                    expected_max(group.size) * group.slowest(sd_s),
                )
            )
        rows.append({"ranks": group.size, "bytes": buffer.nbytes} | _summary(np.array(found), least=0.0))
    return rows


def extra_s(together_s: float, step_s: float, call_s: float, straggler_s: float) -> float:
    """Seconds of a step with a call in it beyond step, call and the wait for the slowest."""
    return together_s - step_s - call_s - straggler_s


def calls_s(call: Callable[[], Any], count: int, group: Ranks) -> float:
    """Seconds of one of ``count`` calls in a row on the slowest rank, the same number on all."""
    group.barrier()
    began = perf_counter()
    for _ in range(count):
        call()
    return group.slowest((perf_counter() - began) / count)


def _summary(seconds: np.ndarray, least: float = -np.inf) -> dict[str, Any]:
    low, high = np.percentile(seconds, [25, 75])
    return {
        "seconds": max(float(np.median(seconds)), least),
        "iqr_s": float(high - low),
        "repeats": len(seconds),
    }


def _communicator(group: Ranks) -> Any:
    from implementations.cluster.ledger import Ledger
    from implementations.cluster.mpi import MpiCommunicator

    return MpiCommunicator(Ledger(None, keep_times=False), comm=group.world)
