"""What the runs of subnets say, in sentences computed from the tables; figures say the same of what they draw."""

from __future__ import annotations

import numpy as np
import pandas as pd

from implementations.reporting.grouping import most_frequent
from implementations.reporting.html import brief
from implementations.reporting.pagetables import byte_ratios
from implementations.reporting.subnets import PAPER
from implementations.reporting.widths import TOLERANCE

_RATIO = "data_parallel_ratio"


def findings(targets: pd.DataFrame, widths: pd.DataFrame, crossings: pd.DataFrame) -> list[str]:
    """A paragraph each on bytes, widths and bandwidth, of the setting that was run most; none without results.

    The tables of these names, of one paper.
    """
    said = []
    main = _main_targets(targets) if len(targets) else targets
    if len(main):
        said.append(bytes_told(main))
    if len(widths):
        wide = most_frequent(widths, ["evidence", "dataset", "data_size", "hidden_layers", "name"])
        said.append(f"{_of(wide, 'hidden_layers')}: {_small(threshold_told(wide))}")
    if len(main) and len(crossings):
        # where the most periods were run
        first, workers = main.iloc[0], int(main.groupby("workers")["name"].nunique().idxmax())
        here = (crossings["first"] == first["line"]) & crossings["skew"].isna()
        for name, own in (("dataset", "dataset"), ("data_size", "data_size"), ("plain_model", "model")):
            here &= crossings[name] == first[own]
        words = crossings_told(
            crossings[(here & (crossings["workers"] == workers)).fillna(False).astype(bool)]
        )
        if words:
            said.append(
                f"Time to the target, {_small(_of(main, 'model'))}, {workers} workers: {_small(words)}"
            )
    return said


def _main_targets(targets: pd.DataFrame) -> pd.DataFrame:
    """The rows of IST on several workers in the setting with the most of them, of the main experiment where it ran."""
    own = targets[targets[_RATIO].notna() & targets["skew"].isna() & (targets["workers"] > 1)]
    asked = own["experiments"].str.split(", ").map(lambda names: PAPER in names).astype(bool)
    own = own[asked] if asked.any() else own
    own = own.assign(line=own["name"].str.partition(" (")[0])
    setting = ["evidence", "dataset", "data_size", "model", "line", "sharding", "epochs", "minibatch"]
    return most_frequent(own, setting)


def bytes_told(rows: pd.DataFrame) -> str:
    """Bytes to the target of the others over those of IST, for each number of workers, in words.

    ``rows``: of the table of targets, of subnets in one setting.
    """
    main = most_frequent(rows, ["name"]).sort_values("workers").drop_duplicates("workers")
    parts = [
        f"{byte_ratios(row)} with {int(row['workers'])} workers ({row['pairs']} seeds)"
        for row in main.to_dict("records")
    ]
    return (
        f"Bytes to the target, data parallel : local SGD : IST, {_small(_of(main, 'model'))}, {main['name'].iloc[0]}: "
        f"{'; '.join(parts)}."
    )


def _of(rows: pd.DataFrame, network: str) -> str:
    """What rows are of: data, network and evidence."""
    first = rows.iloc[0]
    net = str(first[network])
    if network == "hidden_layers":
        net = f"{int(first[network])} hidden layer{'s' if first[network] > 1 else ''}, {first['name']}"
    return f"On {first['dataset']}, {net}, {first['evidence']}"


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]


def threshold_told(table: pd.DataFrame) -> str:
    """The thresholds of one setting of the table of widths, in words: of all numbers of workers, then of each."""
    ends = table[table["threshold"].notna()]
    if not len(ends):
        return ""
    whole = ends.iloc[-1]
    said = (
        f"Threshold, the smallest number of units per worker from which on the mean loss stays below {TOLERANCE:g} "
        f"point: {_units(whole['threshold'])}"
    )
    if whole["threshold_low"] != whole["threshold_high"]:
        said += f" ({_units(whole['threshold_low'])} to {_units(whole['threshold_high'])} by single seeds)"
    each = ends[ends["workers"].notna()]
    if len(ends) > 1:
        parts = [f"{_units(row['threshold'])} with {int(row['workers'])}" for _, row in each.iterrows()]
        said += f"; {', '.join(parts)} workers"
    return said + "."


def _units(value: float) -> str:
    return "none" if np.isinf(value) else f"{value:g}"


def crossings_told(crossing: pd.DataFrame) -> str:
    """Where methods change places, in words. ``crossing``: rows of ``targets.crossings_table``, of one setting."""
    found: list[str] = []
    for row in crossing[crossing["crossing_mbit_s"].notna()].to_dict("records"):
        low, high = brief(row["crossing_low"]), brief(row["crossing_high"])
        words = [f"{low} to {high} by seed"] if pd.notna(row["crossing_low"]) and low != high else []
        if row["seeds_crossing"] < row["n"]:
            words.append(f"in {row['seeds_crossing']} of {row['n']} seeds")
        seeds = f" ({', '.join(words)})" if words else ""
        where = f"below {brief(row['crossing_mbit_s'])} Mbit/s{seeds}"
        found.append(f"{row['faster_below']} is faster than {row['faster_above']} {where}")
    never = [
        f"{row['faster_below']} before {row['second'] if row['faster_below'] == row['first'] else row['first']}"
        for row in crossing[crossing["crossing_mbit_s"].isna()].to_dict("records")
    ]
    said = f"Changes of places, interpolated in logarithms: {'; '.join(found)}. " if found else ""
    return said + (f"At every bandwidth here: {', '.join(never)}." if never else "")
