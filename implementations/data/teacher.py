"""Synthetic data of any size: normal inputs labelled by a fixed two-layer tanh network, with label noise.

Chunk c of a split is a function of (name, split, c) alone, so any part can be computed by whoever needs it, and
a training set of n samples is the beginning of every larger one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from implementations.data.dataset import Batch, DataSet, Split
from implementations.data.summary import SPLITS
from implementations.errors import UserError
from implementations.seeds import numpy_stream

if TYPE_CHECKING:
    from implementations.data.cards import Card

_MASTER = 0  # the data set is one and the same in every experiment


class TeacherData(DataSet):
    """The teacher's data set; ``data_size`` sets the number of training samples freely."""

    def __init__(self, summary: dict[str, Any], data_size: int | None = None) -> None:
        super().__init__(summary, data_size)
        if self.sizes["train"] < 1:
            raise UserError(f"data_size {data_size} of {self.name}: allowed: 1 or more")
        self.generator = summary["generator"]
        self.stream_samples = self.generator["chunk"]
        self._w_fh, self._w_hc = _teacher(self.name, self.features, self.classes, self.generator)

    def chunk(self, split: str, index: int) -> Batch:
        """Chunk ``index`` of ``split``, always whole: float32 (chunk, features), int64 (chunk,)."""
        x_nf, y_n = self._chunk(split, index)
        return torch.from_numpy(x_nf), torch.from_numpy(y_n)

    def _chunk(self, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        if split not in SPLITS:
            raise KeyError(split)
        samples = self.generator["chunk"]
        draws = numpy_stream(_MASTER, "data", self.name, split, index)
        x_nf = draws.standard_normal((samples, self.features), dtype=np.float32)
        # Double precision, so that the order of a BLAS library's sums cannot move a label.
        y_n = (np.tanh(x_nf.astype(np.float64) @ self._w_fh) @ self._w_hc).argmax(axis=1)
        noisy_n = draws.random(samples) < self.generator["label_noise"]
        shift_n = draws.integers(1, self.classes, samples)
        return x_nf, np.where(noisy_n, (y_n + shift_n) % self.classes, y_n).astype(np.int64)

    def tensors(self, split: str, indices: np.ndarray | None = None) -> Batch:
        """See ``DataSet.tensors``; computes just the chunks that hold ``indices``."""
        indices = self._indices(split, indices)
        x_nf = np.empty((len(indices), self.features), np.float32)
        y_n = np.empty(len(indices), np.int64)
        chunk_n, within_n = np.divmod(indices, self.generator["chunk"])
        order_n = np.argsort(chunk_n, kind="stable")  # positions in the answer, chunk by chunk
        chunks, starts = np.unique(chunk_n[order_n], return_index=True)
        for index, positions in zip(chunks, np.split(order_n, starts)[1:], strict=True):
            chunk_x, chunk_y = self._chunk(split, int(index))
            x_nf[positions], y_n[positions] = chunk_x[within_n[positions]], chunk_y[within_n[positions]]
        return torch.from_numpy(x_nf), torch.from_numpy(y_n)

    def split(self, split: str) -> Split:
        """A whole split, computed."""
        x_nf, y_n = self.tensors(split)
        return Split(x_nf.numpy(), y_n.numpy())


def _teacher(
    name: str, features: int, classes: int, generator: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    hidden = generator["hidden"]
    if hidden < classes:
        raise UserError(f"{name}: generator.hidden: got {hidden}; allowed: at least classes, {classes}")
    draws = numpy_stream(_MASTER, "data", name, "weights")
    w_fh = draws.standard_normal((features, hidden)) * generator["gain"] / np.sqrt(features)
    # Orthonormal columns and no biases: every class has about the same share.
    w_hc, _ = np.linalg.qr(draws.standard_normal((hidden, classes)))
    return w_fh, w_hc


def describe_teacher(card: Card, kind: type[DataSet] = TeacherData) -> dict[str, Any]:
    """The summary's facts for a card with a ``generator``; ``fingerprint`` hashes the first piece of training data."""
    sizes = card.sizes
    facts = {
        "classes": sizes["classes"],
        "input_shape": sizes["input_shape"],
        "features": int(np.prod(sizes["input_shape"])),
        "splits": {part: {"samples": sizes[part]} for part in SPLITS},
        "mean": 0.0,
        "std": 1.0,
        "generator": card.values["generator"],
    }
    data = kind(facts | {"name": card.name, "data_hash": ""})
    for part in SPLITS:
        counts = sum(np.bincount(y_n.numpy(), minlength=data.classes) for _, y_n in data.stream(part))
        facts["splits"][part]["per_class"] = counts.tolist()
    first_x, first_y = (part.numpy() for part in next(data.stream("train")))
    return facts | {"fingerprint": hashlib.sha256(first_x.tobytes() + first_y.tobytes()).hexdigest()}
