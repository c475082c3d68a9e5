"""Who is fastest at each bandwidth, where the lead changes, and how sure that is. Pure arithmetic on curves.

A curve has seconds over ascending bandwidths; between those given it is a straight line in the logarithms. Infinite
seconds: never.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from implementations.reporting.targets import crossings

_CLOSE = 1e-6  # just before a crossing
Curves = Mapping[str, np.ndarray]  # seconds (points,) by the name of who takes them


@dataclass(frozen=True)
class Stretch:
    """Who is fastest from one bandwidth to another, both in the unit of the curves' points."""

    name: str
    least: float
    most: float


@dataclass(frozen=True)
class Range:
    """Where a crossing lies if something is otherwise: 0 or infinite where it lies beyond the bandwidths given."""

    low: float
    high: float


def stretches(bandwidth: np.ndarray, curves: Curves) -> list[Stretch]:
    """The lower envelope of curves, from the slowest network up; of equally fast ones the first by name leads.

    Curves that are infinite anywhere take no part; no stretches without curves or with fewer than two bandwidths.
    """
    known = {
        name: np.asarray(seconds, dtype=float) for name, seconds in sorted(curves.items())
        if np.isfinite(seconds).all()
    }  # fmt: skip
    if not known or len(bandwidth) < 2:
        return []
    bends = {float(each) for each in bandwidth}
    for first, second in itertools.combinations(known.values(), 2):
        bends.update(crossings(bandwidth, first, second))
    found: list[Stretch] = []
    for least, most in itertools.pairwise(sorted(bends)):
        middle = float(np.sqrt(least * most))
        name = min(known, key=lambda each: at(bandwidth, known[each], middle))
        if found and found[-1].name == name:
            least = found.pop().least
        found.append(Stretch(name, least, most))
    return found


def at(bandwidth: np.ndarray, seconds: np.ndarray, where: float) -> float:
    """A curve's seconds at a bandwidth between those given."""
    return float(np.exp(np.interp(np.log(where), np.log(bandwidth), np.log(seconds))))


def crossing_near(bandwidth: np.ndarray, below: np.ndarray, above: np.ndarray, near: float) -> float | None:
    """Where ``above`` becomes the faster as networks get faster, the place nearest to ``near`` of several.

    0 where it is the faster at all bandwidths, infinite where it never overtakes; None where neither ever arrives.
    """
    below, above = np.asarray(below, dtype=float), np.asarray(above, dtype=float)
    if not (np.isfinite(below).all() or np.isfinite(above).all()):
        return None
    found = [
        place
        for place in crossings(bandwidth, below, above)
        if at(bandwidth, below, place * (1 - _CLOSE)) < at(bandwidth, above, place * (1 - _CLOSE))
    ]
    if found:
        return min(found, key=lambda each: abs(np.log(each / near)))
    return 0.0 if above[-1] < below[-1] else np.inf


def over_seeds(
    bandwidth: np.ndarray, below: Mapping[int, np.ndarray], above: Mapping[int, np.ndarray], near: float
) -> tuple[Range | None, int, int]:
    """The range of a crossing over seeds, how many seeds have it, and of how many it can be told.

    ``below``, ``above``: each seed's seconds (points,) of who leads on slower and on faster networks.
    """
    found = [
        place for seed in sorted(set(below) & set(above))
        if (place := crossing_near(bandwidth, below[seed], above[seed], near)) is not None
    ]  # fmt: skip
    inside = sum(bool(0 < place < np.inf) for place in found)
    return (Range(min(found), max(found)) if found else None), inside, len(found)


def under_errors(
    bandwidth: np.ndarray,
    below: np.ndarray,
    above: np.ndarray,
    near: float,
    errors: tuple[np.ndarray, np.ndarray],
) -> Range | None:
    """The range of a crossing where each curve's seconds may be wrong by a factor ``1 + error`` either way.

    ``errors``: of ``below`` and of ``above`` at each bandwidth (points,); at the range's ends one curve is too low and
    the other too high.
    """
    (first, second), found = errors, []
    for way in (1, -1):
        shifted = below * (1 + first) ** way, above * (1 + second) ** -way
        place = crossing_near(bandwidth, *shifted, near)
        if place is None:
            return None
        found.append(place)
    return Range(min(found), max(found))
