"""Made-up results with known answers: whatever the tests need, without running anything."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.columns import to_frame, to_table, types
from implementations.reporting.utterances import COUNTS, SCHEMA

PARAMS = 669_706  # 784-512-512-10
SAMPLES, EPOCHS, MINIBATCH = 54_000, 2, 64
SCHEMA_TYPES = dict.fromkeys(COUNTS, "int64")  # of utterances


def record(**given: Any) -> dict[str, Any]:
    """A whole record: an ok simulated averaging run unless told otherwise."""
    values: dict[str, Any] = dict.fromkeys(types())
    values |= {
        "schema_version": 4,
        "paper": "averaging",
        "experiments": ["speedup/simulated"],
        "method": "averaging",
        "variant": "default",
        "dataset": "fashion_mnist",
        "data_size": SAMPLES,
        "model": "fc-512-512",
        "model_params": PARAMS,
        "workers": 4,
        "processes": 1,
        "threads_per_worker": 1,
        "oversubscribed": False,
        "device": "cpu",
        "scaling": "strong",
        "minibatch": MINIBATCH,
        "epochs": EPOCHS,
        "passes": 1,
        "sync_period": 10,
        "algorithm": "library",
        "mixing": "allreduce",
        "content": "parameters",
        "optimizer": "sgd",
        "init": "uniform",
        "schedule": "constant",
        "reduction": "mean",
        "momentum": 0.0,
        "recipe": '{"momentum": 0.0, "reduction": "mean"}',
        "lr": 0.1,
        "lr_scaling": "linear",
        "sharding": "static",
        "network": "loopback",
        "evidence": "simulated",
        "seed": 0,
        "repeat": 0,
        "target_metric": "accuracy",
        "target_value": 0.85,
        "status": "ok",
        "attempts": 1,
        "code_hash": "c0de",
        "data_hash": "da7a",
        "started_at": "2026-01-02T03:04:05Z",
        "cpu": "Example CPU",
        "cores": 2,
        "memory_bytes": 24 * 2**30,
        "blas": "MKL 2025.3",
        "python": "3.11.7",
        "torch_version": "2.13.0",
        "mpi": "MPICH 5.0.2",
        "platform": "Linux-6-x86_64",
    } | given
    values["global_batch"] = values["workers"] * values["minibatch"]
    if values["method"] != "averaging":
        values |= {"mixing": None, "content": None, "sync_period": given.get("sync_period")}
    if values["method"] == "sequential":
        values |= {"algorithm": None, "lr_scaling": None, "sync_period": None}
    words = [values[name] for name in ("method", "dataset", "model")]
    words += [f"w{values['workers']}", values["evidence"], f"s{values['seed']}"]
    rest = json.dumps(
        {
            k: values[k]
            for k in (
                "experiments",
                "threads_per_worker",
                "algorithm",
                "repeat",
                "data_size",
                "sync_period",
                "lr_scaling",
                "mixing",
                "optimizer",
                "init",
                "schedule",
                "recipe",
                "lr",
                "minibatch",
                "content",
                "max_change_rule",
                "epochs",
            )
        },
        sort_keys=True,
    )
    values["run_id"] = given.get("run_id") or "_".join(
        [*words, hashlib.sha256(rest.encode()).hexdigest()[:10]]
    )
    if values["status"] in ("ok", "target_missed", "diverged"):
        values = values | {name: value for name, value in _outcome(values).items() if name not in given}
    return values


def _outcome(values: dict[str, Any]) -> dict[str, Any]:
    workers = values["workers"]
    per_epoch = max(1, values["data_size"] // (workers * values["minibatch"]))
    steps = per_epoch * values["epochs"]
    period = values["sync_period"] or 1
    # an average every `period` steps and one that closes the epoch
    sends = 0 if values["method"] == "sequential" else values["epochs"] * -(-per_epoch // period)
    total = 2 * (workers - 1) * 4 * values["model_params"] * sends
    draw = np.random.default_rng([values["seed"], workers, values["repeat"], period])
    accuracy = (
        0.885 - 0.006 * np.log2(workers) - 0.0004 * period * (workers > 1) + 0.002 * draw.standard_normal()
    )
    if values["lr_scaling"] == "none":
        accuracy -= 0.03
    out = {
        "steps": steps,
        "samples": steps * workers * values["minibatch"],
        "payload_bytes": 4 * values["model_params"] * sends,
        "sent_bytes_total": total,
        "sent_bytes_predicted": total,
        "paper_bytes": total,
        "sent_bytes_max_worker": -(-total // workers),
        "messages": 2 * (workers - 1) * sends,
        "state_bytes_per_worker": 8 * values["model_params"],
        "peak_rss_bytes": 500_000_000,
        "accuracy": float(accuracy),
        "loss": float(1.2 - accuracy),
        "valid_accuracy": float(accuracy + 0.004),
        "valid_loss": float(1.19 - accuracy),
        "train_loss": float(0.9 - accuracy / 2),
        "target_reached": True,
    }
    if values["evidence"] == "measured":
        noise = 1 + 0.04 * draw.standard_normal()
        compute = (
            9.0
            / min(workers * values["threads_per_worker"], 2) ** 0.9
            * values["data_size"]
            / SAMPLES
            * noise
        )
        comm = (
            0.0 if workers == 1 else 2.5 * workers / period * (1.3 if values["algorithm"] == "ring" else 1.0)
        )
        parts = {"data_s": 0.6 / workers, "compute_s": compute, "comm_s": comm, "eval_s": 0.8, "other_s": 0.1}
        wall = sum(parts.values()) + 0.02
        train = wall - parts["eval_s"]
        out |= parts | {
            "uncovered_s": 0.02,
            "wall_s": wall,
            "train_s": train,
            "samples_per_s": out["samples"] / train,
            "time_to_target_s": train * 0.6,
            "host_wall_s": wall + 2,
        }
    else:
        out |= {"host_wall_s": 20.0}
    return out


def records() -> list[dict[str, Any]]:
    """What the default tier leaves, with a few runs that failed."""
    found = []
    for repeat in range(5):
        for threads in (1, 2):
            found.append(
                record(
                    method="sequential",
                    workers=1,
                    evidence="measured",
                    threads_per_worker=threads,
                    repeat=repeat,
                    experiments=["speedup/sequential"],
                )
            )
        for method in ("data_parallel", "averaging"):
            for workers in (1, 2, 4):
                found.append(
                    record(
                        method=method,
                        workers=workers,
                        evidence="measured",
                        processes=workers,
                        oversubscribed=workers > 2,
                        repeat=repeat,
                        experiments=["speedup/ranks"],
                    )
                )
        for algorithm in ("ring", "butterfly"):
            for workers in (2, 4):
                found.append(
                    record(
                        workers=workers,
                        evidence="measured",
                        processes=workers,
                        algorithm=algorithm,
                        oversubscribed=workers > 2,
                        repeat=repeat,
                        experiments=["algorithms/ranks"],
                    )
                )
    period_names = {"averaging": ["period/averaging", "rate/scaling"], "data_parallel": ["period/gradients"]}
    for seed in range(3):
        for method in ("data_parallel", "averaging"):
            for workers in (1, 2, 4, 8, 16, 32):
                names = ["speedup/simulated"] + (period_names[method] if workers == 16 else [])
                found.append(record(method=method, workers=workers, seed=seed, experiments=names))
        found.append(record(method="sequential", workers=1, seed=seed, experiments=["speedup/one-worker"]))
        for period in (1, 5, 20, 50):
            found.append(record(workers=16, sync_period=period, seed=seed, experiments=["period/averaging"]))
        found.append(record(workers=16, lr_scaling="none", seed=seed, experiments=["rate/scaling"]))
    for size in (4_000, 16_000, 54_000):
        for hidden, params in (("fc-64", 50_890), ("fc-256-256", 269_322), ("fc-1024-1024", 1_863_690)):
            for workers in (1, 4, 16):
                for method in ("sequential", "data_parallel", "averaging"):
                    if method != "sequential" or workers == 1:
                        found.append(
                            record(
                                method=method,
                                workers=workers,
                                data_size=size,
                                model=hidden,
                                model_params=params,
                                experiments=["sizes/grid"],
                            )
                        )
    return found


def broken(log_dir: Path | None = None) -> list[dict[str, Any]]:
    """Runs that failed, ran out of time and diverged."""
    logs: list[str | None] = [None, None]
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
        for i, text in enumerate(
            ["reading data\nstep 10\nMemoryError: <cannot> allocate & stop\n", "step 1\nstep 2\n"]
        ):
            (log_dir / f"{i}.log").write_text(text)
            logs[i] = str(log_dir / f"{i}.log")
    return [
        record(
            workers=32,
            seed=9,
            status="failed",
            reason="rank 3 died: MemoryError",
            log_path=logs[0],
            experiments=["memory/large"],
        ),
        record(
            workers=4,
            seed=8,
            evidence="measured",
            status="timeout",
            reason="over the limit of 600 s",
            log_path=logs[1],
            experiments=["slow/ranks"],
        ),
        record(
            workers=32,
            seed=7,
            lr=3.0,
            status="diverged",
            reason="loss is nan at step 12",
            accuracy=None,
            loss=None,
            experiments=["rate/high"],
        ),
    ]


def runs(rows: list[dict[str, Any]] | None = None) -> pd.DataFrame:
    """Records as ``runs.parquet`` holds them."""
    return to_frame(to_table(records() if rows is None else rows))


def timings(frame: pd.DataFrame) -> pd.DataFrame:
    """A time model of two constants per cluster over the simulated runs, and projections of the paper's sizes."""
    rows = []
    for cluster, compute, sync in (("this-host", 1.4e-3, 2.0e-3), ("ten-gigabit-cpu", 1.4e-3, 6.0e-3)):
        for run in frame[(frame["evidence"] == "simulated") & (frame["status"] == "ok")].to_dict("records"):
            period = 1 if pd.isna(run["sync_period"]) else run["sync_period"]
            scale = run["model_params"] / PARAMS
            step = compute * scale + (run["workers"] > 1) * sync * scale / period * (1 - 1 / run["workers"])
            alone = run["data_size"] // MINIBATCH * EPOCHS * compute * scale
            train = run["steps"] * step
            rows.append(
                {name: run[name] for name in _KEYS}
                | {
                    "cluster": cluster,
                    "nodes": run["workers"],
                    "step_s": step,
                    "compute_s": run["steps"] * compute * scale,
                    "comm_s": train - run["steps"] * compute * scale,
                    "straggler_s": 0.0,
                    "overlap_s": 0.0,
                    "train_s": train,
                    "epoch_s": train / EPOCHS,
                    "time_to_target_s": train * 0.7,
                    "samples_per_s": run["samples"] / train,
                    "speedup_same_code": alone / train,
                    "speedup_best_sequential": 0.95 * alone / train,
                    "best_sequential_threads": 1,
                    "evidence": "simulated",
                    "compute_source": "calibrated table",
                }
            )
    for workers, epoch in ((1, 15270.0), (2, 9100.0), (4, 4700.0), (8, 2480.0), (16, 1360.0), (32, 790.0)):
        rows.append(
            dict.fromkeys(_KEYS)
            | {
                "run_id": f"projected-w{workers}",
                "paper": "averaging",
                "method": "averaging",
                "workers": workers,
                "nodes": workers,
                "sync_period": 10,
                "minibatch": 1024,
                "model": "dnn-6x2048",
                "model_params": 39_928_422,
                "dataset": "switchboard",
                "cluster": "stampede-k20",
                "train_s": 15 * epoch,
                "epoch_s": epoch,
                "speedup_same_code": 15270.0 / epoch,
                "speedup_best_sequential": 15270.0 / epoch,
                "evidence": "projected",
                "compute_source": "roofline",
            }
        )
    return pd.DataFrame(rows)


