"""Speedups of training on Spark against the workers, the size of the data and the size of the network."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import pandas as pd
from matplotlib.axes import Axes

from implementations.reporting.columns import is_true
from implementations.reporting.figures import spark_lines as lines
from implementations.reporting.figures import style
from implementations.reporting.grouping import command_for, typed
from implementations.reporting.spark import published_speedups
from implementations.reporting.spark_speedups import SEQUENTIAL

COLUMNS = [
    "evidence", "cluster", "kind", "variant", "execution", "dataset", "data_size", "model", "model_params", "optimizer",
    "scaling", "workers", "oversubscribed", "threads_per_worker", "global_batch", "sync_period", "epochs", "speedup",
    "speedup_low", "speedup_high", "seconds", "base", "base_seconds", "n",
]  # fmt: skip
LINE = ["kind", "evidence", "cluster", "variant", "execution"]
# What does not change along a line, beside what a figure is about.
SETTING = ["dataset", "optimizer", "scaling", "epochs", "threads_per_worker", "sync_period", "cut"]
PROJECTED = ["dataset", "optimizer", "experiments"]


@dataclass(frozen=True)
class Against:
    """What a figure has along x: a column, what then stays the same, and the column of printed speedups.

    ``asked``: what experiments or sweeps about it are called; others are shown where there are none.
    """

    name: str
    column: str
    fixed: tuple[str, ...]
    printed: str
    asked: str
    title: str
    label: str


WORKERS = Against(
    "spark_workers", "workers", ("model", "data_size"), "workers", "workers", "Speedup against workers", "workers"
)  # fmt: skip
DATA = Against(
    "spark_data_size", "data_size", ("model", "workers"), "data_size", "sizes",
    "Speedup against the size of the data", "training samples",
)  # fmt: skip
MODEL = Against(
    "spark_model_size", "model_params", ("data_size", "workers"), "params", "models",
    "Speedup against the size of the network", "parameters",
)  # fmt: skip


def speedup_data(speedups: pd.DataFrame, against: Against, marks: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for each point of each line; ``speedups``: of ``spark_speedups``, ``marks``: of ``published_speedups``.

    Of each kind of network, evidence, machine, variant and execution the setting with the most of them, held against
    sequential training where that was timed. Against sizes: of measured speedups those with no more workers than cores;
    of projected ones the printed numbers of workers, or else the fewest, a middle and the most.
    """
    found = speedups[speedups["speedup"].notna() & speedups[against.column].notna()]
    parts = []
    for (kind, evidence, cluster, variant, _), rows in found.groupby(LINE, dropna=False, sort=True):
        if evidence != "measured" and cluster not in lines.shown_clusters(
            found[found["evidence"] == evidence]
        ):
            continue
        rows = _asked(rows, against)
        setting = SETTING if evidence != "projected" else PROJECTED
        if against is WORKERS:
            if not (rows["workers"] > 1).any():
                continue
            parts.append(_line(_with_one_worker(rows, found, variant), [*setting, *against.fixed], against))
            continue
        rows = rows[rows["workers"] > 1]
        fits = rows[~rows["oversubscribed"].map(is_true).astype(bool)]
        rows = fits if len(fits) else rows
        printed = [] if marks is None else marks.loc[marks["kind"] == kind, "workers"].dropna().tolist()
        for count in _counts(rows, printed) if evidence == "projected" else [None]:
            own = rows if count is None else rows[rows["workers"] == count]
            own = _line(own, [*setting, *against.fixed], against)
            if len(own) > 1:
                parts.append(own)
    return typed(pd.DataFrame([row for part in parts for row in part.to_dict("records")], columns=COLUMNS))


def _asked(rows: pd.DataFrame, against: Against) -> pd.DataFrame:
    """The rows of experiments or sweeps about this, where there are any."""
    hit = rows["experiments"].fillna("").str.contains(rf"(?:^|[_/ ]){against.asked}(?:[/,]|$)", regex=True)
    return rows[hit] if hit.any() else rows


def _with_one_worker(rows: pd.DataFrame, every: pd.DataFrame, variant: object) -> pd.DataFrame:
    """And the rows of another variant on one worker, where it does the same."""
    first = rows.iloc[0]
    alone = every[(every["workers"] == 1) & (every["variant"] != variant) & (every["variant"] != "async")]
    for name in ("kind", "evidence", "cluster", "execution"):
        same = alone[name].isna() if pd.isna(first[name]) else alone[name] == first[name]
        alone = alone[same.fillna(False).astype(bool)]
    if variant == "async" or not len(alone):
        return rows
    both = every.loc[[*rows.index, *alone.index]]
    for name in ("cut", "variant"):
        both.loc[alone.index, name] = first[name]
    return both


def _line(rows: pd.DataFrame, setting: list[str], against: Against) -> pd.DataFrame:
    """One point for each x of the setting and base with the most of them."""
    if not len(rows):
        return rows
    rows = lines.longest(rows, setting, against.column)
    bases = rows.groupby("base")[against.column].nunique()
    most = bases[bases == bases.max()].index
    best = SEQUENTIAL if SEQUENTIAL in most else most[0]
    rows = rows[rows["base"] == best].sort_values([against.column, "speedup"])
    return rows.drop_duplicates(against.column, keep="last")


