"""Speedups of timings: each row against one worker of the same code, and against the best sequential training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

# The same experiment but for the number of workers, what goes with it, and chance.
_SAME_CODE = [
    "paper", "method", "variant", "dataset", "model", "model_params", "threads_per_worker", "minibatch", "epochs",
    "sync_period", "algorithm", "lr_scaling", "optimizer",
]  # fmt: skip
# One worker exchanges nothing: how it would have done so makes no other experiment of it.
_BASE = [name for name in _SAME_CODE if name not in ("sync_period", "algorithm", "lr_scaling")]


def add_speedups(frame: pd.DataFrame) -> None:
    """Fill the speedup columns and the runs they compare with, in place."""
    rows = frame.to_dict("records")
    one_worker: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    sequential: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["workers"] == 1:
            one_worker.setdefault(_same_code(row), []).append(row)
        if row["method"] == "sequential":
            key = _sequential(row, row["minibatch"])
            if key not in sequential or row["samples_per_s"] > sequential[key]["samples_per_s"]:
                sequential[key] = row
    for row in rows:
        bases = one_worker.get(_same_code(row), [])
        chosen = min(
            bases,
            key=lambda base: (
                base["sync_period"] != row["sync_period"],
                base["seed"] != row["seed"],
                base["data_size"] != row["data_size"],
                base["run_evidence"] != row["run_evidence"],
                base["run_id"],
            ),
            default=None,
        )
        row["speedup_same_code"], row["same_code_run_id"] = _against(row, chosen)
        fastest = max(
            filter(
                None,
                (sequential.get(_sequential(row, row[batch])) for batch in ("minibatch", "global_batch")),
            ),
            key=lambda base: base["samples_per_s"],
            default=None,
        )
        row["speedup_best_sequential"], row["best_sequential_run_id"] = _against(row, fastest)
        row["best_sequential_threads"] = None if fastest is None else threads(fastest)
    for name in (
        "speedup_same_code",
        "same_code_run_id",
        "speedup_best_sequential",
        "best_sequential_run_id",
        "best_sequential_threads",
    ):
        frame[name] = [row[name] for row in rows]


def _same_code(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["cluster"], *(plain(row[name]) for name in _BASE))


def _sequential(row: Mapping[str, Any], batch: Any) -> tuple[Any, ...]:
    return (
        row["cluster"],
        row["dataset"],
        row["model"],
        whole(row["model_params"]),
        row["optimizer"],
        threads(row),
        whole(batch),
    )


def _against(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> tuple[float, str | None]:
    if base is None:
        return math.nan, None
    return row["samples_per_s"] / base["samples_per_s"], base["run_id"]


def threads(row: Mapping[str, Any]) -> int:
    """Threads of each worker of a row."""
    return whole(row.get("threads_per_worker")) or 1


def plain(value: Any) -> Any:
    """A value that equals itself when it is absent, so that it can be part of a key."""
    return None if value is None or pd.isna(value) else value


def whole(value: Any) -> int | None:
    """A whole number, or None where it is absent or infinite."""
    return None if value is None or pd.isna(value) or not np.isfinite(value) else int(value)
