"""Seconds to the target against the network's bandwidth, and where methods change places."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from implementations.reporting.figures import style
from implementations.reporting.figures.ist_lines import (
    SECTION,
    at_most_periods,
    chosen,
    draw_at_top,
    in_order,
    look_of,
    method_keys,
    missed_key,
    setting_of,
    told,
)
from implementations.reporting.findings import crossings_told
from implementations.reporting.grouping import command_for
from implementations.reporting.targets import aimed, crossings_table, fastest_lines, seed_times

COLUMNS = ["evidence", "dataset", "line", "method", "model", "workers", "sync_period", "mbit_s", "time_s", "low",
           "high", "n", "reached"]  # fmt: skip


def bandwidth_data(seconds: pd.DataFrame) -> pd.DataFrame:
    """A row for each line and bandwidth: median seconds at the period that is fastest there, and the seeds' range.

    ``seconds``: of ``targets.seed_times``, of one setting.
    """
    best = fastest_lines(seconds)
    keys = ["line", "mbit_s", "sync_period"]
    seeds = seconds[seconds["mbit_s"].notna()].groupby(keys, dropna=False)
    spread = seeds["time_s"].agg(["min", "max", "size"]).set_axis(["low", "high", "n"], axis=1)
    spread["reached"] = seeds["time_s"].agg(lambda values: int(np.isfinite(values).sum()))
    first = seconds.drop_duplicates("line")[["line", "evidence", "dataset", "method", "model", "workers"]]
    return best.merge(spread.reset_index(), on=keys, how="left").merge(first, on="line")[COLUMNS]


def bandwidth_figure(
    runs: pd.DataFrame,
    timings: pd.DataFrame,
    networks: Mapping[str, float],
    paper: str,
    experiment: str,
    tier: str | None = None,
    suffix: str = "",
) -> style.Drawn | None:
    """Time to target against bandwidth, each method at its best period; None without two clusters.

    ``networks``: of ``targets.bandwidths``.
    """
    rows, workers = at_most_periods(chosen(runs, experiment))
    seconds = seed_times(aimed(rows), timings, networks)
    data = bandwidth_data(seconds)
    if data["mbit_s"].nunique() < 2:
        return None
    crossing = crossings_table(seconds)
    finite = data["time_s"].astype(float).replace(np.inf, np.nan)
    figure, grid = style.new_figure(5.6, 4.9)
    axes = grid[0, 0]
    missed: list[tuple[float, str, str]] = []
    with matplotlib.rc_context(style.RC):
        for name, line in in_order(data, "line"):
            look = look_of(line.iloc[0].to_dict())
            line = line.sort_values("mbit_s")
            known = line[np.isfinite(line["time_s"].astype(float))]
            x, y = known["mbit_s"].astype(float), known["time_s"].astype(float)
            axes.plot(x, y, **look, marker=style.EVIDENCE_MARKERS["simulated"], markersize=5.5, label=name)
            tops = known["high"].astype(float).replace(np.inf, 100 * finite.max())
            axes.vlines(x, known["low"].astype(float), tops, color=look["color"], linewidth=1.2)
            missed += [
                (float(x), look["color"], "")
                for x in line.loc[~np.isfinite(line["time_s"].astype(float)), "mbit_s"]
            ]
        marks = crossing[crossing["crossing_mbit_s"].notna()]
        places = [
            float(np.exp(_at(data, row["first"], row["crossing_mbit_s"]))) for row in marks.to_dict("records")
        ]
        axes.plot(marks["crossing_mbit_s"].astype(float), places, "o", color="black", markerfacecolor="white",
                  markersize=9, markeredgewidth=1.4, zorder=5, label="_crossing")  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        style.plain_log_axis(axes.xaxis)
        style.plain_log_axis(axes.yaxis)
        axes.set_xlabel("bandwidth between workers (Mbit/s)")
        axes.set_ylabel("simulated time to the target (s)")
        if finite.notna().any():
            axes.set_ylim(0.6 * finite.min(), 2.5 * finite.max())
        else:
            style.say_empty(axes, "no method reaches the target")
        draw_at_top(axes, missed)
    keys = method_keys(data) + ([missed_key()] if missed else [])
    if len(marks):
        keys.append(
            Line2D([], [], color="black", linestyle="none", marker="o", markerfacecolor="white", markersize=9,
                   label="change of places")
        )  # fmt: skip
    style.key_above(figure, f"Time to target against bandwidth, {workers} workers", keys, 3)
    target = float(rows["target_value"].dropna().iloc[0])
    return style.Drawn(
        name=f"ist_bandwidth{suffix}",
        title=f"Time to the target against bandwidth, {workers} workers: {setting_of(rows)}",
        caption=(
            told(rows, workers=workers)
            + f"Simulated seconds (the time model with this machine's calibrated cores) until validation accuracy is "
            f"{target:g}: median over {int(data['n'].max())} seeds, bars their range; at each bandwidth each method at "
            f"the J that is fastest there (from the slowest network up, {_periods_told(data)}). "
            "Bandwidths are those of the cluster files, "
            "payload alone. "
            + ("Triangles: most seeds miss the target, at any speed. " if missed else "")
            + crossings_told(crossing)
        ),
        alt="; ".join(
            f"{row['line']} at {row['mbit_s']:.4g} Mbit/s: "
            + (f"{row['time_s']:.4g} s" if np.isfinite(row["time_s"]) else "target missed")
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
        section=SECTION if suffix else "",
    )


def _at(data: pd.DataFrame, line: str, bandwidth: float) -> float:
    """Logarithm of a line's seconds at a bandwidth."""
    own = data[data["line"] == line].sort_values("mbit_s")
    return float(np.interp(np.log(bandwidth), np.log(own["mbit_s"]), np.log(own["time_s"].astype(float))))


def _periods_told(data: pd.DataFrame) -> str:
    words = []
    for name, line in in_order(data, "line"):
        periods = line.sort_values("mbit_s")["sync_period"]
        if line["method"].iloc[0] not in ("ist", "averaging") or periods.isna().any():
            continue
        each = [int(period) for period in periods]
        changes = [
            each[0],
            *(after for before, after in itertools.pairwise(each) if after != before),
        ]
        words.append(f"{name}: {', then '.join(map(str, changes))}")
    return "; ".join(words)
