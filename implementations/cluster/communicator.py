"""The communicator: collective operations of a group of workers, each process hosting one or more of them.

A method calls these with the buffers of the workers that its process hosts and need not know how many those are, nor
whether the others are real. What differs is the transport between processes (``Links``): none, MPI, or another.

Buffers are CPU tensors, either stacked, (W, ...) for W hosted workers, or a list of W tensors. All calls are
collective over the group's processes; the ``control_*`` operations too, and they are not charged to the ledger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch

from implementations.cluster import algorithms
from implementations.cluster.ledger import Ledger
from implementations.cluster.mixing import pattern
from implementations.cluster.volume import BY_SIZE, bounds, chunk_sizes, direct_op, traffic
from implementations.errors import UserError

Buffers = torch.Tensor | Sequence[torch.Tensor]
Shape = Sequence[int]
Rows = np.ndarray | list[np.ndarray]

# What every MPI library reduces rightly. bfloat16 is not among them: one library returns garbage for it.
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8)
_MAX_DIMS = 6
_HEADER = 2 + _MAX_DIMS  # dtype, number of dimensions, sizes


class Links(ABC):
    """What joins the processes of a group: operations on flat C-contiguous NumPy arrays, zero-copy."""

    rank: int  # this process among those of the group
    size: int

    @abstractmethod
    def allreduce_(self, values: np.ndarray, divisor: int) -> None:
        """Sum over processes, divided, in place."""

    @abstractmethod
    def iallreduce_(self, values: np.ndarray, divisor: int) -> Callable[[], None]:
        """The same in the background; the returned function waits for it."""

    @abstractmethod
    def swap(self, to: int, outgoing: np.ndarray, source: int, incoming: np.ndarray) -> None:
        """Send one array while receiving another; ``algorithms.NOBODY`` for neither."""

    @abstractmethod
    def exchange(self, sends: list[tuple[int, np.ndarray]], receives: list[tuple[int, np.ndarray]]) -> None:
        """Many messages at once; those between two processes match in the order of the lists."""

    @abstractmethod
    def iexchange(
        self, sends: list[tuple[int, np.ndarray]], receives: list[tuple[int, np.ndarray]]
    ) -> Callable[[], None]:
        """The same in the background; the returned function waits for all of them."""

    @abstractmethod
    def reduce_scatter(self, values: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """Sum over processes; process p gets ``counts[p]`` values of it."""

    @abstractmethod
    def allgather(self, values: np.ndarray, counts: Sequence[int], out: np.ndarray) -> None:
        """The values of all processes, ``counts[p]`` from process p, one after the other."""

    @abstractmethod
    def bcast_(self, values: np.ndarray, root: int) -> None:
        """The values of process ``root``."""

    @abstractmethod
    def control(self, values: np.ndarray, largest: bool) -> np.ndarray:
        """Sum or maximum over processes, as a new array."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all processes."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int], tag: int) -> Links:
        """Links among some of the processes, called by those alone; ``tag`` keeps subgroups made at once apart."""

    @abstractmethod
    def free(self) -> None:
        """Give back what the links hold; they cannot be used after."""


