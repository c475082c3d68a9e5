"""Published numbers and their blind projections, a panel for each paper."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from implementations.reporting.figures import style
from implementations.reporting.suite import projected
from implementations.reporting.suite.context import PAPER, Context

TWOFOLD = 2.0  # the band around the diagonal
_BAND = {"color": "#E6E6E6", "linewidth": 0, "zorder": 0}
# By what was printed, told apart by their shapes; colours say the paper.
_MARKS = {
    projected.SPEED: ("o", "speeds and times"),
    projected.COMMUNICATION: ("s", "communication"),
    projected.BYTES: ("D", "bytes"),
    projected.PLANS: ("^", "best number of devices"),
}


def projected_figure(context: Context) -> style.Drawn | None:
    """Published on x, projected on y, both logarithmic, in each number's own unit; None without projections."""
    table = projected.projected_table(context)
    return draw(table[table["factor"].notna()].reset_index(drop=True))


def draw(known: pd.DataFrame) -> style.Drawn | None:
    """The figure of rows that have both numbers; see ``projected.COLUMNS``."""
    if not len(known):
        return None
    papers = sorted(known["from_paper"].unique())
    columns = min(2, len(papers))
    rows = -(-len(papers) // columns)
    figure, axes = style.new_figure(style.WIDE, 0.9 + 3.1 * rows, rows, columns)
    for panel, paper in zip(axes.flat, papers, strict=False):
        _panel(panel, known[known["from_paper"] == paper], paper)
    for spare in axes.flat[len(papers) :]:
        spare.set_visible(False)
    there = [name for name in projected.QUANTITIES if (known["quantity"] == name).any()]
    handles = [
        Line2D([], [], color=style.MARK_TINT, linestyle="none", marker=_MARKS[name][0], label=_MARKS[name][1])
        for name in there
    ]
    handles += [
        Line2D([], [], color="#888888", linewidth=1.0, label="equal"),
        Patch(**_BAND, label="within a factor of two"),
    ]
    style.key_above(figure, "Published against projected", handles, most_columns=3)
    inside = int((known["factor"] <= TWOFOLD).sum())
    worst = known.loc[known["factor"].idxmax()]
    return style.Drawn(
        name="projected",
        title="Published against projected",
        caption=(
            "Each mark is a published number and its blind projection, in the number's own unit (x, %, minutes, "
            "images/s, GiB); nothing was fitted to any of them. Projections of model averaging and layer-wise "
            "parallelism take the published speed of one device; what else was assumed stands in the table."
        ),
        alt=(
            f"Scatter of projected over published numbers, {len(known)} in all, a panel for each of {len(papers)} "
            f"papers; {inside} lie within a factor of two; the worst is {worst['metric']} of the "
            f"{worst['from_paper']} paper, by a factor of {worst['factor']:.3g}."
        ),
        figure=figure,
        data=known.drop(columns=["paper", "command"]),
        command=_command(known),
        paper=PAPER,
    )


def _command(known: pd.DataFrame) -> str:
    """The commands of all papers that are drawn."""
    return " && ".join(dict.fromkeys(known["command"].dropna()))


def _panel(axes: Axes, rows: pd.DataFrame, paper: str) -> None:
    """One paper's numbers on axes of equal range, with the diagonal and the band of a factor of two."""
    values = rows[["published", "projected"]].to_numpy(dtype=float)
    low, high = values.min() / 1.6, values.max() * 1.6
    ends = np.array([low, high])
    axes.fill_between(ends, ends / TWOFOLD, ends * TWOFOLD, **_BAND)
    axes.plot(ends, ends, color="#888888", linewidth=1.0, zorder=1)
    for quantity, (mark, _) in _MARKS.items():
        own = rows[rows["quantity"] == quantity]
        axes.scatter(
            own["published"], own["projected"], s=30, marker=mark, color=style.colour(paper), alpha=0.8,
            edgecolors="white", linewidths=0.5, zorder=3,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="published", ylabel="projected")
    wide = np.log10(high / low) > 2.5
    for axis in (axes.xaxis, axes.yaxis):
        style.plain_log_axis(axis, (1.0,) if wide else (1.0, 2.0, 5.0))
    axes.set_aspect("equal")
    axes.set_title(projected.authors(paper), loc="left")
