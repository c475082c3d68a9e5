"""Word error rate of a corpus, its bootstrap interval, and whether two systems differ.

Errors are those of the fewest edits that turn the reference into the hypothesis. Rates are shares, 0.08 for 8 %.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from implementations.errors import UserError

RESAMPLES = 2000
LEVEL = 0.95

_SEED = 0  # of the resampling: intervals do not depend on an experiment's seed


@dataclass(frozen=True)
class WordErrors:
    """Edits and reference words of each utterance (utterances,) int64."""

    substitutions: np.ndarray
    deletions: np.ndarray
    insertions: np.ndarray
    words: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """All edits of each utterance."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Word error rate of the corpus: all edits over all reference words. UserError if there are no words."""
        return _rate(self.errors, self.words)


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval."""

    value: float
    low: float
    high: float


def edits(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> tuple[int, int, int]:
    """Substitutions, deletions and insertions of a shortest edit.

    Of several shortest ones it is jiwer's: common beginnings and ends are set aside, then the rest is walked from its
    end, by a deletion where one is on a shortest way, else by an insertion, else by a match or substitution.
    """
    first = 0
    while first < min(len(reference), len(hypothesis)) and reference[first] == hypothesis[first]:
        first += 1
    reference, hypothesis = reference[first:], hypothesis[first:]
    while len(reference) and len(hypothesis) and reference[-1] == hypothesis[-1]:
        reference, hypothesis = reference[:-1], hypothesis[:-1]
    table = [list(range(len(hypothesis) + 1))]  # fewest edits between the first r and the first h words
    for r, word in enumerate(reference, 1):
        above, row = table[-1], [r]
        for h, heard in enumerate(hypothesis, 1):
            row.append(min(above[h] + 1, row[-1] + 1, above[h - 1] + (word != heard)))
        table.append(row)
    r, h = len(reference), len(hypothesis)
    substitutions = deletions = insertions = 0
    while r and h:
        if table[r][h] == table[r - 1][h] + 1:
            r, deletions = r - 1, deletions + 1
        elif table[r][h - 1] == table[r - 1][h - 1] - 1:
            h, insertions = h - 1, insertions + 1
        else:
            r, h = r - 1, h - 1
            substitutions += reference[r] != hypothesis[h]
    return substitutions, deletions + r, insertions + h


def word_errors(
    references: Sequence[Sequence[Hashable]], hypotheses: Sequence[Sequence[Hashable]]
) -> WordErrors:
    """Errors of each utterance. An utterance with an empty reference has no words, and what is heard is inserted."""
    counts = [edits(*pair) for pair in zip(references, hypotheses, strict=True)]
    table = np.array(counts, dtype=np.int64).reshape(-1, 3)
    return WordErrors(*table.T, np.array([len(one) for one in references], dtype=np.int64))


def interval(
    errors: WordErrors,
    speakers: np.ndarray,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = _SEED,
) -> Interval:
    """Word error rate with a percentile bootstrap interval over speakers, and over utterances of each speaker drawn."""
    wrong, words = _bootstrap(errors.errors[None], errors.words, speakers, resamples, seed)
    low, high = np.quantile(_shares(wrong[:, 0], words), [(1 - level) / 2, (1 + level) / 2])
    return Interval(errors.rate, float(low), float(high))


def compare(
    first: Sequence[WordErrors],
    second: Sequence[WordErrors],
    speakers: np.ndarray,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = _SEED,
) -> Interval:
    """How much higher the word error rate of ``second`` is, over the same utterances; one WordErrors a seed.

    Hierarchical bootstrap: a resample draws speakers and their utterances, the same ones for both systems, and seeds.
    With as many seeds on both sides, seed i of one is paired with seed i of the other and they are drawn together.
    The systems differ at this level if the interval leaves out 0.
    """
    words = first[0].words
    if any(not np.array_equal(one.words, words) for one in (*first, *second)):
        raise UserError("two systems can only be compared on the same utterances in the same order")
    both = np.stack([one.errors for one in (*first, *second)])
    wrong, total = _bootstrap(both, words, speakers, resamples, seed)
    # Seeds are drawn by weights, as utterances are.
    rng = np.random.default_rng([seed, 1])
    weights_a = rng.multinomial(len(first), np.full(len(first), 1 / len(first)), resamples) / len(first)
    if len(first) == len(second):
        weights_b = weights_a
    else:
        weights_b = rng.multinomial(len(second), np.full(len(second), 1 / len(second)), resamples) / len(
            second
        )
    a = (wrong[:, : len(first)] * weights_a).sum(axis=1)
    b = (wrong[:, len(first) :] * weights_b).sum(axis=1)
    low, high = np.quantile(_shares(b - a, total), [(1 - level) / 2, (1 + level) / 2])
    value = float(np.mean([one.rate for one in second]) - np.mean([one.rate for one in first]))
    return Interval(value, float(low), float(high))


def _bootstrap(
    errors: np.ndarray, words: np.ndarray, speakers: np.ndarray, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Resampled sums of ``errors`` (systems, utterances) and of ``words``: (resamples, systems), (resamples,)."""
    _rate(errors[0], words)  # refuses a corpus without words
    rng = np.random.default_rng(seed)
    owned = [np.flatnonzero(speakers == one) for one in np.unique(speakers)]
    times = np.zeros((resamples, len(words)))  # how often each utterance is drawn
    drawn = rng.multinomial(len(owned), np.full(len(owned), 1 / len(owned)), resamples)
    for number, utterances in enumerate(owned):
        # A speaker drawn k times brings k times as many utterances, drawn anew each time.
        count = len(utterances)
        times[:, utterances] = rng.multinomial(drawn[:, number] * count, np.full(count, 1 / count))
    return times @ errors.T, times @ words


def _rate(errors: np.ndarray, words: np.ndarray) -> float:
    total = int(words.sum())
    if not total:
        raise UserError("word error rate: the references hold no words; give at least one that is not empty")
    return int(errors.sum()) / total


def _shares(errors: np.ndarray, words: np.ndarray) -> np.ndarray:
    kept = words > 0  # a resample of nothing but empty references has no rate
    return errors[kept] / words[kept]
