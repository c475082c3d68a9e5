"""Sparse data sets: bags of words with one label or several, as compressed rows on disk, mapped into memory.

A part ``p`` lies in ``p_x_offsets.npy`` (samples + 1,) int64, ``p_x_indices.npy`` int32 and ``p_x_values.npy``
float32: sample i has the features ``indices[offsets[i]:offsets[i + 1]]`` with these values, and no others. Labels lie
in ``p_y_offsets.npy`` and ``p_y_indices.npy`` likewise; every sample has one at least.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from implementations.data.dataset import Batch, DataSet, Split
from implementations.data.summary import SPLITS
from implementations.errors import UserError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NO_LABEL = -1  # fills the rows of samples with fewer labels than others


@dataclass(frozen=True)
class SparseRows:
    """Inputs of a minibatch, or of the minibatches of W workers: a matrix that keeps only what is not zero.

    Row i has the features ``indices[offsets[i]:offsets[i + 1]]`` (int64) with weights ``values`` (float32), as
    ``torch.nn.functional.embedding_bag`` takes them (``include_last_offset=True``, ``mode="sum"``). ``shape`` is (n,
    features) or (W, n, features), rows of the first worker first; ``view`` and ``unsqueeze`` go from one to the other
    as those of a dense tensor do.
    """

    indices: torch.Tensor
    offsets: torch.Tensor
    values: torch.Tensor
    shape: tuple[int, ...]

    def __len__(self) -> int:
        """Workers, or rows where there is no axis of workers."""
        return self.shape[0]

    def view(self, *shape: int) -> SparseRows:
        """The same rows under another shape, features last; ValueError if it does not hold as many."""
        rows, features = len(self.offsets) - 1, self.shape[-1]
        if -1 in shape[:-1]:
            known = -int(np.prod(shape[:-1]))  # of the others: the open one counts as -1
            shape = tuple(rows // max(known, 1) if length == -1 else length for length in shape)
        if len(shape) not in (2, 3) or shape[-1] != features or int(np.prod(shape[:-1])) != rows:
            raise ValueError(f"{rows} rows of {features} features do not fit into shape {shape}")
        return SparseRows(self.indices, self.offsets, self.values, shape)

    def unsqueeze(self, dim: int) -> SparseRows:
        """(1, n, features) of (n, features); ``dim`` is 0."""
        if dim != 0 or len(self.shape) != 2:
            raise ValueError(
                f"unsqueeze({dim}) of {self.shape}; there is (n, features) to (1, n, features) only"
            )
        return self.view(1, *self.shape)

    def stacked_indices(self) -> torch.Tensor:
        """Indices into the tables of W workers laid one after another, (W * features, ...); of one, ``indices``."""
        if len(self.shape) == 2 or self.shape[0] == 1:
            return self.indices
        workers, rows, features = self.shape
        counts = self.offsets[::rows].diff()
        owners = torch.arange(workers, device=counts.device).repeat_interleave(counts)
        return self.indices + owners * features

    def owners(self) -> torch.Tensor:
        """The row of each index, (values,) int64."""
        counts = self.offsets.diff()
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    def to(self, device: torch.device) -> SparseRows:
        """The same rows in the memory of a device."""
        parts = (self.indices, self.offsets, self.values)
        return SparseRows(*(part.to(device) for part in parts), self.shape)

    def csr(self) -> torch.Tensor:
        """A torch sparse CSR matrix (all rows, features)."""
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="Sparse CSR tensor support is in beta", category=UserWarning
            )
            size = (len(self.offsets) - 1, self.shape[-1])
            return torch.sparse_csr_tensor(
                self.offsets, self.indices, self.values, size, check_invariants=False
            )

    def dense(self) -> torch.Tensor:
        """A dense float32 tensor of ``shape``."""
        x_nf = self.values.new_zeros(len(self.offsets) - 1, self.shape[-1])
        x_nf[self.owners(), self.indices] = self.values
        return x_nf.view(self.shape)


class SparseData(DataSet):
    """Sparse samples on disk. ``data_size`` keeps the first training samples (shuffled ones).

    Values are as stored, not normalised: zeros must stay zero. Labels are (n,) where every sample has one, else (n,
    ``most_labels``), in rising order and then ``NO_LABEL``.
    """

    stream_samples = 256  # dense ones

    def __init__(self, folder: Path, summary: dict[str, Any], data_size: int | None = None) -> None:
        super().__init__(summary, data_size)
        stored = summary["splits"]["train"]["samples"]
        if not 1 <= self.sizes["train"] <= stored:
            raise UserError(f"data_size {data_size} of {self.name}: allowed: 1 to {stored}")
        self.most_labels: int = summary["most_labels"]
        self._inputs = {part: _Rows.load(folder, f"{part}_x") for part in SPLITS}
        self._labels = {part: _Rows.load(folder, f"{part}_y") for part in SPLITS}

    def samples(self, split: str, indices: np.ndarray | None = None) -> SparseSamples:
        """See ``DataSet.samples``; inputs are taken as ``SparseRows``, and nothing is copied before."""
        rows = self._indices(split, indices)
        return SparseSamples(self._inputs[split], self._labels[split], rows, self.features, self.most_labels)

    @property
    def sample_bytes(self) -> int:
        """See ``DataSet.sample_bytes``; the number of its row alone."""
        return 8

    @property
    def batch_bytes(self) -> int:
        """See ``DataSet.batch_bytes``; values and their places, as many as a row has on average."""
        rows = self._inputs["train"]
        return 12 * (len(rows.indices) // (len(rows.offsets) - 1)) + 8 * self.most_labels

    def tensors(self, split: str, indices: np.ndarray | None = None) -> Batch:
        """Dense inputs as stored and labels; mind the size, as features can be many."""
        some = self.samples(split, indices)
        x, y = some.take(torch.arange(len(some)))
        return x.dense(), y

    def split(self, split: str) -> Split:
        """A whole split: ``x`` is a scipy ``csr_array`` (n, features), ``y`` as of ``tensors``."""
        from scipy.sparse import csr_array

        some = self.samples(split)
        x, y = some.take(torch.arange(len(some)))
        parts = (x.values.numpy(), x.indices.numpy(), x.offsets.numpy())
        return Split(csr_array(parts, shape=x.shape), y.numpy())


@dataclass(frozen=True)
class SparseSamples:
    """``Samples`` gathered from compressed rows; ``rows`` has the row of each sample."""

    _inputs: _Rows
    _labels: _Rows
    rows: np.ndarray
    features: int
    most_labels: int

    def take(self, rows: torch.Tensor) -> tuple[SparseRows, torch.Tensor]:
        """Inputs (n, features) and labels (n,) or (n, most_labels) int64 of these rows (int64)."""
        chosen = self.rows[rows.numpy()]
        offsets, at = self._inputs.places(chosen)
        x = SparseRows(
            torch.from_numpy(self._inputs.indices[at].astype(np.int64)),
            torch.from_numpy(offsets),
            torch.from_numpy(self._inputs.values[at]),
            (len(chosen), self.features),
        )
        offsets, at = self._labels.places(chosen)
        labels = self._labels.indices[at].astype(np.int64)
        if self.most_labels > 1:
            padded = np.full((len(chosen), self.most_labels), NO_LABEL)
            padded[np.arange(self.most_labels) < np.diff(offsets)[:, None]] = labels
            labels = padded
        return x, torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class _Rows:
    """Compressed rows, mapped into memory."""

    offsets: np.ndarray
    indices: np.ndarray
    values: np.ndarray | None

    @classmethod
    def load(cls, folder: Path, stem: str) -> _Rows:
        def mapped(what: str) -> np.ndarray:
            # A plain view of the map: numpy's own class for maps makes every small index slow.
            return np.asarray(np.load(folder / f"{stem}_{what}.npy", mmap_mode="r", allow_pickle=False))

        weighted = (folder / f"{stem}_values.npy").exists()
        return cls(mapped("offsets"), mapped("indices"), mapped("values") if weighted else None)

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Offsets of these rows' entries once they are gathered, (rows + 1,), and where the entries are."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return offsets, np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def write_splits(out: Path, splits: Mapping[str, tuple[csr_array, csr_array]]) -> dict[str, Any]:
    """Write each split's inputs (n, features) and labels (n, classes), of which only the places count.

    Returns the summary's facts. UserError for splits that do not fit together, values that are not finite, or a
    sample without a label.
    """
    widths = {(x.shape[1], y.shape[1]) for x, y in splits.values()}
    if set(splits) != set(SPLITS) or len(widths) != 1:
        got = f"{', '.join(splits)} of features and classes {sorted(widths)}"
        raise UserError(f"{out}: got splits {got}; needed: {', '.join(SPLITS)} of the same")
    counts, most = {}, 0
    for part, (x, y) in splits.items():
        lengths = np.diff(y.indptr)
        if x.shape[0] != y.shape[0] or not len(lengths) or not lengths.all():
            got = (
                f"{x.shape[0]} samples and {y.shape[0]} rows of labels, {np.sum(lengths == 0)} of them empty"
            )
            raise UserError(f"{out}: {part}: got {got}; needed: as many of both, none empty")
        if not np.isfinite(x.data).all():
            raise UserError(f"{out}: {part}: a value is not finite")
        counts[part] = {"samples": len(lengths), "values": int(x.nnz), "labels": int(y.nnz)}
        most = max(most, int(lengths.max()))
        _write(out, f"{part}_x", x)
        _write(out, f"{part}_y", y)
        np.save(out / f"{part}_x_values.npy", x.sorted_indices().data.astype(np.float32), allow_pickle=False)
    ((features, classes),) = widths
    return {
        "classes": classes,
        "input_shape": [features],
        "features": features,
        "splits": counts,
        "most_labels": most,
    }


def _write(out: Path, stem: str, rows: csr_array) -> None:
    rows = rows.sorted_indices()
    np.save(out / f"{stem}_offsets.npy", rows.indptr.astype(np.int64), allow_pickle=False)
    np.save(out / f"{stem}_indices.npy", rows.indices.astype(np.int32), allow_pickle=False)
