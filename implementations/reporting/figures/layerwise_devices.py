"""Throughput and bytes against devices, our projection beside the published bars (Figures 7 and 8 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd

from implementations.reporting import plans as planning
from implementations.reporting.figures import style
from implementations.reporting.figures.layerwise_lines import (
    by_strategy,
    evidence_told,
    in_order,
    network_name,
    ok_plans,
    one_objective,
    strategy_keys,
)
from implementations.reporting.grouping import command_for
from implementations.reporting.html import percent

EXPERIMENT = "layerwise_projection/figure7"
PROJECTION = "layerwise_projection"
COLUMNS = ["evidence", "cluster", "compute_source", "model", "params", "strategy", "workers", "value", "published",
           "error"]  # fmt: skip


@dataclass(frozen=True)
class Quantity:
    """What a figure shows: a column of plans and a metric of the published numbers, in a unit."""

    name: str
    column: str
    metric: str
    unit: str
    size: float  # of the unit, in the column's
    published_size: float  # of a published number, in the column's unit
    title: str
    told: str


THROUGHPUT = Quantity(
    "layerwise_throughput", "samples_per_s", "samples_per_s", "images/s", 1.0, 1.0, "Throughput against devices",
    "The speed of one device is taken from the paper's bar (an input); all other bars are projected blind, from "
    "datasheets: none was fitted. ",
)  # fmt: skip
BYTES = Quantity(
    "layerwise_bytes", "paper_bytes", "paper_bytes", "GiB moved in a step", planning.GIB, planning.GIB,
    "Bytes of a step against devices",
    "Counted as the paper counts: 8 bytes for each weight and device that has a copy of it, activations there and "
    "back where they move; on one device the images alone. Exact for the given strategies; the found plan rests on "
    "modelled times. ",
)  # fmt: skip


def devices_data(plans: pd.DataFrame, published: pd.DataFrame, quantity: Quantity) -> pd.DataFrame:
    """A row for each network, strategy and number of devices: ours and the published value in the figure's unit."""
    own = ok_plans(plans, EXPERIMENT)
    own = one_objective(own if len(own) else ok_plans(plans, PROJECTION))
    own = own[(own["minibatch"] == 32).fillna(False).astype(bool)]
    data = own.assign(value=own[quantity.column].astype(float) / quantity.size)
    printed = {}
    if len(published) and "strategy" in published:
        rows = published[published["metric"] == quantity.metric]
        printed = {
            (row["model"], row["strategy"], int(row["workers"])): row["value"]
            for row in rows.to_dict("records")
        }
    keys = zip(data["model"], data["strategy"], data["workers"], strict=True)
    known = [printed.get((model, strategy, int(workers)), np.nan) for model, strategy, workers in keys]
    scale = quantity.published_size / quantity.size
    data = data.assign(published=np.array(known, dtype=float) * scale)
    return data.assign(error=data["value"] / data["published"] - 1)[COLUMNS].reset_index(drop=True)


def devices_figure(
    plans: pd.DataFrame,
    published: pd.DataFrame,
    paper: str,
    quantity: Quantity,
    tier: str | None = None,
) -> style.Drawn | None:
    """A plot for each network: a line for each strategy, stars for the published bars; None without plans."""
    data = devices_data(plans, published, quantity)
    if data["workers"].nunique() < 2:
        return None
    models = in_order(data)
    counts = sorted({int(count) for count in data["workers"]})
    figure, grid = style.new_figure(max(1.0 + 2.2 * len(models), 4.4), 4.0, 1, len(models))
    several = [name for name in planning.STRATEGIES if (data["strategy"] == name).any() and name != "single"]
    with matplotlib.rc_context(style.RC):
        for axes, model in zip(grid[0], models, strict=True):
            here = data[data["model"] == model]
            one = here[here["strategy"] == "single"]
            for name, rows in by_strategy(here[here["strategy"] != "single"]):
                place = style.apart(several.index(name), len(several))
                # a line starts at one device, which all strategies share where they are compared by speed
                start = one if quantity is THROUGHPUT else one[:0]
                line = pd.concat([start, rows]).sort_values("workers")
                look = style.strategy_look(name)
                axes.plot(
                    line["workers"].astype(float), line["value"].astype(float), **look,
                    marker=style.EVIDENCE_MARKERS["projected"], markersize=4.5, label=name,
                )  # fmt: skip
                known = rows[rows["published"].notna()]
                axes.plot(
                    known["workers"].astype(float) * place, known["published"].astype(float), linestyle="none",
                    marker="*", markersize=9.5, markeredgewidth=1.0, color=look["color"], markerfacecolor="white",
                    label="_published",
                )  # fmt: skip
            if quantity is THROUGHPUT and len(one):
                first = float(one["value"].iloc[0])
                axes.plot(counts, [first * count for count in counts], **style.IDEAL | {"zorder": 0})
            elif len(one):
                axes.plot(
                    one["workers"].astype(float), one["value"].astype(float), color=style.STRATEGY_COLOURS["single"],
                    marker=style.EVIDENCE_MARKERS["projected"], linestyle="none", markersize=4.5, label="single",
                )  # fmt: skip
                axes.plot(
                    one["workers"].astype(float), one["published"].astype(float), "*", markersize=9.5,
                    markerfacecolor="white", color=style.STRATEGY_COLOURS["single"], label="_published",
                )  # fmt: skip
            style.worker_axis(axes, counts, "devices")
            axes.set_yscale("log")
            style.plain_log_axis(axes.yaxis, (1, 2, 5) if quantity is THROUGHPUT else ())
            axes.set_title(network_name(model).replace(", ", "\n", 1), fontsize=11)
            axes.set_ylabel(quantity.unit if axes is grid[0, 0] else "")
    keys = strategy_keys(several if quantity is THROUGHPUT else data["strategy"])
    keys.append(style.mark_key("projected", dashes="-"))
    keys += [style.mark_key("published", hollow=True)] if data["published"].notna().any() else []
    keys += [style.ideal_key()] if quantity is THROUGHPUT else []
    style.key_above(figure, quantity.title, keys, 4, handle_length=2.6)
    return style.Drawn(
        name=quantity.name,
        title=quantity.title,
        caption=(
            evidence_told(data)
            + "32 images a device; stars: the paper's bars, read off. "
            + quantity.told
            + errors_told(data)
        ),
        alt="; ".join(
            f"{row['model']}, {row['strategy']} on {row['workers']}: {row['value']:.4g} {quantity.unit}"
            + (f" (published {row['published']:.4g})" if pd.notna(row["published"]) else "")
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def errors_told(data: pd.DataFrame) -> str:
    """The range of (ours - published) / published of each strategy on several devices, in words."""
    known = data[data["error"].notna() & (data["workers"] > 1)]
    parts = []
    for name, rows in by_strategy(known):
        low, high = rows["error"].min(), rows["error"].max()
        parts.append(f"{style.STRATEGY_LABELS[name]} {_signed(low)} to {_signed(high)} %")
    return f"Ours against the bars: {', '.join(parts)}." if parts else ""


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "") + percent(value)
