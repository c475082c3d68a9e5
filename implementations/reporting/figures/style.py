"""How every figure looks: one colour per method, one mark per kind of evidence, sizes that a phone can show.

Colours are those of Okabe and Ito, told apart by colour-blind readers; marks and line styles repeat what colours say.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from implementations.reporting.files import write_whole
from implementations.reporting.papers import paper_of

METHOD_COLOURS = {
    "sequential": "#000000",
    "data_parallel": "#0072B2",
    "averaging": "#D55E00",
    "spark": "#E69F00",
    "ist": "#009E73",
    "layerwise": "#CC79A7",
    "model_parallel": "#8C510A",
}
# Strategies of layer-wise parallelism: those that are a method have its colour.
STRATEGY_COLOURS = {
    "single": METHOD_COLOURS["sequential"],
    "data": METHOD_COLOURS["data_parallel"],
    "model": METHOD_COLOURS["model_parallel"],
    "owt": "#56B4E9",
    "layerwise": METHOD_COLOURS["layerwise"],
}
STRATEGY_LABELS = {
    "single": "one device",
    "data": "data parallel",
    "model": "model parallel",
    "owt": "OWT",
    "layerwise": "layer-wise",
}
STRATEGY_DASHES = {"single": "-", "data": "--", "model": ":", "owt": "-.", "layerwise": "-"}
# Variants of training on Spark: those that are a method have its colour. Of executions the slower has a lighter tone.
VARIANT_COLOURS = {
    "model": METHOD_COLOURS["model_parallel"],
    "data": METHOD_COLOURS["data_parallel"],
    "hybrid": METHOD_COLOURS["spark"],
    "async": "#882255",
}
VARIANT_LABELS = {
    "model": "model parallel",
    "data": "data parallel",
    "hybrid": "hybrid",
    "async": "asynchronous",
}
EXECUTION_LABELS = {"barrier": "barrier", "job_per_exchange": "a job an exchange"}
# By which dimension a layer is split most: pale fills that black text can be read on (Tol's light colours).
DIMENSION_COLOURS = {
    "n": "#77AADD",
    "c": "#EE8866",
    "h": "#BBCC33",
    "w": "#EEDD88",
    "hw": "#44BB99",
    "": "#FFFFFF",
}
DIMENSION_LABELS = {
    "n": "samples",
    "c": "channels",
    "h": "height",
    "w": "width",
    "hw": "height and width",
    "": "one device",
}
# Parts of a step on Spark; computation and communication look as they do among the parts of the time.
STEP_STYLES = {
    "step_compute_s": ("compute", "#4D4D4D", ""),
    "step_serialise_s": ("serialisation", "#F2F2F2", "||||"),
    "step_schedule_s": ("scheduling", "#9A9A9A", "xxxx"),
    "step_exchange_s": ("exchange", "#FFFFFF", "////"),
    "step_other_s": ("other", "#C9C9C9", ""),
}
OTHER_COLOUR = "#7F7F7F"  # a method that has no colour of its own yet
METHOD_LABELS = {
    "sequential": "sequential",
    "data_parallel": "gradient all-reduce",
    "averaging": "model averaging",
    "ist": "independent subnets",
    "layerwise": "layer-wise",
    "spark": "Spark",
    "model_parallel": "model parallel",
}
# Where all runs are of one method, colours say the optimiser; none is a method's (Tol's muted colours).
OPTIMIZER_COLOURS = {"ng_sgd": "#332288", "sgd": "#999933", "rmsprop": "#AA4499"}
OPTIMIZER_LABELS = {"ng_sgd": "NG-SGD", "sgd": "plain SGD", "rmsprop": "RMSprop"}
EVIDENCE_MARKERS = {"measured": "o", "simulated": "s", "projected": "D", "fitted": "v", "published": "*"}

# Parts of the time are greys with hatches: they print, and take no method's colour.
PART_STYLES = {
    "data_s": ("data", "#C9C9C9", ""),
    "compute_s": ("compute", "#4D4D4D", ""),
    "comm_s": ("communication", "#FFFFFF", "////"),
    "eval_s": ("evaluation", "#F2F2F2", "||||"),
    "other_s": ("other", "#9A9A9A", "xxxx"),
    "uncovered_s": ("not covered", "#FFFFFF", ""),
}

# Parts of a lost efficiency; communication looks as it does among the parts of the time.
LOSS_STYLES = {
    "communication": PART_STYLES["comm_s"],
    "slower program": ("slower program", "#4D4D4D", ""),
    "serial part": ("not divided", "#C9C9C9", ""),
    "waiting for the slowest": ("waiting for the slowest", "#9A9A9A", "xxxx"),
    "slower steps": ("slower steps", "#F2F2F2", "||||"),
    "whole steps": ("whole steps", "#F2F2F2", "...."),
}

MARK_TINT = "#555555"  # of marks in a key, where colours say the method
WIDE = 6.2  # inches of a figure of two plots: at the smallest scale of the report it just fits a phone
SMALLEST_FONT = 10  # points, in a figure that is shown at its own size
RC = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "xtick.labelsize": SMALLEST_FONT,
    "ytick.labelsize": SMALLEST_FONT,
    "legend.fontsize": SMALLEST_FONT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 6.5,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    # the same data gives the same bytes
    "svg.hashsalt": "paratrain",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Drawn:
    """A figure ready to be saved: what it shows, in words and as data."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    data: pd.DataFrame
    command: str = ""
    paper: str = ""
    section: str = ""  # of the paper's part of the page; "" is the first
    files: dict[str, str] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """All but the picture, for the figures' index."""
        names = ("paper", "section", "name", "title", "caption", "alt", "command")
        return {name: getattr(self, name) for name in names} | {"files": self.files}


