"""What the figures of layer-wise parallelism share: which plans they show, names of networks, lines of strategies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pandas as pd

from implementations.reporting import plans as planning
from implementations.reporting.figures import style

_NAMES = {
    "lenet5": "LeNet-5",
    "alexnet": "AlexNet",
    "vgg16": "VGG-16",
    "inception_v3": "Inception-v3",
    "resnet50": "ResNet-50",
    "alexnet_small": "AlexNet, small",
    "vgg_small": "VGG, small",
    "resnet_small": "ResNet, small",
    "inception_small": "Inception, small",
}


def network_name(model: str) -> str:
    """A network's label in words: ``AlexNet, small, width 0.5``."""
    base, words = str(model), []
    while "_" in base and base not in _NAMES:
        base, _, last = base.rpartition("_")
        words.insert(0, last)
    if base not in _NAMES:
        return str(model)
    text = " ".join(words)
    text = re.sub(r"\bfc input(\d+)", r"FC input \1", text)
    text = re.sub(r"\bimage(\d+)", r"\1 px", text)
    text = re.sub(r"\bwidth([\d.]+)", r"width \1", text)
    return _NAMES[base] + (f", {text}" if text else "")


def ok_plans(plans: pd.DataFrame, *experiments: str) -> pd.DataFrame:
    """The plans of some experiments that keep to their memory."""
    own = planning.of_experiment(plans, *experiments)
    return own[(own["status"] == "ok").fillna(False).astype(bool)]


def one_objective(plans: pd.DataFrame) -> pd.DataFrame:
    """Of each strategy in each setting one plan: that of the paper's objective, where there are several."""
    if not len(plans):
        return plans
    place = (plans["objective"] != "additive").fillna(True).astype(int)
    order = plans.assign(_place=place).sort_values("_place", kind="stable")
    keys = [*planning.SETTING, "workers", "strategy"]
    return order.drop_duplicates(keys).drop(columns="_place").sort_index()


def by_strategy(plans: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each strategy, in their order."""
    for name in planning.STRATEGIES:
        rows = plans[(plans["strategy"] == name).fillna(False).astype(bool)]
        if len(rows):
            yield name, rows


def in_size(plans: pd.DataFrame) -> list[str]:
    """Networks, the one with the most weights last."""
    return list(dict.fromkeys(plans.sort_values(["params", "model"])["model"].dropna()))


def in_order(plans: pd.DataFrame) -> list[str]:
    """Networks in the order of the paper, then by their number of weights."""
    known = list(_NAMES)

    def place(model: str) -> int:
        base = next((name for name in sorted(known, key=len, reverse=True) if model.startswith(name)), None)
        return known.index(base) if base else len(known)

    return sorted(in_size(plans), key=place)


def strategy_keys(strategies: Iterable[str]) -> list:
    """A key's entries for the strategies that occur."""
    known = set(strategies)
    return [style.strategy_key(name) for name in planning.STRATEGIES if name in known]


def evidence_told(rows: pd.DataFrame) -> str:
    """Evidence, cluster and where the computation's times come from, in words."""
    kinds = ", ".join(sorted(set(rows["evidence"].dropna())))
    sources = " and ".join(sorted(set(rows["compute_source"].dropna()))) if "compute_source" in rows else ""
    clusters = ", ".join(sorted(set(rows["cluster"].dropna()))) if "cluster" in rows else ""
    told = f"Evidence: {kinds}"
    told += f"; on {clusters}" if clusters else ""
    return told + (f", computation from {sources}. " if sources else ". ")
