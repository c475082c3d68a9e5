"""Real ranks on speech: how much faster they train, and the share of the time that goes into communication."""

from __future__ import annotations

from typing import Any

import matplotlib
import pandas as pd
from matplotlib.lines import Line2D

from implementations.reporting.columns import is_true
from implementations.reporting.figures import style
from implementations.reporting.figures.conditions import corpus
from implementations.reporting.figures.lines import SECTION
from implementations.reporting.grouping import command_for, ended_runs, most_frequent
from implementations.reporting.statistics import median_and_spread
from implementations.reporting.tables import SAME_CODE, speedup_table

DASHES = {"allreduce": "-", "butterfly": "--", "ring": "-.", "hopping_ring": ":"}
LABELS = {"allreduce": "all-reduce", "hopping_ring": "hopping ring"}
COLUMNS = ["source", "method", "mixing", "workers", "speedup", "speedup_low", "speedup_high", "share", "share_low",
           "share_high", "n", "oversubscribed"]  # fmt: skip


def ranks_data(runs: pd.DataFrame, published: pd.DataFrame, paper: str) -> pd.DataFrame:
    """Measured speedup over one rank of the same code and share of communication, and both as the paper printed them.

    Medians of repeats with quartiles. The share is seconds of communication over those of training, means over ranks.
    """
    measured = ended_runs(runs)
    measured = measured[(measured["evidence"] == "measured").fillna(False).astype(bool)]
    measured = most_frequent(measured, ["data_size", "model", "minibatch", "epochs", "optimizer"])
    speedups = speedup_table(measured)
    speedups = speedups[(speedups["base"] == SAME_CODE) & (speedups["method"] != "sequential")]
    keys = ["sync_period", "algorithm", "threads_per_worker"]
    speedups = most_frequent(speedups, keys, ["method"])
    rows = []
    for row in speedups.to_dict("records"):
        own = measured
        for name in ["method", "mixing", *keys, "workers"]:
            same = own[name].isna() if pd.isna(row[name]) else (own[name] == row[name]).fillna(False)
            own = own[same.astype(bool)]
        share = median_and_spread(own["comm_s"].astype(float) / own["train_s"].astype(float))
        rows.append(
            {name: row[name] for name in COLUMNS if name in row}
            | {"source": "measured", "mixing": None if pd.isna(row["mixing"]) else row["mixing"]}
            | {"share": share.centre, "share_low": share.low, "share_high": share.high}
        )
    # one rank mixes with nobody: it is where the lines of all ways to mix begin
    alone = {row["method"]: row for row in rows if row["workers"] == 1}
    begun = {(row["method"], row["mixing"]) for row in alone.values()}
    for method, mixing in dict.fromkeys((row["method"], row["mixing"]) for row in rows):
        if method in alone and (method, mixing) not in begun:
            rows.append(alone[method] | {"mixing": mixing})
    return pd.DataFrame([*rows, *_printed(published, paper)], columns=COLUMNS)


def _printed(published: pd.DataFrame, paper: str) -> list[dict[str, Any]]:
    """Speedups and shares from the paper's minutes of an epoch and minutes in MPI, by how it averaged."""
    if not {"metric", "reduce", "workers", "value"} <= set(published.columns):
        return []
    own = published[published["paper"] == paper]
    epoch, mpi = (
        own[own["metric"] == name].set_index(["reduce", "workers"])["value"].to_dict()
        for name in ("epoch_time", "mpi_time")
    )
    alone = next((value for (_, workers), value in epoch.items() if workers == 1), None)
    if alone is None:
        return []
    return [
        {"source": "published", "method": "averaging", "mixing": mixing, "workers": int(workers)}
        | {"speedup": alone / value, "share": mpi.get((mixing, workers), float("nan")) / value}
        for (mixing, workers), value in epoch.items()
        if workers > 1
    ]


