"""The answer in words and tables, for the terminal or in Markdown. Pure: a frame in, text out."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from implementations.layerwise.plantable import text_table

_RANKED = (
    "place", "method", "workers", "epoch", "speedup", "limited by", "sent / epoch", "memory / worker",
)  # fmt: skip


def text(table: pd.DataFrame, head: str, markdown: bool = False) -> str:
    """Ranked methods, seconds of an epoch by workers, what cannot be done, and how sure it is."""
    chosen = table[table["best"]].sort_values(["place", "place_bytes"])
    if chosen.empty:
        return "\n\n".join([head, "no method can be told of:", *_refused(table)])
    lines = [_line(row) for row in chosen.to_dict("records")]
    ranked = text_table(_RANKED, lines, right=(0, 2, 3, 4, 6, 7), markdown=markdown)
    parts = [
        head,
        ranked,
        _by_workers(table, chosen, markdown),
        *_refused(table),
        _targets(table, markdown),
        _sure(chosen),
    ]
    return "\n\n".join(part for part in parts if part)


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(row["place"]),
        row["method"],
        str(row["workers"]),
        duration(row["epoch_s"]),
        "-" if pd.isna(row["speedup"]) else f"{row['speedup']:.2f}",
        f"{row['limit']} ({row['limit_share']:.0%})",
        size(row["sent_bytes"]),
        size(row["memory_bytes"]),
    )


def _by_workers(table: pd.DataFrame, chosen: pd.DataFrame, markdown: bool) -> str:
    """Seconds of an epoch: methods down, workers across."""
    counts = sorted(table["workers"].unique())
    lines = []
    for method in chosen["method"]:
        of_workers = table[(table["method"] == method) & (table["reason"] == "")].set_index("workers")[
            "epoch_s"
        ]
        lines.append((method, *(duration(of_workers.get(count, math.nan)) for count in counts)))
    titles = ("an epoch takes on", *(f"{count} worker{'s' if count > 1 else ''}" for count in counts))
    return text_table(titles, lines, right=range(1, len(titles)), markdown=markdown)


def _refused(table: pd.DataFrame) -> list[str]:
    """What cannot be done, and why, a line for each reason."""
    lines = []
    for (method, reason), rows in table[table["reason"] != ""].groupby(["method", "reason"], sort=False):
        counts = ", ".join(map(str, rows["workers"]))
        lines.append(f"not {method} on {counts}: {reason}")
    return ["\n".join(lines)] if lines else []


def _sure(chosen: pd.DataFrame) -> str:
    lines = [f"{', '.join(rows['method'])}: {said}" for said, rows in chosen.groupby("how_sure", sort=False)]
    return "How sure: " + "\n          ".join(lines)


def _targets(table: pd.DataFrame, markdown: bool) -> str:
    """Each method's soonest time to a target, of the numbers of workers with which a network like it was trained."""
    known = table[table["place_target"].notna()].sort_values("place_target")
    if known.empty:
        return (
            "Time to a target: not known, as no network of this kind was trained to one with these methods and numbers "
            "of workers."
        )
    lines = [
        (
            str(row["place_target"]),
            row["method"],
            str(row["workers"]),
            duration(row["time_to_target_s"]),
            f"{row['target_epochs']:.2f} ({row['target_low']:.2f} to {row['target_high']:.2f})",
            "-" if pd.isna(row["efficiency"]) else f"{row['efficiency']:.2f}",
            f"{row['target_of']}, {row['target_seeds']:.0f} seeds",
        )
        for row in known.to_dict("records")
    ]
    titles = ("place", "to target", "workers", "takes", "epochs", "of one worker's efficiency", "as")
    told = "Your network was not trained: the epochs are those of the one most like it that was."
    return f"{told}\n\n{text_table(titles, lines, right=(0, 2, 3, 4, 5), markdown=markdown)}"


def duration(seconds: float | None) -> str:
    """Three digits with a unit."""
    if seconds is None or pd.isna(seconds):
        return "-"
    for limit, unit, one in ((1e-3, "us", 1e-6), (1.0, "ms", 1e-3), (120.0, "s", 1.0), (7200.0, "min", 60.0)):
        if seconds < limit:
            return f"{seconds / one:.3g} {unit}"
    return f"{seconds / 3600:.3g} h" if seconds < 72 * 3600 else f"{seconds / 86400:,.3g} days"


def size(nbytes: float | None) -> str:
    """Bytes with a decimal unit, three digits."""
    if nbytes is None or pd.isna(nbytes):
        return "-"
    for limit, unit, one in ((1e3, "B", 1.0), (1e6, "kB", 1e3), (1e9, "MB", 1e6), (1e12, "GB", 1e9)):
        if nbytes < limit:
            return f"{nbytes / one:.3g} {unit}"
    return f"{nbytes / 1e12:,.3g} TB"
