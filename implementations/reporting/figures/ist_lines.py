"""How a line of the figures on subnets looks, and which runs are on it.

The colour is the method's. Where periods share a plot their dashes tell them apart, where numbers of workers do their
tones; one worker with dropout is dotted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from implementations.reporting import subnets
from implementations.reporting.columns import in_experiment
from implementations.reporting.figures import style
from implementations.reporting.figures.conditions import quality_rows
from implementations.reporting.grouping import ended_runs, most_frequent
from implementations.reporting.statistics import FEWEST_FOR_INTERVAL
from implementations.reporting.wordtable import corpus_name

SECTION = "elsewhere"  # of the paper's part of the page: the same on other networks and data
METHODS = ("ist", "averaging", "data_parallel", "sequential")  # in the order of the keys
_DASHES = ("-", "--", "-.", ":")
_SUBNETS = list(subnets.DEFAULTS)
MISSED = "target missed"


def chosen(runs: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """The ended runs of an experiment on one data set and network, of one kind of evidence and one variant; described.

    Each line (``name``) at each number of workers is one setting, the most frequent.
    """
    rows = quality_rows(subnets.described(ended_runs(runs[in_experiment(runs, experiment)])))
    rows = most_frequent(rows, ["dataset", "data_size"])
    rows = most_frequent(rows, ["plain_model"])
    split = subnets.split(rows)
    rows = pd.concat([most_frequent(rows[split], _SUBNETS), rows[~split]]).sort_index()
    return most_frequent(rows, subnets.KEYS, ["name", "workers"])


def at_most_periods(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Runs at the number of workers with the most lines (the largest of several), and of one worker; that number."""
    several = rows[rows["workers"] > 1]
    lines = several.groupby("workers")["name"].nunique()
    workers = int(lines[lines == lines.max()].index.max()) if len(lines) else 1
    return rows[(rows["workers"] == workers) | (rows["method"] == "sequential")], workers


def main_period_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each method the runs at the period that was run with the most numbers of workers, the shortest of several."""
    parts = []
    for _, line in rows.groupby("line", sort=True):
        if line["sync_period"].notna().any() and line["method"].iloc[0] != "data_parallel":
            counts = line.groupby("sync_period")["workers"].nunique()
            line = line[line["sync_period"] == counts.idxmax()]
        parts.append(line)
    return pd.concat(parts) if parts else rows


def dashes_of(rows: pd.DataFrame) -> dict[int, str]:
    """Each period of the methods that have one, and its dashes; solid where there is one."""
    own = rows[rows["method"].isin(["ist", "averaging"])]
    periods = sorted({int(period) for period in own["sync_period"].dropna()})
    return {period: _DASHES[place % len(_DASHES)] for place, period in enumerate(periods)}


def look_of(row: dict[str, Any], dashes: dict[int, str] | None = None) -> dict[str, Any]:
    """How matplotlib is to draw the line of a row with ``method``, ``model`` and ``sync_period``."""
    kind = "-"
    if row["method"] in ("ist", "averaging") and dashes and not pd.isna(row["sync_period"]):
        kind = dashes.get(int(row["sync_period"]), "-")
    if subnets.dropout_of(row["model"]):
        kind = ":"
    return {"color": style.colour(row["method"]), "linestyle": kind}


def in_order(rows: pd.DataFrame, column: str = "name") -> list[tuple[str, pd.DataFrame]]:
    """Rows of each line, in the order of the methods and then of periods."""
    places = {name: place for place, name in enumerate(METHODS)}

    def place(one: tuple[str, pd.DataFrame]) -> tuple[Any, ...]:
        first = one[1].iloc[0]
        period = first["sync_period"]
        rate = subnets.dropout_of(first["model"])
        return (
            places.get(first["method"], len(places)),
            rate,
            -1 if pd.isna(period) else int(period),
            one[0],
        )

    return sorted(((str(name), part) for name, part in rows.groupby(column, sort=True)), key=place)


def method_keys(rows: pd.DataFrame) -> list[Line2D]:
    """A key's entries for the methods of some rows, whatever their periods."""
    keys = []
    for name, part in in_order(rows, "line"):
        look = look_of(part.iloc[0].to_dict())
        keys.append(Line2D([], [], **look, linewidth=4 if look["linestyle"] == "-" else 2.5, label=name))
    return keys


