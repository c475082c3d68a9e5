"""Real workers joined by torch.distributed: NCCL between GPUs, gloo between CPUs. One worker a process.

    torchrun --nproc-per-node 4 ...      dist.init_process_group("nccl"); DistributedCommunicator(Ledger(), "cuda")

Buffers of all-reduces and of exchanges stay on their device; what else a communicator does passes through host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist

from implementations.cluster.algorithms import sum_rows
from implementations.cluster.communicator import Buffers, Communicator, Handle, Links
from implementations.cluster.ledger import Ledger

Message = np.ndarray | torch.Tensor


class DistributedLinks(Links):
    """The processes of a group of torch.distributed; ``device`` is where its backend communicates."""

    def __init__(self, ranks: Sequence[int], group: dist.ProcessGroup | None, device: torch.device) -> None:
        """``ranks``: of the group's members in the world, in the group's order."""
        self._ranks, self._group, self.device = tuple(ranks), group, device
        self.rank, self.size = self._ranks.index(dist.get_rank()), len(self._ranks)

    def _staged(self, values: Message) -> torch.Tensor:
        """The values where the backend can read and write them."""
        tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        return tensor.to(self.device)

    @staticmethod
    def _back(staged: torch.Tensor, values: Message) -> None:
        """What has been received, in the memory that it was wanted in."""
        target = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        if target.data_ptr() != staged.data_ptr():
            target.copy_(staged)

    def allreduce_(self, values: Message, divisor: int) -> None:
        """``iallreduce_``, waited for."""
        self.iallreduce_(values, divisor)()

    def iallreduce_(self, values: Message, divisor: int) -> Callable[[], None]:
        """all_reduce."""
        staged = self._staged(values)
        work = dist.all_reduce(staged, group=self._group, async_op=True)

        def wait() -> None:
            work.wait()
            if divisor != 1:
                staged.div_(divisor)
            self._back(staged, values)

        return wait

    def swap(self, to: int, outgoing: Message, source: int, incoming: Message) -> None:
        """A send and a receive at once; a negative rank is nobody."""
        self.exchange([(to, outgoing)] if to >= 0 else [], [(source, incoming)] if source >= 0 else [])

    def exchange(self, sends: list[tuple[int, Message]], receives: list[tuple[int, Message]]) -> None:
        """``iexchange``, waited for."""
        self.iexchange(sends, receives)()

    def iexchange(
        self, sends: list[tuple[int, Message]], receives: list[tuple[int, Message]]
    ) -> Callable[[], None]:
        """Isend and irecv at once."""
        incoming = [(self._staged(values), values) for _, values in receives]
        orders = [
            dist.P2POp(dist.irecv, staged, self._ranks[source], self._group)
            for (source, _), (staged, _) in zip(receives, incoming)
        ]
        orders += [
            dist.P2POp(dist.isend, self._staged(values), self._ranks[to], self._group) for to, values in sends
        ]
        works = dist.batch_isend_irecv(orders) if orders else []

        def wait() -> None:
            for work in works:
                work.wait()
            for staged, values in incoming:
                self._back(staged, values)

        return wait

    def reduce_scatter(self, values: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Each process sends the others their parts, all at once, and adds what it gets in the order of ranks.

        What crosses the network is what a ring would send; parts may be of unequal size, and a sum has the same bits
        wherever it is taken.
        """
        blocks = np.split(values, np.cumsum(counts)[:-1])
        others = [rank for rank in range(self.size) if rank != self.rank]
        mine = counts[self.rank]
        parts = {rank: np.empty(mine, values.dtype) for rank in others} if mine else {}
        self.exchange([(rank, blocks[rank]) for rank in others if counts[rank]], list(parts.items()))
        if mine:
            parts[self.rank] = blocks[self.rank]
            sum_rows([parts[rank] for rank in range(self.size)], out)

    def allgather(self, values: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Each process sends its part to the others, all at once: parts may be of unequal size."""
        blocks = np.split(out, np.cumsum(counts)[:-1])
        others = [rank for rank in range(self.size) if rank != self.rank]
        blocks[self.rank][:] = values
        sends = [(rank, values) for rank in others] if counts[self.rank] else []
        self.exchange(sends, [(rank, blocks[rank]) for rank in others if counts[rank]])

    def bcast_(self, values: np.ndarray, root: int) -> None:
        """Broadcast."""
        staged = self._staged(values)
        dist.broadcast(staged, self._ranks[root], group=self._group)
        self._back(staged, values)

    def control(self, values: np.ndarray, largest: bool) -> np.ndarray:
        """all_reduce into a new array."""
        staged = self._staged(values.copy())
        dist.all_reduce(staged, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self._group)
        return staged.cpu().numpy()

    def barrier(self) -> None:
        """Barrier."""
        dist.barrier(group=self._group)

    def subgroup(self, ranks: Sequence[int], tag: int) -> Links:
        """NotImplementedError: all processes of the world must make a group; ``split`` has them do so."""
        raise NotImplementedError

    def free(self) -> None:
        """Destroy the group."""
        if self._group is not None:
            dist.destroy_process_group(self._group)


class DistributedCommunicator(Communicator):
    """One worker a process of torch.distributed's world, or of a group of it."""

    def __init__(self, ledger: Ledger, device: str | torch.device = "cpu") -> None:
        """``device``: where the backend communicates: "cuda" for NCCL, "cpu" for gloo."""
        world = range(dist.get_world_size())
        super().__init__(ledger, world, DistributedLinks(world, None, torch.device(device)))

    def allreduce_(self, buffers: Buffers, op: str = "mean", algorithm: str = "library") -> None:
        """As ``Communicator.allreduce_`` by the library; on any device."""
        if algorithm != "library":
            super().allreduce_(buffers, op, algorithm)
        else:
            self.iallreduce_(buffers, op).wait()

    def iallreduce_(self, buffers: Buffers, op: str = "mean") -> Handle:
        """As ``Communicator.iallreduce_``; on any device."""
        (buffer,) = buffers
        kind = self.kind("iallreduce", "library", buffer.nbytes, buffer.itemsize)
        if self.size == 1:
            return Handle()
        with self.ledger.call():
            place = self.ledger.issue(kind)
            wait = self.links.iallreduce_(buffer.detach(), 1 if op == "sum" else self.size)

        def finish() -> None:
            with self.ledger.call():
                wait()
                self.ledger.finish(place)

        return Handle(finish)

    def message(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor.detach()

    def split(self, color: Sequence[int]) -> dict[int, Communicator]:
        """As ``Communicator.split``; called by all processes of the world, which make all groups together."""
        colors = tuple(map(int, color))
        if len(colors) != self.size:
            raise ValueError(f"split: {len(colors)} colors for {self.size} workers")
        if colors not in self._splits:
            number, found = len(self._splits), {}
            for value in sorted(set(colors) - {-1}):
                members = [self.workers[r] for r, other in enumerate(colors) if other == value]
                group = dist.new_group(members)
                if self.workers[self.hosted[0]] in members:
                    found[value] = self._of_group(members, group, f"{self.label}/{number}:{value}")
            self._splits[colors] = found
        return dict(self._splits[colors])

    def _of_group(self, members: list[int], group: dist.ProcessGroup, label: str) -> Communicator:
        one = object.__new__(type(self))
        links = DistributedLinks(members, group, self.links.device)
        Communicator.__init__(one, self.ledger, range(len(members)), links, members, (0,), label)
        return one
