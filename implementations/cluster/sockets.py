"""Workers joined by plain TCP connections, one between each two: for tasks that are no MPI ranks, as Spark's are.

Raw buffers, no copies, no threads. torch.distributed's gloo takes 0.3 to 0.8 ms for a message of a few bytes between
two processes of one machine, this some hundredths, which is what a step of many small exchanges consists of.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
from collections.abc import Callable, Sequence

import numpy as np
import psutil
import torch.distributed as dist

from implementations.cluster.algorithms import divide_
from implementations.cluster.communicator import Communicator, Links
from implementations.cluster.ledger import Ledger
from implementations.cluster.volume import bounds, chunk_sizes
from implementations.errors import UserError

JOIN_LIMIT_S = 60.0
_TRIES = 400  # to read before this process goes to sleep: most messages come within some microseconds
_BUFFER_BYTES = 4 << 20
_GREETING = struct.Struct("!i16s")
_open: list[socket.socket] = []


class SocketLinks(Links):
    """The processes of a group. Calls of a pair of processes match by their order, also through subgroups."""

    def __init__(self, peers: dict[int, socket.socket], ranks: Sequence[int], me: int) -> None:
        """``peers``: connections by world rank; ``ranks``: world ranks of the group; ``me``: that of this process."""
        self._peers, self._ranks = peers, tuple(ranks)
        self.rank, self.size = self._ranks.index(me), len(self._ranks)

    # The one primitive

    def exchange(self, sends: list[tuple[int, np.ndarray]], receives: list[tuple[int, np.ndarray]]) -> None:
        """All messages at once: what can be written or read is, so that no order of processes can deadlock."""
        outgoing = [(self._peers[self._ranks[to]], memoryview(values).cast("B")) for to, values in sends]
        incoming = [
            (self._peers[self._ranks[source]], memoryview(values).cast("B")) for source, values in receives
        ]
        tries = 0
        while outgoing or incoming:
            moved = False
            outgoing, wrote = _sent(outgoing)
            incoming, read = self._received(incoming)
            moved = wrote or read
            if moved:
                tries = 0
                continue
            tries += 1
            if tries < _TRIES:
                os.sched_yield()
                continue
            select.select([link for link, _ in incoming], [link for link, _ in outgoing], [])

    def _received(
        self, incoming: list[tuple[socket.socket, memoryview]]
    ) -> tuple[list[tuple[socket.socket, memoryview]], bool]:
        """What is still to be read after reading what has come; of each connection in order."""
        left, moved, behind = [], False, set()
        for link, view in incoming:
            if link not in behind:
                try:
                    count = link.recv_into(view)
                except BlockingIOError:
                    count = -1
                except OSError:
                    count = 0
                if count == 0:
                    rank = next(rank for rank, other in self._peers.items() if other is link)
                    raise UserError(f"worker {rank} is gone: its connection has closed")
                moved = moved or count > 0
                view = view[max(count, 0) :]
                if not len(view):
                    continue
                behind.add(link)
            left.append((link, view))
        return left, moved

    # What is made of it

    def iexchange(
        self, sends: list[tuple[int, np.ndarray]], receives: list[tuple[int, np.ndarray]]
    ) -> Callable[[], None]:
        """The same, at once: nothing goes on in the background."""
        self.exchange(_full(sends), _full(receives))
        return lambda: None

    def swap(self, to: int, outgoing: np.ndarray, source: int, incoming: np.ndarray) -> None:
        """A send and a receive at once; a negative rank is nobody."""
        self.exchange(
            _full([(to, outgoing)] if to >= 0 else []), _full([(source, incoming)] if source >= 0 else [])
        )

    def allreduce_(self, values: np.ndarray, divisor: int) -> None:
        """Reduce-scatter and all-gather: each process sums a part. Bytes are those of a ring."""
        parts = bounds(chunk_sizes(values.size, self.size))
        mine = values[slice(*parts[self.rank])]
        total = np.empty_like(mine)
        self._reduce_scatter(values, parts, total)
        divide_(total, divisor)
        mine[:] = total
        self._allgather(values, parts)

    def iallreduce_(self, values: np.ndarray, divisor: int) -> Callable[[], None]:
        """The same, at once."""
        self.allreduce_(values, divisor)
        return lambda: None

    def reduce_scatter(self, values: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Each process is sent its part by all others, and sums in the order of ranks."""
        self._reduce_scatter(values, bounds(counts), out)

    def allgather(self, values: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Each process sends its values to all others."""
        parts = bounds(counts)
        out[slice(*parts[self.rank])] = values
        self._allgather(out, parts)

    def bcast_(self, values: np.ndarray, root: int) -> None:
        """The root sends to all others."""
        others = [rank for rank in range(self.size) if rank != root]
        if self.rank == root:
            self.exchange(_full([(rank, values) for rank in others]), [])
        else:
            self.exchange([], _full([(root, values)]))

    def control(self, values: np.ndarray, largest: bool) -> np.ndarray:
        """Sum, in the order of ranks, or maximum over processes."""
        everyones = np.empty((self.size, values.size), values.dtype)
        self.allgather(values.reshape(-1), [values.size] * self.size, everyones.reshape(-1))
        found = everyones.max(0) if largest else everyones.sum(0)
        return found.reshape(values.shape)

    def barrier(self) -> None:
        """A byte to and from everybody."""
        self.control(np.zeros(1), largest=True)

    def subgroup(self, ranks: Sequence[int], tag: int) -> Links:
        """Links among some of the processes, over the same connections."""
        world = [self._ranks[rank] for rank in ranks]
        return SocketLinks(self._peers, world, self._ranks[self.rank])

    def free(self) -> None:
        """Nothing: the connections are the world's."""

    def _reduce_scatter(self, values: np.ndarray, parts: list[tuple[int, int]], out: np.ndarray) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]
        theirs = {rank: np.empty_like(out) for rank in others}
        self.exchange(
            _full([(rank, values[slice(*parts[rank])]) for rank in others]), _full(list(theirs.items()))
        )
        theirs[self.rank] = values[slice(*parts[self.rank])]
        out[:] = theirs[0]
        for rank in range(1, self.size):
            out += theirs[rank]

    def _allgather(self, values: np.ndarray, parts: list[tuple[int, int]]) -> None:
        """Each process has its part of ``values``, and gets those of the others."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        mine = values[slice(*parts[self.rank])]
        self.exchange(
            _full([(rank, mine) for rank in others]),
            _full([(rank, values[slice(*parts[rank])]) for rank in others]),
        )


def _full(messages: list[tuple[int, np.ndarray]]) -> list[tuple[int, np.ndarray]]:
    """Those that have something in them."""
    return [(rank, values) for rank, values in messages if values.size]


def _sent(
    outgoing: list[tuple[socket.socket, memoryview]],
) -> tuple[list[tuple[socket.socket, memoryview]], bool]:
    """What is still to be written after writing what can be; on each connection in order."""
    left, moved, behind = [], False, set()
    for link, view in outgoing:
        if link not in behind:
            try:
                count = link.send(view)
            except BlockingIOError:
                count = 0
            except OSError as error:
                raise UserError(f"a worker is gone: its connection has closed ({error})") from error
            moved = moved or count > 0
            view = view[count:]
            if not len(view):
                continue
            behind.add(link)
        left.append((link, view))
    return left, moved


def own_address() -> str:
    """The IPv4 address at which other workers reach this process: that which gloo uses, else the loopback's."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface is None:
        return "127.0.0.1"
    known = [one.address for one in psutil.net_if_addrs().get(interface, ()) if one.family == socket.AF_INET]
    if not known:
        raise UserError(
            f"network interface {interface} has no IPv4 address, by which other workers would come"
        )
    return known[0]


