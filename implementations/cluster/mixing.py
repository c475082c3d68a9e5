"""Pairwise mixing: who takes the mean with whom, round by round, instead of one mean over all workers.

Su and Chen 2015 averaged by an all-reduce; an earlier draft also by a butterfly of pairs, and the author's code offers
a ring and a hopping ring beside it. Each round replaces worker r's model by the mean of its own and that of worker
``partners(...)[r]``. Every round is a permutation, so the mixing matrix ``(I + permutation) / 2`` is doubly stochastic:
the mean over the workers stays, while the workers come closer to it. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from implementations.errors import UserError

PAIRWISE = ("butterfly", "ring", "hopping_ring")


def check_mixing(mixing: str, workers: int) -> None:
    """Raise UserError unless ``workers`` workers can mix by ``mixing`` (one of ``PAIRWISE``)."""
    if mixing not in PAIRWISE:
        raise UserError(f"mixing {mixing!r}; allowed: {', '.join(PAIRWISE)}")
    if mixing == "butterfly" and workers & (workers - 1):
        raise UserError(
            f"mixing 'butterfly' with {workers} workers; allowed: a power of two "
            f"(take 'ring' or 'hopping_ring' for other numbers)"
        )


def partners(mixing: str, workers: int, round: int) -> list[int]:
    """For each worker the one whose model it takes in round ``round`` (0, 1, ...) of ``mixing``; UserErrors as above.

    * butterfly: r XOR ``2^(round mod log2 m)`` (the author's code); ``log2 m`` rounds from a multiple of it on give
      every worker the mean over all.
    * ring: r - 1; each sends to its right neighbour in every round.
    * hopping_ring: r - hop, hop running over the powers of two below m, one a round. The name is the author's; how
      far his hops go is in neither paper nor drafts, and the powers of two are this project's choice.

    With one worker it is its own partner.
    """
    check_mixing(mixing, workers)
    hops = (workers - 1).bit_length()  # powers of two below m
    hop = 1 << round % hops if hops and mixing != "ring" else 1
    if mixing == "butterfly" and hops:
        return [r ^ hop for r in range(workers)]
    return [(r - hop) % workers for r in range(workers)]


def pattern(sources: Sequence[int]) -> str:
    """What the time model needs to know of a permutation.

    "exchange-d": r with r XOR d, m a power of two. "shift-d": each from r - d. "direct": any other.
    """
    m = len(sources)
    distance = sources[0]
    if not m & (m - 1) and distance and all(source == r ^ distance for r, source in enumerate(sources)):
        return f"exchange-{distance}"
    distance = -sources[0] % m
    if distance and all(source == (r - distance) % m for r, source in enumerate(sources)):
        return f"shift-{distance}"
    return "direct"
