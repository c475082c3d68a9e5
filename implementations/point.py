"""A point: one experiment, fully specified by plain values."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

EVIDENCE = ("measured", "simulated", "projected", "fitted")

# What is not part of what a point computes: a change of these retrains nothing.
_NOT_IDENTITY = ("paper", "experiments", "time_limit_s", "checkpoint_s")

# Fields that came after points had been run. Such a field counts only when it is set to something else than its
# default, so that the points from before keep their run ids; whoever adds a field adds it here.
_IDENTITY_WHEN_SET = (
    "skew",
    "memory_limit_bytes",
    "passes",
    "gradient_norms",
    "checkpoint_steps",
    "transport",
    "nodes",
    "eval_size",
)


@dataclass(frozen=True)
class Point:
    """One experiment. Field names are the config's keys and the record's columns."""

    paper: str
    method: str
    dataset: str
    model: dict[str, Any]  # {"name": "fc", "hidden": [512, 512]}
    workers: int
    evidence: str  # "measured": one process per worker; "simulated": workers hosted by `processes` processes
    seed: int
    variant: str = "default"
    method_params: dict[str, Any] = field(
        default_factory=dict
    )  # {"sync_period": 10, "algorithm": "library", ...}
    data_size: int | None = None  # training samples (in total; per worker when scaling is "weak"); None: all
    epochs: int = 1
    passes: int = 1  # over the samples in an epoch: windows and evaluations end where an epoch does
    minibatch: int = 64  # samples per worker and step
    optimizer: str = "sgd"
    lr: float = 0.1
    init: str = (
        "uniform"  # first weights, the schedule of the rate, and the parameters of all three: recipe.py
    )
    schedule: str = "constant"
    recipe: dict[str, Any] = field(default_factory=dict)
    sharding: str = "static"  # "static": a worker keeps its samples; others: data/shards.py
    skew: float | None = None  # Dirichlet concentration of shards' label shares; of sharding "skewed"
    scaling: str = "strong"  # "strong": data_size is shared out; "weak": each worker has data_size
    processes: int = 1
    threads_per_worker: int = 1
    device: str = "cpu"
    transport: str = "mpi"  # what carries measured ranks' messages: "mpi", or "torch": its process groups
    network: str = "loopback"  # what joins the ranks: "loopback" is this machine's memory
    nodes: int | None = None  # of a projected point: how many its cluster has, in place of its file's number
    memory_limit_bytes: int | None = None  # what a worker's state may take; None: no limit
    repeat: int = 0
    decode: bool = (
        True  # whether a speech network's words are decoded after training, or its frames counted alone
    )
    eval_size: int | None = None  # samples of the validation and of the test set that are scored; None: all
    gradient_norms: bool = False  # whether the norm of the gradient is taken at each evaluation
    target_metric: str = "accuracy"
    target_value: float | None = None
    time_limit_s: float = 600.0
    checkpoint_s: float = 30.0
    checkpoint_steps: int | None = None  # also after every so many steps; asynchronous workers meet there
    experiments: tuple[str, ...] = ()  # "experiment/sweep" names that asked for this point

    def identity(self) -> dict[str, Any]:
        """What the point computes, as a dict of JSON values."""
        values = dataclasses.asdict(self)
        fields = self.__dataclass_fields__
        unset = [key for key in _IDENTITY_WHEN_SET if values[key] == fields[key].default]
        return {key: values[key] for key in sorted(values) if key not in (*_NOT_IDENTITY, *unset)}

    @property
    def model_label(self) -> str:
        """The model in one word: its sizes, then what else makes it another net: ``fc_bn-512-512_dropout0.75_batch``.

        Activations are left out, and so are arguments that are not written.
        """
        if "path" in self.model:  # a user's own network
            return _own_label(self.model)
        words = ["-".join([self.model["name"], *map(str, self.model.get("hidden", []))])]
        for key, value in sorted(self.model.items()):
            if isinstance(value, bool):
                words.append(key if value else f"no_{key}")
            elif isinstance(value, str):
                words += [value] if key not in ("name", "activation") else []
            elif key != "hidden":
                words.append(key + ("-".join(map(str, value)) if isinstance(value, list) else f"{value:g}"))
        return "_".join(words)

    @property
    def step_label(self) -> str:
        """What a training step computes, beside the minibatch's size: the model, behind an optimiser that costs more.

        Steps of equal label take equal time on a machine; what stands before the first dash is of one kind.
        """
        if self.optimizer == "ng_sgd":
            return f"ng_sgd/{self.recipe.get('ng_update_period', 1)}:{self.model_label}"
        if self.optimizer == "rmsprop":
            return f"rmsprop:{self.model_label}"
        return self.model_label

    @functools.cached_property
    def run_id(self) -> str:
        """Readable words and a hash of the identity; the name of the run's folder."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:10]
        words = [
            self.method,
            self.dataset,
            self.model_label,
            f"w{self.workers}",
            self.evidence,
            f"s{self.seed}",
        ]
        if "sync_period" in self.method_params:
            words.insert(1, f"k{self.method_params['sync_period']}")
        if self.repeat:
            words.append(f"r{self.repeat}")
        return "_".join([*words, digest])

    @property
    def global_batch(self) -> int:
        """Samples that all workers together handle in one step."""
        return self.workers * self.minibatch

    def to_json(self) -> dict[str, Any]:
        """Every field, for a file; ``from_json`` is the inverse."""
        return dataclasses.asdict(self) | {"experiments": list(self.experiments)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Point:
        """The point that ``to_json`` wrote."""
        return cls(**(values | {"experiments": tuple(values.get("experiments", ()))}))


def _own_label(model: dict[str, Any]) -> str:
    """Where the code is and what it is called with, as a file's name may have it: ``user.nets.Net_width0.5``."""
    words = [
        f"user.{model['path']}",
        *(f"{key}{value}" for key, value in sorted(model.get("args", {}).items())),
    ]
    return re.sub(r"[^\w.]+", ".", "_".join(words))[:80]