class Handle:
    """A communication under way."""

    def __init__(self, finish: Callable[[], None] | None = None) -> None:
        self._finish = finish

    def wait(self) -> None:
        """Return when the result is in the buffers; a second call does nothing."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class Communicator:
    """A group of workers, ranks 0 .. ``size``-1. A group of one communicates nothing and books nothing.

    Attributes:
        size: workers in the group.
        hosted: group ranks of the workers that this process hosts, ascending.
        ledger: where calls are booked; shared by the groups of a split.
        workers: world ranks of the group's workers (for the world itself 0 .. size-1).
        rows: where the hosted workers' buffers stand among those of the communicator this one was split from.
        owners: the process (rank in ``links``) that hosts each worker.
        links: what joins the processes; None where there is one.
        label: the group's name in the trace: "world", or "world/0:2" for colour 2 of the first split.
        moves: whether anything is moved; else calls are booked alone, and buffers stay as they are.
        any_device: whether direct messages (all-to-all, permutations) take tensors of other memory than the CPU's.
    """

    moves = True
    any_device = False

    def __init__(
        self,
        ledger: Ledger,
        owners: Sequence[int],
        links: Links | None = None,
        workers: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
        label: str = "world",
    ) -> None:
        """``owners``: the process (rank in ``links``) that hosts each worker, ascending."""
        self.owners, self.links = tuple(owners), links
        self._process = links.rank if links else 0
        self.ledger = ledger
        self.size = len(self.owners)
        self.hosted = tuple(r for r, owner in enumerate(self.owners) if owner == self._process)
        self.workers = tuple(range(self.size) if workers is None else workers)
        self.rows = tuple(range(len(self.hosted)) if rows is None else rows)
        self.label = label
        self._most_hosted = max(Counter(self.owners).values())
        # one worker a process: named algorithms run as real messages
        self._one_each = links is not None and self.owners == tuple(range(links.size))
        self._known_kinds: dict[tuple, int] = {}
        self._scratch: dict[np.dtype, np.ndarray] = {}
        self._splits: dict[tuple[int, ...], dict[int, Communicator]] = {}

    # Operations

    def allreduce_(self, buffers: Buffers, op: str = "mean", algorithm: str = "library") -> None:
        """Replace every worker's buffer by the sum or mean over the group.

        Args:
            buffers: equal shapes on all workers.
            op: "sum" | "mean" (floating point only).
            algorithm: one of ``volume.ALGORITHMS``; "library" and "auto" are MPI's own choice.

        Raises UserError for an algorithm that does not fit or a dtype that MPI does not reduce, ValueError for
        buffers that are not contiguous or not equal in shape.
        """
        rows = self._rows(buffers)
        first = rows[0]
        divisor = self._divisor(op, first.dtype)
        kind = self.kind("allreduce", algorithm, first.nbytes, first.itemsize)
        if self.size == 1:
            return
        with self.ledger.call(kind):
            if not self._one_each:
                self._allreduce_rows_(rows, algorithm, divisor)
            elif algorithm in BY_SIZE:
                self.links.allreduce_(first, divisor)
            else:
                plan = algorithms.schedule(algorithm, self._process, self.size, first.size)
                handed = algorithms.run(plan, first, divisor, self.links.swap, self._scratch_like(first))
                self.ledger.handed_bytes += handed

    def iallreduce_(self, buffers: Buffers, op: str = "mean") -> Handle:
        """``allreduce_`` by the library in the background; the buffers are the caller's again after ``wait``.

        Workers that share a process have the result at once.
        """
        rows = self._rows(buffers)
        first = rows[0]
        divisor = self._divisor(op, first.dtype)
        kind = self.kind("iallreduce", "library", first.nbytes, first.itemsize)
        if self.size == 1:
            return Handle()
        if not self._one_each:
            with self.ledger.call(kind):
                self._allreduce_rows_(rows, "library", divisor)
            return Handle()
        with self.ledger.call():
            place = self.ledger.issue(kind)
            wait = self.links.iallreduce_(first, divisor)

        def finish() -> None:
            with self.ledger.call():
                wait()
                self.ledger.finish(place)

        return Handle(finish)

    def reduce_scatter(
        self, buffers: Buffers, op: str = "sum", lengths: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """The sum or mean of the buffers, cut into one chunk a worker: chunk r for worker r.

        Without ``lengths`` the chunks are those of ``numpy.array_split`` of the flattened buffers, and flat; with them
        worker r gets ``lengths[r]`` rows along dimension 0.
        """
        rows = self._rows(buffers)
        first = rows[0]
        divisor = self._divisor(op, first.dtype)
        tail = () if lengths is None else tuple(buffers[0].shape[1:])
        if lengths is not None and sum(lengths) != len(buffers[0]):
            raise ValueError(f"reduce_scatter: lengths {list(lengths)} of buffers of {len(buffers[0])} rows")
        if self.size == 1:
            return [torch.from_numpy(first.copy()).view(-1, *tail)]
        if lengths is None:
            sizes = chunk_sizes(first.size, self.size)
            payload: int | tuple[int, ...] = first.nbytes
        else:
            sizes = [length * _count(tail) for length in lengths]
            payload = tuple(size * first.itemsize for size in sizes)
        with self.ledger.call(self.kind("reduce_scatter", "library", payload, first.itemsize)):
            chunks = bounds(sizes)
            if self.links is None:
                out = np.empty(first.size, first.dtype)
                algorithms.sum_rows(rows, out)
            else:
                mine = first if len(rows) == 1 else np.empty(first.size, first.dtype)
                if len(rows) > 1:
                    algorithms.sum_rows(rows, mine)
                counts = self._per_process(sizes)
                out = np.empty(counts[self._process], first.dtype)
                self.links.reduce_scatter(mine, counts, out)
            algorithms.divide_(out, divisor)
            start = chunks[self.hosted[0]][0]
            # copies: a worker's result must not keep the others' alive
            pieces = [out[chunks[r][0] - start : chunks[r][1] - start] for r in self.hosted]
            return [
                torch.from_numpy(piece if len(pieces) == 1 else piece.copy()).view(
                    *((-1,) if lengths is None else (lengths[r], *tail))
                )
                for r, piece in zip(self.hosted, pieces)
            ]

    def allgather(self, buffers: Buffers, lengths: Sequence[int] | None = None) -> list[torch.Tensor]:
        """For each hosted worker all workers' buffers, joined along dimension 0, where they may differ in length.

        Stacked buffers are equal in shape on all workers of the group; those of a list may differ, and then
        ``lengths`` of all workers' buffers spares the small message, off the ledger, that finds them.
        """
        tensors = self._tensors(buffers)
        arrays = [array_of(tensor) for tensor in tensors]
        tail, dtype = tensors[0].shape[1:], tensors[0].dtype
        if any(t.dim() == 0 or t.shape[1:] != tail or t.dtype != dtype for t in tensors):
            raise ValueError(
                "allgather: buffers must agree in dtype and in all dimensions but the first: "
                + _described(tensors)
            )
        if self.size == 1:
            return [tensors[0].detach().clone()]
        with self.ledger.call() as call:
            if lengths is None and isinstance(buffers, torch.Tensor):
                lengths = [len(tensors[0])] * self.size
            elif lengths is None:
                lengths = self._gathered([[len(tensor)] for tensor in tensors])[:, 0].tolist()
            width = int(np.prod(tail, dtype=np.int64))
            sizes = [length * width for length in lengths]
            itemsize = arrays[0].itemsize
            call.kind = self.kind("allgather", "library", tuple(size * itemsize for size in sizes), itemsize)
            joined = torch.empty((sum(lengths), *tail), dtype=dtype)
            out = joined.numpy().reshape(-1)
            if self.links is None:
                np.concatenate(arrays, out=out)
            else:
                mine = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
                self.links.allgather(mine, self._per_process(sizes), out)
            return [joined, *(joined.clone() for _ in self.hosted[1:])]

    def alltoall(
        self,
        blocks: Sequence[Sequence[torch.Tensor]],
        shapes: Sequence[Sequence[Shape]] | None = None,
    ) -> list[list[torch.Tensor]]:
        """``blocks[hosted][destination]`` go to their destinations; returns ``received[hosted][source]``, new tensors.

        All blocks have one dtype; shapes are free. ``shapes[source][destination]``, of the whole group, spares the
        small message, off the ledger, that tells receivers what is to come. Where one worker alone sends, or gets,
        anything, the ledger calls it a scatter, or a gather.
        """
        if len(blocks) != len(self.hosted) or any(len(row) != self.size for row in blocks):
            raise ValueError(
                f"alltoall: needs {self.size} blocks for each of {len(self.hosted)} hosted workers"
            )
        if self.size == 1:
            _check(blocks[0][0], self.any_device)
            return [[blocks[0][0].detach().clone()]]
        with self.ledger.call() as call:
            shape_of, dtype = self._announced(blocks, shapes, "alltoall")
            itemsize = dtype.itemsize
            sizes = tuple(tuple(_count(shape) * itemsize for shape in row) for row in shape_of)
            call.kind = self.kind(direct_op(sizes), "direct", sizes, itemsize)
            everyone = range(self.size)
            sends = {(s, d): blocks[i][d] for i, s in enumerate(self.hosted) for d in everyone}
            received = {
                (s, d): blocks[0][0].new_empty(tuple(shape_of[s][d])) for d in self.hosted for s in everyone
            }
            self._move(sends, received)
        return [[received[s, d] for s in everyone] for d in self.hosted]

    def bcast_(self, buffers: Buffers, root: int) -> None:
        """Every worker's buffer becomes that of worker ``root``; equal shapes."""
        rows = self._rows(buffers)
        if not 0 <= root < self.size:
            raise ValueError(f"bcast_: root {root}; allowed: 0 to {self.size - 1}")
        if self.size == 1:
            return
        kind = self.kind("bcast", "library", rows[0].nbytes, rows[0].itemsize, root=root)
        with self.ledger.call(kind):
            source = self.hosted.index(root) if root in self.hosted else 0
            if self.links is not None:
                self.links.bcast_(rows[source], self.owners[root])
            for index, row in enumerate(rows):
                if index != source:
                    row[:] = rows[source]

    def permute(
        self, buffers: Buffers, destination: Sequence[int], shapes: Sequence[Shape] | None = None
    ) -> list[torch.Tensor]:
        """Worker r's buffer goes to worker ``destination[r]``, all at once; returns what hosted workers get, anew.

        Args:
            buffers: stacked means equal shapes on all workers of the group; those of a list may differ.
            destination: a permutation of the ranks.
            shapes: of all workers' buffers; spares the small message, off the ledger, that a list needs.
        """
        self._check_permutation(destination, "permute")
        tensors = self._tensors(buffers)
        if shapes is None and isinstance(buffers, torch.Tensor):
            shapes = [buffers.shape[1:]] * self.size
        with self.ledger.call() as call:
            everyones = None if shapes is None else [[shape] for shape in shapes]
            shape_of, dtype = self._announced([[tensor] for tensor in tensors], everyones, "permute")
            itemsize = dtype.itemsize
            if self.size > 1:
                sizes = tuple(_count(row[0]) * itemsize for row in shape_of)
                to = tuple(destination)
                call.kind = self.kind("permute", "direct", sizes, itemsize, destination=to)
            sends = {(s, destination[s]): tensors[i] for i, s in enumerate(self.hosted)}
            received = {
                (s, d): tensors[0].new_empty(tuple(shape_of[s][0]))
                for s, d in enumerate(destination)
                if d in self.hosted
            }
            self._move(sends, received)
        return [received[destination.index(d), d] for d in self.hosted]

    def mix_(self, buffers: Buffers, sources: Sequence[int]) -> None:
        """Replace each worker r's buffer by the mean of its own and that of worker ``sources[r]``, all at once.

        Args:
            buffers: floating point, equal shapes on all workers.
            sources: a permutation of the ranks (``mixing.partners`` has some), the same on all processes; a worker
                that is its own source keeps its buffer and sends nothing.
        """
        rows = self._rows(buffers)
        first = rows[0]
        self._check_permutation(sources, "mix_")
        _check_mean(first.dtype)
        kind = self._mix_kind(sources, first.nbytes, first.itemsize)
        if self.size == 1:
            return
        with self.ledger.call(kind):
            place = {worker: index for index, worker in enumerate(self.hosted)}
            local, sends, receives = [], [], []
            # by source on both sides, by which the messages of two processes find each other
            for source, target in enumerate(_inverse(sources)):
                if source == target:
                    continue
                if source in place and target in place:
                    local.append((place[target], place[source]))
                elif source in place:
                    sends.append((self.owners[target], place[source]))
                elif target in place:
                    receives.append((self.owners[source], place[target]))
            exchange = self.links.exchange if self.links is not None else None
            self.ledger.handed_bytes += algorithms.mix_rows_(
                rows, local, sends, receives, exchange, self._scratch_like(first), self._most_hosted
            )

    def split(self, color: Sequence[int]) -> dict[int, Communicator]:
        """Groups of the workers of equal colour, in rank order; a negative colour joins none.

        Args:
            color: of every worker of this group, the same on all processes.

        Returns the communicators of the groups with workers hosted here, by colour. The same colours give the same
        communicators again.
        """
        colors = tuple(int(value) for value in color)
        if len(colors) != self.size:
            raise ValueError(f"split: {len(colors)} colors for {self.size} workers")
        if colors not in self._splits:
            number = len(self._splits)
            self._splits[colors] = {
                value: self._group(value, colors, f"{self.label}/{number}:{value}")
                for value in sorted(set(colors))
                if value >= 0 and any(colors[r] == value for r in self.hosted)
            }
        return dict(self._splits[colors])

    def barrier(self) -> None:
        """Wait for all workers of the group."""
        if self.size == 1:
            return
        with self.ledger.call(self.kind("barrier", "library", 0, 1)):
            if self.links is not None:
                self.links.barrier()

    def free(self) -> None:
        """Give back the MPI communicators of this one's splits; only for programs that make thousands of them."""
        for groups in self._splits.values():
            for group in groups.values():
                group.free()
                if group.links is not None:
                    group.links.free()
        self._splits.clear()

    # Control: between processes, off the ledger and the clock

    @property
    def processes(self) -> int:
        """Processes that host the group's workers."""
        return self.links.size if self.links else 1

    @property
    def process(self) -> int:
        """This process's rank among them."""
        return self._process

    def control_sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over processes, in float64; a few numbers, or as many as a model has."""
        return self._control(np.asarray(values, dtype=np.float64), largest=False)

    def control_max(self, values: np.ndarray) -> np.ndarray:
        """Maximum over processes, in float64; integers stay int64 and exact."""
        values = np.asarray(values)
        exact = np.int64 if values.dtype.kind in "iu" else np.float64
        return self._control(values.astype(exact), largest=True)

    def control_bcast(self, values: torch.Tensor) -> torch.Tensor:
        """What the process of worker 0 passes, as a new tensor; the others pass one equal in shape and dtype."""
        values = values.detach().clone(memory_format=torch.contiguous_format)
        if self.links is not None:
            self.links.bcast_(self.message(values), self.owners[0])
        return values

    def control_collect(
        self, buffers: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> list[torch.Tensor] | None:
        """All workers' flat float32 buffers, of ``sizes`` values, on the process of worker 0; None on the others."""
        mine = dict(zip(self.hosted, (buffer.contiguous() for buffer in buffers)))
        if self.links is None:
            return list(mine.values())
        first = self.owners[0]
        if self._process != first:
            self.links.exchange([(first, self.message(mine[r])) for r in self.hosted if sizes[r]], [])
            return None
        like = buffers[0]
        collected = [mine[r] if r in mine else like.new_empty(size) for r, size in enumerate(sizes)]
        far = [(owner, r) for r, owner in enumerate(self.owners) if owner != first and sizes[r]]
        self.links.exchange([], [(owner, self.message(collected[r])) for owner, r in far])
        return collected

    def control_distribute(
        self, buffers: Sequence[torch.Tensor] | None, sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        """The reverse of ``control_collect``: worker 0's process has all workers' flat buffers, the others None."""
        if self.links is None:
            return [buffers[r] for r in self.hosted]
        first = self.owners[0]
        if self._process != first:
            mine = {r: torch.empty(sizes[r]) for r in self.hosted}
            self.links.exchange([], [(first, self.message(mine[r])) for r in self.hosted if sizes[r]])
            return list(mine.values())
        far = [(owner, r) for r, owner in enumerate(self.owners) if owner != first and sizes[r]]
        self.links.exchange([(owner, self.message(buffers[r].contiguous())) for owner, r in far], [])
        return [buffers[r] for r in self.hosted]

    def message(self, tensor: torch.Tensor) -> np.ndarray:
        """A tensor as the links take it; it shares its memory."""
        return array_of(tensor)

    def world_totals(self) -> dict[str, int]:
        """The ledger's totals over all workers, complete also after calls of split groups."""
        return self.ledger.totals(self.control_max)

    def _control(self, values: np.ndarray, largest: bool) -> np.ndarray:
        return values.copy() if self.links is None else self.links.control(values, largest)

    # Parts

    def _rows(self, buffers: Buffers) -> Rows:
        """One flat array a hosted worker, sharing memory with the buffers, equal in shape and dtype."""
        if isinstance(buffers, torch.Tensor):
            self._check_count(buffers.shape[0] if buffers.dim() else -1)
            return array_of(buffers).reshape(len(self.hosted), -1)
        self._check_count(len(buffers))
        first = buffers[0]
        if any(other.shape != first.shape or other.dtype != first.dtype for other in buffers[1:]):
            raise ValueError("buffers of the hosted workers differ in shape or dtype: " + _described(buffers))
        return [array_of(buffer) for buffer in buffers]

    def _tensors(self, buffers: Buffers) -> list[torch.Tensor]:
        tensors = (
            list(buffers.unbind(0)) if isinstance(buffers, torch.Tensor) and buffers.dim() else list(buffers)
        )
        self._check_count(len(tensors))
        return tensors

    def _check_count(self, count: int) -> None:
        if count != len(self.hosted):
            raise ValueError(f"{count} buffers for the {len(self.hosted)} workers that this process hosts")

    def _divisor(self, op: str, dtype: np.dtype) -> int:
        if op == "sum":
            return 1
        if op != "mean":
            raise ValueError(f"reduction {op!r}; allowed: sum, mean")
        _check_mean(dtype)
        return self.size

    def _check_permutation(self, ranks: Sequence[int], op: str) -> None:
        if sorted(ranks) != list(range(self.size)):
            raise ValueError(f"{op}: {list(ranks)} is no permutation of the {self.size} workers of the group")

    def kind(
        self,
        op: str,
        algorithm: str,
        payload: int | tuple,
        itemsize: int,
        root: int = 0,
        destination: tuple[int, ...] | None = None,
    ) -> int:
        """The ledger's number for a call of this group; the closed form is worked out once a kind.

        Arguments as for ``volume.traffic``; for whoever adds an operation to those of this class.
        """
        key = (op, algorithm, payload, itemsize, root, destination)
        kind = self._known_kinds.get(key)
        if kind is None:
            # the other operations have one form each
            name = algorithm if op == "allreduce" else "library"
            form = traffic(
                op, name, payload, self.size, itemsize=itemsize, root=root, destination=destination
            )
            kind = self._known_kinds[key] = self.ledger.kind(op, algorithm, self.label, self.workers, form)
        return kind

    def _mix_kind(self, sources: Sequence[int], payload: int, itemsize: int) -> int:
        return self.kind("mix", pattern(sources), payload, itemsize, destination=_inverse(sources))

    def _allreduce_rows_(self, rows: Rows, algorithm: str, divisor: int) -> None:
        """Inside a process in the algorithm's own order of sums; between processes by the library."""
        links = self.links
        if links is None:
            algorithms.allreduce_rows_(rows, algorithm, divisor)
            return

        def across(values: np.ndarray) -> None:
            links.allreduce_(values, divisor)

        algorithms.allreduce_rows_(rows, algorithm, divisor, across, self._most_hosted)

    def _scratch_like(self, values: np.ndarray) -> np.ndarray:
        """Room for one block of received values, kept between calls."""
        scratch = self._scratch.get(values.dtype)
        if scratch is None:
            count = algorithms.BLOCK_BYTES // values.itemsize
            scratch = self._scratch[values.dtype] = np.empty(count, values.dtype)
        return scratch

    def _per_process(self, sizes: Sequence[int]) -> list[int]:
        """Sums of workers' sizes by hosting process."""
        sums = [0] * self.processes
        for owner, size in zip(self.owners, sizes):
            sums[owner] += size
        return sums

    def _gathered(self, headers: Sequence[Sequence[int]]) -> np.ndarray:
        """A few integers of each hosted worker from all workers of the group: (size, k) int64."""
        mine = np.array(headers, dtype=np.int64)
        if self.links is None:
            return mine
        out = np.empty((self.size, mine.shape[1]), dtype=np.int64)
        counts = self._per_process([mine.shape[1]] * self.size)
        self.links.allgather(mine.reshape(-1), counts, out.reshape(-1))
        return out

    def _announced(
        self,
        blocks: Sequence[Sequence[torch.Tensor]],
        shapes: Sequence[Sequence[Shape]] | None,
        op: str,
    ) -> tuple[Sequence[Sequence[Shape]], torch.dtype]:
        """Shapes of all workers' blocks, [source][block], checked against the hosted ones; and the one dtype."""
        dtype = blocks[0][0].dtype
        for tensor in (tensor for row in blocks for tensor in row):
            _check(tensor, self.any_device)
            if tensor.dim() > _MAX_DIMS:
                raise ValueError(f"{op}: a block of {tensor.dim()} dimensions; allowed: {_MAX_DIMS}")
        if shapes is None:
            headers = [[number for tensor in row for number in _header(tensor)] for row in blocks]
            table = self._gathered(headers).reshape(self.size, -1, _HEADER)
            if (table[:, :, 0] != DTYPES.index(dtype)).any():
                raise ValueError(f"{op}: blocks of several dtypes; send one dtype at a time")
            shapes = [[tuple(entry[2 : 2 + entry[1]].tolist()) for entry in row] for row in table]
        elif len(shapes) != self.size:
            raise ValueError(f"{op}: shapes of {len(shapes)} workers given, the group has {self.size}")
        for row, worker in zip(blocks, self.hosted):
            for tensor, shape in zip(row, shapes[worker], strict=True):
                if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
                    raise ValueError(
                        f"{op}: worker {worker} has a block {_described([tensor])} where {dtype} "
                        f"{tuple(shape)} was announced"
                    )
        return shapes, dtype

    def _move(
        self, sends: dict[tuple[int, int], torch.Tensor], receives: dict[tuple[int, int], torch.Tensor]
    ) -> None:
        """Tensors by (source, destination) to their places: copies inside the process, messages between processes."""
        for pair, target in receives.items():
            if pair in sends:
                target.copy_(sends[pair].detach())
        if self.links is None:
            return
        me, owners = self._process, self.owners
        # both sides list them in one order, by which messages of two processes find each other; empty ones stay away
        outgoing = [
            (owners[d], self.message(tensor))
            for (s, d), tensor in sorted(sends.items(), key=lambda item: item[0])
            if owners[d] != me and tensor.numel()
        ]
        incoming = [
            (owners[s], self.message(tensor))
            for (s, d), tensor in sorted(receives.items(), key=lambda item: item[0])
            if owners[s] != me and tensor.numel()
        ]
        self.links.exchange(outgoing, incoming)
        self.ledger.handed_bytes += sum(values.nbytes for _, values in outgoing)

    def _group(self, color: int, colors: tuple[int, ...], label: str) -> Communicator:
        members = [r for r, value in enumerate(colors) if value == color]
        owners = [self.owners[r] for r in members]
        processes = sorted(set(owners))
        links = None
        if self.links is not None and len(processes) > 1:
            links = self.links.subgroup(processes, tag=sorted(set(colors)).index(color))
        return Communicator(
            self.ledger,
            # without links the one process is called 0
            [processes.index(owner) for owner in owners],
            links,
            workers=[self.workers[r] for r in members],
            rows=[index for index, r in enumerate(self.hosted) if colors[r] == color],
            label=label,
        )


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(np.argsort(permutation).tolist())


def _check_mean(dtype: np.dtype) -> None:
    if dtype.kind != "f":
        raise ValueError(f"the mean of {dtype} values is no {dtype}; take op='sum' and divide")


def _check(tensor: torch.Tensor, any_device: bool = False) -> None:
    if tensor.dtype not in DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise UserError(
            f"cannot communicate {str(tensor.dtype).removeprefix('torch.')} tensors: MPI libraries do not reduce them "
            f"rightly; allowed: {allowed} (convert with .float())"
        )
    if not any_device and tensor.device.type != "cpu":
        raise UserError(f"cannot communicate tensors on {tensor.device}; copy them to the CPU first (.cpu())")
    if not tensor.is_contiguous():
        raise ValueError(
            f"cannot communicate a buffer that is not contiguous (shape {tuple(tensor.shape)}, strides "
            f"{tensor.stride()}): results go into its own memory; pass a contiguous view or .contiguous()"
        )


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's own memory as a flat array."""
    _check(tensor)
    return (tensor.detach() if tensor.requires_grad else tensor).numpy().reshape(-1)


def _header(tensor: torch.Tensor) -> list[int]:
    shape = list(tensor.shape)
    return [DTYPES.index(tensor.dtype), len(shape), *shape, *[0] * (_MAX_DIMS - len(shape))]


def _count(shape: Shape) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _described(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in tensors)