def period_keys(dashes: dict[int, str]) -> list[Line2D]:
    """A key's entries for the dashes of periods."""
    return [
        Line2D([], [], color=style.MARK_TINT, linestyle=kind, label=f"J={period}")
        for period, kind in dashes.items()
    ]


def draw_at_top(axes: Axes, points: Iterable[tuple[float, str, str]]) -> None:
    """Hollow triangles at the top edge of a plot, for what never comes: (x, colour, words beside it) each.

    Of equal x each lies below the last.
    """
    lower: dict[float, int] = {}
    for x, tint, words in points:
        height = 0.965 - 0.075 * lower.get(x, 0)
        lower[x] = lower.get(x, 0) + 1
        axes.plot(
            [x], [height], "^", color=tint, markerfacecolor="white", markeredgewidth=1.6, clip_on=False,
            transform=axes.get_xaxis_transform(), label="_missed",
        )  # fmt: skip
        if words:
            axes.annotate(
                words, (x, height), (-7, 0), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                ha="right", va="center", color=tint, fontsize=style.SMALLEST_FONT, label="_missed",
            )  # fmt: skip


def missed_key(text: str = MISSED) -> Line2D:
    """A key's entry for the triangles of ``draw_at_top``."""
    return Line2D(
        [], [], color=style.MARK_TINT, linestyle="none", marker="^", markerfacecolor="white",
        markeredgewidth=1.6, label=text,
    )  # fmt: skip


def told(rows: pd.DataFrame, *, workers: int | None = None, network: bool = True) -> str:
    """Evidence, data, network, workers and variant of a figure's runs, in words."""
    if not len(rows):
        return "Evidence: none yet. "
    first = rows.iloc[0]
    kinds = sorted(set(rows["evidence"].dropna()))
    parts = [data_told(first)]
    if network and rows["plain_model"].nunique() == 1:
        parts.append(str(first["plain_model"]))
    if rows["data_size"].nunique() == 1:
        parts.append(f"{int(first['data_size']):,} training samples")
    if workers is not None and workers > 1:
        parts.append(f"{workers} workers")
    return f"Evidence: {', '.join(kinds)}; {', '.join(parts)}. {variants_told(rows)}"


def data_told(row: pd.Series) -> str:
    """A data set, and whose speech it is where it is of speech."""
    kind = row["data_kind"]
    return str(row["dataset"]) if pd.isna(kind) else corpus_name(row["dataset"], kind)


def setting_of(rows: pd.DataFrame) -> str:
    """The data set, network and published variant of a figure's runs, for its title."""
    first, split = rows.iloc[0], rows[subnets.split(rows)]
    published = len(split) and (split["variant"] == "faithful").all()
    return f"{first['dataset']}, {first['plain_model']}" + (", as published" if published else "")


def variants_told(rows: pd.DataFrame) -> str:
    """Which variant of the method the runs are, and who stores the network."""
    split = rows[subnets.split(rows)]
    words = []
    for variant, part in split.groupby("variant", dropna=True):
        servers = " and ".join(sorted(set(part["server"].dropna())))
        words.append(f"{variant}" + (f" ({servers} server)" if servers else ""))
    return f"IST: variant {' and '.join(words)}. " if words else ""


def seeds_told(counts: Sequence[int] | pd.Series, what: str = "mean") -> str:
    """How many seeds a point stands for, and what its bar is."""
    known = sorted({int(count) for count in counts if pd.notna(count) and count > 0})
    if not known:
        return "No seeds yet. "
    if known[-1] == 1:
        return "One seed. "
    number = f"{known[0]} to {known[-1]}" if known[0] != known[-1] else f"{known[-1]}"
    kind = "range" if known[-1] < FEWEST_FOR_INTERVAL else "95 % interval"
    return f"{what.capitalize()} of {number} seeds with their {kind}. "


def spread_out(values: Sequence[float], place: int, count: int) -> np.ndarray:
    """Equally spaced places, set apart a little for the ``place``-th of ``count`` lines."""
    return np.asarray(values, dtype=float) + 0.09 * (place - (count - 1) / 2)
