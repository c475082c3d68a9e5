"""Where the efficiency was lost: the paper's timing table as constants read it, beside the time model's projection."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from implementations.fitted import COMMUNICATION, LOSS_COLUMNS
from implementations.reporting.figures import style
from implementations.reporting.losses import PAPER, fitted_split, fitted_table
from implementations.reporting.tables import command_for

TITLE = "Lost efficiency by part"
VISIBLE = 0.1  # % of an epoch: thinner parts of a bar cannot be seen


def loss_figure(
    published: pd.DataFrame, losses: pd.DataFrame | None, paper: str, tier: str | None = None
) -> style.Drawn | None:
    """Stacked bars of the share of an epoch that each part costs, against the number of GPUs; a plot an evidence.

    ``losses``: the time model's split (``fitted.LOSS_COLUMNS``), of which the method, the numbers of GPUs and the
    periods of the paper's own table are drawn. None where nothing was fitted.
    """
    reading = fitted_split(published)
    if not len(reading):
        return None
    data = _drawn_data(reading, losses)
    figure, grid = style.new_figure(style.WIDE, 4.6, columns=2, sharey=True)
    known = list(dict.fromkeys(reading["evidence"]))
    with matplotlib.rc_context(style.RC):
        _draw(grid[0, 0], data[data["evidence"].isin(known)])
        _draw(grid[0, 1], data[~data["evidence"].isin(known)])
        grid[0, 0].set_title("fitted to the\nauthors' timing file")
        grid[0, 1].set_title("projected from\ndatasheets")
        grid[0, 0].set_ylabel("lost (% of the epoch)")
        figure.suptitle(TITLE, fontweight="bold")
        low, high = grid[0, 0].get_ylim()
        grid[0, 0].set_ylim(low, high + 0.06 * (high - low))  # room for the number on the highest bar
    style.legend_below(figure, list(grid[0]))
    formula = fitted_table(published)["formula"].iloc[0]
    periods = sorted({int(period) for period in data["sync_period"]})
    return style.Drawn(
        name="loss",
        title=TITLE,
        caption=(
            f"Evidence: left, fitted: constants fitted to the authors' own times at K={periods[0]} "
            f"({formula}), no verdict; right, projected: the time model alone, "
            "from datasheets, whose time on one GPU is the authors' own. A bar is the share of "
            "an epoch above ideal speedup, 1 - efficiency. "
            f"Period K={periods[0]} unless another is named."
        ),
        alt="; ".join(_told(keys, rows) for keys, rows in data.groupby(_BAR, sort=False)),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
        section="loss",
    )


_BAR = ["evidence", "workers", "sync_period"]


def _drawn_data(reading: pd.DataFrame, losses: pd.DataFrame | None) -> pd.DataFrame:
    """Parts of both kinds of evidence for the bars of the reading, with ``pct_of_epoch``; by period, then GPUs."""
    bars = reading[["workers", "sync_period"]].drop_duplicates()
    model = pd.DataFrame(columns=LOSS_COLUMNS) if losses is None else losses
    model = model[(model["evidence"] == "projected") & (model["method"] == PAPER)]
    model = model.astype({"workers": "Int64", "sync_period": "Int64"}).merge(
        bars, on=["workers", "sync_period"]
    )
    data = pd.concat([reading, model], ignore_index=True) if len(model) else reading
    data = data.assign(pct_of_epoch=100 * data["minutes"].astype(float) / data["epoch_min"].astype(float))
    return data.sort_values(["evidence", "sync_period", "workers"], kind="stable").reset_index(drop=True)


def _draw(axes: Axes, data: pd.DataFrame) -> None:
    """A bar for each number of GPUs and period; what is negative hangs below zero."""
    axes.set_xlabel("GPUs (on the bars: minutes)")
    if not len(data):
        style.say_empty(axes, "no projection here")
        axes.set_xticks([])
        return
    bars = list(data[["sync_period", "workers"]].drop_duplicates().itertuples(index=False, name=None))
    up, down = np.zeros(len(bars)), np.zeros(len(bars))
    for part, (name, tint, hatch) in style.LOSS_STYLES.items():
        own = data[data["part"] == part].set_index(["sync_period", "workers"])["pct_of_epoch"]
        height = np.array([float(own.get(bar, 0.0)) for bar in bars])
        height[np.abs(height) < VISIBLE] = 0.0
        if not height.any():
            continue
        axes.bar(
            np.arange(len(bars)), height, bottom=np.where(height < 0, down, up), width=0.7,
            color=tint, hatch=hatch, edgecolor="#333333", linewidth=0.6, label=name,
        )  # fmt: skip
        up, down = up + height.clip(min=0), down + height.clip(max=0)
    lost = data.drop_duplicates(["sync_period", "workers"])["lost_min"].astype(float)
    for place, (top, minutes) in enumerate(zip(up, lost, strict=True)):
        axes.annotate(
            f"{minutes:.0f}" if minutes >= 9.95 else f"{minutes:.1f}", (place, top), (0, 2),
            textcoords="offset points", ha="center", va="bottom", fontsize=style.SMALLEST_FONT,
        )  # fmt: skip
    main = bars[0][0]
    names = [f"{workers}" + ("" if period == main else f"\nK={period}") for period, workers in bars]
    axes.set_xticks(np.arange(len(bars)), names)
    axes.grid(axis="x", visible=False)


def _told(keys: tuple, rows: pd.DataFrame) -> str:
    evidence, workers, period = keys
    first = rows.iloc[0]
    share = rows.loc[rows["part"] == COMMUNICATION, "share_of_lost"].sum()
    return (
        f"{evidence}, {workers} GPUs, K={period}: lost {first['lost_min']:.3g} of {first['epoch_min']:.3g} minutes, "
        f"{100 * share:.0f} % of that communication"
    )