def colour(method: str) -> str:
    """The method's colour, the same in every figure."""
    return METHOD_COLOURS.get(method, OTHER_COLOUR)


def label(method: str, paper: str = "") -> str:
    """The method's name in words: those of the paper, where it has its own."""
    own = paper_of(paper).methods.get(method)
    return own or METHOD_LABELS.get(method, str(method).replace("_", " "))


def shade(tint: str, place: int, count: int) -> str:
    """The ``place``-th of ``count`` tones of a colour, from a light one to the colour darkened: told apart in grey."""
    share = 0.0 if count < 2 else 1 - 2 * place / (count - 1)  # from white (1) to black (-1)
    rgb = np.array(to_rgb(tint))
    return to_hex(rgb + 0.5 * share * (1 - rgb) if share > 0 else rgb * (1 + 0.55 * share))


def strategy_look(strategy: str) -> dict[str, Any]:
    """How matplotlib is to draw the line of a strategy, the same in every figure."""
    return {
        "color": STRATEGY_COLOURS.get(strategy, OTHER_COLOUR),
        "linestyle": STRATEGY_DASHES.get(strategy, "-"),
    }


def strategy_key(strategy: str) -> Line2D:
    """A key's entry for a strategy."""
    text = STRATEGY_LABELS.get(strategy, strategy)
    return Line2D([], [], **strategy_look(strategy), linewidth=2.4, label=text)


def optimizer_colour(optimizer: str) -> str:
    """The optimiser's colour, the same in every figure that tells optimisers apart."""
    return OPTIMIZER_COLOURS.get(optimizer, OTHER_COLOUR)


def optimizer_label(optimizer: str) -> str:
    """The optimiser's name in words."""
    return OPTIMIZER_LABELS.get(optimizer, str(optimizer).replace("_", " "))


def new_figure(
    width: float = 5.2, height: float = 4.2, rows: int = 1, columns: int = 1, **axes: Any
) -> tuple[Figure, Any]:
    """A figure of the house style, in inches, and its axes (always a 2-D array)."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **axes)


def worker_axis(axes: Axes, workers: list[int], text: str = "workers") -> None:
    """A logarithmic axis with a tick for each number of workers that occurs."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(workers)) or [1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(text)


def plain_log_axis(axis: Any, subs: tuple[int, ...] = ()) -> None:
    """Ticks of a logarithmic axis as plain numbers, at ``subs`` of each decade if given, without minor ones."""
    if subs:
        axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def apart(place: int, count: int) -> float:
    """Factor on the x of the ``place``-th of ``count`` series, so that bars of equal x do not hide each other."""
    return float(2 ** (0.07 * (place - (count - 1) / 2)))


