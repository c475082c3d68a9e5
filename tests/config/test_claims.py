"""The claims fit their schema and name only what exists."""

import ast
import re
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
import yaml

from implementations import config, record
from implementations.recipe import INITS, OPTIMIZERS, SCHEDULES
from implementations.reporting.layerwise import PREDICTION_COLUMNS
from implementations.reporting.plans import (
    COUNTS,
    GIVEN,
    LAYER_COLUMNS,
    PLAN_COLUMNS,
    RELATED,
    SEARCH_COLUMNS,
)
from implementations.reporting.spark import EXACTNESS_COLUMNS, PROJECTION_COLUMNS

CONFIG = Path(__file__).parents[2] / "config"
SCHEMA = yaml.safe_load((CONFIG / "schemas" / "claims.schema.yaml").read_text())
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONFIG / "claims").glob("*.yaml"))}
PAPER_OF = {claim["id"]: paper for paper, file in FILES.items() for claim in file["claims"]}
CLAIMS = {claim["id"]: claim for file in FILES.values() for claim in file["claims"]}
PUBLISHED = {path.stem: pd.read_csv(path).set_index("id") for path in (CONFIG / "published").glob("*.csv")}


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("paper", FILES)
def test_a_file_fits_the_schema(paper):
    jsonschema.Draft202012Validator(SCHEMA).validate(FILES[paper])
    assert FILES[paper]["paper"] == paper
    assert set(PUBLISHED) == set(FILES)


def test_ids_are_used_once():
    assert len(CLAIMS) == sum(len(file["claims"]) for file in FILES.values())


@pytest.mark.parametrize("name", CLAIMS)
def test_sources_and_experiments_exist(name):
    claim = CLAIMS[name]
    assert set(claim["source"].get("published", [])) <= set(PUBLISHED[PAPER_OF[name]].index)
    for experiment in claim["needs"]["experiments"]:
        assert (CONFIG / "experiments" / f"{experiment}.yaml").is_file()
        for tier in claim["needs"]["tiers"]:
            file = "config" if tier == "default" else tier
            assert experiment in yaml.safe_load((CONFIG / f"{file}.yaml").read_text())["experiments"]


@pytest.mark.parametrize("name", CLAIMS)
def test_selected_experiments_are_among_the_needs(name):
    claim = CLAIMS[name]
    evaluate = claim["evaluate"]
    filters = [
        evaluate["select"],
        evaluate.get("against", {}),
        *(case["select"] for case in evaluate.get("cases", [])),
    ]
    for one in filters:
        wanted = one.get("experiments", [])
        for title in [wanted] if isinstance(wanted, str) else wanted:
            experiment, _, sweep = title.partition("/")
            assert experiment in claim["needs"]["experiments"]
            sweeps = yaml.safe_load((CONFIG / "experiments" / f"{experiment}.yaml").read_text())["sweeps"]
            assert not sweep or sweep in [entry["name"] for entry in sweeps]


def published_as(role):
    return {name for numbers in PUBLISHED.values() for name in numbers.index[numbers["role"] == role]}


def test_every_target_has_a_claim():
    claimed = {name for claim in CLAIMS.values() for name in claim["source"].get("published", [])}
    # the derived speedup at 16 is the printed one once more
    assert published_as("target") - claimed == {"avg-speedup-w16-derived"}


def test_no_input_is_judged():
    inputs = published_as("input")
    for claim in CLAIMS.values():
        assert not inputs & set(claim["source"].get("published", []))


def counts_only(claim):
    """Whether a claim over plans names counts alone, of strategies that no search finds."""
    how, published = claim["evaluate"], claim["source"].get("published", [])
    names = set(re.findall(r"[a-z_]+", how["value"] + " " + how.get("equals", "")))
    strategies = {how["select"].get("strategy")} | {
        PUBLISHED["layerwise"].loc[name, "strategy"]
        for name in published
        if "strategy" in how.get("match", [])
    }
    return how["over"] == "plans" and names <= COUNTS and strategies - {None} <= set(GIVEN)


def test_projections_are_at_best_consistent():
    for claim in CLAIMS.values():
        how = claim["evaluate"]
        planned = how["over"] in ("plans", "layers", "projections") and not counts_only(claim)
        if how["select"].get("evidence") == "projected" or planned:
            assert claim["holds_as"] == "consistent (projected)", claim["id"]
        else:
            assert claim["holds_as"] != "consistent (projected)", claim["id"]


def test_counts_of_given_strategies_need_no_model_of_time():
    known = {name for name, claim in CLAIMS.items() if counts_only(claim)}
    assert {"lw-bytes-data", "lw-bytes-owt", "lw-bytes-model", "lw-bytes-owt-least-of-the-given"} <= known
    assert not {"lw-bytes-layerwise", "lw-bytes-layerwise-at-most-owt", "lw-images-data", "lw-order"} & known


