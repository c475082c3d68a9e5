"""Diagonal Gaussian mixtures, one for each HMM state, with hard assignment of frames to states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

VARIANCE_FLOOR = 0.01  # of the variance of all frames
SPLIT = 0.2  # standard deviations that a split moves the two halves, as HTK does
SPLIT_FRAMES = 20  # frames that each half of a split has to expect at least

_CHUNK = 4096  # frames scored at once: what they need stays in the cache's reach


@dataclass(frozen=True)
class Mixtures:
    """``log_weights`` (states, components) with -inf where there is none, ``means`` and ``variances`` (.., values)."""

    log_weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    floor: np.ndarray  # (values,) least variance

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self.log_weights)

    def components(self, x: np.ndarray, state: int) -> np.ndarray:
        """Log of weight times density of frames (n, values) under each component of a state, (n, components)."""
        real = slice(None, np.count_nonzero(np.isfinite(self.log_weights[state])))
        quadratic, linear, constant = _coefficients(
            self.log_weights[state, real], self.means[state, real], self.variances[state, real]
        )
        return np.square(x) @ quadratic.T + x @ linear.T + constant

    def log_likelihoods(self, x: np.ndarray) -> np.ndarray:
        """Log density of each frame of ``x`` (frames, values) in each state, (frames, states) float32."""
        real = np.isfinite(self.log_weights)
        counts = real.sum(axis=1)
        starts = np.cumsum(counts) - counts
        quadratic, linear, constant = (
            part.astype(np.float32)
            for part in _coefficients(self.log_weights[real], self.means[real], self.variances[real])
        )
        matrix = np.ascontiguousarray(np.hstack([quadratic, linear]).T)
        scores = np.empty((len(x), self.states), dtype=np.float32)
        owner = np.repeat(np.arange(self.states), counts)
        for first in range(0, len(x), _CHUNK):
            piece = np.asarray(x[first : first + _CHUNK], dtype=np.float32)
            each = np.hstack([np.square(piece), piece]) @ matrix
            each += constant
            if len(owner) == self.states:
                scores[first : first + _CHUNK] = each
                continue
            best = np.maximum.reduceat(each, starts, axis=1)
            each -= best[:, owner]
            np.exp(each, out=each)
            scores[first : first + _CHUNK] = np.log(np.add.reduceat(each, starts, axis=1)) + best
        return scores


def single(x: np.ndarray, states_f: np.ndarray, states: int) -> Mixtures:
    """One Gaussian a state from aligned frames; a state without frames gets that of all frames."""
    variance = x.var(axis=0, dtype=np.float64)
    floor = np.maximum(VARIANCE_FLOOR * variance, 1e-8)
    means = np.tile(x.mean(axis=0, dtype=np.float64), (states, 1))[:, None]
    variances = np.tile(np.maximum(variance, floor), (states, 1))[:, None]
    start = Mixtures(np.zeros((states, 1)), means, variances, floor)
    return reestimate(start, x, states_f)


def reestimate(mixtures: Mixtures, x: np.ndarray, states_f: np.ndarray) -> Mixtures:
    """One step of expectation maximisation with frames given to states by ``states_f``.

    The likelihood of the frames under their states cannot fall, but for variances held at the floor. A state without
    frames, and a component that gets less than one frame, stay as they are.
    """
    weights, means, variances = (
        part.copy() for part in (mixtures.log_weights, mixtures.means, mixtures.variances)
    )
    for state, frames in _by_state(states_f, mixtures.states):
        values = np.asarray(x[frames], dtype=np.float64)
        logs = mixtures.components(values, state)
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        mass = shares.sum(axis=0)
        alive = np.flatnonzero(mass >= 1)
        first = shares.T @ values
        second = shares.T @ np.square(values)
        mean = first[alive] / mass[alive, None]
        means[state, alive] = mean
        variances[state, alive] = np.maximum(
            second[alive] / mass[alive, None] - np.square(mean), mixtures.floor
        )
        weights[state, : len(mass)] = np.log(np.maximum(mass, 1e-10) / len(frames))
    return Mixtures(weights, means, variances, mixtures.floor)


def split(mixtures: Mixtures, states_f: np.ndarray) -> Mixtures:
    """Every component with frames enough becomes two, moved apart by ``SPLIT`` standard deviations each."""
    frames = np.bincount(states_f, minlength=mixtures.states)
    old = mixtures.log_weights.shape[1]
    logs = np.full((mixtures.states, 2 * old), -np.inf)
    means = np.zeros((mixtures.states, 2 * old, mixtures.means.shape[2]))
    variances = np.ones_like(means)
    widest = 1
    for state in range(mixtures.states):
        real = np.flatnonzero(np.isfinite(mixtures.log_weights[state]))
        log, mean, variance = (
            part[state, real] for part in (mixtures.log_weights, mixtures.means, mixtures.variances)
        )
        rich = np.flatnonzero(np.exp(log) * frames[state] >= 2 * SPLIT_FRAMES)
        shift = SPLIT * np.sqrt(variance[rich])
        log[rich] -= np.log(2)
        total = len(real) + len(rich)
        logs[state, :total] = np.concatenate([log, log[rich]])
        means[state, :total] = np.concatenate([mean, mean[rich] - shift])
        means[state, rich] += shift
        variances[state, :total] = np.concatenate([variance, variance[rich]])
        widest = max(widest, total)
    return Mixtures(logs[:, :widest], means[:, :widest], variances[:, :widest], mixtures.floor)


def _coefficients(
    log_weights: np.ndarray, means: np.ndarray, variances: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of x squared, of x, and the constant, in the log of weight times density."""
    inverse = 1 / variances
    logs = np.log(2 * np.pi * variances) + np.square(means) * inverse
    return -0.5 * inverse, means * inverse, log_weights - 0.5 * logs.sum(axis=-1)


def _by_state(states_f: np.ndarray, states: int) -> list[tuple[int, np.ndarray]]:
    """Each state that has frames, with their numbers."""
    order = np.argsort(states_f, kind="stable")
    ends = np.cumsum(np.bincount(states_f, minlength=states))
    parts = np.split(order, ends[:-1])
    return [(state, part) for state, part in enumerate(parts) if len(part)]
