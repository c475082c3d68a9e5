"""Real workers joined by torch.distributed: NCCL between GPUs, gloo between CPUs. One worker a process.

    torchrun --nproc-per-node 4 ...      dist.init_process_group("nccl"); DistributedCommunicator(Ledger(), "cuda")

All-reduces, broadcasts, pairwise averages and direct messages (exchanges, all-to-all, permutations) work where buffers
are; an all-reduce by a named algorithm, reduce-scatters and all-gathers pass through host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

from implementations.cluster.algorithms import sum_rows
from implementations.cluster.communicator import Buffers, Communicator, Handle, Links
from implementations.cluster.ledger import Ledger
from implementations.cluster.volume import BY_SIZE

Message = np.ndarray | torch.Tensor


class DistributedLinks(Links):
    """The processes of a group of torch.distributed; ``device`` is where its backend communicates.

    None where it has a backend for each device: messages then go from the memory that they are in.
    """

    def __init__(
        self, ranks: Sequence[int], group: dist.ProcessGroup | None, device: torch.device | None
    ) -> None:
        """``ranks``: of the group's members in the world, in the group's order."""
        self._ranks, self._group, self.device = tuple(ranks), group, device
        self.rank, self.size = self._ranks.index(dist.get_rank()), len(self._ranks)

    def _staged(self, values: Message) -> torch.Tensor:
        """The values where the backend can read and write them."""
        tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        return tensor if self.device is None else tensor.to(self.device)

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

    def bcast_(self, values: Message, root: int) -> None:
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

    any_device = True

    def __init__(self, ledger: Ledger, device: str | torch.device | None = "cpu") -> None:
        """``device``: where the backend communicates: "cuda" for NCCL, "cpu" for gloo, None with one for each."""
        world = range(dist.get_world_size())
        place = None if device is None else torch.device(device)
        super().__init__(ledger, world, DistributedLinks(world, None, place))

    def allreduce_(self, buffers: Buffers, op: str = "mean", algorithm: str = "library") -> None:
        """As ``Communicator.allreduce_``; on any device."""
        if algorithm not in BY_SIZE:
            with self._in_host_memory(buffers) as staged:
                super().allreduce_(staged, op, algorithm)
            return
        (buffer,) = buffers
        kind = self.kind("allreduce", algorithm, buffer.nbytes, buffer.itemsize)
        if self.size > 1:
            with self.ledger.call(kind):
                self.links.allreduce_(buffer.detach(), 1 if op == "sum" else self.size)

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

    def reduce_scatter(
        self, buffers: Buffers, op: str = "sum", lengths: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """As ``Communicator.reduce_scatter``; on any device."""
        pieces = super().reduce_scatter([buffers[0].cpu()], op, lengths)
        return [piece.to(buffers[0].device) for piece in pieces]

    def allgather(self, buffers: Buffers, lengths: Sequence[int] | None = None) -> list[torch.Tensor]:
        """As ``Communicator.allgather``; on any device."""
        joined = super().allgather(
            buffers.cpu() if isinstance(buffers, torch.Tensor) else [buffers[0].cpu()], lengths
        )
        return [whole.to(buffers[0].device) for whole in joined]

    def bcast_(self, buffers: Buffers, root: int) -> None:
        """As ``Communicator.bcast_``; on any device."""
        (buffer,) = buffers
        if not 0 <= root < self.size:
            raise ValueError(f"bcast_: root {root}; allowed: 0 to {self.size - 1}")
        if self.size > 1:
            with self.ledger.call(self.kind("bcast", "library", buffer.nbytes, buffer.itemsize, root=root)):
                self.links.bcast_(buffer.detach(), root)

    def mix_(self, buffers: Buffers, sources: Sequence[int]) -> None:
        """As ``Communicator.mix_``; on any device."""
        if buffers[0].device.type == "cpu":
            super().mix_(buffers, sources)
            return
        (buffer,) = buffers
        self._check_permutation(sources, "mix_")
        me = self.hosted[0]
        if self.size == 1:
            return
        with self.ledger.call(self._mix_kind(sources, buffer.nbytes, buffer.itemsize)):
            if sources[me] == me:
                return
            other = torch.empty_like(buffer)
            self.links.exchange([(sources.index(me), buffer)], [(sources[me], other)])
            buffer.add_(other).div_(2)
            self.ledger.handed_bytes += buffer.nbytes

    @staticmethod
    @contextmanager
    def _in_host_memory(buffers: Buffers) -> Iterator[list[torch.Tensor]]:
        """The buffer in CPU memory; what is in there at the end goes back to its device."""
        (buffer,) = buffers
        staged = buffer.detach().cpu()
        yield [staged]
        if staged.data_ptr() != buffer.data_ptr():
            buffer.copy_(staged)

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
