"""Sequences of unequal length: files in the ts format, and padding with a mask as the last value of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from implementations.data.arrays import write_splits
from implementations.errors import UserError

Series = tuple[Sequence[np.ndarray], np.ndarray]  # each (steps, channels), and labels (n,)


def read_ts(path: Path) -> tuple[list[np.ndarray], list[str]]:
    """Series (steps, channels) float64 and class labels of a file in the ts format of the UEA archive.

    A line has the channels of a sample, each its values with commas between, then the label, with colons between;
    what begins with # or @ says what is in the file. UserError names a line that does not fit.
    """
    series, labels = [], []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if not line or line[0] in "#@":
                continue
            *channels, label = line.split(":")
            try:
                values = np.array([channel.split(",") for channel in channels], dtype=np.float64).T
            except ValueError as error:
                raise UserError(
                    f"{path}: line {number}: not channels of numbers, equally many: {error}"
                ) from None
            if (
                values.ndim != 2
                or not np.isfinite(values).all()
                or values.shape[1] != (series[0].shape[1] if series else values.shape[1])
            ):
                raise UserError(
                    f"{path}: line {number}: not as many channels as before, or a value is missing"
                )
            series.append(values)
            labels.append(label)
    if not series:
        raise UserError(f"{path}: no samples")
    return series, labels


def pad(series: Sequence[np.ndarray], steps: int) -> np.ndarray:
    """Series as (n, steps, channels + 1) float32, zeros behind each one's end.

    The last value of a step is its mask: 1 where it is real, 0 where it pads. UserError for a series that is longer.
    """
    longest = max(map(len, series))
    if longest > steps:
        raise UserError(f"a series of {longest} steps; allowed: up to {steps}")
    x_ntc = np.zeros((len(series), steps, series[0].shape[1] + 1), np.float32)
    for padded, values in zip(x_ntc, series):
        padded[: len(values), :-1] = values
        padded[: len(values), -1] = 1
    return x_ntc


def write_sequences(out: Path, splits: Mapping[str, Series], steps: int, classes: int) -> dict[str, Any]:
    """Normalise, pad and write each split; returns the summary's facts.

    Each channel has mean 0 and standard deviation 1 over the real steps of train (``channel_mean`` and ``channel_std``
    were taken off). Loading must normalise no more, or the mask would not stay 0 or 1: ``mean`` is 0 and ``std`` 1.
    """
    real_sc = np.concatenate(splits["train"][0])
    mean_c, std_c = real_sc.mean(axis=0), real_sc.std(axis=0)
    if not std_c.all():
        raise UserError(f"{out}: channel {int(np.argmin(std_c))} is constant")
    padded = {
        part: (pad([(values - mean_c) / std_c for values in series], steps), labels)
        for part, (series, labels) in splits.items()
    }
    facts = write_splits(out, padded, classes)
    for part, (series, _) in splits.items():
        lengths = [len(values) for values in series]
        facts["splits"][part] |= {"shortest": min(lengths), "longest": max(lengths), "steps": sum(lengths)}
    channels = {"channel_mean": mean_c.tolist(), "channel_std": std_c.tolist()}
    return facts | channels | {"mean": 0.0, "std": 1.0}
