"""The runs of the shoot-out as contenders: what each is called, and its seconds to the target on every network.

Most seconds are the time model's, of each run's own trace. A layer-wise run's are its steps to the target, which are
simulated, times the step that the cost model of its plans predicts for the plan of that very network.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.columns import in_experiment
from implementations.reporting.curves import steps_to_target
from implementations.reporting.grouping import cell_value
from implementations.reporting.suite.context import Context
from implementations.reporting.targets import aimed, bandwidths, seed_times

EXPERIMENT = "shootout"
CONVOLUTIONAL, CONNECTED = "convolutional", "fully connected"
TIME_MODEL, PLAN_MODEL = "time model", "cost model of plans"
LAYERWISE, GRADIENTS, ALONE = "layer-wise", "gradient all-reduce", "one worker"
_SPARK = {
    "model": "Spark, layers cut",
    "data": "Spark, local steps",
    "hybrid": "Spark, hybrid",
    "async": "Spark, late gradients",
}
_STRATEGIES = {
    "layerwise": LAYERWISE,
    "data": "layer-wise: data",
    "model": "layer-wise: model",
    "owt": "layer-wise: OWT",
    "single": "layer-wise: one device",
}
# A field is what is compared at equal terms: one task, one net.
FIELD = ["dataset", "data_size", "model", "target_value"]
_EXTRA = ["global_batch", "state_bytes_per_worker", "steps", "sent_bytes_total", "accuracy", "frame_error", "mixing",
          "execution", "staleness", "minibatch"]  # fmt: skip


def line_of(run: Mapping[str, Any]) -> str:
    """A contender's name: its method and variant, without the number of steps between exchanges."""
    variant = cell_value(run["variant"])
    match run["method"]:
        case "sequential":
            return ALONE
        case "data_parallel":
            return GRADIENTS
        case "averaging":
            return (
                "averaging in pairs" if cell_value(run["mixing"]) not in (None, "allreduce") else "averaging"
            )
        case "ist":
            return "independent subnets"
        case "spark":
            return _SPARK.get(variant, f"Spark, {variant}")
        case "layerwise":
            return _STRATEGIES.get(variant, f"layer-wise: {variant}")
    return str(run["method"]).replace("_", " ")


def takes_local_steps(run: Mapping[str, Any]) -> bool:
    """Whether a run's workers go several steps alone, so that the number of these tells contenders apart."""
    return run["method"] in ("averaging", "ist") or (run["method"] == "spark" and run["variant"] == "data")


def net_of(model: str) -> str:
    """The kind of net that a model's label names."""
    return CONNECTED if model.startswith("fc") else CONVOLUTIONAL


@functools.lru_cache(maxsize=1)  # a table and the figures ask the same
def contenders(context: Context) -> pd.DataFrame:
    """The simulated runs of the shoot-out that have a target, a row each; not to be changed.

    Beside what ``targets.aimed`` gives: ``line``, ``net``, ``quality`` (accuracy of the test set), ``steps_spent``
    until the target (infinite where it was missed) and ``state_bytes_per_worker``.
    """
    runs = context.runs[in_experiment(context.runs, EXPERIMENT)]
    runs = runs[(runs["evidence"] == "simulated").fillna(False).astype(bool)]
    found = aimed(runs)
    new = [name for name in _EXTRA if name not in found.columns]
    found = found.merge(runs[["run_id", *new]], on="run_id", how="left")
    rows = found.to_dict("records")
    quality = found["accuracy"].astype(float).fillna(1 - found["frame_error"].astype(float))
    return found.assign(
        line=pd.array([line_of(row) for row in rows], dtype="string"),
        net=pd.array([net_of(str(row["model"])) for row in rows], dtype="string"),
        sync_period=found["sync_period"].where([takes_local_steps(row) for row in rows]),
        quality=quality,
        steps_spent=pd.array([steps_to_target(row, context.results_dir) for row in rows], dtype=float),
    )


