"""A small world for config to name: a few methods, models and data sets, independent of what is installed."""

import pytest
import yaml

from implementations.config import Catalog, load
from implementations.errors import UserError
from implementations.registry import Method, Param

ALGORITHM = Param(str, "library", "how", choices=("library", "ring", "butterfly", "tree", "star"))
LR_SCALING = Param(str, "none", "scaling", choices=("none", "linear"))
PERIOD = Param(int, 10, "period", "minibatches", minimum=1)


def _power_of_two(point):
    if point.method_params.get("algorithm") == "butterfly" and point.workers & (point.workers - 1):
        return [f"workers: got {point.workers}; allowed: a power of two with algorithm butterfly"]
    return []


def _blocks(point):
    units = min(point.model["hidden"])
    if point.method_params["blocks"] > units:
        return [
            f"blocks: got {point.method_params['blocks']} blocks; allowed: at most {units}, the units of a layer"
        ]
    return []


def _method(name, params, checks=lambda point: [], one_worker_only=False, variants=("default",)):
    return Method(name, variants, params, lambda run: iter(()), lambda plan: None, checks, one_worker_only)


METHODS = {
    "sequential": _method("sequential", {}, one_worker_only=True),
    "data_parallel": _method(
        "data_parallel", {"algorithm": ALGORITHM, "lr_scaling": LR_SCALING}, _power_of_two
    ),
    "averaging": _method(
        "averaging", {"sync_period": PERIOD, "algorithm": ALGORITHM, "lr_scaling": LR_SCALING}, _power_of_two
    ),
    "splitting": _method(
        "splitting",
        {"blocks": Param(int, 1, "blocks", minimum=1), "dropout": Param(float, 0.0, "share")},
        _blocks,
    ),
    "shuffling": _method("shuffling", {"sync_period": PERIOD}, variants=("mended", "faithful")),
}
FC = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "hidden"],
    "properties": {
        "name": {"const": "fc"},
        "hidden": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "activation": {"enum": ["relu", "sigmoid", "tanh"]},
    },
}
FC_DROPOUT = FC | {
    "properties": FC["properties"] | {"name": {"const": "fc_dropout"}, "dropout": {"type": "number"}}
}
WORDS = FC | {"properties": FC["properties"] | {"name": {"const": "words"}}}
CATALOG = Catalog(
    METHODS,
    {"fc": FC, "fc_dropout": FC_DROPOUT, "words": WORDS},
    {
        "digits": 1200,
        "fashion_mnist": 54000,
        "sold": 10**6,
        "spoken": 30000,
        "tags": 5000,
        "teacher": None,
    },
    licensed=frozenset({"sold"}),
    speech=frozenset({"spoken"}),
    sparse=frozenset({"tags"}),
    sparse_models=frozenset({"words"}),
)

BASE_TIER = {"tier": "default", "experiments": ["one"]}
BASE_EXPERIMENT = {
    "paper": "averaging",
    "title": "One",
    "defaults": {"dataset": "fashion_mnist", "model": "fc-64-64", "minibatch": 16, "lr": 0.05},
    "sweeps": [
        {
            "name": "grid",
            "evidence": "simulated",
            "set": {"method": "averaging"},
            "grid": {"workers": [1, 4], "sync_period": [5, 10]},
            "seeds": 2,
        }
    ],
}


def write(folder, tier=None, **experiments):
    """A tier's file with its experiments in a folder of its own; returns the tier's path. Text is written as it is."""
    (folder / "experiments").mkdir(parents=True, exist_ok=True)
    experiments = experiments or {"one": BASE_EXPERIMENT}
    for name, content in experiments.items():
        text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
        (folder / "experiments" / f"{name}.yaml").write_text(text)
    content = tier if tier is not None else BASE_TIER | {"experiments": list(experiments)}
    path = folder / "tier.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def load_stub(path):
    return load(path, CATALOG)


def problems_of(path):
    """The mistakes that loading reports, one line each; fails if it reports none."""
    with pytest.raises(UserError) as caught:
        load_stub(path)
    return str(caught.value).splitlines()[1:]
