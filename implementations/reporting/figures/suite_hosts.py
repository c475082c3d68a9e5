"""Methods on emulated hosts: how much faster each trains than data parallelism, by the network's rate."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib.lines import Line2D

from implementations.reporting.figures import style
from implementations.reporting.grouping import command_for
from implementations.reporting.html import brief
from implementations.reporting.suite import hosts
from implementations.reporting.suite.context import PAPER, Context

_MARKS = {"emulated-10mbit": "v", "emulated-100mbit": "o", "emulated-1000mbit": "^", "emulated": "s"}
_OTHER_MARK = "D"


def emulated_figure(context: Context) -> style.Drawn | None:
    """A row for each method and net, a mark for each network; None where nothing was compared."""
    data = compared(hosts.emulated_table(context.runs, context.published, context.tier))
    if not len(data):
        return None
    lines = list(dict.fromkeys(data["line"]))
    figure, grid = style.new_figure(style.WIDE, 1.9 + 0.42 * len(lines))
    axes = grid[0, 0]
    with matplotlib.rc_context(style.RC):
        axes.axvline(1.0, color="#888888", linewidth=1.0)
        for row in data.to_dict("records"):
            colour = style.colour(row["method"])
            axes.plot(
                [row["speed_over_base"]],
                [lines.index(row["line"])],
                marker=_MARKS.get(row["network"], _OTHER_MARK),
                color=colour,
                markerfacecolor="white" if row["workers"] > 2 else colour,
                linestyle="none",
            )
        axes.set_yticks(range(len(lines)), lines)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.set_xscale("log", base=2)
        style.plain_log_axis(axes.xaxis)
        axes.set_xlabel("speed over data parallelism (x)")
    networks = sorted(
        data["network"].unique(), key=lambda name: (pd.isna(hosts.mbit_of(name)), hosts.mbit_of(name))
    )
    keys = [_key(_MARKS.get(name, _OTHER_MARK), _rate(name)) for name in networks]
    for workers in sorted(set(data["workers"].astype(int)) - {2}):
        keys.append(_key("o", f"hollow: {workers} hosts", hollow=True))
    title = "Methods on emulated hosts"
    style.key_above(figure, title, keys, 3)
    several = "Filled marks: 2 hosts. " if (data["workers"] > 2).any() else "2 hosts. "
    return style.Drawn(
        name="emulated",
        title=title,
        caption=(
            "Evidence: measured, real TCP between network namespaces whose links are limited to the rate named. "
            + several
            + "Samples per second over those of data parallelism with the same net, data, minibatch and network; "
            "median of the repeats. Left of the line: slower."
        ),
        alt="; ".join(
            f"{row['line']}, {row['workers']} hosts, {_rate(row['network'])}: {brief(row['speed_over_base'])} x"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data.drop(columns="line"),
        command=command_for(PAPER, context.tier),
        paper=PAPER,
    )


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that are compared with another, each with its line's words; by net, then as they come."""
    rows = table[table["speed_over_base"].notna()]
    own = [hosts.is_own_base(row) for row in rows.to_dict("records")]
    rows = rows[[not one for one in own]] if len(rows) else rows
    words = [f"{hosts.name_of(row)}\n({row['model']})" for row in rows.to_dict("records")]
    return rows.assign(line=words).sort_values(["model", "line", "mbit_s", "workers"]).reset_index(drop=True)


def _rate(network: str) -> str:
    rate = hosts.mbit_of(network)
    return "no limit" if pd.isna(rate) else f"{rate:g} Mbit/s"


def _key(mark: str, text: str, hollow: bool = False) -> Line2D:
    tint = style.MARK_TINT
    face = "white" if hollow else tint
    return Line2D([], [], color=tint, linestyle="none", marker=mark, markerfacecolor=face, label=text)
