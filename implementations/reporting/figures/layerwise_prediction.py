"""Predicted against measured seconds of a step, and how one layer's time depends on the number of devices."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from implementations.reporting.columns import is_true
from implementations.reporting.figures import style
from implementations.reporting.figures.layerwise_lines import by_strategy, network_name, strategy_keys
from implementations.reporting.grouping import command_for
from implementations.reporting.html import percent
from implementations.reporting.layerwise import degrees_table

BAND = 0.10  # errors within it are what the cost model aims at


def prediction_figure(predicted: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """Left predicted against measured seconds, right the errors by ranks; None without measured plans.

    ``predicted``: of ``layerwise.predictions``.
    """
    if not len(predicted):
        return None
    data = predicted.drop(columns="experiments").reset_index(drop=True)
    figure, grid = style.new_figure(style.WIDE + 1.0, 4.2, 1, 2)
    left, right = grid[0]
    models = sorted(set(data["model"]))
    marks = dict(zip(models, "osD^vPX" * len(models), strict=False))
    counts = sorted({int(count) for count in data["workers"]})
    with matplotlib.rc_context(style.RC):
        known = pd.concat([data["measured_s"], data["predicted_s"]]).astype(float) * 1e3
        ends = np.array([0.7 * known.min(), 1.4 * known.max()])
        left.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="#EEEEEE", zorder=0)
        left.plot(ends, ends, **style.IDEAL)
        right.axhspan(-100 * BAND, 100 * BAND, color="#EEEEEE", zorder=0)
        right.axhline(0, color=style.IDEAL["color"], linewidth=1.0, label="_zero")
        names = [name for name, _ in by_strategy(data)]
        for place, (name, rows) in enumerate(by_strategy(data)):
            tint = style.STRATEGY_COLOURS[name]
            for row in rows.to_dict("records"):
                face = "white" if is_true(row["oversubscribed"]) else tint
                look = {
                    "marker": marks[row["model"]],
                    "color": tint,
                    "markerfacecolor": face,
                    "markersize": 6,
                }
                left.hlines(
                    1e3 * row["predicted_s"],
                    1e3 * row["measured_low_s"],
                    1e3 * row["measured_high_s"],
                    color=tint,
                    linewidth=1.0,
                )
                left.plot(1e3 * row["measured_s"], 1e3 * row["predicted_s"], linestyle="none", **look)
                shift = 0.6 * (place - (len(names) - 1) / 2) / max(len(names), 1)
                right.plot(counts.index(row["workers"]) + shift, 100 * row["error"], linestyle="none", **look)
        left.set_xscale("log")
        left.set_yscale("log")
        for axis, text in ((left.xaxis, "measured step (ms)"), (left.yaxis, "predicted step (ms)")):
            style.plain_log_axis(axis, (1, 2, 5))
            axis.set_label_text(text)
        left.set_xlim(*ends)
        left.set_ylim(*ends)
        right.set_xticks(range(len(counts)), [str(count) for count in counts])
        right.set_xlim(-0.6, len(counts) - 0.4)
        right.set_xlabel("ranks on this host")
        right.set_ylabel("error (%)")
        right.grid(axis="x", visible=False)
        largest = max(15.0, 110 * data["error"].abs().max())
        right.set_ylim(-largest, largest)
    keys = strategy_keys(data["strategy"])
    keys = [Line2D([], [], color=key.get_color(), linewidth=4, label=key.get_label()) for key in keys]
    keys += [
        Line2D([], [], color=style.MARK_TINT, linestyle="none", marker=mark, label=network_name(model))
        for model, mark in marks.items()
    ]
    if any(map(is_true, data["oversubscribed"])):
        keys.append(
            Line2D([], [], color=style.MARK_TINT, linestyle="none", marker="o", markerfacecolor="white",
                   label="more ranks than cores")
        )  # fmt: skip
    style.key_above(figure, "Step time, predicted and measured", keys, 4)
    within = int((data["error"].abs() <= BAND).sum())
    fits = data[~data["oversubscribed"].fillna(False).astype(bool)]
    return style.Drawn(
        name="layerwise_prediction",
        title="Step time, predicted and measured",
        caption=(
            "Evidence: measured, beside what the cost model predicts from blocks timed on this host; median of the "
            "repeats, bars their quartiles. Grey: within 10 %. "
            f"{within} of {len(data)} configurations are within it; "
            + (
                f"with as many cores as ranks errors are {percent(fits['error'].min())} to "
                f"{percent(fits['error'].max())} %. "
                if len(fits)
                else ""
            )
            + "The paper's errors are -5 to 9 %, on its GPUs."
        ),
        alt="; ".join(
            f"{row['model']}, {row['strategy']} on {row['workers']}: {1e3 * row['predicted_s']:.4g} ms predicted, "
            f"{1e3 * row['measured_s']:.4g} ms measured"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def degrees_figure(
    layers: pd.DataFrame, published: pd.DataFrame, paper: str, tier: str | None = None
) -> style.Drawn | None:
    """A convolution's and a linear layer's time against devices: our model, the paper's bars and their laws.

    ``layers``: of ``plans.layers_of``. None where the layers were not planned at several numbers of devices.
    """
    data = degrees_table(layers, published, tier).drop(columns="command")
    if not (data["evidence"] == "projected").any():
        return None
    names = list(dict.fromkeys(data["layer"]))
    figure, grid = style.new_figure(style.WIDE, 3.7, 1, len(names))
    tint = style.STRATEGY_COLOURS["data"]
    counts = sorted({int(count) for count in data["workers"]})
    with matplotlib.rc_context(style.RC):
        for axes, name in zip(grid[0], names, strict=True):
            here = data[data["layer"] == name]
            ours, law = (
                here[here["evidence"] == kind].sort_values("workers") for kind in ("projected", "fitted")
            )
            for rows, colour, kind, dashes in (
                (ours, tint, "projected", "-"),
                (law, "#7F7F7F", "fitted", "--"),
            ):
                axes.plot(
                    rows["workers"].astype(float), 1e3 * rows["layer_s"].astype(float), dashes, color=colour,
                    marker=style.EVIDENCE_MARKERS[kind], markersize=5, label=kind,
                )  # fmt: skip
                best = rows[rows["workers"] == rows["best_workers"]]
                axes.plot(
                    best["workers"].astype(float), 1e3 * best["layer_s"].astype(float), "o", color=colour,
                    markerfacecolor="none", markersize=13, markeredgewidth=1.4, label="_best",
                )  # fmt: skip
            known = law[law["published_s"].notna()]
            axes.plot(known["workers"].astype(float), 1e3 * known["published_s"].astype(float), "*", markersize=10,
                      color="#333333", markerfacecolor="white", label="published")  # fmt: skip
            style.worker_axis(axes, counts, "devices (n)")
            axes.set_yscale("log")
            style.plain_log_axis(axes.yaxis, (1, 2, 3, 5, 7))
            axes.set_title(name, fontsize=11)
            axes.set_ylabel("computation and\nsynchronisation (ms)" if axes is grid[0, 0] else "")
    keys = [
        Line2D([], [], color=tint, marker=style.EVIDENCE_MARKERS["projected"], label="projected, ours"),
        Line2D([], [], color="#7F7F7F", linestyle="--", marker=style.EVIDENCE_MARKERS["fitted"],
               label="fitted to the bars"),
        style.mark_key("published", hollow=True),
        Line2D([], [], color=style.MARK_TINT, linestyle="none", marker="o", markerfacecolor="none", markersize=11,
               label="least"),
    ]  # fmt: skip
    style.key_above(figure, "Best number of devices for one layer", keys, 4, handle_length=2.4)
    told = "; ".join(
        f"{name}: {int(rows['best_workers'].iloc[0])} devices"
        + (f" (published {rows['published_best_workers'].max():g})" if len(rows) else "")
        for name, rows in (
            (name, data[(data["layer"] == name) & (data["evidence"] == "projected")].assign(
                published_best_workers=data.loc[data["layer"] == name, "published_best_workers"].max()))
            for name in names
        )
        if len(rows)
    )  # fmt: skip
    return style.Drawn(
        name="layerwise_degrees",
        title="Best number of devices for one layer of Inception-v3",
        caption=(
            "Evidence: projected (our cost model, a batch of fixed size shared out among the devices) and fitted (the "
            "laws computation / N and communication x N, with constants read off the paper's bars). Our batch, and "
            f"what a byte of synchronisation costs, are not the paper's; the place of the least is compared. {told}."
        ),
        alt="; ".join(
            f"{row['layer']}, {row['evidence']}, {row['workers']} devices: {1e3 * row['layer_s']:.4g} ms"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
