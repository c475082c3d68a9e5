"""Made-up plans, searches and runs of layer-wise parallelism, with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.plans import as_plans, as_searches
from tests.reporting import synthetic

RATES = {"alexnet_fc_input12544": 745.0, "vgg16": 184.0, "inception_v3": 157.0}  # images/s of one device
PARAMS = {"alexnet_fc_input12544": 74_719_208, "vgg16": 138_357_544, "inception_v3": 23_834_568}
LABELS = {"alexnet_fc_input12544": 227, "vgg16": 224, "inception_v3": 299}
FACTOR = {
    "single": 0.0,
    "data": 0.08,
    "model": 0.20,
    "owt": 0.06,
    "layerwise": 0.01,
}  # time added by 16 devices
SLOW = 1.25e8  # bytes/s of the links that FACTOR is of
LINKS = {"gigabit-cpu": 941.6, "hundred-megabit-cpu": 94.16, "ten-gigabit-cpu": 9416.0}

Layer = dict[str, Any]


def chain(model: str) -> list[Layer]:
    """Layers of a network without branches, by the widths of its convolutions ("M": a pooling) and linear layers."""
    widths: list[Any] = {
        "vgg16": [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"],
        "lenet5": [6, "M", 16, "M"],
    }.get(model, [64, "M", 192, "M", 384, 256, 256, "M"])
    linear = [120, 84, 10] if model == "lenet5" else [4096, 4096, 1000]
    side, found = (
        LABELS.get(model, 32),
        [{"layer": "input", "kind": "input", "inputs": [], "out": [3, 224, 224]}],
    )
    before, channels = "input", 3
    for place, width in enumerate(widths):
        if width == "M":
            side, name, kind, params = side // 2, f"features.{2 * place}", "pool", 0
        else:
            name, kind, params, channels = f"features.{2 * place}", "conv", 9 * channels * width, width
        found.append(
            {"layer": name, "kind": kind, "inputs": [before], "out": [channels, side, side], "params": params}
        )
        before = name
        if kind == "conv":
            follower = {"layer": f"{name}.relu", "kind": "pointwise", "inputs": [name], "leader": name}
            found.append(follower | {"out": [channels, side, side]})
            before = follower["layer"]
    size = channels * side * side
    found.append({"layer": "flatten", "kind": "flatten", "inputs": [before], "out": [size]})
    before = "flatten"
    for place, width in enumerate(linear):
        name = f"classifier.{place}"
        found.append(
            {"layer": name, "kind": "linear", "inputs": [before], "out": [width], "params": size * width}
        )
        before, size = name, width
    return [*found, {"layer": "loss", "kind": "loss", "inputs": [before], "out": []}]  # fmt: skip


def branched(modules: int = 9) -> list[Layer]:
    """A network like Inception-v3: a stem, modules of four branches that are concatenated, one linear layer."""
    found = [{"layer": "input", "kind": "input", "inputs": [], "out": [3, 299, 299]}]

    def add(name: str, kind: str, *inputs: str, out: list[int] | None = None, params: int = 0) -> str:
        size = [64, 35, 35] if out is None else out
        found.append({"layer": name, "kind": kind, "inputs": list(inputs), "out": size, "params": params})
        return name

    last = "input"
    for place in range(5):
        last = add(f"stem.{place}", "conv", last, params=10_000)
    last = add("stem.pool", "pool", last)
    for place in range(modules):
        ends = [add(f"m{place}.branch1", "conv", last, params=20_000)]
        for branch, length in ((2, 2), (3, 3)):
            end = last
            for step in range(length):
                end = add(f"m{place}.branch{branch}.{step}", "conv", end, params=30_000)
            ends.append(end)
        ends.append(
            add(f"m{place}.branch4.conv", "conv", add(f"m{place}.branch4.pool", "pool", last), params=9)
        )
        last = add(f"m{place}.concat", "concat", *ends)
    last = add("pool", "pool", last, out=[2048, 1, 1])
    last = add("flatten", "flatten", last, out=[2048])
    last = add("fc", "linear", last, out=[1000], params=2_048_000)
    add("loss", "loss", last, out=[])
    return found


def layers(model: str) -> list[Layer]:
    """The layers of a network."""
    return branched() if model.startswith("inception") else chain(model)


def config(strategy: str, layer: Layer, workers: int, stage: int, number: int) -> list[int]:
    """Degrees of a layer: the found plan splits late convolutions less, and linear layers by channels on 4 devices."""
    rank = 1 + len(layer["out"])
    rest = [1] * (rank - 1)
    if strategy == "single":
        return [1, *rest]
    linear = layer["kind"] == "linear"
    if layer["kind"] == "input" or strategy == "data" or (strategy == "owt" and not linear):
        return [workers, *rest]
    if strategy == "layerwise" and not linear:
        if rank == 4 and stage >= 5 and workers >= 4:
            return [workers // 4, 1, 2, 2]
        return [workers, *rest] if rank > 1 else [1]
    parts = workers if strategy != "layerwise" else min(workers, 2 if number == 3 else 4)
    return [1, parts, *rest[1:]] if rank > 1 else [1]


def plan_json(model: str, strategy: str, workers: int, minibatch: int = 32) -> str:
    """The plan of a strategy as in the table, with seconds that follow the laws of Figure 3."""
    entries, pools, counts = [], 0, {}
    for layer in layers(model):
        leader = layer.get("leader", layer["layer"])
        if leader == layer["layer"]:
            kind = layer["kind"]
            counts[kind] = counts.get(kind, 0) + 1
            degrees = config(strategy, layer, workers, 1 + pools, counts[kind])
            pools += kind == "pool"
        batch = minibatch * workers
        linear = layer["kind"] == "linear"
        entries.append(
            {
                "layer": layer["layer"],
                "kind": layer["kind"],
                "leader": leader,
                "config": degrees,
                "out": layer["out"],
                "params": layer.get("params", 0),
                "inputs": layer["inputs"],
                "compute_s": (91.2e-3 if linear else 760e-3) / workers * batch / 512,
                "sync_s": (8.19e-3 if linear else 0.737e-3) * workers * (workers > 1),
            }
        )
    return json.dumps(entries)


def plan(**given: Any) -> dict[str, Any]:
    """One row of plans.parquet: VGG-16 on the paper's cluster under data parallelism unless told otherwise.

    ``width`` scales the numbers of weights and operations, ``step_s`` replaces the modelled step.
    """
    width = given.pop("width", 1.0)
    row: dict[str, Any] = {
        "paper": "layerwise", "experiments": ["layerwise_projection/figure7"], "model": "vgg16", "dataset": "imagenet",
        "image": 224, "minibatch": 32, "workers": 4, "cluster": "p100-nvlink", "strategy": "data",
        "objective": "additive", "sync": "server", "degrees": "powers", "memory_limit_bytes": None,
        "evidence": "projected", "compute_source": "roofline", "status": "ok", "reason": None,
    }  # fmt: skip
    row |= given
    model, workers, strategy = row["model"], row["workers"], row["strategy"]
    batch = row["minibatch"] * workers
    params = row.setdefault("params", round(PARAMS.get(model, 1_000_000) * width**2))
    rate = RATES.get(model, 500.0)
    slower = {"p100-nvlink": 1.0}.get(row["cluster"], 10_000 / LINKS.get(row["cluster"], 10_000))
    compute = row["minibatch"] / rate * width**2
    comm = compute * FACTOR[strategy] * slower * (workers - 1) / (row["minibatch"] / 32)
    step = row.setdefault("step_s", compute + comm)
    paper = {
        "single": 4 * batch * 3 * row["image"] ** 2,
        "data": 8 * params * workers,
        "model": 2**30 * (0.2 if "alexnet" in model else 3.0) * workers,
        "owt": 0.8 * params * workers * (1 + workers / 16),
        "layerwise": 0.7 * params * workers,
    }[strategy]
    row |= {
        "run_id": "_".join(map(str, (model, strategy, workers, row["cluster"], row["image"], row["minibatch"]))),
        "global_batch": batch, "objective_s": compute + 1.2 * comm, "additive_s": compute + 1.2 * comm,
        "compute_s": compute, "transfer_s": 0.4 * comm, "sync_s": 0.8 * comm, "overlap_s": 0.2 * comm,
        "samples_per_s": batch / step, "additive_samples_per_s": batch / (compute + 1.2 * comm),
        "paper_bytes": round(paper), "network_bytes": round(0.9 * paper) * (workers > 1),
        "state_bytes_max": 12 * params + 10**9,
    }  # fmt: skip
    if strategy == "layerwise":
        count = len(layers(model))
        row |= {"layers": count, "nodes": count - 2, "edges": count, "configurations": 15, "remaining": 2,
                "node_eliminations": count - 4, "edge_eliminations": 3, "tables_s": 0.4, "search_s": 0.01}  # fmt: skip
    return row | {"plan": plan_json(model, strategy, workers, row["minibatch"])}


def strategies(workers: int) -> tuple[str, ...]:
    """What is planned on so many devices."""
    return ("single",) if workers == 1 else ("data", "model", "owt", "layerwise")


def plans() -> pd.DataFrame:
    """What the experiments of the paper plan."""
    rows = []
    for model, image in LABELS.items():
        side = 224 if "alexnet" in model else image
        for workers in (1, 2, 4, 8, 16):
            for strategy in strategies(workers):
                rows.append(plan(model=model, image=side, workers=workers, strategy=strategy))
    for workers in (2, 4, 8, 16):
        rows.append(
            plan(model="inception_v3", image=299, workers=workers, minibatch=512 // workers,
                 experiments=["layerwise_projection/figure3"])
        )  # fmt: skip
    for cluster in LINKS:
        for strategy in strategies(4):
            rows.append(plan(model="alexnet_small", image=32, cluster=cluster, strategy=strategy,
                             compute_source="measured blocks", experiments=["layerwise_bandwidth/links"]))  # fmt: skip
    for image in (32, 64):
        for minibatch in (8, 32):
            for width in (0.5, 1.0, 2.0):
                for workers in (2, 4):
                    for strategy in strategies(workers):
                        rows.append(
                            plan(model=f"alexnet_small_width{width:g}", image=image, minibatch=minibatch, width=width,
                                 workers=workers, strategy=strategy, cluster="gigabit-cpu",
                                 experiments=["layerwise_sizes/grid"])
                        )  # fmt: skip
    for model in ("lenet5", "alexnet_small"):
        for workers in (1, 2, 4):
            for strategy in strategies(workers):
                rows.append(
                    plan(model=model, image=32, workers=workers, strategy=strategy, cluster="this-host",
                         step_s=0.05 * workers, compute_source="measured blocks", dataset="fashion_mnist",
                         experiments=["layerwise_ranks/steps"])
                )  # fmt: skip
    return as_plans(pd.DataFrame(rows))


def searches() -> pd.DataFrame:
    """What the searches leave: depth-first ends on the smallest network alone."""
    rows = []
    sizes = {"lenet5": 8, "alexnet": 14, "vgg16": 24, "inception_v3": 120, "resnet50": 73}
    for model, nodes in sizes.items():
        for workers, configurations in ((2, 5), (4, 15), (8, 35), (16, 70)):
            base = {"model": model, "workers": workers, "layers": nodes + 30, "nodes": nodes, "edges": nodes + 8,
                    "configurations": configurations, "tables_s": 1e-3 * nodes * workers, "time_limit_s": 60.0,
                    "cluster": "p100-nvlink", "experiments": ["layerwise_search/table3"],
                    "cost_s": 0.1 * nodes / workers}  # fmt: skip
            found = {"algorithm": "elimination", "search_s": 1e-8 * nodes * configurations**3, "finished": True,
                     "node_eliminations": nodes - 2, "edge_eliminations": 8, "remaining": 2}  # fmt: skip
            rows += [base | found | {"repeat": repeat} for repeat in range(3)]
            if workers == 4:
                ended = model == "lenet5"
                for algorithm in ("depth_first", "branch_and_bound"):
                    rows.append(base | {"algorithm": algorithm, "search_s": 1.5 if ended else 60.0, "finished": ended,
                                        "cost_s": base["cost_s"] * (1 if ended else 1.1), "repeat": 0})  # fmt: skip
    return as_searches(pd.DataFrame(rows))


def record(**given: Any) -> dict[str, Any]:
    """A record of a trained strategy on this paper's terms."""
    variant, workers = given.get("variant", "data"), given.get("workers", 4)
    values = {
        "paper": "layerwise", "method": "layerwise", "variant": variant, "workers": workers,
        "minibatch": 128 // workers, "model": "lenet5", "dataset": "fashion_mnist", "data_size": 12_000, "epochs": 4,
        "sync_period": None, "mixing": None, "content": None, "algorithm": None,
        "experiments": ["layerwise_accuracy/lenet5"],
        "target_value": None, "scaling": "strong",
    } | given  # fmt: skip
    words = [
        values[name]
        for name in ("model", "variant", "workers", "evidence", "seed", "repeat")
        if name in values
    ]
    found = synthetic.record(**values | {"run_id": "_".join(map(str, ["layerwise", *words]))}) | {
        "sync_period": None
    }
    slip = 0.0 if variant == "single" else 1e-6 * (1 + len(variant))
    found |= {"valid_loss": 0.4 * (1 + slip), "accuracy": 0.88, "valid_accuracy": 0.885}
    sent = 10_000 * workers * (variant != "single")
    return found | {"sent_bytes_total": sent, "sent_bytes_predicted": sent, "paper_bytes": sent}


