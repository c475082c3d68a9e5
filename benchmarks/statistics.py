"""Ratios of two timings that alternate in one run, since the machines are shared and drift."""

from __future__ import annotations

import statistics
from collections.abc import Callable

ROUNDS = 7


def compare(
    ours: Callable[[], float], reference: Callable[[], float], invert: bool = False, rounds: int = ROUNDS
) -> dict[str, float]:
    """Medians of ``rounds`` alternating rounds, after one round of warming up.

    ``ratio`` is reference / ours (how many times faster ours is), or ours / reference with ``invert``; with it its
    quartiles over rounds.
    """
    ours(), reference()
    pairs = [(ours(), reference()) for _ in range(rounds)]
    ratios = sorted(own / other if invert else other / own for own, other in pairs)
    return {
        "ours_s": statistics.median(own for own, _ in pairs),
        "reference_s": statistics.median(other for _, other in pairs),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[rounds // 4],
        "ratio_high": ratios[-1 - rounds // 4],
    }
