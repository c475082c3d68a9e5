"""Closed forms of what each worker puts on the wire, by operation and algorithm. Pure arithmetic; GB is 1e9 bytes.

For an all-reduce of P bytes over m workers (derived for the set-up of Su and Chen 2015):

* ring, and the library's own, also called auto (Rabenseifner's halving and doubling sends the same): each worker sends
  and receives ``2 (m-1)/m P``; all together exactly ``2 (m-1) P``, whether or not m divides P.
* butterfly (recursive doubling): each worker sends ``log2(m) P``; m is a power of two.
* tree (binomial, reduce then broadcast) and star (all through worker 0): ``2 (m-1) P`` in all; the star's root alone
  moves ``2 (m-1) P``, half of it in and half out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from implementations.errors import UserError

ALGORITHMS = ("library", "ring", "butterfly", "tree", "star", "auto")
# What the transport chooses by size. With ``auto`` the time model has more to choose from: what knows of nodes.
BY_SIZE = ("library", "auto")
GB = 10**9


@dataclass(frozen=True)
class Traffic:
    """One call of one operation by a group: bytes and messages of each worker, in the order of the group.

    ``payload_bytes`` is one worker's buffer, the largest where they differ. ``messages`` counts what a worker sends
    by the algorithm's own steps: empty pieces are not sent, and a piece is one message, into however many blocks a
    transport cuts a large one (``algorithms.BLOCK_BYTES``).
    """

    payload_bytes: int
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    messages: tuple[int, ...]


@dataclass(frozen=True)
class Messages:
    """Direct messages: (source, destination, bytes) each, at most one a pair; pairs that are not named send nothing.

    In place of a matrix of all pairs, of which a thousand workers have a million.
    """

    sizes: tuple[tuple[int, int, int], ...]


def traffic(
    op: str,
    algorithm: str,
    payload: int | Sequence[int] | Sequence[Sequence[int]] | Messages,
    group_size: int,
    *,
    itemsize: int = 4,
    root: int = 0,
    destination: Sequence[int] | None = None,
) -> Traffic:
    """What ``op`` by ``algorithm`` costs a group of ``group_size`` workers.

    Args:
        op: allreduce | iallreduce | reduce_scatter | allgather | alltoall | scatter | gather | bcast | permute | mix |
            barrier.
        algorithm: one of ``ALGORITHMS`` for an all-reduce; the other operations have one form each: reduce_scatter and
            allgather that of the ring, bcast that of the binomial tree, the others direct messages.
        payload: bytes of one worker's buffer; for allgather and permute also one number a worker, for reduce_scatter
            also the bytes of each worker's chunk, for alltoall, scatter and gather also the matrix
            [source][destination], or ``Messages``.
        group_size: workers in the group.
        itemsize: bytes of one value; chunks hold whole values.
        root: who has the data before a bcast.
        destination: for permute and mix, who gets each worker's buffer; by default the right neighbour.

    Raises UserError for an unknown operation or algorithm, and for a butterfly of other than 2^k workers.
    """
    m = group_size
    match op:
        case "allreduce" | "iallreduce":
            return _allreduce(algorithm, int(payload), m, itemsize)  # type: ignore[arg-type]
        case "reduce_scatter":
            chunks = (
                _chunk_bytes(payload, m, itemsize) if isinstance(payload, int) else _per_worker(payload, m)
            )
            # the ring ends with chunk r at worker r, which sends every other one
            return _along_ring(sum(chunks), [_all_but(chunks, range(m))])
        case "allgather":
            blocks = _per_worker(payload, m)
            # worker r hands on every block but that of its right neighbour, to whom they go
            return _along_ring(max(blocks), [_all_but(blocks, _right(m))])
        case "alltoall" | "scatter" | "gather":
            return _direct(_messages(payload, m, itemsize), m)
        case "bcast":
            return _tree_bcast(int(payload), m, root)  # type: ignore[arg-type]
        case "permute" | "mix":
            sizes = _per_worker(payload, m)
            to = [(r + 1) % m for r in range(m)] if destination is None else list(destination)
            moved = [size if to[r] != r else 0 for r, size in enumerate(sizes)]
            received = [0] * m
            for r, size in enumerate(moved):
                received[to[r]] += size
            return Traffic(max(sizes), tuple(moved), tuple(received), tuple(int(b > 0) for b in moved))
        case "barrier":
            rounds = (m - 1).bit_length()  # dissemination
            return Traffic(0, (0,) * m, (0,) * m, (rounds,) * m)
    raise UserError(f"operation {op!r}: no closed form of its bytes")


def sent_bytes(
    op: str,
    algorithm: str,
    payload: int | Sequence[int] | Sequence[Sequence[int]] | Messages,
    group_size: int,
    *,
    itemsize: int = 4,
    root: int = 0,
    destination: Sequence[int] | None = None,
) -> list[int]:
    """Bytes that each worker of the group sends; arguments and errors as for ``traffic``."""
    form = traffic(op, algorithm, payload, group_size, itemsize=itemsize, root=root, destination=destination)
    return list(form.sent_bytes)


def direct_op(sizes: Sequence[Sequence[int]] | Messages) -> str:
    """What direct messages of these sizes, [source][destination], amount to: scatter, gather or alltoall."""
    far = [(source, to) for source, to, size in _triples(sizes) if size > 0 and source != to]
    if len({source for source, _ in far}) == 1:
        return "scatter"
    return "gather" if len({to for _, to in far}) == 1 else "alltoall"


def chunk_sizes(total: int, parts: int) -> list[int]:
    """Sizes of ``numpy.array_split``: the first ``total % parts`` chunks are one longer."""
    size, longer = divmod(total, parts)
    return [size + 1] * longer + [size] * (parts - longer)


@dataclass(frozen=True)
class PaperVolume:
    """Traffic of model averaging for one network and cluster (after Su and Chen 2015). Bytes; each way counted once.

    ``sent_bytes_per_reduce`` is what a rank sends, and as much again is what it receives.
    """

    reduces_per_epoch: int
    sent_bytes_per_reduce: float
    total_bytes_per_reduce: int
    butterfly_bytes_per_reduce: int | None  # None: workers is no power of two
    root_bytes_per_reduce: int  # in and out, when all goes through one root
    sent_bytes_per_epoch: float
    total_bytes_per_epoch: int
    bytes_per_frame: float  # sent by a rank, per training frame of its own


def paper_volume_per_epoch(
    frames: int, workers: int, minibatch: int, period: int, params: int, bytes_per_value: int = 4
) -> PaperVolume:
    """What model averaging every ``period`` minibatches moves in an epoch (derived from Su and Chen 2015).

    ``A = floor(frames / (m K M))`` reduces an epoch; each rank sends and receives ``2 (m-1)/m P b`` a reduce (ring or
    Rabenseifner), all ranks together ``2 (m-1) P b``; butterfly ``log2(m) P b`` each way; a root that gathers and
    broadcasts moves ``2 (m-1) P b``. Per training frame ``2 (m-1)/m P b / (K M)``, independent of the data's size.
    """
    m, model_bytes = workers, params * bytes_per_value
    reduces = frames // (m * period * minibatch)
    total = 2 * (m - 1) * model_bytes
    power_of_two = m & (m - 1) == 0
    return PaperVolume(
        reduces_per_epoch=reduces,
        sent_bytes_per_reduce=total / m,
        total_bytes_per_reduce=total,
        butterfly_bytes_per_reduce=(m.bit_length() - 1) * model_bytes if power_of_two else None,
        root_bytes_per_reduce=total,
        sent_bytes_per_epoch=reduces * total / m,
        total_bytes_per_epoch=reduces * total,
        bytes_per_frame=total / m / (period * minibatch),
    )


def check_algorithm(algorithm: str, group_size: int) -> None:
    """Raise UserError unless an all-reduce of ``group_size`` workers can go by ``algorithm``."""
    if algorithm not in ALGORITHMS:
        raise UserError(f"all-reduce algorithm {algorithm!r}; allowed: {', '.join(ALGORITHMS)}")
    if algorithm == "butterfly" and group_size & (group_size - 1):
        raise UserError(
            f"all-reduce algorithm 'butterfly' with {group_size} workers; allowed: a power of two "
            f"(take 'ring' or 'library' for other numbers)"
        )


def tree_children(worker: int, group_size: int) -> list[int]:
    """Children of a worker in the binomial tree rooted at 0, nearest first: r + 2^k for 2^k below r's lowest bit."""
    children, step = [], 1
    while step < group_size and worker % (2 * step) == 0:
        if worker + step < group_size:
            children.append(worker + step)
        step *= 2
    return children