_KEYS = [
    "run_id",
    "paper",
    "workers",
    "method",
    "dataset",
    "data_size",
    "model",
    "model_params",
    "minibatch",
    "sync_period",
    "algorithm",
    "seed",
    "repeat",
]


def losses(slower: float = 0.5) -> pd.DataFrame:
    """A time model's split of lost minutes: 1.5 of communication and ``slower`` on 16 GPUs, half as much on twice."""
    rows = []
    for method, period in (("averaging", 10), ("averaging", 20), ("data_parallel", None)):
        for workers in (2, 4, 8, 16, 32):
            minutes = {"communication": 24 / workers, "waiting for the slowest": 0.0}
            minutes |= {"slower steps": 16 * slower / workers, "whole steps": 0.0}
            lost = sum(minutes.values())
            row = {"evidence": "projected", "cluster": "stampede-k20", "method": method, "workers": workers}
            row |= {"sync_period": period, "lost_min": lost, "epoch_min": 254.5 / workers + lost}
            rows += [
                row | {"part": part, "minutes": value, "share_of_lost": value / lost}
                for part, value in minutes.items()
            ]
    return pd.DataFrame(rows).astype({"workers": "Int64", "sync_period": "Int64"})


# -- speech ------------------------------------------------------------------------------------------------------------

