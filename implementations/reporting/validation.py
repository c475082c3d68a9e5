"""The time model against measured steps: the points of experiment ``validation``, fixed beforehand.

What was measured and what was predicted stand in columns of their own: ``measured_*`` are medians of repeats with the
least and the greatest, ``predicted_s`` is the model's, from calibrated primitives alone, on the cluster of the point's
own network. ``predicted_at_pace_s`` is the same at the pace that the machine had at the time: measured runs time a
step of a fixed network beside themselves (``pace_step_s``), which calibration has timed too; seconds of computation are
taken in proportion, and those of communication where it is the same cores' copying.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting import plans as planning
from implementations.reporting.grouping import cell_value, command_for, groups_of, typed
from implementations.reporting.layerwise import METHOD as LAYERWISE
from implementations.reporting.layerwise import predictions
from implementations.reporting.plans import THIS_HOST
from implementations.reporting.rows import ENDED

EXPERIMENT = "validation"
GOAL_MEDIAN, GOAL_WORST = 0.05, 0.10  # of |error|, with a core for each rank
# What makes a point, chance and repeats aside.
_POINT = [
    "method", "variant", "dataset", "model", "workers", "network", "oversubscribed", "threads_per_worker", "minibatch",
    "data_size", "epochs", "passes", "optimizer", "sync_period", "algorithm", "mixing", "server", "partition",
    "execution", "cluster",
]  # fmt: skip
COLUMNS = [
    "run_id", "group", *_POINT, "steps", "measured_s", "measured_low_s", "measured_high_s", "repeats", "predicted_s",
    "error", "pace", "predicted_at_pace_s", "error_at_pace", "compute_source", "command",
]  # fmt: skip
SUMMARY_COLUMNS = [
    "over", "oversubscribed", "n", "median_error", "worst_error", "worst_group", "median_error_at_pace",
    "worst_error_at_pace",
]  # fmt: skip


def validation(
    runs: pd.DataFrame, timings: pd.DataFrame, plans: pd.DataFrame | None = None, tier: str | None = None
) -> pd.DataFrame:
    """A row for each point: measured and predicted seconds of a step, and ``error`` = predicted over measured - 1.

    ``pace``: the machine's at the time over that in calibration, of the seconds of a fixed step: above 1 it was slower.
    It is NaN where it was not taken, and with more ranks than cores.

    ``plans``: those of layer-wise training, which has a cost model of its own. A point that nothing was predicted for
    keeps its row.
    """
    wanted = (
        runs["experiments"].map(_is_validation)
        & runs["status"].isin(ENDED)
        & (runs["evidence"] == "measured")
        & runs["train_s"].notna()
    )
    measured = runs[wanted].sort_values(["repeat", "seed"] if "seed" in runs else ["repeat"])
    keys = [name for name in _POINT if name in measured.columns]
    known = timings.set_index(["cluster", "run_id"])
    calibrated = _calibrated_paces(timings)
    rows = []
    for found, same in groups_of(measured, keys):
        predicted, compute, source = _predicted(found, same, known, plans)
        pace = _pace(found, same, calibrated)
        moving = predicted if planning.cluster_of(found.get("network")) == THIS_HOST else compute
        at_pace = predicted + (pace - 1) * moving
        steps_s = same["train_s"].astype(float) / same["steps"].astype(float)
        rows.append(
            found
            | {"run_id": same["run_id"].iloc[0], "group": label(found), "steps": same["steps"].iloc[0]}
            | {
                "measured_s": steps_s.median(),
                "measured_low_s": steps_s.min(),
                "measured_high_s": steps_s.max(),
            }
            | {"repeats": len(same), "predicted_s": predicted, "error": predicted / steps_s.median() - 1}
            | {"pace": pace, "predicted_at_pace_s": at_pace, "error_at_pace": at_pace / steps_s.median() - 1}
            | {"compute_source": source, "command": command_for("suite", tier)}
        )
    return typed(pd.DataFrame(rows, columns=COLUMNS))


def _calibrated_paces(timings: pd.DataFrame) -> dict[int, float]:
    """Seconds of the step that runs time beside themselves, as this machine was calibrated, by ranks that are busy."""
    if "pace_step_s" not in timings:  # of before there was one
        return {}
    own = timings[(timings["cluster"] == THIS_HOST) & timings["pace_step_s"].notna()]
    return own.groupby("workers")["pace_step_s"].first().to_dict()


def _pace(point: dict[str, Any], runs: pd.DataFrame, calibrated: dict[int, float]) -> float:
    """This machine's while the runs were measured, over that in calibration."""
    return _median(runs, "pace_step_s") / calibrated.get(point["workers"], np.nan)


def _median(rows: pd.DataFrame, name: str) -> float:
    known = rows[name].astype(float).dropna() if name in rows else []
    return float(np.median(known)) if len(known) else np.nan


