"""Accuracy against workers, against the averaging period with the bytes, and against seconds and bytes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd

from implementations.reporting.figures import style
from implementations.reporting.figures.speedup import configurations, main_configuration
from implementations.reporting.tables import accuracy_table, command_for, volume_table

METRIC_LABELS = {
    "accuracy": "test accuracy",
    "valid_accuracy": "validation accuracy",
    "wer": "word error rate",
    "frame_error": "frame error",
}


def accuracy_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn:
    """Quality against workers, a line per method and kind of evidence, with the spread over seeds."""
    table = accuracy_table(runs)
    parts = [
        main_configuration(rows) for _, rows in table[table["mean"].notna()].groupby("evidence", sort=True)
    ]
    data = pd.concat(parts, ignore_index=True) if parts else table[:0]
    data = data.drop_duplicates(["evidence", "method", "lr_scaling", "sync_period", "workers"])
    data = _with_series(data)
    figure, grid = style.new_figure(5.2, 4.8)
    axes = grid[0, 0]
    with matplotlib.rc_context(style.RC):
        metric = data["metric"].iloc[0] if len(data) else "accuracy"
        for name, rows in data.groupby("series", sort=False):
            rows = rows.sort_values("workers")
            evidence, method = rows["evidence"].iloc[0], rows["method"].iloc[0]
            tint, mark = style.colour(method), style.EVIDENCE_MARKERS[evidence]
            x, y = rows["workers"].astype(float), rows["mean"].astype(float)
            axes.plot(x, y, "-" if evidence == "measured" else "--", marker=mark, color=tint, label=name)
            axes.vlines(x, rows["low"].astype(float), rows["high"].astype(float), color=tint, linewidth=1.2)
        if len(data):
            style.worker_axis(axes, [int(count) for count in data["workers"]])
        else:
            style.say_empty(axes, "no accuracies yet")
        axes.set_ylabel(METRIC_LABELS.get(metric, metric))
        axes.set_title("Quality against workers")
    style.legend_below(figure, axes)
    spreads = sorted(set(data["spread"])) if len(data) else []
    return style.Drawn(
        name="accuracy",
        title="Quality against workers",
        caption=(
            f"Evidence: {', '.join(sorted(set(data['evidence']))) or 'none yet'}. Mean over seeds; bars: "
            f"{', '.join(spreads) or 'none'}. " + configurations(data)
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


def _with_series(data: pd.DataFrame) -> pd.DataFrame:
    """A name for each line: method, evidence and, where they differ, the rate's scaling and the period."""
    several = (
        data.groupby(["method", "evidence"])[["lr_scaling", "sync_period"]].nunique().max()
        if len(data)
        else {}
    )
    names = []
    for row in data.to_dict("records"):
        name = f"{style.label(row['method'])}, {row['evidence']}"
        if several["lr_scaling"] > 1 and pd.notna(row["lr_scaling"]):
            name += f", rate {row['lr_scaling']}"
        if several["sync_period"] > 1 and pd.notna(row["sync_period"]):
            name += f", K={row['sync_period']}"
        names.append(name)
    return data.assign(series=pd.Series(names, index=data.index, dtype="string"))


