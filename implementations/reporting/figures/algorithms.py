"""What each all-reduce algorithm costs on this machine: seconds of communication and bytes of one step."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from implementations.reporting.columns import is_true
from implementations.reporting.figures import style
from implementations.reporting.rows import ENDED
from implementations.reporting.statistics import median_and_spread
from implementations.reporting.tables import command_for

ORDER = ("library", "ring", "butterfly", "tree", "star")
KEYS = ["evidence", "method", "dataset", "data_size", "model", "model_params", "workers", "algorithm"]
COLUMNS = [*KEYS, "oversubscribed", "n", "comm_step_s", "low_s", "high_s", "spread", "comm_share",
           "sent_bytes_step", "label"]  # fmt: skip


def algorithms_data(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each measured method, number of workers and algorithm; seconds and bytes are those of one step.

    ``comm_step_s``: median over repeats of the seconds in communication calls, mean over ranks, waiting included.
    ``sent_bytes_step``: bytes that a worker puts on the wire, mean over workers.
    """
    kept = (
        (runs["evidence"] == "measured").fillna(False)
        & runs["status"].isin(ENDED).fillna(False)
        & (runs["workers"] > 1).fillna(False)
        & runs[["algorithm", "comm_s", "steps"]].notna().all(axis=1)
    )
    rows = []
    for _, group in runs[kept.astype(bool)].groupby(KEYS, dropna=False, sort=True):
        first, steps = group.iloc[0], group["steps"].astype(float)
        seconds = median_and_spread(group["comm_s"].astype(float) / steps)
        share = median_and_spread(group["comm_s"].astype(float) / group["train_s"].astype(float))
        sent = group["sent_bytes_total"].astype(float) / group["workers"].astype(float) / steps
        rows.append(
            {name: first[name] for name in KEYS}
            | {
                "oversubscribed": is_true(first["oversubscribed"]),
                "n": seconds.n,
                "comm_step_s": seconds.centre,
                "low_s": seconds.low,
                "high_s": seconds.high,
                "spread": seconds.kind,
                "comm_share": share.centre,
                "sent_bytes_step": median_and_spread(sent).centre,
            }
        )
    data = pd.DataFrame(rows, columns=COLUMNS)
    places = {name: place for place, name in enumerate(ORDER)}
    data = data.sort_values(
        ["method", "workers", "algorithm"],
        key=lambda column: column.map(places).fillna(len(ORDER)) if column.name == "algorithm" else column,
        kind="stable",
        ignore_index=True,
    )
    several = data["method"].nunique() > 1
    data["label"] = [_label(row, several) for row in data.to_dict("records")]
    return data


def _label(row: dict[str, Any], with_method: bool) -> str:
    method = f"{style.label(row['method'])}, " if with_method else ""
    return f"{method}{int(row['workers'])} ranks{'*' if row['oversubscribed'] else ''}, {row['algorithm']}"


def algorithms_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """Bars of the measured seconds and the counted bytes of a step; None where fewer than two algorithms ran."""
    data = algorithms_data(runs)
    if data["algorithm"].nunique() < 2:
        return None
    size, unit = style.byte_unit(data["sent_bytes_step"].max())
    figure, grid = style.new_figure(style.WIDE, 1.7 + 0.36 * len(data), 1, 2, sharey=True)
    left, right = grid[0]
    # a gap between numbers of workers
    group = data.groupby(["method", "workers"], sort=False).ngroup().to_numpy()
    places = -(np.arange(len(data)) + 0.6 * group)
    tints = [style.colour(method) for method in data["method"]]
    faces = ["white" if hollow else tint for tint, hollow in zip(tints, data["oversubscribed"], strict=True)]
    milliseconds = data["comm_step_s"].to_numpy(dtype=float) * 1e3
    spread = np.abs(data[["low_s", "high_s"]].to_numpy(dtype=float).T * 1e3 - milliseconds)
    sent = data["sent_bytes_step"].to_numpy(dtype=float) / size
    look = {"height": 0.66, "color": faces, "edgecolor": tints, "linewidth": 1.4}
    with matplotlib.rc_context(style.RC):
        left.barh(places, milliseconds, xerr=spread, ecolor="#222222", **look)
        right.barh(places, sent, **look)
        ends = milliseconds + spread[1]
        for axes, values, tips in ((left, milliseconds, ends), (right, sent, sent)):
            for place, value, tip in zip(places, values, tips, strict=True):
                axes.annotate(
                    f"{value:.3g}", (tip, place), (4, 0), textcoords="offset points", va="center",
                    fontsize=style.SMALLEST_FONT,
                )  # fmt: skip
            axes.set_xlim(0, 1.22 * max(tips))
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
            axes.grid(axis="y", visible=False)
        left.set_yticks(places, data["label"])
        left.set_xlabel("communication (ms/step)")
        right.set_xlabel(f"sent per worker ({unit}/step)")
        left.set_title("measured", fontsize=11)
        right.set_title("bytes counted", fontsize=11)
    keys: list[Any] = [style.colour_key(method) for method in dict.fromkeys(data["method"])]
    if data["oversubscribed"].any():
        keys.append(Patch(facecolor="white", edgecolor=style.MARK_TINT, label="* workers > cores"))
    style.key_above(figure, "All-reduce by algorithm", keys)
    stars = " * and hollow: more workers than cores." if data["oversubscribed"].any() else ""
    known = data.iloc[0]
    return style.Drawn(
        name="algorithms",
        title="All-reduce by algorithm",
        caption=(
            f"Evidence: measured. Median of {int(data['n'].min())} repeats, bars are quartiles; seconds in "
            "communication calls, mean over ranks, waiting for the slowest included. Bytes as the ledger counts them; "
            f"those of the library by its closed form, as it does not tell how it sends.{stars} "
            f"{known['dataset']}, {known['model']}, {int(known['data_size']):,} samples."
        ),
        alt="; ".join(
            f"{row['label']}: {1e3 * row['comm_step_s']:.3g} ms of communication a step "
            f"({100 * row['comm_share']:.0f} % of training), {row['sent_bytes_step'] / size:.3g} {unit} a worker"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )  # fmt: skip
