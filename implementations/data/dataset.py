"""Data sets in memory: one interface for arrays on disk and for data computed on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from implementations.data.summary import SPLITS
from implementations.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

Batch = tuple[torch.Tensor, torch.Tensor]


class Samples(Protocol):
    """Chosen samples of a split, ready to be gathered minibatch by minibatch."""

    def take(self, rows: torch.Tensor) -> Batch:
        """Inputs, float32 (n, features) or ``SparseRows``, and labels, int64 (n,), of these rows (int64).

        Both are the caller's own. Labels are (n, most) where a sample may have several.
        """

    def __len__(self) -> int:
        """How many there are."""


class Stored:
    """``Samples`` that lie in memory as they are taken."""

    def __init__(self, x_nf: torch.Tensor, y_n: torch.Tensor) -> None:
        self._x_nf, self._y_n = x_nf, y_n

    def take(self, rows: torch.Tensor) -> Batch:
        """See ``Samples``; index_select is several times as fast as indexing."""
        return self._x_nf.index_select(0, rows), self._y_n.index_select(0, rows)

    def __len__(self) -> int:
        return len(self._y_n)


@dataclass(frozen=True)
class Scored:
    """What a recogniser made of a test set, and the settings of its decoder, chosen on held-out speakers.

    ``utterances`` has a row each: utterance, speaker, words, substitutions, deletions, insertions, frames,
    frame_errors.
    """

    lm_weight: float
    word_penalty: float
    valid_wer: float
    utterances: pd.DataFrame


class Recognition(Protocol):
    """Turns a network's scores of frames into words; what a speech data set has beside its frames."""

    def score(self, log_posteriors: Callable[[str], np.ndarray]) -> Scored:
        """Decode ``test`` with the settings that are best on ``valid``.

        ``log_posteriors(split)`` gives (frames, classes) float32 in the order of the split.
        """


class Split(NamedTuple):
    """A whole split as it is stored: ``x`` (n, *input_shape), ``y`` (n,) int64."""

    x: np.ndarray
    y: np.ndarray


class DataSet(ABC):
    """A prepared data set. ``tensors`` is what training uses; it makes only the samples asked for."""

    stream_samples = 4096  # samples of one piece of ``stream``

    def __init__(self, summary: dict[str, Any], data_size: int | None = None) -> None:
        self.summary = summary
        self.name: str = summary["name"]
        self.classes: int = summary["classes"]
        self.input_shape: tuple[int, ...] = tuple(summary["input_shape"])  # of one sample
        self.features: int = summary["features"]  # values of one sample
        self.data_hash: str = summary["data_hash"]  # the same for every ``data_size``
        self.sizes: dict[str, int] = {part: summary["splits"][part]["samples"] for part in SPLITS}
        if data_size is not None:
            self.sizes["train"] = data_size

    @abstractmethod
    def tensors(self, split: str, indices: np.ndarray | None = None) -> Batch:
        """Normalised inputs, float32 (n, features), and labels, int64 (n,), in the order of ``indices``.

        Both are contiguous and the caller's own. ``indices`` (None: all) are integers below ``sizes[split]``,
        else IndexError. Normalised means training mean 0 and standard deviation 1 over all values.
        """

    @abstractmethod
    def split(self, split: str) -> Split:
        """A whole split as stored; for computed data it is computed, so mind its size."""

    def samples(self, split: str, indices: np.ndarray | None = None) -> Samples:
        """``tensors``, to be gathered from; data sets that would take too much memory whole override it."""
        return Stored(*self.tensors(split, indices))

    @property
    def sample_bytes(self) -> int:
        """Bytes that one of ``samples`` takes as it is held; an estimate."""
        return 4 * self.features + 8

    @property
    def batch_bytes(self) -> int:
        """Bytes that a sample takes in a minibatch; an estimate."""
        return 4 * self.features + 8

    def groups(self, split: str) -> np.ndarray | None:
        """Offsets (groups + 1,) of samples that belong together (the frames of an utterance), if they do."""
        return None

    def labels(self, split: str) -> np.ndarray:
        """Labels (n,) int64 of a whole split; of several a sample's first."""
        return self.split(split).y[: self.sizes[split]]

    @property
    def recognition(self) -> Recognition | None:
        """The decoder of a speech data set."""
        return None

    def stream(self, split: str, first: int = 0, last: int | None = None) -> Iterator[Batch]:
        """Samples ``first`` to ``last`` (excluded; None: all) in pieces of at most ``stream_samples``.

        As ``tensors``, but memory does not grow with the number of samples.
        """
        last = self.sizes[split] if last is None else last
        while first < last:
            stop = min(last, (first // self.stream_samples + 1) * self.stream_samples)
            yield self.tensors(split, np.arange(first, stop))
            first = stop

    @property
    def train(self) -> Split:
        """The training split as stored."""
        return self.split("train")

    @property
    def valid(self) -> Split:
        """The validation split as stored."""
        return self.split("valid")

    @property
    def test(self) -> Split:
        """The test split as stored; read it once, at the end."""
        return self.split("test")

    def _indices(self, split: str, indices: np.ndarray | None) -> np.ndarray:
        if indices is None:
            return np.arange(self.sizes[split])
        indices = np.asarray(indices)
        if not len(indices):
            return np.empty(0, np.int64)
        if indices.dtype.kind not in "iu" or indices.min() < 0 or indices.max() >= self.sizes[split]:
            raise IndexError(f"{self.name}: {split}: indices must be integers in 0..{self.sizes[split] - 1}")
        return indices


class ArrayData(DataSet):
    """Arrays on disk, mapped into memory. ``data_size`` keeps the first training samples (shuffled ones)."""

    def __init__(self, folder: Path, summary: dict[str, Any], data_size: int | None = None) -> None:
        super().__init__(summary, data_size)
        stored = summary["splits"]["train"]["samples"]
        if not 1 <= self.sizes["train"] <= stored:
            raise UserError(f"data_size {data_size} of {self.name}: allowed: 1 to {stored}")
        self._splits = {
            part: Split(
                np.load(folder / f"{part}_x.npy", mmap_mode="r", allow_pickle=False)[: self.sizes[part]],
                np.load(folder / f"{part}_y.npy", allow_pickle=False)[: self.sizes[part]],
            )
            for part in SPLITS
        }

    def split(self, split: str) -> Split:
        """A whole split as stored."""
        return self._splits[split]

    def tensors(self, split: str, indices: np.ndarray | None = None) -> Batch:
        """See ``DataSet.tensors``."""
        stored = self._splits[split]
        if indices is None:
            x, y = np.array(stored.x), np.array(stored.y)
        else:
            rows = self._indices(split, indices)
            x, y = np.asarray(stored.x[rows]), stored.y[rows]
        x_nf = torch.from_numpy(x.reshape(len(y), self.features)).to(torch.float32)
        mean, std = (torch.tensor(self.summary[key], dtype=torch.float32) for key in ("mean", "std"))
        return x_nf.sub_(mean).div_(std), torch.from_numpy(y)
