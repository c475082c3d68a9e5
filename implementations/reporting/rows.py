"""Which rows a claim speaks of: filters, expressions, and what a run that did not end well counts as."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations.errors import UserError
from implementations.reporting.columns import in_experiment, types
from implementations.reporting.files import read_table

# A run that trained to its end; a missed target is a result (its time to target is infinite).
ENDED = ("ok", "target_missed")
# A run whose worker's state does not fit the memory it may take: a result, without a network.
OVER_MEMORY = "over_memory"
# A run that left no result: it broke, ran out of time, or was asked for and has no record.
BROKEN = ("failed", "timeout", "skipped")


def as_timings(source: pd.DataFrame | str | Path | None) -> pd.DataFrame:
    """The rows of a frame or of ``timings.parquet``; an empty frame where there is no such file."""
    if isinstance(source, pd.DataFrame):
        return source
    return read_table(source) if source is not None and Path(source).is_file() else pd.DataFrame()


def join_timings(timings: pd.DataFrame | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Timings with the columns of each row's record; a projection has no record and counts as ``ok``.

    ``run_evidence`` is the record's kind of evidence, ``evidence`` that of the timing.
    """
    if timings is None or not len(timings):
        return pd.DataFrame()
    if "run_evidence" not in timings.columns:
        runs = runs.assign(run_evidence=runs["evidence"])
    extra = [name for name in runs.columns if name not in timings.columns or name == "run_id"]
    records = runs[extra].drop_duplicates("run_id")
    joined = timings.merge(records, on="run_id", how="left")
    joined["status"] = joined["status"].astype(object).where(joined["status"].notna(), "ok")
    return joined


def matches(frame: pd.DataFrame, filters: dict[str, Any], where: str) -> pd.Series:
    """Rows that match every filter; a filter on a column that does not exist is a UserError naming ``where``."""
    keep = pd.Series(True, index=frame.index)
    for name, wanted in filters.items():
        if name not in frame.columns:
            if name in types() or not len(frame):
                return pd.Series(False, index=frame.index)
            raise UserError(
                f"{where}: no column {name!r} in the results; one of: {', '.join(sorted(frame.columns))}"
            )
        choices = wanted if isinstance(wanted, list) else [wanted]
        if name == "experiments":
            keep &= in_experiment(frame, *choices)
            continue
        column = frame[name]
        hit = pd.Series(False, index=frame.index)
        for choice in choices:
            hit |= column.isna() if choice is None else (column == choice).fillna(False).astype(bool)
        keep &= hit
    return keep


def values_of(frame: pd.DataFrame, expression: str, diverged_as: float | None, where: str) -> pd.Series:
    """``expression`` for each row as floats; NaN where a run gave none. A missed target's time is infinite."""
    names = [name for name in dict.fromkeys(re.findall(r"\w+", expression)) if name in frame.columns]
    numbers = {
        name: pd.Series(
            pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan), frame.index
        )
        for name in names
        if pd.api.types.is_numeric_dtype(frame[name]) or pd.api.types.is_bool_dtype(frame[name])
    }
    if "time_to_target_s" in numbers and "target_reached" in frame.columns:
        missed = (frame["target_reached"] == False).fillna(False).astype(bool)  # noqa: E712
        numbers["time_to_target_s"] = numbers["time_to_target_s"].mask(missed, np.inf)
    try:
        result = pd.DataFrame(numbers, index=frame.index).eval(expression, engine="python")
    except Exception as error:
        raise UserError(
            f"{where}: cannot work out {expression!r} from the results' number columns: {error}"
        ) from error
    values = pd.Series(result, index=frame.index, dtype=float)
    if "status" in frame.columns:
        diverged = (frame["status"] == "diverged").fillna(False).astype(bool)
        values = values.mask(diverged, np.nan if diverged_as is None else diverged_as)
    return values
