"""Where the measured seconds went."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd

from implementations.reporting.columns import is_true
from implementations.reporting.figures import style
from implementations.reporting.tables import PARTS, command_for, time_split_table


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
