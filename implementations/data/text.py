"""Text as windows of characters, each to be followed by the next one; the one-hot arrays are made as they are taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from implementations.data.dataset import Batch, DataSet, Split
from implementations.data.summary import SPLITS
from implementations.errors import UserError

_SHARES = {"train": 0.9, "valid": 0.05, "test": 0.05}  # of the text, in this order


class CharacterData(DataSet):
    """Windows of ``steps`` characters, one-hot (steps, symbols); the label is the character that follows.

    On disk and in memory is the text alone, a byte a character. Inputs are not normalised: zeros must stay zero.
    ``data_size`` keeps the windows from the beginning of the training text: a shorter text.
    """

    stream_samples = 1024  # 8.5 MB of 32 x 65 values

    def __init__(self, folder: Path, summary: dict[str, Any], data_size: int | None = None) -> None:
        super().__init__(summary, data_size)
        stored = summary["splits"]["train"]["samples"]
        if not 1 <= self.sizes["train"] <= stored:
            raise UserError(f"data_size {data_size} of {self.name}: allowed: 1 to {stored}")
        self.steps = self.input_shape[0]
        self._codes = np.asarray(np.load(folder / "codes.npy", mmap_mode="r", allow_pickle=False))

    def samples(self, split: str, indices: np.ndarray | None = None) -> Windows:
        """See ``DataSet.samples``; holds eight bytes a sample."""
        return Windows(self._codes, self._starts(split, indices), self.steps, self.classes)

    def tensors(self, split: str, indices: np.ndarray | None = None) -> Batch:
        """One-hot inputs and labels; mind the size of what is asked for."""
        some = self.samples(split, indices)
        return some.take(torch.arange(len(some)))

    def split(self, split: str) -> Split:
        """A whole split as stored: ``x`` (n, steps) uint8 is the characters' places in ``summary["symbols"]``."""
        windows = np.lib.stride_tricks.sliding_window_view(self._codes, self.steps)
        starts = self._starts(split, None)
        first, last, stride = starts[0], starts[-1], self.summary["splits"][split]["stride"]
        return Split(windows[first : last + 1 : stride], self.labels(split))  # a view of the text

    def labels(self, split: str) -> np.ndarray:
        """See ``DataSet.labels``."""
        return self._codes[self._starts(split, None) + self.steps].astype(np.int64)

    def _starts(self, split: str, indices: np.ndarray | None) -> np.ndarray:
        """Where in the text the windows begin."""
        part = self.summary["splits"][split]
        return part["first"] + part["stride"] * self._indices(split, indices).astype(np.int64)


@dataclass(frozen=True)
class Windows:
    """``Samples`` gathered from a text; ``starts`` has the place of each one's first character."""

    codes: np.ndarray  # uint8
    starts: np.ndarray
    steps: int
    symbols: int

    def take(self, rows: torch.Tensor) -> Batch:
        """See ``Samples``."""
        places = self.starts[rows.numpy()][:, None] + np.arange(self.steps + 1)
        codes = torch.from_numpy(self.codes[places].astype(np.int64))
        x_nts = torch.zeros(len(codes), self.steps, self.symbols)
        x_nts.scatter_(2, codes[:, :-1, None], 1.0)
        return x_nts.view(len(codes), self.steps * self.symbols), codes[:, -1].contiguous()

    def __len__(self) -> int:
        return len(self.starts)


def write_text(out: Path, text: str, steps: int, classes: int, held_out_stride: int) -> dict[str, Any]:
    """Write ``codes.npy`` (characters,) uint8; returns the summary's facts.

    The text is cut by position into 90 % train, 5 % valid and 5 % test; a window and the character after it lie
    within one part. Training windows begin at every character, the others at every ``held_out_stride``-th, as
    evaluations need not see all. ``classes`` may be more than there are symbols, if another text has more. UserError
    for a text with more symbols than ``classes`` (at most 256), or of which a part holds no window.
    """
    symbols = "".join(sorted(set(text)))
    if not len(symbols) <= classes <= 256:
        raise UserError(f"{out}: a text of {len(symbols)} symbols; allowed: {classes} classes, at most 256")
    place = {symbol: code for code, symbol in enumerate(symbols)}
    np.save(out / "codes.npy", np.fromiter(map(place.get, text), np.uint8, len(text)), allow_pickle=False)
    splits, first = {}, 0
    for part in SPLITS:
        last = len(text) if part == SPLITS[-1] else first + int(_SHARES[part] * len(text))
        if last - first <= steps:
            raise UserError(
                f"{out}: {part} has {last - first} characters; needed: more than a window's {steps}"
            )
        stride = 1 if part == "train" else held_out_stride
        samples = (last - first - steps - 1) // stride + 1
        splits[part] = {"samples": samples, "first": first, "stride": stride}
        first = last
    return {
        "classes": classes,
        "input_shape": [steps, classes],
        "features": steps * classes,
        "splits": splits,
        "symbols": symbols,
    }
