"""results/timings.parquet: every run's trace on every machine, by the time model; nothing is trained."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations import record, registry
from implementations.cluster import machine, timemodel
from implementations.cluster.hosts.plan import is_emulated
from implementations.cluster.machine import Cluster
from implementations.cluster.shapes import PACE
from implementations.errors import UserError
from implementations.fitted import COMMUNICATION, LOSS_COLUMNS
from implementations.point import Point
from implementations.reporting.files import DamagedTable, first_line, read_table, write_parquet
from implementations.reporting.rows import ENDED
from implementations.speedups import add_speedups, plain, threads, whole
from implementations.target import at_target

# Columns of a run that a figure needs beside its predicted times.
IDENTITY = [
    "paper", "method", "variant", "dataset", "data_size", "model", "model_params", "threads_per_worker", "scaling",
    "minibatch", "global_batch", "epochs", "sync_period", "algorithm", "mixing", "lr", "lr_scaling", "optimizer",
    "seed", "repeat", "steps", "samples",
]  # fmt: skip
COLUMNS = [
    "run_id", "cluster", "workers", "nodes", "oversubscribed", "step_s", "compute_s", "data_s", "comm_s",
    "straggler_s", "overlap_s", "train_s", "epoch_s", "time_to_target_s", "target_reached", "samples_per_s",
    "own_steps_to_target", "time_to_own_target_s", "time_to_own_target_low_s", "time_to_own_target_high_s",
    "speedup_same_code", "same_code_run_id", "speedup_best_sequential", "best_sequential_run_id",
    "best_sequential_threads", "evidence", "run_evidence", "compute_source", "collective", "pace_step_s", *IDENTITY,
]  # fmt: skip
_WHOLE = [
    "workers", "nodes", "data_size", "model_params", "threads_per_worker", "minibatch", "global_batch", "epochs",
    "sync_period", "seed", "repeat", "steps", "samples", "best_sequential_threads",
]  # fmt: skip
_FLAGS = ["oversubscribed", "target_reached"]
# A run's record stays when its trace alone is deleted, and then nothing would run again.
_REMEDY = "delete the run's folder and run again"


def timings(
    runs: pd.DataFrame,
    results_dir: str | Path,
    clusters: Iterable[Cluster | str | Path],
    clusters_dir: str | Path | None = None,
    projected: Sequence[Point] = (),
) -> pd.DataFrame:
    """A row per trained run with a trace and cluster: predicted seconds, time to target and speedups.

    Runs of methods with a cost model of their own have none of this one's times, and runs by Spark's jobs none on
    clusters whose files say nothing of these. A run on emulated hosts has a row on the cluster of its own network
    alone, which is added to ``clusters`` where it is calibrated.
    ``projected`` points have no run: their traces are their methods', run dry at the sizes that they name, and they
    are placed on the cluster that their ``network`` names.

    ``runs``: the rows of runs.parquet; ``clusters``: clusters, files, or names (of files in ``clusters_dir``, by
    default the suite's own, or this host).
    ``time_to_target_s`` is infinite where the run missed its target and NaN where it had none.
    Speedups compare samples per second on the same cluster: ``same_code`` with the same method and settings at one
    worker (the same seed where it ran, else the first), ``best_sequential`` with the fastest sequential training
    of the same model and data at the run's minibatch or global batch and with the run's threads per worker (also in
    ``best_sequential_threads``); NaN where no such run is there.
    A projected row's ``time_to_own_target_s`` takes its seconds of a step times the steps that runs here took to their
    target (``own_steps_to_target``): the median over seeds, with the least and the greatest.
    A run whose trace or curve is damaged gets no row, which is said on stderr.
    """
    machines = [
        cluster if isinstance(cluster, Cluster) else machine.load(cluster, results_dir, clusters_dir)
        for cluster in clusters
    ]
    machines += _of_networks(runs, machines, results_dir, clusters_dir)
    folder = Path(results_dir) / "runs"
    grouped: dict[bytes, timemodel.Groups] = {}
    predicted: dict[tuple[Any, ...], timemodel.Timing] = {}
    rows = []
    for run in runs[runs["status"].isin(ENDED)].to_dict("records"):
        if registry.get(run["method"]).own_cost_model:
            continue
        path = folder / run["run_id"] / "trace.parquet"
        if not path.is_file():
            continue
        try:
            key, events = _read_trace(path, grouped)
            target_step = _target_step(run, path.with_name("curve.parquet"))
        except DamagedTable as error:
            print(f"warning: {run['run_id']} gets no timings: {error}", file=sys.stderr)
            continue
        by_driver = any(algorithm == machine.DRIVER for _, algorithm, *_ in events.comm)
        emulated = _on_hosts(run)
        for cluster in machines:
            if by_driver and cluster.spark is None:
                continue  # nothing is known of Spark's jobs there
            if (cluster.name != run["network"]) if emulated else is_emulated(cluster.name):
                continue
            tasks = registry.get(run["method"]).runs_on == "spark"
            if tasks:
                cluster = cluster.between_tasks()
            workers, width = int(run["workers"]), threads(run)
            question = (key, cluster.name, tasks, workers, width, _trained_params(run))
            if question not in predicted:
                predicted[question] = timemodel.predict(
                    events, cluster, workers, threads=width, model_params=question[-1]
                )
            rows.append(_row(run, cluster, predicted[question], target_step))
    rows += [row | _own_target(row, rows) for row in _projected_rows(projected, machines)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    if len(frame):
        add_speedups(frame)
    for name in _WHOLE:
        frame[name] = pd.array(frame[name].map(whole).tolist(), dtype="Int64")
    for name in _FLAGS:
        frame[name] = frame[name].astype("boolean")
    return frame


def _on_hosts(run: Mapping[str, Any]) -> bool:
    """Whether a run was measured on emulated hosts."""
    network = run.get("network")
    return run["evidence"] == "measured" and isinstance(network, str) and is_emulated(network)


def _of_networks(
    runs: pd.DataFrame, machines: Sequence[Cluster], results_dir: str | Path, clusters_dir: str | Path | None
) -> list[Cluster]:
    """The clusters of emulated networks that runs name, of those that are calibrated and not among ``machines``."""
    ended = runs[runs["status"].isin(ENDED)]
    named = {run["network"] for run in ended.to_dict("records") if _on_hosts(run)}
    found = []
    for name in sorted(named - {cluster.name for cluster in machines}):
        try:
            found.append(machine.load(name, results_dir, clusters_dir))
        except machine.NotCalibrated as error:
            print(f"warning: no times of runs on {name}: {error}", file=sys.stderr)
    return found


def loss_split(timings: pd.DataFrame) -> pd.DataFrame:
    """What the time model's lost efficiency consists of: a row per part and row of ``timings``, in ``LOSS_COLUMNS``.

    Lost are the seconds of an epoch beyond 1/m of those of the row's ``same_code`` run on one worker, in four parts
    that add up: communication that nothing hides; waiting for the slowest worker; steps that take longer than on one
    worker (shared cores, say); and more or fewer steps than 1/m of one worker's, as epochs end with whole ones. Rows
    of one worker, of weak scaling, or without such a run have none.
    """
    bases = timings.set_index(["cluster", "run_id"]).to_dict("index")
    rows = []
    for row in timings.to_dict("records"):
        base = bases.get((row["cluster"], row["same_code_run_id"]))
        if base is None or row["workers"] < 2 or row["scaling"] == "weak":
            continue
        if plain(base["data_size"]) != plain(row["data_size"]):
            continue
        workers, step_s = int(row["workers"]), (base["compute_s"] + base["data_s"]) / base["steps"]
        seconds = {
            COMMUNICATION: row["comm_s"] - row["overlap_s"],
            "waiting for the slowest": row["straggler_s"],
            "slower steps": row["compute_s"] + row["data_s"] - row["steps"] * step_s,
            "whole steps": (row["steps"] - base["steps"] / workers) * step_s,
        }
        lost_s, epochs = sum(seconds.values()), whole(row["epochs"]) or 1
        rows += [
            {
                **{name: row[name] for name in ("evidence", "cluster", "method", "workers", "sync_period")},
                "part": part,
                "minutes": value / epochs / 60,
                "share_of_lost": value / lost_s if lost_s else math.nan,
                "lost_min": lost_s / epochs / 60,
                "epoch_min": row["epoch_s"] / 60,
            }
            for part, value in seconds.items()
        ]
    frame = pd.DataFrame(rows, columns=LOSS_COLUMNS)
    return frame.astype({"workers": "Int64", "sync_period": "Int64"})


def write_timings(
    runs: pd.DataFrame,
    results_dir: str | Path,
    clusters: Iterable[Cluster | str | Path],
    out: str | Path,
    clusters_dir: str | Path | None = None,
    projected: Sequence[Point] = (),
) -> Path:
    """Write ``timings(...)`` as parquet, atomically; returns the path."""
    frame, path = timings(runs, results_dir, clusters, clusters_dir, projected), Path(out)
    write_parquet(frame, path)
    return path


def _projected_rows(points: Sequence[Point], machines: Sequence[Cluster]) -> list[dict[str, Any]]:
    if not points:
        return []
    from implementations.projection import project  # loads torch

    rows = []
    for point in points:
        if registry.get(point.method).own_cost_model or point.method == "spark":
            continue  # ``sparkprojections`` has those of Spark
        columns, trace = project(point)
        run = record.identity(point) | columns
        events = timemodel.group(trace)
        for cluster in machines:
            if cluster.name != point.network:
                continue
            timing = timemodel.predict(
                events,
                cluster.with_nodes(point.nodes),
                point.workers,
                threads=point.threads_per_worker,
                model_params=columns["worker_params"],
            )
            rows.append(_row(run, cluster, timing.scaled(columns["steps"]), None) | {"evidence": "projected"})
    return rows


def _own_target(row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """A projected row's seconds to the target of runs here with the same method, workers and period.

    Of networks as deep as the projected one: that which most methods trained with so many workers (steps of different
    tasks tell nothing of each other), and of several such the largest. Empty where there is none.
    """
    if row["time_to_target_s"] == row["time_to_target_s"]:
        return {}  # it has a target of its own

    def alike(run: Mapping[str, Any], *same: str) -> bool:
        return (
            run["run_evidence"] == "simulated"
            and run["steps_to_target"] is not None
            and all(plain(run[name]) == plain(row[name]) for name in ("paper", "workers", *same))
            and str(run["model"]).count("-") == str(row["model"]).count("-")
        )

    tasks: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}  # runs by id, once whatever the clusters
    methods: dict[tuple[Any, ...], set[str]] = {}
    for run in runs:
        if alike(run):
            task = (run["dataset"], run["model"], whole(run["model_params"]) or 0)
            methods.setdefault(task, set()).add(run["method"])
            if alike(run, "method", "variant", "sync_period"):
                tasks.setdefault(task, {})[run["run_id"]] = run
    if not tasks:
        return {}
    chosen = max(tasks, key=lambda task: (len(methods[task]), task[-1]))
    steps = sorted(run["steps_to_target"] for run in tasks[chosen].values())
    middle = float(np.median(steps))
    own = {"": middle, "_low": steps[0], "_high": steps[-1]}
    return {"own_steps_to_target": middle} | {
        f"time_to_own_target{name}_s": row["step_s"] * count for name, count in own.items()
    }


def _trained_params(run: Mapping[str, Any]) -> int | None:
    """Parameters of what one worker trains: of a subnet, where the network is split.

    A worker that has its units of all layers, and all samples of its group, makes as many operations as its own
    samples in the whole network: the step of that one tells the time.
    """
    if run["method"] == "spark" and run["variant"] in ("model", "hybrid"):
        return whole(run.get("model_params"))
    params = whole(run.get("worker_params"))
    return whole(run.get("model_params")) if params is None else params


def _read_trace(path: Path, grouped: dict[bytes, timemodel.Groups]) -> tuple[bytes, timemodel.Groups]:
    """The grouped trace and a key of its content: repeats and seeds of a point mostly have equal traces."""
    trace = read_table(path, _REMEDY)
    frame = trace[[name for name in [*timemodel.TRACE_COLUMNS, "group"] if name in trace.columns]]
    try:
        key = hashlib.sha256(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()).digest()
        if key not in grouped:
            grouped[key] = timemodel.group(frame)
    except (ValueError, TypeError) as error:
        raise DamagedTable(f"{path} is no trace ({first_line(error)}); {_REMEDY}") from None
    return key, grouped[key]


def _target_step(run: Mapping[str, Any], curve: Path) -> float | None:
    """Steps until the target, between evaluations too; infinite when missed, None without a target."""
    target = run.get("target_value")
    if target is None or pd.isna(target):
        return None
    if not curve.is_file():
        return math.inf
    metric = str(run.get("target_metric") or "accuracy")
    frame = read_table(curve, _REMEDY)
    column = metric if metric in frame.columns else f"valid_{metric}"
    if column not in frame.columns:
        raise UserError(f"{curve}: has no column {metric} or valid_{metric}, which target_metric names")
    # errors and losses go down, everything else up
    down = any(word in metric for word in ("loss", "error", "wer"))
    sign = -1 if down else 1
    values = (sign * frame[column].astype(float)).tolist()
    return at_target(values, sign * float(target), frame["step"].astype(float).tolist())


def _row(
    run: Mapping[str, Any], cluster: Cluster, timing: timemodel.Timing, target_step: float | None
) -> dict[str, Any]:
    if target_step is None:
        time_to_target_s = math.nan
    else:
        time_to_target_s = float(timing.time_to(target_step)) if math.isfinite(target_step) else math.inf
    samples, train_s = whole(run.get("samples")), timing.train_s
    if samples is None:
        samples = timing.steps * (whole(run.get("global_batch")) or 0)
    return {
        **{name: run.get(name) for name in IDENTITY},
        "run_id": run["run_id"],
        "cluster": cluster.name,
        "workers": int(run["workers"]),
        "nodes": timing.nodes,
        "oversubscribed": timing.oversubscribed,
        "step_s": timing.step_s,
        "compute_s": timing.compute_s,
        "data_s": timing.data_s,
        "comm_s": timing.comm_s,
        "straggler_s": timing.straggler_s,
        "overlap_s": timing.overlap_s,
        "train_s": train_s,
        "epoch_s": train_s / (whole(run.get("epochs")) or 1),
        "time_to_target_s": time_to_target_s,
        "steps_to_target": target_step,
        "target_reached": None if target_step is None else math.isfinite(target_step),
        "samples_per_s": samples / train_s if train_s else math.nan,
        "evidence": "simulated",
        "run_evidence": run.get("evidence"),
        "compute_source": timing.compute_source,
        "collective": timing.collective,
        "pace_step_s": _calibrated_pace_s(cluster, int(run["workers"])),
    }


def _calibrated_pace_s(cluster: Cluster, ranks: int) -> float:
    """What the step that measured runs time beside themselves took in calibration, with as many ranks busy."""
    wanted = PACE["label"], PACE["minibatch"], ranks, 1
    for step in cluster.steps:
        if (step.model, step.minibatch, step.busy_ranks, step.threads) == wanted:
            return step.step_s
    return math.nan
