"""Errors of every test utterance of every run, and the rates of groups of runs redrawn from them.

A test set of a few hundred words says little by its size alone: intervals are drawn over its speakers, over the
utterances of each, and over seeds (``speech.wer``), the same utterances for all that is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from implementations.reporting.files import read_table
from implementations.speech import wer

# What a run leaves of each utterance, after the run's id.
COUNTS = ("words", "substitutions", "deletions", "insertions", "frames", "frame_errors")
SCHEMA = pa.schema(
    [("run_id", pa.string()), ("utterance", pa.string()), ("speaker", pa.string())]
    + [(name, pa.int64()) for name in COUNTS]
)
METRICS = {"wer": "words", "frame_error": "frames"}  # a rate, and what its errors are counted over


class NotComparable(Exception):
    """Runs that cannot be redrawn together: other test utterances, or no seed in common."""


@dataclass(frozen=True)
class Redrawn:
    """Mean rates of groups of runs, and the same over resampled speakers, utterances and seeds."""

    values: np.ndarray  # (groups,)
    drawn: np.ndarray  # (resamples, groups)
    speakers: int
    seeds: int  # of the group with the fewest

    @property
    def over(self) -> str:
        """What was redrawn, in words."""
        speakers = f"{self.speakers} speaker{'s' if self.speakers > 1 else ''}"
        return f"{speakers} and {self.seeds} seeds" if self.seeds > 1 else f"{speakers}, one seed"

    def interval(self, weights: Sequence[float], ratio: bool = False) -> wer.Interval:
        """95 % interval of the weighted sum of the groups' rates, or of the first over the second."""
        if ratio:
            return wer.percentiles(self.values[0] / self.values[1], self.drawn[:, 0] / self.drawn[:, 1])
        return wer.percentiles(self.values @ weights, self.drawn @ np.asarray(weights, dtype=float))


def as_utterances(source: pd.DataFrame | str | Path | None) -> pd.DataFrame:
    """The rows of a frame or of ``utterances.parquet``; an empty frame where there is no such file."""
    if isinstance(source, pd.DataFrame):
        return source
    if source is None or not Path(source).is_file():
        return SCHEMA.empty_table().to_pandas()
    return read_table(source)


class Utterances:
    """The test utterances of runs (columns of ``SCHEMA``), found by run id."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame.sort_values(["run_id", "utterance"], kind="stable")
        self._rows = self._frame.groupby("run_id", sort=False).indices
        self._times: dict[bytes, np.ndarray] = {}

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._rows

    def redraw(self, groups: Sequence[pd.DataFrame], metric: str, paired: bool = False) -> Redrawn:
        """Mean over seeds of each group's ``metric``, a corpus rate, as it is and in every resample.

        groups: runs with ``run_id``, ``seed`` and, for a run that left no utterances, the ``rate`` that it counts
        with; several runs of a seed count once, with their mean. ``paired``: only seeds that all groups have, drawn
        together. Raises NotComparable, and KeyError for a run with neither utterances nor a rate.
        """
        first = next((name for group in groups for name in group["run_id"] if name in self), None)
        test = None if first is None else self._of(first)
        units = np.ones(1) if test is None else test[METRICS[metric]].to_numpy(dtype=float)
        speakers = np.zeros(1) if test is None else pd.factorize(test["speaker"])[0]
        errors = [self._by_seed(group, metric, test, units) for group in groups]
        if paired:
            shared = sorted(reduce(set.intersection, (set(rows) for rows in errors)))
            errors = [{seed: rows[seed] for seed in shared} for rows in errors]
        if not all(errors):
            raise NotComparable("no seed that all groups have" if paired else "a group without runs")
        stacked = [np.stack([rows[seed] for seed in sorted(rows)]) for rows in errors]
        values, drawn = wer.mean_rates(stacked, units, self._drawn(speakers), paired=paired)
        return Redrawn(values, drawn, len(np.unique(speakers)), min(map(len, stacked)))

    def _of(self, run_id: str) -> pd.DataFrame:
        return self._frame.iloc[self._rows[run_id]]

    def _by_seed(
        self, group: pd.DataFrame, metric: str, test: pd.DataFrame | None, units: np.ndarray
    ) -> dict[int, np.ndarray]:
        """Errors of each utterance, the mean over a seed's runs."""
        found: dict[int, list[np.ndarray]] = {}
        rates = group["rate"] if "rate" in group else pd.Series(np.nan, index=group.index)
        for run_id, seed, rate in zip(group["run_id"], group["seed"], rates, strict=True):
            errors = float(rate) * units if pd.notna(rate) else self._errors(run_id, metric, test)
            found.setdefault(int(seed), []).append(errors)
        return {seed: np.mean(rows, axis=0) for seed, rows in found.items()}

    def _errors(self, run_id: str, metric: str, test: pd.DataFrame) -> np.ndarray:
        own = self._of(run_id)
        for name in ("utterance", "speaker", METRICS[metric]):
            if not np.array_equal(own[name].to_numpy(), test[name].to_numpy()):
                raise NotComparable("the runs were tested on different utterances")
        names = ["substitutions", "deletions", "insertions"] if metric == "wer" else ["frame_errors"]
        return own[names].to_numpy(dtype=float).sum(axis=1)

    def _drawn(self, speakers: np.ndarray) -> np.ndarray:
        """The resamples of a test set, made once."""
        key = speakers.tobytes()
        if key not in self._times:
            self._times[key] = wer.draw_utterances(speakers)
        return self._times[key]
