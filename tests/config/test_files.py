"""The suite's own config files."""

import dataclasses
import re
from collections import Counter
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
import yaml

from implementations.config import Catalog, describe, load
from implementations.errors import UserError
from tests.config.stubs import load_stub, problems_of, write

CONFIG = Path(__file__).parents[2] / "config"
TIERS = {"default": "config.yaml", "smoke": "smoke.yaml", "extended": "extended.yaml", "full": "full.yaml"}


@pytest.fixture(scope="module")
def tiers():
    catalog = Catalog.installed()
    return {tier: load(CONFIG / file, catalog) for tier, file in TIERS.items()}


@pytest.fixture(scope="module")
def switchboard():
    """As for somebody who has prepared the licensed corpus."""
    catalog = dataclasses.replace(Catalog.installed(), licensed=frozenset())
    return load(CONFIG / "switchboard.yaml", catalog)


def test_the_papers_own_set_up_is_one_file_away(switchboard):
    """Su and Chen 2015, section 3: 440-6x2048-8806, minibatches of 1024, 15 epochs, K=10, rate 0.32 times workers."""
    point = switchboard.points[0]
    assert point.model == {"name": "fc", "hidden": [2048] * 6, "activation": "sigmoid"}
    assert (point.minibatch, point.epochs, point.lr, point.method_params["sync_period"]) == (
        1024,
        15,
        0.32,
        10,
    )
    assert point.recipe["max_change_rule"] == "author" and point.recipe["ng_rank_in"] == 40
    assert {p.workers for p in switchboard.points} == {1, 8, 16, 32}


def test_a_licensed_corpus_is_refused_until_it_is_prepared():
    catalog = dataclasses.replace(Catalog.installed(), licensed=frozenset({"switchboard"}))
    with pytest.raises(UserError, match="switchboard is licensed"):
        load(CONFIG / "switchboard.yaml", catalog)


def test_a_stand_in_takes_the_place_of_what_cannot_be_had():
    catalog = Catalog.installed()
    replaced = dataclasses.replace(
        catalog, stand_ins={"an4": "generated_words"}, datasets={**catalog.datasets, "generated_words": 12000}
    )
    points = [
        p for p in load(CONFIG / "config.yaml", replaced).points if p.model.get("activation") == "sigmoid"
    ]
    speech = [p for p in points if p.evidence != "projected"]
    assert speech and {p.dataset for p in speech} == {"generated_words"}
    assert {p.data_size for p in speech} == {None}  # all there is where more is asked for


