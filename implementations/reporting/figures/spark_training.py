"""Training on Spark by quality: accuracy against workers, and loss and gradient over the epochs."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd

from implementations.reporting.curves import read_curve
from implementations.reporting.figures import spark_lines as lines
from implementations.reporting.figures import style
from implementations.reporting.grouping import command_for, ended_runs, groups_of, most_frequent
from implementations.reporting.spark import METHOD, of_paper
from implementations.reporting.statistics import range_or_interval

ACCURACY_COLUMNS = ["evidence", "kind", "variant", "execution", "dataset", "data_size", "model", "optimizer", "epochs",
                    "global_batch", "workers", "accuracy", "low", "high", "spread", "n"]  # fmt: skip
CURVE_COLUMNS = ["evidence", "kind", "variant", "dataset", "model", "workers", "optimizer", "epoch", "train_loss",
                 "train_loss_low", "train_loss_high", "gradient_norm", "gradient_norm_low", "gradient_norm_high",
                 "n"]  # fmt: skip
QUANTITIES = {"train_loss": "training loss", "gradient_norm": "gradient norm"}


def accuracy_data(runs: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy over seeds for each kind, evidence, variant and number of workers, in one setting each.

    Runs of one worker stand on every variant's line.
    """
    own = ended_runs(of_paper(runs))
    own = own[(own["method"] == METHOD).fillna(False).astype(bool) & own["accuracy"].notna()]
    own = own[(own["variant"] != "async").fillna(True).astype(bool)]
    setting = ["dataset", "data_size", "model", "optimizer", "epochs", "lr", "scaling", "sync_period"]
    rows = []
    for (kind, evidence, variant), line in own.groupby(["kind", "evidence", "variant"], sort=True):
        alone = own[(own["kind"] == kind) & (own["evidence"] == evidence) & (own["workers"] == 1)]
        if not (line["workers"] == 1).any():
            line = own.loc[[*line.index, *alone.index]].assign(variant=variant)
        # the same global batch where it stays the same, else the same minibatch
        fixed = "global_batch" if line.groupby("global_batch")["workers"].nunique().max() > 1 else "minibatch"
        line = lines.longest(line, [*setting, fixed], "workers")
        line = most_frequent(line, ["execution"], ["workers"])
        if line["workers"].nunique() < 2:
            continue
        for _, group in groups_of(line, ["workers"]):
            value = range_or_interval(group.groupby("seed")["accuracy"].mean().astype(float))
            first = group.iloc[0].to_dict()
            rows.append(
                {name: first[name] for name in ACCURACY_COLUMNS if name in first}
                | {"accuracy": value.centre, "low": value.low, "high": value.high}
                | {"spread": value.kind, "n": value.n}
            )
    return pd.DataFrame(rows, columns=ACCURACY_COLUMNS)


