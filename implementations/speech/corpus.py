"""A speech corpus: all frames of all utterances in one array, with what was said and by whom.

Whatever a corpus comes from (Sphinx files, a Kaldi directory, generated speech), it ends as this, on disk as plain
``.npy`` arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from implementations.errors import UserError
from implementations.speech.lexicon import Lexicon

STATES_PER_PHONE = 3

_SHOWN = 10  # problems in one message


@dataclass(frozen=True)
class Utterance:
    """One recording: ``features`` (frames, values), the words said, and who said them."""

    name: str
    speaker: str
    words: tuple[str, ...]
    features: np.ndarray


@dataclass(frozen=True)
class Corpus:
    """Utterances in one stack. Utterance u has the frames ``offsets[u]:offsets[u + 1]`` of ``features``."""

    features: np.ndarray  # (frames, values) float32
    offsets: np.ndarray  # (utterances + 1,) int64
    speakers: np.ndarray  # (utterances,) int64, into speaker_names
    words: np.ndarray  # (all words,) int64, into the lexicon's words
    word_offsets: np.ndarray  # (utterances + 1,) int64, into words
    names: np.ndarray  # (utterances,) text
    speaker_names: np.ndarray  # (speakers,) text

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each utterance."""
        return np.diff(self.offsets)

    def transcript(self, utterance: int) -> tuple[int, ...]:
        """The words of an utterance, by number."""
        first, last = self.word_offsets[utterance], self.word_offsets[utterance + 1]
        return tuple(self.words[first:last].tolist())

    def transcripts(self) -> list[tuple[int, ...]]:
        """The words of all utterances, by number."""
        return [self.transcript(utterance) for utterance in range(len(self))]

    def select(self, utterances: Sequence[int] | np.ndarray) -> Corpus:
        """A corpus of these utterances, in this order; speakers keep their numbers."""
        chosen = np.asarray(utterances, dtype=np.int64)
        return Corpus(
            self.features[_rows(self.offsets, chosen)],
            _starts(np.diff(self.offsets)[chosen]),
            self.speakers[chosen],
            self.words[_rows(self.word_offsets, chosen)],
            _starts(np.diff(self.word_offsets)[chosen]),
            self.names[chosen],
            self.speaker_names,
        )


def build(utterances: Sequence[Utterance], lexicon: Lexicon) -> Corpus:
    """Check and stack utterances. UserError lists what is wrong with which.

    Wrong are: words missing from the dictionary, an empty transcript, values that are not finite, fewer frames than
    the shortest pronunciation has states, features of different widths, a name used twice.
    """
    problems = []
    widths = {one.features.shape[1] for one in utterances if one.features.ndim == 2}
    if not utterances:
        raise UserError("a corpus needs at least one utterance; got none")
    if len(widths) != 1:
        problems.append(f"features have different widths: {', '.join(map(str, sorted(widths))) or 'none'}")
    seen, said = set(), []
    for one in utterances:
        if one.name in seen:
            problems.append(f"utterance {one.name}: is there twice")
        seen.add(one.name)
        try:
            words = lexicon.encode(one.words, one.name)
        except UserError as error:
            problems.append(str(error))
            continue
        said.append(words)
        problems += _faults(one, words, lexicon)
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise UserError("\n".join(problems[:_SHOWN] + more))
    speaker_names = sorted({one.speaker for one in utterances})
    numbers = {speaker: number for number, speaker in enumerate(speaker_names)}
    return Corpus(
        np.concatenate([one.features for one in utterances]).astype(np.float32, copy=False),
        _starts(np.array([len(one.features) for one in utterances])),
        np.array([numbers[one.speaker] for one in utterances], dtype=np.int64),
        np.array([word for words in said for word in words], dtype=np.int64),
        _starts(np.array([len(words) for words in said])),
        np.array([one.name for one in utterances]),
        np.array(speaker_names),
    )


