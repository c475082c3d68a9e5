"""Word-loop decoder: the best sequence of words for given state scores, with a bigram and optional silence.

Exact Viterbi search without pruning, of many utterances at once. The score of a path is the sum over frames of the
state's score, over transitions of their log probability, and over words of ``lm_weight`` times the bigram's log
probability plus ``word_penalty``; the end of the utterance counts as a bigram too, without penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from implementations.errors import UserError
from implementations.speech.bigram import back_off
from implementations.speech.hmm import phone_classes
from implementations.speech.lexicon import Lexicon

_BATCH = 32  # utterances decoded at once
_HALF = np.float32(np.log(0.5))


@dataclass(frozen=True)
class DecoderSettings:
    """What is tuned on held-out speakers: weight of the bigram, and what each word adds to a path's score."""

    lm_weight: float = 10.0
    word_penalty: float = 0.0


@dataclass(frozen=True)
class _Network:
    """All pronunciations' states, then silence: first before any word, then one after each word.

    The silence after a word is kept apart by word, as the bigram needs to know which word stood before.
    """

    classes: np.ndarray  # (states,)
    first: np.ndarray  # (pronunciations,) first state
    last: np.ndarray
    word: np.ndarray  # (pronunciations,)
    share: np.ndarray  # (pronunciations,) log share among its word's
    silence_first: (
        np.ndarray
    )  # (words + 1,) first state of the silence after each word; last: at the beginning
    silence_last: np.ndarray


