"""How speedup, bytes and quality grow with the data, the network and the workers: small plots of equal axes."""

from __future__ import annotations

from typing import Any

import matplotlib
import pandas as pd

from implementations.reporting.figures import style
from implementations.reporting.figures.quality import METRIC_LABELS, spread_told
from implementations.reporting.figures.speedup import main_cluster
from implementations.reporting.grouping import most_frequent
from implementations.reporting.tables import (
    SAME_CODE,
    accuracy_table,
    command_for,
    speedup_table,
    volume_table,
)
from implementations.reporting.wordtable import corpus_name

KEYS = ["evidence", "method", "dataset", "data_size", "model", "model_params", "workers"]


def sizes_figures(
    runs: pd.DataFrame, timings: pd.DataFrame, paper: str, cluster: str | None = None, tier: str | None = None
) -> list[style.Drawn]:
    """Three figures for each data set: speedup, bytes per worker and quality; none without runs of several sizes.

    ``cluster``: whose simulated speedups are shown; by default as in the figure of speedups.
    """
    drawn = []
    for dataset in sorted(set(runs["dataset"].dropna())):
        here = most_frequent(runs[runs["dataset"] == dataset], ["optimizer", "recipe"])
        kind = here["data_kind"].iloc[0]
        name = dataset if pd.isna(kind) else corpus_name(dataset, kind)
        suffix = "" if runs["dataset"].nunique() == 1 else f"_{dataset}"
        own = timings[timings["run_id"].isin(here["run_id"])] if len(timings) else timings
        drawn += [
            figure
            for figure in (
                _speedups(speedup_table(here, own), name, suffix, paper, cluster, tier),
                _volumes(volume_table(here), name, suffix, paper, tier),
                _quality(accuracy_table(here), name, suffix, paper, tier),
            )
            if figure is not None
        ]
    return drawn


def _speedups(
    table: pd.DataFrame, dataset: str, suffix: str, paper: str, cluster: str | None, tier: str | None
) -> Any:
    rows = table[(table["base"] == SAME_CODE) & table["speedup"].notna() & (table["method"] != "sequential")]
    clusters = sorted(set(rows["cluster"].dropna()))
    chosen = main_cluster(clusters, cluster) or (clusters[-1] if clusters else None)
    rows = rows[rows["cluster"].isna() | (rows["cluster"] == chosen)]
    data = rows.rename(columns={"speedup": "value", "speedup_low": "low", "speedup_high": "high"})
    data = data[[*KEYS, "cluster", "base", "value", "low", "high", "n", "oversubscribed"]]
    title = f"Speedup by size of data and network, {dataset}"
    note = f"Base: same code with one worker. Simulated: time model on {chosen}. " if chosen else ""
    return _grid(data, f"sizes_speedup{suffix}", title, "speedup (x)", note, paper, tier, log=2)


def _volumes(table: pd.DataFrame, dataset: str, suffix: str, paper: str, tier: str | None) -> Any:
    # one worker sends nothing, which a logarithmic axis cannot show
    data = table[(table["method"] != "sequential") & (table["sent_bytes_total"] > 0)]
    # a logarithmic axis: in the unit that suits its small end
    size, unit = style.byte_unit(10 * data["sent_bytes_per_worker"].min())
    scaled = data["sent_bytes_per_worker"] / size
    data = data.assign(value=scaled, low=scaled, high=scaled)
    data = data[[*KEYS, "sent_bytes_per_worker", "value", "low", "high", "n"]]
    title = f"Bytes by size of data and network, {dataset}"
    note = "Counted by the ledger; one worker sends nothing. "
    return _grid(data, f"sizes_bytes{suffix}", title, f"sent per worker ({unit})", note, paper, tier, log=10)


def _quality(table: pd.DataFrame, dataset: str, suffix: str, paper: str, tier: str | None) -> Any:
    data = table[table["mean"].notna()].rename(columns={"mean": "value"})[
        [*KEYS, "metric", "value", "low", "high", "spread", "n"]
    ]
    metric = data["metric"].iloc[0] if len(data) else "accuracy"
    told = spread_told(data)
    if METRIC_LABELS.get(metric, "").endswith("(%)"):
        data[["value", "low", "high"]] = 100 * data[["value", "low", "high"]].astype(float)
    title = f"Quality by size of data and network, {dataset}"
    return _grid(
        data,
        f"sizes_accuracy{suffix}",
        title,
        METRIC_LABELS.get(metric, metric),
        told[:1].upper() + told[1:],
        paper,
        tier,
    )


def _grid(
    data: pd.DataFrame,
    name: str,
    title: str,
    unit: str,
    note: str,
    paper: str,
    tier: str | None,
    log: int | None = None,
) -> style.Drawn | None:
    """A plot for each data size (rows) and network (columns), value against workers; None without several cells."""
    data = data.sort_values([*KEYS]).drop_duplicates(KEYS).reset_index(drop=True)
    sizes = sorted(int(size) for size in set(data["data_size"].dropna()))
    models = list(dict.fromkeys(data.sort_values(["model_params", "model"])["model"].dropna()))
    if len(sizes) * len(models) < 2:
        return None
    figure, grid = style.new_figure(
        max(1.2 + 2.0 * len(models), 5.2),
        1.3 + 1.8 * len(sizes),
        len(sizes),
        len(models),
        sharex=True,
        sharey=True,
    )
    methods, kinds = sorted(set(data["method"])), sorted(set(data["evidence"]))
    workers = sorted({int(count) for count in data["workers"]})
    with matplotlib.rc_context(style.RC):
        for i, size in enumerate(sizes):
            for j, model in enumerate(models):
                axes = grid[i, j]
                cell = data[(data["data_size"] == size) & (data["model"] == model)]
                if log == 2:
                    axes.plot(workers, workers, **style.IDEAL)
                for (method, evidence), rows in cell.groupby(["method", "evidence"], sort=True):
                    tint = style.colour(method)
                    # set apart a little, as the bars of the methods would cover each other
                    x = rows["workers"].astype(float) * style.apart(methods.index(method), len(methods))
                    axes.plot(
                        x,
                        rows["value"].astype(float),
                        "-" if evidence == "measured" else "--",
                        marker=style.EVIDENCE_MARKERS[evidence],
                        markersize=5,
                        color=tint,
                        label=f"{style.label(method, paper)}, {evidence}",
                    )
                    axes.vlines(
                        x, rows["low"].astype(float), rows["high"].astype(float), color=tint, linewidth=1.2
                    )
                style.worker_axis(axes, workers)
                if log is not None:
                    axes.set_yscale("log", base=log)
                    style.plain_log_axis(axes.yaxis)
                if i == 0:
                    axes.set_title(model, fontsize=11)
                axes.set_ylabel(f"{size:,} samples\n{unit}" if j == 0 else "")
                axes.label_outer()
    keys = [style.colour_key(method, paper=paper) for method in methods]
    keys += [style.mark_key(kind, dashes="-" if kind == "measured" else "--") for kind in kinds]
    style.key_above(figure, title.partition(",")[0], keys + ([style.ideal_key()] if log == 2 else []), 3)
    return style.Drawn(
        name=name,
        title=title,
        caption=(
            f"Evidence: {', '.join(kinds)}; {title.partition(', ')[2]}. {note}"
            "Rows: training samples in total; columns: networks."
        ),
        alt=f"{title}: {len(sizes)} x {len(models)} small plots of {unit} against workers.",
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
