"""Plans of layer-wise parallelism and the searches that found them: their tables as frames, and what follows from them.

A plan says how each layer of a network is split under one strategy, and what the cost model makes of it (evidence
``projected``); a search row is one timed run of an algorithm over a network's cost tables (``measured``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.claims import CONFIG
from implementations.reporting.columns import in_experiment
from implementations.reporting.files import read_table
from implementations.yamlfile import load_yaml

PAPER = "layerwise"
# In the order of tables and keys. All but the last are given; the last is what a search finds.
STRATEGIES = ("single", "data", "model", "owt", "layerwise")
GIVEN, FOUND = STRATEGIES[:-1], STRATEGIES[-1]
OTHERS = ("data", "model", "owt")  # what the found plan is held against
DIMENSIONS = ("n", "c", "h", "w")
THIS_HOST = "this-host"
GIB = 2**30

_TEXT = ("run_id", "paper", "model", "precision", "dataset", "cluster", "strategy", "objective", "sync", "degrees",
         "evidence", "compute_source", "status", "reason", "plan", "strategy_hash", "algorithm")  # fmt: skip
_WHOLE = ("params", "image", "minibatch", "global_batch", "workers", "memory_limit_bytes", "network_bytes",
          "paper_bytes", "state_bytes_max", "layers", "nodes", "edges", "configurations", "node_eliminations",
          "edge_eliminations", "remaining", "repeat", "number", "stage", *DIMENSIONS, "devices",
          "strategies")  # fmt: skip
_FLAGS = ("finished", "bytes_as_predicted")

# Columns of results/plans.parquet: what was planned, what it costs, how it was found.
SETTING = ["paper", "model", "params", "dataset", "image", "minibatch", "cluster", "sync", "compute_source"]
IDENTITY = [
    "run_id", "paper", "experiments", "model", "params", "dataset", "image", "minibatch", "global_batch", "workers",
    "cluster", "strategy", "objective", "sync", "degrees", "memory_limit_bytes", "evidence", "compute_source",
]  # fmt: skip
PLAN_COLUMNS = [
    *IDENTITY, "status", "reason", "objective_s", "step_s", "additive_s", "compute_s", "transfer_s", "sync_s",
    "overlap_s", "samples_per_s", "additive_samples_per_s", "network_bytes", "paper_bytes", "state_bytes_max", "layers",
    "nodes", "edges", "configurations", "node_eliminations", "edge_eliminations", "remaining", "tables_s", "search_s",
    "gap", "finished", "strategy_hash", "plan",
]  # fmt: skip
# What `described` adds: of the plans of the other strategies in the same setting, and the slowest link.
RELATED = ["single_samples_per_s", "best_other_samples_per_s", "mbit_s"]
RELATED += [f"{name}_{what}" for name in OTHERS for what in ("samples_per_s", "paper_bytes")]
# Columns of results/search.parquet.
SEARCH_COLUMNS = [
    "run_id", "paper", "experiments", "model", "params", "workers", "cluster", "degrees", "repeat", "layers", "nodes",
    "edges", "configurations", "algorithm", "search_s", "tables_s", "finished", "cost_s", "node_eliminations",
    "edge_eliminations", "remaining", "visited", "plans_log10", "time_limit_s", "evidence", "status",
]  # fmt: skip
# Columns of results/exactness.parquet.
EXACTNESS_COLUMNS = [
    "paper", "evidence", "model", "precision", "devices", "layers", "strategies", "configurations", "worst_error",
    "torch_error", "bytes_as_predicted",
]  # fmt: skip
# A row for each layer of each plan that has a configuration of its own.
LAYER_COLUMNS = [
    *IDENTITY, "status", "mbit_s", "layer", "kind", "number", "stage", *DIMENSIONS, "devices", "degrees_text", "out",
    "inputs", "layer_params", "layer_compute_s", "layer_sync_s", "layer_s", "best_workers",
]  # fmt: skip

# Counts of a plan: exact, without a model of time.
COUNTS = frozenset(
    {"params", "image", "minibatch", "global_batch", "workers", "network_bytes", "paper_bytes", "state_bytes_max",
     *(f"{name}_paper_bytes" for name in OTHERS)}
)  # fmt: skip


def cluster_of(network: str | None) -> str:
    """The time model's cluster for a measured point: its network's, which for this machine's memory is this host."""
    return THIS_HOST if network in (None, "loopback") else network