def _counts(rows: pd.DataFrame, printed: list[float]) -> list[int]:
    known = sorted({int(count) for count in rows["workers"]})
    asked = [count for count in known if count in printed]
    return asked or ([known[0], known[len(known) // 2], known[-1]] if len(known) > 3 else known)


def speedup_figure(
    speedups: pd.DataFrame, published: pd.DataFrame, paper: str, against: Against, tier: str | None = None
) -> style.Drawn | None:
    """A plot for each kind of network, speedups against ``against``; None where no line has two points."""
    marks = published_speedups(published)
    data = speedup_data(speedups, against, marks)
    if not len(data):
        return None
    kinds = lines.kinds_in(data)
    marks = lines.drawable(marks, against.printed, kinds)
    figure, grid = lines.panels(kinds, sharey=True)
    with matplotlib.rc_context(style.RC):
        for kind, axes in grid.items():
            here = data[data["kind"] == kind]
            printed = marks[marks["kind"] == kind]
            if against is WORKERS:
                counts = sorted({1, *(int(count) for count in here["workers"])})
                axes.plot(counts, counts, **style.IDEAL)
            for _, rows in here.groupby(_lines(against), dropna=False, sort=True):
                _draw(axes, rows, data, against)
            lines.draw_published(axes, printed, against.printed)
            if against is WORKERS:
                style.worker_axis(axes, [*counts, *printed["workers"].dropna().astype(int)])
            else:
                axes.set_xscale("log")
                lines.count_axis(axes.xaxis, [*here[against.column], *printed[against.printed].dropna()])
                axes.set_xlabel(against.label)
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:.2g}"))
            axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
            axes.axhline(1.0, color="#888888", linewidth=0.8)
        for axes in list(grid.values())[::2]:
            axes.set_ylabel("speedup (x)")
    keys = [
        *lines.variant_keys(data),
        *lines.evidence_keys(data),
        *lines.published_keys(marks, against.printed),
    ]
    keys += [style.ideal_key()] if against is WORKERS else []
    style.key_above(figure, against.title, keys, 3, handle_length=3.4)
    kinds_told = [kind for kind in style.EVIDENCE_MARKERS if kind in set(data["evidence"])]
    return style.Drawn(
        name=against.name,
        title=against.title,
        caption=(
            f"Evidence: {', '.join(kinds_told)}. Base: {_bases(data)}. Measured: median of repeats, bars are "
            "quartiles; simulated: the time model over the trace of a real training; projected: the cost model alone. "
            "Printed numbers are of the paper's machines and data, which are not known; the review's could not be "
            "checked. " + _reading(marks, against) + told(data, against)
        ),
        alt=_alt(data, against),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _lines(against: Against) -> list[str]:
    return LINE if against is WORKERS else [*LINE, "workers"]


def _draw(axes: Axes, rows: pd.DataFrame, data: pd.DataFrame, against: Against) -> None:
    first = rows.iloc[0]
    evidence, cluster = first["evidence"], first["cluster"]
    tint = lines.colour(first["variant"], first["execution"])
    x, y = rows[against.column].astype(float), rows["speedup"].astype(float)
    kind = lines.dashes(evidence, cluster, lines.shown_clusters(data[data["evidence"] == evidence]))
    mark = style.EVIDENCE_MARKERS[evidence]
    axes.plot(x, y, linestyle=kind, marker=mark, markersize=5, color=tint, label=evidence)
    hollow = rows["oversubscribed"].map(is_true).astype(bool)
    if evidence == "measured" and hollow.any():
        axes.plot(
            x[hollow], y[hollow], mark, markersize=5, color=tint, markerfacecolor="white", zorder=4, label="_hollow"
        )  # fmt: skip
    axes.vlines(
        x, rows["speedup_low"].astype(float), rows["speedup_high"].astype(float), color=tint, linewidth=1.2
    )
    if against is not WORKERS:
        axes.annotate(
            f"{int(first['workers'])}", (x.iloc[-1], y.iloc[-1]), (4, 0), textcoords="offset points", color=tint,
            fontsize=style.SMALLEST_FONT, va="center",
        )  # fmt: skip


def _reading(marks: pd.DataFrame, against: Against) -> str:
    """What is doubtful about a printed number of parameters."""
    doubtful = against is MODEL and (marks["params"].astype(float) > 1e9).any()
    return "The review prints 4 billion parameters; 4 million is the probable reading. " if doubtful else ""


def _bases(data: pd.DataFrame) -> str:
    """What each kind of evidence is held against, in words."""
    found = data[["evidence", "base"]].drop_duplicates().to_dict("records")
    return ", ".join(f"{row['base']} ({row['evidence']})" for row in found)


def told(data: pd.DataFrame, against: Against) -> str:
    """What each kind of evidence was run on, in words."""
    parts = []
    for (kind, evidence), rows in data.groupby(["kind", "evidence"], sort=False):
        row = rows.iloc[0]
        words = [lines.KIND_TITLES.get(kind, kind), str(evidence)]
        words += [str(row["model"])] if against is not MODEL and pd.notna(row["model"]) else []
        words += [str(row["dataset"])] if pd.notna(row["dataset"]) else []
        if against is not DATA and pd.notna(row["data_size"]):
            words.append(f"{lines.short(float(row['data_size']))} samples")
        parts.append(", ".join(words))
    return "; ".join(parts) + ("" if against is WORKERS else ". Numbers at the lines: workers") + "."


def _alt(data: pd.DataFrame, against: Against) -> str:
    parts = []
    for keys, rows in data.groupby(_lines(against), dropna=False, sort=True):
        names = ", ".join(str(key) for key in keys if isinstance(key, str))
        last = rows.loc[rows[against.column].astype(float).idxmax()]
        parts.append(f"{names}: {last['speedup']:.3g} x at {lines.short(float(last[against.column]))}")
    return f"{against.title}. " + "; ".join(parts) + "."
