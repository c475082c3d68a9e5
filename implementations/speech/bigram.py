"""Bigram language model with Witten-Bell smoothing, from transcripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

_ROUNDING = 1e-9  # of a log probability


def witten_bell(transcripts: Iterable[Sequence[int]], words: int) -> np.ndarray:
    """Log probabilities (words + 1, words + 1): row v the word before (last row: none yet), column w the next one.

    The last column is the end. ``P(w|v) = (c(v,w) + t(v) P(w)) / (c(v) + t(v))`` with t(v) the number of different
    successors of v; ``P(w)`` is smoothed the same way, towards equal shares. A row never seen is ``P(w)``.
    Source: Witten and Bell 1991, IEEE Trans. Information Theory 37(4), method C, interpolated.
    """
    edge = words
    counts = np.zeros((words + 1, words + 1))
    for said in transcripts:
        padded = [edge, *said, edge]
        np.add.at(counts, (padded[:-1], padded[1:]), 1)
    once = counts.sum(axis=0)
    different = max(np.count_nonzero(once), 1)  # without any transcript: equal shares
    single = (once + different / len(once)) / (once.sum() + different)
    kinds = np.count_nonzero(counts, axis=1)[:, None]
    total = counts.sum(axis=1, keepdims=True) + kinds
    seen = (counts + kinds * single) / np.maximum(total, 1)
    return np.log(np.where(total > 0, seen, single))


def back_off(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of rows and of columns whose sum is ``logs`` but for some pairs, where ``logs`` are higher.

    The third array marks these pairs, with Witten-Bell smoothing those seen in the transcripts: all others back off
    to ``P(w)``. Any matrix has such weights; a search over one row as the columns' weights finds those that leave
    the fewest pairs.
    """
    fewest = None
    for one in logs:
        rows = np.median(logs - one, axis=1)
        columns = (logs - rows[:, None]).min(axis=0)
        higher = logs - (rows[:, None] + columns) > _ROUNDING
        if fewest is None or np.count_nonzero(higher) < np.count_nonzero(fewest[2]):
            fewest = rows, columns, higher
    return fewest
