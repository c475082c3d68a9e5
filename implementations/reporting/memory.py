"""What each method can hold under the same limit of memory, and how well the largest network that fits ranks."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from implementations.reporting import subnets
from implementations.reporting.grouping import cell_value, command_for, groups_of, typed
from implementations.reporting.papers import paper_of
from implementations.reporting.rows import ENDED, OVER_MEMORY
from implementations.reporting.statistics import range_or_interval

RANKS = ("p_at_1", "p_at_3", "p_at_5")
_SHORT = {"data_parallel": "dp", "averaging": "lsgd", "ist": "ist"}  # in the ids of published numbers
COLUMNS = [
    "paper", "evidence", "dataset", "data_size", "name", "method", "sync_period", "workers", "width", "model_params",
    "worker_params", "state_bytes_per_worker", "server_bytes", "held_bytes", "memory_limit_bytes", "fits", "n",
    *(f"{name}{end}" for name in RANKS for end in ("", "_low", "_high")), "spread", "source", "command",
]  # fmt: skip


def memory_table(
    runs: pd.DataFrame, published: pd.DataFrame | None = None, tier: str | None = None
) -> pd.DataFrame:
    """A row for each method, number of workers and width: what a worker holds, whether it fits, precision at 1, 3, 5.

    ``held_bytes``: a worker's state and what it stores for the others, which is what the limit is about. ``published``:
    rows of ``config/published``; the paper's own table follows ours where there are such runs, as evidence
    ``published``: other data, other memory.
    """
    found = limited(runs)
    held = found["state_bytes_per_worker"].astype(float) + found["server_bytes"].astype(float).fillna(0.0)
    found = found.assign(held_bytes=held)
    rows = []
    for keys, group in groups_of(found[found["width"].notna()], [*subnets.KEYS, "width"]):
        over = (group["status"] == OVER_MEMORY).fillna(False).astype(bool)
        row = {name: cell_value(group[name].iloc[0]) for name in COLUMNS if name in group}
        row |= {"fits": not over.any(), "n": group["seed"].nunique()}
        for name in RANKS:
            summary = range_or_interval(subnets.by_seed(group, name))
            row |= {name: summary.centre, f"{name}_low": summary.low, f"{name}_high": summary.high}
            row["spread"] = summary.kind
        rows.append(row | {"command": command_for(keys["paper"], tier)})
    table = pd.DataFrame(rows, columns=COLUMNS)
    table = table.sort_values(["dataset", "method", "workers", "width"], ignore_index=True)
    if len(rows):
        printed = pd.DataFrame(_printed(published), columns=COLUMNS)
        table = pd.concat([table.astype(object), printed.astype(object)], ignore_index=True)
    return typed(table)


def limited(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs under a limit of memory that trained to their end or did not fit, described."""
    known = runs["status"].isin([*ENDED, OVER_MEMORY]).fillna(False).astype(bool)
    return subnets.described(runs[known & runs["memory_limit_bytes"].notna()])


def _printed(published: pd.DataFrame | None) -> list[dict[str, Any]]:
    """The paper's table as rows: data parallelism failed where only the other method has a number."""
    if published is None or not len(published) or "note" not in published:
        return []
    rows = []
    for key, first in published.iterrows():
        found = re.fullmatch(r"ist-p1-(?P<width>\d+)-(?P<short>dp|lsgd|ist)", str(key))
        if not found:
            continue
        method = next(name for name, short in _SHORT.items() if short == found["short"])
        row = {"paper": subnets.PAPER, "evidence": "published", "dataset": first.get("test_set"), "method": method,
               "name": paper_of(subnets.PAPER).methods[method], "workers": first.get("workers"),
               "width": int(found["width"]), "source": first.get("table_or_figure")}  # fmt: skip
        values = {name: f"ist-p{name[-1]}-{found['width']}-{found['short']}" for name in RANKS}
        values = {name: published["value"].get(key) for name, key in values.items()}
        rows.append(row | values | {"fits": True})
        if "Data parallelism: Fail" in str(first["note"]):
            failed = {"method": "data_parallel", "name": paper_of(subnets.PAPER).methods["data_parallel"]}
            rows.append(row | failed | {"fits": False})
    return sorted(rows, key=lambda row: (row["method"], row["width"]))
