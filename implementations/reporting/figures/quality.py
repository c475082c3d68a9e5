"""Accuracy against workers, against the averaging period with the bytes, and against seconds and bytes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from implementations.reporting.columns import is_true
from implementations.reporting.curves import read_curve
from implementations.reporting.figures import style
from implementations.reporting.figures.speedup import configurations, main_configuration, main_period
from implementations.reporting.rows import ENDED
from implementations.reporting.tables import accuracy_table, command_for, volume_table

OVERSUBSCRIBED = "*"  # more workers than cores
METRIC_LABELS = {
    "accuracy": "test accuracy",
    "valid_accuracy": "validation accuracy",
    "p_at_1": "precision at 1",
    "wer": "word error (%)",
    "frame_error": "frame error (%)",
}


def label_quality(axes: Axes, metric: str) -> None:
    """Name the upright axis after a metric; errors are shares in the data and told in % here, as elsewhere."""
    axes.set_ylabel(METRIC_LABELS.get(metric, metric))
    if METRIC_LABELS.get(metric, "").endswith("(%)"):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))


def accuracy_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn:
    """Quality against workers, a line per method and kind of evidence, with the spread over seeds."""
    table = accuracy_table(runs)
    parts = [
        _main_line(rows)
        for _, each in table[table["mean"].notna()].groupby("evidence", sort=True)
        for _, rows in main_configuration(each).groupby("method", sort=True)
    ]
    data = pd.concat(parts, ignore_index=True) if parts else table[:0]
    data = data.drop_duplicates(["evidence", "method", "workers"])
    names = [f"{style.label(row['method'])}, {row['evidence']}" for row in data.to_dict("records")]
    data = data.assign(series=pd.Series(names, index=data.index, dtype="string"))
    kinds = [kind for kind in style.EVIDENCE_MARKERS if kind in set(data["evidence"])]
    columns = max(1, len(kinds))
    figure, grid = style.new_figure(5.2 if columns == 1 else style.WIDE, 4.4, 1, columns, sharey=True)
    methods = list(dict.fromkeys(data["method"]))
    metric = data["metric"].iloc[0] if len(data) else "accuracy"
    with matplotlib.rc_context(style.RC):
        for axes, kind in zip(grid[0], kinds, strict=False):
            here = data[data["evidence"] == kind]
            for place, (name, rows) in enumerate(here.groupby("series", sort=False)):
                rows = rows.sort_values("workers")
                # set apart a little, as the bars of different lines would cover each other
                x = rows["workers"].astype(float) * style.apart(place, here["series"].nunique())
                tint = style.colour(rows["method"].iloc[0])
                mark, dashes = style.EVIDENCE_MARKERS[kind], "-" if kind == "measured" else "--"
                axes.plot(x, rows["mean"].astype(float), dashes, marker=mark, color=tint, label=name)
                axes.vlines(
                    x, rows["low"].astype(float), rows["high"].astype(float), color=tint, linewidth=1.2
                )
            style.worker_axis(axes, [int(count) for count in here["workers"]])
            axes.set_title(_title(kind, here), fontsize=11)
        if not len(data):
            style.say_empty(grid[0, 0], "no accuracies yet")
        label_quality(grid[0, 0], metric)
    style.key_above(figure, "Quality against workers", [style.colour_key(method) for method in methods])
    return style.Drawn(
        name="accuracy",
        title="Quality against workers",
        caption=(
            f"Evidence: {', '.join(kinds) or 'none yet'}; the plots differ in data and epochs, so compare within one; "
            "methods are set apart a little. "
            + "".join(_seeds_told(kind, data[data["evidence"] == kind]) for kind in kinds)
            + configurations(data)
        ),
        alt="; ".join(
            f"{name}: {rows['mean'].iloc[-1]:.4g} at {int(rows['workers'].iloc[-1])} workers"
            for name, rows in data.sort_values("workers").groupby("series", sort=False)
        )
        or "Empty plot: there are no accuracies yet.",
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _title(kind: str, rows: pd.DataFrame) -> str:
    """A plot's kind of evidence, and how much was trained where its rows agree."""
    sizes = rows[["data_size", "epochs"]].drop_duplicates()
    if len(sizes) != 1 or sizes.isna().any(axis=None):
        return kind
    samples, epochs = (int(value) for value in sizes.iloc[0])
    return f"{kind}\n{samples:,} samples, {epochs} epoch{'s' if epochs > 1 else ''}"


