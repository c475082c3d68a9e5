"""How wide subnets must be, and whether they beat data parallelism anywhere over widths and sizes of data."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from implementations.reporting import subnets
from implementations.reporting.columns import in_experiment
from implementations.reporting.figures import style
from implementations.reporting.figures.conditions import quality_rows
from implementations.reporting.figures.ist_lines import seeds_told, told
from implementations.reporting.findings import threshold_told
from implementations.reporting.grouping import command_for, ended_runs, most_frequent
from implementations.reporting.statistics import range_or_interval
from implementations.reporting.widths import EXPERIMENT, TOLERANCE, width_table

HYPOTHESIS = "ist_hypothesis"
_MARKS = "os^Dv<>P"


def width_data(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table of widths on the data set, depth and period that has the most; of one kind of evidence."""
    table = quality_rows(width_table(runs))
    return most_frequent(table, ["dataset", "data_size", "hidden_layers", "name"]).reset_index(drop=True)


def width_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """Points lost against units per worker, a line for each number of workers, and the threshold; None without runs."""
    data = width_data(runs)
    points, ends = data[data["loss"].notna()], data[data["threshold"].notna()]
    if points["units_per_worker"].nunique() < 2:
        return None
    # of all numbers of workers together: the last row
    whole = ends.iloc[-1]
    counts = sorted({int(count) for count in points["workers"]})
    figure, grid = style.new_figure(5.4, 4.9)
    axes = grid[0, 0]
    keys = []
    with matplotlib.rc_context(style.RC):
        axes.axhline(0, color="#888888", linewidth=1.0, label="_one worker")
        axes.axhline(-TOLERANCE, color="#888888", linewidth=1.0, linestyle="--", label="_tolerance")
        if np.isfinite(whole["threshold"]):
            ends_at = min(float(whole["threshold_high"]), 4 * float(points["units_per_worker"].max()))
            axes.axvspan(float(whole["threshold_low"]), ends_at, color="#BBBBBB", alpha=0.35, linewidth=0)
            axes.axvline(float(whole["threshold"]), color="#444444", linewidth=1.4, linestyle=":")
        for place, count in enumerate(counts):
            line = points[points["workers"] == count].sort_values("units_per_worker")
            look = {
                "color": style.shade(style.colour("ist"), place, len(counts)),
                "marker": _MARKS[place % 8],
            }
            x = line["units_per_worker"].astype(float) * style.apart(place, len(counts))
            axes.plot(x, -line["loss"].astype(float), **look, label=f"{count} workers")
            low, high = -line["loss_high"].astype(float), -line["loss_low"].astype(float)
            axes.vlines(x, low, high, color=look["color"], linewidth=1.2)
            keys.append(Line2D([], [], **look, label=f"{count} workers"))
        axes.set_xscale("log", base=2)
        units = sorted({float(value) for value in points["units_per_worker"]})
        axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(units))
        style.plain_log_axis(axes.xaxis)
        axes.set_xlim(units[0] / 1.3, units[-1] * 1.3)
        axes.set_xlabel("units of a hidden layer per worker")
        axes.set_ylabel("accuracy against one worker (points)")
    if np.isfinite(whole["threshold"]):
        keys.append(
            Line2D([], [], color="#444444", linestyle=":", label=f"threshold: {whole['threshold']:g} units")
        )
    keys.append(Line2D([], [], color="#888888", linestyle="--", label=f"{TOLERANCE:g} point lost"))
    style.key_above(figure, "How wide a subnet must be", keys, 3, 2.2)
    layers = int(points["hidden_layers"].iloc[0])
    own = runs[runs["dataset"].isin(points["dataset"]) & in_experiment(runs, EXPERIMENT)]
    rows = subnets.described(ended_runs(own))
    return style.Drawn(
        name="ist_width",
        title=f"Accuracy lost by subnets against their width, {points['dataset'].iloc[0]}",
        caption=(
            told(rows, network=False)
            + f"{layers} hidden layer{'s' if layers > 1 else ''}, "
            f"{points['name'].iloc[0]}. Test accuracy minus that of one worker with the same full width, seed by seed. "
            + seeds_told(points["n"])
            + threshold_told(data)
        ),
        alt="; ".join(
            f"{int(row['workers'])} workers, {row['units_per_worker']:g} units each: {-row['loss']:+.2f} points"
            for row in points.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )  # fmt: skip


def hypothesis_data(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each width and size of data: points of test accuracy by which subnets are better, seed by seed.

    Of the data set, depth, number of workers and period with the most runs.
    """
    rows = quality_rows(subnets.described(ended_runs(runs[in_experiment(runs, HYPOTHESIS)])))
    rows = most_frequent(rows[rows["width"].notna()], ["dataset", "hidden_layers"])
    several = most_frequent(rows[rows["workers"] > 1], ["workers"])
    split = several[subnets.split(several)]
    split = most_frequent(split, list(subnets.DEFAULTS))
    split = most_frequent(split, ["sync_period"])
    dense = several[(several["method"] == "data_parallel").fillna(False).astype(bool)]
    found = []
    for (size, width), group in split.groupby(["data_size", "width"]):
        same = dense[(dense["data_size"] == size) & (dense["width"] == width)]
        gain = range_or_interval(100 * subnets.differences(group, same, "accuracy"))
        first = group.iloc[0]
        names = ("evidence", "dataset", "variant", "name", "workers", "hidden_layers")
        found.append(
            {name: first[name] for name in names}
            | {"data_size": int(size), "width": int(width), "points": gain.centre, "low": gain.low}
            | {"high": gain.high, "spread": gain.kind, "n": gain.n}
        )
    data = pd.DataFrame(found)
    return data[data["n"] > 0].reset_index(drop=True) if len(data) else data


def hypothesis_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """Accuracy of subnets minus that of data parallelism over widths and data; None without several of either."""
    data = hypothesis_data(runs)
    if len(data) < 2:
        return None
    widths, sizes = sorted(set(data["width"])), sorted(set(data["data_size"]))
    cells = data.pivot(index="data_size", columns="width", values="points").reindex(sizes)[widths]
    most = max(1.0, float(data["points"].abs().max()))
    figure, grid = style.new_figure(max(5.2, 1.9 + 1.15 * len(widths)), 1.9 + 0.85 * len(sizes))
    axes = grid[0, 0]
    with matplotlib.rc_context(style.RC):
        image = axes.imshow(cells, cmap="PuOr", vmin=-most, vmax=most, aspect="auto", origin="lower")
        for row in data.to_dict("records"):
            dark = abs(row["points"]) > 0.6 * most
            axes.annotate(
                f"{row['points']:+.1f}\n{row['low']:+.1f} to {row['high']:+.1f}",
                (widths.index(row["width"]), sizes.index(row["data_size"])),
                ha="center",
                va="center",
                fontsize=style.SMALLEST_FONT,
                color="white" if dark else "black",
            )
        axes.set_xticks(range(len(widths)), [f"{width:g}" for width in widths])
        axes.set_yticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.set_xlabel("units of a hidden layer")
        axes.set_ylabel("training samples")
        axes.grid(visible=False)
        bar = figure.colorbar(image, ax=axes, label="points")
        bar.outline.set_visible(False)
        axes.set_title("Accuracy: IST minus data parallel", fontweight="bold", fontsize=13)
    above, below = int((data["low"] > 0).sum()), int((data["high"] < 0).sum())
    workers = int(data["workers"].iloc[0])
    rows = subnets.described(ended_runs(runs[in_experiment(runs, HYPOTHESIS)]))
    rows = rows[rows["dataset"] == data["dataset"].iloc[0]]
    return style.Drawn(
        name="ist_hypothesis",
        title=f"Is IST ever more accurate than data parallelism? {data['dataset'].iloc[0]}",
        caption=(
            told(rows, workers=workers, network=False)
            + f"{data['name'].iloc[0]}; points of test accuracy, IST minus data parallel with as many workers, seed by "
            "seed; below each its range over seeds (95 % interval from six on). "
            + seeds_told(data["n"])
            + f"IST is better with all of its range in {above} of {len(data)} cells, worse in {below}; in the other "
            f"{len(data) - above - below} the range has both signs."
        ),
        alt="; ".join(
            f"{row['width']} units, {row['data_size']:,} samples: {row['points']:+.2f} points"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
