"""Who wins where: all methods on one task, by workers and bandwidth."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from implementations.reporting.figures import style
from implementations.reporting.figures.ist_lines import seeds_told
from implementations.reporting.grouping import command_for
from implementations.reporting.suite import contest, shootout
from implementations.reporting.suite.context import PAPER, Context
from implementations.reporting.suite.shootout import Race
from implementations.reporting.suite.verdict import speed

# A contender's colour and dashes; what has a colour elsewhere has it here.
LOOKS = {
    contest.ALONE: (style.METHOD_COLOURS["sequential"], "-"),
    contest.GRADIENTS: (style.METHOD_COLOURS["data_parallel"], "-"),
    "averaging": (style.METHOD_COLOURS["averaging"], "-"),
    "averaging in pairs": (style.METHOD_COLOURS["averaging"], "--"),
    "independent subnets": (style.METHOD_COLOURS["ist"], "-"),
    "Spark, layers cut": (style.METHOD_COLOURS["model_parallel"], "-"),
    "Spark, local steps": (style.METHOD_COLOURS["spark"], "-"),
    "Spark, late gradients": (style.VARIANT_COLOURS["async"], "-"),
    contest.LAYERWISE: (style.METHOD_COLOURS["layerwise"], "-"),
    "layer-wise: data": (style.METHOD_COLOURS["data_parallel"], ":"),
    "layer-wise: OWT": (style.STRATEGY_COLOURS["owt"], "-."),
    "layer-wise: model": (style.METHOD_COLOURS["model_parallel"], ":"),
}
SHORT = {
    contest.GRADIENTS: "all-reduce",
    "averaging in pairs": "pairs",
    "independent subnets": "subnets",
    "Spark, layers cut": "Spark:\nlayers cut",
    "Spark, local steps": "Spark:\nlocal steps",
    "Spark, late gradients": "Spark:\nlate",
    "layer-wise: data": "layer-wise:\ndata",
    "layer-wise: OWT": "OWT",
    "layer-wise: model": "layer-wise:\nmodel",
}
WIDTH = 0.84  # of a column of the map
DECADE, LETTER = 0.62, 0.16  # inches of a decade of bandwidth on the map, and of a line of text
MAP_COLUMNS = ["evidence", "dataset", "net", "target_value", "workers", "name", "from_mbit_s", "to_mbit_s",
               "crossing_low", "crossing_high", "model_low", "model_high", "n"]  # fmt: skip


@functools.lru_cache(maxsize=1)  # maps and lines ask the same
def races_of(context: Context) -> list[Race]:
    """Those of the task that has the most: each net and number of workers, and the nets against each other."""
    seconds = contest.seconds_of(contest.contenders(context), context)
    return list(shootout.races(seconds, context)) if seconds["mbit_s"].nunique() > 1 else []


def tasks_of(races: Iterable[Race]) -> list[list[Race]]:
    """Races of each data set, in order of their names."""
    ordered = sorted(races, key=lambda race: race.setting["dataset"])
    return [list(part) for _, part in itertools.groupby(ordered, key=lambda race: race.setting["dataset"])]


def panels_of(races: list[Race]) -> list[tuple[str, list[Race]]]:
    """The races of each net, at ascending numbers of workers; the nets against each other last."""
    nets = list(dict.fromkeys(race.setting["net"] for race in races))
    return [
        (net, sorted((race for race in races if race.setting["net"] == net), key=lambda race: race.workers))
        for net in nets
    ]


def parts_of(line: str) -> tuple[str, str]:
    """A contender's name, and behind it the net where nets race each other."""
    name, _, net = line.partition(" (")
    return name, net.rstrip(")")


def look_of(line: str) -> dict[str, Any]:
    """How matplotlib is to draw a contender's line."""
    tint, dashes = LOOKS.get(parts_of(line)[0], (style.OTHER_COLOUR, "-"))
    return {"color": tint, "linestyle": dashes}


def fill_of(line: str) -> dict[str, Any]:
    """How a contender's stretch of the map is filled: pale, so that black text can be read on it."""
    tint, dashes = LOOKS.get(parts_of(line)[0], (style.OTHER_COLOUR, "-"))
    pale = 1 - 0.4 * (1 - np.array(to_rgb(tint)))
    hatch = {"-": "", "--": "////", "-.": "....", ":": "xxxx"}[dashes]
    return {"facecolor": to_hex(pale), "edgecolor": "white", "hatch": hatch, "linewidth": 0}


# -- the map -----------------------------------------------------------------------------------------------------------


def map_data(races: list[Race]) -> pd.DataFrame:
    """A row for each stretch of bandwidths that one contender leads; the crossing at its lower end with its ranges."""
    rows = []
    for race in races:
        changes = {row["crossing_mbit_s"]: row for row in shootout.change_rows(race)}
        common = {name: race.setting[name] for name in ("dataset", "net", "target_value")}
        for part in race.stretches:
            change = changes.get(part.least, {})
            row = common | {"evidence": "simulated", "workers": race.workers, "name": part.name}
            row |= {"from_mbit_s": part.least, "to_mbit_s": part.most}
            rows.append(row | {name: change.get(name, np.nan) for name in MAP_COLUMNS[-5:]})
    return pd.DataFrame(rows, columns=MAP_COLUMNS)


def map_figure(context: Context) -> style.Drawn | None:
    """Who is fastest, by workers and bandwidth, with the crossings; of the first task. None without two networks."""
    return _map(context, 0)


def second_map_figure(context: Context) -> style.Drawn | None:
    """The same of the second task, where there is one."""
    return _map(context, 1)


