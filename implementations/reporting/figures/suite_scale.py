"""Many workers: what simulating them costs this host, and how far the time model says that methods scale."""

from __future__ import annotations

import itertools

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from implementations.reporting.figures import style
from implementations.reporting.grouping import command_for, groups_of
from implementations.reporting.html import brief, number
from implementations.reporting.suite import scale
from implementations.reporting.suite.context import PAPER, Context

_DASHES = ("-", "--", ":", "-.")
_LINE = ["method", "variant", "mixing", "algorithm", "server", "model", "minibatch", "sync_period"]
_TICKS = 8  # at most, on the axis of workers


def cost_figure(context: Context) -> style.Drawn | None:
    """Seconds a step and a worker's step, and memory, against simulated workers; None where nothing was simulated."""
    data = scale.cost_table(context)
    if not len(data):
        return None
    figure, grid = style.new_figure(style.WIDE, 7.4, rows=2, columns=2, sharex=True)
    lines = list(groups_of(data, _LINE))
    with matplotlib.rc_context(style.RC):
        for keys_of, rows in lines:
            rows = rows.sort_values("workers")
            look = _look(keys_of, lines)
            x = rows["workers"].astype(int)
            grid[0, 0].plot(x, 1e3 * rows["simulation_step_s"], marker="s", **look)
            grid[0, 1].plot(x, 1e6 * rows["simulation_worker_step_s"], marker="s", **look)
            grid[1, 0].plot(x, rows["simulation_bytes"] / 1e6, marker="s", **look)
            grid[1, 1].plot(x, rows["simulation_bytes_predicted"] / 1e6, marker="D", **look)
        titles = ("a step of all workers (ms)", "a step, for each worker (\N{MICRO SIGN}s)",
                  "memory, measured (MB)", "memory, predicted (MB)")  # fmt: skip
        for axes, title in zip(grid.flat, titles, strict=True):
            axes.set_title(title)
            axes.set_yscale("log")
            _worker_axis(axes, data["workers"])
        for axes in grid[0]:
            axes.set_xlabel("")  # that of the plot below
        low, high = _limits(data[["simulation_bytes", "simulation_bytes_predicted"]] / 1e6)
        for axes in grid[1]:
            axes.set_ylim(low, high)
    title = "What simulating many workers costs"
    style.key_above(figure, title, _line_keys(lines), 2, 2.6)
    return style.Drawn(
        name="scale_cost",
        title=title,
        caption=(
            "Evidence: simulated; seconds and memory of this host's one process, which does the arithmetic of all "
            "workers. They say nothing of the time that so many real workers would take. Each worker has as many "
            "samples; evaluation is left out. Memory is what the process grew by at its peak, Python's own objects "
            "and what libraries keep included; predicted are the tensors, from sizes, before the start."
        ),
        alt="; ".join(
            f"{scale.name_of(row, style.METHOD_LABELS)}, {number(row['workers'])} workers: "
            f"{brief(1e3 * row['simulation_step_s'])} ms a step, {brief(row['simulation_bytes'] / 1e6)} MB"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data.drop(columns=["step_s", "speedup", "efficiency", "collective", "cluster", "nodes"]),
        command=command_for(PAPER, context.tier),
        paper=PAPER,
        section="scale",
    )


def speedup_figure(context: Context) -> style.Drawn | None:
    """Projected speedup against workers, a plot for each cluster; None where nothing was projected."""
    data = scale.projected_table(context)
    data = data[data["speedup"].notna()]
    if not len(data):
        return None
    clusters = list(dict.fromkeys(data["cluster"]))
    rows_of_plots = -(-len(clusters) // 2)
    figure, grid = style.new_figure(style.WIDE, 1.2 + 3.1 * rows_of_plots, rows=rows_of_plots, columns=2)
    lines = list(groups_of(data, _LINE))
    with matplotlib.rc_context(style.RC):
        for axes, cluster in zip(grid.flat, clusters, strict=False):
            here = data[data["cluster"] == cluster]
            span = [1, int(here["workers"].max())]
            axes.plot(span, span, **style.IDEAL)
            for keys_of, _ in lines:
                rows = _same(here, keys_of).sort_values("workers")
                axes.plot(rows["workers"].astype(int), rows["speedup"], marker="D", **_look(keys_of, lines))
            axes.set_title(str(cluster))
            axes.set_yscale("log", base=2)
            style.plain_log_axis(axes.yaxis)
            _worker_axis(axes, here["workers"])
        for axes in list(grid.flat)[len(clusters) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("speedup (x)")
    title = "Speedup of up to 65,536 workers, by the time model"
    style.key_above(figure, title, [*_line_keys(lines), style.ideal_key()], 2, 2.6)
    return style.Drawn(
        name="scale_speedup",
        title=title,
        caption=(
            "Evidence: projected; nothing of it was trained. Weak scaling: each worker has as many samples, and "
            "speedup is samples per second over one worker's. A subnet has less to compute the more workers there "
            "are. Clusters are as many nodes as it takes, of the kind that their files describe, behind switches that "
            "block nothing; the all-reduce is the fastest one for its size and the nodes."
        ),
        alt="; ".join(
            f"{scale.name_of(row, style.METHOD_LABELS)} on {row['cluster']}, {number(row['workers'])} workers: "
            f"{brief(row['speedup'])} x"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data.drop(columns=[name for name in data.columns if name.startswith("simulation_")]),
        command=command_for(PAPER, context.tier),
        paper=PAPER,
        section="scale",
    )


def _line_keys(lines: list[tuple[dict, pd.DataFrame]]) -> list[Line2D]:
    """An entry of the key for each setting."""
    return [Line2D([], [], linewidth=2.4, label=_words(keys), **_look(keys, lines)) for keys, _ in lines]


def _words(keys: dict) -> str:
    """The setting and its net, a run of equal layers said once: ``fc 6 x 2048``."""
    name, *sizes = str(keys["model"]).split("-")
    runs = [(size, len(list(same))) for size, same in itertools.groupby(sizes)]
    net = " ".join([name, *(size if count < 3 else f"{count} x {size}" for size, count in runs)])
    return f"{scale.name_of(keys, style.METHOD_LABELS)} ({net})"


def _look(keys: dict, lines: list[tuple[dict, pd.DataFrame]]) -> dict:
    """The method's colour; dashes tell its settings apart."""
    own = [other for other, _ in lines if other["method"] == keys["method"]]
    place = next(place for place, other in enumerate(own) if _equal(other, keys))
    return {"color": style.colour(keys["method"]), "linestyle": _DASHES[place % len(_DASHES)]}


def _equal(one: dict, other: dict) -> bool:
    return all((pd.isna(one[name]) and pd.isna(other[name])) or one[name] == other[name] for name in _LINE)


def _same(rows: pd.DataFrame, keys: dict) -> pd.DataFrame:
    chosen = [_equal(row, keys) for row in rows.to_dict("records")]
    return rows[np.array(chosen, dtype=bool)]


def _worker_axis(axes: Axes, workers: pd.Series) -> None:
    """Every number of workers that occurs, or, of many, some of them."""
    found = sorted(set(workers.astype(int)))
    apart = -(-len(found) // _TICKS)
    style.worker_axis(axes, found[::apart])
    if found[-1] >= 1024:
        for tick in axes.get_xticklabels():
            tick.set_rotation(45)


def _limits(values: pd.DataFrame) -> tuple[float, float]:
    known = values.to_numpy(dtype=float)
    known = known[np.isfinite(known) & (known > 0)]
    return (0.8 * known.min(), 1.25 * known.max()) if len(known) else (0.1, 10.0)
