"""Features that a recogniser sees: normalised per utterance and speaker, with deltas, spliced to windows of frames.

All functions take stacked frames (frames, values) and the utterances' ``offsets`` (implementations.speech.corpus).
"""

from __future__ import annotations

import numpy as np

CONTEXT = 5  # frames on each side: 11 in all, as in Su and Chen 2015
DELTA_WINDOW = 2


def deltas(features: np.ndarray, offsets: np.ndarray, window: int = DELTA_WINDOW) -> np.ndarray:
    """Slope of each value over 2 ``window`` + 1 frames by least squares; an utterance's edge frames are repeated.

    ``d_t = sum_n n (c_{t+n} - c_{t-n}) / (2 sum_n n^2)`` for n = 1..window; the features' dtype.
    """
    first, last = _bounds(offsets)
    here = np.arange(len(features))
    slopes = np.zeros_like(features)
    for step in range(1, window + 1):
        after, before = np.minimum(here + step, last), np.maximum(here - step, first)
        slopes += step * (features[after] - features[before])
    return slopes / (2 * sum(step * step for step in range(1, window + 1)))


def normalise(features: np.ndarray, offsets: np.ndarray, speakers: np.ndarray) -> np.ndarray:
    """Mean 0 over each utterance, then standard deviation 1 over each speaker (``speakers``: one an utterance).

    A value that never changes for a speaker becomes 0. The sums are in double precision, the result is float32.
    """
    lengths = np.diff(offsets)
    means = _sums(features, offsets) / lengths[:, None]
    centred = features - np.repeat(means, lengths, axis=0).astype(np.float32)
    squares = _sums(np.square(centred, dtype=np.float64), offsets)
    numbers, owners = np.unique(speakers, return_inverse=True)
    total = np.zeros((len(numbers), features.shape[1]))
    frames = np.zeros(len(numbers))
    np.add.at(total, owners, squares)
    np.add.at(frames, owners, lengths)
    spread = np.sqrt(total / frames[:, None])
    # Rounding leaves a constant value a spread of about 1e-7 of itself, which must not be blown up.
    scale = np.where(spread > 1e-6 * (np.abs(means).max() + 1), 1 / np.maximum(spread, 1e-30), 0)
    return centred * np.repeat(scale[owners], lengths, axis=0).astype(np.float32)


def recogniser_features(features: np.ndarray, offsets: np.ndarray, speakers: np.ndarray) -> np.ndarray:
    """Static values, deltas and delta-deltas side by side (frames, 3 x values), normalised."""
    slopes = deltas(features, offsets)
    return normalise(np.hstack([features, slopes, deltas(slopes, offsets)]), offsets, speakers)


class Spliced:
    """Windows of 2 ``context`` + 1 frames around any frame, without storing them: a row is one stretch of memory.

    ``rows(frames)`` gathers windows, oldest frame first, as (n, (2 context + 1) x values) float32; at an utterance's
    edge its first or last frame is repeated. ``windows`` is a view (no copy) of every window of the padded frames,
    and ``positions[f]`` the row in it of frame f, for a gather elsewhere (torch.as_strided takes ``padded`` too).
    """

    def __init__(self, features: np.ndarray, offsets: np.ndarray, context: int = CONTEXT) -> None:
        frames, values = features.shape
        utterances = len(offsets) - 1
        owner = np.repeat(np.arange(utterances), np.diff(offsets))
        self.positions = np.arange(frames) + 2 * context * owner
        self.padded = np.empty((frames + 2 * context * utterances, values), dtype=np.float32)
        self.padded[self.positions + context] = features
        starts = offsets[:-1] + 2 * context * np.arange(utterances)
        for step in range(context):
            self.padded[starts + step] = features[offsets[:-1]]
            self.padded[starts + context + np.diff(offsets) + step] = features[offsets[1:] - 1]
        self.width = (2 * context + 1) * values
        self.windows = np.lib.stride_tricks.as_strided(
            self.padded,
            (max(0, len(self.padded) - 2 * context), self.width),
            (self.padded.strides[0], self.padded.strides[1]),
            writeable=False,
        )

    def __len__(self) -> int:
        return len(self.positions)

    def rows(self, frames: np.ndarray) -> np.ndarray:
        """Windows around these frames, the caller's own copy."""
        return self.windows[self.positions[frames]]


def _bounds(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last frame of the utterance of each frame."""
    lengths = np.diff(offsets)
    return np.repeat(offsets[:-1], lengths), np.repeat(offsets[1:] - 1, lengths)


def _sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sums over each utterance, in double precision."""
    return np.add.reduceat(values, offsets[:-1], axis=0, dtype=np.float64)
