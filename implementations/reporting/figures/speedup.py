"""Speedup against workers: ideal, published, measured, simulated and projected, each with its own mark."""

from __future__ import annotations

from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes

from implementations.reporting.columns import is_true
from implementations.reporting.figures import style
from implementations.reporting.papers import paper_of
from implementations.reporting.tables import SAME_CODE, command_for

THIS_HOST = "this-host"
NAMED = "ten-gigabit-cpu"  # the machine that is shown beside this host, where one is
# Of these each has a plot where methods are shown on several; slower networks are asked about by time to a target.
CLUSTERS = (THIS_HOST, "gigabit-cpu", NAMED, "stampede-k20")
OWN = ("measured", "simulated")  # evidence about our network; the rest is about the paper's
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
            curve = main_period(curve).sort_values("workers").drop_duplicates("workers")
            name = _series(style.label(method, curve["paper"].iloc[0]), evidence, cluster)
            parts.append(curve.assign(series=name, source="results"))
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
    periods = kept["sync_period"] if "sync_period" in kept else pd.Series(pd.NA, index=kept.index)
    return (
        pd.DataFrame(
            {
                "series": [
                    f"{style.label(method)}, published{_period(period)}"
                    for method, period in zip(_methods(kept), periods, strict=True)
                ],
                "evidence": "published",
                "method": _methods(kept),
                "sync_period": periods,
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


def _period(period: Any, letter: str = "K") -> str:
    return f", {letter}={int(period)}" if pd.notna(period) else ""


def _series(method: str, evidence: str, cluster: Any) -> str:
    where = f" on {cluster}" if isinstance(cluster, str) and cluster else ""
    return f"{method}, {evidence}{where}"


def main_configuration(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the most frequent data set, sizes and training, so that one curve is one experiment.

    Of those, the rows of the most frequent all-reduce algorithm, way to mix and server, and the rows without one
    (sequential training).
    """
    if not len(rows):
        return rows
    names = ("dataset", "data_size", "model", "epochs", "minibatch", "optimizer")
    keys = [name for name in names if name in rows and rows[name].notna().any()]
    code = rows.groupby(keys, dropna=False).ngroup()
    rows = rows[code == code.mode().iloc[0]]
    for name in ("algorithm", "mixing", "server"):
        if name in rows and rows[name].notna().any():
            common = rows[name].mode().iloc[0]
            rows = rows[rows[name].isna() | (rows[name] == common).fillna(False)]
    return rows


def main_period(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the period with the most rows, the shortest of several, and the rows without one."""
    if "sync_period" not in rows or not rows["sync_period"].notna().any():
        return rows
    most = rows["sync_period"].mode().iloc[0]
    return rows[rows["sync_period"].isna() | (rows["sync_period"] == most).fillna(False)]


def line_style(evidence: str, cluster: Any) -> str:
    """How a series' line is dashed."""
    if evidence == "simulated":
        return ":" if isinstance(cluster, str) and cluster == THIS_HOST else "--"
    return LINES.get(evidence, "-")


def draw_speedups(axes: Axes, data: pd.DataFrame, workers: list[int]) -> None:
    """Draw the series of ``speedup_data`` and the ideal on one pair of logarithmic axes; ``workers``: its ticks."""
    axes.plot(workers, workers, **style.IDEAL)
    published = data.loc[data["evidence"] == "published", "series"]
    for name, rows in data.groupby("series", sort=False):
        evidence, method = rows["evidence"].iloc[0], rows["method"].iloc[0]
        tint, mark = style.colour(method), style.EVIDENCE_MARKERS[evidence]
        x, y = rows["workers"].astype(float), rows["speedup"].astype(float)
        if evidence == "published":
            first = name == published.iloc[0]
            axes.plot(x, y, mark, color=tint, markersize=12 if first else 10, zorder=5 if first else 6, label=name,
                      markeredgecolor="black", markerfacecolor=tint if first else "white")  # fmt: skip
            continue
        hollow = rows["oversubscribed"].map(is_true).astype(bool)
        dashes = line_style(evidence, rows["cluster"].iloc[0])
        axes.plot(x, y, dashes, marker=mark, color=tint, label=name, markersize=4 if dashes == ":" else 6)
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
    """The main figure of a paper: our network measured and simulated; beside it the paper's, printed and projected.

    ``named_cluster``: the machine simulated beside this host; by default ``NAMED``, else the last by name.
    """
    others = sorted(
        {str(name) for name in speedups.loc[speedups["evidence"] == "simulated", "cluster"].dropna()}
    )
    named = main_cluster(others, named_cluster)
    data = speedup_data(speedups, published, [name for name in (THIS_HOST, named) if name])
    ours = data["evidence"].isin(OWN)
    panels = [(_setting(data[ours]), data[ours])]
    if not ours.all():
        panels.append(("the paper's own set-up", data[~ours]))
    figure, grid = style.new_figure(
        style.WIDE if len(panels) > 1 else 5.2, 5.4, 1, len(panels), sharex=True, sharey=True
    )
    workers = sorted({int(count) for count in data["workers"]} | {1})
    with matplotlib.rc_context(style.RC):
        for axes, (title, rows) in zip(grid[0], panels, strict=True):
            draw_speedups(axes, rows, workers)
            if not len(rows):
                style.say_empty(axes, "no speedups yet")
            axes.set_title(title, fontsize=11)
            style.key_under(axes, _mark_keys(rows))
        grid[0, 0].set_ylabel("speedup over one worker (x)")
    methods = _method_keys(data, paper)
    style.key_above(figure, "Speedup against workers", [*methods, style.ideal_key()])
    kinds = [kind for kind in style.EVIDENCE_MARKERS if kind in set(data["evidence"])]
    return style.Drawn(
        name="speedup",
        title="Speedup against workers",
        caption=(
            f"Evidence: {', '.join(kinds) or 'none yet'}. Base: the same code with one worker; published points as the "
            "paper gives them, on its own machines and data. Measured: median of repeats, bars are quartiles; "
            "simulated: the time model over the trace of a real training, bars are the range over seeds; "
            "projected: the time model alone, from datasheet figures. " + configurations(data)
        ),
        alt=_alt(data),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def main_cluster(clusters: list[str], wanted: str | None = None) -> str | None:
    """The one of some clusters that stands for them: ``wanted``, else ``NAMED``, else the last but this host."""
    others = sorted(name for name in clusters if name != THIS_HOST)
    found = [name for name in (wanted, NAMED, *others[-1:]) if name in others]
    return found[0] if found else None


def _setting(rows: pd.DataFrame) -> str:
    """The data set and network of a plot, where its rows share one."""
    if len(rows) and len(rows[["dataset", "model"]].drop_duplicates()) == 1:
        return f"{rows['dataset'].iloc[0]}, {rows['model'].iloc[0]}"
    return "our runs"


def _method_keys(data: pd.DataFrame, paper: str) -> list[Any]:
    """A key's entries for the methods of ``data``, with the period that all of a method's own rows share."""
    keys = []
    for method in dict.fromkeys(data["method"]):
        rows = data[(data["method"] == method) & (data["evidence"] != "published")]
        periods = list(rows["sync_period"].dropna().unique())
        shared = _period(periods[0], paper_of(paper).period) if len(periods) == 1 else ""
        keys.append(style.colour_key(method, style.label(method, paper) + shared))
    return keys


def _mark_keys(rows: pd.DataFrame) -> list[Any]:
    """A key's entries for the marks of one plot: each kind of evidence, cluster and published period once."""
    keys = {}
    for _, series in rows.groupby("series", sort=False):
        row = series.iloc[0]
        evidence, cluster = row["evidence"], row["cluster"]
        if evidence == "published":
            text = f"published{_period(row['sync_period'])}"
            key = style.mark_key(evidence, text, hollow=any(name.startswith("published") for name in keys))
            key.set(markersize=11, markeredgecolor="black")
        else:
            known = isinstance(cluster, str) and cluster
            where = "this machine" if known and cluster == THIS_HOST else cluster
            text = f"{evidence} on {where}" if known else str(evidence)
            key = style.mark_key(evidence, text, line_style(evidence, cluster))
        keys.setdefault(text, key)
    if _any_hollow(rows):
        hollow = style.mark_key("measured", "measured, workers > cores", "-", hollow=True)
        keys = {"measured": keys.pop("measured"), "hollow": hollow} | keys
    return list(keys.values())


def clusters_figure(speedups: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """The simulated speedup on each of ``CLUSTERS``, a small plot each; None where there are fewer than two clusters.

    Where fewer than two of these were asked for, on every cluster.
    """
    clusters = sorted(
        {str(name) for name in speedups.loc[speedups["evidence"] == "simulated", "cluster"].dropna()}
    )
    known = [name for name in clusters if name in CLUSTERS]
    clusters = known if len(known) > 1 else clusters
    if len(clusters) < 2:
        return None
    data = speedup_data(speedups[speedups["evidence"] == "simulated"], pd.DataFrame(), clusters)
    if not len(data):
        return None
    columns = 2
    rows = -(-len(clusters) // columns)
    figure, grid = style.new_figure(style.WIDE, 1.0 + 2.4 * rows, rows, columns, sharex=True, sharey=True)
    workers = sorted({int(count) for count in data["workers"]} | {1})
    with matplotlib.rc_context(style.RC):
        for axes, cluster in zip(grid.flat, clusters, strict=False):
            here = data[data["cluster"] == cluster].copy()
            here["series"] = [style.label(method, paper) for method in here["method"]]
            draw_speedups(axes, here, workers)
            axes.set_title(cluster, fontsize=11)
            axes.label_outer()
        for axes in list(grid.flat)[len(clusters) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("speedup (x)")
    style.key_above(figure, "Simulated speedup by cluster", [*_method_keys(data, paper), style.ideal_key()])
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
