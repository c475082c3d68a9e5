"""What the found plan gains over data parallelism by batch, image, network and devices: a map of numbers."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, LogNorm

from implementations.reporting import plans as planning
from implementations.reporting.figures import style
from implementations.reporting.figures.layerwise_lines import (
    evidence_told,
    network_name,
    ok_plans,
    one_objective,
)
from implementations.reporting.grouping import command_for, most_frequent

EXPERIMENT = "layerwise_sizes"
COLUMNS = ["evidence", "cluster", "compute_source", "model", "params", "image", "minibatch", "workers",
           "samples_per_s", "data_samples_per_s", "gain"]  # fmt: skip


def sizes_data(plans: pd.DataFrame) -> pd.DataFrame:
    """A row for each network, image, minibatch and number of devices: what the found plan gains over data parallelism.

    Of the cluster with the most plans. ``plans``: of ``plans.described``.
    """
    own = one_objective(ok_plans(plans, EXPERIMENT))
    own = own[(own["strategy"] == planning.FOUND) & (own["workers"] > 1) & own["data_samples_per_s"].notna()]
    own = most_frequent(own, ["cluster"])
    # the side of the images has a row of its own
    plain = own["model"].str.replace(r"_image\d+", "", regex=True)
    data = own.assign(gain=own["samples_per_s"] / own["data_samples_per_s"], model=plain)
    return data[COLUMNS].reset_index(drop=True)


def sizes_figure(plans: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """A map for each number of devices: rows are images and minibatches, columns networks; None without several."""
    data = sizes_data(plans)
    widest = data.groupby("model")["params"].max()
    models = sorted(widest.index, key=lambda name: (widest[name], name))
    rows = sorted({(int(row["image"]), int(row["minibatch"])) for row in data.to_dict("records")})
    if len(models) * len(rows) < 2:
        return None
    counts = sorted({int(count) for count in data["workers"]})
    figure, grid = style.new_figure(
        max(1.9 + 0.85 * len(models) * len(counts), style.WIDE), 1.9 + 0.36 * len(rows), 1, len(counts), sharey=True
    )  # fmt: skip
    largest = max(float(data["gain"].max()), 1.05)
    shades = LinearSegmentedColormap.from_list("gain", ["#FFFFFF", style.STRATEGY_COLOURS["layerwise"]])
    norm = LogNorm(min(1.0, float(data["gain"].min())), largest)
    with matplotlib.rc_context(style.RC):
        for axes, count in zip(grid[0], counts, strict=True):
            here = data[data["workers"] == count]
            values = np.full((len(rows), len(models)), np.nan)
            for row in here.to_dict("records"):
                values[rows.index((int(row["image"]), int(row["minibatch"]))), models.index(row["model"])] = (
                    row["gain"]
                )
            axes.imshow(values, cmap=shades, norm=norm, aspect="auto")
            for (i, j), value in np.ndenumerate(values):
                if np.isfinite(value):
                    axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=style.SMALLEST_FONT)
            axes.set_xticks(range(len(models)), [_column(model, models) for model in models])
            axes.set_yticks(range(len(rows)), [f"{image} px, {batch}" for image, batch in rows])
            axes.set_title(f"{count} devices", fontsize=11)
            axes.grid(visible=False)
            axes.tick_params(length=0)
        grid[0, 0].set_ylabel("image side, samples a device")
        figure.supxlabel(_shared(models), fontsize=11)
    figure.suptitle("Gain over data parallelism by size (x)", fontsize=13, fontweight="bold")
    best, least = data.loc[data["gain"].idxmax()], data.loc[data["gain"].idxmin()]
    return style.Drawn(
        name="layerwise_sizes",
        title="Gain over data parallelism by batch, image, network and devices",
        caption=(
            evidence_told(data)
            + "Throughput of the found plan over that of data parallelism at the same sizes. Most: "
            f"{_told(best)}; least: {_told(least)}."
        ),
        alt="; ".join(_told(row) for row in data.to_dict("records")),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _shared(models: list[str]) -> str:
    """What the labels of several networks share, as the name of the axis."""
    names = {network_name(model).partition(", width")[0] for model in models}
    return f"{names.pop()}, width" if len(names) == 1 else "network"


def _column(model: str, models: list[str]) -> str:
    name = network_name(model)
    if _shared(models) == "network":
        return name.replace(", ", "\n")
    return name.partition(", width ")[2] or "1"


def _told(row: pd.Series | dict) -> str:
    return (
        f"{row['gain']:.2f} x for {network_name(row['model'])}, {int(row['image'])} px, {int(row['minibatch'])} "
        f"samples a device, {int(row['workers'])} devices"
    )
