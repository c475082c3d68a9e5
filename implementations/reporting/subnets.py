"""Independent subnet training and what it is compared with: names, sizes, and which runs are one experiment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.columns import CONFIGURATION, is_true
from implementations.reporting.grouping import cell_value, most_frequent
from implementations.reporting.papers import paper_of

PAPER = "ist"
# What the method does unless told otherwise, and what another choice is called.
DEFAULTS: dict[str, Any] = {
    "variant": "corrected",
    "server": "central",
    "partition": "uniform",
    "redraw": True,
    "overlap": 0.0,
    "lost_steps": False,
}
# Of runs that are repeats: how many processes did them changes nothing.
KEYS = [name for name in CONFIGURATION if name not in ("processes", "threads_per_worker", "oversubscribed")]
# What runs share whose results stand beside each other, whatever the method and the workers.
SETTING = ["evidence", "dataset", "data_size", "plain_model"]

_SIZES = re.compile(r"^(?P<kind>fc|fc_bn|bow)(?P<sizes>(?:-\d+)+)(?:_|$)")
_DROPOUT = re.compile(r"_dropout(?P<rate>[0-9.]+)")
_WORDS = {"mean": "no output normalisation", "batch": "batch statistics at test"}


def hidden_sizes(model: str) -> tuple[int, ...]:
    """Widths of the hidden layers that a model's label names (``fc_bn-512-512_batch``); none of other kinds."""
    found = _SIZES.match(model)
    return tuple(map(int, found["sizes"].strip("-").split("-"))) if found else ()


def dropout_of(model: str) -> float:
    """The rate of dropout that a model's label names."""
    found = _DROPOUT.search(model)
    return float(found["rate"]) if found else 0.0


def plain_model(model: str) -> str:
    """A model's label without its dropout: what it is compared with."""
    return _DROPOUT.sub("", model)


def name_of(run: Mapping[str, Any], with_period: bool = True) -> str:
    """A run's method with its settings, in its paper's words: ``local SGD (J=20)``.

    ``run``: columns of a record; what the method does by default is not said.
    """
    paper = paper_of(str(run["paper"]))
    words = [paper.methods.get(run["method"], str(run["method"]).replace("_", " "))]
    rate = dropout_of(run["model"])
    words += [f"dropout {rate:g}"] if rate else []
    words += settings_of(run) if run["method"] == "ist" else []
    period = cell_value(run["sync_period"])
    shown = with_period and period is not None and run["method"] != "data_parallel"
    return ", ".join(words) + (f" ({paper.period}={int(period)})" if shown else "")


def settings_of(run: Mapping[str, Any]) -> list[str]:
    """In what a run of the method departs from its defaults, in words."""
    words = []
    if cell_value(run["variant"]) == "faithful":
        words.append("as published")
    if cell_value(run["server"]) == "partitioned":
        words.append("partitioned server")
    if cell_value(run["partition"]) == "stratified":
        words.append("stratified groups")
    if cell_value(run["redraw"]) is not None and not is_true(run["redraw"]):
        words.append("drawn once")
    if cell_value(run["overlap"]):
        words.append(f"overlap {float(run['overlap']):g}")
    if is_true(run["lost_steps"]):
        words.append("lost steps")
    return words


def model_settings(model: str) -> list[str]:
    """In what a model departs from the default net of its sizes, in words."""
    rate = dropout_of(model)
    words = [f"dropout {rate:g}"] if rate else []
    return words + [text for word, text in _WORDS.items() if word in model.split("_")[1:]]


def described(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs with what their labels say in columns of their own.

    ``name``: method, settings and period; ``line``: without the period; ``plain_model``; ``width``: units of the
    narrowest hidden layer, absent where the label names none; ``hidden_layers``.
    """
    rows, models = runs.to_dict("records"), [str(model) for model in runs["model"]]
    sizes = [hidden_sizes(model) for model in models]
    text = {
        "name": [name_of(row) for row in rows],
        "line": [name_of(row, with_period=False) for row in rows],
        "plain_model": [plain_model(model) for model in models],
    }
    whole = {
        "width": [min(each) if each else None for each in sizes],
        "hidden_layers": [len(each) or None for each in sizes],
    }
    return runs.assign(
        **{name: pd.array(values, dtype="string") for name, values in text.items()},
        **{name: pd.array(values, dtype="Int64") for name, values in whole.items()},
    )


def split(runs: pd.DataFrame) -> pd.Series:
    """Which runs train subnets."""
    return (runs["method"] == "ist").fillna(False).astype(bool)


def one_worker(runs: pd.DataFrame) -> pd.Series:
    """Which runs are of one worker without dropout, which the others are held against. ``runs``: ``described``."""
    alone = (runs["method"] == "sequential").fillna(False).astype(bool)
    return alone & (runs["model"] == runs["plain_model"]).fillna(False).astype(bool)


def like(run: pd.Series, runs: pd.DataFrame, same: list[str], near: list[str]) -> pd.DataFrame:
    """Of ``runs`` those equal to ``run`` in ``same``: one configuration, which agrees in most of ``near``."""
    for name in same:
        value = cell_value(run[name])
        equal = runs[name].isna() if value is None else runs[name] == value
        runs = runs[equal.fillna(False).astype(bool)]
    agrees = sum((runs[name] == run[name]).fillna(False).astype(int) for name in near)
    return most_frequent(runs[agrees == agrees.max()], KEYS) if len(runs) else runs


def by_seed(runs: pd.DataFrame, column: str) -> pd.Series:
    """A column's mean over the repeats of each seed, by seed: (seeds,) floats."""
    values = pd.to_numeric(runs[column], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return pd.Series(values).groupby(runs["seed"].to_numpy(dtype=int)).mean()


def differences(runs: pd.DataFrame, base: pd.DataFrame, column: str) -> pd.Series:
    """A column of ``runs`` minus that of ``base``, for each seed that both have: (seeds,) floats."""
    return (by_seed(runs, column) - by_seed(base, column)).dropna()
