"""All methods on the same task: what each takes to the target, who is fastest where, and where the lead changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.grouping import cell_value, command_for
from implementations.reporting.statistics import median_and_range, range_or_interval
from implementations.reporting.suite import contest, lead
from implementations.reporting.suite.context import PAPER, Context
from implementations.reporting.suite.verdict import sentences
from implementations.reporting.targets import fastest_lines

EITHER = "either net"

TITLES = {
    "shootout": (
        "All methods on one task",
        "What it takes until the validation set reaches the target: steps and bytes (all workers together) by "
        "simulation, exact but for where between two evaluations the target is passed; seconds by the model that "
        "`seconds_by` names, on nodes like this host joined by the network named. Median over seeds, and their range.",
    ),
    "winners": (
        "Who is fastest where",
        "The least median of seconds to the target at each number of workers and bandwidth, each method at its best "
        "period; one worker competes everywhere. `sure`: it won with every seed, by more than the model of time may "
        "err (`band`: the errors of the two, together).",
    ),
    "changes": (
        "Where the lead changes",
        "The bandwidth at which another method becomes the fastest, between those simulated by straight lines in the "
        "logarithms; its range over seeds, and its range if the model of time errs for both methods, against each "
        "other, as it did on measured points. 0 and never: beyond the networks compared.",
    ),
}
_SETTING = {"paper": "string", "evidence": "string", "dataset": "string", "data_size": "Int64", "net": "string",
            "model": "string", "target_value": float}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "shootout": _SETTING
    | {"name": "string", "method": "string", "variant": "string", "sync_period": "Int64", "workers": "Int64",
       "lr": float, "n": "Int64", "reached": "Int64", "steps": float, "steps_low": float, "steps_high": float,
       "state_bytes_per_worker": float, "accuracy": float, "accuracy_low": float, "accuracy_high": float,
       "cluster": "string", "mbit_s": float, "seconds_by": "string", "time": float, "time_low": float,
       "time_high": float, "bytes": float, "bytes_low": float, "bytes_high": float, "command": "string"},
    "winners": _SETTING
    | {"workers": "Int64", "mbit_s": float, "first": "string", "sync_period": "Int64", "time": float,
       "time_low": float, "time_high": float, "second": "string", "second_time": float, "margin": float,
       "seeds_won": "Int64", "n": "Int64", "band": float, "sure": "boolean", "command": "string"},
    "changes": _SETTING
    | {"workers": "Int64", "first": "string", "second": "string", "crossing_mbit_s": float, "crossing_low": float,
       "crossing_high": float, "seeds_crossing": "Int64", "n": "Int64", "model_low": float, "model_high": float,
       "first_error": float, "second_error": float, "least_mbit_s": float, "most_mbit_s": float,
       "command": "string"},
}  # fmt: skip


@dataclass(frozen=True)
class Race:
    """One field at one number of workers, one worker alone among them, on all networks.

    bandwidth: Mbit/s, ascending (points,). medians: seconds of each contender there, at its best period.
    seeds: the same of each seed alone, by contender and seed. errors: how far the seconds of each contender may be
    off at each bandwidth, shares; nothing where no measurement tells. best: rows of ``fastest_lines``.
    """

    setting: dict[str, Any]
    workers: int
    rows: pd.DataFrame
    bandwidth: np.ndarray
    medians: dict[str, np.ndarray]
    seeds: dict[str, dict[int, np.ndarray]]
    errors: dict[str, np.ndarray]
    best: pd.DataFrame

    @property
    def stretches(self) -> list[lead.Stretch]:
        """Who leads from where to where."""
        return lead.stretches(self.bandwidth, self.medians)


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """The tables of this part; empty ones without runs of the shoot-out."""
    runs = contest.contenders(context)
    seconds = contest.seconds_of(runs, context)
    found = list(races(seconds, context))
    rows = {
        "shootout": list(_cost_rows(runs, seconds)),
        "winners": [row for race in found for row in _winner_rows(race)],
        "changes": [row for race in found for row in change_rows(race)],
    }
    common = {"paper": PAPER, "evidence": "simulated", "command": command_for(PAPER, context.tier)}
    return {
        name: pd.DataFrame([row | common for row in rows[name]], columns=list(kinds)).astype(kinds)
        for name, kinds in KINDS.items()
    }


# -- what it takes -----------------------------------------------------------------------------------------------------


def _cost_rows(runs: pd.DataFrame, seconds: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A row for each configuration and network; one without a network where no seconds are known."""
    for number, own in runs.groupby("configuration", sort=False):
        first = own.iloc[0]
        row = {
            name: cell_value(first[name])
            for name in [*contest.FIELD, "net", "method", "variant", "workers", "lr"]
        }
        row |= {
            "sync_period": cell_value(first["sync_period"]),
            "name": named(first["line"], first["sync_period"]),
        }
        row |= {"n": own["seed"].nunique(), "reached": int(own["hit"].sum())}
        row |= {"state_bytes_per_worker": own["state_bytes_per_worker"].astype(float).max()}
        row |= _summary("steps", median_and_range(own["steps_spent"].astype(float)))
        row |= _summary("accuracy", range_or_interval(own["quality"].astype(float)))
        there = seconds[seconds["configuration"] == number]
        networks = there.groupby(["mbit_s", "cluster", "seconds_by"], sort=True)
        if not len(networks):
            yield row | _summary("bytes", median_and_range(own["bytes_spent"].astype(float)))
        for (mbit_s, cluster, by), each in networks:
            yield (
                row
                | {"mbit_s": mbit_s, "cluster": cluster, "seconds_by": by}
                | _summary("time", median_and_range(each["time_s"].astype(float)))
                | _summary("bytes", median_and_range(each["bytes_there"].astype(float)))
            )


