"""Made-up runs of training on Spark and its projections, with known answers."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.reporting import synthetic

PARAMS = {
    "fc-256-256": 269_322,
    "cnn-64_filters8-16_kernel5": 55_000,
    "rnn-64_steps28": 6_700,
    "lstm-64_steps28": 24_800,
}
STEP = {"fc": 2e-3, "cnn": 9e-3, "rnn": 6e-3, "lstm": 1.5e-2}  # seconds of one worker, 64 samples
EXCHANGES = {"fc": 5, "cnn": 7, "rnn": 57, "lstm": 57}  # of a model-parallel step
JOB, TURN = 0.12, 1e-4  # seconds of an exchange by a job, and among tasks
SAMPLES, BATCH = 12_000, 64
OPTIMIZERS = ("sgd", "rmsprop")


def kind(model: str) -> str:
    return model.split("-")[0].split("_")[0]


def step_parts(run: dict[str, Any]) -> dict[str, float]:
    """Seconds of a step: compute is shared out, an exchange costs ``JOB`` or ``TURN``."""
    batch = run["global_batch"] / BATCH
    compute = (
        STEP[kind(run["model"])] * batch * run["model_params"] / PARAMS.get(run["model"], run["model_params"])
    )
    if run["method"] == "sequential" or run["workers"] == 1:
        return {"compute_s": compute, "comm_s": 0.0}
    each = JOB if run["execution"] == "job_per_exchange" else TURN
    count = EXCHANGES[kind(run["model"])] if run["variant"] in ("model", "hybrid") else 1
    parts = {"compute_s": compute / min(run["workers"], 2), "comm_s": each * count}
    if run["execution"] == "job_per_exchange":
        parts |= {"schedule_s": 0.7 * each * count, "serialise_s": 0.2 * each * count}
    return parts


def record(**given: Any) -> dict[str, Any]:
    """A whole record of paper ``spark``: two measured workers of model parallelism unless told otherwise."""
    model = given.get("model", "fc-256-256")
    values = {
        "paper": "spark", "experiments": ["spark_workers/two"], "method": "spark", "variant": "model", "workers": 2,
        "model": model, "model_params": PARAMS.get(model, 100_000), "data_size": SAMPLES, "epochs": 1,
        "execution": "barrier", "cluster": "local", "cut": "auto", "group_size": 0, "staleness": 0, "sync_period": 1,
        "evidence": "measured", "optimizer": "rmsprop", "lr": 0.001, "target_value": None,
        "recipe": "{}", "lr_scaling": "none",
    } | given  # fmt: skip
    if values["method"] == "sequential":
        values |= {"variant": "default", "workers": 1} | dict.fromkeys(
            ("execution", "cluster", "cut", "group_size", "staleness", "sync_period")
        )
    values.setdefault("minibatch", BATCH // values["workers"])
    values["oversubscribed"] = values["evidence"] == "measured" and values["workers"] > 2
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
    made = synthetic.record(**values, run_id=f"spark_{model}_w{values['workers']}_{digest}")
    made |= {name: values[name] for name in ("sync_period", "optimizer", "algorithm") if name in values}
    steps = max(1, values["data_size"] * values["epochs"] // made["global_batch"])
    made |= {"steps": steps, "samples": steps * made["global_batch"], "spark_jobs": None}
    if values["evidence"] == "measured":
        parts = {name: steps * seconds for name, seconds in step_parts(made).items()}
        train = parts["compute_s"] + parts["comm_s"]
        train *= 1 + 0.02 * values.get("repeat", 0)
        made |= parts | {"data_s": 0.0, "other_s": 0.0, "train_s": train, "wall_s": train, "eval_s": 0.0}
        made |= {
            "samples_per_s": made["samples"] / train,
            "session_s": 6.0 if values["method"] == "spark" else None,
        }
        count = EXCHANGES[kind(model)] if values["variant"] == "model" else 1
        made |= {"exchanges": count if values["method"] == "spark" else None}
        if values["execution"] == "job_per_exchange":
            made |= {"spark_jobs": steps * count}
    worst = 0.002 * values.get("seed", 0)
    made |= {
        "accuracy": 0.85 - worst - (0.0 if values["optimizer"] == "rmsprop" else 0.02),
        "target_reached": None,
    }
    return made | {name: value for name, value in given.items() if name in ("accuracy", "gradient_norm")}


def records() -> list[dict[str, Any]]:
    """One of each sweep of the configuration."""
    rows = []
    for model in PARAMS:
        rows += [
            record(model=model, method="sequential", experiments=["spark_workers/sequential"], repeat=r)
            for r in (0, 1, 2)
        ]
        rows.append(record(model=model, variant="data", workers=1, experiments=["spark_workers/one"]))
        for variant, workers in itertools.product(("model", "data", "hybrid"), (2, 4, 8)):
            if variant == "hybrid" and workers == 2:
                continue
            group = {"group_size": 2} if variant == "hybrid" else {}
            rows += [
                record(model=model, variant=variant, workers=workers, repeat=r, **group)
                for r in ((0, 1, 2) if workers == 2 else (0,))
            ]
        for variant, workers, seed in itertools.product(("model", "data"), (1, 4, 16), (0, 1, 2)):
            rows.append(
                record(
                    model=model,
                    variant=variant,
                    workers=workers,
                    seed=seed,
                    evidence="simulated",
                    data_size=3000,
                    epochs=2,
                    experiments=["spark_workers/simulated"],
                )
            )
        for optimizer, epochs in itertools.product(OPTIMIZERS, (1, 8)):
            rows.append(
                record(
                    model=model,
                    optimizer=optimizer,
                    epochs=epochs,
                    evidence="simulated",
                    data_size=6000,
                    gradient_norm=0.1,
                    experiments=["spark_convergence/images"],
                )
            )
    for variant, execution in itertools.product(("model", "data"), ("barrier", "job_per_exchange")):
        rows.append(
            record(
                variant=variant,
                execution=execution,
                minibatch=512,
                data_size=8192,
                optimizer="sgd",
                lr=0.1,
                experiments=["spark_executions/measured"],
            )
        )
    cnn = "cnn-64_filters8-16_kernel5"
    for size, method in itertools.product((10_000, 100_000, 1_000_000), ("sequential", "spark")):
        rows.append(
            record(
                model=cnn,
                method=method,
                variant="data",
                data_size=size,
                dataset="generated_images",
                optimizer="sgd",
                lr=0.05,
                experiments=["spark_sizes/two"],
            )
        )
    for (model, params), method in itertools.product(
        (("fc-128", 101_770), ("fc-300-300", 328_810), ("fc-700-700", 1_047_210)),
        ("sequential", "model", "data"),
    ):
        own = {"method": "sequential"} if method == "sequential" else {"variant": method}
        rows.append(
            record(
                model=model,
                model_params=params,
                optimizer="sgd",
                lr=0.05,
                experiments=["spark_models/two"],
                **own,
            )
        )
    return rows + late_records()


def late_records() -> list[dict[str, Any]]:
    """Asynchronous training: points of accuracy are lost with staleness times rate; beyond 4 it diverges."""
    rows = []
    for staleness, lr, seed in itertools.product((0, 2, 8), (0.05, 0.2, 0.8), (0, 1)):
        own = {
            "variant": "async", "staleness": staleness, "lr": lr, "seed": seed, "workers": 8, "optimizer": "sgd",
            "evidence": "simulated", "experiments": ["spark_async/grid"],
        }  # fmt: skip
        if staleness * lr > 4:
            rows.append(record(**own, status="diverged", accuracy=None))
        else:
            made = record(**own, accuracy=0.85 - 0.02 * staleness * lr)
            rows.append(made | {"staleness_mean": staleness / 2, "staleness_max": staleness})
    return rows


def timings(runs: pd.DataFrame) -> pd.DataFrame:
    """A time model under which simulated workers speed up by half their number on this host, by a fifth on gigabit."""
    rows = []
    own = runs[(runs["paper"] == "spark") & (runs["evidence"] == "simulated") & (runs["status"] == "ok")]
    for cluster, share in (("this-host", 0.5), ("gigabit-cpu", 0.2)):
        for run in own.to_dict("records"):
            seconds = 40.0 / (max(1.0, share * run["workers"]) if run["workers"] > 1 else 1.0)
            known = ("run_id", "paper", "method", "workers", "model", "dataset", "seed", "repeat")
            rows.append(
                {name: run[name] for name in known}
                | {"cluster": cluster, "evidence": "simulated", "train_s": seconds}
                | {"samples_per_s": run["samples"] / seconds}
            )
    return pd.DataFrame(rows)


def curves(runs: pd.DataFrame, results: Path) -> None:
    """Loss and gradient norm that halve each epoch, the gradient's from 2."""
    own = runs[runs["gradient_norm"].notna()]
    for run in own.to_dict("records"):
        epochs = np.arange(run["epochs"] + 1)
        frame = pd.DataFrame({"epoch": epochs, "step": epochs * 10, "train_loss": 2.3 * 0.5**epochs})
        frame = frame.assign(
            valid_accuracy=1 - 0.5**epochs, valid_loss=0.5**epochs, gradient_norm=2.0 * 0.5**epochs
        )
        path = results / "runs" / run["run_id"] / "curve.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path)


