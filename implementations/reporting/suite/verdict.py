"""The shoot-out in plain words, from its tables alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.html import brief, percent

_FIELD = ["dataset", "data_size", "net", "model", "target_value"]


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Who wins where, what decides it, and who needs the fewest bytes and the least memory."""
    winners, changes, costs = (
        tables.get(name, pd.DataFrame()) for name in ("winners", "changes", "shootout")
    )
    if not len(winners):
        return []
    found = []
    for keys, field in winners.groupby(_FIELD, dropna=False, sort=False):
        setting = dict(zip(_FIELD, keys, strict=True))
        parts = [
            f"{workers} workers: {_leads(rows.sort_values('mbit_s'), _like(changes, setting, workers))}"
            for workers, rows in field.groupby("workers", sort=True)
        ]
        sure = field["sure"].astype("boolean").fillna(False)
        words = f"{_task(setting)} With {'; with '.join(parts)}. "
        words += f"The winner is beyond doubt in {int(sure.sum())} of {len(field)} cases (seeds and time model agree)."
        found.append(words)
    return found + list(_frugal(costs))


def _task(setting: Mapping[str, Any]) -> str:
    """Whose task it is."""
    net = f"the {setting['net']} net" if pd.notna(setting["model"]) else setting["net"]
    return f"Fastest to {100 * setting['target_value']:g} % on {setting['dataset']} with {net}, simulated."


def speed(mbit_s: float) -> str:
    """A bandwidth in its unit."""
    return f"{brief(mbit_s / 1e3)} Gbit/s" if mbit_s >= 1e3 else f"{brief(mbit_s)} Mbit/s"


def _like(changes: pd.DataFrame, setting: Mapping[str, Any], workers: int) -> pd.DataFrame:
    if not len(changes):
        return changes
    same = changes["workers"] == workers
    for name, value in setting.items():
        same &= changes[name].isna() if pd.isna(value) else changes[name] == value
    return changes[same.fillna(False).astype(bool)].sort_values("crossing_mbit_s")


def _leads(rows: pd.DataFrame, changes: pd.DataFrame) -> str:
    """The leaders from the slowest network to the fastest."""
    if not len(changes):
        return f"{rows['first'].iloc[0]} on every network"
    parts = [f"{changes['first'].iloc[0]}"]
    for row in changes.to_dict("records"):
        parts.append(f"from {speed(row['crossing_mbit_s'])}{_doubt(row)} {row['second']}")
    return ", ".join(parts)


def _doubt(row: Mapping[str, Any]) -> str:
    """In brackets the range of a crossing, over seeds and over errors of the model together."""
    ends = [row[name] for name in ("crossing_low", "model_low") if pd.notna(row[name])]
    tops = [row[name] for name in ("crossing_high", "model_high") if pd.notna(row[name])]
    if not ends or not tops:
        return ""
    low, high = min(ends), max(tops)
    if low == 0 and np.isinf(high):
        return " (not known where, or whether)"
    if low == 0:
        return f" ({speed(high)} at the most)"
    if np.isinf(high):
        return f" ({speed(low)} at the least, if at all)"
    return f" ({speed(low)} to {speed(high)})" if speed(low) != speed(high) else ""


def _frugal(costs: pd.DataFrame) -> Iterator[str]:
    """Bytes, memory and quality at the most workers of each field, and who missed the target."""
    for keys, field in costs.groupby(_FIELD, dropna=False, sort=False):
        setting = dict(zip(_FIELD, keys, strict=True))
        several = field[field["workers"] > 1]
        if not len(several):
            continue
        workers = int(several["workers"].max())
        own = several[several["workers"] == workers].sort_values("mbit_s").drop_duplicates("name")
        reached = own[np.isfinite(own["bytes"].astype(float))]
        words = [f"{setting['dataset']}, {setting['net']} net, {workers} workers, the slowest network:"]
        if len(reached):
            least = reached.sort_values(["bytes", "name"]).iloc[[0, -1]].to_dict("records")
            words.append(
                f"fewest bytes to the target {least[0]['name']} ({brief(least[0]['bytes'] / 1e6)} MB), most "
                f"{least[1]['name']} ({brief(least[1]['bytes'] / 1e6)} MB);"
            )
        light = own.sort_values(["state_bytes_per_worker", "name"]).iloc[[0, -1]].to_dict("records")
        words.append(
            f"least memory per worker {light[0]['name']} ({brief(light[0]['state_bytes_per_worker'] / 1e6)} MB), most "
            f"{light[1]['name']} ({brief(light[1]['state_bytes_per_worker'] / 1e6)} MB);"
        )
        good = own.sort_values(["accuracy", "name"], ascending=[False, True]).iloc[0]
        words.append(f"best test accuracy {good['name']} ({percent(good['accuracy'])} %).")
        missed = sorted(own.loc[own["reached"] * 2 <= own["n"], "name"])
        if missed:
            words.append(f"Most seeds missed the target with {', '.join(missed)}.")
        yield " ".join(words)
