"""The shoot-out's rates and targets follow from its trials by the rule that docs/shoot-out.md states."""

from pathlib import Path

import pandas as pd
import pytest

from implementations import config

ROOT = Path(__file__).resolve().parents[2]
MARGIN = 0.002  # one seed cannot tell less
# Who does whose arithmetic.
SAME = {"layerwise": "data_parallel", ("spark", "model"): "data_parallel", ("spark", "data"): "averaging"}


@pytest.fixture(scope="module")
def trials():
    return pd.read_csv(ROOT / "results/reference/shootout_tuning.csv")


@pytest.fixture(scope="module")
def points():
    settings = config.load(ROOT / "config/extended.yaml")
    return [
        point for point in settings.points if any(name.startswith("shootout/") for name in point.experiments)
    ]


def rates(trials, point):
    """The trials that speak of a point's rate: of its method, or of that whose arithmetic it does."""
    method = SAME.get(point.method, SAME.get((point.method, point.variant), point.method))
    own = trials[(trials["dataset"] == point.dataset) & (trials["model"] == point.model_label)]
    own = own[
        (own["method"] == method) & own["workers"].isin({1: [1], 2: [4], 4: [4]}.get(point.workers, [16]))
    ]
    for name in ("sync_period", "mixing"):
        value = point.method_params.get(name, "allreduce" if name == "mixing" else None)
        known = own[name].dropna()
        if method in ("averaging", "ist") and len(known) and value in set(known):
            own = own[own[name] == value]
    return own


def test_every_method_had_as_many_trials(trials):
    keys = ["dataset", "model", "method", "variant", "sync_period", "mixing", "workers"]
    assert set(trials.groupby(keys, dropna=False).size()) == {5}
    assert set(trials["seed"]) == {101}


def test_rates_are_the_smallest_within_the_margin_of_the_best(trials, points):
    for point in points:
        own = rates(trials, point)
        # of several periods that stand for one that was not tried (K=1), each
        for _, each in own.groupby(["sync_period", "mixing"], dropna=False):
            best = each["valid_accuracy"].max()
            assert point.lr == each.loc[each["valid_accuracy"] >= best - MARGIN, "lr"].min(), point.run_id


def test_targets_are_reached_by_most_at_their_rates(trials, points):
    for task in {(point.dataset, point.model_label, point.target_value) for point in points}:
        dataset, model, target = task
        own = trials[(trials["dataset"] == dataset) & (trials["model"] == model)]
        best = own.groupby(["method", "sync_period", "mixing", "workers"], dropna=False)[
            "valid_accuracy"
        ].max()
        assert (best >= target).mean() > 0.7, task
