"""Direct messages of fixed sizes between the workers of a group, started and waited for: what a reshard needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from implementations.cluster.communicator import Communicator
from implementations.cluster.volume import Messages, direct_op

Pair = tuple[int, int]  # (source, target)
Received = Mapping[Pair, torch.Tensor]


class Exchange:
    """Messages between pairs of workers whose shapes are known beforehand, the same on all processes."""

    def __init__(
        self,
        comm: Communicator,
        shapes: Mapping[Pair, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        """``shapes`` has the pairs of workers that have something to send; not empty. Pairs are sorted.

        What a worker has for itself is handed over, as alltoall does; a group of one books nothing and takes no
        time of communication.
        ``device``: where received tensors are made; by default torch's own default.
        """
        self._comm, self._dtype, self._device = comm, dtype, device
        self._shapes = {pair: shapes[pair] for pair in sorted(shapes)}
        sizes = Messages(
            tuple(
                (source, target, math.prod(shape) * dtype.itemsize)
                for (source, target), shape in self._shapes.items()
            )
        )
        self._kind = comm.kind(direct_op(sizes), "direct", sizes, dtype.itemsize)
        here = set(comm.hosted)
        self.sends = [pair for pair in self._shapes if pair[0] in here]
        self._far = [pair for pair in self.sends if pair[1] not in here]
        self._receives = [pair for pair in self._shapes if pair[1] in here]

    def start(self, blocks: Mapping[Pair, torch.Tensor]) -> Callable[[], Received]:
        """Send ``blocks``, one for each of ``sends``; the function returned waits for what hosted workers get.

        A process that hosts both ends of a pair hands the block over as it is, without a copy. Blocks belong to the
        exchange until the wait is over.
        """
        comm, ledger = self._comm, self._comm.ledger
        if comm.size == 1:
            return lambda: blocks
        with ledger.call():
            place = ledger.issue(self._kind)
            received, outgoing, incoming = {}, [], []
            for pair in self._receives:
                if pair in blocks:
                    received[pair] = blocks[pair]
                    continue
                received[pair] = torch.empty(self._shapes[pair], dtype=self._dtype, device=self._device)
                if comm.links is not None:
                    incoming.append((comm.owners[pair[0]], comm.message(received[pair])))
            if comm.links is not None:
                outgoing = [(comm.owners[pair[1]], comm.message(blocks[pair])) for pair in self._far]
            wait = comm.links.iexchange(outgoing, incoming) if outgoing or incoming else None
            ledger.handed_bytes += sum(values.nbytes for _, values in outgoing)

        def finish() -> Received:
            with ledger.call():
                if wait is not None:
                    wait()
                ledger.finish(place)
            return received

        return finish
