"""Where the paper's best speedup would be possible: by workers, bandwidth and size of the data, projected."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from implementations.reporting.figures import spark_lines as lines
from implementations.reporting.figures import style
from implementations.reporting.grouping import command_for, most_frequent
from implementations.reporting.spark import MAP, published_speedups

GOAL = 11.0  # the abstract's
NEAR_MBIT_S = 1000.0  # of the plot over sizes of the data
COLUMNS = ["evidence", "kind", "model", "cluster", "variant", "execution", "workers", "mbit_s", "data_size", "speedup",
           "least_steps_per_job", "steps_per_job", "capped_by"]  # fmt: skip
COLOURS = "BrBG"  # brown short of the goal, green beyond it
ENDS = 3.0  # doublings from the goal at which colours end


def map_data(projections: pd.DataFrame) -> pd.DataFrame:
    """The rows over bandwidths of the network, machine, variant and execution that have the most of them."""
    own = projections[
        (projections["what"] == MAP) & (projections["status"] == "ok") & projections["speedup"].notna()
    ]
    own = most_frequent(own, ["kind", "model", "cluster", "variant", "execution", "minibatch"])
    cells = ["workers", "mbit_s", "data_size"]
    own = own.sort_values([*cells, "speedup"]).drop_duplicates(cells, keep="last")
    # the machine's own bandwidth stands beside those of the grid
    machine = projections.loc[projections["what"] != MAP, ["cluster", "mbit_s"]].drop_duplicates()
    known = set(machine.loc[machine["cluster"].isin(own["cluster"]), "mbit_s"])
    grid = own[~own["mbit_s"].isin(known)]
    return (grid if grid["mbit_s"].nunique() > 1 else own)[COLUMNS].reset_index(drop=True)


def most_telling_size(data: pd.DataFrame, goal: float) -> float:
    """The size of the data at which the part of cells that reach the goal is nearest to one half."""
    shares = data.assign(hit=data["speedup"] >= goal).groupby("data_size")["hit"].mean()
    return float((shares - 0.5).abs().idxmin())


def map_figure(
    projections: pd.DataFrame, published: pd.DataFrame, paper: str, tier: str | None = None
) -> style.Drawn | None:
    """Speedups over (workers, bandwidth) and (workers, size of data), cells that reach the goal framed.

    None without such projections.
    """
    data = map_data(projections)
    if data["workers"].nunique() < 2 or data["mbit_s"].nunique() < 2:
        return None
    marks = published_speedups(published)
    printed = marks.loc[marks["kind"] == data["kind"].iloc[0], "value"]
    goal = float(printed.max()) if len(printed) else GOAL
    size = most_telling_size(data, goal)
    speed = float(data["mbit_s"].iloc[(np.log(data["mbit_s"]) - np.log(NEAR_MBIT_S)).abs().argmin()])
    figure, grid = style.new_figure(7.2, 6.6, 2, 1)
    with matplotlib.rc_context(style.RC):
        shown = (
            (data[data["data_size"] == size], "mbit_s", "Mbit/s", f"{lines.short(size)} samples"),
            (data[data["mbit_s"] == speed], "data_size", "training samples", f"{speed:g} Mbit/s"),
        )
        for axes, (cells, column, label, title) in zip(grid[:, 0], shown, strict=True):
            _draw(axes, cells, column, goal)
            axes.set_ylabel(label)
            axes.set_title(title, fontsize=11)
        grid[1, 0].set_xlabel("workers")
    title = f"Where {goal:g} times would be possible"
    figure.suptitle(title, fontweight="bold")
    first = data.iloc[0]
    steps = sorted({int(count) for count in data["steps_per_job"].dropna()})
    return style.Drawn(
        name="spark_map",
        title=title,
        caption=(
            f"Evidence: projected; on {first['cluster']} with other links, {first['model']}, "
            f"{style.VARIANT_LABELS[first['variant']]}, {style.EXECUTION_LABELS[first['execution']]}, {steps[0]} to "
            f"{steps[-1]} steps between two exchanges. In the cells: speedup over one worker without Spark; framed: "
            f"{goal:g} times or more (abstract: up to {GOAL:g}; workers, machines and data are not known, 5 million "
            "samples are a review's word, unverified). Nothing is fitted to it."
        ),
        alt=f"{int((data['speedup'] >= goal).sum())} of {len(data)} cells reach {goal:g} times. "
        + "; ".join(
            f"{int(workers)} workers: from {_least(rows, goal)}"
            for workers, rows in data.groupby("workers", sort=True)
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _least(rows: pd.DataFrame, goal: float) -> str:
    hit = rows[rows["speedup"] >= goal].sort_values(["data_size", "mbit_s"])
    if not len(hit):
        return "nowhere"
    first: dict[str, Any] = hit.iloc[0].to_dict()
    return f"{lines.short(float(first['data_size']))} samples at {first['mbit_s']:g} Mbit/s"


def _cell(value: float, goal: float) -> str:
    """Rounded, but not to a goal that it misses."""
    text = f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
    return f"{np.floor(10 * value) / 10:.1f}" if value < goal <= float(text) else text


def _draw(axes: Axes, cells: pd.DataFrame, column: str, goal: float) -> None:
    table = cells.pivot_table(index=column, columns="workers", values="speedup", aggfunc="max")
    doublings = np.log2(table.to_numpy(dtype=float) / goal)
    axes.pcolormesh(
        np.arange(len(table.columns) + 1), np.arange(len(table.index) + 1), doublings, cmap=COLOURS, vmin=-ENDS,
        vmax=ENDS,
    )  # fmt: skip
    for y, row in enumerate(table.to_numpy(dtype=float)):
        for x, value in enumerate(row):
            if np.isnan(value):
                continue
            axes.text(
                x + 0.5, y + 0.5, _cell(value, goal), ha="center", va="center",
                fontsize=style.SMALLEST_FONT, color="white" if abs(doublings[y, x]) > 0.75 * ENDS else "black",
            )  # fmt: skip
            if value >= goal:
                axes.add_patch(
                    Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fill=False, edgecolor="black", linewidth=2)
                )
    axes.set_xticks(np.arange(len(table.columns)) + 0.5, [f"{int(count)}" for count in table.columns])
    axes.set_yticks(np.arange(len(table.index)) + 0.5, [lines.short(float(value)) for value in table.index])
    axes.grid(visible=False)
