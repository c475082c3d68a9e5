"""The table of word and frame errors: every condition on every corpus, with what the paper printed for it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.columns import CONFIGURATION, is_speech
from implementations.reporting.grouping import (
    cell_value,
    command_for,
    ended_runs,
    first_value,
    groups_of,
    typed,
)
from implementations.reporting.rows import ENDED
from implementations.reporting.statistics import Summary, range_or_interval
from implementations.reporting.utterances import METRICS, NotComparable, Utterances

COLUMNS = [
    "paper", "evidence", "dataset", "data_kind", "method", "mixing", "content", "optimizer", "max_change_rule",
    "reduction", "momentum", "ng_update_period", "init", "schedule", "settings", "workers", "sync_period", "minibatch",
    "model", "model_params", "data_size", "epochs", "lr", "lr_scaling", "n", "wer", "wer_low", "wer_high",
    "frame_error", "frame_error_low", "frame_error_high", "spread", "substitutions", "deletions", "insertions",
    "reference_words", "drift", "rank0_wer", "rank0_frame_error", "valid_frame_error", "epochs_done", "diverged",
    "published_swb", "published_callhome", "base_lr", "wer_minus_one_worker", "wer_minus_one_worker_low",
    "wer_minus_one_worker_high", "recipe", "command",
]  # fmt: skip
# Means over a condition's seeds, of what a run's record says.
MEANS = ("substitutions", "deletions", "insertions", "reference_words", "drift", "rank0_wer", "rank0_frame_error",
         "epochs_done")  # fmt: skip
KINDS = {"real": "real recordings", "generated": "generated speech", "licensed": "licensed recordings"}
TEST_SETS = {"published_swb": "hub5-00-swb", "published_callhome": "hub5-00-callhome"}
# What the paper had in all its runs; a run with another value has no counterpart in it.
_AS_PRINTED = {"lr_scaling": "linear", "content": "parameters"}
_PRINTED_SETTINGS = {
    "lr_final": 0.01,
    "momentum": 0.0,
    "newbob_start_below": 0.005,
    "newbob_stop_below": 0.001,
    "rbm_gaussian_epochs": 2,
    "rbm_bernoulli_epochs": 1,
}

_ORDER = ["paper", "evidence", "data_kind", "dataset", "data_size", "model_params", "optimizer", "init", "schedule",
          "settings", "minibatch", "mixing", "sync_period", "lr", "workers"]  # fmt: skip

# What makes two runs repeats; how many processes did it changes nothing.
_KEYS = [name for name in CONFIGURATION if name not in ("processes", "threads_per_worker", "oversubscribed")]
# What a condition shares with its own on one worker, where nothing is averaged.
_CONDITION = ["paper", "evidence", "variant", "dataset", "data_size", "model", "minibatch", "epochs", "optimizer",
              "init", "schedule", "recipe"]  # fmt: skip


def wer_table(
    runs: pd.DataFrame,
    utterances: pd.DataFrame | None = None,
    published: pd.DataFrame | None = None,
    tier: str | None = None,
) -> pd.DataFrame:
    """A row for each condition on each corpus and kind of evidence; rates are shares, published ones too.

    ``wer`` and ``frame_error``: means over seeds, with the 95 % interval over speakers, utterances and seeds where
    all runs have utterances, else the range over seeds; ``spread`` says which. ``wer_minus_one_worker``: against one
    worker of the same condition at ``base_lr``: the same rate, or else the best on validation data.
    """
    speech = runs[is_speech(runs) & runs["status"].isin([*ENDED, "diverged"]).fillna(False).astype(bool)]
    tests = Utterances(
        utterances if utterances is not None else pd.DataFrame(columns=["run_id", "utterance"])
    )
    conditions = list(groups_of(speech, _KEYS))
    settings = _telling_settings(speech)
    rows = []
    for keys, group in conditions:
        row = {name: keys.get(name, first_value(group, name)) for name in COLUMNS if name in group}
        ended = ended_runs(group)
        row |= {
            **{name: _mean(ended, name) for name in MEANS},
            **_rates(ended, tests),
            **_against_one_worker(keys, ended, conditions, tests),
            **{name: _printed(keys, test_set, published, speech) for name, test_set in TEST_SETS.items()},
            "settings": _settings_told(keys, settings),
            "valid_frame_error": 1 - _mean(ended, "valid_accuracy"),
            "diverged": int((group["status"] == "diverged").sum()),
            "command": command_for(keys["paper"], tier),
        }
        rows.append(row)
    table = typed(pd.DataFrame(rows, columns=COLUMNS))
    return table.sort_values(_ORDER, na_position="first", kind="stable", ignore_index=True)


def corpus_name(dataset: str, data_kind: str) -> str:
    """A corpus and whose speech it is, in words."""
    return f"{dataset} ({KINDS.get(data_kind, data_kind)})"


def _mean(ended: pd.DataFrame, name: str) -> float:
    """Mean over seeds; the repeats of a seed are one value."""
    return float(ended.groupby("seed")[name].mean().astype(float).mean()) if len(ended) else np.nan


def _rates(ended: pd.DataFrame, tests: Utterances) -> dict[str, Any]:
    """Word and frame error with their intervals; runs that decoded nothing have frame errors alone."""
    found: dict[str, Any] = {"n": ended["seed"].nunique(), "spread": "no value"}
    for metric in reversed(METRICS):
        value = _over_speakers([ended], metric, tests, (1.0,))
        if value is None:
            value = range_or_interval(ended.groupby("seed")[metric].mean().astype(float))
        found |= {metric: value.centre, f"{metric}_low": value.low, f"{metric}_high": value.high}
        if value.n:
            found["spread"] = f"{value.kind} over {value.over}" if value.over else value.kind
    return found


def _over_speakers(
    groups: list[pd.DataFrame], metric: str, tests: Utterances, weights: tuple[float, ...]
) -> Summary | None:
    """The weighted sum of the groups' rates with its interval; None where a run lacks utterances."""
    if not all(len(group) and all(name in tests for name in group["run_id"]) for group in groups):
        return None
    try:
        redrawn = tests.redraw(groups, metric, paired=len(groups) > 1)
    except NotComparable:
        return None
    found = redrawn.interval(weights)
    return Summary(found.value, found.low, found.high, redrawn.seeds, "95 % interval", redrawn.over)


