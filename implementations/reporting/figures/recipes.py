"""What first weights and learning rates do for speech: validation frame error by epoch, and by rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from implementations.reporting.columns import is_speech
from implementations.reporting.curves import read_curve
from implementations.reporting.figures import style
from implementations.reporting.figures.conditions import (
    at_own_rate,
    corpus,
    main_condition,
    quality_rows,
    told,
)
from implementations.reporting.figures.lines import (
    DIVERGED,
    LINE,
    SECTION,
    ceiling,
    draw_beyond,
    draw_diverged,
    line_keys,
    lines_of,
    look_of,
    mark,
    name_of,
)
from implementations.reporting.grouping import command_for, ended_runs, most_frequent
from implementations.reporting.tables import tuning_table

# What finds the runs of a row of the table of errors.
_RUN_KEYS = ["evidence", "dataset", "data_size", "model", "minibatch", "epochs", "method", "mixing", "content",
             "sync_period", "optimizer", "init", "schedule", "recipe", "workers", "lr", "lr_scaling"]  # fmt: skip


def init_curves(words: pd.DataFrame, runs: pd.DataFrame, results_dir: Path) -> pd.DataFrame:
    """Validation frame error after each epoch of RBM and random first weights, mean and range over seeds.

    On the fewest and the most workers that both ran with, at each line's own rate; from ``curve.parquet``.
    """
    rows = at_own_rate(main_condition(quality_rows(words)))
    rows = rows[rows["init"].isin(["rbm", "random"]) & (rows["n"] > 0)]
    inits = rows.groupby(["workers", "optimizer"])["init"].nunique()
    both = sorted({int(workers) for workers, _ in inits[inits == 2].index})
    parts = []
    for row in rows[rows["workers"].isin(both[:1] + both[-1:])].to_dict("records"):
        found = [read_curve(results_dir, name) for name in _runs_of(row, runs)]
        curves = [curve[["epoch", "valid_accuracy"]] for curve in found if curve is not None]
        if not curves:
            continue
        error = 1 - pd.concat(curves).groupby("epoch")["valid_accuracy"].agg(["mean", "min", "max"])
        error = error.rename(columns={"mean": "valid_frame_error", "min": "high", "max": "low"})
        known = {name: row[name] for name in (*_RUN_KEYS, "data_kind", "max_change_rule")}
        parts.append(error.reset_index().assign(**known, n=len(curves)))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _runs_of(row: dict[str, Any], runs: pd.DataFrame) -> list[str]:
    """Ids of the runs of a row of the table that ended."""
    found = ended_runs(runs)
    for name in _RUN_KEYS:
        same = found[name].isna() if pd.isna(row[name]) else (found[name] == row[name]).fillna(False)
        found = found[same.astype(bool)]
    return list(found["run_id"])


def init_figure(
    words: pd.DataFrame,
    runs: pd.DataFrame,
    results_dir: Path,
    paper: str,
    tier: str | None = None,
    suffix: str = "",
) -> style.Drawn | None:
    """Validation frame error by epoch of RBM and random first weights; None where both did not run."""
    data = init_curves(words, runs, results_dir)
    if not len(data) or data["init"].nunique() < 2:
        return None
    counts = sorted(set(data["workers"]))
    figure, grid = _panels(counts)
    top = ceiling(100 * data["valid_frame_error"])  # before training all errors are near 100 %
    with matplotlib.rc_context(style.RC):
        for axes, workers in zip(grid, counts, strict=True):
            for line, points in lines_of(data[data["workers"] == workers]):
                look = look_of(line, points["evidence"].iloc[0]) | {"markersize": 5}
                x, low, high = points["epoch"].astype(float), 100 * points["low"], 100 * points["high"]
                axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
                axes.plot(x, 100 * points["valid_frame_error"], **look)
                if top is not None:
                    beyond = (100 * points["valid_frame_error"] > top) & (points["epoch"] > 0)
                    draw_beyond(axes, x[beyond], 100 * points["valid_frame_error"][beyond], look["color"])
            if top is not None:
                low = 100 * data["low"].min()
                axes.set_ylim(low - 0.05 * (top - low), top)
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5, integer=True))
    title = "First weights: RBM against random"
    style.key_above(figure, title, line_keys(data), 3, 2.6)
    last = data.sort_values("epoch").groupby([*LINE, "workers"]).tail(1)
    return style.Drawn(
        name=f"speech_init{suffix}",
        title=f"{title}, {corpus(data)}",
        caption=(
            told(data)
            + "Frame error on held-out training speakers after each epoch; before the first it is near 100 %. Mean of "
            f"{int(data['n'].max())} seeds, bands are their range. The time of pretraining is not in it."
        ),
        alt="; ".join(
            f"{name_of(row['optimizer'], row['init'])}, {_workers(row['workers'])}: "
            f"{100 * row['valid_frame_error']:.3g} % at the end"
            for row in last.to_dict("records")
        ),
        figure=figure,
        data=data.drop(columns="recipe"),
        command=command_for(paper, tier),
        paper=paper,
        section=SECTION,
    )


def rates_data(trials: pd.DataFrame) -> pd.DataFrame:
    """Validation frame error by learning rate, on one worker and the three largest numbers that were tried."""
    table = quality_rows(tuning_table(trials))
    table = most_frequent(table, ["data_size", "model", "minibatch", "epochs", "schedule"])
    # of each optimiser what was tried most
    table = most_frequent(table, ["max_change_rule", "init"], ["optimizer"])
    several = most_frequent(table[table["workers"] > 1], ["sync_period", "lr_scaling"], ["optimizer"])
    several = several[several["workers"].isin(sorted(set(several["workers"]))[-3:])]
    data = pd.concat([table[table["workers"] == 1], several], ignore_index=True)
    data = data[data.groupby(["optimizer", "workers"])["lr"].transform("nunique") > 1]
    # the table's values are accuracies
    data = data.assign(error=1 - data["mean"], error_low=1 - data["high"], error_high=1 - data["low"])
    return data.sort_values(["optimizer", "workers", "lr"], ignore_index=True)


def rates_figure(
    trials: pd.DataFrame, paper: str, tier: str | None = None, suffix: str = ""
) -> style.Drawn | None:
    """Validation frame error by learning rate, a plot for each number of workers; None without trials.

    ``trials``: runs of one corpus that tried rates.
    """
    trials = trials[is_speech(trials)]
    if not len(trials):
        return None
    data = rates_data(trials).assign(data_kind=trials["data_kind"].iloc[0])
    counts = sorted(set(data["workers"]))
    if not counts:
        return None
    figure, grid = _panels(counts, sharex=True)
    top = ceiling(100 * data["error"])
    with matplotlib.rc_context(style.RC):
        for axes, workers in zip(grid, counts, strict=True):
            for line, points in lines_of(data[data["workers"] == workers]):
                look, x = look_of(line, points["evidence"].iloc[0]), points["lr"].astype(float)
                axes.plot(x, 100 * points["error"], **look)
                axes.vlines(
                    x, 100 * points["error_low"], 100 * points["error_high"], color=look["color"], linewidth=1
                )
                if points["error"].notna().any():
                    best = points.loc[points["error"].idxmin()]
                    ring = {"markersize": 13, "color": look["color"], "markerfacecolor": "none"}
                    axes.plot(best["lr"], 100 * best["error"], "o", **ring, label="_best")
                draw_diverged(axes, x[(points["n"] == 0).to_numpy()], look["color"])
                if top is not None:
                    beyond = 100 * points["error"] > top
                    draw_beyond(axes, x[beyond], 100 * points["error"][beyond], look["color"])
                    low = 100 * data["error_low"].min()
                    axes.set_ylim(low - 0.08 * (top - low), top)  # room for the ring of a best one
            axes.margins(y=0.08)
            axes.set_xscale("log")
            style.plain_log_axis(axes.xaxis, (1, 3) if data["lr"].max() < 100 * data["lr"].min() else ())
            axes.set_xlabel("rate of one worker")
            axes.label_outer()
    title = "Learning rate of each optimiser"
    keys = [*line_keys(data), mark("best", marker="o", markersize=11, markerfacecolor="none")]
    style.key_above(figure, title, keys, 3, 2.6)
    scaled = list(data.loc[data["workers"] > 1, "lr_scaling"].dropna().unique()) == ["linear"]
    most = int(data["n"].max())
    return style.Drawn(
        name=f"speech_rates{suffix}",
        title=f"{title}, {corpus(data)}",
        caption=(
            told(data)
            + "Trials with seeds of their own; frame error on held-out training speakers, "
            + (f"mean of {most} seeds, bars are their range. " if most > 1 else "one seed. ")
            + ("Several workers train at the rate shown times their number." if scaled else "")
        ).strip(),
        alt="; ".join(
            f"{name_of(row['optimizer'], row['init'])}, {_workers(row['workers'])}, rate {row['lr']:g}: "
            + (f"{100 * row['error']:.3g} %" if row["n"] else DIVERGED)
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
        section=SECTION,
    )


def _panels(counts: list[int], **shared: Any) -> tuple[Any, list[Any]]:
    """A plot of validation frame error for each number of workers, two in a row."""
    rows, columns = -(-len(counts) // 2), min(2, len(counts))
    wide = style.WIDE if columns > 1 else 5.2
    figure, grid = style.new_figure(wide, 1.4 + 3.0 * rows, rows, columns, sharey=True, **shared)
    plots = list(grid.flat)
    with matplotlib.rc_context(style.RC):
        for plot in plots[len(counts) :]:
            plot.set_visible(False)
        for plot, workers in zip(plots, counts, strict=False):
            plot.set_title(_workers(workers), fontsize=11)
        for row in grid:
            row[0].set_ylabel("validation frame error (%)")
    return figure, plots[: len(counts)]


def _workers(count: int) -> str:
    return f"{int(count)} worker{'s' if count > 1 else ''}"