def accuracy_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """A plot for each kind of network, a line for each variant; None where no line has two numbers of workers."""
    data = accuracy_data(runs)
    if not len(data):
        return None
    kinds = lines.kinds_in(data)
    variants = sorted(set(data["variant"]))
    figure, grid = lines.panels(kinds)
    with matplotlib.rc_context(style.RC):
        for kind, axes in grid.items():
            here = data[data["kind"] == kind]
            for (evidence, variant), rows in here.groupby(["evidence", "variant"], sort=True):
                tint = lines.colour(variant)
                x = rows["workers"].astype(float) * style.apart(variants.index(variant), len(variants))
                axes.plot(
                    x, 100 * rows["accuracy"].astype(float), linestyle=lines.dashes(evidence, None, ()),
                    marker=style.EVIDENCE_MARKERS[evidence], markersize=5, color=tint,
                )  # fmt: skip
                low, high = 100 * rows["low"].astype(float), 100 * rows["high"].astype(float)
                axes.vlines(x, low, high, color=tint, linewidth=1.2)
            style.worker_axis(axes, sorted({int(count) for count in here["workers"]}))
            low, high = 100 * here["low"].astype(float).min(), 100 * here["high"].astype(float).max()
            room = max(0.25 * (high - low), 1.0)
            axes.set_ylim(low - room, high + room)
        for axes in list(grid.values())[::2]:
            axes.set_ylabel("test accuracy (%)")
    title = "Accuracy against workers"
    keys = lines.variant_keys(data.assign(execution="barrier"))
    keys += [
        style.mark_key(kind, dashes=lines.dashes(kind, None, ()))
        for kind in style.EVIDENCE_MARKERS
        if kind in set(data["evidence"])
    ]
    style.key_above(figure, title, keys, 3, handle_length=3.0)
    spreads = " and ".join(sorted(set(data["spread"])))
    return style.Drawn(
        name="spark_accuracy",
        title=title,
        caption=(
            f"Evidence: {', '.join(sorted(set(data['evidence'])))}. Means over seeds; bars: {spreads}. "
            + "; ".join(
                f"{lines.KIND_TITLES.get(kind, kind)}: {rows['model'].iloc[0]} on {rows['dataset'].iloc[0]}, "
                f"{rows['optimizer'].iloc[0]}"
                for kind, rows in data.groupby("kind", sort=False)
            )
            + ". The paper's accuracies are in no text that could be read."
        ),
        alt="; ".join(
            f"{row['kind']}, {row['variant']}, {row['workers']} workers: {100 * row['accuracy']:.1f} % "
            f"({row['evidence']})"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def training_data(runs: pd.DataFrame, results_dir: Path) -> pd.DataFrame:
    """Loss and gradient norm at each epoch for each kind of network and optimiser: mean and range over seeds.

    Of runs whose gradients were taken those of the most frequent setting of each kind, several workers first.
    """
    own = ended_runs(of_paper(runs))
    own = own[(own["method"] == METHOD).fillna(False).astype(bool) & own["gradient_norm"].notna()]
    several = own[own["workers"] > 1]
    own = several if len(several) else own
    own = most_frequent(own, ["evidence", "variant", "dataset", "model", "data_size", "workers"], ["kind"])
    own = own[own["epochs"] == own.groupby(["kind", "optimizer"])["epochs"].transform("max")]
    own = most_frequent(own, ["lr", "minibatch"], ["kind", "optimizer"])
    rows = []
    for (kind, optimizer), group in own.groupby(["kind", "optimizer"], sort=True):
        curves = [read_curve(results_dir, run_id) for run_id in group.drop_duplicates("seed")["run_id"]]
        curves = [curve for curve in curves if curve is not None and "gradient_norm" in curve]
        if not curves:
            continue
        first = group.iloc[0]
        whole = pd.concat(curves)
        for epoch, at in whole.groupby("epoch", sort=True):
            row = {name: first[name] for name in ("evidence", "variant", "dataset", "model", "workers")}
            row |= {"kind": kind, "optimizer": optimizer, "epoch": epoch, "n": len(at)}
            for name in QUANTITIES:
                values = at[name].astype(float)
                row |= {name: values.mean(), f"{name}_low": values.min(), f"{name}_high": values.max()}
            rows.append(row)
    return pd.DataFrame(rows, columns=CURVE_COLUMNS)


def training_figure(
    runs: pd.DataFrame, results_dir: Path, paper: str, tier: str | None = None
) -> style.Drawn | None:
    """For each kind of network the loss and under it the gradient's norm, a line an optimiser; None without curves."""
    data = training_data(runs, results_dir)
    if data["epoch"].nunique() < 2:
        return None
    kinds = lines.kinds_in(data)
    figure, grid = style.new_figure(max(1.0 + 1.9 * len(kinds), 4.8), 4.9, 2, len(kinds), sharex="col")
    with matplotlib.rc_context(style.RC):
        for place, (kind, column) in enumerate(zip(kinds, grid.T, strict=True)):
            for (name, text), axes in zip(QUANTITIES.items(), column, strict=True):
                for optimizer, rows in data[data["kind"] == kind].groupby("optimizer", sort=True):
                    tint = style.optimizer_colour(optimizer)
                    x = rows["epoch"].astype(float)
                    mark = style.EVIDENCE_MARKERS[rows["evidence"].iloc[0]]
                    axes.plot(x, rows[name], marker=mark, markersize=4, color=tint)
                    axes.fill_between(
                        x, rows[f"{name}_low"], rows[f"{name}_high"], color=tint, alpha=0.2, linewidth=0
                    )
                axes.set_yscale("log")
                style.plain_log_axis(axes.yaxis, (1, 2, 5))
                if place == 0:
                    axes.set_ylabel(text)
            column[0].set_title(lines.KIND_TITLES.get(kind, kind), fontsize=11)
            column[1].set_xlabel("epoch")
            column[1].xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4, integer=True))
    title = "Loss and gradient over the epochs"
    keys = [
        matplotlib.lines.Line2D(
            [], [], color=style.optimizer_colour(name), linewidth=4, label=style.optimizer_label(name)
        )
        for name in sorted(set(data["optimizer"]))
    ]
    keys += [
        style.mark_key(kind, dashes="-") for kind in style.EVIDENCE_MARKERS if kind in set(data["evidence"])
    ]
    style.key_above(figure, title, keys, 4, handle_length=2.4)
    ends = (
        data.sort_values("epoch")
        .groupby(["kind", "optimizer"], sort=False)["gradient_norm"]
        .agg(["first", "last"])
    )
    return style.Drawn(
        name="spark_training",
        title=title,
        caption=(
            f"Evidence: {', '.join(sorted(set(data['evidence'])))}; mean and range over seeds. Gradient: of the mean "
            "loss over the first 2,000 training samples, at the end of each epoch. A review says that errors fall and "
            "gradients tend to 0 (unverified). "
            + "; ".join(
                f"{lines.KIND_TITLES.get(kind, kind)}: {rows['model'].iloc[0]} on {rows['dataset'].iloc[0]}, "
                f"{style.VARIANT_LABELS.get(rows['variant'].iloc[0], rows['variant'].iloc[0])}, "
                f"{int(rows['workers'].iloc[0])} workers"
                for kind, rows in data.groupby("kind", sort=False)
            )
            + "."
        ),
        alt="; ".join(
            f"{kind}, {optimizer}: gradient norm from {row['first']:.3g} to {row['last']:.3g}"
            for (kind, optimizer), row in ends.iterrows()
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
