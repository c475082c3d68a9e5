"""When a run reaches its target: evaluations are points of a curve, joined by straight lines."""

from __future__ import annotations

import math
from collections.abc import Sequence


def crossing(values: Sequence[float], target: float) -> float | None:
    """Where a curve first comes up to a target, as a place between its points (2.5: midway from 2 to 3); None: never.

    Evaluations are some way apart. To count the first one at or beyond the target as its time would favour whoever
    passes it just before one, and tell fast methods apart in whole epochs only.
    """
    for place, value in enumerate(values):
        if value >= target:
            before = values[place - 1] if place else value
            return float(place) if value == before else place - (value - target) / (value - before)
    return None


def at_target(values: Sequence[float], target: float, others: Sequence[float]) -> float:
    """What ``others``, told at the same evaluations as ``values``, comes to where these reach the target; else inf."""
    place = crossing(values, target)
    if place is None:
        return math.inf
    share = place - math.floor(place)
    before, after = others[math.floor(place)], others[math.ceil(place)]
    return before + share * (after - before)
