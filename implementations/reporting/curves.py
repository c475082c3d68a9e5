"""Curves of training, read beside the records: a row for each evaluation."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from implementations.reporting.files import DamagedTable, read_table
from implementations.target import at_target

PACKED = "curves.parquet"  # the curves of all runs in one file, where a run was packed (reference.py)


def read_curve(results_dir: str | Path, run_id: str) -> pd.DataFrame | None:
    """A run's ``curve.parquet``, or its rows of the packed curves where the runs themselves are not kept.

    None without one, or, which is said on stderr, where it cannot be read.
    """
    path = Path(results_dir) / "runs" / run_id / "curve.parquet"
    try:
        if not path.is_file():
            return _packed(results_dir, run_id)
        return read_table(path, "delete the run's folder and run again")
    except DamagedTable as error:
        print(f"warning: a curve is left out: {error}", file=sys.stderr)
        return None


def _packed(results_dir: str | Path, run_id: str) -> pd.DataFrame | None:
    path = Path(results_dir) / PACKED
    if not path.is_file():
        return None
    curve = _by_run(path, path.stat().st_mtime_ns).get(run_id)
    return None if curve is None else curve.copy()


@lru_cache(maxsize=2)
def _by_run(path: Path, mtime_ns: int) -> dict[str, pd.DataFrame]:
    """The packed curves by run id, read once."""
    curves = read_table(path, "pack the run again")
    return {
        str(run_id): rows.drop(columns="run_id").reset_index(drop=True)
        for run_id, rows in curves.groupby("run_id", sort=False)
    }


def steps_to_target(run: dict[str, Any], results_dir: str | Path) -> float:
    """Steps until the run's target, between evaluations too; infinite where it was missed.

    NaN where there is no target, or no curve of a run that reached it.
    """
    if run["target_value"] is None or pd.isna(run["target_value"]):
        return float("nan")
    if run["target_reached"] is None or pd.isna(run["target_reached"]) or not run["target_reached"]:
        return float("inf")
    curve = read_curve(results_dir, run["run_id"])
    if curve is None:
        return float("nan")
    steps = curve["step"].astype(float).tolist()
    return at_target(curve["valid_accuracy"].tolist(), float(run["target_value"]), steps)