def _predicted(
    point: dict[str, Any], runs: pd.DataFrame, known: pd.DataFrame, plans: pd.DataFrame | None
) -> tuple[float, float, str | None]:
    """Seconds of a step, those of them that are computation, and where these come from."""
    if point["method"] == LAYERWISE:
        planned = predictions(runs, plans) if plans is not None and len(plans) else pd.DataFrame()
        if not len(planned):
            return np.nan, np.nan, None
        first = planned.iloc[0]
        return float(first["predicted_s"]), float(first["compute_s"]), cell_value(first["compute_source"])
    cluster = planning.cluster_of(point.get("network"))
    own = known[known.index.isin([(cluster, run_id) for run_id in runs["run_id"]])]
    if not len(own):
        return np.nan, np.nan, None
    compute_s = (own["compute_s"] + own["data_s"] + own["straggler_s"]) / own["steps"].astype(float)
    source = cell_value(own["compute_source"].iloc[0])
    return float(own["step_s"].median()), float(compute_s.median()), source


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Median and worst |error|: of all points, by network and by method, with and without a core for each rank."""
    known = table[table["error"].notna()] if len(table) else table
    rows = []
    for crowded in (False, True):
        own = known[known["oversubscribed"].fillna(False).astype(bool) == crowded] if len(known) else known
        kinds = [("all points", own)]
        for name in ("network", "method"):
            kinds += [(f"{name}: {value}", part) for value, part in own.groupby(name)] if len(own) else []
        for over, part in kinds:
            if len(part):
                rows.append({"over": over, "oversubscribed": crowded} | _errors(part))
    return pd.DataFrame(rows, columns=SUMMARY_COLUMNS)


def _errors(part: pd.DataFrame) -> dict[str, Any]:
    size = part["error"].astype(float).abs()
    at_pace = part["error_at_pace"].astype(float).abs().dropna()
    return {
        "n": len(part),
        "median_error_at_pace": float(at_pace.median()) if len(at_pace) else np.nan,
        "worst_error_at_pace": float(at_pace.max()) if len(at_pace) else np.nan,
        "median_error": float(size.median()),
        "worst_error": float(size.max()),
        "worst_group": part["group"].loc[size.idxmax()],
    }


def sentences(table: pd.DataFrame) -> list[str]:
    """What the table says, in words."""
    told = summary(table)
    whole = told[told["over"] == "all points"].set_index("oversubscribed").to_dict("index")
    if not whole:
        return []
    found = []
    for crowded, row in whole.items():
        where = "with more ranks than cores" if crowded else "with a core for each rank"
        points = "one point" if row["n"] == 1 else f"{row['n']} points"
        found.append(
            f"Over {points} {where}, the predicted step is off by {100 * row['median_error']:.1f} % in the median and "
            f"{100 * row['worst_error']:.1f} % at worst ({row['worst_group']})."
        )
    if False in whole:
        row = whole[False]
        found.append(
            f"The goal, {GOAL_MEDIAN:.0%} in the median and {GOAL_WORST:.0%} at worst with a core for each rank, is "
            f"{_met(row['median_error'], row['worst_error'])}."
        )
        paces = table["pace"].dropna()
        if len(paces):
            found.append(
                f"The machine itself took {paces.min():.2f} to {paces.max():.2f} times as long for one and the same "
                f"step beside these runs as in calibration. At its pace of the time the prediction is off by "
                f"{100 * row['median_error_at_pace']:.1f} % in the median and {100 * row['worst_error_at_pace']:.1f} % "
                f"at worst: the goal is {_met(row['median_error_at_pace'], row['worst_error_at_pace'])}."
            )
    known = table[table["error"].notna()]
    spread = (known["measured_high_s"] / known["measured_low_s"] - 1).astype(float)
    if len(known) and known["repeats"].max() > 1:
        found.append(
            f"The same point's repeats, minutes apart at most, differ by {100 * spread.median():.0f} % in the median "
            f"(least to greatest): of a machine's own drift no model knows."
        )
    lost = len(table) - len(known)
    if lost:
        found.append(f"Nothing was predicted for {lost} further point{'s' if lost > 1 else ''}.")
    return found


def _met(median: float, worst: float) -> str:
    return "met" if median <= GOAL_MEDIAN and worst <= GOAL_WORST else "missed"


def label(point: dict[str, Any]) -> str:
    """A point in a few words."""
    workers = point["workers"]
    words = [
        point["method"],
        point["dataset"],
        point["model"],
        f"{workers} worker{'s' if workers > 1 else ''}",
    ]
    if (variant := cell_value(point.get("variant"))) not in (None, "default"):
        words.insert(1, variant)
    if (period := cell_value(point.get("sync_period"))) is not None and workers > 1:
        words.append(f"K={int(period)}")
    for name, plain in (("algorithm", "library"), ("mixing", "allreduce"), ("network", "loopback")):
        if (value := cell_value(point.get(name))) not in (None, plain) and workers > 1:
            words.append(str(value).replace("_", " "))
    if (threads := cell_value(point.get("threads_per_worker"))) is not None and threads > 1:
        words.append(f"{int(threads)} threads")
    return ", ".join(map(str, words))


def _is_validation(experiments: Any) -> bool:
    if experiments is None or isinstance(experiments, float):
        return False
    names = [experiments] if isinstance(experiments, str) else list(experiments)
    return any(name.split("/")[0] == EXPERIMENT for name in names)
