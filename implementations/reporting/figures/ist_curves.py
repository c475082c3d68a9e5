"""Validation accuracy of subnets and their baselines against steps, bytes and simulated seconds."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd

from implementations.reporting.curves import read_curve
from implementations.reporting.figures import style
from implementations.reporting.figures.ist_lines import (
    SECTION,
    at_most_periods,
    chosen,
    dashes_of,
    in_order,
    look_of,
    method_keys,
    period_keys,
    setting_of,
    told,
)
from implementations.reporting.grouping import command_for

CLUSTER = "gigabit-cpu"
_KNOWN = ["evidence", "dataset", "name", "line", "method", "model", "sync_period", "workers", "variant"]
COLUMNS = [*_KNOWN, "cluster", "epoch", "step", "sent_bytes_total", "seconds", "accuracy", "low", "high", "n"]
PANELS = (
    ("step", "steps of a worker"),
    ("sent_bytes_total", "sent by all workers"),
    ("seconds", "simulated time (s)"),
)


def curves_data(
    rows: pd.DataFrame, timings: pd.DataFrame, results_dir: Path, cluster: str = CLUSTER
) -> pd.DataFrame:
    """A row for each line and evaluation: accuracy on validation data, mean and range over seeds, and what it took.

    ``rows``: of ``chosen``. ``seconds``: the time model's step on ``cluster`` times steps, NaN without timings.
    """
    here = timings[timings["cluster"] == cluster] if len(timings) else timings
    step_s = here.drop_duplicates("run_id").set_index("run_id")["step_s"] if len(here) else {}
    parts = []
    for name, line in in_order(rows):
        curves = []
        for run in line.sort_values(["seed", "repeat"]).drop_duplicates("seed").to_dict("records"):
            curve = read_curve(results_dir, run["run_id"])
            if curve is not None:
                seconds = curve["step"].astype(float) * float(step_s.get(run["run_id"], float("nan")))
                curves.append(curve.assign(seconds=seconds))
        if not curves:
            continue
        every = pd.concat(curves)
        spent = every.groupby("epoch")[["step", "sent_bytes_total", "seconds"]].mean()
        accuracy = every.groupby("epoch")["valid_accuracy"].agg(["mean", "min", "max", "size"])
        accuracy.columns = pd.Index(["accuracy", "low", "high", "n"])
        first = line.iloc[0]
        known = {key: first[key] for key in _KNOWN}
        part = spent.join(accuracy).reset_index().assign(**known | {"name": name, "cluster": cluster})
        parts.append(part.reindex(columns=COLUMNS))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def training_figure(
    runs: pd.DataFrame,
    timings: pd.DataFrame,
    results_dir: Path,
    paper: str,
    experiment: str,
    tier: str | None = None,
    suffix: str = "",
) -> style.Drawn | None:
    """Accuracy against steps, bytes and seconds, a line for each method and period; None without curves."""
    rows, workers = at_most_periods(chosen(runs, experiment))
    data = curves_data(rows, timings, results_dir)
    if not len(data):
        return None
    dashes = dashes_of(data)
    sent = data.loc[data["sent_bytes_total"] > 0, "sent_bytes_total"]
    size, unit = style.byte_unit(10 * sent.min()) if len(sent) else (1.0, "B")
    target = rows["target_value"].dropna()
    figure, grid = style.new_figure(style.WIDE, 6.4, 2, 2)
    with matplotlib.rc_context(style.RC):
        for axes, (column, text) in zip(grid.flat, PANELS, strict=False):
            scale = size if column == "sent_bytes_total" else 1.0
            for name, line in in_order(data):
                known = line[line[column].notna() & ((line[column] > 0) | (column == "step"))]
                look = look_of(known.iloc[0].to_dict(), dashes) if len(known) else {}
                x = known[column].astype(float) / scale
                axes.plot(x, known["accuracy"].astype(float), **look, label=name)
                if len(known):
                    low, high = known["low"].astype(float), known["high"].astype(float)
                    axes.fill_between(x, low, high, color=look["color"], alpha=0.12, linewidth=0)
            if column != "step":
                axes.set_xscale("log")
                style.plain_log_axis(axes.xaxis)
            else:
                axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
            axes.set_xlabel(text + (f" ({unit})" if column == "sent_bytes_total" else ""))
            if not data[column].notna().any():
                style.say_empty(axes, f"no times on {CLUSTER} yet")
            if len(target):
                axes.axhline(float(target.iloc[0]), color="#888888", linewidth=1.0, zorder=0, label="_target")
        for axes in grid[:, 0]:
            axes.set_ylabel("validation accuracy")
        # the untrained net apart, so that the lines have room
        trained = data[data["epoch"] > data["epoch"].min()]
        low, high = trained["low"].min(), trained["high"].max()
        for axes in grid.flat:
            if high > low:
                axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        last = grid[1, 1]
        last.set_axis_off()
        keys = period_keys(dashes)
        if len(target):
            keys.append(matplotlib.lines.Line2D([], [], color="#888888", linewidth=1.0, label="target"))
        last.legend(
            handles=keys, title="steps between exchanges", loc="center", alignment="left", handlelength=3
        )
        grid[1, 0].set_title(f"on {CLUSTER}", fontsize=11)
    style.key_above(figure, _title(workers), method_keys(rows), 3)
    return style.Drawn(
        name=f"ist_curves{suffix}",
        title=f"{_title(workers)}: {setting_of(rows)}",
        caption=(
            told(rows, workers=workers)
            + "Accuracy on validation data at the end of each epoch; lines are means over "
            + f"{int(data['n'].max())} seed{'s, bands their range' if data['n'].max() > 1 else ''}. Bytes are counted, "
            f"of all workers together; seconds are the time model's step on {CLUSTER} times steps. One worker sends "
            "nothing. " + _reached(data, rows)
        ),
        alt="; ".join(
            f"{name}: {line['accuracy'].iloc[-1]:.4g} after {line['step'].iloc[-1]:,.0f} steps"
            for name, line in in_order(data)
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
        section=SECTION if suffix else "",
    )


def _title(workers: int) -> str:
    return f"Accuracy against steps, bytes and time, {workers} workers"


def _reached(data: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Which line is first at the target, by each measure."""
    targets = rows["target_value"].dropna()
    if not len(targets):
        return ""
    at = data[data["accuracy"] >= float(targets.iloc[0])]
    words = []
    for column, text in (("step", "in steps"), ("sent_bytes_total", "in bytes"), ("seconds", "in seconds")):
        least = at[at[column] > 0].groupby("name")[column].min()
        first = list(least[least == least.min()].index)
        if first:
            words.append(f"{text} {' and '.join(first) if len(first) < 3 else f'{len(first)} lines at once'}")
    told = f"The mean is first at the target of {float(targets.iloc[0]):g} " + ", ".join(words) + "."
    return told if words else f"No line's mean reaches the target of {float(targets.iloc[0]):g}."
