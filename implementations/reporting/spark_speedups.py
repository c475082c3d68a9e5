"""Speedups of training on Spark, by evidence: rows of different evidence never share a base or a summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from implementations.reporting.columns import CONFIGURATION
from implementations.reporting.grouping import (
    cell_value,
    command_for,
    ended_runs,
    first_value,
    groups_of,
    typed,
)
from implementations.reporting.rows import ENDED, join_timings
from implementations.reporting.spark import MAP, METHOD, PAPER, as_projections, names_of, of_paper
from implementations.reporting.statistics import Summary, median_and_spread, range_or_interval

ONE_WORKER, SEQUENTIAL, WITHOUT_SPARK = "one worker", "sequential", "one worker without Spark"
SPEEDUP_COLUMNS = [
    "paper", "evidence", "cluster", "kind", "model", "model_params", "dataset", "data_size", "variant", "execution",
    "cut", "group_size", "sync_period", "optimizer", "scaling", "workers", "threads_per_worker", "oversubscribed",
    "minibatch", "global_batch", "epochs", "n", "seconds", "seconds_low", "seconds_high", "spread", "samples_per_s",
    "base", "base_seconds", "base_global_batch", "base_threads", "speedup", "speedup_low", "speedup_high",
    "experiments", "command",
]  # fmt: skip


def speedup_table(
    runs: pd.DataFrame,
    timings: pd.DataFrame | None = None,
    projections: pd.DataFrame | None = None,
    tier: str | None = None,
) -> pd.DataFrame:
    """A row for each configuration, kind of evidence, cluster and base.

    Measured: seconds of training by the clock, ``cluster`` says where Spark ran. Simulated: those of the time model on
    each cluster. Projected: seconds of an epoch at sizes that nobody trained. Strong scaling compares seconds, weak
    scaling samples per second.
    """
    own = of_paper(runs)
    rows = [
        *_ours(_measured(own)),
        *_ours(_simulated(own, timings)),
        *_projected(as_projections(projections)),
    ]
    table = pd.DataFrame(
        [row | {"paper": PAPER, "command": command_for(PAPER, tier)} for row in rows], columns=SPEEDUP_COLUMNS
    )
    return typed(table)


_Group = tuple[dict[str, Any], pd.DataFrame, Summary]
_KEYS = [name for name in (*CONFIGURATION, "cluster", "kind") if name not in ("processes", "algorithm")]


def _measured(own: pd.DataFrame) -> list[_Group]:
    ended = ended_runs(own)
    timed = ended[(ended["evidence"] == "measured").fillna(False).astype(bool) & ended["train_s"].notna()]
    return [(keys, rows, median_and_spread(rows["train_s"])) for keys, rows in groups_of(timed, _KEYS)]


def _simulated(own: pd.DataFrame, timings: pd.DataFrame | None) -> list[_Group]:
    joined = join_timings(timings, own)
    if not len(joined) or "kind" not in joined:
        return []
    joined = joined[
        (joined["run_evidence"] == "simulated").fillna(False).astype(bool)
        & joined["status"].isin(ENDED)
        & joined["kind"].notna()
    ]
    return [(keys, rows, range_or_interval(rows["train_s"])) for keys, rows in groups_of(joined, _KEYS)]


def _ours(groups: list[_Group]) -> Iterator[dict[str, Any]]:
    """Rows of the groups of one kind of evidence, one for each base."""
    for keys, rows, seconds in groups:
        if keys["method"] != METHOD:
            continue
        rate = median_and_spread(rows["samples_per_s"]).centre
        asked = sorted({name for names in rows["experiments"] if names is not None for name in names})
        described = {name: keys[name] for name in SPEEDUP_COLUMNS if name in keys}
        described |= {
            "model_params": first_value(rows, "model_params"),
            "global_batch": first_value(rows, "global_batch"),
            "n": seconds.n,
            "seconds": seconds.centre,
            "seconds_low": seconds.low,
            "seconds_high": seconds.high,
            "spread": seconds.kind,
            "samples_per_s": rate,
            "experiments": ", ".join(asked),
        }
        for base in (ONE_WORKER, SEQUENTIAL):
            found = _base(keys, rows, groups, base)
            if found is None:
                yield described | {"base": base}
                continue
            base_keys, base_rows, base_seconds = found
            scale = base_seconds.centre
            if keys["scaling"] == "weak":
                scale = seconds.centre * rate / median_and_spread(base_rows["samples_per_s"]).centre
            yield described | {
                "base": base,
                "base_seconds": base_seconds.centre,
                "base_global_batch": first_value(base_rows, "global_batch"),
                "base_threads": base_keys["threads_per_worker"],
                "speedup": scale / seconds.centre,
                "speedup_low": scale / seconds.high,
                "speedup_high": scale / seconds.low,
            }


def _base(keys: dict[str, Any], rows: pd.DataFrame, groups: list[_Group], base: str) -> _Group | None:
    """The group of the same work on one worker: of the same execution in the same place, or sequential.

    On one worker the variants do the same, so that another's stands in for a variant that was not run on one. Of
    several the one with the same minibatch of all workers together, then with the same of one worker.
    """
    same = ["kind", "dataset", "model", "epochs", "passes", "optimizer", "device", "evidence"]
    same += [] if keys["scaling"] == "weak" else ["data_size"]
    spark = base == ONE_WORKER
    same += ["execution", "cluster", "threads_per_worker"] if spark else []
    if not spark and keys["evidence"] != "measured":
        same.append("cluster")
    batch = first_value(rows, "global_batch")

    def nearness(group: _Group) -> tuple[Any, ...]:
        found = group[0]
        return (
            first_value(group[1], "global_batch") == batch,
            found["minibatch"] == keys["minibatch"],
            found["variant"] == keys["variant"],
            found["cut"] == keys["cut"],
            found["lr"] == keys["lr"],
            -group[2].centre,
        )

    fitting = [
        group
        for group in groups
        if group[0]["workers"] == 1
        and (group[0]["method"] == METHOD if spark else group[0]["method"] == "sequential")
        and (group[0]["variant"] != "async" or keys["variant"] == "async")
        and all(group[0][name] == keys[name] for name in same)
    ]
    return max(fitting, key=nearness, default=None)


def _projected(projections: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of projections, those over bandwidths aside; what they are held against has no Spark to start jobs."""
    fits = projections[
        (projections["status"] == "ok") & projections["speedup"].notna() & (projections["what"] != MAP)
    ]
    for row in fits.to_dict("records"):
        yield {name: cell_value(row[name]) for name in SPEEDUP_COLUMNS if name in row} | {
            "model_params": cell_value(row["params"]),
            "experiments": names_of(row["experiments"]),
            "n": 1,
            "sync_period": cell_value(row["steps_per_job"]),
            "seconds": row["epoch_s"],
            "epochs": 1,
            "base": WITHOUT_SPARK,
            "base_seconds": row["alone_epoch_s"],
        }
