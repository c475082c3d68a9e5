"""A finished run packed small enough to be committed, and drawn again without training anything.

The folder has the layout of ``results/``: every table that the pipeline left there, the calibration, and of the runs
their curves, all in one ``curves.parquet``. So whatever reads results reads it. Folders that another tier's run left
(``extended/``) are not touched.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from implementations.errors import UserError
from implementations.record import outcome_files
from implementations.reporting import benchrows
from implementations.reporting.curves import PACKED, read_curve
from implementations.reporting.files import read_table, write_parquet, write_whole

INDEX = "reference.json"
MOST_BYTES = 5_000_000  # what a clone of the repository should carry along at most
# Of results/: what is large, what only this machine can use, and what is no outcome.
_LEFT_OUT = ("batches", "data", "logs", "prepared", "pretrained", "reference", "runs")
_KINDS = (".parquet", ".json", ".yaml", ".csv")


def pack(results: Path, reference: Path, reports: Path | None = None, tier: str | None = None) -> list[str]:
    """Put the outcome of the run in ``results`` into ``reference``; returns the names of the files there.

    Beside tables and calibration: curves of the runs in ``runs.parquet``, and ``claims.csv`` of ``reports``, where it
    is. Files of the pack before that are no part of this one are removed, but for benchmarks that were not run anew.
    UserError where there are no runs, where one of them has no outcome, or where the whole is more than ``MOST_BYTES``.
    """
    runs = read_table(results / "runs.parquet")
    lost = runs[runs["status"].isin(["failed", "timeout"])]
    if len(lost):
        raise UserError(
            f"{results}/runs.parquet: {lost['run_id'].iloc[0]} is {lost['status'].iloc[0]}, and so {len(lost)} of "
            f"{len(runs)}; run snakemake again until all have a result, then pack"
        )
    files = {str(path.relative_to(results)): path for path in outcome_files(results, _KINDS, _LEFT_OUT)}
    if reports is not None and (claims := reports / "tables/claims.csv").is_file():
        files["claims.csv"] = claims
    curves = packed_curves(results, list(runs["run_id"]))
    size = curves.nbytes + sum(path.stat().st_size for path in files.values())
    if size > MOST_BYTES:
        largest = max(files, key=lambda name: files[name].stat().st_size)
        raise UserError(
            f"{results}: {size / 1e6:.1f} MB of outcomes, more than the {MOST_BYTES / 1e6:.0f} MB of a reference; "
            f"the largest is {largest}"
        )
    files.pop(benchrows.FILE, None)
    benchmarks = benchrows.joined(
        *(benchrows.read(folder / benchrows.FILE) for folder in (reference, results))
    )
    for name in set(_packed_before(reference)) - set(files) - {benchrows.FILE}:
        (reference / name).unlink(missing_ok=True)
    for name, path in files.items():
        (reference / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, reference / name)
    write_parquet(curves, reference / PACKED)
    if benchmarks:
        write_whole(reference / benchrows.FILE, benchrows.text(benchmarks).encode())
    about = {
        "tier": tier,
        "runs": len(runs),
        "began": _first(runs["started_at"].dropna().min()),
        "ended": _first(runs["started_at"].dropna().max()),
        "code_commit": sorted(runs["code_commit"].dropna().unique()),
        "files": sorted([*files, PACKED, *([benchrows.FILE] if benchmarks else [])]),
    }
    write_whole(reference / INDEX, (json.dumps(about, indent=1) + "\n").encode())
    return about["files"]


def packed_curves(results: Path, run_ids: list[str]) -> pa.Table:
    """The curves of runs that have one, one below the other, with ``run_id`` in front."""
    found = [(run_id, read_curve(results, run_id)) for run_id in run_ids]
    frames = [curve.assign(run_id=run_id) for run_id, curve in found if curve is not None]
    if not frames:
        return pa.table({"run_id": pa.array([], pa.string())})
    frame = pd.concat(frames, ignore_index=True)
    return pa.Table.from_pandas(frame[["run_id", *frame.columns.drop("run_id")]], preserve_index=False)


def _packed_before(reference: Path) -> list[str]:
    try:
        return list(json.loads((reference / INDEX).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError):
        return []


def _first(value: object) -> str | None:
    return None if value is None or pd.isna(value) else str(value)


def require(reference: Path) -> None:
    """UserError where ``reference`` holds no packed run."""
    missing = [
        name for name in ("runs.parquet", "timings.parquet", PACKED) if not (reference / name).is_file()
    ]
    if missing:
        raise UserError(
            f"{reference} has no {missing[0]}: it holds no packed run; `python -m implementations reference --pack` "
            "puts that of results/ there"
        )
    pq.read_schema(reference / PACKED)
