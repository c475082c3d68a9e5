"""Seconds of collective operations from latency and bandwidth, on nodes with one link inside and one between.

The latency-bandwidth (alpha-beta) model of Thakur, Rabenseifner and Gropp 2005, "Optimization of collective
communication operations in MPICH": a message of n bytes takes ``latency + n / bandwidth``, a node sends and receives
at once, and the arithmetic of a reduction is not charged. An algorithm is a list of rounds; a round lasts as long as
its slowest message, and messages that leave a node together share its adapter (unless each device has its own).
On equal links it reduces to the textbook forms, for m workers and n bytes:

* ring all-reduce: ``2 (m-1) (a + n / (m b))``
* recursive doubling ("butterfly"): ``log2(m) (a + n / b)``
* Rabenseifner (recursive halving, then doubling): ``2 log2(m) a + 2 (m-1)/m n / b``
* binomial tree, reduce and broadcast: ``2 ceil(log2 m) (a + n / b)``
* star, all through one root: ``2 (m-1) (a + n / b)``; a scatter or a gather is half of it
* a round of pairwise mixing, one step of the butterfly's or the ring's: ``a + n / b``

Two more know of nodes, with p devices on each of N:

* leaders: a tree inside each node up to its first device, an all-reduce of these, a tree down again
* hierarchical: a reduce-scatter inside each node, p all-reduces of ``n / p`` between the nodes at once, an all-gather
  inside each node; on links of its own for each device ``2 (p-1)/p n / b_in + 2 (N-1)/N n / (p b)`` for long messages

``library`` and ``auto`` choose by size. Of real ones, MPICH takes recursive doubling up to 2,048 bytes and
Rabenseifner's beyond (MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE), with several ranks a node those among the nodes' leaders
(MPIR_CVAR_ENABLE_SMP_ALLREDUCE); NCCL takes what its own model of latency and bandwidth says is fastest for the size
and the nodes (its maintainer in issue 754 of NVIDIA/nccl). So here: ``library`` is the fastest by this model of
doubling, Rabenseifner and ring among all workers, and ``auto`` also of the tree, leaders and hierarchical.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Link:
    """One-way latency and bandwidth; ``shared``: the messages that leave a node together divide the bandwidth."""

    latency_s: float
    bandwidth_bytes_per_s: float
    shared: bool = True

    def seconds(self, nbytes: float, flows: int = 1) -> float:
        """Seconds of ``flows`` messages of ``nbytes`` each that start together."""
        return self.latency_s + nbytes * (flows if self.shared else 1) / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class Placement:
    """Workers 0 .. ``workers``-1, block-wise on nodes with ``per_node`` of them each."""

    workers: int
    per_node: int
    inside: Link
    between: Link

    def seconds(self, crossing: tuple[bool, int], nbytes: float) -> float:
        """Seconds of a round, given what ``_crossing`` says about its messages, each of ``nbytes``."""
        stays, flows = crossing
        # inside a node the messages run side by side: its link is per pair of devices
        inside_s = self.inside.seconds(nbytes) if stays else 0.0
        return max(inside_s, self.between.seconds(nbytes, flows) if flows else 0.0)

    def shift_s(self, distance: int, nbytes: float) -> float:
        """Each worker r sends ``nbytes`` to worker ``(r + distance) % workers``."""
        return self.seconds(_shift(self.workers, self.per_node, distance), nbytes)

    def exchange_s(self, distance: int, nbytes: float) -> float:
        """Pairs r, r XOR distance swap ``nbytes``; of m workers, the power of two below m that folding leaves."""
        return self.seconds(_exchange(self.workers, self.per_node, distance), nbytes)

    def fold_s(self, nbytes: float) -> float:
        """The workers beyond a power of two hand ``nbytes`` to a neighbour (or get it back)."""
        return (
            self.seconds(_fold(self.workers, self.per_node), nbytes)
            if self.workers & (self.workers - 1)
            else 0.0
        )

    def tree_s(self, nbytes: float) -> float:
        """``nbytes`` down (or up) a binomial tree rooted at worker 0."""
        return sum(self.seconds(_tree(self.workers, self.per_node, k), nbytes) for k in range(self.doublings))

    def star_s(self, nbytes: float) -> float:
        """Worker 0 sends to (or receives from) each other worker in turn."""
        near = min(self.per_node, self.workers) - 1
        return near * self.inside.seconds(nbytes) + (self.workers - 1 - near) * self.between.seconds(nbytes)

    @property
    def doublings(self) -> int:
        """``ceil(log2(workers))``."""
        return (self.workers - 1).bit_length()

    @property
    def nodes(self) -> int:
        """Nodes that the workers take."""
        return -(-self.workers // self.per_node)

    @property
    def slowest(self) -> Link:
        """The link that governs where it is not known who sends to whom."""
        return self.inside if self.workers <= self.per_node else self.between


def seconds(
    op: str,
    algorithm: str,
    places: Placement,
    payload_bytes: float,
    sent_bytes: float | None = None,
    messages: int = 1,
) -> float:
    """Seconds of one call of ``op`` (a communicator's operation) by ``algorithm`` over all workers of ``places``.

    ``payload_bytes`` is one worker's buffer. ``sent_bytes`` and ``messages`` (of the worker that sends most) settle
    the operations whose pieces may differ in size; all-reduce, broadcast and barrier need none.
    """
    m, n = places.workers, payload_bytes
    if m < 2:
        return 0.0
    sent = n if sent_bytes is None else sent_bytes
    match op:
        case "allreduce" | "iallreduce":
            return fastest(algorithm, places, n)[1]
        case "bcast":
            return places.star_s(n) if algorithm == "star" else places.tree_s(n)
        case "barrier":
            return sum(places.shift_s(2**k, 0) for k in range(places.doublings))
        case "reduce_scatter" | "allgather":
            return (m - 1) * places.shift_s(1, sent / (m - 1))
        case "alltoall":
            return sum(places.shift_s(k, sent / (m - 1)) for k in range(1, m))
        case "scatter":
            return places.star_s(sent / (m - 1))
        case "gather":
            return places.star_s(sent)
        case "mix" if algorithm != "direct":
            # mixing.pattern: how far apart those are that mix
            step, _, distance = algorithm.partition("-")
            return (places.exchange_s if step == "exchange" else places.shift_s)(int(distance), n)
        case _:
            # permutations, and operations added later: one adapter's messages one after the other
            link, flows = places.slowest, min(places.per_node, m) if m > places.per_node else 1
            return messages * link.latency_s + link.seconds(sent, flows) - link.latency_s


def fastest(algorithm: str, places: Placement, nbytes: float) -> tuple[str, float]:
    """Which algorithm an all-reduce of ``nbytes`` takes, and its seconds; that of a named one is itself."""
    candidates = _CHOICES.get(algorithm, (algorithm,))
    if unknown := [name for name in candidates if name not in _ALLREDUCE]:
        allowed = ", ".join([*_CHOICES, *_ALLREDUCE])
        raise ValueError(f"all-reduce algorithm {unknown[0]!r} has no cost; allowed: {allowed}")
    seconds = {name: _ALLREDUCE[name](places, nbytes) for name in candidates}
    name = min(seconds, key=seconds.__getitem__)  # the first of equals
    return name, seconds[name]


def _ring(places: Placement, n: float) -> float:
    return 2 * (places.workers - 1) * places.shift_s(1, n / places.workers)


def _recursive_doubling(places: Placement, n: float) -> float:
    rounds = places.workers.bit_length() - 1
    return 2 * places.fold_s(n) + sum(places.exchange_s(2**k, n) for k in range(rounds))


def _rabenseifner(places: Placement, n: float) -> float:
    # neighbours swap the halves, so that the largest messages travel the shortest way, as MPICH does
    rounds = places.workers.bit_length() - 1
    return 2 * places.fold_s(n) + 2 * sum(places.exchange_s(2**k, n / 2 ** (k + 1)) for k in range(rounds))


def _inside(places: Placement) -> Placement:
    """The fullest node alone."""
    return Placement(min(places.per_node, places.workers), places.per_node, places.inside, places.inside)


def _across(places: Placement, flows: int) -> Placement:
    """One worker of each node, ``flows`` such groups at once."""
    link = places.between
    each = Link(link.latency_s, link.bandwidth_bytes_per_s / (flows if link.shared else 1), shared=False)
    return Placement(places.nodes, 1, each, each)


def _leaders(places: Placement, n: float) -> float:
    return 2 * _inside(places).tree_s(n) + fastest("library", _across(places, 1), n)[1]


def _hierarchical(places: Placement, n: float) -> float:
    own = _inside(places)
    if places.workers % own.workers:
        return math.inf  # a last node with fewer devices cannot hold as many pieces
    # a reduce-scatter, and later its mirror image, are the two halves of these
    within = min(_ring(own, n), _rabenseifner(own, n)) if own.workers > 1 else 0.0
    return within + fastest("library", _across(places, own.workers), n / own.workers)[1]


_ALLREDUCE = {
    "ring": _ring,
    "butterfly": _recursive_doubling,
    "rabenseifner": _rabenseifner,
    "tree": lambda places, n: 2 * places.tree_s(n),
    "star": lambda places, n: 2 * places.star_s(n),
    "leaders": _leaders,
    "hierarchical": _hierarchical,
}
# What chooses by size, and of what.
_CHOICES = {
    "library": ("ring", "butterfly", "rabenseifner"),
    "auto": ("butterfly", "rabenseifner", "ring", "tree", "leaders", "hierarchical"),
}


def _crossing(source: np.ndarray, target: np.ndarray, per_node: int) -> tuple[bool, int]:
    """Whether some message stays inside a node, and the most messages that leave, or enter, one node."""
    source, target = source // per_node, target // per_node
    leaves = source != target
    flows = max((int(np.bincount(side[leaves]).max(initial=0)) for side in (source, target)), default=0)
    return bool((~leaves).any()), flows


def _shift(workers: int, per_node: int, distance: int) -> tuple[bool, int]:
    # In closed form, as an all-to-all asks for every distance. Of x workers on a node those stay whose target is
    # ahead on it, or behind it once around; as many enter as leave.
    distance %= workers
    last = workers % per_node
    sizes = {min(workers, per_node), *([last] if last and last < workers else [])}
    staying = {size: max(0, size - distance) + max(0, size - (workers - distance)) for size in sizes}
    if distance == 0:
        return True, 0
    return any(staying.values()), max(size - stays for size, stays in staying.items())


@functools.cache
def _exchange(workers: int, per_node: int, distance: int) -> tuple[bool, int]:
    ranks = _survivors(workers)
    return _crossing(ranks, ranks[np.arange(len(ranks)) ^ distance], per_node)


@functools.cache
def _fold(workers: int, per_node: int) -> tuple[bool, int]:
    extra = workers - len(_survivors(workers))
    return _crossing(2 * np.arange(extra) + 1, 2 * np.arange(extra), per_node)


@functools.cache
def _tree(workers: int, per_node: int, level: int) -> tuple[bool, int]:
    source = np.arange(2**level, workers, 2 ** (level + 1))
    return _crossing(source, source - 2**level, per_node)


def _survivors(workers: int) -> np.ndarray:
    """Ranks that take part after folding to a power of two: of the first pairs only the even ones."""
    extra = workers - (1 << (workers.bit_length() - 1))
    return np.concatenate([2 * np.arange(extra), np.arange(2 * extra, workers)])
