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
from implementations.cluster.machine import Cluster
from implementations.errors import UserError
from implementations.fitted import COMMUNICATION, LOSS_COLUMNS
from implementations.point import Point
from implementations.reporting.files import DamagedTable, first_line, read_table, write_parquet
from implementations.reporting.rows import ENDED
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
    "best_sequential_threads", "evidence", "run_evidence", "compute_source", *IDENTITY,
]  # fmt: skip
VALIDATION_COLUMNS = [
    "group", "method", "workers", "model", "minibatch", "measured_s", "measured_low_s", "measured_high_s",
    "repeats", "predicted_s", "error", "compute_source",
]  # fmt: skip

# The same experiment but for the number of workers, what goes with it, and chance.
_SAME_CODE = [
    "paper", "method", "variant", "dataset", "model", "model_params", "threads_per_worker", "minibatch", "epochs",
    "sync_period", "algorithm", "lr_scaling", "optimizer",
]  # fmt: skip
# One worker exchanges nothing: how it would have done so makes no other experiment of it.
_BASE = [name for name in _SAME_CODE if name not in ("sync_period", "algorithm", "lr_scaling")]
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
    clusters whose files say nothing of these.
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
        for cluster in machines:
            if by_driver and cluster.spark is None:
                continue  # nothing is known of Spark's jobs there
            workers, threads = int(run["workers"]), _threads(run)
            question = (key, cluster.name, workers, threads, _trained_params(run))
            if question not in predicted:
                predicted[question] = timemodel.predict(
                    events, cluster, workers, threads=threads, model_params=question[-1]
                )
            rows.append(_row(run, cluster, predicted[question], target_step))
    rows += [row | _own_target(row, rows) for row in _projected_rows(projected, machines)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    if len(frame):
        _add_speedups(frame)
    for name in _WHOLE:
        frame[name] = pd.array(frame[name].map(_whole).tolist(), dtype="Int64")
    for name in _FLAGS:
        frame[name] = frame[name].astype("boolean")
    return frame


def validation(runs: pd.DataFrame, timings: pd.DataFrame, cluster: str = machine.THIS_HOST) -> pd.DataFrame:
    """Measured against predicted seconds of a step, for the measured points of experiment ``validation``.

    One row per point: the median over its repeats with the least and the greatest, and ``error`` = predicted over
    measured, minus one.
    """
    wanted = (
        runs["experiments"].map(_is_validation)
        & runs["status"].isin(ENDED)
        & (runs["evidence"] == "measured")
    )
    measured = runs[wanted & runs["train_s"].notna()].copy()
    here = timings[timings["cluster"] == cluster][["run_id", "step_s", "compute_source"]]
    measured = measured.merge(here.rename(columns={"step_s": "predicted_s"}), on="run_id", how="left")
    measured["per_step_s"] = measured["train_s"].astype(float) / measured["steps"].astype(float)
    # a point with its repeats: all settings but seed and repeat
    names = [name for name in [*_SAME_CODE, "workers", "processes", "data_size"] if name in measured.columns]
    rows = []
    for _, same in measured.groupby(names, sort=False, dropna=False):
        first, median = same.iloc[0], same["per_step_s"].median()
        prediction = same["predicted_s"].median()
        rows.append(
            {
                "group": _label(first),
                "method": first["method"],
                "workers": int(first["workers"]),
                "model": first["model"],
                "minibatch": _whole(first["minibatch"]),
                "measured_s": median,
                "measured_low_s": same["per_step_s"].min(),
                "measured_high_s": same["per_step_s"].max(),
                "repeats": len(same),
                "predicted_s": prediction,
                "error": prediction / median - 1,
                "compute_source": first["compute_source"],
            }
        )
    return pd.DataFrame(rows, columns=VALIDATION_COLUMNS)


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
        if _plain(base["data_size"]) != _plain(row["data_size"]):
            continue
        workers, step_s = int(row["workers"]), (base["compute_s"] + base["data_s"]) / base["steps"]
        seconds = {
            COMMUNICATION: row["comm_s"] - row["overlap_s"],
            "waiting for the slowest": row["straggler_s"],
            "slower steps": row["compute_s"] + row["data_s"] - row["steps"] * step_s,
            "whole steps": (row["steps"] - base["steps"] / workers) * step_s,
        }
        lost_s, epochs = sum(seconds.values()), _whole(row["epochs"]) or 1
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
                cluster,
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
            and all(_plain(run[name]) == _plain(row[name]) for name in ("paper", "workers", *same))
            and str(run["model"]).count("-") == str(row["model"]).count("-")
        )

    tasks: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}  # runs by id, once whatever the clusters
    methods: dict[tuple[Any, ...], set[str]] = {}
    for run in runs:
        if alike(run):
            task = (run["dataset"], run["model"], _whole(run["model_params"]) or 0)
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
        return _whole(run.get("model_params"))
    params = _whole(run.get("worker_params"))
    return _whole(run.get("model_params")) if params is None else params


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
    samples, train_s = _whole(run.get("samples")), timing.train_s
    if samples is None:
        samples = timing.steps * (_whole(run.get("global_batch")) or 0)
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
        "epoch_s": train_s / (_whole(run.get("epochs")) or 1),
        "time_to_target_s": time_to_target_s,
        "steps_to_target": target_step,
        "target_reached": None if target_step is None else math.isfinite(target_step),
        "samples_per_s": samples / train_s if train_s else math.nan,
        "evidence": "simulated",
        "run_evidence": run.get("evidence"),
        "compute_source": timing.compute_source,
    }


