"""A communicator that moves nothing and books what real workers would send; buffers may be on the meta device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from implementations.cluster.communicator import Buffers, Communicator, Shape
from implementations.cluster.ledger import Ledger
from implementations.cluster.volume import direct_op


class BookedCommunicator(Communicator):
    """``size`` workers of which this process hosts the first; calls are booked and move nothing."""

    def __init__(self, size: int, ledger: Ledger) -> None:
        super().__init__(ledger, range(size))
        self.hosted = (0,)

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

    def alltoall(
        self, blocks: Sequence[Sequence[torch.Tensor]], shapes: Sequence[Sequence[Shape]]
    ) -> list[list[torch.Tensor]]:
        """Book direct messages of these shapes; the first worker receives tensors of its shapes."""
        dtype = blocks[0][0].dtype
        sizes = tuple(tuple(math.prod(shape) * dtype.itemsize for shape in row) for row in shapes)
        with self.ledger.call() as call:
            if self.size > 1:
                call.kind = self.kind(direct_op(sizes), "direct", sizes, dtype.itemsize)
        return [[blocks[0][0].new_empty(tuple(row[0])) for row in shapes]]
