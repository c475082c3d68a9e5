"""A plan drawn on its network: a box for each layer, filled by the dimension that it is split along most."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Patch

from implementations.reporting import plans as planning
from implementations.reporting.figures import style
from implementations.reporting.figures.layerwise_lines import network_name
from implementations.reporting.grouping import command_for
from implementations.reporting.layerwise import found_plan, shown_plans

COLUMNS = ["evidence", "cluster", "model", "workers", "strategy", "layer", "kind", "out", "devices", "degrees_text",
           *planning.DIMENSIONS]  # fmt: skip
BRANCHED = ("inception_v3", 4)  # network and devices of the second drawing
MOST_BOXES = 40  # above it layers of one chain and configuration share a box
TALLEST, TALLEST_BRANCHED = 13, 18  # rows of a column, where the network lets it be cut
PLAIN = ("input", "loss")
_WORDS = {
    "conv": "conv",
    "pool": "pool",
    "linear": "FC",
    "concat": "concat",
    "flatten": "flatten",
    "add": "add",
}
ROW, BOX, GAP = 0.52, 0.4, 0.5  # inches: height of a row and of a box, room between two columns


@dataclass
class Box:
    """One or more layers of a chain with one configuration."""

    layers: list[dict] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)  # places of the boxes that it reads
    level: int = 0

    @property
    def text(self) -> str:
        """What it is, and how it is split."""
        counts = Counter(_WORDS.get(str(layer["kind"]), str(layer["kind"])) for layer in self.layers)
        return "+".join(f"{count} {word}" if count > 1 else word for word, count in counts.items())


def plan_figures(layers: pd.DataFrame, paper: str, tier: str | None = None) -> list[style.Drawn]:
    """The plan that the paper prints, and that of a network with branches; none without plans.

    ``layers``: of ``plans.layers_of``.
    """
    drawn = [
        plan_figure(shown_plans(layers), paper, "layerwise_plan", tier),
        plan_figure(found_plan(layers, *BRANCHED), paper, "layerwise_plan_branches", tier),
    ]
    return [figure for figure in drawn if figure is not None]


def plan_figure(plan: pd.DataFrame, paper: str, name: str, tier: str | None = None) -> style.Drawn | None:
    """One plan; None without layers. ``plan``: the rows of one plan of ``plans.layers_of``."""
    if not len(plan):
        return None
    boxes = boxes_of(plan.to_dict("records"))
    columns = columns_of(boxes, _height(boxes))
    lanes = [max(_lanes(boxes, column).values(), default=1) for column in columns]
    wide = 1.15 if len(boxes) > MOST_BOXES else 1.6  # inches of a box
    rows = max(len({boxes[k].level for k in column}) for column in columns)
    width = sum(count * wide for count in lanes) + GAP * (len(columns) + 1)
    figure, grid = style.new_figure(max(width, 4.6), 1.25 + ROW * rows)
    axes = grid[0, 0]
    with matplotlib.rc_context(style.RC):
        places = _draw(axes, boxes, columns, lanes, wide)
        axes.set_xlim(0, max(width, 4.6) - 0.3)
        axes.set_ylim(-ROW * rows - 0.05, 0.05)
        axes.set_axis_off()
    keys = [
        Patch(facecolor=style.DIMENSION_COLOURS[letter], edgecolor="#333333", label=text)
        for letter, text in style.DIMENSION_LABELS.items()
        if letter in {place[2] for place in places.values()}
    ]
    first = plan.iloc[0]
    workers = int(first["workers"])
    title = f"The plan found for {network_name(first['model'])} on {workers} devices"
    style.key_above(figure, title, keys, 5)
    data = plan[COLUMNS].reset_index(drop=True)
    return style.Drawn(
        name=name,
        title=title,
        caption=(
            f"Evidence: {first['evidence']}; on {first['cluster']}, {int(first['minibatch'])} samples a device, "
            f"computation from {first['compute_source']}, objective {first['objective']}. A layer in a box, down the "
            "columns; n, c, h, w: parts by samples, channels, height and width; filled by the dimension with the most. "
            + ("Layers of a chain with one configuration share a box. " if len(boxes) < len(plan) - 2 else "")
            + "Normalisation and activations stay where their input is."
        ),
        alt="; ".join(f"{row['layer']} ({row['kind']}): {row['degrees_text']}" for row in data.to_dict("records")),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )  # fmt: skip


def boxes_of(layers: list[dict]) -> list[Box]:
    """A box for each layer in the order of the network, or for each chain of equal configuration in a large one."""
    readers: dict[str, int] = {}
    for layer in layers:
        for name in layer["inputs"]:
            readers[name] = readers.get(name, 0) + 1
    merge = len(layers) > MOST_BOXES
    boxes: list[Box] = []
    place: dict[str, int] = {}
    for layer in layers:
        inputs = list(dict.fromkeys(name for name in layer["inputs"] if name in place))
        before = boxes[place[inputs[0]]] if len(inputs) == 1 else None
        joins = (
            merge
            and before is not None
            and before.layers[-1]["layer"] == inputs[0]
            and readers[inputs[0]] == 1
            and before.layers[-1]["degrees_text"] == layer["degrees_text"]
            and layer["kind"] not in (*PLAIN, "concat", "add")
            and before.layers[-1]["kind"] not in (*PLAIN, "concat", "add")
        )
        if joins:
            before.layers.append(layer)
            place[layer["layer"]] = place[inputs[0]]
            continue
        sources = [place[name] for name in inputs]
        level = 1 + max((boxes[k].level for k in sources), default=-1)
        place[layer["layer"]] = len(boxes)
        boxes.append(Box([layer], sources, level))
    return boxes


def _height(boxes: list[Box]) -> int:
    """Rows of a column, so that all columns are about as long."""
    levels = 1 + max(box.level for box in boxes)
    most = TALLEST if len(boxes) <= MOST_BOXES else TALLEST_BRANCHED
    return -(-levels // -(-levels // most)) + 1


def columns_of(boxes: list[Box], tallest: int) -> list[list[int]]:
    """Places of the boxes, column by column: a cut lies where one box alone leads on, at most ``tallest`` rows apart.

    Where branches leave no such place for longer, a column is longer.
    """
    last = max(box.level for box in boxes)
    # an edge across the cut after a level must start at that level's only box
    alone = [
        level
        for level in range(last)
        if sum(box.level == level for box in boxes) == 1
        and all(
            boxes[source].level >= level
            for box in boxes
            if box.level > level
            for source in box.inputs
        )
    ]  # fmt: skip
    columns, start = [], 0
    while start <= last:
        if last - start < tallest:
            end = last
        else:
            within = [level for level in alone if start < level < start + tallest]
            later = [level for level in alone if level >= start + tallest]
            end = within[-1] if within else later[0] if later else last
        columns.append([k for k, box in enumerate(boxes) if start <= box.level <= end])
        start = end + 1
    return columns


def _lanes(boxes: list[Box], column: list[int]) -> dict[int, int]:
    """How many boxes each level of a column has."""
    found: dict[int, int] = {}
    for k in column:
        found[boxes[k].level] = found.get(boxes[k].level, 0) + 1
    return found


def _draw(
    axes: Axes, boxes: list[Box], columns: list[list[int]], lanes: list[int], wide: float
) -> dict[int, tuple[float, float, str]]:
    """Draw boxes and edges; each box's middle and the dimension that it is filled by."""
    places: dict[int, tuple[float, float, str]] = {}
    gutters: list[float] = []  # left of each column
    left = GAP
    for column, count in zip(columns, lanes, strict=True):
        gutters.append(left - GAP / 2)
        ends = left + wide / 2, left + (count - 0.5) * wide
        top = min(boxes[k].level for k in column)
        for level in sorted({boxes[k].level for k in column}):
            here = [k for k in column if boxes[k].level == level]
            x = _across(boxes, here, {k: place[0] for k, place in places.items() if k in column}, ends, wide)
            for k in here:
                places[k] = (x[k], -ROW * (level - top) - ROW / 2, _dimension(boxes[k].layers[0]))
        left += count * wide + GAP
    column_of = {k: number for number, column in enumerate(columns) for k in column}
    for k, box in enumerate(boxes):
        for source in box.inputs:
            gutter = None if column_of[source] == column_of[k] else gutters[column_of[k]]
            _edge(axes, places[source], places[k], gutter)
    for k, (x, y, letter) in places.items():
        _box(axes, boxes[k], x, y, letter, wide)
    return places


