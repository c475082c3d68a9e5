"""Speech data sets: a sample is a frame with its neighbours, a label an HMM state, a group an utterance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from implementations.data.dataset import Batch, DataSet, Recognition, Samples, Scored, Split
from implementations.errors import UserError
from implementations.seeds import numpy_stream
from implementations.speech import corpus, hmm, prepared, recogniser
from implementations.speech.corpus import Corpus
from implementations.speech.decoder import DecoderSettings
from implementations.speech.features import Spliced

_MASTER = 0  # the order of utterances belongs to the data set

# On AN4's held-out speakers the best settings lie at or beside this, for mixtures as for networks.
START = DecoderSettings(8.0, -20.0)


class SpeechData(DataSet):
    """Frames of a corpus on disk, spliced to windows as they are asked for.

    Training utterances stand in an order drawn once for the data set, so that the first n frames are a random subset
    for any n; ``data_size`` keeps these, and the last utterance ends where they do. Normalisation, alignment and
    bigram are those of the whole data set whatever the size.
    """

    def __init__(self, folder: Path, summary: dict[str, Any], data_size: int | None = None) -> None:
        super().__init__(summary, data_size)
        stored = summary["splits"]["train"]["samples"]
        if not 1 <= self.sizes["train"] <= stored:
            raise UserError(f"data_size {data_size} of {self.name}: allowed: 1 to {stored}")
        self._folder = folder
        self._parts: dict[str, _Part] = {}

    def samples(self, split: str, indices: np.ndarray | None = None) -> Samples:
        """See ``DataSet.samples``; holds each frame once, not its windows, and only utterances that are needed."""
        part, context = self._part(split), self.input_shape[0] // 2
        if indices is None:
            return _splice(part, np.arange(len(part.order)), np.arange(part.offsets[-1]), context)
        indices = self._indices(split, indices)
        owners = np.searchsorted(part.offsets, indices, side="right") - 1
        return _splice(part, np.unique(owners), indices, context)

    @property
    def sample_bytes(self) -> int:
        """See ``DataSet.sample_bytes``; a frame without its context."""
        return 4 * self.features // self.input_shape[0] + 16

    def tensors(self, split: str, indices: np.ndarray | None = None) -> Batch:
        """See ``DataSet.tensors``: normalised by speaker, as the corpus is on disk."""
        some = self.samples(split, indices)
        return some.take(torch.arange(len(some)))

    def split(self, split: str) -> Split:
        """A whole split with its windows, (frames, 11, values), in the order of ``tensors``."""
        x_nf, y_n = self.tensors(split)
        return Split(x_nf.numpy().reshape(-1, *self.input_shape), y_n.numpy())

    def groups(self, split: str) -> np.ndarray:
        """Where utterances start and the last one ends, (utterances + 1,) int64."""
        return self._part(split).offsets

    @cached_property
    def recognition(self) -> Recognition | None:
        """The decoder, where the data set has a lexicon and a bigram; their absence leaves frame errors only."""
        if not recogniser.is_saved(self._folder):
            return None
        train = self._part("train")
        labels = train.labels[train.rows(np.arange(len(train.order)))]
        return _WordLoop(self._folder, hmm.log_priors(labels, self.classes))

    def _part(self, split: str) -> _Part:
        if split not in self._parts:
            frames = corpus.read(self._folder, split)
            order = np.arange(len(frames))
            if split == "train":
                order = numpy_stream(_MASTER, "data", self.name, "order").permutation(order)
            ends = np.cumsum(frames.lengths[order])
            used = int(np.searchsorted(ends, self.sizes[split])) + 1
            offsets = np.minimum(np.concatenate([[0], ends[:used]]), self.sizes[split])
            labels = prepared.read_labels(self._folder, split)
            self._parts[split] = _Part(frames, labels, order[:used], offsets)
        return self._parts[split]


@dataclass(frozen=True)
class _Part:
    """A split as it is presented: ``order`` has its utterances' numbers in the corpus, ``offsets`` where they start."""

    corpus: Corpus
    labels: np.ndarray  # (frames of the corpus,) int64
    order: np.ndarray
    offsets: np.ndarray

    def rows(self, utterances: np.ndarray) -> np.ndarray:
        """Frames of the corpus that these utterances, by their place in ``order``, have here."""
        starts, lengths = self.corpus.offsets[self.order[utterances]], np.diff(self.offsets)[utterances]
        return np.repeat(starts - _starts(lengths)[:-1], lengths) + np.arange(lengths.sum())


@dataclass(frozen=True)
class _Frames:
    """``Samples`` as rows of ``windows``, which overlap in memory; ``positions`` has the row of each sample."""

    windows: torch.Tensor  # (padded frames - 10, features), a view
    positions: torch.Tensor  # (n,) int64
    labels: torch.Tensor  # (n,) int64

    def take(self, rows: torch.Tensor) -> Batch:
        """See ``Samples``."""
        # index_select copies a row at a time; plain indexing takes several times as long, even from whole rows.
        windows = torch.index_select(self.windows, 0, torch.index_select(self.positions, 0, rows))
        return windows, torch.index_select(self.labels, 0, rows)

    def __len__(self) -> int:
        return len(self.labels)


def _splice(part: _Part, utterances: np.ndarray, indices: np.ndarray, context: int) -> _Frames:
    """Samples ``indices`` of a part, which are frames of these utterances (ascending places in ``part.order``)."""
    rows = part.rows(utterances)
    offsets = _starts(np.diff(part.offsets)[utterances])
    spliced = Spliced(part.corpus.features[rows], offsets, context)
    padded = torch.from_numpy(spliced.padded)
    windows = torch.as_strided(padded, spliced.windows.shape, padded.stride())
    # What a frame's place falls by when the utterances that are not here are left out.
    shift = np.zeros(len(part.order), dtype=np.int64)
    shift[utterances] = part.offsets[utterances] - offsets[:-1]
    here = indices - shift[np.searchsorted(part.offsets, indices, side="right") - 1]
    labels = torch.from_numpy(part.labels[rows[here]])
    return _Frames(windows, torch.from_numpy(spliced.positions[here]), labels)


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


class _WordLoop(Recognition):
    """Decodes with the monophone recogniser's lexicon, bigram and transitions, and a network's scores."""

    def __init__(self, folder: Path, log_priors: np.ndarray) -> None:
        self._folder, self._log_priors = folder, log_priors.astype(np.float32)
        self._decoder = recogniser.load(folder, corpus.read_lexicon(folder)).decoder

    def score(self, log_posteriors: Callable[[str], np.ndarray]) -> Scored:
        """See ``Recognition``; settings are looked for from ``START`` on."""
        valid, test = (corpus.read(self._folder, part) for part in ("valid", "test"))
        settings, valid_wer = recogniser.tune(
            self._decoder, valid, log_posteriors("valid") - self._log_priors, start=START
        )
        logs = log_posteriors("test")
        errors = recogniser.score(self._decoder, test, logs - self._log_priors, settings)
        wrong = logs.argmax(axis=1) != prepared.read_labels(self._folder, "test")
        utterances = pd.DataFrame(
            {
                "utterance": test.names.astype(object),
                "speaker": test.speaker_names[test.speakers].astype(object),
                "words": errors.words,
                "substitutions": errors.substitutions,
                "deletions": errors.deletions,
                "insertions": errors.insertions,
                "frames": test.lengths,
                "frame_errors": np.add.reduceat(wrong, test.offsets[:-1], dtype=np.int64),
            }
        )
        return Scored(settings.lm_weight, settings.word_penalty, valid_wer, utterances)