def _allreduce(algorithm: str, payload: int, m: int, itemsize: int) -> Traffic:
    check_algorithm(algorithm, m)
    if m == 1 or payload == 0:
        return Traffic(payload, (0,) * m, (0,) * m, (0,) * m)
    rounds = (m - 1).bit_length()
    if algorithm == "butterfly":
        return Traffic(payload, (rounds * payload,) * m, (rounds * payload,) * m, (rounds,) * m)
    if algorithm == "ring" or algorithm in BY_SIZE:
        chunks = _chunk_bytes(payload, m, itemsize)
        # reduce-scatter: all chunks but one's own; allgather: all but the right neighbour's
        ring = _along_ring(payload, [_all_but(chunks, range(m)), _all_but(chunks, _right(m))])
        if algorithm == "ring":
            return ring
        return Traffic(payload, ring.sent_bytes, ring.received_bytes, (2 * rounds,) * m)
    # up to worker 0 and down again
    fan_out = [len(tree_children(r, m)) for r in range(m)] if algorithm == "tree" else [m - 1] + [0] * (m - 1)
    moved = tuple((fan + (r > 0)) * payload for r, fan in enumerate(fan_out))
    return Traffic(payload, moved, moved, tuple(fan + (r > 0) for r, fan in enumerate(fan_out)))


