"""All-reduce algorithms by name: one description each, which real ranks carry out and simulated workers reproduce.

``schedule`` says, as plain data, what one worker does round by round: to whom it sends which range of its buffer, and
from whom it receives which range meanwhile. ``run`` carries a schedule out over any way of swapping two ranges.
``allreduce_rows_`` computes the same for workers that share a process: it adds the same numbers in the same order
(so the result has the same bits), without moving any byte twice.

* ring: reduce-scatter and allgather in m-1 neighbour steps each (Patarasuk and Yuan 2009); chunks may be uneven.
* butterfly: recursive doubling, partner = rank XOR 2^k (Su and Chen 2015, drafts); m a power of two.
* tree: binomial reduction to worker 0 and broadcast.   * star: worker 0 receives all, and sends to all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from implementations.cluster.volume import bounds, check_algorithm, chunk_sizes, tree_children

Range = tuple[int, int]
NOBODY = -1
EMPTY: Range = (0, 0)

# Bytes that are reduced and divided, or sent and added, at a time. On two cores, 160 MB as one call and one division
# took 2.5 times as long as in blocks of 1 to 8 MiB, whose values are still in cache when they are divided. But every
# block is a point where ranks meet, and with more ranks than free cores a meeting costs milliseconds: there 1 MiB took
# twice as long as 4 MiB.
BLOCK_BYTES = 1 << 22
# Simulated workers reduce column by column block; a block of all of them should stay in the second-level cache, and a
# row of it should be long enough for the loop over rows to cost nothing.
_CACHE_BYTES = 1 << 21
_SHORTEST_ROW = 8192
# Values of a ring's chunk below which all chunks are added at once: one by one, m of them take m calls each.
_SHORT_CHUNK = 2048


@dataclass(frozen=True, slots=True)
class Round:
    """Send range ``send`` to ``to`` and meanwhile receive range ``receive`` from ``source`` (``NOBODY``: neither)."""

    to: int
    send: Range
    source: int
    receive: Range


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds whose received ranges are added, the range that is then complete here, rounds that overwrite."""

    reduce: tuple[Round, ...]
    owned: Range
    spread: tuple[Round, ...]


@lru_cache(maxsize=256)
def schedule(algorithm: str, worker: int, workers: int, elements: int) -> Schedule:
    """What ``worker`` of ``workers`` does to all-reduce buffers of ``elements`` values. UserError as in ``volume``."""
    check_algorithm(algorithm, workers)
    return _SCHEDULES[algorithm](worker, workers, elements)


def run(
    plan: Schedule,
    buffer: np.ndarray,
    divisor: int,
    swap: Callable[[int, np.ndarray, int, np.ndarray], None],
    scratch: np.ndarray,
) -> int:
    """Carry ``plan`` out on this worker's ``buffer`` in place; returns the bytes handed to ``swap``.

    ``swap(to, outgoing, source, incoming)`` sends one array while it receives another (``NOBODY``: not). ``scratch``
    holds at least one block; ranges longer than it are sent in several, which the ledger counts as one message of the
    algorithm. The sum is divided by ``divisor`` where it first becomes complete.
    """
    width = scratch.size
    nothing = buffer[:0]
    handed = 0
    for step in plan.reduce:
        for send, receive in zip_longest(_blocks(step.send, width), _blocks(step.receive, width)):
            outgoing = buffer[send[0] : send[1]] if send else nothing
            incoming = scratch[: receive[1] - receive[0]] if receive else nothing
            swap(step.to if send else NOBODY, outgoing, step.source if receive else NOBODY, incoming)
            handed += outgoing.nbytes
            if receive:
                target = buffer[receive[0] : receive[1]]
                np.add(target, incoming, out=target)
    for low, high in _blocks(plan.owned, width):
        divide_(buffer[low:high], divisor)
    for step in plan.spread:
        outgoing, incoming = buffer[slice(*step.send)], buffer[slice(*step.receive)]
        if outgoing.size or incoming.size:
            swap(
                step.to if outgoing.size else NOBODY,
                outgoing,
                step.source if incoming.size else NOBODY,
                incoming,
            )
            handed += outgoing.nbytes
    return handed


