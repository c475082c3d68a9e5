"""The answer as a table: a row for each method and number of workers, with places, limits and grounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from implementations.advice import parts, targets, trust
from implementations.advice.estimates import Estimate, Way, estimates
from implementations.advice.nets import Subject
from implementations.cluster.machine import Cluster

COLUMNS = [
    "paper", "evidence", "network", "params", "data_size", "cluster", "method", "method_key", "variant", "workers",
    "minibatch", "best", "place", "place_target", "place_bytes", "place_memory", "epoch_s", "speedup", "compute_s",
    "waiting_s", "latency_s", "bandwidth_s", "limit", "limit_share", "sent_bytes", "memory_bytes", "target_epochs",
    "target_low", "target_high", "target_seeds", "target_of", "efficiency", "time_to_target_s", "compute_source",
    "model_error_median", "model_error_worst", "model_error_points", "how_sure", "reason",
]  # fmt: skip


@dataclass(frozen=True)
class Grounds:
    """What was trained and checked: runs that reached a target (``targets.reached``), and the time model's errors."""

    reached: pd.DataFrame
    validation: pd.DataFrame


def answer(
    net: Subject,
    cluster: Cluster,
    workers: Sequence[int],
    minibatch: int,
    ways: Sequence[Way],
    grounds: Grounds,
    results: Path = Path("results"),
    memory_limit: float | None = None,
) -> pd.DataFrame:
    """Rows in ``COLUMNS``; ``best`` marks each method's number of workers, and ``place`` ranks these.

    ``place_target`` ranks each method's soonest time to the target, of the numbers of workers with which it is known.

    ``memory_limit``: bytes that a worker may hold; what needs more has a ``reason`` and no place.
    """
    found = list(estimates(net, cluster, workers, minibatch, ways, results))
    alone = next(
        (one.seconds.all for one in found if one.way.method == "sequential" and one.seconds), math.nan
    )
    errors = {way.method: trust.errors(grounds.validation, way.method) for way in ways}
    rows = [
        _row(net, cluster, one, minibatch, grounds, errors[one.way.method], alone, memory_limit)
        for one in found
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    for _, same in table[table["reason"] == ""].groupby("method", sort=False):
        least = parts.best(dict(zip(same["workers"], same["epoch_s"])))
        table.loc[same.index[same["workers"] == least], "best"] = True
    chosen = table.index[table["best"]]
    # runs to a target had other numbers of workers, as a rule
    trained = table[(table["reason"] == "") & table["time_to_target_s"].notna()]
    soonest = trained.groupby("method")["time_to_target_s"].idxmin() if len(trained) else chosen[:0]
    for name, key, of in (
        ("place", "epoch_s", chosen), ("place_target", "time_to_target_s", pd.Index(soonest)),
        ("place_bytes", "sent_bytes", chosen), ("place_memory", "memory_bytes", chosen),
    ):  # fmt: skip
        table[name] = pd.Series(parts.ranked(table.loc[of, key].tolist()), index=of, dtype="Int64")
        table[name] = table[name].astype("Int64")
    return table


def _row(
    net: Subject,
    cluster: Cluster,
    one: Estimate,
    minibatch: int,
    grounds: Grounds,
    errors: trust.Errors | None,
    alone: float,
    memory_limit: float | None,
) -> dict[str, object]:
    way = one.way
    row: dict[str, object] = {
        "paper": "suite", "evidence": "projected", "network": net.label, "params": net.params,
        "data_size": net.samples, "cluster": cluster.name, "method": way.told, "method_key": way.method,
        "variant": way.variant, "workers": one.workers, "minibatch": minibatch, "best": False, "reason": one.reason,
    }  # fmt: skip
    if one.seconds is None:
        return row
    seconds, epoch_s = one.seconds, one.seconds.all
    reason = one.reason
    if memory_limit is not None and one.memory_bytes > memory_limit:
        reason = f"needs {one.memory_bytes / 1e6:,.1f} MB of {memory_limit / 1e6:,.1f} MB"
    known = targets.known(
        grounds.reached, way.method, way.variant, one.workers, net.kind, net.params, way.settings
    )
    efficiency = known.efficiency if known else None
    limit, share = parts.limit(seconds, efficiency, bool(reason))
    row |= {
        "reason": reason, "epoch_s": epoch_s, "speedup": alone / epoch_s if epoch_s else math.nan,
        "compute_s": seconds.compute, "waiting_s": seconds.waiting, "latency_s": seconds.latency,
        "bandwidth_s": seconds.bandwidth, "limit": limit, "limit_share": share, "sent_bytes": one.sent_bytes,
        "memory_bytes": one.memory_bytes, "compute_source": one.source,
        "how_sure": trust.told(errors, one.source, cluster.is_here),
    }  # fmt: skip
    if errors is not None:
        row |= {
            "model_error_median": errors.median,
            "model_error_worst": errors.worst,
            "model_error_points": errors.points,
        }
    if known is not None:
        row |= {
            "target_epochs": known.epochs, "target_low": known.low, "target_high": known.high,
            "target_seeds": known.seeds, "target_of": known.whose, "efficiency": efficiency,
            "time_to_target_s": known.epochs * epoch_s,
        }  # fmt: skip
    return row
