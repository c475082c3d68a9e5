"""How runs of many workers are simulated, what that costs this host, and what the time model says of more workers.

Seconds and bytes of simulating are this host's, and tell nothing of the time that so many real workers would take: they
have columns of their own (``simulation_...``). Projected rows have the time model's, and none of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.columns import in_experiment
from implementations.reporting.grouping import command_for, ended_runs, groups_of
from implementations.reporting.html import brief, number
from implementations.reporting.rows import matches
from implementations.reporting.suite.context import PAPER, Context

TITLES = {
    "scale": (
        "Many workers",
        "Simulated: what this host takes for it, not what so many workers would take: a step of all of them, the same "
        "for each, and the memory that its process grew by, measured and as predicted from sizes before the start. "
        "Projected: the time model alone, weak scaling, on clusters of as many nodes as it takes, whose switches "
        "block nothing; speedup is samples per second over one worker's; collective is the all-reduce that it chose.",
    ),
}
SHRINKING = "ist"
ALGORITHMS = {"butterfly": "recursive doubling", "rabenseifner": "Rabenseifner's halving and doubling"}
_SETTING = ["method", "variant", "mixing", "algorithm", "server", "model", "minibatch", "sync_period"]
_COST = [
    "simulation_step_s", "simulation_worker_step_s", "simulation_bytes", "simulation_bytes_predicted",
    "simulation_bytes_ratio",
]  # fmt: skip
_PROJECTED = ["cluster", "nodes", "step_s", "speedup", "efficiency", "collective", "oversubscribed"]
COLUMNS = ["paper", "evidence", *_SETTING, "workers", "steps", "n", *_COST, *_PROJECTED, "command"]


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """``scale``: a row for each number of workers and setting, simulated or projected, with ``COLUMNS``."""
    return {"scale": pd.concat([cost_table(context), projected_table(context)], ignore_index=True)}


def cost_table(context: Context) -> pd.DataFrame:
    """What this host took to simulate: medians over repeats. Steps are those of all workers together."""
    runs = context.runs
    if len(runs):
        runs = ended_runs(
            runs[in_experiment(runs, "scale") & (runs["evidence"] == "simulated").fillna(False)]
        )
        runs = runs[runs["simulation_s"].notna()]
    rows = []
    for keys, same in groups_of(runs, [*_SETTING, "workers", "steps"]):
        step_s = float((same["simulation_s"] / same["steps"].astype(float)).median())
        grown, predicted = (
            _middle(same[name]) for name in ("simulation_bytes", "simulation_bytes_predicted")
        )
        rows.append(
            {
                **keys,
                "paper": PAPER,
                "evidence": "simulated",
                "n": len(same),
                "simulation_step_s": step_s,
                "simulation_worker_step_s": step_s / int(keys["workers"]),
                "simulation_bytes": grown,
                "simulation_bytes_predicted": predicted,
                "simulation_bytes_ratio": grown / predicted,
                "command": command_for(PAPER, context.tier),
            }
        )
    return _frame(rows)


def projected_table(context: Context) -> pd.DataFrame:
    """Weak scaling by the time model, of the projected points that belong to no paper."""
    wanted = {"paper": PAPER, "evidence": "projected", "scaling": "weak"}
    timings = context.timings[matches(context.timings, wanted, "weak scaling")]
    rows = [
        {
            **{name: row.get(name) for name in [*_SETTING, "workers", "steps", "cluster", "nodes", "step_s"]},
            "paper": PAPER,
            "evidence": "projected",
            "speedup": row["speedup_same_code"],
            # a worker of subnets has less to do the more there are
            "efficiency": np.nan
            if row["method"] == SHRINKING
            else row["speedup_same_code"] / int(row["workers"]),
            "collective": row.get("collective"),
            "oversubscribed": row["oversubscribed"],
            "command": command_for(PAPER, context.tier),
        }
        for row in timings.to_dict("records")
    ]
    return _frame(rows)


def name_of(row: Mapping[str, Any], methods: Mapping[str, str]) -> str:
    """A setting in words: the method, and what is not its usual way."""
    words = [methods.get(row["method"], str(row["method"]).replace("_", " "))]
    usual = {"variant": ("default", "corrected"), "mixing": ("allreduce",), "algorithm": ("library", "auto"),
             "server": ("central",)}  # fmt: skip
    for column, unsaid in usual.items():
        if not pd.isna(row[column]) and row[column] not in unsaid:
            words.append(str(row[column]).replace("_", " "))
    return ", ".join(words)


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What the table says."""
    table = tables["scale"]
    if not len(table):
        return []
    simulated, projected = (table[table["evidence"] == kind] for kind in ("simulated", "projected"))
    return [*_cost_sentences(simulated), *_projected_sentences(projected)]


def _cost_sentences(rows: pd.DataFrame) -> list[str]:
    said = []
    for keys, same in groups_of(rows, _SETTING):
        ordered = same.sort_values("workers").to_dict("records")
        few, many = ordered[0], ordered[-1]
        if many["workers"] == few["workers"]:
            continue
        memory = ""
        if not pd.isna(many["simulation_bytes_ratio"]):
            memory = (
                f"; its memory grew by {brief(many['simulation_bytes'] / 1e6)} MB, "
                f"{brief(many['simulation_bytes_predicted'] / 1e6)} MB were predicted"
            )
        said.append(
            f"Simulating {number(many['workers'])} workers of {name_of(keys, {})} ({keys['model']}) takes this host "
            f"{brief(1e3 * many['simulation_step_s'])} ms a step, "
            f"{brief(1e6 * many['simulation_worker_step_s'])} \N{MICRO SIGN}s for each worker, against "
            f"{brief(1e6 * few['simulation_worker_step_s'])} with {number(few['workers'])}{memory}."
        )
    return said


def _projected_sentences(rows: pd.DataFrame) -> list[str]:
    said = []
    for keys, same in groups_of(rows[rows["speedup"].notna()], ["cluster"]):
        most = int(same["workers"].max())
        parts = []
        for row in same[same["workers"] == most].to_dict("records") if most > 1 else []:
            how = "their subnets are smaller ones" if row["method"] == SHRINKING else _efficient(row)
            speedup = number(round(float(row["speedup"])))
            parts.append(f"{speedup} times by {name_of(row, {})} ({how})")
        if parts:
            said.append(
                f"By the time model, {number(most)} workers with as many samples each have, on {keys['cluster']}, "
                f"these multiples of one worker's samples per second: {', '.join(parts)}."
            )
    return said


def _efficient(row: Mapping[str, Any]) -> str:
    by = (
        ""
        if pd.isna(row["collective"])
        else f", all-reduces by {ALGORITHMS.get(row['collective'], row['collective'])}"
    )
    return f"{100 * float(row['efficiency']):.0f} % efficient{by}"


def _middle(values: pd.Series) -> float:
    known = values.dropna().astype(float)
    return float(known.median()) if len(known) else np.nan


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows with ``COLUMNS``, in types that do not depend on what there is."""
    whole = ("workers", "steps", "n", "minibatch", "sync_period", "nodes")
    real = (*_COST, "step_s", "speedup", "efficiency")
    kinds = dict.fromkeys(whole, "Int64") | dict.fromkeys(real, "float64") | {"oversubscribed": "boolean"}
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({name: kinds.get(name, "string") for name in COLUMNS})
