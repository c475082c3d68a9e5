"""What the plan that is found gains, and what it looks like, against the bandwidth of the links."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd

from implementations.reporting import plans as planning
from implementations.reporting.figures import style
from implementations.reporting.figures.layerwise_lines import (
    by_strategy,
    evidence_told,
    network_name,
    ok_plans,
    one_objective,
    strategy_keys,
)
from implementations.reporting.grouping import command_for, most_frequent
from implementations.reporting.html import brief

EXPERIMENT = "layerwise_bandwidth"
COLUMNS = ["evidence", "cluster", "compute_source", "mbit_s", "model", "workers", "minibatch", "strategy",
           "samples_per_s", "over_data", "linear_devices"]  # fmt: skip


def links_data(plans: pd.DataFrame, layers: pd.DataFrame) -> pd.DataFrame:
    """A row for each network, strategy and cluster: images/s, that over data parallelism's, devices of the first FC.

    The number of devices with the most plans, the largest of several. ``plans``: of ``plans.described``.
    """
    own = one_objective(ok_plans(plans, EXPERIMENT))
    own = own[own["mbit_s"].notna() & (own["workers"] > 1)]
    if not len(own):
        return pd.DataFrame(columns=COLUMNS)
    counts = own.groupby("workers").size()
    own = own[own["workers"] == counts[counts == counts.max()].index.max()]
    own = most_frequent(own, ["minibatch"], ["model"])
    first = layers[(layers["kind"] == "linear").fillna(False).astype(bool) & (layers["number"] == 1)]
    spread = first.drop_duplicates("run_id").set_index("run_id")["devices"]
    return (
        own.assign(
            over_data=own["samples_per_s"] / own["data_samples_per_s"],
            linear_devices=own["run_id"].map(spread).astype("Int64"),
        )[COLUMNS]
        .sort_values(["model", "strategy", "mbit_s"])
        .reset_index(drop=True)
    )


def links_figure(
    plans: pd.DataFrame, layers: pd.DataFrame, paper: str, tier: str | None = None
) -> style.Drawn | None:
    """A plot for each network: speeds over data parallelism's against bandwidth; None without two clusters.

    Numbers along the found plan's line: devices that its first fully connected layer is split over.
    """
    data = links_data(plans, layers)
    if data["mbit_s"].nunique() < 2:
        return None
    models = list(dict.fromkeys(data["model"]))
    figure, grid = style.new_figure(max(1.1 + 2.7 * len(models), 5.0), 4.2, 1, len(models), sharey=True)
    shown = data[data["strategy"] != "single"]
    with matplotlib.rc_context(style.RC):
        for axes, model in zip(grid[0], models, strict=True):
            here = shown[shown["model"] == model]
            for name, rows in by_strategy(here):
                rows = rows.sort_values("mbit_s")
                axes.plot(
                    rows["mbit_s"].astype(float), rows["over_data"].astype(float), **style.strategy_look(name),
                    marker=style.EVIDENCE_MARKERS["projected"], markersize=5, label=name,
                )  # fmt: skip
                if name == planning.FOUND:
                    for row in rows[rows["linear_devices"].notna()].to_dict("records"):
                        axes.annotate(
                            str(row["linear_devices"]), (row["mbit_s"], row["over_data"]), (0, 6),
                            textcoords="offset points", ha="center", fontsize=style.SMALLEST_FONT,
                            color=style.STRATEGY_COLOURS[name],
                        )  # fmt: skip
            axes.set_xscale("log")
            axes.set_yscale("log", base=2)
            style.plain_log_axis(axes.xaxis)
            style.plain_log_axis(axes.yaxis)
            axes.set_xlabel("slowest link (Mbit/s)")
            axes.set_title(network_name(model).replace(", ", "\n", 1), fontsize=11)
        grid[0, 0].set_ylabel("speed over data parallelism (x)")
        top = float(shown["over_data"].replace(np.inf, np.nan).max())
        grid[0, 0].set_ylim(top=1.5 * top)
    workers = int(data["workers"].iloc[0])
    title = f"Strategies against bandwidth, {workers} devices"
    style.key_above(figure, title, strategy_keys(shown["strategy"]), 4, handle_length=2.6)
    return style.Drawn(
        name="layerwise_links",
        title=title,
        caption=(
            evidence_told(data)
            + "Throughput over that of data parallelism on the same links. Numbers: devices over which the found plan "
            "splits the first fully connected layer. " + gains_told(data)
        ),
        alt="; ".join(
            f"{row['model']}, {row['strategy']} at {brief(row['mbit_s'])} Mbit/s: {row['over_data']:.3g} x"
            for row in shown.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def gains_told(data: pd.DataFrame) -> str:
    """What the found plan gains over data parallelism on the slowest and on the fastest links, in words."""
    words = []
    for model, rows in data[data["strategy"] == planning.FOUND].groupby("model", sort=False):
        rows = rows[rows["over_data"].notna()].sort_values("mbit_s")
        if len(rows):
            slow, fast = rows.iloc[0], rows.iloc[-1]
            words.append(
                f"{network_name(model)} {brief(slow['over_data'])} x at {brief(slow['mbit_s'])} Mbit/s and "
                f"{brief(fast['over_data'])} x at {brief(fast['mbit_s'])} Mbit/s"
            )
    return f"The found plan over data parallelism: {'; '.join(words)}." if words else ""
