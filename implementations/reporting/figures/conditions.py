"""Which rows of the table of word and frame errors a figure is about, and what they were run on, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from implementations.reporting.figures.lines import LINE
from implementations.reporting.grouping import most_frequent
from implementations.reporting.wordtable import corpus_name

# How the network was trained, whatever the workers; of one optimiser and initialisation; and how workers averaged.
TRAINING = ["data_size", "model", "epochs", "minibatch", "schedule"]
OWN = ["settings", "max_change_rule", "reduction", "momentum", "ng_update_period"]
AVERAGING = ["mixing", "content", "sync_period", "lr_scaling"]


def quality_rows(words: pd.DataFrame) -> pd.DataFrame:
    """The rows of one kind of evidence, as kinds never mix: of simulated workers where there are any."""
    for kind in ("simulated", "measured"):
        rows = words[(words["evidence"] == kind).fillna(False).astype(bool)]
        if len(rows):
            return rows
    return words[:0]


def main_condition(words: pd.DataFrame, free: Iterable[str] = ()) -> pd.DataFrame:
    """The rows of the most frequent condition, but for the number of workers, optimiser, init, rate and ``free``.

    One worker averages with nobody: its rows stay, however they would have averaged.
    """
    free = set(free)
    rows = most_frequent(words, [name for name in TRAINING if name not in free])
    rows = most_frequent(rows, [name for name in OWN if name not in free], [*LINE, "schedule"])
    alone = (rows["workers"] == 1).fillna(False).astype(bool)
    several = most_frequent(rows[~alone], [name for name in AVERAGING if name not in free])
    return pd.concat([_once(rows[alone]), several]).sort_index()


def _once(alone: pd.DataFrame) -> pd.DataFrame:
    """The rows of one worker, sequential training before a method with one worker that does the same."""
    keys = [*LINE, *TRAINING, *OWN, "lr"]
    order = alone.assign(_place=(alone["method"] != "sequential").astype(int)).sort_values(
        "_place", kind="stable"
    )
    return order.drop_duplicates(keys).drop(columns="_place")


def at_own_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each line the rows at the rate that is best on validation data with one worker (else the most frequent)."""
    parts = []
    for _, line in rows.groupby(LINE, dropna=False):
        alone = line[(line["workers"] == 1) & line["valid_frame_error"].notna()]
        if len(alone):
            rate = alone.loc[alone["valid_frame_error"].idxmin(), "lr"]
            parts.append(line[line["lr"] == rate])
        else:
            parts.append(most_frequent(line, ["lr"]))
    return pd.concat(parts) if parts else rows


def at_best_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each line and number of workers the row whose rate is best on validation data."""
    ended = rows[rows["valid_frame_error"].notna()]
    best = ended.groupby([*LINE, "workers"], dropna=False)["valid_frame_error"].idxmin()
    return ended.loc[best.tolist()]


def most_workers_with(rows: pd.DataFrame, column: str, fewest: int = 2) -> int | None:
    """The number of workers that was run with the most values of ``column``; the largest of several. None: too few."""
    counts = rows[rows["workers"] > 1].groupby("workers")[column].nunique(dropna=False)
    if not len(counts) or counts.max() < fewest:
        return None
    return int(counts[counts == counts.max()].index.max())


def corpus(words: pd.DataFrame) -> str:
    """The data set's name and whose speech it is, of the first row."""
    first = words.iloc[0]
    return corpus_name(first["dataset"], first["data_kind"])


def told(rows: pd.DataFrame) -> str:
    """Evidence, corpus, network and training of a figure's rows, in words; what differs among them is left out."""
    first = rows.iloc[0]
    parts = [f"Evidence: {', '.join(sorted(set(rows['evidence'])))}", corpus(rows)]
    for name, write in (
        ("model", str),
        ("data_size", lambda value: f"{int(value):,} training frames"),
        ("minibatch", lambda value: f"minibatch {int(value)}"),
        ("epochs", lambda value: f"at most {int(value)} epochs"),
        ("schedule", lambda value: f"{value} schedule"),
    ):
        if rows[name].nunique(dropna=False) == 1 and pd.notna(first[name]):
            parts.append(write(first[name]))
    rules = list(rows["max_change_rule"].dropna().unique())
    if rules:
        parts.append(f"{' and '.join(rules)} max-change rule")
    return "; ".join([parts[0], ", ".join(parts[1:])]) + ". "


def intervals_told(rows: pd.DataFrame) -> str:
    """What the bars of word and frame errors are."""
    kinds = [
        kind for kind in dict.fromkeys(rows["spread"].dropna()) if kind not in ("no value", "single value")
    ]
    counts = sorted({int(count) for count in rows["n"].dropna() if count > 0})
    most = counts[-1] if counts else 0
    seeds = f"{counts[0]} to {most}" if counts and counts[0] != most else f"{most}"
    mean = f"Mean of {seeds} seeds" if most > 1 else "One seed"
    if len(kinds) > 1 and all(kind.endswith(" seeds") for kind in kinds):
        kinds = list(dict.fromkeys(re.sub(r" and \d+ seeds$", " and the seeds", kind) for kind in kinds))
    return f"{mean}, bars: {' or '.join(kinds)}. " if kinds else f"{mean}. "
