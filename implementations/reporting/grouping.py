"""Rows of results put together: groups of equal runs, typed tables, and the command that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.rows import ENDED


def command_for(paper: Any, tier: str | None = None) -> str:
    """The command that makes a paper's runs, tables and figures in a tier."""
    target = f" {paper}" if isinstance(paper, str) and paper else ""
    config = f" --configfile config/{tier}.yaml" if tier and tier != "default" else ""
    return f"snakemake --cores all{target}{config}"


def ended_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that trained to their end."""
    return runs[runs["status"].isin(ENDED).fillna(False).astype(bool)]


def groups_of(frame: pd.DataFrame, keys: list[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Groups of equal ``keys`` (absent values are equal to each other), in order, each with its keys as a dict."""
    if not len(frame):
        return
    for values, rows in frame.groupby(keys, dropna=False, sort=True):
        yield {key: cell_value(value) for key, value in zip(keys, values, strict=True)}, rows


def most_frequent(rows: pd.DataFrame, columns: Iterable[str], by: Iterable[str] = ()) -> pd.DataFrame:
    """The rows with the most frequent combination of ``columns``, for each group of ``by``."""
    columns, by = list(columns), list(by)
    if not len(rows) or not columns:
        return rows
    if by:
        parts = [most_frequent(part, columns) for _, part in rows.groupby(by, dropna=False)]
        return pd.concat(parts).sort_index()
    code = rows.groupby(columns, dropna=False).ngroup()
    return rows[code == code.mode().iloc[0]]


def cell_value(cell: Any) -> Any:
    """A cell's value; None where it is absent."""
    return None if cell is None or cell is pd.NA or (isinstance(cell, float) and np.isnan(cell)) else cell


def first_value(rows: pd.DataFrame, name: str) -> Any:
    """A column's first value; None where there is no such column."""
    return cell_value(rows[name].iloc[0]) if name in rows else None


_WHOLE = (
    "data_size", "model_params", "workers", "threads_per_worker", "minibatch", "global_batch", "epochs", "sync_period",
    "n", "base_threads", "diverged", "runs", "ng_update_period", "reference_words", "worker_params", "width",
    "hidden_layers", "memory_limit_bytes", "passes", "reached", "pairs", "seeds_crossing", "params", "image",
    "network_bytes", "state_bytes_max", "layers", "nodes", "edges", "configurations",
    "node_eliminations", "edge_eliminations", "remaining", "layer_params", "devices", "best_workers", "group_size",
    "staleness", "staleness_max", "base_global_batch", "steps_per_job", "least_steps_per_job",
    "repeats", "eval_size",
)  # fmt: skip
_TEXT = (
    "paper", "evidence", "cluster", "method", "dataset", "data_kind", "model", "scaling", "algorithm", "mixing",
    "content", "lr_scaling", "optimizer", "reduction", "max_change_rule", "init", "schedule", "settings", "recipe",
    "spread", "base", "command", "metric", "run_id", "status", "note", "formula", "variant", "server", "partition",
    "sharding", "experiments", "name", "plain_model", "first", "second", "faster_below", "faster_above", "source",
    "strategy", "objective", "sync", "degrees", "compute_source", "reason", "layer", "kind", "out", "configuration",
    "printed", "execution", "cut", "what", "precision", "constants", "capped_by", "network", "group",
)  # fmt: skip

_FLAGS = (
    "oversubscribed",
    "matches_closed_form",
    "redraw",
    "lost_steps",
    "fits",
    "best",
    "finished",
    "bytes_as_predicted",
)


def typed(table: pd.DataFrame) -> pd.DataFrame:
    """The same types whatever rows there are, so that files of two runs can be joined."""
    kinds: dict[str, Any] = {}
    for name in table.columns:
        if name in _TEXT:
            kinds[name] = "string"
        elif name in _WHOLE:
            kinds[name] = "Int64"
        elif name in _FLAGS:
            kinds[name] = "boolean"
        else:
            kinds[name] = float
    return table.astype(object).where(table.notna(), None).astype(kinds)