def colour_key(method: str, text: str = "", paper: str = "") -> Line2D:
    """A key's entry for a method: its colour, without a mark."""
    return Line2D([], [], color=colour(method), linewidth=4, label=text or label(method, paper))


def mark_key(evidence: str, text: str = "", dashes: str = "", hollow: bool = False) -> Line2D:
    """A key's entry for a kind of evidence: its mark in grey, on the dashes that go with it."""
    return Line2D(
        [],
        [],
        color=MARK_TINT,
        linestyle=dashes or "none",
        marker=EVIDENCE_MARKERS[evidence],
        markerfacecolor="white" if hollow else MARK_TINT,
        label=text or evidence,
    )


IDEAL = {"color": "#888888", "linewidth": 1.0, "label": "ideal"}


def ideal_key() -> Line2D:
    """A key's entry for the ideal speedup."""
    return Line2D([], [], **IDEAL)


def key_above(
    figure: Figure, title: str, handles: list[Any], most_columns: int = 4, handle_length: float = 1.6
) -> None:
    """The figure's title, and under it the key of colours; both stay clear of the plots.

    ``handle_length``: in letters; dashes with a mark need more.
    """
    with matplotlib.rc_context(RC):
        legend = figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=_columns([str(handle.get_label()) for handle in handles], figure, most_columns),
            title=title,
            title_fontsize=13,
            handlelength=handle_length,
        )
        legend.get_title().set_fontweight("bold")


def key_under(axes: Axes, handles: list[Line2D]) -> None:
    """The key of one plot's marks, under its axis."""
    with matplotlib.rc_context(RC):
        axes.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.0, -0.19),
            borderaxespad=0.0,
            handlelength=2.6,
            labelspacing=0.35,
        )


def legend_below(figure: Figure, axes: Axes | list[Axes], most_columns: int = 3) -> None:
    """One legend under the plots, so that it covers nothing; entries of several axes are listed once.

    It has as many columns as its longest entry leaves room for.
    """
    found: dict[str, Any] = {}
    for each in [axes] if isinstance(axes, Axes) else axes:
        for handle, text in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(text, handle)
    if not found:
        return
    columns = _columns(list(found), figure, most_columns)
    with matplotlib.rc_context(RC):
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)


def _columns(texts: list[str], figure: Figure, most: int) -> int:
    """How many columns of such entries a figure has room for."""
    for columns in range(min(most, len(texts)), 1, -1):
        longest = [max(map(len, part)) for part in np.array_split(np.array(texts, dtype=object), columns)]
        # a letter of the house font is about 0.56 of its size wide; the handle and gaps take 0.65 inches
        if sum(0.65 + length * 0.56 * SMALLEST_FONT / 72 for length in longest) <= figure.get_figwidth():
            return columns
    return 1


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit in which ``largest`` bytes is a number between 0.1 and 1000, where there is one: its size and name."""
    for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= 0.1 * size:
            return size, name
    return 1.0, "B"


def say_empty(axes: Axes, text: str) -> None:
    """Say in the plot itself that there is nothing to draw."""
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", wrap=True, color="#555555",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 2},
    )  # fmt: skip


def save(drawn: Drawn, folder: Path) -> dict[str, str]:
    """Write ``<name>.svg``, ``.png`` (200 dpi) and ``.csv`` into ``folder``; the same data gives the same SVG bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {kind: folder / f"{drawn.name}.{kind}" for kind in ("svg", "png", "csv")}
    with matplotlib.rc_context(RC):
        # laid out once, so that both pictures agree
        drawn.figure.draw_without_rendering()
        drawn.figure.set_layout_engine("none")
        svg = io.BytesIO()
        # no date and no version: the bytes depend on the data alone
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        drawn.figure.savefig(svg, format="svg", metadata=nothing)
        png = io.BytesIO()
        drawn.figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    write_whole(files["svg"], svg.getvalue())
    write_whole(files["png"], png.getvalue())
    write_whole(files["csv"], drawn.data.to_csv(index=False).encode())
    return {kind: str(path) for kind, path in files.items()}