def _summary(name: str, found: Any) -> dict[str, float]:
    return {name: found.centre, f"{name}_low": found.low, f"{name}_high": found.high}


def named(line: str, period: Any) -> str:
    """A contender with its number of steps between exchanges, where it has one."""
    period = cell_value(period)
    return line if period is None else f"{line} (K={int(period)})"


# -- who leads ---------------------------------------------------------------------------------------------------------


def races(seconds: pd.DataFrame, context: Context) -> Iterator[Race]:
    """Every field at every number of workers; the nets of one task against each other too, where it has several.

    ``seconds``: of ``contest.seconds_of``.
    """
    errors, apart = contest.errors_of(context.validation), contest.disagreement(seconds, context.plans)
    for keys, field in seconds.groupby(contest.FIELD, dropna=False, sort=False):
        setting = dict(zip(contest.FIELD, map(cell_value, keys), strict=True)) | {"net": field["net"].iloc[0]}
        yield from _by_workers(setting, field, errors, apart)
    for keys, task in seconds.groupby(["dataset", "data_size", "target_value"], dropna=False, sort=False):
        if task["net"].nunique() < 2:
            continue
        setting = dict(zip(["dataset", "data_size", "target_value"], map(cell_value, keys), strict=True))
        line = task["line"] + task["net"].map({contest.CONNECTED: " (FC)", contest.CONVOLUTIONAL: " (CNN)"})
        yield from _by_workers(
            setting | {"model": None, "net": EITHER}, task.assign(line=line), errors, apart
        )


def _by_workers(
    setting: dict[str, Any],
    field: pd.DataFrame,
    errors: Mapping[str, float],
    apart: Mapping[tuple[str, int, float], float],
) -> Iterator[Race]:
    alone = (field["method"] == "sequential").fillna(False).astype(bool)
    for workers in sorted(set(field.loc[field["workers"] > 1, "workers"])):
        rows = field[alone | (field["workers"] == workers)]
        best = fastest_lines(rows)
        medians = best.pivot(index="mbit_s", columns="line", values="time_s").sort_index().dropna(axis=1)
        of_seeds = rows.groupby(["line", "seed", "mbit_s"])["time_s"].min().unstack("mbit_s").dropna()
        seeds: dict[str, dict[int, np.ndarray]] = {}
        for (line, seed), each in of_seeds.iterrows():
            seeds.setdefault(line, {})[int(seed)] = each.to_numpy(dtype=float)
        yield Race(
            setting,
            int(workers),
            rows,
            medians.index.to_numpy(dtype=float),
            {line: medians[line].to_numpy(dtype=float) for line in medians},
            seeds,
            _errors_of_lines(rows, medians.index.to_numpy(dtype=float), errors, apart),
            best,
        )