def shortest(words: Sequence[int], lexicon: Lexicon) -> int:
    """Frames that the words take at least: one a state, in their shortest pronunciations, without silence."""
    phones = sum(min(map(len, lexicon.pronunciations[word])) for word in words)
    return STATES_PER_PHONE * phones


def write(out: Path, parts: Mapping[str, Corpus], lexicon: Lexicon) -> dict[str, Any]:
    """Write every part and the lexicon as ``.npy`` arrays into ``out``; returns the summary's facts.

    Samples are frames; classes are the states of monophones; ``input_shape`` is that of the stored frame.
    """
    splits = {}
    for part, corpus in parts.items():
        for field in Corpus.__dataclass_fields__:
            np.save(out / f"{part}_{field}.npy", getattr(corpus, field), allow_pickle=False)
        splits[part] = {
            "samples": len(corpus.features),
            "utterances": len(corpus),
            "words": len(corpus.words),
            "speakers": len(np.unique(corpus.speakers)),
        }
    spoken = [(word, sounds) for word, some in enumerate(lexicon.pronunciations) for sounds in some]
    arrays = {
        "words": np.array(lexicon.words),
        "phones": np.array(lexicon.phones),
        "pronunciation_words": np.array([word for word, _ in spoken], dtype=np.int64),
        "pronunciation_offsets": _starts(np.array([len(sounds) for _, sounds in spoken])),
        "pronunciation_phones": np.array([phone for _, sounds in spoken for phone in sounds], dtype=np.int64),
    }
    for name, array in arrays.items():
        np.save(out / f"lexicon_{name}.npy", array, allow_pickle=False)
    width = next(iter(parts.values())).features.shape[1]
    return {
        "classes": STATES_PER_PHONE * len(lexicon.phones),
        "input_shape": [width],
        "features": width,
        "splits": splits,
    }


def read(folder: Path, part: str) -> Corpus:
    """A part written by ``write``; the frames are mapped, not read."""
    arrays = {
        field: np.load(
            folder / f"{part}_{field}.npy",
            mmap_mode="r" if field == "features" else None,
            allow_pickle=False,
        )
        for field in Corpus.__dataclass_fields__
    }
    return Corpus(**arrays)


def read_lexicon(folder: Path) -> Lexicon:
    """The lexicon written by ``write``."""
    names = ("words", "phones", "pronunciation_words", "pronunciation_offsets", "pronunciation_phones")
    words, phones, owners, offsets, sounds = (
        np.load(folder / f"lexicon_{name}.npy", allow_pickle=False).tolist() for name in names
    )
    spoken: list[list[tuple[int, ...]]] = [[] for _ in words]
    for owner, first, last in zip(owners, offsets[:-1], offsets[1:], strict=True):
        spoken[owner].append(tuple(sounds[first:last]))
    return Lexicon(tuple(words), tuple(phones), tuple(map(tuple, spoken)))


def _faults(one: Utterance, words: tuple[int, ...], lexicon: Lexicon) -> list[str]:
    faults = []
    if not words:
        faults.append(f"utterance {one.name}: its transcript is empty; give its words or leave it out")
    if one.features.ndim != 2 or not np.isfinite(one.features).all():
        bad = one.features.ndim == 2 and int(np.argmin(np.isfinite(one.features).all(axis=1)))
        where = f"frame {bad} is not finite" if one.features.ndim == 2 else f"shape {one.features.shape}"
        faults.append(f"utterance {one.name}: features: {where}; make them again or leave it out")
    elif len(one.features) < (needed := shortest(words, lexicon)):
        faults.append(
            f"utterance {one.name}: {len(one.features)} frames are too few for its words, which have {needed} states; "
            "leave it out"
        )
    return faults


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _rows(offsets: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Rows of the stacked array that belong to the chosen utterances, in order."""
    lengths = np.diff(offsets)[chosen]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(offsets[chosen], lengths) + within
