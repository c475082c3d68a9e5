"""Images that are too many for memory: read from the mapped file as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from implementations.data.dataset import ArrayData, Batch, DataSet


class ImageData(ArrayData):
    """As ``ArrayData``, but normalised channel by channel, by ``mean`` and ``std`` of the summary (one each a channel).

    ``samples`` copies nothing; only the images of a minibatch are read, when it is taken.
    """

    stream_samples = 256  # 154 MB of 3 x 224 x 224 in float32

    def tensors(self, split: str, indices: np.ndarray | None = None) -> Batch:
        """See ``DataSet.tensors``; mind the size of what is asked for."""
        stored, rows = self.split(split), self._indices(split, indices)
        x_nchw = torch.from_numpy(np.asarray(stored.x[rows])).to(torch.float32)
        mean, std = (
            torch.tensor(self.summary[key], dtype=torch.float32).view(-1, 1, 1) for key in ("mean", "std")
        )
        x_nf = x_nchw.sub_(mean).div_(std).view(len(rows), self.features)
        return x_nf, torch.from_numpy(stored.y[rows])

    def samples(self, split: str, indices: np.ndarray | None = None) -> Gathered:
        """See ``DataSet.samples``."""
        return Gathered(self, split, self._indices(split, indices))


@dataclass(frozen=True)
class Gathered:
    """``Samples`` that are read or computed as they are taken; ``rows`` has the place of each in its split."""

    data: DataSet
    split: str
    rows: np.ndarray

    def take(self, rows: torch.Tensor) -> Batch:
        """See ``Samples``."""
        return self.data.tensors(self.split, self.rows[rows.numpy()])

    def __len__(self) -> int:
        return len(self.rows)
