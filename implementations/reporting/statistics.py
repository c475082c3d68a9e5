"""Summaries of repeats and seeds: median and spread, range or interval. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

# An interval needs at least so many values; fewer show their range and are called so.
FEWEST_FOR_INTERVAL = 6


@dataclass(frozen=True)
class Summary:
    """A centre with what surrounds it. ``kind`` says what low and high are."""

    centre: float
    low: float
    high: float
    n: int
    kind: str  # "range" | "95 % interval" | "quartiles" | "single value" | "no value"
    over: str = ""  # what was redrawn for a bootstrap interval, where that is not the n values


def _finite(values: Sequence[float]) -> np.ndarray:
    array = np.asarray([np.nan if value is None else value for value in values], dtype=float)
    return array[~np.isnan(array)]


def median_and_spread(values: Sequence[float]) -> Summary:
    """Median and quartiles of repeated timings; infinite values (a missed target) count, NaN is left out."""
    array = _finite(values)
    if not array.size:
        return Summary(np.nan, np.nan, np.nan, 0, "no value")
    if array.size == 1:
        return Summary(float(array[0]), float(array[0]), float(array[0]), 1, "single value")
    # 'inverted_cdf'-like picks keep infinities infinite; interpolation between them would give NaN
    method = "linear" if np.isfinite(array).all() else "nearest"
    low, centre, high = np.quantile(array, [0.25, 0.5, 0.75], method=method)
    return Summary(float(centre), float(low), float(high), int(array.size), "quartiles")


def median_and_range(values: Sequence[float]) -> Summary:
    """Median of seeds with their range, or with the 95 % bootstrap interval of the median from six seeds on.

    Infinite values (a missed target) count, NaN is left out.
    """
    array = _finite(values)
    if not array.size:
        return Summary(np.nan, np.nan, np.nan, 0, "no value")
    centre = float(np.median(array))
    if array.size == 1:
        return Summary(centre, centre, centre, 1, "single value")
    if array.size < FEWEST_FOR_INTERVAL:
        return Summary(centre, float(array.min()), float(array.max()), int(array.size), "range")
    low, high = bootstrap_interval(array, np.median)
    return Summary(centre, low, high, int(array.size), "95 % interval")


def range_or_interval(values: Sequence[float]) -> Summary:
    """Mean of seeds with their range, or with Student's 95 % interval from six seeds on."""
    array = _finite(values)
    if not array.size:
        return Summary(np.nan, np.nan, np.nan, 0, "no value")
    mean = float(array.mean())
    if array.size == 1:
        return Summary(mean, mean, mean, 1, "single value")
    if array.size < FEWEST_FOR_INTERVAL:
        return Summary(mean, float(array.min()), float(array.max()), int(array.size), "range")
    low, high = t_interval(array)
    return Summary(mean, low, high, int(array.size), "95 % interval")


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean; needs two values or more."""
    array = _finite(values)
    if array.size < 2:
        raise ValueError("an interval needs at least two values")
    error = float(stats.sem(array))
    if error == 0.0:
        return float(array.mean()), float(array.mean())
    low, high = stats.t.interval(level, array.size - 1, loc=array.mean(), scale=error)
    return float(low), float(high)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[np.ndarray], float] = np.mean,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of ``statistic``; the same values and seed give the same interval."""
    array = _finite(values)
    if array.size < 2:
        raise ValueError("an interval needs at least two values")
    picks = np.random.default_rng(seed).integers(0, array.size, size=(resamples, array.size))
    drawn = np.apply_along_axis(statistic, 1, array[picks])
    # between an infinite value and another there is nothing to interpolate
    method = "linear" if np.isfinite(drawn).all() else "nearest"
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], method=method)
    return float(low), float(high)
