"""What each method needs to the target: seconds by bandwidth, bytes and memory."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from implementations.reporting.figures import style
from implementations.reporting.figures.ist_lines import draw_at_top, missed_key, seeds_told
from implementations.reporting.figures.suite_shootout import LOOKS, look_of, panels_of, races_of, tasks_of
from implementations.reporting.grouping import cell_value, command_for
from implementations.reporting.html import MB
from implementations.reporting.suite import contest, shootout
from implementations.reporting.suite.context import PAPER, Context
from implementations.reporting.suite.shootout import Race
from implementations.reporting.suite.verdict import speed

LINE_COLUMNS = ["evidence", "dataset", "net", "target_value", "workers", "name", "sync_period", "mbit_s", "time_s",
                "low", "high", "n"]  # fmt: skip
COST_COLUMNS = ["evidence", "dataset", "net", "target_value", "workers", "name", "sync_period",
                "state_bytes_per_worker", "bytes", "bytes_low", "bytes_high", "reached", "n"]  # fmt: skip
MARKS = "so^Dv<>ph*X"


def _largest(races: list[Race]) -> list[Race]:
    """Of each net the race with the most contenders, of several that with the most workers; not across nets."""
    found = []
    for net, part in panels_of(races):
        if net != shootout.EITHER:
            found.append(max(part, key=lambda race: (len(race.medians), race.workers)))
    return found


def lines_data(races: list[Race]) -> pd.DataFrame:
    """A row for each contender and bandwidth of some races: median seconds and the seeds' range."""
    rows = []
    for race in races:
        common = {name: race.setting[name] for name in ("dataset", "net", "target_value")}
        periods = race.best.set_index(["line", "mbit_s"])["sync_period"]
        for line, seconds in race.medians.items():
            for place, mbit_s in enumerate(race.bandwidth):
                own = [each[place] for each in race.seeds.get(line, {}).values()]
                row = common | {
                    "evidence": "simulated",
                    "workers": race.workers,
                    "name": line,
                    "mbit_s": mbit_s,
                }
                row |= {
                    "time_s": seconds[place],
                    "low": min(own, default=np.nan),
                    "high": max(own, default=np.nan),
                }
                rows.append(row | {"n": len(own), "sync_period": periods[line, mbit_s]})
    return pd.DataFrame(rows, columns=LINE_COLUMNS)


