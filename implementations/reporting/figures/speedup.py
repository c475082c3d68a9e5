"""Speedup against workers: ideal, published, measured, simulated and projected, each with its own mark."""

from __future__ import annotations

from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes

from implementations.reporting.columns import is_true
from implementations.reporting.figures import style
from implementations.reporting.tables import SAME_CODE, command_for

THIS_HOST = "this-host"
LINES = {"measured": "-", "projected": "-.", "fitted": ":"}
COLUMNS = [
    "series",
    "evidence",
    "cluster",
    "method",
    "dataset",
    "data_size",
    "model",
    "epochs",
    "sync_period",
    "workers",
    "speedup",
    "low",
    "high",
    "n",
    "oversubscribed",
    "base",
    "base_seconds",
    "seconds",
    "source",
]


def speedup_data(
    speedups: pd.DataFrame, published: pd.DataFrame, clusters: list[str], base: str = SAME_CODE
) -> pd.DataFrame:
    """What the figure draws: of each kind of evidence the configuration with the most rows, and published points."""
    found = speedups[
        (speedups["base"] == base) & speedups["speedup"].notna() & (speedups["method"] != "sequential")
    ]
    parts = []
    for (evidence, cluster), rows in found.groupby(["evidence", "cluster"], dropna=False, sort=True):
        if evidence == "simulated" and cluster not in clusters:
            continue
        rows = main_configuration(rows)
        for method, curve in rows.groupby("method", sort=True):
            curve = curve.sort_values("workers").drop_duplicates("workers")
            parts.append(curve.assign(series=_series(method, evidence, cluster), source="results"))
    drawn = (
        [pd.concat(parts, ignore_index=True).rename(columns={"speedup_low": "low", "speedup_high": "high"})]
        if parts
        else []
    )
    points = published_speedups(published)
    if len(points):
        drawn.append(points)
    if not drawn:
        return pd.DataFrame(columns=COLUMNS)
    whole = pd.concat([part.reindex(columns=COLUMNS).astype(object) for part in drawn], ignore_index=True)
    place = {kind: i for i, kind in enumerate(style.EVIDENCE_MARKERS)}
    return whole.sort_values(
        ["evidence", "series", "workers"],
        key=lambda column: column.map(lambda v: place.get(v, v)),
        kind="stable",
        ignore_index=True,
    )


def published_speedups(published: pd.DataFrame) -> pd.DataFrame:
    """Speedups that the paper printed (inputs of a projection excepted), as rows of the figure."""
    if not len(published) or not {"workers", "value", "metric"} <= set(published.columns):
        return pd.DataFrame(columns=COLUMNS)
    kept = published[(published["metric"] == "speedup") & published["workers"].notna()]
    kept = kept[kept["role"] == "target"] if "role" in kept else kept
    return (
        pd.DataFrame(
            {
                "series": [f"{style.label(method)}, published" for method in _methods(kept)],
                "evidence": "published",
                "method": _methods(kept),
                "sync_period": kept.get("sync_period"),
                "workers": kept["workers"].astype(int),
                "speedup": kept["value"].astype(float),
                "base": "as the paper says",
                "source": kept.index.astype(str),
            }
        )
        .drop_duplicates(["method", "workers", "sync_period", "speedup"])
        .sort_values(["workers", "speedup"])
    )


def _methods(published: pd.DataFrame) -> list[str]:
    own = published["method"] if "method" in published else published["paper"]
    return [
        str(name) if isinstance(name, str) else str(paper)
        for name, paper in zip(own, published["paper"], strict=True)
    ]


def _series(method: str, evidence: str, cluster: Any) -> str:
    where = f" on {cluster}" if isinstance(cluster, str) and cluster else ""
    return f"{style.label(method)}, {evidence}{where}"