def join() -> SocketLinks:
    """Connect all processes of torch.distributed's world, for as long as ``close_all`` is not called.

    UserError where a worker cannot be reached, or does not come.
    """
    host, rank, size = own_address(), dist.get_rank(), dist.get_world_size()
    peers: dict[int, socket.socket] = {}
    with socket.create_server((host, 0), backlog=size) as listener:
        told: list[tuple[str, int, bytes]] = [("", 0, b"")] * size
        dist.all_gather_object(told, (host, listener.getsockname()[1], secrets.token_bytes(16)))
        listener.settimeout(JOIN_LIMIT_S)
        try:
            for other in range(rank):
                address, port, token = told[other]
                link = socket.create_connection((address, port), JOIN_LIMIT_S)
                link.sendall(_GREETING.pack(rank, token))
                peers[other] = link
            while len(peers) < size - 1:
                link, _ = listener.accept()
                link.settimeout(JOIN_LIMIT_S)
                other, token = _GREETING.unpack(link.recv(_GREETING.size, socket.MSG_WAITALL))
                if token != told[rank][2]:
                    link.close()
                    continue
                peers[other] = link
        except OSError as error:
            raise UserError(f"worker {rank} does not reach the others ({error}); is {host} open?") from error
    for link in peers.values():
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        link.setblocking(False)
    _open.extend(peers.values())
    return SocketLinks(peers, range(size), rank)


def close_all() -> None:
    """Close the connections that this process has to other workers."""
    while _open:
        _open.pop().close()


class SocketCommunicator(Communicator):
    """One worker a process of torch.distributed's world, which is needed to find each other only."""

    def __init__(self, ledger: Ledger) -> None:
        links = join()
        super().__init__(ledger, range(links.size), links)
