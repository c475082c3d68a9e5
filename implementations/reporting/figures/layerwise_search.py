"""How long the search for the best plan takes: by algorithm, and against the size of the network and the devices."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from implementations.reporting.figures import style
from implementations.reporting.figures.layerwise_lines import network_name
from implementations.reporting.grouping import command_for
from implementations.reporting.html import brief
from implementations.reporting.layerwise import search_table

ALGORITHMS = {
    # greys and hatches: an algorithm is no method
    "elimination": ("eliminations (the paper's)", style.METHOD_COLOURS["layerwise"], ""),
    "branch_and_bound": ("branch and bound", "#C9C9C9", "///"),
    "depth_first": ("depth first", "#6E6E6E", ""),
}
DEVICES = 4  # as in the paper's table


def search_figure(
    searches: pd.DataFrame, published: pd.DataFrame, paper: str, tier: str | None = None
) -> style.Drawn | None:
    """Bars of seconds for each network and algorithm on 4 devices, beside the paper's; None without such searches."""
    table = search_table(searches, published, tier)
    data = table[(table["workers"] == DEVICES).fillna(False).astype(bool)].reset_index(drop=True)
    if not len(data):
        return None
    models = list(dict.fromkeys(data.sort_values("nodes")["model"]))
    names = [name for name in ALGORITHMS if (data["algorithm"] == name).any()]
    figure, grid = style.new_figure(style.WIDE, 4.4)
    axes = grid[0, 0]
    wide = 0.8 / len(names)
    cut = False
    with matplotlib.rc_context(style.RC):
        for place, name in enumerate(names):
            _, tint, hatch = ALGORITHMS[name]
            for row in data[data["algorithm"] == name].to_dict("records"):
                x = models.index(row["model"]) + (place - (len(names) - 1) / 2) * wide
                seconds = max(float(row["search_s"]), 1e-6)
                axes.bar(x, seconds, 0.9 * wide, color=tint, hatch=hatch, edgecolor="#333333", linewidth=0.5)
                if row["finished"] is not None and not pd.isna(row["finished"]) and not row["finished"]:
                    cut = True
                    axes.plot(x, seconds * 1.5, "^", color="#333333", markerfacecolor="white", markersize=6)
                if pd.notna(row["published_s"]):
                    axes.plot(
                        x, row["published_s"], "*", color="#333333", markerfacecolor="white", markersize=10
                    )
        axes.set_yscale("log")
        axes.set_xticks(range(len(models)), [_named(model, data) for model in models])
        axes.set_ylabel("seconds, given the tables")
        axes.grid(axis="x", visible=False)
        known = pd.concat([data["search_s"], data["published_s"].dropna()]).astype(float)
        axes.set_ylim(0.3 * known.clip(lower=1e-6).min(), 6 * known.max())
    keys: list = [
        Patch(facecolor=ALGORITHMS[name][1], hatch=ALGORITHMS[name][2], edgecolor="#333333", label=ALGORITHMS[name][0])
        for name in names
    ]  # fmt: skip
    if cut:
        keys.append(_mark("^", "cut off at its limit"))
    if data["published_s"].notna().any():
        keys.append(_mark("*", "published (other machine)"))
    style.key_above(figure, f"Search for the best plan, {DEVICES} devices", keys, 3)
    limits = ", ".join(f"{limit:g}" for limit in sorted(set(data["time_limit_s"].dropna())))
    return style.Drawn(
        name="layerwise_search",
        title=f"Search for the best plan, {DEVICES} devices",
        caption=(
            "Evidence: measured, on this host; median of the repeats, without the making of the tables of costs. "
            + (f"Triangles: cut off after {limits} s, so that they would take longer. " if cut else "")
            + "Stars: the paper's Table 3, on its authors' machine (more than a day for depth first on VGG-16 and "
            "Inception-v3). Numbers under a name: layers that are chosen for."
        ),
        alt="; ".join(
            f"{row['model']}, {row['algorithm']}: {brief(row['search_s'])} s"
            + ("" if row["finished"] else " and not finished")
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _mark(marker: str, text: str) -> Line2D:
    return Line2D(
        [],
        [],
        color="#333333",
        linestyle="none",
        marker=marker,
        markerfacecolor="white",
        markersize=9,
        label=text,
    )


def _named(model: str, data: pd.DataFrame) -> str:
    """A network's name over its number of nodes, for a tick."""
    nodes = data.loc[data["model"] == model, "nodes"].iloc[0]
    return network_name(model).replace(", ", "\n") + (f"\n{int(nodes)}" if pd.notna(nodes) else "")


def growth_figure(searches: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """Seconds of the algorithm against layers and against configurations of a layer; None without several of each."""
    table = search_table(searches, None, tier)
    data = table[(table["algorithm"] == "elimination").fillna(False).astype(bool)].reset_index(drop=True)
    if data["nodes"].nunique() < 2 or data["configurations"].nunique() < 2:
        return None
    figure, grid = style.new_figure(style.WIDE + 0.8, 4.0, 1, 2, sharey=True)
    left, right = grid[0]
    counts = sorted({int(count) for count in data["workers"]})
    models = list(dict.fromkeys(data.sort_values("nodes")["model"]))
    tint = style.METHOD_COLOURS["layerwise"]
    marks = "osD^vP"
    with matplotlib.rc_context(style.RC):
        for place, count in enumerate(counts):
            rows = data[data["workers"] == count].sort_values("nodes")
            left.plot(
                rows["nodes"].astype(float), rows["search_s"].astype(float), marker=marks[place % len(marks)],
                color=style.shade(tint, place, len(counts)), markersize=5, label=f"{count} devices",
            )  # fmt: skip
        for place, model in enumerate(models):
            rows = data[data["model"] == model].sort_values("configurations")
            right.plot(
                rows["configurations"].astype(float), rows["search_s"].astype(float), marker=marks[place % len(marks)],
                color=style.shade("#4D4D4D", place, len(models)), markersize=5, label=network_name(model),
            )  # fmt: skip
        known = data[data["configurations"] > data["configurations"].min()]
        most = known.loc[known["search_s"].idxmax()]
        cubes = np.array(
            [data["configurations"].astype(float).min(), data["configurations"].astype(float).max()]
        )
        right.plot(
            cubes, float(most["search_s"]) * (cubes / float(most["configurations"])) ** 3,
            **style.IDEAL | {"label": "cube", "linestyle": "--"},
        )  # fmt: skip
        for axes, column, text in (
            (left, "nodes", "layers that are chosen for"),
            (right, "configurations", "most configurations of a layer"),
        ):
            axes.set_xscale("log")
            axes.set_yscale("log")
            style.plain_log_axis(axes.xaxis)
            _thin(axes, data[column])
            axes.set_xlabel(text)
        low, high = data["search_s"].astype(float).min(), data["search_s"].astype(float).max()
        left.set_ylim(0.5 * low, 2 * high)
        left.set_ylabel("search (s), given the tables")
        for axes in (left, right):
            axes.legend(
                loc="upper left", bbox_to_anchor=(0.0, -0.2), ncols=2, handlelength=1.8, borderaxespad=0
            )
    figure.suptitle("How the search grows", fontsize=13, fontweight="bold")
    tables = data.loc[data["tables_s"].astype(float).idxmax()] if data["tables_s"].notna().any() else None
    return style.Drawn(
        name="layerwise_growth",
        title="How the search grows with layers and configurations",
        caption=(
            "Evidence: measured, on this host; eliminations alone, given the tables of costs. "
            "Dashes: growth with the cube of the configurations, as the paper's bound has it. "
            + (
                f"The tables take longer: {brief(tables['tables_s'])} s for {network_name(tables['model'])} on "
                f"{int(tables['workers'])} devices, the most here."
                if tables is not None
                else ""
            )
        ),
        alt="; ".join(
            f"{row['model']} on {row['workers']}: {row['nodes']} layers, {row['configurations']} configurations, "
            f"{brief(row['search_s'])} s"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _thin(axes: matplotlib.axes.Axes, values: pd.Series) -> None:
    """Ticks at values that are not too near to each other on a logarithmic axis."""
    kept: list[float] = []
    for value in sorted({float(value) for value in values}):
        if not kept or value > 1.35 * kept[-1]:
            kept.append(value)
    axes.set_xticks(kept)