def _across(
    boxes: list[Box], level: list[int], known: dict[int, float], ends: tuple[float, float], wide: float
) -> dict[int, float]:
    """Where the boxes of a level lie across: under what they read as far as they do not overlap."""
    middle = sum(ends) / 2
    wanted: dict[int, float] = {}
    for k in level:
        above = [known[source] for source in boxes[k].inputs if source in known]
        wanted[k] = sum(above) / len(above) if above else middle
    order = sorted(level, key=lambda k: (wanted[k], k))
    x: list[float] = []
    for k in order:
        x.append(max(wanted[k], x[-1] + wide) if x else wanted[k])
    shift = sum(wanted[k] - place for k, place in zip(order, x, strict=True)) / len(order)
    shift = min(max(shift, ends[0] - x[0]), ends[1] - x[-1])
    return {k: place + shift for k, place in zip(order, x, strict=True)}


def _edge(
    axes: Axes, start: tuple[float, float, str], end: tuple[float, float, str], gutter: float | None
) -> None:
    """A line from the foot of a box to the head of another; through the gutter where it begins another column."""
    x, y = [start[0], end[0]], [start[1] - BOX / 2, end[1] + BOX / 2]
    if gutter is not None:
        below, above = start[1] - ROW / 2 - 0.02, end[1] + ROW / 2 + 0.02
        x = [start[0], start[0], gutter, gutter, end[0], end[0]]
        y = [y[0], below, below, above, above, y[1]]
    axes.plot(x, y, color="#999999", linewidth=1.0, zorder=1, clip_on=False, label="_edge")