def test_what_needs_speech_says_so():
    for claim in CLAIMS.values():
        if {"wer", "frame_error"} & set(re.findall(r"\w+", claim["evaluate"]["value"])):
            assert claim["needs"]["speech"]


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "reproduced"},
        {"holds_as": "proved"},
        {"id": "Has Spaces"},
        {"tolerance": {"absolute": 0}},
        {"source": {}},
        {"evaluate": {"kind": "order", "over": "records", "value": "loss", "select": {"workers": 1}}},
        {"evaluate": {"kind": "guess", "over": "records", "value": "loss", "select": {"workers": 1}}},
        {"evaluate": {"kind": "exact", "over": "records", "value": "loss", "select": {"workers": 1}}},
        {"evaluate": {"kind": "bound", "over": "records", "value": "loss", "select": {}}},
    ],
)
def test_the_schema_refuses(change):
    claim = ON_SPEECH | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate({"paper": "averaging", "claims": [claim]})


ON_SPEECH = {
    "id": "a-claim",
    "source": {"text": "Section 3"},
    "statement": "It is so.",
    "needs": {"experiments": [], "tiers": ["default"], "speech": True},
    "evaluate": {"kind": "bound", "over": "records", "value": "100 * wer", "select": {"workers": 16},
                 "against": {"workers": 1}, "pair": ["seed"], "diverged_as": 100, "resample": "speakers"},
    "tolerance": {"low": 0, "why": "The sign itself is the claim."},
    "holds_as": "shape holds",
    "command": "snakemake --cores all",
}  # fmt: skip
FOUR = [{"label": str(m), "select": {"workers": m}} for m in (1, 2, 4, 8)]


def over_speakers(needs=None, **given):
    claim = ON_SPEECH | {"evaluate": ON_SPEECH["evaluate"] | given}
    claim |= {"needs": ON_SPEECH["needs"] | (needs or {})}
    jsonschema.Draft202012Validator(SCHEMA).validate({"paper": "averaging", "claims": [claim]})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"value": "frame_error"},
        {"kind": "interaction", "cases": FOUR},
        {"needs": {"elsewhere": "printed for another corpus"}},
    ],
)
def test_the_schema_takes_claims_over_speakers(given):
    over_speakers(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"value": "accuracy"},
        {"value": "1 - wer"},
        {"resample": "seeds"},
        {"over": "timings"},
        {"aggregate": "median"},
        {"pair": ["repeat"]},
        {"kind": "exact", "equals": "0"},
        {"kind": "trend", "along": "workers", "direction": "increasing", "each": ["seed"]},
        {"kind": "interaction", "cases": FOUR[:3]},
        {"kind": "interaction", "cases": [*FOUR, *FOUR[:1]]},
        {"needs": {"elsewhere": "printed for another corpus", "unavailable": "a retired GPU"}},
    ],
)
def test_the_schema_refuses_what_speakers_cannot_answer(given):
    with pytest.raises(jsonschema.ValidationError):
        over_speakers(**given)


def test_an_interaction_without_speakers_needs_pairs():
    evaluate = ON_SPEECH["evaluate"] | {"kind": "interaction", "cases": FOUR}
    del evaluate["resample"]
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.validate({"paper": "averaging", "claims": [ON_SPEECH | {"evaluate": evaluate}]})
    del evaluate["pair"]
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"paper": "averaging", "claims": [ON_SPEECH | {"evaluate": evaluate}]})


@pytest.mark.parametrize(
    "part, choices", [("optimizer", OPTIMIZERS), ("init", INITS), ("schedule", SCHEDULES)]
)
def test_published_recipes_are_called_as_the_points_call_them(part, choices):
    assert {name for numbers in PUBLISHED.values() for name in numbers[part].dropna()} <= set(choices)


# what evaluation adds: whether a worker's state did not fit
RECORD = {
    *yaml.safe_load((CONFIG / "schemas" / "record.schema.yaml").read_text())["properties"],
    "over_memory",
}
TIMINGS = {
    "cluster", "nodes", "step_s", "compute_s", "comm_s", "straggler_s", "overlap_s", "train_s", "epoch_s",
    "time_to_target_s", "time_to_own_target_s", "samples_per_s", "speedup_same_code", "speedup_best_sequential",
    "evidence", "compute_source",
}  # fmt: skip


OVER = {
    "records": RECORD,
    "timings": RECORD | TIMINGS,
    "plans": {*PLAN_COLUMNS, *RELATED},
    "layers": set(LAYER_COLUMNS),
    "searches": set(SEARCH_COLUMNS),
    "predictions": set(PREDICTION_COLUMNS),
    "projections": set(PROJECTION_COLUMNS),
    "exactness": set(EXACTNESS_COLUMNS),
}


def test_a_claim_may_be_over_every_table_that_there_is():
    assert set(SCHEMA["$defs"]["evaluate"]["properties"]["over"]["enum"]) == set(OVER)