class Decoder:
    """Decodes with a lexicon, a bigram (implementations.speech.bigram) and log probabilities of staying.

    ``loop_logs`` (classes,) are those of the alignment model, also for a network's scores.
    """

    def __init__(self, lexicon: Lexicon, bigram_logs: np.ndarray, loop_logs: np.ndarray) -> None:
        if bigram_logs.shape != (len(lexicon.words) + 1,) * 2:
            raise ValueError(f"bigram of shape {bigram_logs.shape} for {len(lexicon.words)} words")
        self.bigram_logs = bigram_logs
        self.network = _network(lexicon)
        self.stay = loop_logs[self.network.classes]
        self.leave = np.log(-np.expm1(np.minimum(self.stay, -1e-12)))
        self.groups = _groups(self.network.word)
        self.back_off = back_off(bigram_logs)

    def decode(
        self,
        scores: np.ndarray,
        offsets: np.ndarray,
        settings: DecoderSettings,
        names: Sequence[str] | None = None,
    ) -> list[tuple[int, ...]]:
        """Words of every utterance. ``scores`` (frames, classes): log density, or log posterior minus log prior.

        UserError names (``names``) an utterance with scores that are not finite; one with too few frames for any
        word decodes to no words.
        """
        lengths = np.diff(offsets)
        good = np.isfinite(scores).all(axis=1)
        if not good.all():
            one = int(np.searchsorted(offsets, np.argmin(good), side="right")) - 1
            raise UserError(
                f"utterance {one if names is None else names[one]}: state scores are not finite; look at its features"
            )
        said: list[tuple[int, ...]] = [()] * len(lengths)
        order = np.argsort(lengths, kind="stable")[np.count_nonzero(lengths == 0) :]
        for batch in np.array_split(order, -(-len(order) // _BATCH)) if len(order) else []:
            some = [scores[offsets[one] : offsets[one + 1]] for one in batch]
            for one, words in zip(batch, self._batch(some, settings), strict=True):
                said[one] = words
        return said

    def _batch(self, scores: list[np.ndarray], settings: DecoderSettings) -> list[tuple[int, ...]]:
        # Arrays have the utterance last: picking states or words then copies whole rows.
        net, many, words = self.network, len(scores), len(self.bigram_logs) - 1
        lengths = np.array([len(one) for one in scores])
        longest, spoken = int(lengths.max()), len(net.first)
        emit = np.zeros((longest, scores[0].shape[1], many), dtype=np.float32)
        for column, one in enumerate(scores):
            # A constant at a frame moves all paths alike. Without it, single precision resolves what is left.
            emit[: len(one), :, column] = one - one.max(axis=1, keepdims=True)
        enter = _WordEntry(self, settings, many)
        to_end = settings.lm_weight * self.bigram_logs[:, words]

        # The score of the best path into each state. What the path was is found in the end, from what is kept by
        # frame: where it moved on, its score behind each pronunciation and silence, and behind each word, where next
        # to the words themselves the number past the last one is that of no word.
        best = np.full((len(net.classes), many), -np.inf, dtype=np.float32)
        moved = np.empty((longest, *best.shape), dtype=bool)
        lasts = np.concatenate([net.last, net.silence_last])
        behind = np.empty((longest, len(lasts), many), dtype=np.float32)
        exits = np.full(
            (longest + 1, words + 1, many), -np.inf, dtype=np.float32
        )  # before the first frame too
        hush = np.full(
            (words + 1, many), -np.inf, dtype=np.float32
        )  # scores into the silence after each word
        exits[0, words] = hush[words] = _HALF

        stay, leave = (_spread(part, many) for part in (self.stay, self.leave))
        leave_last, share = leave[lasts], _spread(net.share, many)
        move = np.empty_like(best)
        ended: list[tuple[int, int, int]] = []  # column, frames, last word
        for time in range(longest):
            np.add(best[:-1], leave[:-1], out=move[1:])
            move[net.first] = enter(exits[time])[net.word] + share
            move[net.silence_first] = hush
            best += stay
            np.greater(move, best, out=moved[time])
            np.maximum(best, move, out=best)
            best += np.take(emit[time], net.classes, axis=0)
            np.add(np.take(best, lasts, axis=0), leave_last, out=behind[time])
            np.add(_best_of_groups(behind[time, :spoken], self.groups), _HALF, out=hush[:words])
            hush[words] = -np.inf
            np.maximum(hush, behind[time, spoken:], out=exits[time + 1])
            for column in np.flatnonzero(lengths == time + 1):
                final = exits[time + 1, :, column] + to_end
                if np.isfinite(final).any():
                    ended.append((int(column), time + 1, int(final.argmax())))
        said: list[tuple[int, ...]] = [()] * many
        for column, frames, word in ended:
            kept = (moved[:frames, :, column], behind[:frames, :, column], exits[:frames, :, column])
            said[column] = self._trace(word, *kept, enter.dense)
        return said

    def _trace(
        self, word: int, moved: np.ndarray, behind: np.ndarray, exits: np.ndarray, enter: np.ndarray
    ) -> tuple[int, ...]:
        """Words of the path that ends in ``word`` with the last frame; ``exits`` are those before each frame."""
        net, words, spoken = self.network, len(self.bigram_logs) - 1, len(self.network.first)
        said, time = [], len(moved) - 1
        while word < words:
            said.append(word)
            own = np.flatnonzero(net.word == word)
            if behind[time, spoken + word] > behind[time, own].max() + _HALF:
                time = _begun(moved, net.silence_first[word], net.silence_last[word], time) - 1
            one = own[behind[time, own].argmax()]
            time = _begun(moved, net.first[one], net.last[one], time) - 1
            word = int((exits[time + 1] + enter[word]).argmax())
        return tuple(reversed(said))


class _WordEntry:
    """The score of the best path into each next word, from the scores behind each word before.

    Most pairs of words back off, so their best is that of the words before, whichever the next word is; only the
    others are looked at one by one.
    """

    def __init__(self, decoder: Decoder, settings: DecoderSettings, many: int) -> None:
        words = len(decoder.bigram_logs) - 1
        before, following, higher = decoder.back_off
        weight, penalty = settings.lm_weight, settings.word_penalty
        self.dense = (weight * decoder.bigram_logs[:, :words].T + penalty).astype(
            np.float32
        )  # (next, before)
        self._before = _spread(weight * before, many)
        self._next = _spread(weight * following[:words] + penalty, many)
        owner, self._sources = np.nonzero(higher[:, :words].T)
        self._pairs = _spread(self.dense[owner, self._sources], many)
        self._owners, self._starts = np.unique(owner, return_index=True)

    def __call__(self, exits: np.ndarray) -> np.ndarray:
        """(words, utterances) from ``exits`` (words + 1, utterances)."""
        found = (exits + self._before).max(axis=0) + self._next
        if len(self._owners):
            pairs = np.take(exits, self._sources, axis=0)
            pairs += self._pairs
            special = np.maximum.reduceat(pairs, self._starts, axis=0)
            found[self._owners] = np.maximum(found[self._owners], special)
        return found


def _spread(values: np.ndarray, many: int) -> np.ndarray:
    """A copy for each utterance: adding whole arrays is several times faster than adding a column to rows."""
    return np.repeat(values.astype(np.float32)[:, None], many, axis=1)


def _begun(moved: np.ndarray, first: int, state: int, time: int) -> int:
    """The frame in which the path that is in ``state`` at ``time`` entered ``first``, a chain's first state."""
    while not (moved[time, state] and state == first):
        state -= int(moved[time, state])
        time -= 1
    return time


def _groups(owner: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Word and pronunciation: first each word's first one, then of the words that have them the second ones, ..."""
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)  # owner ascends
    return [(owner[place == one], np.flatnonzero(place == one)) for one in range(place.max() + 1)]


def _best_of_groups(scores: np.ndarray, groups: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Score of the best pronunciation of each word, (words, utterances)."""
    (_, firsts), *others = groups
    best = scores[firsts]
    for owner, pronunciations in others:
        best[owner] = np.maximum(best[owner], scores[pronunciations])
    return best


def _network(lexicon: Lexicon) -> _Network:
    classes: list[int] = []
    first, last, owner, share = [], [], [], []

    def chain(phones: Sequence[int]) -> tuple[int, int]:
        start = len(classes)
        classes.extend(phone_classes(phones))
        return start, len(classes) - 1

    for word, spoken in enumerate(lexicon.pronunciations):
        for phones in spoken:
            start, end = chain(phones)
            first.append(start)
            last.append(end)
            owner.append(word)
            share.append(-np.log(len(spoken)))
    silences = [chain([lexicon.silence]) for _ in range(len(lexicon.words) + 1)]
    arrays = (first, last, owner, share, *zip(*silences, strict=True))
    return _Network(np.array(classes), *map(np.array, arrays))