def ranks_figure(
    runs: pd.DataFrame, published: pd.DataFrame, paper: str, tier: str | None = None, suffix: str = ""
) -> style.Drawn | None:
    """Speedup and share of communication on real ranks, the paper's beside; None where none were measured.

    ``runs``: those of one corpus.
    """
    data = ranks_data(runs, published, paper)
    own, printed = data[data["source"] == "measured"], data[data["source"] == "published"]
    if own["workers"].nunique() < 2:
        return None
    figure, grid = style.new_figure(style.WIDE, 4.8, 1, 2)
    left, right = grid[0]
    ticks = sorted({int(count) for count in data["workers"]} | {1})
    with matplotlib.rc_context(style.RC):
        left.plot(ticks, ticks, **style.IDEAL)
        for axes, name, factor in ((left, "speedup", 1), (right, "share", 100)):
            for (source, method, mixing), rows in data.groupby(["source", "method", "mixing"], dropna=False):
                _draw(axes, rows.sort_values("workers"), name, factor, (source, method, mixing))
            style.worker_axis(axes, ticks, "ranks")
        left.set_yscale("log", base=2)
        style.plain_log_axis(left.yaxis)
        left.set_ylabel("speedup over one rank (x)")
        right.set_ylabel("communication (% of training)")
        right.set_ylim(bottom=0)
    title = "Real ranks: speedup and communication"
    style.key_above(figure, title, _keys(data), 3, 2.6)
    crowded = own["oversubscribed"].map(is_true).any()
    return style.Drawn(
        name=f"speech_ranks{suffix}",
        title=f"{title}, {corpus(runs)}",
        caption=(
            f"Evidence: measured on this machine; {corpus(runs)}. Median of {int(own['n'].min())} repeats, bars are "
            "quartiles. Base: the same code on one rank. Communication: seconds in its calls, mean over ranks, waiting "
            "for the slowest included."
            + (" Hollow circles: more ranks than cores." if crowded else "")
            + (
                " Published: the paper's machines, network and corpus, from its minutes of an epoch and in MPI."
                if len(printed)
                else ""
            )
        ),
        alt="; ".join(
            f"{row['source']}, {style.label(row['method'])}{_mixing(row['mixing'])}, {int(row['workers'])} ranks: "
            f"{row['speedup']:.3g} x, {100 * row['share']:.3g} % communication"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
        section=SECTION,
    )  # fmt: skip


def _draw(axes: Any, rows: pd.DataFrame, name: str, factor: float, line: tuple[str, str, Any]) -> None:
    source, method, mixing = line
    tint, x, y = style.colour(method), rows["workers"].astype(float), factor * rows[name].astype(float)
    look = {"color": tint, "linestyle": DASHES.get(mixing, "-"), "marker": style.EVIDENCE_MARKERS[source]}
    if source == "published":
        look |= {"markerfacecolor": "white", "markersize": 11, "linewidth": 0.8}
    axes.plot(x, y, **look, label=f"{source} {method} {mixing}")
    if source == "measured":
        low, high = (factor * rows[f"{name}_{end}"].astype(float) for end in ("low", "high"))
        axes.vlines(x, low, high, color=tint, linewidth=1.2)
        crowded = rows["oversubscribed"].map(is_true).astype(bool)
        axes.plot(x[crowded], y[crowded], "o", color=tint, markerfacecolor="white", label="_hollow")


def _mixing(mixing: Any) -> str:
    return f", {LABELS.get(mixing, mixing)}" if isinstance(mixing, str) else ""


def _keys(data: pd.DataFrame) -> list[Any]:
    own = data[data["source"] == "measured"]
    keys: list[Any] = [style.colour_key(method) for method in dict.fromkeys(data["method"])]
    keys += [
        Line2D([], [], color=style.MARK_TINT, linestyle=dashes, label=LABELS.get(mixing, mixing))
        for mixing, dashes in DASHES.items()
        if (data["mixing"] == mixing).any()
    ]
    keys.append(style.mark_key("measured"))
    if own["oversubscribed"].map(is_true).any():
        keys.append(style.mark_key("measured", "measured, ranks > cores", hollow=True))
    if len(own) < len(data):
        star = style.mark_key("published", hollow=True)
        star.set(markersize=11)
        keys.append(star)
    return [*keys, style.ideal_key()]