def _map(context: Context, task: int) -> style.Drawn | None:
    tasks = tasks_of(races_of(context))
    if task >= len(tasks):
        return None
    races = tasks[task]
    data = map_data(races)
    if not len(data):
        return None
    panels = panels_of(races)
    decades = float(np.log10(data["to_mbit_s"].max() / data["from_mbit_s"].min()))
    width = max(4.6, 1.3 + 1.0 * max(len(part) for _, part in panels))
    figure, grid = style.new_figure(width, 1.0 + (0.75 + DECADE * decades) * len(panels), len(panels), 1)
    with matplotlib.rc_context(style.RC):
        for axes, (net, part) in zip(grid[:, 0], panels, strict=True):
            own = data[data["net"] == net]
            _draw_map(axes, own, [race.workers for race in part])
            axes.set_ylim(data["from_mbit_s"].min(), data["to_mbit_s"].max())
            axes.set_title(f"{net[0].upper()}{net[1:]}", fontsize=11)
        grid[-1, 0].set_xlabel("workers")
    first = data.iloc[0]
    keys = [
        Line2D([], [], color="black", linewidth=1.6, label="lead changes"),
        Line2D([], [], color="black", linestyle="none", marker="|", markersize=11, label="range over seeds"),
    ]
    if data["model_low"].notna().any():
        keys.append(Patch(facecolor="black", alpha=0.18, label="if the time model errs"))
    title = f"Who is fastest to {100 * first['target_value']:g} % on {first['dataset']}"
    style.key_above(figure, title, keys, 3)
    return style.Drawn(
        name=f"shootout_map{'_' + first['dataset'] if task else ''}",
        title=title,
        caption=(
            "Evidence: simulated training, seconds by the model of time; nodes like this host, two workers each. At "
            "each number of workers, from the slowest network to the fastest, the contender that needs the fewest "
            "seconds to the target (median over seeds, each at its best period; one worker competes in every column). "
            "Black lines: where the lead changes, by straight lines in the logarithms between the networks simulated; "
            "dashed where the same two change places with more workers. "
            + seeds_told(data["n"].dropna(), "crossings")
            + ("Grey: where the crossing moves if the model of time errs against both as it did on measured points. "
               if data["model_low"].notna().any()
               else "No measured points are at hand to tell how far the time model's errors move the crossings. ")
            + "Layer-wise seconds come from the cost model of its plans."
        ),
        alt="; ".join(
            f"{row['net']} net, {row['workers']} workers, {speed(row['from_mbit_s'])} to {speed(row['to_mbit_s'])}: "
            f"{row['name']}"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(PAPER, context.tier),
        paper=PAPER,
    )  # fmt: skip


def _draw_map(axes: Axes, data: pd.DataFrame, workers: list[int]) -> None:
    least, most = data["from_mbit_s"].min(), data["to_mbit_s"].max()
    for place, count in enumerate(workers):
        drawn = 0
        for row in data[data["workers"] == count].to_dict("records"):
            low, high, where = row["from_mbit_s"], row["to_mbit_s"], place - WIDTH / 2
            axes.add_patch(Rectangle((where, low), WIDTH, high - low, **fill_of(row["name"])))
            name, net = parts_of(row["name"])
            text = SHORT.get(name, name) + (f"\n({net})" if net else "")
            room = DECADE * np.log10(high / low) / LETTER
            if text.count("\n") + 1 > room:
                text = text.replace("\n", " ") if room >= 0.7 else ""
            axes.text(place, float(np.sqrt(low * high)), text, ha="center", va="center", linespacing=0.95,
                      fontsize=style.SMALLEST_FONT)  # fmt: skip
            if low > least:
                drawn += 1
                axes.plot([where, where + WIDTH], [low, low], color="black", linewidth=1.6)
                _draw_doubt(axes, row, where, (least, most), drawn)
    _join(axes, data, workers)
    axes.set_yscale("log")
    style.plain_log_axis(axes.yaxis)
    axes.set_xticks(range(len(workers)), [str(count) for count in workers])
    axes.set_xlim(-0.5, len(workers) - 0.5)
    axes.set_ylabel("Mbit/s")
    axes.grid(visible=False)


def _draw_doubt(
    axes: Axes, row: dict[str, Any], where: float, ends: tuple[float, float], number: int
) -> None:
    """The ranges of the crossing at a stretch's lower end, cut off at the map's ends; each further to the right."""
    if np.isfinite(row["model_low"]) and not np.isnan(row["model_high"]):
        low, high = np.clip([row["model_low"], row["model_high"]], *ends)
        axes.add_patch(Rectangle((where, low), WIDTH, high - low, color="black", alpha=0.18, linewidth=0))
    if not np.isnan(row["crossing_low"]):
        low, high = np.clip([row["crossing_low"], row["crossing_high"]], *ends)
        axes.plot(
            [where + (0.07 * number - 0.02) * WIDTH] * 2,
            [low, high],
            color="black",
            linewidth=1.6,
            marker="_",
            markersize=7,
        )


def _join(axes: Axes, data: pd.DataFrame, workers: list[int]) -> None:
    """Dashes between neighbouring columns in which the same two change places."""
    for place, (fewer, more) in enumerate(itertools.pairwise(workers)):
        left, right = (_pairs(data[data["workers"] == count]) for count in (fewer, more))
        for pair in left.keys() & right.keys():
            axes.plot([place + WIDTH / 2, place + 1 - WIDTH / 2], [left[pair], right[pair]], color="black",
                      linewidth=1.2, linestyle=(0, (2, 1)))  # fmt: skip


def _pairs(own: pd.DataFrame) -> dict[tuple[str, str], float]:
    own = own.sort_values("from_mbit_s")
    names, lows = list(own["name"]), list(own["from_mbit_s"])
    return {(names[place - 1], names[place]): lows[place] for place in range(1, len(names))}