def _right(m: int) -> list[int]:
    """Each worker's right neighbour on the ring."""
    return [*range(1, m), 0][:m]


def _all_but(pieces: Sequence[int], left_out: Sequence[int]) -> list[tuple[int, int]]:
    """Bytes and number of the pieces, empty ones apart, but for one: which, says ``left_out``, worker by worker.

    From the sums over all: the time is that of m pieces, not of m lists of them.
    """
    total, filled = sum(pieces), sum(piece > 0 for piece in pieces)
    return [(total - pieces[place], filled - (pieces[place] > 0)) for place in left_out]


def _along_ring(payload: int, phases: Sequence[Sequence[tuple[int, int]]]) -> Traffic:
    """In each phase worker r sends so many bytes, in so many pieces, to worker r + 1."""
    totals = tuple(sum(size for size, _ in of_worker) for of_worker in zip(*phases))
    pieces = tuple(sum(count for _, count in of_worker) for of_worker in zip(*phases))
    return Traffic(payload, totals, totals[-1:] + totals[:-1], pieces)


def _tree_bcast(payload: int, m: int, root: int) -> Traffic:
    fan_out = [len(tree_children((r - root) % m, m)) for r in range(m)]
    return Traffic(
        payload,
        tuple(fan * payload for fan in fan_out),
        tuple(0 if r == root else payload for r in range(m)),
        tuple(fan if payload else 0 for fan in fan_out),
    )


def _direct(messages: Messages, m: int) -> Traffic:
    payload, sent, received, count = ([0] * m for _ in range(4))
    for source, to, size in messages.sizes:
        payload[source] += size
        if source != to:  # what a worker keeps is handed over, but not sent
            sent[source] += size
            received[to] += size
            count[source] += size > 0
    return Traffic(max(payload), tuple(sent), tuple(received), tuple(count))


def _chunk_bytes(payload: int, m: int, itemsize: int) -> list[int]:
    elements, rest = divmod(payload, itemsize)
    if rest:
        raise ValueError(f"payload of {payload} bytes holds no whole number of values of {itemsize} bytes")
    return [size * itemsize for size in chunk_sizes(elements, m)]


def _per_worker(payload: int | Sequence, m: int) -> list[int]:
    sizes = [payload] * m if isinstance(payload, int) else [int(size) for size in payload]
    if len(sizes) != m:
        raise ValueError(f"{len(sizes)} payloads for {m} workers")
    return sizes


def _messages(payload: int | Sequence | Messages, m: int, itemsize: int) -> Messages:
    if isinstance(payload, Messages):
        return payload
    matrix = [_chunk_bytes(payload, m, itemsize)] * m if isinstance(payload, int) else payload
    if len(matrix) != m or any(len(row) != m for row in matrix):
        raise ValueError(f"alltoall payload must be {m} x {m} bytes")
    return Messages(tuple(_triples(matrix)))


def _triples(sizes: Sequence[Sequence[int]] | Messages) -> Iterable[tuple[int, int, int]]:
    if isinstance(sizes, Messages):
        return sizes.sizes
    return ((source, to, int(size)) for source, row in enumerate(sizes) for to, size in enumerate(row))


def bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of consecutive chunks of these sizes."""
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    return list(pairwise(edges))
