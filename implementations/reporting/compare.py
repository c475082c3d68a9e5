"""A user's runs against the reference's, point by point: quality, bytes and times, with a verdict for each point.

A point's own run of the reference is the one of its run id; where that is not there, those of the same experiment with
other seeds stand for it. Verdicts:

* ``same bits``: every figure of quality and every count of bytes is the reference's, to the last digit;
* ``within range``: the bytes are the same, and the quality is one that another seed of the reference may have: inside
  the 95 % prediction interval of its seeds (Student's), which are two or more;
* ``same bytes``: the bytes are the same, and there is one seed alone to hold the quality against;
* ``differs``: bytes, outcome or quality are other ones.

Seconds are never judged: hosts differ. Their ratio is told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from implementations.errors import UserError
from implementations.record import METHOD_COLUMNS
from implementations.reporting.files import read_table

SAME_BITS, WITHIN, SAME_BYTES, DIFFERS = VERDICTS = ("same bits", "within range", "same bytes", "differs")
QUALITY = ("accuracy", "loss", "valid_accuracy", "valid_loss", "train_loss", "wer", "frame_error")
BYTES = ("sent_bytes_total", "payload_bytes", "paper_bytes", "messages")
LEVEL = 0.95
_SHOWN = 20  # points that differ, at the terminal

# What makes an experiment, beside chance and host.
EXPERIMENT = (
    "method", "variant", "dataset", "data_kind", "data_size", "model", "workers", "threads_per_worker", "device",
    "transport", "scaling", "minibatch", "epochs", "passes", "optimizer", "lr", "lr_scaling", "reduction", "momentum",
    "init", "schedule", "recipe", "sharding", "skew", "memory_limit_bytes", "network", "evidence", "target_metric",
    "target_value", "eval_size", *METHOD_COLUMNS,
)  # fmt: skip
COLUMNS = [
    "run_id", "verdict", "why", "matched", "reference_seeds", "evidence", "status", "reference_status", "metric",
    "value", "reference_value", "reference_low", "reference_high", "sent_bytes", "reference_sent_bytes", "time_s",
    "reference_time_s", "time_ratio",
]  # fmt: skip

Record = Mapping[str, Any]


def load(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder of results: those of its runs, and those of its ``runs.parquet`` beside them."""
    found: dict[str, dict[str, Any]] = {}
    table = folder / "runs.parquet"
    if table.is_file():
        for row in read_table(table).to_dict("records"):
            found[row["run_id"]] = row
    for path in sorted(folder.glob("runs/*/record.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            found[values["run_id"]] = values
        except (OSError, ValueError, KeyError, TypeError):
            continue  # collect tells of damaged records
    if not found:
        raise UserError(
            f"{folder}: has no runs (runs/*/record.json or runs.parquet); name a folder of results"
        )
    return list(found.values())


def compare(runs: Sequence[Record], reference: Sequence[Record]) -> pd.DataFrame:
    """A row for each run that has a counterpart, in ``COLUMNS``; in the order of ``runs``."""
    by_id = {row["run_id"]: row for row in reference}
    alike: dict[str, list[Record]] = {}
    for row in reference:
        alike.setdefault(_experiment(row), []).append(row)
    rows = []
    for run in runs:
        own, others = by_id.get(run["run_id"]), alike.get(_experiment(run), [])
        if own is not None or others:
            rows.append(_row(run, own, others or [own]))
    return pd.DataFrame(rows, columns=COLUMNS)


def _experiment(row: Record) -> str:
    return json.dumps([_plain(row.get(name)) for name in EXPERIMENT], default=str)


def _row(run: Record, own: Record | None, others: Sequence[Record]) -> dict[str, Any]:
    held = own if own is not None else others[0]
    metric = next((name for name in ("wer", "accuracy") if _number(held.get(name)) is not None), None)
    # a seed's repeats are one draw of chance
    by_seed = {row.get("seed"): _number(row.get(metric)) for row in others} if metric else {}
    values = [value for value in by_seed.values() if value is not None]
    low, high = interval(values)
    value = None if metric is None else _number(run.get(metric))
    verdict, why = _judged(run, own, held, metric, value, low, high)
    seconds = "train_s" if run.get("evidence") == "measured" else "host_wall_s"
    time_s, times = _number(run.get(seconds)), [_number(row.get(seconds)) for row in others]
    known = [one for one in times if one]
    reference_s = float(np.median(known)) if known else None
    return {
        "run_id": run["run_id"],
        "verdict": verdict,
        "why": why,
        "matched": "same point" if own is not None else "other seed",
        "reference_seeds": len(by_seed),
        "evidence": run.get("evidence"),
        "status": run.get("status"),
        "reference_status": held.get("status"),
        "metric": metric,
        "value": value,
        "reference_value": float(np.median(values)) if values else None,
        "reference_low": low,
        "reference_high": high,
        "sent_bytes": _number(run.get("sent_bytes_total")),
        "reference_sent_bytes": _number(held.get("sent_bytes_total")),
        "time_s": time_s,
        "reference_time_s": reference_s,
        "time_ratio": time_s / reference_s if time_s and reference_s else None,
    }


def _judged(
    run: Record,
    own: Record | None,
    held: Record,
    metric: str | None,
    value: float | None,
    low: float | None,
    high: float | None,
) -> tuple[str, str]:
    """Verdict and what it rests on."""
    if run.get("status") != held.get("status"):
        return DIFFERS, f"status {run.get('status')}, reference {held.get('status')}"
    for name in BYTES:
        mine, theirs = _number(run.get(name)), _number(held.get(name))
        if mine != theirs:
            return DIFFERS, f"{name} {_said(mine)}, reference {_said(theirs)}"
    if own is not None and all(_number(run.get(name)) == _number(own.get(name)) for name in QUALITY):
        return SAME_BITS, "quality and bytes to the last digit"
    if metric is None:
        return SAME_BYTES, "no quality to compare"
    if value is None:
        return DIFFERS, f"no {metric}, reference {_said(_number(held.get(metric)))}"
    if low is None or high is None:
        return SAME_BYTES, "one seed of the reference has no range"
    if low <= value <= high:
        return WITHIN, f"{metric} in {low:.4f} to {high:.4f}"
    return DIFFERS, f"{metric} {value:.4f}, reference's seeds {low:.4f} to {high:.4f}"


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Where another value of the same kind lies in 95 of 100 cases: Student's prediction interval; needs two values.

    ``mean +- t s sqrt(1 + 1/n)``, and no less than the values' own range.
    """
    if len(values) < 2:
        return None, None
    found = np.asarray(values, dtype=float)
    reach = stats.t.ppf((1 + LEVEL) / 2, len(found) - 1) * found.std(ddof=1) * math.sqrt(1 + 1 / len(found))
    middle = float(found.mean())
    return min(float(found.min()), middle - reach), max(float(found.max()), middle + reach)


def summary(table: pd.DataFrame, runs: int, reference: str) -> list[str]:
    """What a comparison comes to, in lines for the terminal."""
    if table.empty:
        return [
            f"none of the {runs} runs has a counterpart in {reference}: no run id, and no experiment but for its seed, "
            "is the same; `python -m implementations points` tells what a tier runs"
        ]
    counts = table["verdict"].value_counts()
    told = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if name in counts)
    lines = [f"{len(table)} of {runs} runs have a counterpart in {reference}: {told}"]
    for evidence, what in (("measured", "training"), ("simulated", "simulating, on the host's clock")):
        ratios = table[table["evidence"] == evidence]["time_ratio"].dropna().astype(float)
        if len(ratios):
            lines.append(
                f"seconds of {what}, over the reference's: median {ratios.median():.2f} ({ratios.min():.2f} to "
                f"{ratios.max():.2f}, {len(ratios)} {evidence} runs)"
            )
    other = table[table["verdict"] == DIFFERS]
    lines += [f"differs: {row.run_id}: {row.why}" for row in other.head(_SHOWN).itertuples()]
    if len(other) > _SHOWN:
        lines.append(f"... and {len(other) - _SHOWN} more that differ; --csv writes all")
    return lines


def _said(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:.4f}"


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _plain(value: Any) -> Any:
    """A value that is written alike in a record and in a table of records."""
    if value is None or (np.isscalar(value) and pd.isna(value)):
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return float(value) if isinstance(value, int | float | np.number) else value
