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
        longest = int(lengths.max())
        emit = np.zeros((longest, scores[0].shape[1], many), dtype=np.float32)
        for column, one in enumerate(scores):
            # A constant at a frame moves all paths alike. Without it, single precision resolves what is left.
            emit[: len(one), :, column] = one - one.max(axis=1, keepdims=True)
        language = settings.lm_weight * self.bigram_logs
        to_next = (language[:, :words].T + settings.word_penalty).astype(np.float32)  # (next, before)
        to_end = language[:, words]
        spoken, lasts = len(net.first), np.concatenate([net.last, net.silence_last])

        # For each state, the score of the best path into it and the frame in which that path entered its present
        # word. A word entered in frame t follows an exit after frame t - 1; at first, the exit is that of no word.
        best = np.full((len(net.classes), many), -np.inf, dtype=np.float32)
        begun = np.zeros(best.shape, dtype=np.int32)
        exits = np.full((words + 1, many), -np.inf, dtype=np.float32)
        hush = exits.copy()  # scores into the silence after each word
        hush_begun = np.zeros(exits.shape, dtype=np.int32)
        exits[words] = hush[words] = _HALF
        # By frame: the word before each one that is entered in it, and when each one that ends in it began.
        before = np.zeros((longest, many, words), dtype=np.int32)
        since = np.zeros((longest, words + 1, many), dtype=np.int32)
        final: list[tuple[int, ...]] = [()] * many

        stay, leave, share = (part.astype(np.float32)[:, None] for part in (self.stay, self.leave, net.share))
        leave_last = leave[lasts]
        move, origin, moved = np.empty_like(best), np.empty_like(begun), np.empty(best.shape, dtype=bool)
        reach = np.empty((many, words, words + 1), dtype=np.float32)
        for time in range(longest):
            np.add(np.ascontiguousarray(exits.T)[:, None, :], to_next, out=reach)
            before[time] = reach.argmax(axis=2)
            enter = np.take_along_axis(reach, before[time][:, :, None], axis=2)[:, :, 0]
            np.add(best[:-1], leave[:-1], out=move[1:])
            origin[1:] = begun[:-1]
            move[net.first] = np.ascontiguousarray(enter.T)[net.word] + share
            move[net.silence_first] = hush
            origin[net.first] = time
            origin[net.silence_first] = hush_begun
            best += stay
            np.greater(move, best, out=moved)
            np.copyto(best, move, where=moved)
            np.copyto(begun, origin, where=moved)
            best += np.take(emit[time], net.classes, axis=0)

            out, out_begun = best[lasts] + leave_last, begun[lasts]
            said, said_begun = _best_of_groups(out[:spoken], out_begun, self.groups)
            np.add(said, _HALF, out=exits[:words])
            exits[words] = -np.inf
            hush[:], hush_begun[:words] = exits, said_begun
            since[time] = hush_begun
            quiet = out[spoken:] > exits
            np.copyto(exits, out[spoken:], where=quiet)
            np.copyto(since[time], out_begun[spoken:], where=quiet)
            for column in np.flatnonzero(lengths == time + 1):
                ended = exits[:, column] + to_end
                if np.isfinite(ended).any():
                    final[column] = _trace(int(ended.argmax()), time, before[:, column], since[:, :, column])
        return final


def _trace(word: int, time: int, before: np.ndarray, since: np.ndarray) -> tuple[int, ...]:
    """Words of the path that ends in ``word`` at ``time``; the number past the last word is that of no word."""
    said = []
    while word < before.shape[1]:
        said.append(word)
        begun = int(since[time, word])
        word, time = int(before[begun, word]), begun - 1
    return tuple(reversed(said))


def _groups(owner: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Word and pronunciation: first each word's first one, then of the words that have them the second ones, ..."""
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)  # owner ascends
    return [(owner[place == one], np.flatnonzero(place == one)) for one in range(place.max() + 1)]


def _best_of_groups(
    scores: np.ndarray, begun: np.ndarray, groups: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Score and beginning of the best pronunciation of each word, (words, utterances) each."""
    (_, firsts), *others = groups
    best, origin = scores[firsts], begun[firsts]
    for owner, pronunciations in others:
        better = scores[pronunciations] > best[owner]
        best[owner] = np.where(better, scores[pronunciations], best[owner])
        origin[owner] = np.where(better, begun[pronunciations], origin[owner])
    return best, origin


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
