"""How a run of the pipeline ended: counts, what failed and where its log is, the report's path, an exit code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TextIO

import pandas as pd

from implementations.reporting.columns import as_runs
from implementations.reporting.rows import BROKEN


def summarise(
    results_dir: str | Path = "results",
    reports_dir: str | Path = "reports",
    file: TextIO | None = None,
    partial: bool = False,
) -> int:
    """Print the summary to ``file`` (default: standard output); 1 when a point has no result, else 0.

    Points that failed, ran out of time or have no record (``skipped``) have none; a report that is ``partial`` on
    purpose, of the records that there are, does without the last. Points whose own record says that they were skipped,
    as this machine lacks what they need, are told by their reason, and are no failure. No ``runs.parquet`` counts as
    one too: nothing was collected.
    """
    source, report = Path(results_dir) / "runs.parquet", Path(reports_dir) / "report.html"
    lines, code = (
        summary_lines(as_runs(source), partial)
        if source.is_file()
        else ([f"no runs: {source} does not exist"], 1)
    )
    lines.append(f"report: {report}" if report.is_file() else f"no report: {report} does not exist")
    print("\n".join(lines), file=file)
    return code


def summary_lines(runs: pd.DataFrame, partial: bool = False) -> tuple[list[str], int]:
    """The lines about the points, and the exit code."""
    failures = [name for name in BROKEN if not (partial and name == "skipped")]
    counts = Counter(runs["status"].dropna())
    lines = [
        f"{len(runs)} points: " + (", ".join(f"{counts[name]} {name}" for name in sorted(counts)) or "none")
    ]
    # a row that stands for a missing record counts no attempts
    skipped = (runs["status"] == "skipped").fillna(False).astype(bool) & runs["attempts"].notna()
    for reason, group in runs[skipped].groupby("reason", dropna=False):
        lines.append(f"  skipped, {len(group)} of them: {'no reason given' if pd.isna(reason) else reason}")
    broken = runs[runs["status"].isin(failures).fillna(False).astype(bool) & ~skipped]
    broken = broken.sort_values(["status", "run_id"])
    for row in broken.to_dict("records"):
        log = "no log" if pd.isna(row["log_path"]) else f"log: {row['log_path']}"
        reason = "no reason given" if pd.isna(row["reason"]) else row["reason"]
        lines.append(f"  {row['status']}: {row['run_id']}: {reason} ({log})")
    return lines, int(len(broken) > 0)
