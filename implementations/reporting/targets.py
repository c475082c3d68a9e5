"""What a target costs: steps and bytes until it is reached, seconds on every cluster, and where methods change places.

A run that missed its target has infinite cost, and counts: a median over seeds stays finite while fewer than half of
them missed it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting import subnets
from implementations.reporting.claims import CONFIG
from implementations.reporting.curves import steps_to_target
from implementations.reporting.grouping import cell_value, command_for, groups_of, typed
from implementations.reporting.rows import ENDED
from implementations.reporting.statistics import Summary, median_and_range
from implementations.yamlfile import load_yaml

MBIT = 1e6 / 8  # bytes

# What tells two rows of these tables apart, as they show it.
_SHOWN = ["paper", "evidence", "dataset", "data_size", "model", "name", "method", "variant", "sync_period", "workers",
          "sharding", "skew", "minibatch", "epochs", "passes", "lr", "target_value"]  # fmt: skip
RATIOS = {"data_parallel": "data_parallel_ratio", "averaging": "local_sgd_ratio"}
TARGET_COLUMNS = [
    *_SHOWN, "experiments", "n", "reached", "steps", "steps_low", "steps_high", "bytes", "bytes_low", "bytes_high",
    "spread", *(f"{name}{end}" for name in RATIOS.values() for end in ("", "_low", "_high")), "pairs", "command",
]  # fmt: skip
TIME_COLUMNS = [*_SHOWN, "cluster", "mbit_s", "n", "reached", "time_s", "time_low", "time_high", "spread", "best",
                "command"]  # fmt: skip
CROSSING_COLUMNS = [
    "paper", "evidence", "dataset", "data_size", "plain_model", "workers", "target_value", "skew", "first", "second",
    "crossing_mbit_s", "crossing_low", "crossing_high", "seeds_crossing", "n", "faster_below", "faster_above",
    "least_mbit_s", "most_mbit_s", "command",
]  # fmt: skip
_KEYS = [*subnets.KEYS, "target_value"]
# Rows whose costs are compared share these; of several candidates the one that agrees in most of the second.
_SAME = [*subnets.SETTING, "workers", "target_value"]
_NEAR = ["sync_period", "variant", "sharding", "skew", "minibatch", "epochs", "passes", "schedule", "network"]

# Of a run: few columns, as the rows are grouped again and again.
_NEEDED = [*dict.fromkeys(["run_id", "seed", "experiments", "target_reached", "bytes_to_target", "line",
                           *_SHOWN, *_KEYS, *_SAME])]  # fmt: skip


def aimed(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with a target that tell whether it can be reached, described; a diverged run missed it.

    ``configuration``: a number for each set of repeats; ``hit``, ``bytes_spent``: whether the target was reached, and
    in how many bytes, infinite where it was not.
    """
    known = runs["status"].isin([*ENDED, "diverged"]).fillna(False).astype(bool)
    found = subnets.described(runs[known & runs["target_value"].notna()])
    found = found[_NEEDED]
    hit = found["target_reached"].fillna(False).astype(bool)
    spent = found["bytes_to_target"].astype(float).where(hit, np.inf)
    number = found.groupby(_KEYS, dropna=False, sort=True).ngroup() if len(found) else 0
    return found.assign(hit=hit, bytes_spent=spent, configuration=number)