@pytest.mark.parametrize("path", sorted((CONFIG / "schemas").glob("*.yaml")), ids=lambda path: path.name)
def test_each_schema_is_one(path):
    jsonschema.Draft202012Validator.check_schema(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("tier", TIERS)
def test_each_tier_loads(tiers, tier):
    assert tiers[tier].tier == tier
    assert tiers[tier].points
    assert describe(tiers[tier]).startswith(f"tier {tier} ")


def test_every_experiment_belongs_to_some_tier(tiers, switchboard):
    files = {path.stem for path in (CONFIG / "experiments").glob("*.yaml")}
    all_settings = [*tiers.values(), switchboard]
    assert files == {experiment.name for settings in all_settings for experiment in settings.experiments}


@pytest.mark.parametrize("tier", ["default", "extended", "full"])
def test_timings_have_five_repeats_or_more(tiers, tier):
    repeats = {}
    for point in tiers[tier].points:
        if point.evidence == "measured":
            key = tuple(sorted((k, str(v)) for k, v in point.identity().items() if k != "repeat"))
            long = (
                point.data_size or 0
            ) >= 10**6  # minutes each: what comes and goes in seconds is averaged out
            repeats.setdefault((long, key), set()).add(point.repeat)
    assert min(len(found) for (long, _), found in repeats.items() if not long) >= 5


def test_smoke_has_every_method_measured_and_simulated(tiers):
    have = {(p.method, p.evidence, p.workers) for p in tiers["smoke"].points}
    for method in ("data_parallel", "averaging"):
        assert {(method, "measured", w) for w in (1, 2)} | {
            (method, "simulated", w) for w in (1, 4, 16)
        } <= have
    assert {("sequential", "measured", 1), ("sequential", "simulated", 1)} <= have
    # what needs no download: images out of a package, and speech that is generated
    assert set(tiers["smoke"].datasets) == {"digits", "generated_words"}


def test_the_time_model_is_checked_on_every_method_network_and_number_of_ranks(tiers):
    """Medians of five; what the default tier has is a part of the whole."""
    sets = {}
    for tier in ("default", "extended"):
        own = [p for p in tiers[tier].points if any(n.startswith("validation/") for n in p.experiments)]
        assert {p.evidence for p in own} == {"measured"}
        sets[tier] = Counter(dataclasses.replace(p, repeat=0).run_id for p in own)
        assert set(sets[tier].values()) == {5}
        found = {(p.method, p.workers, p.network) for p in own}
        for method in ("data_parallel", "averaging", "ist", "layerwise", "spark"):
            assert (method, 2, "loopback") in found
        for method in ("data_parallel", "averaging", "ist", "layerwise"):
            assert (method, 2, "emulated-100mbit") in found
        assert {("sequential", 1, "loopback"), ("data_parallel", 4, "loopback")} <= found
        assert ("data_parallel", 2, "emulated-1000mbit") in found
        assert {p.method_params["mixing"] for p in own if p.method == "averaging"} >= {
            "allreduce",
            "hopping_ring",
        }
        # the first steps of a run, which are slower, must not tell
        assert all(p.data_size // (p.workers * p.minibatch) * p.passes * p.epochs >= 10 for p in own)
    assert set(sets["default"]) <= set(sets["extended"])


def test_tuning_uses_seeds_that_no_reported_point_has_and_as_many_trials_for_each_method(tiers):
    tuning = [
        p
        for p in tiers["extended"].points
        if p.experiments == tuple(n for n in p.experiments if "tuning/" in n)
    ]
    reported = {p.seed for p in tiers["extended"].points if p not in tuning}
    assert tuning and not {p.seed for p in tuning} & reported
    trials, speech = {}, {}
    for point in tuning:
        trial = (point.lr, point.seed)
        if (point.paper, point.dataset) == ("averaging", "an4"):
            rule = point.recipe.get("max_change_rule")
            speech.setdefault((point.optimizer, rule), {}).setdefault(point.workers, set()).add(trial)
        else:
            task = trials.setdefault((point.paper, point.dataset), {})
            task.setdefault((point.method, point.workers), set()).add(trial)
    images, subnets = trials["averaging", "fashion_mnist"], trials["ist", "speech_commands_small"]
    assert {("data_parallel", 16), ("averaging", 16), ("data_parallel", 1), ("averaging", 1)} <= set(images)
    assert {("ist", 4), ("ist", 8), ("averaging", 4), ("data_parallel", 4), ("sequential", 1)} <= set(subnets)
    for of_task in trials.values():
        assert len(set(map(frozenset, of_task.values()))) == 1
    assert set(speech["ng_sgd", "author"]) == set(speech["sgd", None]) == {1, 4, 16, 32}
    for of_workers in speech.values():
        assert len(set(map(frozenset, of_workers.values()))) == 1


@pytest.mark.parametrize("method", ["sequential", "data_parallel", "averaging"])
def test_the_extended_grid_of_sizes(tiers, method):
    points = [
        p
        for p in tiers["extended"].points
        if p.method == method and any("sizes/" in n for n in p.experiments)
    ]
    for dataset in ("fashion_mnist", "teacher"):
        mine = [p for p in points if p.dataset == dataset]
        assert len({p.data_size for p in mine}) >= 3
        assert len({p.model_label for p in mine}) >= 3
        assert len({p.seed for p in mine}) == 6
        assert {p.workers for p in mine} == ({1} if method == "sequential" else {1, 2, 4, 8, 16, 32})


@pytest.mark.parametrize("tier", ["extended", "full"])
def test_the_identity_of_period_one_stays_where_rounding_cannot_grow(tiers, tier):
    points = [p for p in tiers[tier].points if "period/identity" in p.experiments]
    assert {(p.method, p.lr, p.epochs, p.data_size) for p in points} == {
        (method, 0.005, 2, 24000) for method in ("data_parallel", "averaging")
    }


TRIALS = Path(__file__).parents[2] / "results/reference/extended/tuning.csv"


def test_rates_of_the_speech_points_are_what_the_trials_say(tiers):
    """The smallest rate within 0.2 points of validation accuracy of the best, as speech_tuning.yaml has it."""
    trials = pd.read_csv(TRIALS)
    trials = trials[(trials["dataset"] == "an4") & trials["optimizer"].isin(["ng_sgd", "sgd"])]

    def chosen(optimizer, rule, workers):
        rows = trials[(trials["optimizer"] == optimizer) & (trials["workers"] == workers)]
        rows = rows[rows["max_change_rule"].fillna("none") == (rule or "none")]
        assert len(rows) >= 5
        return rows[rows["mean"] >= rows["mean"].max() - 0.002]["lr"].min()

    told = {}
    for point in tiers["extended"].points:
        sweeps = {name.split("/")[1] for name in point.experiments if name.startswith("speech/")}
        rule = point.recipe.get("max_change_rule")
        if sweeps & {"best-rate"}:
            told[point.optimizer, rule, point.workers] = point.lr
        if sweeps & {"workers", "workers-all", "sgd", "sgd-all", "random", "max-change"}:
            assert point.lr == chosen(point.optimizer, rule, 1)
    assert told == {key: chosen(*key) for key in told} and len(told) == 6


def test_the_licensed_corpus_is_only_projected(tiers):
    assert "switchboard" in Catalog.installed().licensed
    assert "switchboard" not in {name for settings in tiers.values() for name in settings.datasets}


def test_the_readme_tells_every_evidence():
    schema = yaml.safe_load((CONFIG / "schemas" / "experiment.schema.yaml").read_text())
    (row,) = re.findall(r"\| `evidence` \|.*", (CONFIG / "README.md").read_text())
    kinds = schema["properties"]["sweeps"]["items"]["properties"]["evidence"]["enum"]
    assert [kind for kind in kinds if f"`{kind}`" not in row] == []


def test_the_readme_tells_every_sharding():
    schema = yaml.safe_load((CONFIG / "schemas" / "point.schema.yaml").read_text())
    told = re.findall(
        r"^\| `(\w+)`(?: \(default\))? \|.*shard|^\| `(\w+)` \| all ",
        (CONFIG / "README.md").read_text(),
        re.M,
    )
    assert {one or other for one, other in told} == set(schema["properties"]["sharding"]["enum"])


def test_the_readmes_example_has_the_points_that_it_says(tmp_path):
    text = (CONFIG / "README.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    settings = load_stub(write(tmp_path, {"tier": "default", "experiments": ["mine"]}, mine=example))
    (count,) = re.findall(r"the (\d+) new points", text)
    assert len(settings.points) == int(count)


def test_the_readme_names_every_key():
    text = (CONFIG / "README.md").read_text()
    for name in ("tier", "experiment"):
        schema = yaml.safe_load((CONFIG / "schemas" / f"{name}.schema.yaml").read_text())
        keys = set(schema["properties"]) - {"sweeps"}
        if name == "experiment":
            keys |= set(schema["properties"]["sweeps"]["items"]["properties"])
        missing = {key for key in keys if f"`{key}`" not in text and f"`{key}." not in text}
        assert not missing


CLUSTER = {
    "name": "mine", "description": "d", "date": "2026-01-01", "hardware": "h", "source": "s", "nodes": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"like": "this-host", "nodes": 0}, "nodes: got 0"),
        ({"like": "moon"}, "like: got"),
        ({"like": "this-host", "name": "other"}, 'name: got "other"; allowed: mine'),
        ({"like": "this-host", "colour": 1}, "colour: got an unknown key"),
        ({}, "device: got nothing"),
    ],
)
def test_a_cluster_of_a_tier_is_checked(tmp_path, change, where):
    path = write(tmp_path, {"tier": "default", "experiments": ["one"], "clusters": ["mine"]}, one=GOOD)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "mine.yaml").write_text(yaml.safe_dump(CLUSTER | change))
    assert any(f"mine.yaml: {where}" in line for line in problems_of(path))


def test_a_cluster_like_another_may_leave_out_what_it_shares(tmp_path):
    path = write(tmp_path, {"tier": "default", "experiments": ["one"], "clusters": ["mine"]}, one=GOOD)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "mine.yaml").write_text(yaml.safe_dump(CLUSTER | {"like": "this-host"}))
    assert load_stub(path).clusters == ("mine",)


GOOD = """
paper: averaging
title: t
sweeps:
  - {name: a, evidence: simulated, set: {method: sequential, dataset: digits, model: fc-8, workers: 1, minibatch: 8}}
"""
