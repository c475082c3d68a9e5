"""How wide a subnet must be: what subnets lose against one worker of the same full width, by units per worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting import subnets
from implementations.reporting.columns import in_experiment
from implementations.reporting.grouping import cell_value, command_for, ended_runs, groups_of, typed
from implementations.reporting.statistics import range_or_interval

EXPERIMENT = "ist_width"
TOLERANCE = 1.0  # points of accuracy that may be lost
_SETTING = ["paper", "evidence", "dataset", "data_size", "hidden_layers", "name"]
COLUMNS = [
    *_SETTING, "workers", "width", "units_per_worker", "accuracy", "one_worker_accuracy", "loss", "loss_low",
    "loss_high", "spread", "n", "threshold", "threshold_low", "threshold_high", "command",
]  # fmt: skip


def threshold(units: Iterable[float], losses: Iterable[float], tolerance: float = TOLERANCE) -> float:
    """The smallest of ``units`` from which on all losses stay below ``tolerance``; infinite where there is none.

    ``losses``: in points, of each of ``units`` (which may repeat); a loss that is NaN is left out.
    """
    found = np.inf
    rows = pd.DataFrame({"units": list(units), "loss": list(losses)}, dtype=float).dropna()
    for width, worst in rows.groupby("units")["loss"].max().sort_index(ascending=False).items():
        if worst >= tolerance:
            break
        found = float(width)
    return found


def seed_losses(runs: pd.DataFrame, experiment: str = EXPERIMENT) -> pd.DataFrame:
    """A row for each seed, width and number of workers of an experiment's subnets, where one worker was trained too.

    ``loss``: points of test accuracy that one worker of the same network, data, epochs and seed is better by, of
    whatever experiment. ``runs``: all results; networks whose label names no width are left out.
    """
    ended = subnets.described(ended_runs(runs))
    ended = ended[ended["width"].notna()]
    alone = ended[subnets.one_worker(ended)]
    split = ended[subnets.split(ended) & in_experiment(ended, experiment)]
    parts = []
    for keys, group in groups_of(split, subnets.KEYS):
        first = group.iloc[0]
        same = subnets.like(
            first, alone, [*subnets.SETTING, "epochs", "passes"], ["minibatch", "lr", "sharding"]
        )
        loss = -100 * subnets.differences(group, same, "accuracy")
        if not len(loss):
            continue
        row = {name: first[name] for name in [*_SETTING, "workers", "width"]}
        parts.append(
            pd.DataFrame({"seed": loss.index, "loss": loss.to_numpy()}).assign(
                **row,
                units_per_worker=first["width"] / keys["workers"],
                accuracy=subnets.by_seed(group, "accuracy")[loss.index].to_numpy(),
                one_worker_accuracy=subnets.by_seed(same, "accuracy")[loss.index].to_numpy(),
            )
        )
    columns = ["seed", *COLUMNS[: COLUMNS.index("loss") + 1]]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def thresholds(losses: pd.DataFrame) -> dict[str, Any]:
    """The threshold of mean losses, and the range of those of single seeds. ``losses``: of ``seed_losses``."""
    means = losses.groupby(["workers", "units_per_worker"])["loss"].mean().reset_index()
    single = [threshold(rows["units_per_worker"], rows["loss"]) for _, rows in losses.groupby("seed")]
    return {
        "threshold": threshold(means["units_per_worker"], means["loss"]),
        "threshold_low": min(single, default=np.nan),
        "threshold_high": max(single, default=np.nan),
        "n": len(single),
    }


def width_table(runs: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each width and number of workers: points lost; then the threshold of each number, and of all.

    ``runs``: all results; the subnets of the experiment on widths are taken. In the last row, ``workers`` is absent.
    """
    losses = seed_losses(runs)
    rows = []
    for keys, setting in groups_of(losses, _SETTING):
        tail = {"command": command_for(keys["paper"], tier)}
        for place, group in groups_of(setting, ["workers", "width"]):
            loss = range_or_interval(group["loss"])
            means = {name: float(group[name].mean()) for name in ("accuracy", "one_worker_accuracy")}
            row = keys | place | {"units_per_worker": cell_value(group["units_per_worker"].iloc[0])} | means
            row |= {"loss": loss.centre, "loss_low": loss.low, "loss_high": loss.high, "n": loss.n}
            rows.append(row | {"spread": loss.kind} | tail)
        for place, group in groups_of(setting, ["workers"]):
            rows.append(keys | place | thresholds(group) | tail)
        if setting["workers"].nunique() > 1:
            rows.append(keys | thresholds(setting) | tail)
    return typed(pd.DataFrame(rows, columns=COLUMNS))