def targets_table(
    runs: pd.DataFrame, results_dir: str | Path = "results", tier: str | None = None
) -> pd.DataFrame:
    """A row for each configuration with a target: how many seeds reached it, in how many steps and bytes.

    Rows of subnets have the bytes of data parallelism and of local SGD of the same period over their own: the same
    network, data, workers and target, seed by seed. ``results_dir``: where the runs' curves are.
    """
    found = aimed(runs)
    steps = [steps_to_target(run, results_dir) for run in found.to_dict("records")]
    found = found.assign(steps_spent=pd.array(steps, dtype=float))
    groups = [group for _, group in found.groupby("configuration")]
    costs = [_Spent(group) for group in groups]
    rows = []
    for group, own in zip(groups, costs, strict=True):
        spent = median_and_range(own.spent)
        row = _shown(group) | {"experiments": _experiments(group)}
        row |= _cost("steps", median_and_range(subnets.by_seed(group, "steps_spent")))
        row |= _cost("bytes", spent) | {"n": spent.n, "reached": _reached(group), "spread": spent.kind}
        if own.keys["method"] == "ist":
            row |= _byte_ratios(own, costs)
        rows.append(row | {"command": command_for(own.keys["paper"], tier)})
    return typed(_in_order(pd.DataFrame(rows, columns=TARGET_COLUMNS)))


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of one data set, network and number of workers together, those of subnets first."""
    places = {name: place for place, name in enumerate(("ist", "averaging", "data_parallel", "sequential"))}
    keys = ["paper", "evidence", "dataset", "data_size", "model", "epochs", "workers", "_place", "name"]
    table = table.assign(_place=table["method"].map(places).fillna(len(places)))
    return table.sort_values(keys, kind="stable", ignore_index=True).drop(columns="_place")


def _shown(group: pd.DataFrame) -> dict[str, Any]:
    return {name: cell_value(value) for name, value in group.iloc[0][_SHOWN].items()}


def _experiments(group: pd.DataFrame) -> str:
    """The experiments that asked for any of the runs, without their sweeps."""
    names = {name.split("/")[0] for asked in group["experiments"] if asked is not None for name in asked}
    return ", ".join(sorted(names))


def _reached(group: pd.DataFrame) -> int:
    """Seeds of which every repeat reached the target."""
    return int(group.groupby("seed")["hit"].all().sum())


def _cost(name: str, summary: Summary) -> dict[str, float]:
    return {name: summary.centre, f"{name}_low": summary.low, f"{name}_high": summary.high}


class _Spent:
    """A configuration, what it shares with those that it is compared with, and its bytes by seed."""

    def __init__(self, group: pd.DataFrame) -> None:
        names = [*_KEYS, *_SAME]
        self.keys = {name: cell_value(value) for name, value in group.iloc[0][names].items()}
        self.same = tuple(self.keys[name] for name in _SAME)
        self.spent = subnets.by_seed(group, "bytes_spent")


def _byte_ratios(own: _Spent, others: list[_Spent]) -> dict[str, Any]:
    """Others' bytes over a row's own, seed by seed; where both missed the target there is no ratio."""
    row: dict[str, Any] = {"pairs": 0}
    for method, column in RATIOS.items():
        candidates = [
            (sum(other.keys[name] == own.keys[name] for name in _NEAR), -place)
            for place, other in enumerate(others)
            if other.keys["method"] == method
            and other.same == own.same
            and (method != "averaging" or other.keys["sync_period"] == own.keys["sync_period"])
        ]
        if candidates:
            other = others[-max(candidates)[1]].spent
            seeds = own.spent.index.intersection(other.index)
            summary = median_and_range(_over(other[seeds].to_numpy(), own.spent[seeds].to_numpy()))
            row |= _cost(column, summary) | {"pairs": max(row["pairs"], summary.n)}
    return row


def _over(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """``first / second``, of which either may be infinite; NaN where both are, or both nothing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return first / second


# -- seconds -----------------------------------------------------------------------------------------------------------


def bandwidths(config_dir: str | Path = CONFIG) -> dict[str, float]:
    """Mbit/s between the nodes of each cluster that is this host's cores on another network, by the cluster's name.

    From ``config_dir/clusters``, of files that are ``like: this-host``: they differ in the network alone.
    """
    found = {}
    for path in sorted((Path(config_dir) / "clusters").glob("*.yaml")):
        content = load_yaml(path)
        if content.get("like") == "this-host":
            link = content.get("links", {}).get("between_nodes", {})
            found[str(content["name"])] = float(link["bandwidth_bytes_per_s"]["value"]) / MBIT
    return found