def lines_figure(context: Context) -> style.Drawn | None:
    """Seconds to the target against bandwidth for every contender, of the first task. None without two networks."""
    tasks = tasks_of(races_of(context))
    if not tasks:
        return None
    races = _largest(tasks[0])
    data = lines_data(races)
    names = [name for name in LOOKS if name in set(data["name"])]
    figure, grid = style.new_figure(5.8, 1.9 + 3.1 * len(races), len(races), 1, sharex=True)
    missed = False
    with matplotlib.rc_context(style.RC):
        for axes, race in zip(grid[:, 0], races, strict=True):
            own = data[data["net"] == race.setting["net"]]
            missed |= _draw_lines(axes, own, names)
            axes.set_title(f"{race.setting['net']} net, {race.workers} workers", fontsize=11)
        grid[-1, 0].set_xlabel("Mbit/s")
    keys: list[Any] = [Line2D([], [], **look_of(name), linewidth=2.6, label=name) for name in names]
    keys += [missed_key()] if missed else []
    first = data.iloc[0]
    title = f"Time to {100 * first['target_value']:g} % on {first['dataset']}"
    style.key_above(figure, title, keys, 2, 2.4)
    return style.Drawn(
        name="shootout_bandwidth",
        title=title,
        caption=(
            "Evidence: simulated training, seconds by the model of time, of the layer-wise strategies by the cost "
            "model of plans. Each contender at the period that is fastest at each bandwidth. "
            + seeds_told(data["n"], "median")
            + ("Triangles: most seeds miss the target, at any speed. " if missed else "")
            + "The flat ends on the right are computation and latency, the slopes on the left bytes."
        ),
        alt="; ".join(
            f"{row['net']}, {row['name']} at {speed(row['mbit_s'])}: "
            + (f"{row['time_s']:.4g} s" if np.isfinite(row["time_s"]) else "target missed")
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(PAPER, context.tier),
        paper=PAPER,
    )


def _draw_lines(axes: Axes, own: pd.DataFrame, names: list[str]) -> bool:
    """One net's lines; whether any contender missed the target."""
    missed: list[tuple[float, str, str]] = []
    for place, name in enumerate(names):
        line = own[own["name"] == name].sort_values("mbit_s")
        known = line[np.isfinite(line["time_s"])]
        x = known["mbit_s"].to_numpy(dtype=float) * style.apart(place, len(names))
        axes.plot(
            x, known["time_s"], **look_of(name), marker=style.EVIDENCE_MARKERS["simulated"], markersize=4.5
        )
        tops = known["high"].replace(np.inf, np.nan).fillna(known["time_s"])
        axes.vlines(x, known["low"], tops, color=look_of(name)["color"], linewidth=1.1)
        if len(line) and not len(known):
            missed.append((float(line["mbit_s"].max()), look_of(name)["color"], name))
    draw_at_top(axes, missed)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.plain_log_axis(axes.xaxis)
    style.plain_log_axis(axes.yaxis)
    axes.set_ylabel("seconds")
    return bool(missed)


# -- bytes and memory --------------------------------------------------------------------------------------------------


def costs_data(context: Context) -> pd.DataFrame:
    """A row for each configuration of the first task at the most workers: bytes to the target, and memory per worker.

    The bytes are the run's own: of a layer-wise one those of the strategy that it trained with.
    """
    runs = contest.contenders(context)
    rows = []
    for _, own in runs[runs["workers"] > 1].groupby("configuration", sort=False):
        first, spent = own.iloc[0], own["bytes_spent"].astype(float)
        rows.append(
            {
                name: cell_value(first[name])
                for name in ("evidence", "dataset", "net", "target_value", "workers")
            }
            | {
                "name": first["line"],
                "sync_period": cell_value(first["sync_period"]),
                "n": own["seed"].nunique(),
            }
            | {"state_bytes_per_worker": float(own["state_bytes_per_worker"].astype(float).max())}
            | {"bytes": spent.median(), "bytes_low": spent.min(), "bytes_high": spent.max()}
            | {"reached": int(own["hit"].sum())}
        )
    data = pd.DataFrame(rows, columns=COST_COLUMNS)
    data = data[data["dataset"] == data["dataset"].min()]
    most = data.groupby("net")["workers"].transform("max")
    return data[data["workers"] == most].reset_index(drop=True)


def costs_figure(context: Context) -> style.Drawn | None:
    """Bytes to the target against memory per worker. None without several contenders that reach the target."""
    data = costs_data(context)
    known = data[np.isfinite(data["bytes"].astype(float))]
    if len(known) < 2:
        return None
    nets = list(dict.fromkeys(known["net"]))
    names = [name for name in LOOKS if name in set(known["name"])]
    figure, grid = style.new_figure(5.8, 1.9 + 2.9 * len(nets), len(nets), 1, sharex=True)
    with matplotlib.rc_context(style.RC):
        for axes, net in zip(grid[:, 0], nets, strict=True):
            own = known[known["net"] == net]
            _draw_costs(axes, own, names)
            axes.set_title(f"{net} net, {int(own['workers'].iloc[0])} workers", fontsize=11)
        grid[-1, 0].set_xlabel("sent to the target, all workers (MB)")
    keys = [
        Line2D(
            [],
            [],
            color=look_of(name)["color"],
            marker=MARKS[place % len(MARKS)],
            linestyle="none",
            label=name,
        )
        for place, name in enumerate(names)
    ]
    first = data.iloc[0]
    title = f"Bytes and memory to {100 * first['target_value']:g} % on {first['dataset']}"
    style.key_above(figure, title, keys, 2)
    missed = sorted({shootout.named(row["name"], row["sync_period"]) for row in data.to_dict("records")
                     if np.isinf(row["bytes"])})  # fmt: skip
    return style.Drawn(
        name="shootout_bytes",
        title=title,
        caption=(
            "Evidence: simulated. Bytes of all workers together until the target, median over seeds, bars their range; "
            "memory is weights, gradients and optimiser state of a worker, and what a method keeps beside them. "
            "A layer-wise run's are those of the plan that it trained with. "
            "Numbers: steps between two exchanges (K). "
            + (f"Left out, as most seeds miss the target: {', '.join(missed)}. " if missed else "")
            + "Left and down is better."
        ),
        alt="; ".join(
            f"{row['net']}, {shootout.named(row['name'], row['sync_period'])}: {row['bytes'] / MB:.4g} MB sent, "
            f"{row['state_bytes_per_worker'] / MB:.4g} MB held"
            for row in known.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(PAPER, context.tier),
        paper=PAPER,
    )


def _draw_costs(axes: Axes, own: pd.DataFrame, names: list[str]) -> None:
    for row in own.to_dict("records"):
        tint, mark = look_of(row["name"])["color"], MARKS[names.index(row["name"]) % len(MARKS)]
        x, y = row["bytes"] / MB, row["state_bytes_per_worker"] / MB
        high = row["bytes_high"] if np.isfinite(row["bytes_high"]) else row["bytes"]
        axes.plot([row["bytes_low"] / MB, high / MB], [y, y], color=tint, linewidth=1.1)
        axes.plot([x], [y], mark, color=tint, markersize=8, alpha=0.9)
        if shootout.named(row["name"], row["sync_period"]) != row["name"]:
            below = -16 if row["name"].startswith("Spark") else 7  # where averaging with the same K is
            axes.annotate(str(int(row["sync_period"])), (x, y), (0, below), textcoords="offset points", ha="center",
                          fontsize=style.SMALLEST_FONT)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(own["state_bytes_per_worker"].min() / MB / 2, own["state_bytes_per_worker"].max() / MB * 2)
    style.plain_log_axis(axes.xaxis, (1.0, 3.0))
    style.plain_log_axis(axes.yaxis, (1.0, 2.0, 5.0))
    axes.set_ylabel("held per worker (MB)")
