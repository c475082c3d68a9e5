"""Training under every strategy: validation loss epoch by epoch, and by how much it departs from one device's."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd

from implementations.reporting.columns import in_experiment
from implementations.reporting.curves import read_curve
from implementations.reporting.figures import style
from implementations.reporting.figures.layerwise_lines import by_strategy, network_name, strategy_keys
from implementations.reporting.grouping import command_for, ended_runs
from implementations.reporting.layerwise import METHOD

EXPERIMENT = "layerwise_accuracy"
COLUMNS = ["evidence", "dataset", "model", "strategy", "workers", "seed", "epoch", "valid_loss", "valid_accuracy",
           "deviation"]  # fmt: skip


def training_data(runs: pd.DataFrame, results_dir: Path) -> pd.DataFrame:
    """A row for each strategy and epoch of one seed of each network and data set that one device was trained on, too.

    ``deviation``: |validation loss - that of one device| / that of one device.
    """
    own = ended_runs(runs[in_experiment(runs, EXPERIMENT)])
    own = own[(own["method"] == METHOD).fillna(False).astype(bool)].assign(strategy=own["variant"])
    parts = []
    for _, group in own.groupby(["evidence", "dataset", "model"], sort=True):
        alone = group[group["strategy"] == "single"].sort_values(["seed", "repeat"])
        if not len(alone):
            continue
        base = alone.iloc[0]
        curve = read_curve(results_dir, base["run_id"])
        if curve is None:
            continue
        losses = curve.set_index("epoch")["valid_loss"]
        same = group[(group["seed"] == base["seed"]) & (group["global_batch"] == base["global_batch"])]
        for run in same.drop_duplicates("strategy").to_dict("records"):
            found = read_curve(results_dir, run["run_id"])
            if found is None:
                continue
            with_base = found["epoch"].map(losses)
            known = {name: run[name] for name in COLUMNS if name in run}
            parts.append(
                found[["epoch", "valid_loss", "valid_accuracy"]].assign(
                    deviation=(found["valid_loss"] - with_base).abs() / with_base,
                    **{name: value for name, value in known.items() if name not in found},
                )[COLUMNS]
            )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def training_figure(
    runs: pd.DataFrame, results_dir: Path, paper: str, tier: str | None = None
) -> style.Drawn | None:
    """For each network the loss under every strategy, and under it the deviations; None without curves of several."""
    data = training_data(runs, results_dir)
    if data["strategy"].nunique() < 2:
        return None
    nets = list(dict.fromkeys(zip(data["evidence"], data["dataset"], data["model"], strict=True)))
    figure, grid = style.new_figure(
        max(1.0 + 2.3 * len(nets), 4.8), 4.9, 2, len(nets), sharex="col", height_ratios=[3, 2]
    )
    widths = {
        "single": 5.0,
        "data": 3.6,
        "model": 2.6,
        "owt": 1.8,
        "layerwise": 1.2,
    }  # so that equal ones show
    deviations = data.loc[data["deviation"] > 0, "deviation"]
    with matplotlib.rc_context(style.RC):
        for k, net in enumerate(nets):
            upper, lower = grid[:, k]
            evidence, dataset, model = net
            here = data[
                (data["evidence"] == evidence) & (data["dataset"] == dataset) & (data["model"] == model)
            ]
            for name, rows in by_strategy(here):
                rows = rows.sort_values("epoch")
                look = style.strategy_look(name)
                upper.plot(
                    rows["epoch"].astype(float),
                    rows["valid_loss"].astype(float),
                    **look | {"linewidth": widths[name]},
                )
                differs = rows[rows["deviation"] > 0]
                lower.plot(
                    differs["epoch"].astype(float),
                    differs["deviation"].astype(float),
                    **look,
                    marker="o",
                    markersize=3.5,
                )
            lower.set_yscale("log")
            if len(deviations):
                lower.set_ylim(0.3 * deviations.min(), 3 * max(deviations.max(), 10 * deviations.min()))
            if not (here["deviation"] > 0).any():
                style.say_empty(lower, "equal to the bit")
            upper.set_title(f"{network_name(model)}\n{dataset}, {evidence}", fontsize=11)
            lower.set_xlabel("epoch")
            lower.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4, integer=True))
        grid[0, 0].set_ylabel("validation loss")
        grid[1, 0].set_ylabel("deviation from\none device (share)")
    title = "The same training under every strategy"
    style.key_above(figure, title, strategy_keys(data["strategy"]), 5, handle_length=2.4)
    last = data.groupby(["dataset", "model", "strategy"])["deviation"].last()
    devices = sorted({int(count) for count in data.loc[data["strategy"] != "single", "workers"]})
    return style.Drawn(
        name="layerwise_training",
        title=title,
        caption=(
            f"Evidence: {', '.join(sorted(set(data['evidence'])))}; one seed, the same global batch on one device "
            f"and on {' and '.join(map(str, devices))}. Above: validation loss, thinner lines over thicker ones. "
            "Below: how far it is from that of one device, as a share; what rounds in another order drifts apart. "
            "Largest at the end: "
            f"{last.max():.2g}."
        ),
        alt="; ".join(
            f"{model} on {dataset}, {strategy}: {value:.2g} off one device at the end"
            for (dataset, model, strategy), value in last.items()
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