def _against_one_worker(
    keys: dict[str, Any], ended: pd.DataFrame, conditions: list[Any], tests: Utterances
) -> dict[str, Any]:
    """How much higher the word error rate is than on one worker."""
    base = None if keys["workers"] == 1 or not len(ended) else _one_worker(keys, conditions)
    if base is None:
        return {}
    value = _over_speakers([ended, base], "wer", tests, (1.0, -1.0))
    if value is None:
        both = ended.groupby("seed")["wer"].mean() - base.groupby("seed")["wer"].mean()
        value = range_or_interval(both.astype(float))
    names = ("wer_minus_one_worker", "wer_minus_one_worker_low", "wer_minus_one_worker_high")
    return dict(zip(names, (value.centre, value.low, value.high), strict=True)) | {
        "base_lr": first_value(base, "lr")
    }


def _one_worker(keys: dict[str, Any], conditions: list[Any]) -> pd.DataFrame | None:
    """The runs of the same condition on one worker that ended."""
    found = [
        (other, ended_runs(group))
        for other, group in conditions
        if other["workers"] == 1 and all(other[name] == keys[name] for name in _CONDITION)
    ]

    def preference(one: tuple[dict[str, Any], pd.DataFrame]) -> tuple[bool, float]:
        return one[0]["lr"] == keys["lr"], _mean(one[1], "valid_accuracy")

    found = [one for one in found if len(one[1]) and one[1]["wer"].notna().any()]
    return max(found, key=preference)[1] if found else None


# -- settings ----------------------------------------------------------------------------------------------------------


def _telling_settings(speech: pd.DataFrame) -> dict[tuple[Any, ...], list[str]]:
    """For each optimiser, initialisation and schedule: the settings that differ among its runs and have no column."""
    found = {}
    for part, rows in speech[speech["recipe"].notna()].groupby(["optimizer", "init", "schedule"]):
        recipes = [json.loads(recipe) for recipe in rows["recipe"].unique()]
        names = dict.fromkeys(name for recipe in recipes for name in recipe if name not in COLUMNS)
        found[part] = [name for name in names if len({recipe.get(name) for recipe in recipes}) > 1]
    return found


def _settings_told(keys: dict[str, Any], telling: dict[tuple[Any, ...], list[str]]) -> str | None:
    recipe = json.loads(keys["recipe"]) if keys["recipe"] else {}
    names = telling.get((keys["optimizer"], keys["init"], keys["schedule"]), [])
    return ", ".join(f"{name}={recipe[name]:g}" if isinstance(recipe[name], float) else f"{name}={recipe[name]}"
                     for name in names if name in recipe) or None  # fmt: skip


# -- the paper's -------------------------------------------------------------------------------------------------------


def printed_rates(published: pd.DataFrame | None) -> pd.DataFrame:
    """The word error rates that the paper printed, in %, each condition and test set once."""
    if published is None or not {"metric", "test_set", "reduce"} <= set(published.columns):
        return pd.DataFrame(columns=["paper", *_PRINTED_KEYS, "minibatch", "test_set", "value"])
    found = published[(published["metric"] == "wer") & published["minibatch"].notna()]
    return found.drop_duplicates(["paper", *_PRINTED_KEYS, "minibatch", "test_set"])


_PRINTED_KEYS = ["workers", "sync_period", "optimizer", "init", "schedule", "reduce"]


def _printed(
    keys: dict[str, Any], test_set: str, published: pd.DataFrame | None, speech: pd.DataFrame
) -> float | None:
    """The published rate of a condition, as a share. On our corpora the main minibatch stands for the paper's."""
    alone = keys["workers"] == 1
    recipe = json.loads(keys["recipe"]) if keys["recipe"] else {}
    if any(recipe.get(name, value) != value for name, value in _PRINTED_SETTINGS.items()):
        return None
    if not alone and any(keys[name] != value for name, value in _AS_PRINTED.items()):
        return None
    rates = printed_rates(published)
    rates = rates[(rates["paper"] == keys["paper"]) & (rates["test_set"] == test_set)]
    if not len(rates):
        return None
    own = speech[speech["dataset"] == keys["dataset"]]
    if first_value(own, "data_kind") == "licensed":
        minibatch = keys["minibatch"]
    else:
        minibatch = (
            rates["minibatch"].mode().iloc[0]
            if keys["minibatch"] == own["minibatch"].mode().iloc[0]
            else None
        )
    wanted = {name: keys[name] for name in ("workers", "optimizer", "init", "schedule")} | {
        "minibatch": minibatch
    }
    wanted |= {} if alone else {"sync_period": keys["sync_period"], "reduce": keys["mixing"]}
    hit = pd.Series(True, index=rates.index)
    for name, value in wanted.items():
        hit &= (rates[name] == value).fillna(False).astype(bool) if value is not None else False
    return cell_value(rates.loc[hit, "value"].iloc[0]) / 100 if hit.any() else None