def allreduce_rows_(
    rows: np.ndarray | Sequence[np.ndarray],
    algorithm: str,
    divisor: int,
    across: Callable[[np.ndarray], None] | None = None,
    most_rows: int = 0,
) -> None:
    """All-reduce the rows (one worker's flat buffer each) in place, in the order of sums that ``algorithm`` has.

    The sum is divided by ``divisor``. ``across``, if given, does that instead: it gets each piece of the rows' sum,
    to add what other processes have and to divide. ``most_rows`` is the largest number of rows in any of these
    processes, so that all of them cut the same pieces; the order of sums is then that of each process's rows.
    """
    count, elements = len(rows), rows[0].size
    stacked = isinstance(rows, np.ndarray)
    if algorithm == "ring" and stacked and across is None and elements < count * _SHORT_CHUNK:
        _ring_of_short_chunks_(rows, divisor)
        return
    width = _row_length(max(count, most_rows), rows[0].itemsize)
    for first, (low, high) in _pieces(algorithm if across is None else "library", count, elements, width):
        block = rows[:, low:high] if stacked else [row[low:high] for row in rows]
        holder = _add_rows_(block, algorithm, first)
        total = block[holder]
        if across is None:
            divide_(total, divisor)
        else:
            across(total)
        if stacked:
            block[:holder] = total
            block[holder + 1 :] = total
        else:
            for index, row in enumerate(block):
                if index != holder:
                    row[:] = total


def mix_rows_(
    rows: np.ndarray | Sequence[np.ndarray],
    local: Sequence[tuple[int, int]],
    sends: Sequence[tuple[int, int]],
    receives: Sequence[tuple[int, int]],
    exchange: Callable[[list[tuple[int, np.ndarray]], list[tuple[int, np.ndarray]]], None] | None,
    scratch: np.ndarray,
    most_rows: int,
) -> int:
    """Replace rows by the mean of themselves and another, which lies here or comes by ``exchange``; all at once.

    Args:
        rows: flat buffers of the hosted workers.
        local: (row, row that it takes the mean with).
        sends: (process, row that it gets).
        receives: (process, row that takes the mean with what comes). No row changes twice.
        exchange: ``communicator.Links.exchange``; None where all is local.
        scratch: one block of values.
        most_rows: the largest number of rows in any of the processes, so that all of them cut the same blocks.

    Returns the bytes handed to ``exchange``.
    """
    changed = [target for target, _ in local] + [target for _, target in receives]
    width = scratch.size // most_rows
    handed = 0
    for low, high in _blocks((0, rows[0].size), width):
        others = [scratch[i * width : i * width + high - low] for i in range(len(changed))]
        for (_, source), other in zip(local, others):
            other[:] = rows[source][low:high]
        if exchange is not None and (sends or receives):
            outgoing = [(process, rows[source][low:high]) for process, source in sends]
            exchange(outgoing, [(process, o) for (process, _), o in zip(receives, others[len(local) :])])
            handed += sum(values.nbytes for _, values in outgoing)
        for target, other in zip(changed, others):
            row = rows[target][low:high]
            np.add(row, other, out=row)
            divide_(row, 2)
    return handed


def sum_rows(rows: np.ndarray | Sequence[np.ndarray], out: np.ndarray) -> None:
    """The sum of the rows, added from the first to the last, into ``out``; the rows stay as they are."""
    for low, high in _blocks((0, out.size), _row_length(len(rows), out.itemsize)):
        total = out[low:high]
        total[:] = rows[0][low:high]
        for row in rows[1:]:
            np.add(total, row[low:high], out=total)


def divide_(values: np.ndarray, divisor: int) -> None:
    """Divide in place; by a power of two through its exact reciprocal, which is faster and has the same bits."""
    if divisor == 1:
        return
    if divisor & (divisor - 1) == 0:
        np.multiply(values, values.dtype.type(1 / divisor), out=values)
    else:
        np.divide(values, values.dtype.type(divisor), out=values)