def as_plans(source: pd.DataFrame | str | Path | None) -> pd.DataFrame:
    """The rows of ``plans.parquet``, or of a frame, with every column; no rows where there is no such file."""
    return _as(source, PLAN_COLUMNS, {"paper": PAPER, "evidence": "projected", "status": "ok"})


def as_searches(source: pd.DataFrame | str | Path | None) -> pd.DataFrame:
    """The rows of ``search.parquet``, or of a frame, with every column; no rows where there is no such file."""
    return _as(source, SEARCH_COLUMNS, {"paper": PAPER, "evidence": "measured", "status": "ok"})


def as_exactness(source: pd.DataFrame | str | Path | None) -> pd.DataFrame:
    """This paper's rows of ``exactness.parquet``, or of a frame; no rows where there is no such file."""
    rows = _as(source, EXACTNESS_COLUMNS, {"paper": PAPER, "evidence": "simulated"})
    return rows[rows["paper"] == PAPER].reset_index(drop=True)


def _as(
    source: pd.DataFrame | str | Path | None, columns: list[str], defaults: dict[str, str]
) -> pd.DataFrame:
    if source is None or (not isinstance(source, pd.DataFrame) and not Path(source).is_file()):
        return plain_types(pd.DataFrame(columns=columns))
    frame = source if isinstance(source, pd.DataFrame) else read_table(source)
    frame = frame.reindex(columns=[*columns, *(name for name in frame.columns if name in RELATED)])
    for name, value in defaults.items():
        frame[name] = frame[name].astype(object).where(frame[name].notna(), value)
    return plain_types(frame.reset_index(drop=True))


def plain_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Text, whole numbers and flags that may be absent, reals; lists as they are."""
    kinds: dict[str, Any] = {}
    for name in frame.columns:
        if name in _TEXT or name in ("layer", "kind", "degrees_text", "out"):
            kinds[name] = "string"
        elif name in _WHOLE or name == "layer_params":
            kinds[name] = "Int64"
        elif name in _FLAGS:
            kinds[name] = "boolean"
        elif name not in ("experiments", "inputs"):
            kinds[name] = float
    return frame.astype(object).where(frame.notna(), None).astype(kinds)


def links(config_dir: str | Path = CONFIG) -> dict[str, float]:
    """Mbit/s of the slowest link of each cluster file of ``config_dir/clusters``, by the cluster's name."""
    found = {}
    for path in sorted((Path(config_dir) / "clusters").glob("*.yaml")):
        content = load_yaml(path)
        every = content.get("links", {}).values()
        speeds = [
            float(link["bandwidth_bytes_per_s"]["value"])
            for link in every
            if isinstance(link, dict) and isinstance(link.get("bandwidth_bytes_per_s"), dict)
        ]
        if speeds:
            found[str(content["name"])] = min(speeds) / 1.25e5
    return found