def _add_speedups(frame: pd.DataFrame) -> None:
    """Fill the speedup columns and the runs they compare with, in place."""
    rows = frame.to_dict("records")
    one_worker: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    sequential: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["workers"] == 1:
            one_worker.setdefault(_same_code(row), []).append(row)
        if row["method"] == "sequential":
            key = _sequential(row, row["minibatch"])
            if key not in sequential or row["samples_per_s"] > sequential[key]["samples_per_s"]:
                sequential[key] = row
    for row in rows:
        bases = one_worker.get(_same_code(row), [])
        chosen = min(
            bases,
            key=lambda base: (
                base["sync_period"] != row["sync_period"],
                base["seed"] != row["seed"],
                base["data_size"] != row["data_size"],
                base["run_evidence"] != row["run_evidence"],
                base["run_id"],
            ),
            default=None,
        )
        row["speedup_same_code"], row["same_code_run_id"] = _against(row, chosen)
        fastest = max(
            filter(
                None,
                (sequential.get(_sequential(row, row[batch])) for batch in ("minibatch", "global_batch")),
            ),
            key=lambda base: base["samples_per_s"],
            default=None,
        )
        row["speedup_best_sequential"], row["best_sequential_run_id"] = _against(row, fastest)
        row["best_sequential_threads"] = None if fastest is None else _threads(fastest)
    for name in (
        "speedup_same_code",
        "same_code_run_id",
        "speedup_best_sequential",
        "best_sequential_run_id",
        "best_sequential_threads",
    ):
        frame[name] = [row[name] for row in rows]


def _same_code(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["cluster"], *(_plain(row[name]) for name in _BASE))


def _sequential(row: Mapping[str, Any], batch: Any) -> tuple[Any, ...]:
    return (
        row["cluster"],
        row["dataset"],
        row["model"],
        _whole(row["model_params"]),
        row["optimizer"],
        _threads(row),
        _whole(batch),
    )


def _threads(row: Mapping[str, Any]) -> int:
    return _whole(row.get("threads_per_worker")) or 1


def _against(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> tuple[float, str | None]:
    if base is None:
        return math.nan, None
    return row["samples_per_s"] / base["samples_per_s"], base["run_id"]


def _label(run: Mapping[str, Any]) -> str:
    """The point in a few words, as a table shows it."""
    words = [run["method"], run["dataset"], run["model"], f"{run['workers']} workers"]
    if _whole(run.get("sync_period")) is not None:
        words.append(f"K={_whole(run['sync_period'])}")
    if isinstance(run.get("algorithm"), str) and run["algorithm"] != "library":
        words.append(run["algorithm"])
    if _threads(run) > 1:
        words.append(f"{_threads(run)} threads")
    return ", ".join(map(str, words))


def _is_validation(experiments: Any) -> bool:
    if experiments is None or isinstance(experiments, float):
        return False
    names = [experiments] if isinstance(experiments, str) else list(experiments)
    return any(name.split("/")[0] == "validation" for name in names)


def _plain(value: Any) -> Any:
    """A value that equals itself when it is absent, so that it can be part of a key."""
    return None if value is None or pd.isna(value) else value


def _whole(value: Any) -> int | None:
    return None if value is None or pd.isna(value) or not np.isfinite(value) else int(value)