def records() -> list[dict[str, Any]]:
    """Trainings under every strategy, and measured steps of two networks on 1, 2 and 4 ranks."""
    found = []
    for model, dataset in (
        ("lenet5", "fashion_mnist"),
        ("alexnet_small", "cifar10"),
        ("vgg_small", "cifar10"),
    ):
        for variant in ("single", "data", "model", "owt", "layerwise"):
            workers = 1 if variant == "single" else 4
            found.append(record(model=model, dataset=dataset, variant=variant, workers=workers,
                                experiments=[f"layerwise_accuracy/{model}", "layerwise_accuracy/trained"]))  # fmt: skip
    for model in ("lenet5", "alexnet_small"):
        for workers in (1, 2, 4):
            for variant in strategies(workers):
                for repeat in range(3):
                    slower = 1 + 0.02 * repeat + (0.2 if model == "lenet5" else 0.0) * (workers > 2)
                    rate = 32 * workers / (0.05 * workers * slower)
                    found.append(record(model=model, variant=variant, workers=workers, minibatch=32, repeat=repeat,
                                        evidence="measured", oversubscribed=workers > 2, epochs=1,
                                        experiments=["layerwise_ranks/steps"], processes=workers)
                                 | {"samples_per_s": rate})  # fmt: skip
    return found


def curves(rows: list[dict[str, Any]], results_dir: Path) -> None:
    """A curve beside each simulated run: the same for every strategy, rounding aside."""
    for run in rows:
        if run["evidence"] != "simulated":
            continue
        epochs = np.arange(run["epochs"] + 1)
        slip = 0.0 if run["variant"] == "single" else 1e-7 * len(run["variant"])
        folder = results_dir / "runs" / run["run_id"]
        folder.mkdir(parents=True, exist_ok=True)
        loss = (0.4 + 1.9 * np.exp(-1.2 * epochs)) * (1 + slip * epochs)
        pd.DataFrame(
            {"step": 90 * epochs, "epoch": epochs, "samples": 12_000 * epochs, "train_s": 0.0, "valid_loss": loss,
             "valid_accuracy": 0.9 - 0.8 * np.exp(-1.2 * epochs), "sent_bytes_total": 0}
        ).to_parquet(folder / "curve.parquet")  # fmt: skip