def projections() -> pd.DataFrame:
    """Projections as the cost model leaves them: a step is 64 microseconds of compute a sample, and a job of 0.2 s."""
    rows = []

    def add(what: str, model: str, params: float, size: float, workers: int, **given: Any) -> None:
        jobs = given.get("execution", "job_per_exchange") == "job_per_exchange"
        alone = 6.4e-5 * size * params / 1e6
        transfer = 8.0 * params * workers / (given.get("mbit_s", 941.6) * 1e6)
        epoch = alone / workers + (0.2 if jobs else 0.001) + transfer
        state = 12.0 * params / (workers if given.get("variant") == "model" else 1)
        over = state > 16e9
        rows.append(
            {
                "run_id": f"p{len(rows)}", "paper": "spark", "experiments": [f"spark_projection/{what}"], "what": what,
                "model_kind": kind(model), "model": model, "params": int(params), "dataset": "generated_images",
                "data_size": int(size), "minibatch": 32, "global_batch": 32 * workers, "workers": workers,
                "cluster": "commodity-2017", "mbit_s": 941.6, "execution": "job_per_exchange", "variant": "data",
                "optimizer": "sgd", "steps_per_job": max(1, int(size) // (32 * workers)), "least_steps_per_job": 8,
                "step_s": epoch / 10, "epoch_s": epoch, "alone_epoch_s": alone, "speedup": alone / epoch,
                "capped_by": "transfer", "state_bytes": state,
                "alone_bytes": 12.0 * params, "memory_bytes": 16_000_000_000, "status": "over_memory" if over else "ok",
                "reason": "a worker needs too much" if over else None, "evidence": "projected", "constants": "{}",
            } | given
        )  # fmt: skip

    cnn, fc = "cnn-512_filters32-64_kernel5", "fc-512-512"
    for size, workers in itertools.product((1e4, 1e5, 1e6, 5e6), (2, 8, 16, 32, 64)):
        add("sizes", cnn, 1.66e6, size, workers)
        add("sizes", fc, 6.7e5, size, workers)
    for params, variant, execution in itertools.product(
        (1e5, 1e6, 4e6, 1e8, 1e9, 4e9), ("model", "data"), ("barrier", "job_per_exchange")
    ):
        for workers in (2, 5, 16):
            add("models", f"fc-{int(params)}", params, 1e5, workers, variant=variant, execution=execution)
    for model, variant, workers in itertools.product(
        (cnn, fc, "rnn-256_steps28", "lstm-256_steps28"), ("model", "data"), (1, 2, 8, 32)
    ):
        add("workers", model, 1e6, 1e5, workers, variant=variant)
    for workers, size, mbit_s in itertools.product(
        (8, 12, 16, 32, 64), (1e4, 1e5, 1e6, 5e6), (10, 100, 1000, 10_000)
    ):
        add("map", cnn, 1.66e6, size, workers, mbit_s=mbit_s)
    add("map", cnn, 1.66e6, 1e6, 16)
    return pd.DataFrame(rows)


def exactness() -> pd.DataFrame:
    """Two networks on one and two workers; the largest difference in single precision is 3e-8."""
    rows = []
    for model, execution, devices, precision in itertools.product(
        ("fc", "lstm"), ("barrier", "job_per_exchange"), (1, 2), ("double", "single")
    ):
        single, several = precision == "single", devices > 1
        sent = 5760 * several
        rows.append(
            {
                "paper": "spark", "evidence": "simulated", "model": model, "cut": "auto", "execution": execution,
                "optimizer": "sgd", "precision": precision, "devices": devices, "steps": 20,
                "worst_error": several * (3e-8 if single else 6e-17), "torch_error": 6e-8 if single else None,
                "step_bytes": sent if single else None, "expected_bytes": sent if single else None,
                "bytes_as_predicted": True if single else None,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def published() -> pd.DataFrame:
    """The four printed speedups, one of them of the abstract."""
    rows = [
        ("spark-speedup-cnn", "cnn", None, None, None, 11.0, "text"),
        ("spark-speedup-cnn-5m", "cnn", None, 5e6, None, 11.0, "review"),
        ("spark-speedup-fc-100k", "fc", None, 1e5, None, 7.2, "review"),
        ("spark-speedup-fc-4g", "fc", 5, None, 4e9, 5.6, "review"),
    ]
    names = ["id", "model", "workers", "data_size", "params", "value", "read_as"]
    frame = pd.DataFrame(rows, columns=names).assign(paper="spark", metric="speedup", role="target", unit="x")
    return frame.set_index("id")
