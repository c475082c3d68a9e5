"""Training on Spark as tables: the two executions, memory, and late updates."""

from __future__ import annotations

import numpy as np
import pandas as pd

from implementations.reporting.grouping import (
    cell_value,
    command_for,
    ended_runs,
    first_value,
    groups_of,
    typed,
)
from implementations.reporting.rows import ENDED
from implementations.reporting.spark import (
    BARRIER,
    JOBS,
    MAP,
    METHOD,
    PAPER,
    as_projections,
    names_of,
    of_paper,
)
from implementations.reporting.statistics import median_and_spread, range_or_interval

EXECUTION_COLUMNS = [
    "paper", "evidence", "cluster", "kind", "model", "model_params", "variant", "workers", "oversubscribed",
    "global_batch", "jobs_per_step", "barrier_step_s", "jobs_step_s", "barrier_exchange_s", "jobs_exchange_s",
    "exchange_ratio", "step_ratio", "schedule_share", "serialise_share", "n", "command",
]  # fmt: skip
MEMORY_COLUMNS = [
    "paper", "evidence", "cluster", "kind", "model", "params", "variant", "execution", "workers",
    "state_bytes_per_worker", "resident_bytes", "alone_bytes", "memory_bytes", "status", "reason", "speedup",
    "experiments", "command",
]  # fmt: skip
LATE_COLUMNS = [
    "paper", "evidence", "kind", "model", "dataset", "data_size", "workers", "optimizer", "minibatch", "epochs",
    "staleness", "lr", "n", "diverged", "accuracy", "accuracy_low", "accuracy_high", "train_loss", "staleness_mean",
    "staleness_max", "synchronous_accuracy", "points_lost", "command",
]  # fmt: skip


# -- executions --------------------------------------------------------------------------------------------------------


def steps_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Measured runs of Spark with the seconds of a step in parts, which add up to ``step_s``.

    Of a run by jobs, scheduling and packing are parts of what the clock calls communication.
    """
    ended = ended_runs(of_paper(runs))
    own = ended[
        (ended["method"] == METHOD).fillna(False).astype(bool)
        & (ended["evidence"] == "measured").fillna(False).astype(bool)
        & ended["train_s"].notna()
        & (ended["steps"].fillna(0) > 0)
    ]
    steps = own["steps"].astype(float)

    def each(*names: str) -> pd.Series:
        return sum(own[name].astype(float).fillna(0.0) for name in names) / steps

    parts = own.assign(
        step_s=each("train_s"),
        step_compute_s=each("compute_s"),
        step_schedule_s=each("schedule_s"),
        step_serialise_s=each("serialise_s"),
        step_exchange_s=(each("comm_s") - each("schedule_s", "serialise_s")).clip(lower=0.0),
    )
    told = parts[["step_compute_s", "step_schedule_s", "step_serialise_s", "step_exchange_s"]].sum(axis=1)
    return parts.assign(step_other_s=(parts["step_s"] - told).clip(lower=0.0))


def executions_table(runs: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each configuration that was measured by both executions: seconds of an exchange, and their ratio.

    By jobs a step whose layers are cut takes one job more than it has exchanges, for the last gradients and the update:
    an exchange is then an equal share of all of them.
    """
    steps = steps_of(runs)
    keys = [
        "kind",
        "model",
        "variant",
        "cut",
        "group_size",
        "workers",
        "cluster",
        "global_batch",
        "threads_per_worker",
    ]
    rows = []
    for found, group in groups_of(steps, keys):
        by = {name: group[group["execution"] == name] for name in (BARRIER, JOBS)}
        if not all(map(len, by.values())):
            continue
        exchanges = float(by[BARRIER]["exchanges"].astype(float).median())
        jobs = exchanges + (found["variant"] != "data")
        step = {name: median_and_spread(rows_["step_s"]).centre for name, rows_ in by.items()}
        comm = {
            name: median_and_spread(rows_["comm_s"].astype(float) / rows_["steps"].astype(float)).centre
            / {BARRIER: exchanges, JOBS: jobs}[name]
            for name, rows_ in by.items()
        }
        rows.append(
            {name: found[name] for name in EXECUTION_COLUMNS if name in found}
            | {"paper": PAPER, "evidence": "measured", "model_params": first_value(group, "model_params")}
            | {"oversubscribed": first_value(group, "oversubscribed"), "jobs_per_step": jobs}
            | {"barrier_step_s": step[BARRIER], "jobs_step_s": step[JOBS]}
            | {"barrier_exchange_s": comm[BARRIER], "jobs_exchange_s": comm[JOBS]}
            | {"exchange_ratio": comm[JOBS] / comm[BARRIER] if comm[BARRIER] else np.nan}
            | {"step_ratio": step[JOBS] / step[BARRIER]}
            | {"schedule_share": (by[JOBS]["step_schedule_s"] / by[JOBS]["step_s"]).median()}
            | {"serialise_share": (by[JOBS]["step_serialise_s"] / by[JOBS]["step_s"]).median()}
            | {"n": min(map(len, by.values())), "command": command_for(PAPER, tier)}
        )
    return typed(pd.DataFrame(rows, columns=EXECUTION_COLUMNS))


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_table(
    runs: pd.DataFrame, projections: pd.DataFrame | None = None, tier: str | None = None
) -> pd.DataFrame:
    """Parameters, gradients and optimiser state of a worker by size of network and number of workers.

    Measured: and the growth of a process's resident memory. Projected: and the activations; with the machine's memory,
    and what one worker alone would need.
    """
    own = ended_runs(of_paper(runs))
    own = own[(own["method"] == METHOD).fillna(False).astype(bool) & own["state_bytes_per_worker"].notna()]
    rows = []
    keys = ["evidence", "cluster", "kind", "model", "variant", "execution", "workers"]
    for found, group in groups_of(own[own["evidence"] == "measured"], keys):
        rows.append(
            found
            | {"params": first_value(group, "model_params"), "status": "ok"}
            | {"state_bytes_per_worker": float(group["state_bytes_per_worker"].astype(float).max())}
            | {"resident_bytes": float(group["resident_bytes"].astype(float).max())}
        )
    known = as_projections(projections)
    for row in known[known["what"] != MAP].drop_duplicates([*keys, "params"]).to_dict("records"):
        rows.append(
            {name: cell_value(row[name]) for name in MEMORY_COLUMNS if name in row}
            | {"state_bytes_per_worker": row["state_bytes"], "experiments": names_of(row["experiments"])}
        )
    table = pd.DataFrame(rows, columns=MEMORY_COLUMNS)
    table = table.assign(paper=PAPER, command=command_for(PAPER, tier))
    return typed(table).sort_values(
        ["evidence", "kind", "params", "workers"], kind="stable", ignore_index=True
    )


