"""What an epoch's seconds consist of, and what limits a method. Pure arithmetic.

The same prediction is made on the machine as it is, with links of endless bandwidth, and with links that take no time
at all: the differences are what bandwidth and latency cost, whatever cost model predicts. The rest is the workers' own:
computing, and waiting for the slowest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from implementations.cluster.collectives import Link
from implementations.cluster.machine import Cluster

COMPUTE, WAITING, LATENCY, BANDWIDTH, MEMORY, STATISTICS = LIMITS = (
    "compute", "waiting", "latency", "bandwidth", "memory", "statistical efficiency",
)  # fmt: skip


@dataclass(frozen=True)
class Seconds:
    """Of an epoch: computing, waiting for the slowest worker, and what latencies and bandwidths take."""

    compute: float
    waiting: float
    latency: float
    bandwidth: float

    @property
    def all(self) -> float:
        """Nothing of it overlaps: what is hidden counts in none of the parts."""
        return self.compute + self.waiting + self.latency + self.bandwidth

    def times(self, factor: float) -> Seconds:
        """All parts in proportion."""
        return Seconds(*(factor * value for value in dataclasses.astuple(self)))


def endless(cluster: Cluster) -> Cluster:
    """The machine with links that carry any number of bytes at once; latencies and jobs stay."""
    return _relinked(cluster, lambda link: dataclasses.replace(link, bandwidth_bytes_per_s=math.inf))


def instant(cluster: Cluster) -> Cluster:
    """The machine with links, copies and jobs that take no time."""
    made = _relinked(
        cluster, lambda link: dataclasses.replace(link, latency_s=0.0, bandwidth_bytes_per_s=math.inf)
    )
    if made.spark is None:
        return made
    return dataclasses.replace(made, spark=dataclasses.replace(made.spark, job_s=0.0, task_s=0.0))


def _relinked(cluster: Cluster, change: Callable[[Link], Link]) -> Cluster:
    """Every link changed; tables that were measured on the real ones no longer hold."""
    device, spark = cluster.device, cluster.spark
    if device.host_copy is not None:
        device = dataclasses.replace(device, host_copy=change(device.host_copy))
    if spark is not None:
        spark = dataclasses.replace(spark, up_bytes_per_s=math.inf, down_bytes_per_s=math.inf)
    links = {
        name: change(link)
        for name in ("inside_node", "between_nodes", "tasks")
        if (link := getattr(cluster, name)) is not None
    }
    pairs = {devices: change(link) for devices, link in cluster.pairs.items()}
    return dataclasses.replace(
        cluster, device=device, spark=spark, pairs=pairs, collectives={}, refills={}, **links
    )


def split(predict: Callable[[Cluster], tuple[float, float]], cluster: Cluster) -> Seconds:
    """The parts of what ``predict(machine)`` gives: all seconds, and those of waiting among them."""
    (real, waiting), (latencies, _), (bare, bare_waiting) = (
        predict(machine) for machine in (cluster, endless(cluster), instant(cluster))
    )
    # where messages were measured, latency and bandwidth of the links may say more than they took
    communication = max(0.0, real - waiting - (bare - bare_waiting))
    latency = min(communication, max(0.0, latencies - bare))
    return Seconds(real - waiting - communication, waiting, latency, communication - latency)


def limit(
    seconds: Seconds, efficiency: float | None = None, too_much_memory: bool = False
) -> tuple[str, float]:
    """What takes the largest share of the time, and that share.

    ``efficiency``: samples that one worker needs to a target over those that all need here, where that is known; of the
    time to the target the share ``1 - efficiency`` is then lost to statistics, and the others are parts of the rest.
    """
    if too_much_memory:
        return MEMORY, 1.0
    shares = dict(zip(LIMITS, dataclasses.astuple(seconds)))
    total = seconds.all or 1.0
    kept = 1.0 if efficiency is None else min(1.0, efficiency)
    shares = {name: kept * value / total for name, value in shares.items()} | {STATISTICS: 1.0 - kept}
    found = max(shares, key=shares.__getitem__)
    return found, shares[found]


def best(epoch_s: Mapping[int, float], slack: float = 0.01) -> int:
    """The fewest workers whose epoch takes at most ``slack`` longer than the shortest."""
    least = min(epoch_s.values())
    return min(workers for workers, seconds in epoch_s.items() if seconds <= least * (1 + slack))


def ranked(values: Sequence[float | None]) -> list[int | None]:
    """Places from 1, equal values sharing one; None for what is not known."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return [
        None if value is None or math.isnan(value) else 1 + sum(other < value * (1 - 1e-9) for other in known)
        for value in values
    ]


def worker_counts(text: str) -> list[int]:
    """``1-32`` as powers of two with both ends, ``1,6,12`` as they stand; ValueError for anything else."""
    low, dash, high = text.partition("-")
    if dash:
        first, last = int(low), int(high)
        counts = {first, last, *(2**k for k in range(last.bit_length()) if first <= 2**k <= last)}
    else:
        counts = {int(part) for part in text.split(",")}
        first, last = min(counts), max(counts)
    if first < 1 or last < first:
        raise ValueError(text)
    return sorted(counts)
