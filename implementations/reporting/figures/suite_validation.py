"""The time model against measurement: predicted against measured steps, a colour for each method."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from implementations.reporting.figures import style
from implementations.reporting.grouping import command_for
from implementations.reporting.suite.context import PAPER, Context
from implementations.reporting.validation import GOAL_WORST as BAND
from implementations.reporting.validation import sentences

_MARKS = {"loopback": "o"}  # of networks; others take the next of these
_OTHER_MARKS = "s^Dv<>P"


def validation_figure(context: Context) -> style.Drawn | None:
    """Predicted against measured seconds of a step, with the line of equality and a band of 10 %.

    Filled marks have a core for each rank, hollow ones more ranks than cores.
    """
    given = context.validation
    if not len(given):
        return None
    data = given[given["predicted_s"].notna() & given["measured_s"].notna()].reset_index(drop=True)
    if not len(data):
        return None
    networks = sorted(data["network"].unique(), key=lambda name: (name != "loopback", name))
    marks = dict(zip([name for name in networks if name not in _MARKS], _OTHER_MARKS, strict=False)) | _MARKS
    figure, grid = style.new_figure(5.4, 5.0)
    axes = grid[0, 0]
    with matplotlib.rc_context(style.RC):
        ends = _diagonal(axes, data)
        for row in data.to_dict("records"):
            _point(axes, row, marks.get(row["network"], "P"))
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            style.plain_log_axis(axis, (1, 2, 5) if ends[1] / ends[0] < 100 else (1,))
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        axes.set_xlabel("measured step (ms)")
        axes.set_ylabel("predicted step (ms)")
        axes.set_title("Time model against measurement", fontweight="bold")
    keys = [style.colour_key(method) for method in dict.fromkeys(data["method"])]
    keys += [_key(marks.get(name, "P"), _named(name)) for name in networks]
    if data["oversubscribed"].fillna(False).astype(bool).any():
        keys.append(_key("o", "hollow: more ranks than cores", hollow=True))
    axes.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    return style.Drawn(
        name="validation",
        title="Time model against measurement",
        caption=(
            "Evidence: across, measured (median of repeats, bars from least to greatest); up, predicted by the time "
            f"model from calibrated primitives, without these points. Grey: within {BAND:.0%}. "
            + " ".join(sentences(given)[:2])
        ),
        alt="; ".join(
            f"{row['group']}: measured {1e3 * row['measured_s']:.3g} ms, error {100 * row['error']:+.0f} %"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(PAPER, context.tier),
        paper=PAPER,
    )


def _diagonal(axes: Axes, data: pd.DataFrame) -> np.ndarray:
    """The line of equality and its band; returns both axes' ends in ms."""
    seconds = np.concatenate([data["measured_s"], data["predicted_s"]]).astype(float) * 1e3
    ends = np.array([seconds.min() / 1.6, seconds.max() * 1.6])
    axes.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="#E4E4E4")
    axes.plot(ends, ends, color="#888888", linewidth=1.0)
    return ends


def _point(axes: Axes, row: dict, mark: str) -> None:
    x, low, high = (1e3 * float(row[f"measured{end}_s"]) for end in ("", "_low", "_high"))
    hollow = bool(row["oversubscribed"]) if pd.notna(row["oversubscribed"]) else False
    axes.errorbar(
        [x],
        [1e3 * float(row["predicted_s"])],
        xerr=[[max(x - low, 0.0)], [max(high - x, 0.0)]],
        fmt=mark,
        color=style.colour(row["method"]),
        markerfacecolor="white" if hollow else None,
        linewidth=1.2,
    )


def _key(mark: str, text: str, hollow: bool = False) -> Line2D:
    return Line2D(
        [], [], color=style.MARK_TINT, linestyle="none", marker=mark, markerfacecolor="white" if hollow else None,
        label=text,
    )  # fmt: skip


def _named(network: str) -> str:
    return (
        "one machine's memory"
        if network == "loopback"
        else network.replace("-", ", ").replace("mbit", " Mbit/s")
    )