def period_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn:
    """Bytes per worker against the period K with the closed form's line, and accuracy against K beside it."""
    # gradients are exchanged at every step: the period is one
    every_step = (runs["method"] == "data_parallel").fillna(False).astype(bool)
    runs = runs.assign(sync_period=runs["sync_period"].mask(every_step, 1))
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
    size, unit = style.byte_unit(data["sent_bytes_per_worker"].max())
    figure, grid = style.new_figure(6.4, 3.9, 1, 2)
    left, right = grid[0]
    with matplotlib.rc_context(style.RC):
        for (method, evidence), rows in data.groupby(["method", "evidence"], sort=False):
            tint, mark = style.colour(method), style.EVIDENCE_MARKERS[evidence]
            name = f"{style.label(method)}, {evidence}"
            x = rows["sync_period"].astype(float)
            left.plot(
                x,
                rows["closed_form_bytes_per_worker"] / size,
                "-",
                marker="_",
                markersize=16,
                color="#888888",
                label="closed form, 2(m-1)/m x 4P an average",
            )
            left.plot(x, rows["sent_bytes_per_worker"] / size, mark, color=tint, label=f"{name} (counted)")
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
            axes.set_xlabel("averaging period K (minibatches)")
        if (data["sent_bytes_per_worker"] > 0).any():
            left.set_yscale("log")
            style.plain_log_axis(left.yaxis, (1, 2, 5))
        left.set_ylabel(f"sent per worker ({unit})")
        metric = data["metric"].dropna().iloc[0] if data["metric"].notna().any() else "accuracy"
        right.set_ylabel(METRIC_LABELS.get(metric, metric))
        left.set_title(f"Bytes, {workers} workers" if workers else "Bytes")
        right.set_title("Quality")
    style.legend_below(figure, left)
    return style.Drawn(
        name="period",
        title="Bytes and quality against the averaging period",
        caption=(
            f"Evidence: {', '.join(sorted(set(data['evidence'].dropna()))) or 'none yet'}; {workers} workers. Bytes "
            "are counted by the ledger; the line is the closed form (P parameters, m workers), which was predicted "
            "before the run. Quality: mean over seeds, bars as the table says. " + configurations(data)
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


CURVE_COLUMNS = ["panel", "series", "evidence", "method", "workers", "run_id", "epoch", "x", "valid_accuracy"]


def curves_data(runs: pd.DataFrame, results_dir: Path, most_workers: int = 16) -> pd.DataFrame:
    """Validation accuracy along training of one run a configuration (lowest seed and repeat), from ``curve.parquet``.

    ``x`` is in seconds or bytes. Panels: 'seconds' (measured runs only: a simulated run's seconds say nothing) and
    'bytes' (total sent, of runs that send any). Of each method and evidence: one worker and the most workers, up to
    ``most_workers``.
    """
    parts = []
    ended = runs[
        runs["status"].isin(["ok", "target_missed"]).fillna(False).astype(bool)
        & (runs["workers"] <= most_workers)
    ]
    for (method, evidence), rows in ended.groupby(["method", "evidence"], sort=True):
        rows = main_configuration(rows).sort_values(["seed", "repeat", "run_id"])
        for count in sorted({int(rows["workers"].min()), int(rows["workers"].max())}) if len(rows) else []:
            run = rows[rows["workers"] == count].iloc[0]
            path = results_dir / "runs" / run["run_id"] / "curve.parquet"
            if not path.is_file():
                continue
            curve = pd.read_parquet(path)
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
                            "run_id": run["run_id"],
                            "epoch": curve["epoch"],
                            "x": curve[column].astype(float),
                            "valid_accuracy": curve["valid_accuracy"].astype(float),
                        }
                    )
                )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=CURVE_COLUMNS)


def curves_figure(runs: pd.DataFrame, results_dir: Path, paper: str, tier: str | None = None) -> style.Drawn:
    """Accuracy against training seconds (measured) and against bytes sent."""
    data = curves_data(runs, results_dir)
    size, unit = style.byte_unit(data.loc[data["panel"] == "bytes", "x"].max())
    figure, grid = style.new_figure(6.4, 4.6, 1, 2, sharey=True)
    with matplotlib.rc_context(style.RC):
        for axes, (panel, text) in zip(
            grid[0],
            (("seconds", "training time (s)"), ("bytes", f"sent by all workers ({unit})")),
            strict=True,
        ):
            here = data[data["panel"] == panel]
            for name, rows in here.groupby("series", sort=False):
                one = rows["workers"].iloc[0] == 1
                axes.plot(
                    rows["x"].astype(float) / (1.0 if panel == "seconds" else size),
                    rows["valid_accuracy"],
                    ":" if one else "-",
                    marker=style.EVIDENCE_MARKERS[rows["evidence"].iloc[0]],
                    markersize=4,
                    color=style.colour(rows["method"].iloc[0]),
                    label=name,
                )
            if not len(here):
                style.say_empty(axes, "no curves yet")
            axes.set_xlabel(text)
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
            axes.set_title("Measured" if panel == "seconds" else "Counted")
        grid[0, 0].set_ylabel("validation accuracy")
    style.legend_below(figure, list(grid[0]))
    return style.Drawn(
        name="curves",
        title="Accuracy against seconds and bytes",
        caption=(
            "One run of each configuration (lowest seed), a point per evaluation. Left: measured seconds of training. "
            "Right: bytes that all workers sent; runs that send nothing are left out."
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
