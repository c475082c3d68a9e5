"""How a line of the figures on speech looks: the colour is the optimiser's, the dashes and marks say the first weights.

RBM initialisation is a filled mark on a line, random a hollow one on dashes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from implementations.reporting.figures import style

SECTION = "speech"  # of the paper's part of the page
LINE = ["optimizer", "init"]  # what a line stands for
INIT_LABELS = {"rbm": "RBM init", "random": "random init", "uniform": "uniform init"}
DIVERGED = "all seeds diverged"
_DASHES = {"rbm": "-", "random": "--", "uniform": ":"}


def lines_of(rows: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """The rows of each optimiser and initialisation, in the order of their looks."""
    optimizers, inits = list(style.OPTIMIZER_COLOURS), list(_DASHES)

    def place(one: tuple[tuple[str, str], pd.DataFrame]) -> tuple[int, ...]:
        return tuple(
            names.index(name) if name in names else len(names)
            for name, names in zip(one[0], (optimizers, inits), strict=True)
        )

    groups = rows.groupby(LINE, dropna=False)
    return sorted((((str(o), str(i)), part) for (o, i), part in groups), key=place)


def look_of(line: tuple[str, str], evidence: str = "simulated") -> dict[str, Any]:
    """How matplotlib is to draw a line."""
    tint = style.optimizer_colour(line[0])
    return {
        "color": tint,
        "linestyle": _DASHES.get(line[1], ":"),
        "marker": style.EVIDENCE_MARKERS[evidence],
        "markerfacecolor": "white" if line[1] == "random" else tint,
        "label": " ".join(line),
    }


def name_of(optimizer: str, init: str) -> str:
    """A line in words."""
    return f"{style.optimizer_label(optimizer)}, {INIT_LABELS.get(init, init)}"


def draw_diverged(axes: Axes, x: pd.Series, tint: str) -> None:
    """Crosses at the top of a plot, where all seeds diverged."""
    axes.plot(
        x, np.full(len(x), 0.98), "x", color=tint, markeredgewidth=2, transform=axes.get_xaxis_transform(),
        label="_diverged",
    )  # fmt: skip


def ceiling(values: pd.Series, slack: float = 5.0) -> float | None:
    """Where to end an axis of errors so that few very large ones do not press the others flat; None: all fit.

    Very large is more than twice the median and ``slack``.
    """
    known = values.dropna()
    limit = 2 * known.median() + slack
    if not len(known):
        return None
    end = 1.3 * float(known[known <= limit].max())
    return None if known.max() <= end else end


def draw_beyond(axes: Axes, x: pd.Series, y: pd.Series, tint: str) -> None:
    """Triangles at the top of a plot with the values that lie above it, those of each line below the last one's."""
    lines_before = sum(line.get_label() == "_beyond" and len(line.get_xdata()) > 0 for line in axes.lines)
    height = 0.95 - 0.06 * lines_before
    look = {"color": tint, "transform": axes.get_xaxis_transform(), "label": "_beyond"}
    axes.plot(x, np.full(len(x), height), "^", **look)
    for place, value in zip(x, y, strict=True):
        axes.annotate(
            f"{value:.0f}", (place, height), (-6, 0), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
            ha="right", va="center", color=tint, fontsize=style.SMALLEST_FONT,
        )  # fmt: skip


def line_keys(data: pd.DataFrame) -> list[Line2D]:
    """A key's entries for the lines that there are, and for crosses where some diverged."""
    keys = [Line2D([], [], **look_of(line) | {"label": name_of(*line)}) for line, _ in lines_of(data)]
    if (data["n"] == 0).any():
        keys.append(mark(DIVERGED, marker="x", markeredgewidth=2))
    return keys


def mark(text: str, **look: Any) -> Line2D:
    """A key's entry for a mark, grey unless told otherwise."""
    return Line2D([], [], **({"color": style.MARK_TINT, "linestyle": "none", "label": text} | look))
