"""A plan and a comparison of strategies as tables for the terminal or in Markdown. Pure: values in, text out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from implementations.layerwise.graph import INPUT, Config, Graph, Layer, Strategy, degrees_text

PLAN_COLUMNS = ("layers", "kind", "split", "output", "parameters", "devices")

# Columns of the comparison: title, key of a row as in plans.parquet, unit, what one unit is, digits.
COMPARED = (
    ("step", "step_s", "ms", 1e-3, 2),
    ("samples/s", "samples_per_s", "", 1, 1),
    ("sent", "network_bytes", "MB", 1e6, 2),
    ("fullest device", "state_bytes_max", "MB", 1e6, 1),
)


def plan_table(graph: Graph, strategy: Strategy, devices: int, *, markdown: bool = False) -> str:
    """The configuration of each layer, with consecutive ones of the same configuration in one line.

    Only leaders have lines (``Graph.leaders``); the parameters of those that follow count with theirs. ``output`` is
    that of the line's last layer, for one sample.
    """
    params = _led_params(graph)
    lines = []
    for config, layers in _runs(graph, strategy):
        used = math.prod(config)
        lines.append(
            (
                " ... ".join(dict.fromkeys((layers[0].name, layers[-1].name))),
                ", ".join(_counted(layers)),
                degrees_text(config),
                " x ".join(map(str, layers[-1].out)) or "1",
                f"{total:,}" if (total := sum(params[layer.name] for layer in layers)) else "-",
                f"{used}/{devices}",
            )
        )
    return text_table(PLAN_COLUMNS, lines, right=(4, 5), markdown=markdown)


def comparison_table(rows: Sequence[Mapping[str, Any]], *, markdown: bool = False) -> str:
    """One line for each strategy, a row with the columns of ``COMPARED`` by their keys; MB is 1e6 bytes.

    What a row lacks, or has as None, is shown as a dash; a ``reason`` (of a plan that takes too much memory, say) is
    put behind the strategy's name.
    """
    titles = ["strategy", *(f"{title} ({unit})" if unit else title for title, _, unit, _, _ in COMPARED)]
    lines = []
    for row in rows:
        reason = f" ({row['reason']})" if row.get("reason") else ""
        lines.append(
            (
                f"{row['strategy']}{reason}",
                *(_number(row.get(key), scale, digits) for *_, key, _, scale, digits in COMPARED),
            )
        )
    return text_table(titles, lines, right=range(1, len(titles)), markdown=markdown)


def _led_params(graph: Graph) -> Counter[str]:
    """Parameters of each leader and of those that follow it."""
    found: Counter[str] = Counter()
    for name, leader in graph.leaders().items():
        found[leader] += graph[name].params
    return found


def _runs(graph: Graph, strategy: Strategy) -> Iterator[tuple[Config, list[Layer]]]:
    """Consecutive leaders of one configuration, the input aside: its samples are where they are."""
    leaders = graph.leaders()
    run: list[Layer] = []
    for layer in graph:
        if leaders[layer.name] != layer.name:
            continue
        if run and (strategy[run[0].name] != strategy[layer.name] or run[0].kind == INPUT):
            yield strategy[run[0].name], run
            run = []
        run.append(layer)
    if run:
        yield strategy[run[0].name], run


def _counted(layers: Sequence[Layer]) -> list[str]:
    """The kinds, with how many there are of each where there are several layers."""
    kinds = Counter(layer.kind for layer in layers)
    return [kind if len(layers) == 1 else f"{count} {kind}" for kind, count in kinds.items()]


def _number(value: float | None, scale: float, digits: int) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value / scale:,.{digits}f}"


def text_table(
    titles: Sequence[str], lines: Sequence[Sequence[str]], *, right: Sequence[int], markdown: bool
) -> str:
    """Lines below titles, in columns as wide as their widest entry; those of ``right`` end flush."""
    columns = list(zip(titles, *lines))
    widths = [max(map(len, column)) for column in columns]
    padded = [
        [
            text.rjust(width) if k in right else text.ljust(width)
            for k, (text, width) in enumerate(zip(line, widths))
        ]
        for line in (titles, *lines)
    ]
    rules = ["-" * (width - 1) + ":" if k in right else "-" * width for k, width in enumerate(widths)]
    if markdown:
        return "\n".join("| " + " | ".join(line) + " |" for line in (padded[0], rules, *padded[1:]))
    rules = ["-" * width for width in widths]
    return "\n".join("  ".join(line).rstrip() for line in (padded[0], rules, *padded[1:]))