def _box(axes: Axes, box: Box, x: float, y: float, letter: str, wide: float) -> None:
    width = 0.93 * wide
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - BOX / 2), width, BOX, boxstyle="round,pad=0,rounding_size=0.04", linewidth=0.7,
            facecolor=style.DIMENSION_COLOURS[letter], edgecolor="#333333", zorder=2,
        )
    )  # fmt: skip
    degrees = str(box.layers[0]["degrees_text"])
    name = box.text if box.layers[0]["kind"] in PLAIN else _name(box, wide)
    size = style.SMALLEST_FONT
    axes.text(x, y + 0.005, name, ha="center", va="bottom", fontsize=size, zorder=3)
    axes.text(x, y - 0.015, degrees, ha="center", va="top", fontsize=size, fontweight="bold", zorder=3)


def _name(box: Box, wide: float) -> str:
    """What a box is, with the size of what it gives where there is room."""
    size = box.layers[-1]["out"]
    if wide < 1.4 or pd.isna(size):
        return box.text
    return f"{box.text}  {size}"


def _dimension(layer: dict) -> str:
    """The dimension that a layer is split along most, the first of several; "" where it is not split."""
    degrees = {name: int(layer[name]) for name in planning.DIMENSIONS if not pd.isna(layer[name])}
    most = max(degrees, key=lambda name: degrees[name])
    if most == "h" and degrees["w"] == degrees["h"] > 1:
        return "hw"
    return most if degrees[most] > 1 else ""