_DRAW = np.random.default_rng(0)
SPEAKERS = np.repeat([f"speaker{i}" for i in range(10)], 13)
WORDS = _DRAW.integers(1, 12, len(SPEAKERS))
FRAMES = 30 * WORDS + _DRAW.integers(0, 40, len(SPEAKERS))
_HARD = np.exp(_DRAW.normal(0, 0.7, len(SPEAKERS)))
_HARD /= (_HARD * WORDS).sum() / WORDS.sum()

RATES = {"ng_sgd": 0.32, "sgd": 0.016}
RECIPES = {
    "ng_sgd": {"max_change": 0.075, "max_change_rule": "author", "ng_update_period": 1, "reduction": "sum"},
    "sgd": {"momentum": 0.0, "reduction": "sum"},
}
SCHEDULES = {
    "constant": {},
    "exponential": {"lr_final": 0.01},
    "newbob": {"newbob_start_below": 0.005, "newbob_stop_below": 0.001},
}


def speech_record(**given: Any) -> dict[str, Any]:
    """A whole record of recognised speech, ``utterances`` (run_id to frame_errors) beside it under that key.

    ``rate``: about what the word error is to be; ``decode``: whether there are words at all.
    """
    values: dict[str, Any] = {
        "dataset": "an4",
        "data_kind": "real",
        "data_size": 200_000,
        "model": "fc-256-256-256",
        "model_params": 300_000,
        "epochs": 8,
        "minibatch": 128,
        "optimizer": "ng_sgd",
        "init": "rbm",
        "schedule": "exponential",
        "sharding": "balanced",
        "experiments": ["speech/workers"],
        "target_value": None,
    } | given
    optimizer, workers = values["optimizer"], values.get("workers", 4)
    values.setdefault("lr", RATES[optimizer])
    recipe = RECIPES[optimizer] | SCHEDULES[values["schedule"]]
    recipe |= {"rbm_gaussian_epochs": 2} if values["init"] == "rbm" else {}
    recipe |= values.pop("settings", {})
    values |= {"recipe": json.dumps(recipe, sort_keys=True)}
    values |= {
        name: recipe.get(name) for name in ("reduction", "momentum", "max_change_rule", "ng_update_period")
    }
    rate, decode = values.pop("rate", None), values.pop("decode", True)
    found = record(**values)
    if found["status"] not in ("ok", "target_missed"):
        return found
    draw = np.random.default_rng(int(hashlib.sha256(found["run_id"].encode()).hexdigest()[:8], 16))
    period = found["sync_period"] or 10
    if rate is None:
        loss = np.log2(workers) * (0.004 if optimizer == "ng_sgd" else 0.018) * (min(period, 98) / 10) ** 0.2
        rate = 0.085 + loss + (0.012 if values["init"] == "random" else 0.0) * (1 + np.log2(workers) / 4)
        rate += 0.003 * draw.standard_normal() + (0.008 if found["mixing"] in ("butterfly", "ring") else 0.0)
    wrong = draw.binomial(WORDS, np.clip(rate * _HARD, 0, 1))
    counts = {
        "substitutions": wrong // 2,
        "deletions": wrong // 3,
        "insertions": wrong - wrong // 2 - wrong // 3,
        "frame_errors": draw.binomial(FRAMES, min(1.0, 0.3 + rate)),
    }
    totals = {name: int(rows.sum()) for name, rows in counts.items()}
    frame_error = totals.pop("frame_errors") / int(FRAMES.sum())
    found |= totals | {
        "wer": float(wrong.sum() / WORDS.sum()),
        "reference_words": int(WORDS.sum()),
        "frame_error": frame_error,
        "accuracy": 1 - frame_error,
        "valid_accuracy": 1 - frame_error + 0.01,
        "valid_wer": 0.08,
        "epochs_done": found["epochs"],
        "drift": 0.02 * np.log2(workers) * (min(period, 98) / 10) ** 0.5 if workers > 1 else None,
    }
    if found["mixing"] not in (None, "allreduce"):
        found |= {"rank0_wer": found["wer"] + 0.01, "rank0_frame_error": frame_error + 0.01}
    if found["evidence"] == "measured":
        seconds = 40 / workers + (0.0 if workers == 1 else 1.5)
        share = 0.0 if workers == 1 else 0.05 * workers / (2 if found["mixing"] == "butterfly" else 1)
        found |= {"train_s": seconds, "comm_s": share * seconds, "wall_s": seconds + 1}
    if not decode:
        return found | dict.fromkeys([*totals, "wer", "reference_words", "valid_wer"])
    names = [f"u{i:03d}" for i in range(len(WORDS))]
    rows = {
        "run_id": found["run_id"],
        "utterance": names,
        "speaker": SPEAKERS,
        "words": WORDS,
        "frames": FRAMES,
    }
    return found | {"utterances": pd.DataFrame(rows | counts)[SCHEMA.names]}


