"""Word error rate of a corpus, its bootstrap interval, and whether systems differ.

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
    times = draw_utterances(speakers, resamples, seed)
    values, drawn = mean_rates([errors.errors[None]], errors.words, times, seed)
    return percentiles(values[0], drawn[:, 0], level)


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
    times = draw_utterances(speakers, resamples, seed)
    both = [np.stack([one.errors for one in system]) for system in (first, second)]
    values, drawn = mean_rates(both, words, times, seed, paired=len(first) == len(second))
    return percentiles(values[1] - values[0], drawn[:, 1] - drawn[:, 0], level)


def draw_utterances(speakers: np.ndarray, resamples: int = RESAMPLES, seed: int = _SEED) -> np.ndarray:
    """How often each utterance is in each resample of a test set: (resamples, utterances) float64.

    A resample draws as many speakers as there are, and of each speaker drawn as many utterances as it has.
    ``speakers``: the speaker of each utterance (utterances,).
    """
    rng = np.random.default_rng(seed)
    owned = [np.flatnonzero(speakers == one) for one in np.unique(speakers)]
    times = np.zeros((resamples, len(speakers)))
    drawn = rng.multinomial(len(owned), np.full(len(owned), 1 / len(owned)), resamples)
    for number, utterances in enumerate(owned):
        # A speaker drawn k times brings k times as many utterances, drawn anew each time.
        count = len(utterances)
        times[:, utterances] = rng.multinomial(drawn[:, number] * count, np.full(count, 1 / count))
    return times


def mean_rates(
    errors: Sequence[np.ndarray],
    units: np.ndarray,
    times: np.ndarray,
    seed: int = _SEED,
    paired: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Error rate of each system, the mean over its seeds: as it is (systems,), and redrawn (resamples, systems).

    errors: (seeds, utterances) of each system, over the same utterances. units (utterances,): what errors are counted
    over, words or frames. times: from ``draw_utterances``; all systems share a resample's utterances. Seeds are redrawn
    too: with ``paired``, row i of all systems at once. A resample without units has no rate: NaN. UserError if there
    are no units at all.
    """
    rng = np.random.default_rng([seed, 1])
    total = times @ units
    values, drawn, weights = np.empty(len(errors)), np.empty((len(times), len(errors))), None
    for place, rows in enumerate(errors):
        values[place] = np.mean([_rate(row, units) for row in rows])
        if weights is None or not paired:
            seeds = len(rows)
            weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), len(times)) / seeds
        wrong = ((times @ rows.T) * weights).sum(axis=1)
        drawn[:, place] = np.divide(wrong, total, out=np.full(len(times), np.nan), where=total > 0)
    return values, drawn


def percentiles(value: float, drawn: np.ndarray, level: float = LEVEL) -> Interval:
    """``value`` with the percentile interval of its resamples; those that are NaN are left out."""
    low, high = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))


def _rate(errors: np.ndarray, words: np.ndarray) -> float:
    total = int(words.sum())
    if not total:
        raise UserError("word error rate: the references hold no words; give at least one that is not empty")
    return float(errors.sum()) / total
