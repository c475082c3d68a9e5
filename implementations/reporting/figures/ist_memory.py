"""How wide a network each method can hold under one limit of memory, and how well it ranks: ours and the paper's."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from implementations.reporting.figures import style
from implementations.reporting.figures.conditions import quality_rows
from implementations.reporting.figures.ist_lines import METHODS, seeds_told, told
from implementations.reporting.grouping import command_for, most_frequent
from implementations.reporting.memory import limited, memory_table

FAIL = "does not fit (Fail)"


def memory_figure(
    runs: pd.DataFrame, published: pd.DataFrame | None, paper: str, tier: str | None = None
) -> style.Drawn | None:
    """P@1 against the width, a line for each method and number of workers, with what fails; None without runs."""
    table = memory_table(runs, published)
    ours = most_frequent(quality_rows(table), ["dataset", "memory_limit_bytes"])
    theirs = table[table["evidence"] == "published"]
    if ours["width"].nunique() < 2:
        return None
    data = pd.concat([ours, theirs], ignore_index=True)
    data["line"] = pd.array([_line_name(row) for row in data.to_dict("records")], dtype="string")
    panels = [(str(ours["dataset"].iloc[0]), data[data["evidence"] != "published"])]
    if len(theirs):
        panels.append((f"the paper's: {theirs['dataset'].iloc[0]}", data[data["evidence"] == "published"]))
    figure, grid = style.new_figure(style.WIDE if len(panels) > 1 else 5.2, 4.9, 1, len(panels))
    keys: dict[str, Line2D] = {}
    with matplotlib.rc_context(style.RC):
        for axes, (title, rows) in zip(grid[0], panels, strict=True):
            keys |= _draw(axes, rows)
            axes.set_title(title, fontsize=11)
            axes.set_xlabel("units of the hidden layer, E")
        grid[0, 0].set_ylabel("precision at 1")
    if not data["fits"].all():
        fail = {"color": style.MARK_TINT, "linestyle": "none", "marker": "x", "markeredgewidth": 2}
        keys[FAIL] = Line2D([], [], **fail, label=FAIL)
    style.key_above(figure, "What fits, and how well it ranks", list(keys.values()), 3, 2.6)
    limit = float(ours["memory_limit_bytes"].iloc[0]) if ours["memory_limit_bytes"].notna().any() else np.nan
    rows = limited(runs)
    rows = rows[rows["dataset"] == ours["dataset"].iloc[0]]
    return style.Drawn(
        name="ist_memory",
        title=f"Precision against the width that fits, {ours['dataset'].iloc[0]}",
        caption=(
            told(rows, network=False)
            + f"Each worker may hold {_size(limit)}: its state and what it stores for others. "
            "Crosses: the width does not fit, so nothing was trained. Precision at 1 on the test set. "
            + _periods_told(ours)
            + seeds_told(ours.loc[ours["fits"].fillna(False), "n"])
            + largest_told(ours)
            + (
                " Stars: the paper's own table, on other data and machines of 16 GB a worker."
                if len(theirs)
                else ""
            )
        ),
        alt="; ".join(
            f"{row['line']}, {int(row['width'])} units: "
            + (f"precision {row['p_at_1']:.4g}" if row["fits"] else "does not fit")
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _line_name(row: dict[str, Any]) -> str:
    workers = row["workers"]
    # the paper's table names the machines in one row alone
    name = style.label(row["method"], row["paper"])
    if row["evidence"] == "published":
        return f"{name}, published"
    return name if pd.isna(workers) or workers == 1 else f"{name}, {int(workers)} workers"


def _draw(axes: Axes, rows: pd.DataFrame) -> dict[str, Line2D]:
    keys = {}
    places = {name: place for place, name in enumerate(METHODS)}
    order = rows.assign(_place=rows["method"].map(places)).sort_values(["_place", "workers", "width"])
    lines = list(order.groupby("line", sort=False))
    axes.fill_between(
        [0, 1], 0, _fail_height(len(lines)), color="#EEEEEE", transform=axes.transAxes, zorder=0
    )
    for place, (name, line) in enumerate(lines):
        method, kind = line["method"].iloc[0], line["evidence"].iloc[0]
        counts = sorted({int(count) for count in rows.loc[rows["method"] == method, "workers"].dropna()})
        tone = counts.index(int(line["workers"].iloc[0])) if kind != "published" and len(counts) > 1 else 0
        many = len(counts) if kind != "published" else 1
        look = {
            "color": style.shade(style.colour(method), tone, many),
            "marker": style.EVIDENCE_MARKERS[kind],
            "linestyle": ("-", "--", "-.", ":")[tone % 4],
        }
        keys[str(name)] = Line2D([], [], **look, label=str(name))
        line = line.sort_values("width")
        fits = line[line["fits"].fillna(False).astype(bool)]
        x = fits["width"].astype(float) * style.apart(place, len(lines))
        axes.plot(x, fits["p_at_1"].astype(float), **look, markersize=11 if kind == "published" else 5.5)
        axes.vlines(
            x, fits["p_at_1_low"].astype(float), fits["p_at_1_high"].astype(float), color=look["color"]
        )
        over = line[~line["fits"].fillna(True).astype(bool)]
        # a row of crosses for each line, from the lower edge up
        height = np.full(len(over), 0.03 + 0.055 * place)
        axes.plot(over["width"].astype(float), height, "x", color=look["color"], markeredgewidth=2,
                  transform=axes.get_xaxis_transform(), label="_fail")  # fmt: skip
    axes.set_xscale("log", base=2)
    widths = sorted({float(width) for width in rows["width"]})
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(widths))
    style.plain_log_axis(axes.xaxis)
    axes.tick_params(axis="x", rotation=45 if len(widths) > 4 else 0)
    known = rows["p_at_1"].dropna().astype(float)
    if len(known):
        # room for the crosses under the points
        room, span = 0.04 + _fail_height(len(lines)), max(known.max() - known.min(), 0.01)
        axes.set_ylim(known.min() - 1.1 * span * room / (1 - room), known.max() + 0.1 * span)
        low = known.min() - 0.05 * span
        axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6))
        axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= axes.get_ylim()[1]])
    return keys


def _fail_height(lines: int) -> float:
    """How much of a plot's height the rows of crosses take, as a share."""
    return 0.06 + 0.055 * (lines - 1)


def largest_told(table: pd.DataFrame) -> str:
    """The largest width that each line holds, and its precision, in words. ``table``: rows of ``memory_table``."""
    fits = table[table["fits"].fillna(False).astype(bool) & table["p_at_1"].notna()]
    words = []
    for (method, workers), line in fits.groupby(["method", "workers"], sort=True):
        best = line.loc[line["width"].idxmax()]
        count = f", {int(workers)} workers" if workers > 1 else ""
        name = style.label(method, best["paper"])
        words.append(f"{name}{count}: {int(best['width'])} units, {best['p_at_1']:.3f}")
    return f"Largest that fits: {'; '.join(words)}." if words else "Nothing fits."


def _periods_told(table: pd.DataFrame) -> str:
    periods = {int(period) for period in table["sync_period"].dropna()}
    return f"J={periods.pop()}. " if len(periods) == 1 else ""


def _size(value: float) -> str:
    if pd.isna(value):
        return "any amount"
    size, unit = style.byte_unit(value)
    return f"{value / size:.3g} {unit}"
