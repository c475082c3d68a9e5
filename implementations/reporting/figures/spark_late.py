"""Convergence of the asynchronous variant against the rate, for each bound on staleness."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd

from implementations.reporting.figures import spark_lines as lines
from implementations.reporting.figures import style
from implementations.reporting.grouping import command_for
from implementations.reporting.spark_tables import LATE_SETTING, late_table

QUANTITIES = {"accuracy": "test accuracy (%)", "train_loss": "training loss"}


def late_data(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``late_table`` of the setting that was run with the most pairs of staleness and rate."""
    table = late_table(runs)
    if not len(table):
        return table
    pairs = table.assign(pair=table["staleness"].astype(str) + "/" + table["lr"].astype(str))
    return lines.longest(pairs, LATE_SETTING, "pair").drop(columns=["pair", "command"]).reset_index(drop=True)


def late_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """Accuracy and training loss at the end against the rate, a line for each staleness; None without several."""
    data = late_data(runs)
    if not len(data) or data["staleness"].nunique() < 2:
        return None
    bounds = sorted({int(bound) for bound in data["staleness"]})
    tints = {
        bound: style.shade(style.VARIANT_COLOURS["async"], place, len(bounds))
        for place, bound in enumerate(bounds)
    }
    marks = dict(zip(bounds, "so^Dv<>", strict=False))
    figure, grid = style.new_figure(style.WIDE, 3.9, 1, 2)
    with matplotlib.rc_context(style.RC):
        for axes, (name, text) in zip(grid[0], QUANTITIES.items(), strict=True):
            for bound, rows in data.groupby("staleness", sort=True):
                rows = rows.sort_values("lr")
                known = rows[rows["n"] > 0]
                scale = 100.0 if name == "accuracy" else 1.0
                axes.plot(
                    known["lr"], scale * known[name], "-", marker=marks.get(int(bound), "P"), markersize=5,
                    color=tints[int(bound)],
                )  # fmt: skip
                lost = rows[rows["n"] == 0]
                height = 0.98 - 0.05 * bounds.index(int(bound))
                axes.plot(
                    lost["lr"], np.full(len(lost), height), "x", color=tints[int(bound)], markeredgewidth=2,
                    transform=axes.get_xaxis_transform(),
                )  # fmt: skip
            axes.margins(y=0.15)
            axes.set_xscale("log")
            style.plain_log_axis(axes.xaxis, (1, 2, 5))
            axes.set_xlabel("learning rate")
            axes.set_ylabel(text)
    title = "Late updates: staleness and rate"
    keys = [
        matplotlib.lines.Line2D(
            [], [], color=tints[bound], marker=marks.get(bound, "P"), markersize=5,
            label=f"at most {bound} late" if bound else "synchronous (0)",
        )
        for bound in bounds
    ]  # fmt: skip
    if (data["n"] == 0).any():
        keys.append(
            matplotlib.lines.Line2D(
                [], [], color=style.MARK_TINT, marker="x", linestyle="none", markeredgewidth=2,
                label="all seeds diverged",
            )
        )  # fmt: skip
    style.key_above(figure, title, keys, 3, handle_length=2.2)
    first = data.iloc[0]
    return style.Drawn(
        name="spark_late",
        title=title,
        caption=(
            f"Evidence: {first['evidence']}; {first['model']} on {first['dataset']}, {int(first['workers'])} workers, "
            f"{style.optimizer_label(first['optimizer'])}, {int(first['epochs'])} epochs, means over seeds. A gradient "
            "is applied at most so many updates after the weights that it was computed with. That the paper trains "
            "asynchronously is a review's word (unverified); the abstract does not say so."
        ),
        alt="; ".join(
            f"staleness {row['staleness']}, rate {row['lr']:g}: "
            + (f"{100 * row['accuracy']:.1f} %" if row["n"] else "diverged")
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
