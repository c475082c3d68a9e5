"""Made-up results of independent subnet training and its baselines, with known answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.reporting import synthetic

FEATURES, CLASSES, SAMPLES, EPOCHS, MINIBATCH = 1024, 12, 24_000, 20, 50
TARGET = 0.6  # 8 subnets of 1024 units in all miss it
# Mbit/s of payload, as in the cluster files.
CLUSTERS = {
    "ten-megabit-cpu": 9.416,
    "hundred-megabit-cpu": 94.16,
    "gigabit-cpu": 941.6,
    "ten-gigabit-cpu": 9416.0,
}
IST_DEFAULTS = {
    "variant": "corrected", "server": "central", "partition": "uniform", "redraw": True, "overlap": 0.0,
    "lost_steps": False,
}  # fmt: skip


def parameters(width: int, layers: int, share: float = 1.0) -> int:
    """Weights of a net without biases, or of a subnet with this share of each hidden layer."""
    units = round(width * share)
    return units * (FEATURES + CLASSES) + (layers - 1) * units**2


def lost(units: float) -> float:
    """Accuracy that subnets of so many units lose: one point at 269 units."""
    return 0.25 * 2 ** (-units / 58)


def record(**given: Any) -> dict[str, Any]:
    """A whole record of paper ``ist``: subnets of 4 workers unless told otherwise.

    ``width`` and ``layers`` make the model; ``suffix`` is appended to its label; ``shift`` is added to its accuracy.
    """
    width, layers = given.pop("width", 1024), given.pop("layers", 1)
    suffix, shift, kind = given.pop("suffix", ""), given.pop("shift", 0.0), given.pop("kind", "fc_bn")
    method, workers, seed = given.get("method", "ist"), given.get("workers", 4), given.get("seed", 0)
    period = given.get("sync_period", 20) if method in ("ist", "averaging") else None
    values = {
        "paper": "ist", "experiments": ["ist/ist"], "method": method, "workers": workers, "dataset": "keywords",
        "data_kind": "generated", "data_size": SAMPLES, "model": f"{kind}{f'-{width}' * layers}{suffix}",
        "model_params": parameters(width, layers), "epochs": EPOCHS, "minibatch": MINIBATCH, "lr": 0.05,
        "lr_scaling": "none", "target_value": TARGET, "variant": "default", "sharding": "static",
    }  # fmt: skip
    values |= IST_DEFAULTS if method == "ist" else {}
    values |= given | {"sync_period": period}
    named = {name: values.get(name) for name in sorted(values)}
    digest = hashlib.sha256(json.dumps(named, sort_keys=True, default=str).encode()).hexdigest()[:10]
    run_id = f"{method}_{values['model']}_w{workers}_{values.get('evidence', 'simulated')}_s{seed}_{digest}"
    found = synthetic.record(**values | {"run_id": run_id}) | {"sync_period": period}
    return found | _outcome(found, width, layers, shift, given) if "status" not in given else found


def _outcome(
    run: dict[str, Any], width: int, layers: int, shift: float, given: dict[str, Any]
) -> dict[str, Any]:
    method, workers, period = run["method"], run["workers"], run["sync_period"] or 1
    draw = np.random.default_rng([run["seed"], workers, period, width])
    per_epoch = run["data_size"] // (workers * MINIBATCH)
    sub = parameters(width, layers, 1 / workers)
    sends = {"sequential": 0, "data_parallel": per_epoch}.get(method, -(-per_epoch // period))
    sent = 8 * sub * workers * (workers > 1) if method == "ist" else 8 * (workers - 1) * run["model_params"]
    accuracy = 0.62 + 0.01 * np.log2(width / 256) + 0.03 * np.log2(run["data_size"] / SAMPLES) + shift
    accuracy -= {"ist": lost(width / workers) + 1e-4 * period, "averaging": 0.004 * np.log2(workers)}.get(
        method, 0
    )
    skew = run["skew"]
    accuracy -= 0.0 if skew is None else (0.10 if method == "ist" else 0.05) / (1 + skew)
    accuracy += 0.01 * ("dropout" in run["model"]) + 0.001 * draw.standard_normal()
    tau = {"ist": 4.5, "averaging": 3.2}.get(method, 3.0)
    epochs = np.arange(run["epochs"] + 1)
    curve = accuracy * (1 - np.exp(-epochs / tau))
    hit = np.flatnonzero(curve >= TARGET)
    total = sent * sends * run["epochs"]
    reached = bool(len(hit)) if run["target_value"] else None
    worker_params = sub if method == "ist" else run["model_params"]
    out = {
        "steps": per_epoch * run["epochs"], "epochs_done": run["epochs"], "accuracy": float(accuracy),
        "valid_accuracy": float(curve[-1]), "worker_params": worker_params,
        "state_bytes_per_worker": 8 * worker_params, "target_reached": reached,
        "server_bytes": 4 * run["model_params"] if method == "ist" else 0,
        "sent_bytes_total": total, "sent_bytes_predicted": total, "paper_bytes": total,
        "sent_bytes_max_worker": total // workers, "payload_bytes": total // (2 * workers),
        "bytes_to_target": int(sent * sends * hit[0]) if reached else None,
        "status": "target_missed" if reached is False else "ok",
        "resident_bytes": 9 * worker_params if run["evidence"] == "measured" else None,
        "curve": curve,
    }  # fmt: skip
    return {name: value for name, value in out.items() if name == "curve" or name not in given}


def records(seeds: int = 3, elsewhere: bool = True) -> list[dict[str, Any]]:
    """What the experiments of the paper leave; those on other nets and data where ``elsewhere``."""
    found: list[dict[str, Any]] = []

    def add(experiment: str, **given: Any) -> None:
        found.extend(record(seed=seed, experiments=[experiment], **given) for seed in range(seeds))

    for experiment, base in (
        ("ist", {}),
        ("ist_deep", {"layers": 2}),
        ("ist_keywords", {"dataset": "generated_keywords", "shift": -0.02}),
    )[: 3 if elsewhere else 1]:
        add(f"{experiment}/one-worker", method="sequential", workers=1, **base)
        add(f"{experiment}/dropout", method="sequential", workers=1, suffix="_dropout0.75", **base)
        add(f"{experiment}/gradients", method="data_parallel", **base)
        for period in (5, 20, 40, 60):
            add(f"{experiment}/ist", sync_period=period, **base)
            add(f"{experiment}/local-sgd", method="averaging", sync_period=period, **base)
        for workers in (1, 2, 8):
            for method in ("ist", "averaging", "data_parallel"):
                add(f"{experiment}/workers", workers=workers, method=method, **base)
    published = {"variant": "faithful", "suffix": "_batch", "sharding": "independent"}
    for period in (5, 20):
        add("ist_faithful/corrected", sync_period=period, target_value=None)
        for server in ("central", "partitioned"):
            for slip in (False, True):
                shift = -0.012 - 0.01 * slip * (20 / period) ** 0.5
                add("ist_faithful/faithful", sync_period=period, server=server, lost_steps=slip, shift=shift,
                    target_value=None, **published)  # fmt: skip
    for width in (256, 512, 1024, 2048):
        add("ist_width/one-worker", method="sequential", workers=1, width=width, target_value=None)
        for workers in (2, 4, 8):
            add("ist_width/ist", workers=workers, width=width, target_value=None)
    for name, change in (
        ("default", {}),
        ("method", {"server": "partitioned", "partition": "stratified"}),
        ("method", {"partition": "stratified", "shift": 0.002}),
        ("method", {"redraw": False, "shift": -0.04}),
        ("method", {"overlap": 0.5, "shift": 0.006}),
        ("method", {"sharding": "independent", "shift": 0.001}),
        ("net", {"suffix": "_mean", "shift": -0.02}),
        ("net", {"suffix": "_batch", "shift": -0.01}),
    ):
        add(f"ist_ablations/{name}", target_value=None, **change)
    for skew in (1.2, 12.0, 120.0, None):
        sharding = "static" if skew is None else "skewed"
        for method in ("ist", "averaging"):
            add("ist_skew/skewed", method=method, skew=skew, sharding=sharding, target_value=None)
    for width in (64, 128, 256, 512):
        for method, workers in (("sequential", 1), ("data_parallel", 8), ("ist", 2), ("ist", 4), ("ist", 8)):
            found += [memory_record(method, workers, width, seed) for seed in range(seeds)]
    for size in (6_000, 12_000, 24_000):
        for width in (256, 512, 1024, 2048):
            for method in ("ist", "data_parallel"):
                add("ist_hypothesis/grid", method=method, data_size=size, width=width, target_value=None)
            for workers in (1, 2, 4, 8) if elsewhere else ():
                add(
                    "ist_sizes/grid",
                    data_size=size,
                    width=width,
                    workers=workers,
                    epochs=3,
                    target_value=None,
                )
    for dataset, workers in (("fashion_mnist", 4), ("cifar10", 2)) if elsewhere else ():
        for method in ("ist", "averaging", "data_parallel"):
            add("ist_images/images", dataset=dataset, data_kind=None, workers=workers, method=method,
                target_value=None)  # fmt: skip
    for repeat in range(3):
        for method, workers in (
            ("sequential", 1), ("ist", 1), ("ist", 2), ("averaging", 1), ("averaging", 2), ("data_parallel", 1),
            ("data_parallel", 2),
        ):  # fmt: skip
            add_measured(found, method, workers, repeat)
        for workers in (1, 2):
            add_measured(found, "ist", workers, repeat, server="partitioned", partition="stratified")
    return found


def add_measured(found: list[dict[str, Any]], method: str, workers: int, repeat: int, **given: Any) -> None:
    """A run of real ranks."""
    found.append(
        record(method=method, workers=workers, evidence="measured", processes=workers, repeat=repeat, epochs=2,
               target_value=None, experiments=["ist_ranks/ranks"], **given)
    )  # fmt: skip


LIMIT = 4_000_000  # bytes that a worker may hold


def memory_record(method: str, workers: int, width: int, seed: int) -> dict[str, Any]:
    """A run on a wide output under a limit of memory: over it, the run has no network."""
    labels = {"ist": 4 * 3036 * width // workers, "sequential": 0, "data_parallel": 0}[method]
    params = 3036 * width
    state, server = 8 * params // (workers if method == "ist" else 1), labels
    given = {
        "method": method, "workers": workers, "width": width, "seed": seed, "kind": "bow",
        "dataset": "wordnet_hypernym", "data_kind": None, "memory_limit_bytes": LIMIT,
        "server": "partitioned" if method == "ist" else None,
        "state_bytes_per_worker": state, "server_bytes": server, "experiments": ["ist_memory/limit"],
        "target_value": None, "model_params": params,
    }  # fmt: skip
    if state + server > LIMIT:
        return record(**given, status="over_memory", reason="a worker's state takes more than the limit",
                      worker_params=params // (workers if method == "ist" else 1))  # fmt: skip
    found = record(**given)
    best = 0.40 + 0.03 * np.log2(width / 64) - (0.01 if method == "ist" else 0) + 0.002 * seed
    return found | {
        "p_at_1": best,
        "p_at_3": best - 0.1,
        "p_at_5": best - 0.15,
        "accuracy": best,
        "status": "ok",
    }


def curves(rows: list[dict[str, Any]], results_dir: Path) -> None:
    """A curve beside each run that trained: a row for each epoch."""
    for run in rows:
        if "curve" not in run:
            continue
        share = np.arange(len(run["curve"])) / (len(run["curve"]) - 1)
        folder = results_dir / "runs" / run["run_id"]
        folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(
            {
                "step": np.round(share * run["steps"]).astype(int),
                "epoch": np.arange(len(share)),
                "samples": share * run["steps"] * run["global_batch"],
                "train_s": 0.0,
                "valid_accuracy": run["curve"],
                "sent_bytes_total": np.round(share * run["sent_bytes_total"]).astype(int),
            }
        ).to_parquet(folder / "curve.parquet")


def timings(frame: pd.DataFrame) -> pd.DataFrame:
    """Steps whose time is the subnet's share of 4 ms, and bytes over the bandwidth of each cluster."""
    rows = []
    ended = frame[frame["status"].isin(["ok", "target_missed"]) & (frame["evidence"] == "simulated")]
    for cluster, mbit in CLUSTERS.items():
        for run in ended.to_dict("records"):
            compute = 4e-3 * run["worker_params"] / 1.06e6
            step = compute + run["sent_bytes_total"] / run["workers"] / run["steps"] / (mbit * 1e6 / 8)
            target = np.inf
            if run["target_reached"] is not pd.NA and run["target_reached"]:
                # the curve's first epoch at the target
                share = run["bytes_to_target"] / run["sent_bytes_total"] if run["sent_bytes_total"] else 0.3
                target = step * run["steps"] * share
            if pd.isna(run["target_value"]):
                target = np.nan
            train = step * run["steps"]
            alone = 4e-3 * run["model_params"] / 1.06e6 * run["steps"] * run["workers"]
            known = (*synthetic._KEYS, "variant", "scaling", "threads_per_worker", "epochs")
            rows.append(
                {name: run[name] for name in known}
                | {"cluster": cluster, "step_s": step, "train_s": train, "comm_s": train - compute * run["steps"],
                   "compute_s": compute * run["steps"], "time_to_target_s": target,
                   "target_reached": bool(np.isfinite(target)), "samples_per_s": SAMPLES * run["epochs"] / train,
                   "speedup_same_code": alone / train, "speedup_best_sequential": alone / train,
                   "best_sequential_threads": 1, "evidence": "simulated", "run_evidence": "simulated"}
            )  # fmt: skip
    return pd.DataFrame(rows)
