"""What more workers do to the accuracy of subnets and their baselines, and to the bytes that a target takes."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd

from implementations.reporting import subnets
from implementations.reporting.figures import style
from implementations.reporting.figures.ist_lines import (
    SECTION,
    chosen,
    draw_at_top,
    in_order,
    look_of,
    main_period_of,
    method_keys,
    missed_key,
    seeds_told,
    setting_of,
    told,
)
from implementations.reporting.grouping import command_for
from implementations.reporting.html import brief
from implementations.reporting.statistics import median_and_range, range_or_interval
from implementations.reporting.targets import aimed

COLUMNS = ["evidence", "dataset", "name", "line", "method", "model", "sync_period", "variant", "workers", "n",
           "accuracy", "low", "high", "bytes", "bytes_low", "bytes_high", "reached"]  # fmt: skip


def workers_data(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each line and number of workers: test accuracy (mean) and bytes to the target (median) over seeds.

    ``reached``: seeds that reached the target; bytes of a run that missed it are infinite. ``rows``: of ``chosen``.
    """
    costs = aimed(rows)
    found = []
    for name, line in in_order(main_period_of(rows)):
        for workers, group in line.groupby("workers"):
            accuracy = range_or_interval(subnets.by_seed(group, "accuracy"))
            own = costs[costs["run_id"].isin(group["run_id"])]
            spent = median_and_range(subnets.by_seed(own, "bytes_spent"))
            first = group.iloc[0]
            row: dict[str, Any] = {key: first[key] for key in COLUMNS if key in group.columns}
            row |= {"name": name, "workers": int(workers), "n": accuracy.n}
            row |= {"accuracy": accuracy.centre, "low": accuracy.low, "high": accuracy.high}
            row |= {"bytes": spent.centre, "bytes_low": spent.low, "bytes_high": spent.high}
            reached = int(own.groupby("seed")["hit"].all().sum()) if len(own) else None
            found.append(row | {"reached": reached})
    return pd.DataFrame(found, columns=COLUMNS)


def workers_figure(
    runs: pd.DataFrame, paper: str, experiment: str, tier: str | None = None, suffix: str = ""
) -> style.Drawn | None:
    """Accuracy and bytes to the target against workers, a line a method; None without several numbers of workers."""
    rows = chosen(runs, experiment)
    data = workers_data(rows)
    if data["workers"].nunique() < 2:
        return None
    counts = sorted(set(data["workers"]))
    finite = data["bytes"].astype(float).replace([0.0, np.inf], np.nan)
    size, unit = style.byte_unit(10 * finite.min()) if finite.notna().any() else (1.0, "B")
    figure, grid = style.new_figure(style.WIDE, 4.7, 1, 2)
    left, right = grid[0]
    lines = in_order(data, "line")
    missed: list[tuple[float, str, str]] = []
    with matplotlib.rc_context(style.RC):
        for place, (_, line) in enumerate(lines):
            look = look_of(line.iloc[0].to_dict())
            kind = style.EVIDENCE_MARKERS[line["evidence"].iloc[0]]
            x = line["workers"].astype(float) * style.apart(place, len(lines))
            if line["method"].iloc[0] == "sequential":
                left.axhline(float(line["accuracy"].iloc[0]), **look | {"linewidth": 0.9}, label="_level")
            left.plot(x, line["accuracy"].astype(float), **look, marker=kind, markersize=5.5)
            left.vlines(
                x, line["low"].astype(float), line["high"].astype(float), color=look["color"], linewidth=1.2
            )
            sends = line[(line["bytes"] > 0) & line["bytes"].notna()]
            reached = sends[np.isfinite(sends["bytes"].astype(float))]
            x = reached["workers"].astype(float) * style.apart(place, len(lines))
            right.plot(x, reached["bytes"].astype(float) / size, **look, marker=kind, markersize=5.5)
            tops = reached["bytes_high"].astype(float).replace(np.inf, 1e6 * size * finite.max())
            right.vlines(
                x,
                reached["bytes_low"].astype(float) / size,
                tops / size,
                color=look["color"],
                linewidth=1.2,
                label="_range",
            )
            for row in sends.to_dict("records"):
                if row["reached"] is not None and row["reached"] < row["n"]:
                    where = row["workers"] * style.apart(place, len(lines))
                    missed.append((where, look["color"], f"{row['n'] - row['reached']:.0f}/{row['n']:.0f}"))
        for axes in (left, right):
            style.worker_axis(axes, counts)
        left.set_ylabel("test accuracy")
        right.set_yscale("log")
        style.plain_log_axis(right.yaxis, (1, 2, 5) if finite.max() < 50 * finite.min() else ())
        right.set_ylabel(f"bytes to the target ({unit}, all workers)")
        right.set_xlim(left.get_xlim())
        if finite.notna().any():
            right.set_ylim(0.6 * finite.min() / size, 4 * finite.max() / size)
        else:
            style.say_empty(right, "no bytes to a target yet")
        draw_at_top(right, missed)
        left.set_title("accuracy at the end", fontsize=11)
        right.set_title("bytes counted", fontsize=11)
    keys = method_keys(data) + ([missed_key("seeds that missed the target")] if missed else [])
    style.key_above(figure, "Accuracy and bytes against workers", keys, 3)
    return style.Drawn(
        name=f"ist_workers{suffix}",
        title=f"Accuracy and bytes to the target against workers: {setting_of(rows)}",
        caption=(
            told(rows)
            + _period_told(data)
            + "Left: accuracy on the test set at the end. "
            + seeds_told(data["n"])
            + "Right: bytes of all workers until validation accuracy reaches the target, median over seeds with their "
            "range, as counted; a seed that misses the target counts as infinite (triangles: how many did). "
            + ratios_told(data)
        ),
        alt="; ".join(
            f"{row['name']}, {row['workers']} workers: accuracy {row['accuracy']:.4g}, "
            + _bytes(row["bytes"], size, unit)
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
        section=SECTION if suffix else "",
    )


def _bytes(value: float, size: float, unit: str) -> str:
    if pd.isna(value):
        return "no target"
    return "target missed" if np.isinf(value) else f"{value / size:.3g} {unit} to the target"


def _period_told(data: pd.DataFrame) -> str:
    periods = {int(period) for period in data.loc[data["method"] != "data_parallel", "sync_period"].dropna()}
    return f"J={periods.pop()}. " if len(periods) == 1 else ""


def ratios_told(data: pd.DataFrame) -> str:
    """Bytes of the others over those of IST at each number of workers, in words. ``data``: of ``workers_data``."""
    spent = data[data["bytes"] > 0].pivot_table(
        index="workers", columns="method", values="bytes", aggfunc="first"
    )
    if not {"ist", "data_parallel", "averaging"} <= set(spent.columns):
        return ""
    words = []
    for workers, row in spent.astype(float).iterrows():
        if row[["ist", "data_parallel", "averaging"]].notna().all() and np.isfinite(row["ist"]):
            others = (row["data_parallel"] / row["ist"], row["averaging"] / row["ist"])
            words.append(f"{' : '.join(map(brief, others))} : 1 at {int(workers)} workers")
    return f"Bytes, data parallel : local SGD : IST = {', '.join(words)} (of medians)." if words else ""