def main_configuration(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the most frequent data set, sizes and training, so that one curve is one experiment.

    Of those, the rows of the most frequent all-reduce algorithm and the rows without one (sequential training).
    """
    if not len(rows):
        return rows
    keys = [name for name in ("dataset", "data_size", "model", "epochs", "minibatch") if name in rows]
    code = rows.groupby(keys, dropna=False).ngroup()
    rows = rows[code == code.mode().iloc[0]]
    if "algorithm" in rows and rows["algorithm"].notna().any():
        common = rows["algorithm"].mode().iloc[0]
        rows = rows[rows["algorithm"].isna() | (rows["algorithm"] == common).fillna(False)]
    return rows


def line_style(evidence: str, cluster: Any) -> str:
    """How a series' line is dashed."""
    if evidence == "simulated":
        return ":" if cluster == THIS_HOST else "--"
    return LINES.get(evidence, "-")


def draw_speedups(axes: Axes, data: pd.DataFrame, with_ideal: bool = True) -> None:
    """Draw the series of ``speedup_data`` on one pair of logarithmic axes."""
    workers = sorted({int(count) for count in data["workers"]} | {1})
    if with_ideal:
        axes.plot(workers, workers, color="#888888", linewidth=1.0, label="ideal")
    for name, rows in data.groupby("series", sort=False):
        evidence, method = rows["evidence"].iloc[0], rows["method"].iloc[0]
        tint, mark = style.colour(method), style.EVIDENCE_MARKERS[evidence]
        x, y = rows["workers"].astype(float), rows["speedup"].astype(float)
        if evidence == "published":
            axes.plot(x, y, mark, color=tint, markeredgecolor="black", markersize=11, zorder=5, label=name)
            continue
        hollow = rows["oversubscribed"].map(is_true).astype(bool)
        dashes = line_style(evidence, rows["cluster"].iloc[0])
        axes.plot(x, y, dashes, marker=mark, color=tint, label=name, markersize=4.5 if dashes == ":" else 6.5)
        if hollow.any() and evidence == "measured":
            axes.plot(
                x[hollow], y[hollow], mark, color=tint, markerfacecolor="white", zorder=4, label="_hollow"
            )
        low, high = rows["low"].astype(float), rows["high"].astype(float)
        axes.vlines(x, low, high, color=tint, linewidth=1.2)
    style.worker_axis(axes, workers)
    axes.set_yscale("log", base=2)
    style.plain_log_axis(axes.yaxis)


def speedup_figure(
    speedups: pd.DataFrame,
    published: pd.DataFrame,
    paper: str,
    named_cluster: str | None = None,
    tier: str | None = None,
) -> style.Drawn:
    """The main figure of a paper. ``named_cluster``: the machine beside this host; by default the first by name."""
    others = sorted(
        {str(name) for name in speedups.loc[speedups["evidence"] == "simulated", "cluster"].dropna()}
    )
    others = [name for name in others if name != THIS_HOST]
    named = named_cluster if named_cluster in others else (others[-1] if others else None)
    data = speedup_data(speedups, published, [name for name in (THIS_HOST, named) if name])
    figure, grid = style.new_figure(5.2, 6.6)
    axes = grid[0, 0]
    with matplotlib.rc_context(style.RC):
        if len(data):
            draw_speedups(axes, data)
            if _any_hollow(data):
                axes.plot(
                    [],
                    [],
                    "o",
                    color="#555555",
                    markerfacecolor="white",
                    label="hollow dot: more workers than cores",
                )
        else:
            style.say_empty(axes, "no speedups yet")
        axes.set_ylabel("speedup over the same code with one worker (x)")
        axes.set_title("Speedup against workers")
    style.legend_below(figure, axes)
    kinds = [kind for kind in style.EVIDENCE_MARKERS if kind in set(data["evidence"])]
    return style.Drawn(
        name="speedup",
        title="Speedup against workers",
        caption=(
            f"Evidence: {', '.join(kinds) or 'none yet'}. Base: the same code with one worker; published points as the "
            "paper gives them, on its own machines and data. Measured: median of repeats, bars are quartiles; "
            "simulated: the time model over the trace of a real training, bars are the range over seeds. "
            + configurations(data)
        ),
        alt=_alt(data),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def clusters_figure(speedups: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """The simulated speedup on every cluster, a small plot each; None where there are fewer than two clusters."""
    clusters = sorted(
        {str(name) for name in speedups.loc[speedups["evidence"] == "simulated", "cluster"].dropna()}
    )
    if len(clusters) < 2:
        return None
    data = speedup_data(speedups[speedups["evidence"] == "simulated"], pd.DataFrame(), clusters)
    if not len(data):
        return None
    columns = 2
    rows = -(-len(clusters) // columns)
    figure, grid = style.new_figure(6.4, 0.9 + 2.6 * rows, rows, columns, sharex=True, sharey=True)
    with matplotlib.rc_context(style.RC):
        for axes, cluster in zip(grid.flat, clusters, strict=False):
            here = data[data["cluster"] == cluster].copy()
            here["series"] = [style.label(method) for method in here["method"]]
            draw_speedups(axes, here)
            axes.set_title(cluster)
            axes.label_outer()
        for axes in list(grid.flat)[len(clusters) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("speedup (x)")
    style.legend_below(figure, list(grid.flat)[: len(clusters)])
    return style.Drawn(
        name="speedup_clusters",
        title="Simulated speedup by cluster",
        caption=(
            "Evidence: simulated (the time model over the traces of real trainings). Base: the same code with one "
            "worker on the same cluster. " + configurations(data)
        ),
        alt=_alt(data),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _any_hollow(data: pd.DataFrame) -> bool:
    measured = data[data["evidence"] == "measured"]
    return any(map(is_true, measured["oversubscribed"]))


def configurations(data: pd.DataFrame) -> str:
    """What each kind of evidence was run on, in words."""
    known = data[data["dataset"].notna()] if "dataset" in data else data[:0]
    parts = []
    for evidence, rows in known.groupby("evidence", sort=False):
        row = rows.iloc[0]
        size = f", {int(row['data_size']):,} samples" if pd.notna(row.get("data_size")) else ""
        count = row.get("epochs")
        epochs = f", {int(count)} epoch{'s' if count > 1 else ''}" if pd.notna(count) else ""
        parts.append(f"{str(evidence).capitalize()}: {row['dataset']}, {row['model']}{size}{epochs}.")
    return " ".join(parts)


def _alt(data: pd.DataFrame) -> str:
    if not len(data):
        return "Empty plot: there are no speedups yet."
    parts = []
    for name, rows in data.groupby("series", sort=False):
        last = rows.loc[rows["workers"].astype(int).idxmax()]
        parts.append(f"{name}: {float(last['speedup']):.3g} x at {int(last['workers'])} workers")
    return "Speedup against workers. " + "; ".join(parts) + "."
