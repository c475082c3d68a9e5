"""Where the time of a measured step on Spark goes, for each execution."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd

from implementations.reporting.columns import is_true
from implementations.reporting.figures import spark_lines as lines
from implementations.reporting.figures import style
from implementations.reporting.grouping import command_for, most_frequent
from implementations.reporting.spark import BARRIER, JOBS
from implementations.reporting.spark_tables import steps_of

PARTS = list(style.STEP_STYLES)
COLUMNS = ["evidence", "label", "kind", "model", "variant", "execution", "cluster", "workers", "oversubscribed",
           "global_batch", "step_s", *PARTS, "n", "run_id"]  # fmt: skip
BAR = ["kind", "variant", "workers"]


def split_data(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each kind of network, variant, number of workers and execution: the run with the median step.

    Of each kind and variant in the setting that was run most, by both executions where there is one.
    """
    steps = steps_of(runs)
    steps = steps[(steps["workers"] > 1) & (steps["variant"] != "async").fillna(True).astype(bool)]
    setting = ["model", "global_batch", "cluster", "cut", "optimizer", "sync_period"]
    parts: list[int] = []
    for _, rows in steps.groupby(["kind", "variant"], sort=True):
        both = rows.groupby(["model", "global_batch"], dropna=False)["execution"].transform("nunique")
        rows = rows[both == both.max()]
        fits = rows[~rows["oversubscribed"].map(is_true).astype(bool)]
        rows = fits if len(fits) else rows[rows["workers"] == rows["workers"].min()]
        parts += most_frequent(rows, setting, ["execution"]).index.tolist()
    rows = []
    whole = steps.loc[parts]
    for _, group in whole.groupby([*BAR, "execution"], sort=False):
        middle = group.sort_values(["step_s", "run_id"]).iloc[(len(group) - 1) // 2]
        row = {name: middle[name] for name in COLUMNS if name in middle} | {"n": len(group)}
        count = int(row["workers"])
        text = f"{lines.KIND_LABELS.get(row['kind'], row['kind'])}, {style.VARIANT_LABELS[row['variant']]}, {count}"
        text += "*" if is_true(row["oversubscribed"]) else ""
        rows.append(row | {"label": f"{text}, {int(row['global_batch'])}"})
    table = pd.DataFrame(rows, columns=COLUMNS)
    kinds = {kind: place for place, kind in enumerate(lines.kinds_in(table))}
    return table.sort_values(
        BAR, key=lambda column: column.map(kinds) if column.name == "kind" else column, ignore_index=True
    )


def split_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """Stacked bars of the parts of a step, a plot for each execution with an axis of its own; None without runs."""
    data = split_data(runs)
    executions = [name for name in (BARRIER, JOBS) if (data["execution"] == name).any()]
    if not executions:
        return None
    labels = list(dict.fromkeys(data["label"]))
    figure, grid = style.new_figure(
        style.WIDE + 0.6, 1.9 + 0.34 * max(len(labels), 3), 1, len(executions), sharey=True
    )
    places = {label: len(labels) - 1 - place for place, label in enumerate(labels)}
    with matplotlib.rc_context(style.RC):
        for axes, execution in zip(grid[0], executions, strict=True):
            here = data[data["execution"] == execution]
            at = np.array([places[label] for label in here["label"]])
            left = np.zeros(len(here))
            for part, (name, tint, hatch) in style.STEP_STYLES.items():
                width = 1e3 * here[part].astype(float).fillna(0.0).to_numpy()
                axes.barh(
                    at, width, left=left, height=0.66, color=tint, hatch=hatch, edgecolor="#333333", linewidth=0.5,
                    label=name,
                )  # fmt: skip
                left += width
            axes.set_yticks(list(places.values()), list(places))
            axes.grid(axis="y", visible=False)
            axes.set_title(style.EXECUTION_LABELS[execution], fontsize=11)
            axes.set_xlabel("a step (ms), measured")
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
            axes.set_xlim(0, 1.05 * max(left, default=1.0))
            axes.set_ylim(-0.6, len(labels) - 0.4)
        for text, label in zip(grid[0, 0].get_yticklabels(), places, strict=True):
            variant = data.loc[data["label"] == label, "variant"].iloc[0]
            text.set_color(lines.colour(variant))
        figure.suptitle("Where a step's time goes", fontweight="bold")
    style.legend_below(figure, list(grid[0]), 5)
    return style.Drawn(
        name="spark_split",
        title="Where a step's time goes",
        caption=(
            "Evidence: measured. A bar is the run with the median step of its repeats; axes differ. Serialisation and "
            "scheduling are known of runs by jobs; in a barrier stage both are part of the exchange, and its start is "
            "paid once a run. Numbers after the variant: workers (* more than cores), samples of a step. "
            "Other: reading data, checkpoints and what no clock covered."
        ),
        alt="; ".join(
            f"{row['label']} samples, {style.EXECUTION_LABELS[row['execution']]}: {1e3 * row['step_s']:.3g} ms, "
            f"{100 * row['step_compute_s'] / row['step_s']:.0f} % of it compute"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )
