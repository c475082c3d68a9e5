"""A communicator that moves nothing and books what real workers would send; buffers may be on the meta device."""

from __future__ import annotations

from collections.abc import Sequence

from implementations.cluster.communicator import Buffers, Communicator
from implementations.cluster.ledger import Ledger


class BookedCommunicator(Communicator):
    """``size`` workers of which this process hosts the first ones; calls are booked and move nothing."""

    moves = False

    def __init__(self, size: int, ledger: Ledger, hosted: int = 1) -> None:
        super().__init__(ledger, range(size))
        self.hosted = tuple(range(hosted))

    def allreduce_(self, buffers: Buffers, op: str = "mean", algorithm: str = "library") -> None:
        """Book an all-reduce of the first worker's buffer."""
        first = buffers[0]
        with self.ledger.call(self.kind("allreduce", algorithm, first.nbytes, first.itemsize)) as call:
            if self.size == 1:
                call.kind = -1

    def mix_(self, buffers: Buffers, sources: Sequence[int]) -> None:
        """Book a round of pairwise mixing of the first worker's buffer."""
        first = buffers[0]
        with self.ledger.call(self._mix_kind(sources, first.nbytes, first.itemsize)) as call:
            if self.size == 1:
                call.kind = -1