# -- late updates ------------------------------------------------------------------------------------------------------


# What runs with late gradients have in common that are compared by staleness and rate.
LATE_SETTING = [
    "evidence",
    "kind",
    "model",
    "dataset",
    "data_size",
    "workers",
    "optimizer",
    "minibatch",
    "epochs",
]


def late_table(runs: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each staleness and rate of the asynchronous variant: accuracy over seeds, and what diverged.

    ``points_lost``: mean accuracy of the synchronous run (staleness 0) at the same rate less that of the row.
    """
    own = of_paper(runs)
    own = own[
        (own["variant"] == "async").fillna(False).astype(bool)
        & own["status"].isin([*ENDED, "diverged"]).fillna(False).astype(bool)
    ]
    rows = []
    for found, group in groups_of(own, [*LATE_SETTING, "staleness", "lr"]):
        ended = ended_runs(group)
        value = range_or_interval(ended.groupby("seed")["accuracy"].mean().astype(float))
        rows.append(
            found
            | {"paper": PAPER, "n": value.n, "diverged": int((group["status"] == "diverged").sum())}
            | {"accuracy": value.centre, "accuracy_low": value.low, "accuracy_high": value.high}
            | {"train_loss": float(ended["train_loss"].astype(float).mean())}
            | {"staleness_mean": float(ended["staleness_mean"].astype(float).mean())}
            | {"staleness_max": float(ended["staleness_max"].astype(float).max())}
        )
    table = pd.DataFrame(rows, columns=LATE_COLUMNS)
    base = table[table["staleness"] == 0].set_index([*LATE_SETTING, "lr"])["accuracy"]
    known = [
        base.get(tuple(row[name] for name in [*LATE_SETTING, "lr"]), np.nan)
        for row in table.to_dict("records")
    ]
    table = table.assign(synchronous_accuracy=np.array(known, dtype=float), command=command_for(PAPER, tier))
    lost = 100 * (table["synchronous_accuracy"] - table["accuracy"].astype(float))
    return typed(table.assign(points_lost=lost))