def described(plans: pd.DataFrame, networks: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Plans with what other strategies do in the same setting, NaN where that was not planned.

    On one device every strategy is that of one device: it is called so, and stands once in each setting.
    ``single_samples_per_s``: of one device; ``best_other_samples_per_s``: the fastest of data, model and OWT on as
    many devices; ``<strategy>_samples_per_s``, ``<strategy>_paper_bytes``; ``mbit_s``: the slowest link of the
    cluster. ``networks``: of ``links``.
    """
    if not len(plans):
        return plans.reindex(columns=list(dict.fromkeys([*plans.columns, *RELATED])))
    alone = (plans["workers"] == 1).fillna(False).astype(bool)
    plans = plans.assign(strategy=plans["strategy"].mask(alone, "single"))
    asked = plans["experiments"].map(lambda names: " ".join(names) if names is not None else "")
    again = plans.assign(experiments=asked).duplicated(["experiments", *SETTING, "objective", "degrees"])
    plans = plans[~(alone & again)].reset_index(drop=True)
    # groups by text, as an absent cell equals an absent one
    key = plans[SETTING].astype("string").fillna("").agg("|".join, axis=1)
    place = key + "|" + plans["workers"].astype("string")
    ok = (plans["status"] == "ok").fillna(False).astype(bool)

    def found(strategy: str, column: str, by: pd.Series) -> pd.Series:
        own = ok & (plans["strategy"] == strategy).fillna(False).astype(bool)
        values = plans.loc[own, column].astype(float).groupby(by[own]).first()
        return by.map(values).astype(float)

    new = {"single_samples_per_s": found("single", "samples_per_s", key)}
    for name in OTHERS:
        for what in ("samples_per_s", "paper_bytes"):
            new[f"{name}_{what}"] = found(name, what, place)
    new["best_other_samples_per_s"] = pd.DataFrame([new[f"{name}_samples_per_s"] for name in OTHERS]).max()
    new["mbit_s"] = plans["cluster"].map(dict(networks or {})).astype(float)
    return plans.assign(**new)


def of_experiment(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """The rows that an experiment or sweep asked for."""
    return frame[in_experiment(frame, *names)]


def layers_of(plans: pd.DataFrame) -> pd.DataFrame:
    """A row for each layer of each plan that has a configuration of its own, in the order of the network.

    ``number``: the how-manieth of its kind; ``stage``: 1 and the poolings before it; ``devices``: the product of the
    degrees; ``layer_compute_s`` and ``layer_sync_s``: the cost model's, where the plan has them; ``best_workers``:
    the number of devices at which their sum is least, among plans that differ in it alone and share the global batch.
    """
    rows: list[dict[str, Any]] = []
    known = [name for name in (*IDENTITY, "status", "mbit_s") if name in plans.columns]
    for plan in plans[plans["plan"].notna()].to_dict("records"):
        identity = {name: plan[name] for name in known}
        numbers: dict[str, int] = {}
        pools = 0
        for entry in leaders(plan["plan"]):
            kind = entry["kind"]
            numbers[kind] = numbers.get(kind, 0) + 1
            rows.append(
                identity
                | {name: entry[name] for name in ("layer", "kind", *DIMENSIONS, "devices", "degrees_text", "out",
                                                  "inputs", "layer_params", "layer_compute_s", "layer_sync_s")}
                | {"number": numbers[kind], "stage": 1 + pools}
            )  # fmt: skip
            pools += kind == "pool"
    table = plain_types(pd.DataFrame(rows, columns=[*LAYER_COLUMNS[:-1]]))
    table["layer_s"] = table["layer_compute_s"].astype(float) + table["layer_sync_s"].astype(float)
    return table.assign(best_workers=_best_workers(table))[LAYER_COLUMNS]


def leaders(plan: str) -> list[dict[str, Any]]:
    """The layers of a plan (its JSON) that have a configuration of their own, each reading others of them."""
    entries = json.loads(plan)
    leader = {entry["layer"]: entry["leader"] for entry in entries}
    found = []
    for entry in entries:
        if entry["leader"] != entry["layer"]:
            continue
        degrees = [*map(int, entry["config"])]
        found.append(
            {
                "layer": entry["layer"],
                "kind": entry["kind"],
                **dict(zip(DIMENSIONS, [*degrees, 1, 1, 1], strict=False)),
                "devices": int(np.prod(degrees, dtype=int)),
                "degrees_text": degrees_text(degrees),
                "out": "x".join(map(str, entry.get("out") or [])) or None,
                "inputs": [leader.get(name, name) for name in entry["inputs"]],
                "layer_params": entry.get("params"),
                "layer_compute_s": entry.get("compute_s"),
                "layer_sync_s": entry.get("sync_s"),
            }
        )
    return found


def degrees_text(degrees: list[int]) -> str:
    """A configuration in words: ``n=4 c=2``; ``1 device`` where nothing is split."""
    parts = [f"{letter}={degree}" for letter, degree in zip(DIMENSIONS, degrees, strict=False) if degree > 1]
    return " ".join(parts) or "1 device"


def _best_workers(layers: pd.DataFrame) -> pd.Series:
    same = [*(name for name in SETTING if name != "minibatch"), "global_batch", "strategy", "objective", "degrees",
            "layer"]  # fmt: skip
    known = layers.loc[layers["layer_s"].notna(), [*same, "workers", "layer_s"]]
    code = known.groupby(same, dropna=False).ngroup()
    groups = pd.DataFrame(
        {"code": code, "workers": known["workers"].astype(float), "layer_s": known["layer_s"]}
    )
    several = groups.groupby("code")["workers"].nunique()
    best = groups.sort_values("layer_s", kind="stable").groupby("code")["workers"].first()
    return code.map(best.where(several > 1)).reindex(layers.index).astype(float)