def seconds_of(runs: pd.DataFrame, context: Context) -> pd.DataFrame:
    """A row for each contender and network: ``time_s`` and ``bytes_s`` to the target, infinite where it was missed.

    ``runs``: of ``contenders``. ``mbit_s``: of the network's links, as their cluster file has them; ``bytes_there``:
    bytes to the target, of a layer-wise run those of the plan for that network; ``seconds_by``: whose seconds.
    Without plans for a network layer-wise runs have no row there.
    """
    networks = bandwidths(context.config_dir)
    found = seed_times(runs, context.timings, networks)
    found = found[found["mbit_s"].notna()].assign(seconds_by=TIME_MODEL, bytes_there=found["bytes_spent"])
    planned = (found["method"] == "layerwise").fillna(False).astype(bool)
    own = found[planned].drop(columns=["time_s", "bytes_there"]).assign(seconds_by=PLAN_MODEL)
    own = own.merge(plan_steps(context.plans), on=_PLAN_KEYS, how="inner")
    own = own.assign(
        time_s=own["steps_spent"] * own["plan_step_s"], bytes_there=own["steps_spent"] * own["plan_bytes"]
    )
    every = found[~planned]
    if len(own):
        every = pd.concat([every, own.drop(columns=["plan_step_s", "plan_bytes"])], ignore_index=True)
    return every[every["time_s"].notna()].reset_index(drop=True)


_PLAN_KEYS = ["dataset", "model", "minibatch", "workers", "variant", "cluster"]


def plan_steps(plans: pd.DataFrame) -> pd.DataFrame:
    """Predicted seconds and bytes of a step of each plan: a row for each of ``_PLAN_KEYS``.

    Of the plans that sum gradients as the executor does, found for the paper's objective, degrees powers of two.
    """
    columns = [*_PLAN_KEYS, "plan_step_s", "plan_bytes"]
    if not len(plans):
        return pd.DataFrame(columns=columns)
    usual = (plans["status"] == "ok") & (plans["sync"] == "allreduce") & (plans["objective"] == "additive")
    usual &= plans["degrees"] == "powers"
    own = plans[usual.fillna(False).astype(bool)]
    own = own.rename(columns={"strategy": "variant", "step_s": "plan_step_s", "network_bytes": "plan_bytes"})
    return own.drop_duplicates(_PLAN_KEYS)[columns]


def errors_of(validation: pd.DataFrame) -> dict[str, float]:
    """The time model's median absolute error by method, from the measured points that it was held against.

    Under the empty name that of all of them; nothing where there are none. Oversubscribed points are left out: a
    simulated network has a core for each worker.
    """
    if not len(validation) or "error" not in validation:
        return {}
    own = validation[validation["error"].notna()]
    if "oversubscribed" in own:
        own = own[~own["oversubscribed"].astype("boolean").fillna(False).astype(bool)]
    if not len(own):
        return {}
    size = own["error"].astype(float).abs()
    return {"": float(size.median())} | {
        str(name): float(part.median()) for name, part in size.groupby(own["method"].astype(str))
    }


def disagreement(seconds: pd.DataFrame, plans: pd.DataFrame) -> dict[tuple[str, int, float], float]:
    """By how much the two models of seconds differ on the same step, all gradients summed.

    By net, workers and bandwidth: the larger step over the smaller, minus one. ``seconds``: of ``seconds_of``.
    """
    own = seconds[(seconds["line"] == GRADIENTS) & np.isfinite(seconds["steps_spent"].astype(float))]
    own = own.assign(step_s=own["time_s"] / own["steps_spent"]).drop(columns="variant")
    planned = plan_steps(plans)
    planned = planned[planned["variant"] == "data"]
    both = own.merge(planned, on=[name for name in _PLAN_KEYS if name != "variant"], how="inner")
    apart = np.exp(np.abs(np.log(both["step_s"].astype(float) / both["plan_step_s"].astype(float)))) - 1
    return {
        (str(model), int(workers), float(mbit_s)): float(part.median())
        for (model, workers, mbit_s), part in apart.groupby([both["model"], both["workers"], both["mbit_s"]])
    }
