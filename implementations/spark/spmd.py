"""A program run by workers that stay alive and exchange among themselves: simulated ones, or a Spark barrier stage.

``combined`` is the same exchange done in one place, as Spark's driver does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from implementations.cluster.communicator import Communicator
from implementations.spark.program import GATHER, PAIRS, SCATTER_SUM, SUM, Exchange, Handed, Program, State
from implementations.spark.traffic import UPDATE, through_driver, update_only


class Spmd:
    """Steps of the workers that this process hosts, in groups of ``program.workers`` = k.

    Worker r is number r % k of group r // k. The gradients of groups are averaged, block by block. ``driver``: as if
    Spark's driver carried each exchange, which needs all workers in this process.
    """

    def __init__(
        self,
        program: Program,
        comm: Communicator,
        theta_wp: torch.Tensor,
        grad_wp: torch.Tensor,
        driver: bool = False,
    ) -> None:
        self._program, self._comm, self._driver, self._grad_wp = program, comm, driver, grad_wp
        self._members = program.workers
        self._weights = [self._views(r, row) for r, row in zip(comm.hosted, theta_wp, strict=True)]
        self._grads = [self._views(r, row) for r, row in zip(comm.hosted, grad_wp, strict=True)]
        self._groups = comm.size // program.workers
        groups = [r // program.workers for r in range(comm.size)]
        self._teams = comm.split(groups) if self._groups > 1 else {0: comm}
        # blocks of equal place in all groups, whose gradients are averaged
        places = [r % program.workers for r in range(comm.size)]
        self._across = comm.split(places) if self._groups > 1 else {}

    def _views(self, worker: int, row_p: torch.Tensor) -> dict[str, torch.Tensor]:
        return self._program.views(worker % self._members, row_p)

    def gradients(self, x_gbi: Sequence[torch.Tensor], y_gb: Sequence[torch.Tensor]) -> torch.Tensor:
        """Gradients of the mean loss over all groups' minibatches, of the blocks held here; communicates.

        The minibatches are those of the hosted workers' groups, in order. Returns the mean over the hosted workers of
        their groups' losses (0-d).
        """
        losses = []
        for (number, team), x_bi, y_b in zip(self._teams.items(), x_gbi, y_gb, strict=True):
            losses += self._of_group(number, team, x_bi, y_b)
        for place, across in self._across.items():
            rows = [self._grad_wp[row] for row in across.rows]
            self._average(across, rows, place)
        if self._driver:
            self._book_update()
        return torch.stack(losses).mean()

    def _of_group(
        self, number: int, team: Communicator, x_bi: torch.Tensor, y_b: torch.Tensor
    ) -> list[torch.Tensor]:
        program = self._program
        states = [State(self._weights[row], self._grads[row], x_bi, y_b) for row in team.rows]
        received: list[Any] = [None] * len(states)
        for segment, exchange in enumerate(program.exchanges):
            handed = [
                program.run(segment, place, state, got)
                for place, state, got in zip(team.hosted, states, received, strict=True)
            ]
            received = [None] * len(states)
            if exchange is not None:
                received = self._exchange(team, exchange, handed, number == 0)
        return [state.loss for state in states]

    def _book_update(self) -> None:
        """By jobs, the one that ends the step."""
        ledger, workers = self._comm.ledger, self._comm.size
        with ledger.call(update_only(workers).book(ledger, UPDATE)):
            pass

    def _exchange(
        self, team: Communicator, exchange: Exchange, handed: list[Handed], booked: bool
    ) -> list[Any]:
        if team.size == 1 or not self._driver:
            return exchange_on(team, exchange, handed)
        with team.ledger.call(self._kind(exchange, team.size, self._groups) if booked else -1):
            return combined(exchange, handed)

    def _kind(self, exchange: Exchange, workers: int, beside: int) -> int:
        """The ledger's number of a job that carries the exchange of all teams of ``workers``, ``beside`` of them."""
        return through_driver(exchange, workers).beside(beside).book(self._comm.ledger, exchange.kind)

    def _average(self, across: Communicator, rows: list[torch.Tensor], place: int) -> None:
        if not self._driver:
            across.allreduce_(rows, "mean")
            return
        exchange = Exchange(SUM, tuple(rows[0].shape))
        kind = self._kind(exchange, across.size, self._members) if place == 0 else -1
        with across.ledger.call(kind):
            for row, total in zip(rows, combined(exchange, rows), strict=True):
                torch.div(total, across.size, out=row)


def exchange_on(comm: Communicator, exchange: Exchange, handed: Sequence[Handed]) -> list[Any]:
    """Carry out an exchange among a group's workers: what hosted ones hand over, to what they receive."""
    if comm.size == 1:
        return [{} if exchange.kind == PAIRS else one for one in handed]
    if exchange.kind == GATHER:
        joined = comm.allgather([_front(part, exchange.axis) for part in handed], list(exchange.sizes))
        return [whole.movedim(0, exchange.axis) for whole in joined]
    if exchange.kind == SCATTER_SUM:
        wholes = [_front(whole, exchange.axis) for whole in handed]
        parts = comm.reduce_scatter(wholes, "sum", list(exchange.sizes))
        return [part.movedim(0, exchange.axis) for part in parts]
    if exchange.kind == PAIRS:
        return _pairs_on(comm, exchange, handed)
    sums = [whole.clone(memory_format=torch.contiguous_format) for whole in handed]
    comm.allreduce_(sums, "sum")
    return sums


def combined(exchange: Exchange, handed: Sequence[Handed]) -> list[Any]:
    """The same in one place, given what all workers of a group hand over. Sums are taken in the workers' order."""
    workers = range(len(handed))
    if exchange.kind == PAIRS:
        return [{s: handed[s][t] for s in workers if (s, t) in exchange.pairs} for t in workers]
    if exchange.kind == GATHER:
        return [torch.cat(list(handed), exchange.axis)] * len(handed)
    total = handed[0].clone()
    for other in handed[1:]:
        total += other
    if exchange.kind == SUM:
        return [total] * len(handed)
    return list(total.split(list(exchange.sizes), exchange.axis))


def _front(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The tensor with ``axis`` first, in one piece of memory."""
    return tensor.movedim(axis, 0).contiguous()


def _pairs_on(comm: Communicator, exchange: Exchange, handed: Sequence[Handed]) -> list[Any]:
    everyone = range(comm.size)
    first = next((part for parts in handed for part in parts.values()), torch.empty(0))
    nothing = first.new_empty(0)
    blocks = [
        [handed[i][t].contiguous() if (s, t) in exchange.pairs else nothing for t in everyone]
        for i, s in enumerate(comm.hosted)
    ]
    shapes = [[exchange.pairs.get((s, t), (0,)) for t in everyone] for s in everyone]
    received = comm.alltoall(blocks, shapes)
    return [
        {s: row[s] for s in everyone if (s, t) in exchange.pairs}
        for t, row in zip(comm.hosted, received, strict=True)
    ]
