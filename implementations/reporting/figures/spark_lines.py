"""How a line of the figures on Spark looks, and which rows are on it.

The colour is the variant's, lighter where each exchange is a job of Spark; marks and dashes say the kind of evidence
and the machine. Each kind of network has a plot of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from implementations.reporting.figures import style
from implementations.reporting.spark import ABSTRACT, JOBS, KINDS, REVIEW, VARIANTS

KIND_LABELS = {"fc": "FC", "cnn": "CNN", "rnn": "RNN", "lstm": "LSTM"}
KIND_TITLES = {"fc": "fully connected", "cnn": "CNN", "rnn": "RNN", "lstm": "LSTM"}
THIS_HOST = "this-host"
# Of machines that are simulated or projected, these are shown first.
NAMED = (THIS_HOST, "commodity-2017", "gigabit-cpu", "ten-gigabit-cpu")
_FURTHER = ("-.", (0, (3, 1, 1, 1, 1, 1)))  # dashes of a second and a third machine


def kinds_in(rows: pd.DataFrame) -> list[str]:
    """The kinds of networks that occur, in their order."""
    found = set(rows["kind"].dropna())
    return [kind for kind in KINDS if kind in found]


def panels(kinds: Sequence[str], height: float = 2.6, **axes: Any) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a plot for each kind of network, two abreast."""
    columns = min(2, max(len(kinds), 1))
    rows = -(-max(len(kinds), 1) // columns)
    figure, grid = style.new_figure(style.WIDE, 1.7 + height * rows, rows, columns, **axes)
    every = list(grid.flat)
    for unused in every[len(kinds) :]:
        unused.set_visible(False)
    for kind, own in zip(kinds, every, strict=False):
        own.set_title(KIND_TITLES.get(kind, kind), fontsize=11)
    return figure, dict(zip(kinds, every, strict=False))


def colour(variant: Any, execution: Any = None) -> str:
    """The colour of a variant, in the tone of its execution."""
    tint = style.VARIANT_COLOURS.get(str(variant), style.OTHER_COLOUR)
    return style.shade(tint, 0, 3) if execution == JOBS else tint


def dashes(evidence: str, cluster: Any, clusters: Sequence[str]) -> Any:
    """Dashes of a line; ``clusters``: the machines of that kind of evidence."""
    place = list(clusters).index(cluster) if cluster in clusters else 0
    first = {"simulated": ":", "projected": "--"}.get(evidence, "-")
    return first if place == 0 or evidence == "measured" else _FURTHER[(place - 1) % len(_FURTHER)]


def shown_clusters(rows: pd.DataFrame, most: int = 2) -> list[str]:
    """The machines that a figure shows: those of ``NAMED`` first."""
    known = sorted(set(rows["cluster"].dropna()))
    order = [name for name in NAMED if name in known] + [name for name in known if name not in NAMED]
    return order[:most]


def longest(rows: pd.DataFrame, setting: Iterable[str], x: str) -> pd.DataFrame:
    """The rows of the setting that has the most values of ``x``; of several the one with more rows, then more data."""
    setting = [name for name in setting if name in rows and rows[name].notna().any()]
    if not setting or not len(rows):
        return rows
    groups = [part for _, part in rows.groupby(setting, dropna=False, sort=True)]
    sizes = [
        (part[x].nunique(), len(part), float(part["data_size"].fillna(0).astype(float).max()))
        for part in groups
    ]
    return groups[max(range(len(groups)), key=sizes.__getitem__)]


def variant_keys(rows: pd.DataFrame) -> list[Line2D]:
    """A key's entries for variants and, where they differ, executions."""
    pairs = set(zip(rows["variant"].astype(object), rows["execution"].astype(object), strict=True))
    both = len({execution for _, execution in pairs if isinstance(execution, str)}) > 1
    keys = []
    for variant in VARIANTS:
        for execution in style.EXECUTION_LABELS:
            if (variant, execution) in pairs:
                text = style.VARIANT_LABELS[variant]
                text += f", {style.EXECUTION_LABELS[execution]}" if both else ""
                keys.append(Line2D([], [], color=colour(variant, execution), linewidth=4, label=text))
    return keys


def evidence_keys(rows: pd.DataFrame) -> list[Line2D]:
    """A key's entries for kinds of evidence and machines; hollow marks where workers were more than cores."""
    keys = []
    for evidence in ("measured", "simulated", "projected"):
        own = rows[rows["evidence"] == evidence]
        if not len(own):
            continue
        if evidence == "measured":
            keys.append(style.mark_key(evidence, dashes="-"))
            if (own["oversubscribed"] == True).fillna(False).any():  # noqa: E712
                keys.append(style.mark_key(evidence, "measured, workers > cores", "-", hollow=True))
            continue
        clusters = shown_clusters(own)
        for cluster in clusters:
            where = "this machine" if cluster == THIS_HOST else cluster
            keys.append(style.mark_key(evidence, f"{evidence}, {where}", dashes(evidence, cluster, clusters)))
    return keys


def published_keys(marks: pd.DataFrame, x: str) -> list[Line2D]:
    """A key's entries for the stars of what was printed, by who says so."""
    keys = []
    for said_by in (ABSTRACT, REVIEW):
        if ((marks["said_by"] == said_by) & marks[x].notna()).any():
            key = style.mark_key("published", f"printed: {said_by}", hollow=said_by == REVIEW)
            key.set(markersize=11, markeredgecolor="black")
            keys.append(key)
    return keys


def drawable(marks: pd.DataFrame, x: str, kinds: Sequence[str]) -> pd.DataFrame:
    """The printed speedups that a figure over ``x`` can show: where it is known, and the abstract's wherever it was."""
    return marks[marks["kind"].isin(kinds) & (marks[x].notna() | (marks["said_by"] == ABSTRACT))]


def draw_published(axes: Axes, marks: pd.DataFrame, x: str) -> None:
    """Stars where ``x`` of a printed speedup is known, a line across where it is not."""
    for row in marks.to_dict("records"):
        value, hollow = float(row["value"]), row["said_by"] == REVIEW
        if pd.notna(row[x]):
            axes.plot(
                [float(row[x])], [value], "*", markersize=12, color=style.MARK_TINT, zorder=6, label="_published",
                markeredgecolor="black", markerfacecolor="white" if hollow else style.MARK_TINT,
            )  # fmt: skip
        else:
            axes.axhline(value, color=style.MARK_TINT, linewidth=1.0, linestyle=(0, (1, 2)))
            axes.annotate(
                f"{value:g}x, {row['said_by']}", (0.02, value), (0, 2), va="bottom", color=style.MARK_TINT,
                xycoords=axes.get_yaxis_transform(), textcoords="offset points", fontsize=style.SMALLEST_FONT,
            )  # fmt: skip


def count_axis(axis: Any, values: Iterable[float]) -> None:
    """A logarithmic axis of counts with ticks at powers of ten, written short: 10k, 1M."""
    values = [float(value) for value in values if np.isfinite(float(value)) and value > 0]
    if not values:
        return
    low, high = np.floor(np.log10(min(values))), np.ceil(np.log10(max(values)))
    step = 1 if high - low <= 4 else 2
    ticks = 10.0 ** np.arange(low, high + 1, step)
    axis.set_ticks(ticks, [short(tick) for tick in ticks])
    axis.set_minor_locator(NullLocator())


def short(value: float) -> str:
    """A count in a few letters: 100, 10k, 5M, 4G."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