def _seeds_told(kind: str, rows: pd.DataFrame) -> str:
    """How many seeds a point of this kind stands for, and what its bar is."""
    return f"{kind.capitalize()}: {spread_told(rows)}"


def spread_told(rows: pd.DataFrame) -> str:
    """How many seeds a point stands for, and what its bar is."""
    most = rows["n"].max() if len(rows) else 0
    if pd.isna(most) or most < 1:
        return "none yet. "
    if most < 2:
        return "one seed. "
    spreads = sorted(set(rows["spread"].dropna()) - {"single value", "no value"})
    return f"mean of {int(most)} seeds, bars are their {' or '.join(spreads)}. "


def _main_line(rows: pd.DataFrame) -> pd.DataFrame:
    """One method's rows of its main period, and of the most frequent scaling of the rate."""
    rows = main_period(rows)
    if not rows["lr_scaling"].notna().any():
        return rows
    most = rows["lr_scaling"].mode().iloc[0]
    return rows[(rows["lr_scaling"] == most).fillna(True)]


def period_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn:
    """Bytes per worker against the period K with the closed form's line, and accuracy against K beside it."""
    # gradients are exchanged at every step: the period is one
    every_step = (runs["method"] == "data_parallel").fillna(False).astype(bool)
    runs = runs.assign(sync_period=runs["sync_period"].mask(every_step, 1))
    # the end of an epoch is an average too: no period is longer
    epoch = (runs["steps"] // runs["epochs_done"].fillna(runs["epochs"])).astype("Int64")
    too_long = (runs["sync_period"] > epoch).fillna(False).astype(bool)
    runs["sync_period"] = runs["sync_period"].mask(too_long, epoch)
    averaging = runs[runs["sync_period"].notna()]
    # the number of workers that was run with the most periods; one worker sends nothing
    several = averaging[averaging["workers"] > 1]
    periods = several.groupby("workers")["sync_period"].nunique()
    workers = int(periods[periods == periods.max()].index.max()) if len(periods) else 0
    averaging = averaging[
        (averaging["workers"] == workers) & (averaging["lr_scaling"] != "none").fillna(True)
    ]
    averaging = main_configuration(averaging)
    keys = ["method", "evidence", "sync_period", "workers", "dataset", "data_size", "model"]
    volumes, quality = volume_table(averaging), accuracy_table(averaging)
    data = volumes.merge(
        quality[[*keys, "metric", "mean", "low", "high", "spread", "n"]],
        on=keys,
        how="outer",
        suffixes=("_bytes", ""),
    )
    data = data.drop_duplicates(["method", "evidence", "sync_period"]).sort_values(
        ["method", "evidence", "sync_period"]
    )
    data["closed_form_bytes_per_worker"] = data["sent_bytes_predicted"] / data["workers"].astype(float)
    data = data[
        [
            *keys,
            "algorithm",
            "steps",
            "sent_bytes_per_worker",
            "closed_form_bytes_per_worker",
            "sent_bytes_predicted",
            "metric",
            "mean",
            "low",
            "high",
            "spread",
            "n",
        ]
    ].reset_index(drop=True)
    # a logarithmic axis: in the unit that suits its small end
    size, unit = style.byte_unit(10 * data["sent_bytes_per_worker"].min())
    figure, grid = style.new_figure(style.WIDE, 4.4, 1, 2)
    groups = sorted(data.groupby(["method", "evidence"], sort=False), key=lambda group: -len(group[1]))
    left, right = grid[0]
    with matplotlib.rc_context(style.RC):
        for place, ((method, evidence), rows) in enumerate(groups):
            tint, mark = style.colour(method), style.EVIDENCE_MARKERS[evidence]
            periods = rows["sync_period"].astype(float)
            left.plot(periods, rows["closed_form_bytes_per_worker"] / size, **CLOSED_FORM)
            # at K=1 the methods' points would cover each other
            x = periods * style.apart(place, 1) ** 2
            left.plot(x, rows["sent_bytes_per_worker"] / size, mark, color=tint)
            right.plot(x, rows["mean"], "--", marker=mark, color=tint, label="_quality")
            right.vlines(x, rows["low"], rows["high"], color=tint, linewidth=1.2)
        for axes in (left, right):
            if len(data):
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(
                    matplotlib.ticker.FixedLocator(sorted({int(k) for k in data["sync_period"]}))
                )
                style.plain_log_axis(axes.xaxis)
            else:
                style.say_empty(axes, "no periods yet")
            axes.set_xlabel("period K (minibatches)")
        if (data["sent_bytes_per_worker"] > 0).any():
            left.set_yscale("log")
            style.plain_log_axis(left.yaxis, (1, 2, 5))
        left.set_ylabel(f"sent per worker ({unit})")
        metric = data["metric"].dropna().iloc[0] if data["metric"].notna().any() else "accuracy"
        label_quality(right, metric)
        left.set_title(f"bytes, {workers} workers" if workers else "bytes", fontsize=11)
        right.set_title("quality", fontsize=11)
    keys = [style.colour_key(method) for method in dict.fromkeys(data["method"])]
    style.key_above(figure, "Bytes and quality against the period", keys)
    kinds = [kind for kind in style.EVIDENCE_MARKERS if kind in set(data["evidence"].dropna())]
    style.key_under(left, [matplotlib.lines.Line2D([], [], **CLOSED_FORM)])
    style.key_under(right, [style.mark_key(kind) for kind in kinds])
    return style.Drawn(
        name="period",
        title="Bytes and quality against the averaging period",
        caption=(
            f"Evidence: {', '.join(kinds) or 'none yet'}; {workers} workers. Bytes of the whole training are counted "
            "by the ledger; the line is the closed form, which was predicted before the run: 2 (m - 1) / m times the "
            "parameters' bytes for each average of m workers, one at the end of each epoch included. Quality: "
            f"{spread_told(data)}Gradients are exchanged at every step: K=1 (drawn a little apart). "
            + (f"K={int(data['sync_period'].max())} is once an epoch. " if too_long.any() else "")
            + configurations(data)
        ),
        alt="; ".join(
            f"K={int(row['sync_period'])}: {row['sent_bytes_per_worker'] / size:.3g} {unit} per worker, "
            f"quality {row['mean']:.4g}"
            for row in data.to_dict("records")
        )
        or "Empty plot: there are no periods yet.",
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


CLOSED_FORM = {"color": "#888888", "marker": "_", "markersize": 16, "label": "closed form"}
CURVE_COLUMNS = ["panel", "series", "evidence", "method", "workers", "oversubscribed", "run_id",
                 "epoch", "x", "valid_accuracy"]  # fmt: skip


def curves_data(runs: pd.DataFrame, results_dir: Path, most_workers: int = 16) -> pd.DataFrame:
    """Validation accuracy along training of one run a configuration, from ``curve.parquet``.

    It is a run of the lowest seed: the repeat of (lower) median training time where it was measured.

    ``x`` is in seconds or bytes. Panels: 'seconds' (measured runs only: a simulated run's seconds say nothing) and
    'bytes' (total sent, of runs that send any). Of each method and evidence: one worker and the most workers, up to
    ``most_workers``.
    """
    parts = []
    ended = runs[runs["status"].isin(ENDED).fillna(False).astype(bool) & (runs["workers"] <= most_workers)]
    for (method, evidence), rows in ended.groupby(["method", "evidence"], sort=True):
        rows = main_period(main_configuration(rows))
        for count in sorted({int(rows["workers"].min()), int(rows["workers"].max())}) if len(rows) else []:
            run = _typical(rows[rows["workers"] == count])
            curve = read_curve(results_dir, run["run_id"])
            if curve is None:
                continue
            for panel, column in (("seconds", "train_s"), ("bytes", "sent_bytes_total")):
                if (panel == "seconds" and evidence != "measured") or not (curve[column] > 0).any():
                    continue
                name = f"{style.label(method)}, {count} worker{'s' if count > 1 else ''}, {evidence}"
                parts.append(
                    pd.DataFrame(
                        {
                            "panel": panel,
                            "series": name,
                            "evidence": evidence,
                            "method": method,
                            "workers": count,
                            "oversubscribed": is_true(run["oversubscribed"]),
                            "run_id": run["run_id"],
                            "epoch": curve["epoch"],
                            "x": curve[column].astype(float),
                            "valid_accuracy": curve["valid_accuracy"].astype(float),
                        }
                    )
                )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=CURVE_COLUMNS)


def _typical(rows: pd.DataFrame) -> pd.Series:
    """Of the runs of the lowest seed, the one of lower median training time; the first where there is no time."""
    rows = rows[rows["seed"] == rows["seed"].min()].sort_values(["train_s", "repeat", "run_id"])
    return rows.iloc[(int(rows["train_s"].notna().sum()) - 1) // 2 if rows["train_s"].notna().any() else 0]


def curves_figure(runs: pd.DataFrame, results_dir: Path, paper: str, tier: str | None = None) -> style.Drawn:
    """Accuracy against training seconds (measured) and against bytes sent."""
    data = curves_data(runs, results_dir)
    # nothing is sent before the first step, which a logarithmic axis cannot show
    data = data[(data["panel"] == "seconds") | (data["x"] > 0)].reset_index(drop=True)
    size, unit = style.byte_unit(10 * data.loc[data["panel"] == "bytes", "x"].min())
    figure, grid = style.new_figure(style.WIDE, 5.0, 1, 2, sharey=True)
    with matplotlib.rc_context(style.RC):
        for axes, (panel, text) in zip(
            grid[0],
            (("seconds", "training time (s)"), ("bytes", f"sent by all workers ({unit})")),
            strict=True,
        ):
            here = data[data["panel"] == panel]
            keys = {}
            for name, rows in here.groupby("series", sort=False):
                first = rows.iloc[0]
                count, dashes = int(first["workers"]), ":" if first["workers"] == 1 else "-"
                key = style.mark_key(
                    first["evidence"],
                    f"{count} worker{'s' if count > 1 else ''}, {first['evidence']}"
                    + (OVERSUBSCRIBED if first["oversubscribed"] else ""),
                    dashes,
                    hollow=first["oversubscribed"],
                )
                keys.setdefault(key.get_label(), key)
                axes.plot(
                    rows["x"].astype(float) / (1.0 if panel == "seconds" else size),
                    rows["valid_accuracy"],
                    dashes,
                    marker=style.EVIDENCE_MARKERS[first["evidence"]],
                    markersize=5,
                    markerfacecolor="white" if first["oversubscribed"] else None,
                    color=style.colour(first["method"]),
                    label=name,
                )
            if not len(here):
                style.say_empty(axes, "no curves yet")
            elif panel == "seconds":
                axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
            else:
                axes.set_xscale("log")
                style.plain_log_axis(axes.xaxis)
            axes.set_xlabel(text)
            axes.set_title("measured" if panel == "seconds" else "bytes counted", fontsize=11)
            style.key_under(axes, list(keys.values()))
        grid[0, 0].set_ylabel("validation accuracy")
    methods = list(dict.fromkeys(data["method"]))
    style.key_above(
        figure, "Accuracy against seconds and bytes", [style.colour_key(name) for name in methods]
    )
    return style.Drawn(
        name="curves",
        title="Accuracy against seconds and bytes",
        caption=(
            "Evidence: measured, simulated. One run of each configuration (lowest seed; of repeats the one of median "
            "time), a point per evaluation. Left: measured seconds of training, evaluation aside. Right: bytes that "
            "all workers sent, from the first evaluation after the start; runs that send nothing are left out. "
            "* more workers than cores."
        ),
        alt="; ".join(
            f"{name}: {rows['valid_accuracy'].iloc[-1]:.4g} after {rows['x'].iloc[-1]:.3g} "
            f"{'s' if panel == 'seconds' else 'bytes'}"
            for (panel, name), rows in data.groupby(["panel", "series"], sort=False)
        )
        or "Empty plot: there are no curves yet.",
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
