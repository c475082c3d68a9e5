"""Where the measured seconds went, and how well the time model predicts them."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd

from implementations.reporting.columns import is_true
from implementations.reporting.figures import style
from implementations.reporting.tables import PARTS, command_for, time_split_table

BAND = 0.10  # errors within it are what the time model aims at


def time_split_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn:
    """Stacked bars of the parts of the wall time, a bar for each measured configuration."""
    table = time_split_table(runs)
    order = {name: place for place, name in enumerate(style.METHOD_COLOURS)}
    data = table.assign(_place=table["method"].map(order).fillna(len(order)))
    data = (
        data.sort_values(["_place", "workers", "threads_per_worker", "algorithm"])
        .drop(columns="_place")
        .reset_index(drop=True)
    )
    several = [name for name in ("algorithm", "mixing", "server") if data[name].nunique() > 1]
    if (data.groupby("method")["variant"].nunique() > 1).any():
        several.insert(0, "variant")
    if data["model"].nunique() > 1:
        several.insert(0, "model")
    data["label"] = pd.Series([_bar_label(row, several) for row in data.to_dict("records")], dtype="string")
    figure, grid = style.new_figure(style.WIDE, 2.0 + 0.36 * max(len(data), 3))
    axes = grid[0, 0]
    with matplotlib.rc_context(style.RC):
        if len(data):
            places = np.arange(len(data))[::-1]
            left = np.zeros(len(data))
            for part in PARTS:
                name, tint, hatch = style.PART_STYLES[part]
                width = data[part].fillna(0.0).clip(lower=0.0).to_numpy(dtype=float)
                axes.barh(
                    places,
                    width,
                    left=left,
                    height=0.66,
                    color=tint,
                    hatch=hatch,
                    edgecolor="#333333",
                    linewidth=0.5,
                    label=name,
                )
                left += width
            axes.set_yticks(places, data["label"])
            for text, row in zip(axes.get_yticklabels(), data.to_dict("records"), strict=True):
                text.set_color(_strategy(row, style.STRATEGY_COLOURS) or style.colour(row["method"]))
            axes.grid(axis="y", visible=False)
        else:
            style.say_empty(axes, "no measured times yet")
        stars = any(map(is_true, data["oversubscribed"]))
        axes.set_xlabel("wall time (s), measured" + ("\n* workers > cores" if stars else ""))
        axes.set_title("Where the time went", fontweight="bold")
    style.legend_below(figure, axes)
    return style.Drawn(
        name="time_split",
        title="Where the time went",
        caption=(
            "Evidence: measured. Parts are means over the ranks of the repeat with the median wall time; * marks more "
            "workers than cores. Evaluation does not count for speed."
        ),
        alt="; ".join(
            f"{row['label']}: {row['wall_s']:.3g} s, communication {100 * row['comm_share']:.0f} % of training"
            for row in data.to_dict("records")
        )
        or "Empty plot: there are no measured times yet.",
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _bar_label(row: dict, settings: list[str]) -> str:
    count = int(row["workers"])
    text = _strategy(row, style.STRATEGY_LABELS) or style.label(row["method"], row["paper"])
    text += "" if text == "one worker" else f", {count} worker{'s' if count > 1 else ''}"
    if pd.notna(row["threads_per_worker"]) and row["threads_per_worker"] > 1:
        text += f" x {int(row['threads_per_worker'])} threads"
    for name in settings:
        if name == "variant" and _strategy(row, style.STRATEGY_LABELS):
            continue
        if pd.notna(row[name]) and (count > 1 or name in ("variant", "model")):
            text += f", {str(row[name]).replace('_', ' ')}" + (" server" if name == "server" else "")
    return text + ("*" if is_true(row["oversubscribed"]) else "")


def _strategy(row: dict, known: dict[str, str]) -> str | None:
    """What ``known`` has for the strategy of a layer-wise run; None of other methods."""
    return known.get(str(row["variant"])) if row["method"] == "layerwise" else None


def validation_figure(validation: pd.DataFrame | None, paper: str, tier: str | None = None) -> style.Drawn:
    """Predicted against measured seconds of a step, with the line of equality and a band of 10 %.

    ``validation``: columns measured_s, measured_low_s, measured_high_s, predicted_s, error, method, model, workers.
    """
    columns = [
        "group",
        "method",
        "model",
        "workers",
        "measured_s",
        "measured_low_s",
        "measured_high_s",
        "predicted_s",
        "error",
    ]
    given = pd.DataFrame(columns=columns) if validation is None or not len(validation) else validation
    data = given[given["predicted_s"].notna() & given["measured_s"].notna()].reset_index(drop=True)
    figure, grid = style.new_figure(5.2, 5.0)
    axes = grid[0, 0]
    with matplotlib.rc_context(style.RC):
        if len(data):
            seconds = np.concatenate([data["measured_s"], data["predicted_s"]]).astype(float) * 1e3
            ends = np.array([seconds.min() / 2.5, seconds.max() * 1.5])
            axes.fill_between(
                ends, ends * (1 - BAND), ends * (1 + BAND), color="#E4E4E4", label=f"within {BAND:.0%}"
            )
            axes.plot(ends, ends, color="#888888", linewidth=1.0, label="equal")
            marks = dict(zip(sorted(set(data["workers"])), "o^v<>P", strict=False))
            several = data["method"].nunique() > 1
            for (method, workers), rows in data.groupby(["method", "workers"], sort=True):
                x = rows["measured_s"].astype(float) * 1e3
                spread = (x - rows["measured_low_s"] * 1e3, rows["measured_high_s"] * 1e3 - x)
                axes.errorbar(
                    x,
                    rows["predicted_s"].astype(float) * 1e3,
                    xerr=np.abs(np.array(spread, dtype=float)),
                    fmt=marks.get(workers, "P"),
                    color=style.colour(method),
                    linewidth=1.2,
                    label=f"{style.label(method)}, {workers} rank{'s' if workers > 1 else ''}",
                )
                if several or workers != min(data["workers"]):
                    continue
                for place, model in zip(
                    zip(x, rows["predicted_s"] * 1e3, strict=True), rows["model"], strict=True
                ):
                    axes.annotate(
                        model,
                        place,
                        (-7, 3),
                        textcoords="offset points",
                        ha="right",
                        fontsize=style.SMALLEST_FONT,
                    )
            axes.set_xscale("log")
            axes.set_yscale("log")
            for axis in (axes.xaxis, axes.yaxis):
                style.plain_log_axis(axis, (1, 2, 5))
            axes.set_xlim(*ends)
            axes.set_ylim(*ends)
        else:
            style.say_empty(axes, "no predicted steps yet")
        axes.set_xlabel("measured step (ms)")
        axes.set_ylabel("step by the time model (ms)")
        axes.set_title("Time model against measurement", fontweight="bold")
    style.legend_below(figure, axes)
    worst = f" Largest error: {100 * data['error'].abs().max():.0f} %." if len(data) else ""
    return style.Drawn(
        name="validation",
        title="Time model against measurement",
        caption=(
            "Evidence: across, measured (median of repeats, bars from least to greatest); up, the time model as "
            "calibrated on this machine, without these points." + worst
        ),
        alt="; ".join(
            f"{row['model']}, {int(row['workers'])} ranks: measured {1e3 * row['measured_s']:.3g} ms, "
            f"error {100 * row['error']:+.0f} %"
            for row in data.to_dict("records")
        )
        or "Empty plot: there are no predicted steps yet.",
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
