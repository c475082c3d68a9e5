"""Where the efficiency was lost: the paper's own timing table as five constants read it, and the time model's split.

The first is ``fitted`` (constants fitted to the numbers beside them, never judged), the second ``projected``; they
have a table each.
"""

from __future__ import annotations

import pandas as pd

from implementations import fitted
from implementations.fitted import COMMUNICATION, READING_COLUMNS
from implementations.reporting.grouping import groups_of, typed

PAPER = "averaging"  # whose timing table is read
FITTED_COLUMNS = ["paper", *READING_COLUMNS, "formula"]
# Of the time model's split, in the order of ``timings.loss_split``.
MODEL_PARTS = (COMMUNICATION, "waiting for the slowest", "slower steps", "whole steps")
LOSS_TABLE_COLUMNS = [
    "paper", "evidence", "cluster", "method", "workers", "sync_period", "epoch_min", "lost_min",
    *(f"{part.replace(' ', '_')}_min" for part in MODEL_PARTS), "communication_pct",
]  # fmt: skip
_NEEDED = ("paper", "version", "metric", "workers", "sync_period", "method", "reduce", "value")
_MAIN_WORKERS = (
    16  # which the sentence speaks of: the paper's tables on the period and the minibatch are of 16 GPUs
)


def fitted_table(published: pd.DataFrame | None) -> pd.DataFrame:
    """``fitted.reading`` with the paper and the constants' formula; no rows where the paper's table is not there.

    ``published``: rows of ``config/published``.
    """
    numbers = _whole(published)
    constants = fitted.fit(fitted.scaling_table(numbers))
    if constants is None:
        return typed(pd.DataFrame(columns=FITTED_COLUMNS))
    table = fitted.reading(numbers).assign(paper=PAPER, formula=constants.formula())
    return typed(table[FITTED_COLUMNS])


def fitted_split(published: pd.DataFrame | None) -> pd.DataFrame:
    """``fitted.loss_split``: a row for each part, in ``fitted.LOSS_COLUMNS``."""
    return fitted.loss_split(_whole(published))


def loss_table(losses: pd.DataFrame | None) -> pd.DataFrame:
    """A row for each kind of evidence, cluster, method, number of workers and period: minutes of each part.

    ``losses``: rows in ``fitted.LOSS_COLUMNS``, as ``timings.loss_split`` makes them of the projections of ``PAPER``.
    """
    keys = ["evidence", "cluster", "method", "sync_period", "workers", "epoch_min", "lost_min"]
    rows = []
    for found, parts in groups_of(pd.DataFrame() if losses is None else losses, keys):
        row = {"paper": PAPER} | found
        for part, minutes, share in zip(parts["part"], parts["minutes"], parts["share_of_lost"], strict=True):
            row[f"{part.replace(' ', '_')}_min"] = float(minutes)
            if part == COMMUNICATION:
                row["communication_pct"] = min(
                    100.0, 100 * float(share)
                )  # other parts may be a little below 0
        rows.append(row)
    return typed(pd.DataFrame(rows, columns=LOSS_TABLE_COLUMNS))


def sentence(reading: pd.DataFrame, losses: pd.DataFrame) -> str:
    """Which part of the lost efficiency is communication and which is not, by both kinds of evidence.

    ``reading`` and ``losses``: the tables ``fitted`` and ``loss``. An empty text where nothing was fitted.
    """
    if not len(reading):
        return ""
    own = reading[reading["published_epoch_min"].notna()]  # the rows that were fitted
    row = own.loc[(own["workers"] - _MAIN_WORKERS).abs().astype(float).idxmin()]
    workers, period = int(row["workers"]), int(row["sync_period"])
    share = float(row["communication_pct"])
    told = (
        f"On {workers} GPUs at K={period} an epoch of the authors' runs, as fitted, takes {_minutes(row['lost_min'])} "
        f"more than 1/{workers} of one GPU's: {share:.0f} % of that is communication and {100 - share:.0f} % is not "
        f"({row['slower_program_pct']:.0f} % a parallel program that computes more slowly than the serial one, "
        f"{row['serial_part_pct']:.0f} % work that is not divided)."
    )
    same = losses[
        (losses["method"] == PAPER) & (losses["workers"] == workers) & (losses["sync_period"] == period)
    ]
    for model in same.to_dict("records"):
        share = round(model["communication_pct"])
        parts = (
            "all of it communication"
            if share == 100
            else f"{share} % of it communication and {100 - share} % not"
        )
        told += f" As {model['evidence']} on {model['cluster']} it takes {_minutes(model['lost_min'])} more, {parts}."
    return told


def _whole(published: pd.DataFrame | None) -> pd.DataFrame:
    """Published numbers with every column that the reading asks for, also where a table has none of its values."""
    numbers = pd.DataFrame() if published is None else published
    absent = [name for name in _NEEDED if name not in numbers]
    return numbers.assign(**dict.fromkeys(absent, pd.Series(dtype=object))) if absent else numbers


def _minutes(value: float) -> str:
    return f"{float(value):.1f} minutes"