def _errors_of_lines(
    rows: pd.DataFrame,
    bandwidth: np.ndarray,
    errors: Mapping[str, float],
    apart: Mapping[tuple[str, int, float], float],
) -> dict[str, np.ndarray]:
    """Of a layer-wise line also by how much its model and the others' differ on one and the same exchange."""
    found = {}
    for first in rows.drop_duplicates("line").to_dict("records"):
        known = [errors[name] for name in (first["method"], "") if name in errors][:1]
        error = np.full(len(bandwidth), known[0] if known else np.nan)
        if first["method"] == "layerwise":
            between = [apart.get((first["model"], int(first["workers"]), each), np.nan) for each in bandwidth]
            error = np.fmax(error, between)
        if np.isfinite(error).all():
            found[first["line"]] = error
    return found


def _winner_rows(race: Race) -> Iterator[dict[str, Any]]:
    """A row for each bandwidth at which anyone reaches the target."""
    periods = race.best.set_index(["line", "mbit_s"])["sync_period"]
    for place, mbit_s in enumerate(race.bandwidth):
        order = sorted((seconds[place], line) for line, seconds in race.medians.items())
        order = [(seconds, line) for seconds, line in order if np.isfinite(seconds)]
        if not order:
            continue
        time, first = order[0]
        own = {seed: seconds[place] for seed, seconds in race.seeds.get(first, {}).items()}
        won = [
            seed
            for seed, seconds in own.items()
            if all(
                seconds <= other.get(seed, race.bandwidth * np.inf)[place] for other in race.seeds.values()
            )
        ]
        row = race.setting | {"workers": race.workers, "mbit_s": mbit_s, "first": first, "time": time}
        row |= {"sync_period": cell_value(periods[first, mbit_s]), "n": len(own), "seeds_won": len(won)}
        row |= {"time_low": min(own.values(), default=np.nan), "time_high": max(own.values(), default=np.nan)}
        if len(order) > 1:
            other, second = order[1]
            known = [race.errors[line][place] for line in (first, second) if line in race.errors]
            band = float(np.prod([1 + error for error in known])) - 1 if len(known) == 2 else np.nan
            margin = other / time - 1
            row |= {"second": second, "second_time": other, "margin": margin, "band": band}
            row |= {"sure": None if np.isnan(band) else bool(len(won) == len(own) and margin > band)}
        yield row


def change_rows(race: Race) -> Iterator[dict[str, Any]]:
    """A row for each bandwidth at which the lead changes."""
    for slow, fast in itertools.pairwise(race.stretches):
        where, first, second = fast.least, slow.name, fast.name
        row = race.setting | {
            "workers": race.workers,
            "first": first,
            "second": second,
            "crossing_mbit_s": where,
        }
        row |= {"least_mbit_s": race.bandwidth[0], "most_mbit_s": race.bandwidth[-1]}
        found, inside, seeds = lead.over_seeds(race.bandwidth, race.seeds[first], race.seeds[second], where)
        row |= {"n": seeds, "seeds_crossing": inside}
        row |= {} if found is None else {"crossing_low": found.low, "crossing_high": found.high}
        if first in race.errors and second in race.errors:
            errors = race.errors[first], race.errors[second]
            there = [float(np.interp(np.log(where), np.log(race.bandwidth), error)) for error in errors]
            row |= {"first_error": there[0], "second_error": there[1]}
            wrong = lead.under_errors(
                race.bandwidth, race.medians[first], race.medians[second], where, errors
            )
            row |= {} if wrong is None else {"model_low": wrong.low, "model_high": wrong.high}
        yield row


__all__ = ["EITHER", "TITLES", "Race", "change_rows", "named", "races", "sentences", "tables"]
