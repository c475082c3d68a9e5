"""Columns and types of ``results/runs.parquet``: one row per record, the same columns whatever ran."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import yaml

from implementations.reporting.files import read_table

_SCHEMA = Path(__file__).parents[2] / "config/schemas/record.schema.yaml"
_ARROW = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "array": pa.list_(pa.string()),
}


@cache
def record_schema() -> dict[str, Any]:
    """The JSON schema of a record, with every column required."""
    schema = yaml.safe_load(_SCHEMA.read_text(encoding="utf-8"))
    return schema | {"required": list(schema["properties"])}


@cache
def types() -> dict[str, pa.DataType]:
    """Each column's Arrow type, in the order of the record's schema."""
    return {name: _arrow_type(entry) for name, entry in record_schema()["properties"].items()}


def _arrow_type(entry: dict[str, Any]) -> pa.DataType:
    if "type" in entry:
        names = [entry["type"]] if isinstance(entry["type"], str) else entry["type"]
        return _ARROW[next(name for name in names if name != "null")]
    example = entry["const"] if "const" in entry else entry["enum"][0]
    return pa.string() if isinstance(example, str) else pa.int64()


# What makes two runs repeats of one experiment: equal in all of these, different in seed or repeat.
CONFIGURATION = [
    "paper", "method", "variant", "dataset", "data_size", "model", "workers", "processes", "threads_per_worker",
    "oversubscribed", "device", "scaling", "minibatch", "epochs", "sync_period", "algorithm", "mixing", "content", "lr",
    "lr_scaling", "optimizer", "init", "schedule", "recipe", "sharding", "network", "evidence", "server", "partition",
    "redraw", "overlap", "lost_steps", "skew", "memory_limit_bytes", "passes", "eval_size", "execution", "group_size",
    "cut", "staleness",
]  # fmt: skip


def coerce(column: str, value: Any) -> Any:
    """``value`` as its column's type, or None where it is absent, not a number or of another kind."""
    kind = types()[column]
    try:
        if value is None or value is pd.NA:
            return None
        if kind == _ARROW["array"]:
            return None if isinstance(value, float) else [str(item) for item in value]
        if isinstance(value, float) and math.isnan(value):
            return None
        if kind == pa.int64():
            return None if isinstance(value, float) and not math.isfinite(value) else int(value)
        if kind == pa.float64():
            return float(value)
        if kind == pa.bool_():
            return bool(value)
        return str(value)
    except (TypeError, ValueError, OverflowError):
        return None


def to_table(records: Iterable[dict[str, Any]]) -> pa.Table:
    """Records as an Arrow table with every column, in the order of the schema; unknown keys are left out."""
    rows = [{name: coerce(name, record.get(name)) for name in types()} for record in records]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(types().items())))


def to_frame(table: pa.Table) -> pd.DataFrame:
    """An Arrow table as a frame: whole numbers and flags may be absent (``Int64``, ``boolean``), reals are NaN then."""
    mapper = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
    return table.to_pandas(types_mapper=mapper.get)


def as_runs(source: pd.DataFrame | str | Path | None) -> pd.DataFrame:
    """The runs of a file or frame with every column in its type; no rows when there is no such file."""
    if source is None or (not isinstance(source, pd.DataFrame) and not Path(source).is_file()):
        return to_frame(to_table([]))
    frame = source if isinstance(source, pd.DataFrame) else read_table(source)
    records = frame[[name for name in frame.columns if name in types()]].astype(object)
    return to_frame(to_table(records.to_dict("records")))


def in_experiment(runs: pd.DataFrame, *names: str) -> pd.Series:
    """Which runs belong to one of the experiments ``names`` ('speedup') or sweeps ('speedup/measured')."""

    def asked(entries: Any) -> bool:
        entries = [] if entries is None or isinstance(entries, float) else list(entries)
        return any(entry == name or entry.split("/")[0] == name for entry in entries for name in names)

    return runs["experiments"].map(asked).astype(bool)


def is_speech(runs: pd.DataFrame) -> pd.Series:
    """Which runs are of frames of utterances: all of a data set of which any run has an error of frames or words.

    That the data are recordings (``data_kind``) does not say so: spoken keywords are classified whole.
    """
    known = runs["frame_error"].notna() | runs["wer"].notna()
    return runs["dataset"].isin(set(runs.loc[known, "dataset"])).fillna(False).astype(bool)


def is_true(flag: Any) -> bool:
    """Whether a cell says yes; an absent one does not."""
    return not pd.isna(flag) and bool(flag)
