"""What a step's exchanges put on the wire, by closed form: between workers, or through Spark's driver.

Derived, as the paper's own analysis could not be read. One step of model parallelism on k workers, B samples, layers
of n_1 .. n_L units, in values:

* between workers, all-gather and reduce-scatter along a ring: each sends ``(k-1)/k B (sum_l n_l + sum_{l<L} n_l)``;
* through the driver: up ``B (sum_l n_l + k sum_{l<L} n_l)``, down ``B (k sum_l n_l + sum_{l<L} n_l)``.

Through the driver the workers 0 .. k-1 send, and the driver, which stands in the books as worker k, sends to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from implementations.cluster.ledger import Ledger
from implementations.cluster.volume import Traffic, sent_bytes
from implementations.spark.program import GATHER, PAIRS, SCATTER_SUM, Exchange

DRIVER, UPDATE = "driver", "update"
ITEM = 4  # bytes of a value


@dataclass(frozen=True)
class DriverTraffic:
    """Bytes of one exchange through the driver: what each worker sends up, and what each is sent down."""

    up: tuple[int, ...]
    down: tuple[int, ...]

    @property
    def total(self) -> int:
        """All bytes on the wire."""
        return sum(self.up) + sum(self.down)

    def beside(self, groups: int) -> DriverTraffic:
        """Those of so many equal groups in one job, group by group."""
        return DriverTraffic(self.up * groups, self.down * groups)

    def book(self, ledger: Ledger, op: str) -> int:
        """The ledger's number for such a call of workers 0 .. n-1; the driver has the number n there."""
        form = Traffic(
            payload_bytes=max(*self.up, *self.down),
            sent_bytes=(*self.up, sum(self.down)),
            received_bytes=(*self.down, sum(self.up)),
            messages=(*(int(size > 0) for size in self.up), sum(size > 0 for size in self.down)),
        )
        return ledger.kind(op, DRIVER, DRIVER, tuple(range(len(self.up) + 1)), form)


def update_only(workers: int) -> DriverTraffic:
    """The job that ends a step by jobs: last gradients and the update, with nothing to hand over."""
    return DriverTraffic((0,) * workers, (0,) * workers)


def through_driver(exchange: Exchange, workers: int) -> DriverTraffic:
    """Bytes of an exchange that Spark's driver carries: blocks are collected, results handed out."""
    everyone = range(workers)
    return DriverTraffic(
        tuple(ITEM * exchange.values(worker) for worker in everyone),
        tuple(ITEM * exchange.received(worker) for worker in everyone),
    )


def between_workers(exchange: Exchange, workers: int) -> list[int]:
    """Bytes that each worker sends in an exchange among themselves."""
    if workers == 1:
        return [0]
    blocks = (
        [ITEM * math.prod(exchange.block_shape(worker)) for worker in range(workers)]
        if exchange.kind in (GATHER, SCATTER_SUM)
        else []
    )
    if exchange.kind == GATHER:
        return sent_bytes("allgather", "library", blocks, workers)
    if exchange.kind == SCATTER_SUM:
        return sent_bytes("reduce_scatter", "library", blocks, workers)
    if exchange.kind == PAIRS:
        return [ITEM * exchange.values(worker) for worker in range(workers)]
    return sent_bytes("allreduce", "library", ITEM * exchange.values(0), workers)


def step_bytes(exchanges: Sequence[Exchange | None], workers: int, driver: bool) -> int:
    """All bytes on the wire in one step of a group of so many workers."""
    steps = [exchange for exchange in exchanges if exchange is not None]
    if driver:
        return sum(through_driver(exchange, workers).total for exchange in steps)
    return sum(sum(between_workers(exchange, workers)) for exchange in steps)