@pytest.mark.parametrize("name", CLAIMS)
def test_expressions_and_filters_use_columns_that_there_are(name):
    evaluate = CLAIMS[name]["evaluate"]
    columns = OVER[evaluate["over"]]
    for expression in (evaluate["value"], evaluate.get("equals", "0")):
        nodes = list(ast.walk(ast.parse(expression, mode="eval")))
        functions = {node.func.id for node in nodes if isinstance(node, ast.Call)}
        assert functions <= {"log"}
        assert {node.id for node in nodes if isinstance(node, ast.Name)} <= columns | functions
    filters = [
        evaluate["select"],
        evaluate.get("against", {}),
        *(case["select"] for case in evaluate.get("cases", [])),
    ]
    assert {key for one in filters for key in one} <= columns
    assert {*evaluate.get("pair", []), *evaluate.get("each", []), *evaluate.get("match", [])} <= columns
    assert set(evaluate.get("match", [])) <= set(PUBLISHED[PAPER_OF[name]].columns)


def test_the_closed_form_of_the_bytes():
    """4 workers, 10 parameters, 2 epochs of 7 steps, K=3: averages after steps 3, 6 and 7 of each epoch."""
    expression = CLAIMS["averaging-bytes-closed-form"]["evaluate"]["equals"]
    row = pd.DataFrame(
        {"workers": [4], "model_params": [10], "epochs_done": [2], "steps": [14], "sync_period": [3]}
    )
    assert row.eval(expression).tolist() == [2 * 3 * 40 * 6]


@pytest.mark.parametrize(
    "method, worker_params, each_time",
    [("data-parallel", 1000, 2 * 3 * 4 * 1000), ("local-sgd", 1000, 2 * 3 * 4 * 1000),
     ("closed-form", 250, 2 * 3 * 4 * 250), ("do-not-grow-with-workers", 250, 2 * 4 * 1000)],
)  # fmt: skip
def test_the_closed_forms_of_subnets_and_what_they_are_compared_with(method, worker_params, each_time):
    """4 workers, 1000 parameters in one hidden layer, 2 epochs of 7 steps, J=3: 3 exchanges an epoch, or 7."""
    expression = CLAIMS[f"ist-bytes-{method}"]["evaluate"]["equals"]
    row = {"workers": 4, "model_params": 1000, "worker_params": worker_params, "epochs_done": 2, "steps": 14}
    exchanges = 14 if method == "data-parallel" else 6
    assert pd.DataFrame([row | {"sync_period": 3}]).eval(expression).tolist() == [exchanges * each_time]


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_share_of_one_machine(workers):
    """Two hidden layers of 64 units between 30 inputs and 10 classes."""

    def weights(units):
        return 30 * units + units**2 + 10 * units + 4 * units

    sizes = {"workers": workers, "model_params": weights(64), "worker_params": weights(64 // workers)}
    row = pd.DataFrame([sizes])
    for name in ("ist-weights-of-one-machine", "ist-weights-of-one-machine-when-deep"):
        assert row.eval(CLAIMS[name]["evaluate"]["value"], engine="python").tolist() == [True]
    # the whole of it is no subnet
    whole = row.assign(worker_params=row["model_params"])
    assert whole.eval(
        CLAIMS["ist-weights-of-one-machine"]["evaluate"]["value"], engine="python"
    ).tolist() == [False]


def _points(tier):
    """Identity columns of a tier's points, with what else a claim selects by."""
    settings = config.load(CONFIG / f"{'config' if tier == 'default' else tier}.yaml")
    return [
        record.identity(point)
        | {"experiments": point.experiments, "cluster": point.network, "strategy": point.variant}
        for point in [*settings.points, *settings.projected]
        if point.repeat == 0 and point.seed in (0, 101)  # the others differ in nothing that is selected by
    ]


def _matches(row, wanted):
    for column, values in wanted.items():
        values = values if isinstance(values, list) else [values]
        if column == "experiments":
            if not any(name == one or name.startswith(f"{one}/") for name in row[column] for one in values):
                return False
        elif column == "cluster":  # a trained point is put on every cluster
            if row["evidence"] == "projected" and row[column] not in values:
                return False
        elif column in row and row[column] not in values:
            return False
    return True


@pytest.mark.timeout(180)
def test_what_a_claim_selects_is_among_the_points_of_each_tier_that_it_lists():
    """Of columns that are known before a run."""
    points, lacking = {}, []
    for name, claim in CLAIMS.items():
        evaluate = claim["evaluate"]
        if claim["needs"].get("unavailable") or not claim["needs"]["experiments"]:
            continue
        wanted = [evaluate["select"] | evaluate.get("against", {})]
        if "cases" in evaluate:
            wanted = [evaluate["select"] | case["select"] for case in evaluate["cases"]]
        elif "against" in evaluate:
            wanted.append(evaluate["select"])
        if evaluate["over"] == "searches":  # several algorithms search for the plan of a point
            wanted = [{key: one[key] for key in one if key != "algorithm"} for one in wanted]
        for tier in claim["needs"]["tiers"]:
            if tier not in points:
                points[tier] = _points(tier)
            rows = [row for row in points[tier] if row["paper"] == PAPER_OF[name]]
            lacking += [(tier, name, one) for one in wanted if not any(_matches(row, one) for row in rows)]
    assert lacking == []