def _row_length(rows: int, itemsize: int) -> int:
    return max(_SHORTEST_ROW, _CACHE_BYTES // (rows * itemsize))


def _add_rows_(block: np.ndarray | Sequence[np.ndarray], algorithm: str, first: int) -> int:
    """Add all rows of a block into one of them; returns which."""
    count = len(block)
    if algorithm in ("tree", "butterfly"):
        step = 1
        while step < count:
            for low in range(0, count - step, 2 * step):
                np.add(block[low], block[low + step], out=block[low])
            step *= 2
        return 0
    total = block[first]
    for offset in range(1, count):
        np.add(total, block[(first + offset) % count], out=total)
    return first


def _ring_of_short_chunks_(rows: np.ndarray, divisor: int) -> None:
    """All-reduce by the ring with all chunks of a length going round together: 4 m calls in place of m squared.

    In step s worker ``(c + 1 + s) % m`` adds its part of chunk c: a diagonal of the rows, cut into chunks, which
    strides describe. The order of each chunk's sum is that of ``_pieces``.
    """
    count, elements = rows.shape
    size, longer = divmod(elements, count)
    total = np.empty(elements, rows.dtype)
    for first, last, width in ((0, longer, size + 1), (longer, count, size)):
        if first == last or not width:
            continue
        start = first * (size + 1)  # all chunks before it are longer ones
        grid = total[start : start + (last - first) * width].reshape(last - first, width)
        for step in range(count):
            # chunks first .. wrap-1 meet workers c + 1 + step, the others those after they wrap around to worker 0
            wrap = min(max(count - 1 - step, first), last)
            for low, high, shift in ((first, wrap, 1 + step), (wrap, last, 1 + step - count)):
                if low < high:
                    part = _diagonal(rows, low, high, shift, start + (low - first) * width, width)
                    target = grid[low - first : high - first]
                    if step:
                        np.add(target, part, out=target)
                    else:
                        target[:] = part
    divide_(total, divisor)
    rows[:] = total


def _diagonal(rows: np.ndarray, low: int, high: int, shift: int, column: int, width: int) -> np.ndarray:
    """A view, (high - low, width): of each chunk c the values in row c + shift; chunk ``low`` begins at ``column``."""
    along, across = rows.strides
    strides = (along + width * across, across)
    # what as_strided gives, at a tenth of its price
    return np.ndarray((high - low, width), rows.dtype, rows, (low + shift) * along + column * across, strides)


def _pieces(algorithm: str, count: int, elements: int, width: int) -> Iterator[tuple[int, Range]]:
    """Blocks of columns, each with the row whose values come first in the sum."""
    if algorithm == "ring":
        # chunk c starts its way at worker c + 1 and ends, complete, at worker c
        for chunk, limits in enumerate(bounds(chunk_sizes(elements, count))):
            for block in _blocks(limits, width):
                yield (chunk + 1) % count, block
    else:
        for block in _blocks((0, elements), width):
            yield 0, block


def _blocks(limits: Range, width: int) -> Iterator[Range]:
    low, high = limits
    while low < high:
        yield low, min(low + width, high)
        low += width


def _ring(r: int, m: int, elements: int) -> Schedule:
    chunks = bounds(chunk_sizes(elements, m))
    right, left = (r + 1) % m, (r - 1) % m
    reduce = tuple(Round(right, chunks[(r - s - 1) % m], left, chunks[(r - s - 2) % m]) for s in range(m - 1))
    spread = tuple(Round(right, chunks[(r - s) % m], left, chunks[(r - s - 1) % m]) for s in range(m - 1))
    return Schedule(reduce, chunks[r], spread)


def _butterfly(r: int, m: int, elements: int) -> Schedule:
    whole = (0, elements)
    partners = [r ^ (1 << k) for k in range(m.bit_length() - 1)]
    return Schedule(tuple(Round(p, whole, p, whole) for p in partners), whole, ())


def _tree(r: int, m: int, elements: int) -> Schedule:
    whole = (0, elements)
    children = tree_children(r, m)
    parent = r & (r - 1)  # the lowest bit removed
    up = [Round(NOBODY, EMPTY, child, whole) for child in children]
    down = [Round(child, whole, NOBODY, EMPTY) for child in reversed(children)]
    if r:
        up.append(Round(parent, whole, NOBODY, EMPTY))
        down.insert(0, Round(NOBODY, EMPTY, parent, whole))
    return Schedule(tuple(up), EMPTY if r else whole, tuple(down))


def _star(r: int, m: int, elements: int) -> Schedule:
    whole = (0, elements)
    if r:
        return Schedule((Round(0, whole, NOBODY, EMPTY),), EMPTY, (Round(NOBODY, EMPTY, 0, whole),))
    others = range(1, m)
    return Schedule(
        tuple(Round(NOBODY, EMPTY, other, whole) for other in others),
        whole,
        tuple(Round(other, whole, NOBODY, EMPTY) for other in others),
    )


_SCHEDULES = {"ring": _ring, "butterfly": _butterfly, "tree": _tree, "star": _star}