def seed_times(
    runs: pd.DataFrame, timings: pd.DataFrame | None, networks: Mapping[str, float]
) -> pd.DataFrame:
    """Predicted seconds to the target of each run and cluster, infinite where it was missed; runs are simulated ones.

    ``runs``: as ``aimed`` gives them; ``networks``: as ``bandwidths`` does. A run without timings that diverged has
    missed its target on every cluster.
    """
    simulated = runs[(runs["evidence"] == "simulated").fillna(False).astype(bool)]
    if timings is None or not len(timings) or not len(simulated):
        return runs[:0].assign(cluster=pd.Series(dtype="string"), mbit_s=0.0, time_s=0.0)
    own = timings[timings["run_id"].isin(simulated["run_id"])][["run_id", "cluster", "time_to_target_s"]]
    clusters = pd.DataFrame({"cluster": sorted(set(own["cluster"]))})
    every = simulated.merge(clusters, how="cross").merge(own, on=["run_id", "cluster"], how="left")
    seconds = every["time_to_target_s"].astype(float).where(every["hit"], np.inf)
    return every.assign(mbit_s=every["cluster"].map(dict(networks)).astype(float), time_s=seconds)


def times_table(seconds: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each configuration and cluster: seconds to the target, median over seeds.

    ``best``: whether no other period of the same configuration is faster there. ``seconds``: of ``seed_times``.
    """
    shown = {
        each["configuration"]: {name: cell_value(each[name]) for name in [*_SHOWN, *_KEYS]}
        for each in seconds.drop_duplicates("configuration").to_dict("records")
    }
    by_seed = seconds.groupby(["configuration", "cluster", "mbit_s", "seed"], dropna=False)
    by_seed = by_seed.agg(time_s=("time_s", "mean"), hit=("hit", "all")).reset_index()
    rows = []
    for (configuration, cluster, mbit_s), group in by_seed.groupby(
        ["configuration", "cluster", "mbit_s"], dropna=False
    ):
        known, summary = shown[configuration], median_and_range(group["time_s"])
        row = {name: known[name] for name in _SHOWN} | {"cluster": cluster, "mbit_s": mbit_s}
        row |= _cost("time", summary) | {"time_s": summary.centre, "n": summary.n, "spread": summary.kind}
        row |= {"reached": int(group["hit"].sum()), "command": command_for(known["paper"], tier)}
        rows.append(row | {"_line": tuple(known[name] for name in _KEYS if name != "sync_period")})
    table = pd.DataFrame(rows, columns=[*TIME_COLUMNS, "_line"])
    least = table.groupby(["_line", "cluster"], dropna=False)["time_s"].transform("min")
    table["best"] = np.isfinite(table["time_s"].astype(float)) & (table["time_s"] == least)
    return typed(_in_order(table[TIME_COLUMNS]))


# -- where methods change places ---------------------------------------------------------------------------------------


def crossings(bandwidth: np.ndarray, first: np.ndarray, second: np.ndarray) -> list[float]:
    """Bandwidths at which two methods take equally long, by interpolation between those given, all in logarithms.

    ``bandwidth``: ascending, (points,); ``first`` and ``second``: seconds there, infinite where the target is missed.
    Where both touch at a point without changing places, that is none.
    """
    with np.errstate(invalid="ignore"):
        gaps = np.log(np.asarray(first, dtype=float)) - np.log(np.asarray(second, dtype=float))
    points = [
        (float(x), float(gap))
        for x, gap in zip(np.log(np.asarray(bandwidth, dtype=float)), gaps, strict=True)
        if np.isfinite(gap)
    ]
    apart = [place for place, (_, gap) in enumerate(points) if gap != 0]
    found = []
    for one, other in itertools.pairwise(apart):
        (left, before), (right, after) = points[one], points[other]
        if before * after < 0:
            # equal at a point in between: there, else where a straight line is
            equal = (
                points[one + 1][0] if other > one + 1 else left + (right - left) * before / (before - after)
            )
            found.append(float(np.exp(equal)))
    return found


def fastest_lines(seconds: pd.DataFrame) -> pd.DataFrame:
    """Median seconds over seeds of each line at each bandwidth, at the period (``sync_period``) that takes the least.

    ``seconds``: of ``seed_times``, of one setting.
    """
    periods = _by_period(seconds).groupby(["line", "mbit_s", "sync_period"], dropna=False)["time_s"].median()
    best = periods.reset_index().sort_values(["time_s", "sync_period"]).drop_duplicates(["line", "mbit_s"])
    return best.sort_values(["line", "mbit_s"]).reset_index(drop=True)


def _by_period(seconds: pd.DataFrame) -> pd.DataFrame:
    """Mean seconds of each line, bandwidth, period and seed."""
    keys = ["line", "mbit_s", "sync_period", "seed"]
    known = seconds[seconds["mbit_s"].notna()]
    return known.groupby(keys, dropna=False)["time_s"].mean().reset_index()


def crossings_table(seconds: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each pair of methods and crossing, each method at the period that is fastest at each bandwidth.

    One worker is held against each number of workers. A pair that never changes places has one row, without a
    bandwidth; one of which neither reaches the target none. ``crossing_low`` and ``crossing_high``: range over the
    seeds that cross once. ``seconds``: of ``seed_times``.
    """
    same = ["paper", *subnets.SETTING, "target_value", "skew"]
    rows = []
    for keys, group in _of_several_workers(_main_configurations(seconds, same), same):
        methods = group.drop_duplicates("line").set_index("line")["method"]
        medians = fastest_lines(group).pivot(index="mbit_s", columns="line", values="time_s")
        seeds = _by_period(group).groupby(["seed", "mbit_s", "line"])["time_s"].min().unstack("line")
        lines = sorted(medians.columns, key=lambda name: not name.startswith("IST"))
        for first, second in itertools.combinations(lines, 2):
            if methods[first] != methods[second]:
                found = _crossing_rows(medians[[first, second]].dropna(), seeds[[first, second]].dropna())
                rows += [keys | row | {"command": command_for(keys["paper"], tier)} for row in found]
    return typed(pd.DataFrame(rows, columns=CROSSING_COLUMNS))


def _main_configurations(seconds: pd.DataFrame, same: list[str]) -> pd.DataFrame:
    """Of each line, period and number of workers the configuration with the most rows, so that a line is one."""
    keys = [*same, "workers", "line", "sync_period"]
    counts = seconds.groupby([*keys, "configuration"], dropna=False).size().rename("rows").reset_index()
    main = counts.sort_values("rows", ascending=False, kind="stable").drop_duplicates(keys)
    return seconds[seconds["configuration"].isin(set(main["configuration"]))]


def _of_several_workers(
    seconds: pd.DataFrame, keys: list[str]
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Groups of equal ``keys`` and number of workers, one worker's own in each."""
    for found, rows in groups_of(seconds, keys):
        alone = (rows["method"] == "sequential").fillna(False).astype(bool)
        for workers in sorted(set(rows.loc[rows["workers"] > 1, "workers"])):
            yield found | {"workers": int(workers)}, rows[alone | (rows["workers"] == workers)]


def _crossing_rows(medians: pd.DataFrame, seeds: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a pair: its seconds by bandwidth, ``medians``, and by seed and bandwidth, ``seeds``; a column each."""
    first, second = medians.columns
    if len(medians) < 2 or np.isinf(medians).all(axis=None):
        return []
    of_seeds = [
        crossings(each.index.get_level_values("mbit_s").to_numpy(), *each.to_numpy().T)
        for _, each in seeds.groupby("seed")
    ]
    once = [found[0] for found in of_seeds if len(found) == 1]
    bandwidth = medians.index.to_numpy(dtype=float)
    named = {"first": first, "second": second, "n": len(of_seeds), "seeds_crossing": len(once)}
    named |= {"least_mbit_s": bandwidth[0], "most_mbit_s": bandwidth[-1]}
    faster = np.where(medians[first] <= medians[second], first, second)
    where = crossings(bandwidth, *medians.to_numpy().T)
    if not where:
        return [named | {"faster_below": faster[0], "faster_above": faster[-1]}]
    rows = []
    for crossing in where:
        below = faster[bandwidth < crossing][-1]
        row = {"crossing_mbit_s": crossing, "faster_below": below}
        row |= {"faster_above": second if below == first else first}
        if len(where) == 1 and once:
            row |= {"crossing_low": min(once), "crossing_high": max(once)}
        rows.append(named | row)
    return rows