def utterances(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The utterances of such records, as ``utterances.parquet`` holds them."""
    frames = [row["utterances"] for row in rows if "utterances" in row]
    return pd.concat([SCHEMA.empty_table().to_pandas(), *frames], ignore_index=True).astype(SCHEMA_TYPES)


def speech_records(**common: Any) -> list[dict[str, Any]]:
    """What the experiments on speech leave; plain SGD fails on 32 workers, and on 16 from random weights."""
    found = []

    def add(**given: Any) -> None:
        if given.get("optimizer") == "sgd" and given.get("workers") == 32:
            given |= {"status": "diverged", "reason": "loss is nan"}
        found.append(speech_record(**common | given))

    for seed in range(3):
        for optimizer in ("ng_sgd", "sgd"):
            for init in ("rbm", "random"):
                for workers in (1, 4, 16, 32):
                    rate = 0.9 if (optimizer, init, workers) == ("sgd", "random", 16) else None
                    add(optimizer=optimizer, init=init, workers=workers, seed=seed, rate=rate)
            lr = RATES[optimizer] / 4
            add(optimizer=optimizer, workers=16, lr=lr, seed=seed, experiments=["speech/best-rate"])
            for factor in (0.25, 0.5, 1, 2, 4):
                for workers in (1, 4, 16, 32):
                    add(optimizer=optimizer, workers=workers, lr=RATES[optimizer] * factor, seed=100 + seed,
                        rate=0.1 + 0.02 * np.log2(factor) ** 2 + 0.002 * workers, decode=False,
                        experiments=["speech_tuning/rates"])  # fmt: skip
        for period in (1, 5, 20, 100_000):
            add(workers=16, sync_period=period, seed=seed, experiments=["speech/period"])
        for schedule, settings, lr in (
            ("exponential", {"lr_final": 0.1}, 0.32),
            ("exponential", {}, 0.64),
            ("newbob", {}, 0.32),
            ("newbob", {"newbob_start_below": 0.00125}, 0.32),
            ("newbob", {"reject_worse": True}, 0.64),
        ):
            add(
                schedule=schedule,
                settings=settings,
                lr=lr,
                workers=16,
                seed=seed,
                experiments=["speech/schedule"],
            )
        add(schedule="newbob", workers=1, seed=seed, experiments=["speech/schedule"])
        for mixing in ("butterfly", "ring"):
            for workers in (16, 32):
                add(workers=workers, mixing=mixing, seed=seed, experiments=["speech/mixing"])
        for workers in (1, 16):
            add(workers=workers, minibatch=32, seed=seed, experiments=["speech/minibatch"])
            add(workers=workers, settings={"max_change_rule": "standard"}, lr=0.008, seed=seed,
                experiments=["speech/max-change"])  # fmt: skip
        for content in ("parameters", "with_momentum"):
            add(optimizer="sgd", settings={"momentum": 0.5}, lr=0.002, workers=16, content=content, seed=seed,
                experiments=["speech/momentum"])  # fmt: skip
        add(workers=16, lr_scaling="none", seed=seed, experiments=["speech/unscaled"])
        for size in (50_000, 100_000):
            for model, params in (("fc-128-128-128", 100_000), ("fc-256-256-256", 300_000)):
                for workers in (1, 4, 16):
                    add(data_size=size, model=model, model_params=params, workers=workers, seed=seed,
                        experiments=["speech_sizes/grid"])  # fmt: skip
    for repeat in range(3):
        given = {"evidence": "measured", "repeat": repeat, "epochs": 1, "decode": False}
        for method, workers, mixing in (
            ("sequential", 1, None),
            ("averaging", 1, "allreduce"),
            ("averaging", 2, "allreduce"),
            ("averaging", 4, "allreduce"),
            ("averaging", 4, "butterfly"),
            ("averaging", 4, "ring"),
            ("data_parallel", 1, None),
            ("data_parallel", 2, None),
        ):
            add(method=method, workers=workers, mixing=mixing, oversubscribed=workers > 2, processes=workers,
                experiments=["speech_ranks/ranks"], **given)  # fmt: skip
    return found


def validation() -> pd.DataFrame:
    """Predicted against measured steps of three models on one and two ranks, on two networks, and on four ranks."""
    rows = []
    for model, measured in (("fc-128-128", 4e-4), ("fc-512-512", 2.2e-3), ("fc-1024-1024", 6.1e-3)):
        for workers, network, error in (
            (1, "loopback", 0.03), (2, "loopback", -0.14), (2, "emulated-100mbit", 0.04), (4, "loopback", 0.5),
        ):  # fmt: skip
            rows.append(
                {
                    "run_id": f"dp_{model}_{workers}_{network}",
                    "group": f"data_parallel, fashion_mnist, {model}, {workers} workers, {network}",
                    "method": "data_parallel",
                    "variant": "default",
                    "workers": workers,
                    "network": network,
                    "oversubscribed": workers > 2,
                    "model": model,
                    "minibatch": 64,
                    "measured_s": measured,
                    "measured_low_s": measured * 0.97,
                    "measured_high_s": measured * 1.04,
                    "repeats": 5,
                    "predicted_s": measured * (1 + error),
                    "error": error,
                    "pace": 1.02 if workers < 4 else np.nan,
                    "predicted_at_pace_s": measured * (1 + error / 2) if workers < 4 else np.nan,
                    "error_at_pace": error / 2 if workers < 4 else np.nan,
                    "compute_source": "calibrated table",
                    "command": "snakemake --cores all suite",
                }
            )
    return pd.DataFrame(rows)


def published() -> pd.DataFrame:
    """A few rows in the form of config/published."""
    rows = [
        ("avg-speedup-w2", "speedup", 1.39, "x", 2, 10, "target"),
        ("avg-speedup-w4", "speedup", 2.65, "x", 4, 10, "target"),
        ("avg-speedup-w8", "speedup", 4.99, "x", 8, 10, "target"),
        ("avg-speedup-w16-k10", "speedup", 9.32, "x", 16, 10, "target"),
        ("avg-speedup-w16-k20", "speedup", 10.07, "x", 16, 20, "target"),
        ("avg-speedup-w32-k10", "speedup", 16.7, "x", 32, 10, "target"),
        ("avg-speedup-w32-text", "speedup", 17.0, "x", 32, 10, "context"),
        ("avg-epoch-w1", "epoch_time", 254.5, "min", 1, None, "input"),
    ]
    rows += [(f"avg-mpi-share-w{m}", "mpi_share", share, "%", m, 10, "target")
             for m, share in ((2, 10.9), (4, 13.4), (8, 14.9), (16, 15.8), (32, 15.2))]  # fmt: skip
    names = ["id", "metric", "value", "unit", "workers", "sync_period", "role"]
    frame = pd.DataFrame(rows, columns=names)
    frame = frame.assign(
        paper="averaging", version="v2", table_or_figure="Scaling figure", method="averaging"
    )
    frame = pd.concat([frame, _published_words()], ignore_index=True)
    whole = dict.fromkeys(("workers", "sync_period", "minibatch"), "Int64")
    return frame.astype(whole).set_index("id")


def _published_words() -> pd.DataFrame:
    """Word error rates in the form of config/published: SWB, and CallHome ten points worse."""
    rows = [
        ("w1", 14.7, 1, None, "ng_sgd", "rbm", "exponential", None),
        ("w8", 15.1, 8, 10, "ng_sgd", "rbm", "exponential", "allreduce"),
        ("w16-k10", 15.1, 16, 10, "ng_sgd", "rbm", "exponential", "allreduce"),
        ("w32", 15.2, 32, 10, "ng_sgd", "rbm", "exponential", "allreduce"),
        ("w16-k20", 15.8, 16, 20, "ng_sgd", "rbm", "exponential", "allreduce"),
        ("w1-random", 15.6, 1, None, "ng_sgd", "random", "exponential", None),
        ("w32-random", 16.4, 32, 10, "ng_sgd", "random", "exponential", "allreduce"),
        ("w1-newbob", 14.9, 1, None, "ng_sgd", "rbm", "newbob", None),
        ("w16-newbob", 15.4, 16, 10, "ng_sgd", "rbm", "newbob", "allreduce"),
        ("w1-sgd", 14.9, 1, None, "sgd", "rbm", "exponential", None),
        ("w16-sgd", 16.3, 16, 10, "sgd", "rbm", "exponential", "allreduce"),
        ("w16-butterfly", 15.6, 16, 10, "ng_sgd", "rbm", "exponential", "butterfly"),
    ]
    names = ["id", "value", "workers", "sync_period", "optimizer", "init", "schedule", "reduce"]
    parts = []
    for short, test_set, more in (("swb", "hub5-00-swb", 0.0), ("ch", "hub5-00-callhome", 10.0)):
        frame = pd.DataFrame(rows, columns=names)
        frame["id"] = f"avg-wer-{short}-" + frame["id"]
        parts.append(frame.assign(value=frame["value"] + more, test_set=test_set))
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(
        metric="wer", unit="%", minibatch=1024, role="target", paper="averaging", version="v2",
        table_or_figure="Table", method="averaging",
    )  # fmt: skip


def curves(frame: pd.DataFrame, results_dir: Path) -> None:
    """A curve beside each run that ended."""
    for run in frame[frame["status"] == "ok"].to_dict("records"):
        epochs = np.arange(EPOCHS + 1)
        share = epochs / EPOCHS
        train = 0.0 if pd.isna(run["train_s"]) else run["train_s"]
        folder = results_dir / "runs" / run["run_id"]
        folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(
            {
                "step": share * run["steps"],
                "epoch": epochs,
                "samples": share * run["samples"],
                "train_s": share * train,
                "train_loss": 2.3 - share,
                "valid_accuracy": 0.1 + (run["valid_accuracy"] - 0.1) * np.sqrt(share),
                "valid_loss": 2.3 - share,
                "sent_bytes_total": share * run["sent_bytes_total"],
                "payload_bytes": share * run["payload_bytes"],
            }
        ).to_parquet(folder / "curve.parquet")
