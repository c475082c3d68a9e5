"""What runs and projections of training on Spark say, in sentences computed from the tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from implementations.reporting.columns import is_true
from implementations.reporting.html import brief, percent
from implementations.reporting.spark import KINDS
from implementations.reporting.spark_speedups import ONE_WORKER, SEQUENTIAL

_NAMES = {"fc": "FC", "cnn": "CNN", "rnn": "RNN", "lstm": "LSTM"}


def findings(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """A paragraph each on exactness, speedups, executions, memory and late updates; none where nothing is known.

    ``tables``: of ``tables.make_tables``, the paper's rows.
    """
    told = (
        exactness_told(tables["spark_exactness"]),
        measured_told(tables["spark_speedup"]),
        sizes_told(tables["spark_speedup"]),
        executions_told(tables["spark_executions"]),
        projected_told(tables["spark_speedup"]),
        memory_told(tables["spark_memory"]),
        late_told(tables["spark_async"]),
    )
    return [words for words in told if words]


def exactness_told(table: pd.DataFrame) -> str:
    """The largest differences from one device, and whether bytes are those of the closed forms."""
    if not len(table):
        return ""
    parts = []
    for precision in ("double", "single"):
        rows = table[(table["precision"] == precision) & (table["devices"] > 1)]
        if len(rows):
            parts.append(f"{rows['worst_error'].max():.1g} in {precision} precision")
    counted = table["bytes_as_predicted"].dropna()
    kinds = [name for name in KINDS if (table["model"] == name).any()]
    own = table["torch_error"].max()
    return (
        f"Exactness: after {int(table['steps'].max())} steps on up to {int(table['devices'].max())} workers no weight "
        f"of {', '.join(_NAMES[name] for name in kinds)} is further from plain torch on one device than "
        f"{' and '.join(parts)}"
        + (f" (rounding alone moves one device by {own:.1g})" if pd.notna(own) else "")
        + f"; counted bytes equal the closed forms in {int(counted.sum())} of {len(counted)} cases."
    )


def _measured(table: pd.DataFrame) -> pd.DataFrame:
    """Measured rows of several workers, no more than cores, against sequential training or else one worker."""
    if not len(table):
        return table
    own = table[
        (table["evidence"] == "measured")
        & table["speedup"].notna()
        & (table["workers"] > 1)
        & ~table["oversubscribed"].map(is_true).astype(bool)
    ]
    against = own[own["base"] == SEQUENTIAL]
    return against if len(against) else own[own["base"] == ONE_WORKER]


def measured_told(table: pd.DataFrame) -> str:
    """The best measured speedup of each kind of network, by variant."""
    own = _measured(table)
    own = own[own["execution"] == "barrier"] if len(own) else own
    parts = []
    for kind in KINDS:
        rows = own[own["kind"] == kind] if len(own) else own
        best = [
            f"{variant} {brief(group['speedup'].max())} ({brief(group.loc[group['speedup'].idxmax(), 'seconds'])} s)"
            for variant, group in rows.groupby("variant", sort=True)
        ] if len(rows) else []  # fmt: skip
        if best:
            parts.append(f"{_NAMES[kind]} {', '.join(best)}")
    if not parts:
        return ""
    counts = " and ".join(str(count) for count in sorted({int(count) for count in own["workers"]}))
    return (
        f"Measured speedups on {counts} workers in a barrier stage, the best of its sizes for each variant, over "
        f"{own['base'].iloc[0]}: {'; '.join(parts)}."
    )


def sizes_told(table: pd.DataFrame) -> str:
    """Whether measured speedups rise with the data and with the network."""
    own = _measured(table)
    parts = []
    for column, fixed, words in (
        ("data_size", ["model"], "samples"),
        ("model_params", ["data_size"], "parameters"),
    ):
        keys = [
            "kind",
            "variant",
            "execution",
            "cluster",
            "dataset",
            "workers",
            "optimizer",
            "epochs",
            *fixed,
        ]
        for found, rows in own.groupby(keys, dropna=False, sort=True) if len(own) else ():
            rows = rows.sort_values(column).drop_duplicates(column)
            if len(rows) > 1:
                first, last = rows.iloc[0], rows.iloc[-1]
                parts.append(
                    f"{_NAMES[found[0]]}, {found[1]}: {brief(first['speedup'])} at {first[column]:,} {words}, "
                    f"{brief(last['speedup'])} at {last[column]:,}"
                )
    return f"Measured, by size: {'; '.join(parts)}." if parts else ""


def executions_told(table: pd.DataFrame) -> str:
    """How much longer an exchange by a job takes than one in a barrier stage."""
    if not len(table):
        return ""
    low, high = table["exchange_ratio"].min(), table["exchange_ratio"].max()
    ratio = brief(low) if low == high else f"{brief(low)} to {brief(high)}"
    slow = table.loc[table["schedule_share"].idxmax()] if table["schedule_share"].notna().any() else None
    return (
        f"An exchange by a job of Spark takes {brief(1e3 * table['jobs_exchange_s'].median())} ms (median of "
        f"{len(table)} configurations, measured), {ratio} times one in a barrier stage"
        + (
            f"; up to {percent(slow['schedule_share'])} % of such a step is scheduling."
            if slow is not None
            else "."
        )
    )


def projected_told(table: pd.DataFrame) -> str:
    """The best projected speedup of each kind of network, with what it takes."""
    own = table[(table["evidence"] == "projected") & table["speedup"].notna()] if len(table) else table
    parts = []
    for kind in KINDS:
        rows = own[own["kind"] == kind] if len(own) else own
        if len(rows):
            best = rows.loc[rows["speedup"].idxmax()]
            parts.append(
                f"{_NAMES[kind]} {brief(best['speedup'])} ({best['variant']}, {best['workers']} workers, "
                f"{best['data_size']:,} samples)"
            )
    if not parts:
        return ""
    return (
        f"The best speedups projected, on {', '.join(sorted(set(own['cluster'].dropna())))}, from assumed or "
        f"calibrated constants and fitted to nothing: {'; '.join(parts)}."
    )


def memory_told(table: pd.DataFrame) -> str:
    """The largest projected network, whether it fits, and what one worker would need."""
    own = table[(table["evidence"] == "projected") & table["alone_bytes"].notna()] if len(table) else table
    if not len(own):
        return ""
    largest = own[own["params"] == own["params"].max()]
    fits = largest[largest["status"] == "ok"]
    need = 1e-9 * largest["alone_bytes"].max()
    words = (
        f"The largest network that is projected has {largest['params'].iloc[0]:.3g} parameters: one worker would need "
        f"{brief(need)} GB for it"
    )
    if pd.notna(largest["memory_bytes"]).any():
        words += f" (the machine has {brief(1e-9 * largest['memory_bytes'].max())} GB)"
    least = fits["workers"].min() if len(fits) else np.nan
    return words + (
        f"; it fits from {int(least)} workers on." if len(fits) else "; it fits on none of those asked."
    )


def late_told(table: pd.DataFrame) -> str:
    """What staleness costs at the best rate of each bound."""
    if not len(table) or table["staleness"].nunique() < 2:
        return ""
    parts = []
    for bound, rows in table.groupby("staleness", sort=True):
        known = rows[rows["accuracy"].notna()]
        if len(known):
            best = known.loc[known["accuracy"].idxmax()]
            lost = int((rows["n"] == 0).sum())
            parts.append(
                f"{int(bound)} late {percent(best['accuracy'])} % at rate {best['lr']:g}"
                + (f" ({lost} of {len(rows)} rates diverge)" if lost else "")
            )
    kinds = ", ".join(sorted(set(table["evidence"])))
    return (
        f"Late updates ({kinds}), best rate for each bound: {'; '.join(parts)}. That the paper is asynchronous is a "
        "review's word, unverified."
    )
