"""Tables of plans, searches and trained strategies, the claims over them, and what the page says."""

import json

import numpy as np
import pandas as pd
import pytest

from implementations.reporting import layerwise, layerwise_findings
from implementations.reporting.claims import Claim, load_claims, load_published
from implementations.reporting.plans import (
    PLAN_COLUMNS,
    SEARCH_COLUMNS,
    as_plans,
    as_searches,
    described,
    layers_of,
    links,
)
from implementations.reporting.tables import make_tables_in_memory
from implementations.reporting.verdicts import judge_all
from tests.reporting import synthetic
from tests.reporting import synthetic_layerwise as made_up
from tests.reporting.conftest import ROOT


@pytest.fixture(scope="module")
def published():
    return load_published(ROOT / "config")


@pytest.fixture(scope="module")
def plans():
    return described(made_up.plans(), made_up.LINKS)


@pytest.fixture(scope="module")
def layers(plans):
    return layers_of(plans)


@pytest.fixture(scope="module")
def runs():
    return synthetic.runs(made_up.records())


@pytest.fixture(scope="module")
def judged(runs, published):
    claims = [claim for claim in load_claims(ROOT / "config") if claim.paper == "layerwise"]
    table = judge_all(claims, published, runs, None, None, made_up.plans(), made_up.searches(), made_up.LINKS)
    return table.set_index("claim_id")


def of(frame, **wanted):
    keep = pd.Series(True, index=frame.index)
    for name, value in wanted.items():
        keep &= (frame[name] == value).fillna(False).astype(bool)
    return frame[keep]


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_that_are_not_there_are_frames_without_rows(tmp_path):
    for reader, columns in ((as_plans, PLAN_COLUMNS), (as_searches, SEARCH_COLUMNS)):
        for source in (None, tmp_path / "nowhere.parquet"):
            frame = reader(source)
            assert not len(frame) and list(frame.columns) == columns


def test_files_come_back_as_they_were_written(tmp_path):
    for reader, frame in ((as_plans, made_up.plans()), (as_searches, made_up.searches())):
        frame.to_parquet(tmp_path / "table.parquet")
        back = reader(tmp_path / "table.parquet")
        assert [list(names) for names in back["experiments"]] == [
            list(names) for names in frame["experiments"]
        ]
        rest = [name for name in frame.columns if name != "experiments"]
        pd.testing.assert_frame_equal(back[rest], frame[rest])


def test_a_search_without_a_paper_is_of_this_one_and_measured():
    row = as_searches(pd.DataFrame([{"model": "lenet5", "workers": 4, "search_s": 0.1}])).iloc[0]
    assert (row["paper"], row["evidence"], row["status"]) == ("layerwise", "measured", "ok")


def test_the_slowest_link_of_a_cluster():
    found = links(ROOT / "config")
    assert found["gigabit-cpu"] == pytest.approx(941.6, rel=0.01)
    assert found["hundred-megabit-cpu"] < found["gigabit-cpu"] < found["ten-gigabit-cpu"]


# -- what follows from plans -------------------------------------------------------------------------------------------


def test_plans_stand_beside_the_other_strategies_of_their_setting(plans):
    here = of(plans, model="vgg16", cluster="p100-nvlink", workers=8)
    speeds = here.set_index("strategy")["samples_per_s"]
    own = of(here, strategy="layerwise").iloc[0]
    for name in ("data", "model", "owt"):
        assert own[f"{name}_samples_per_s"] == speeds[name]
    assert own["best_other_samples_per_s"] == speeds["owt"]
    assert own["single_samples_per_s"] == pytest.approx(184)
    assert of(plans, cluster="gigabit-cpu")["mbit_s"].eq(941.6).all()


def test_a_strategy_that_was_not_planned_is_absent_beside_the_others():
    alone = described(as_plans(pd.DataFrame([made_up.plan(strategy="layerwise")])))
    assert (
        alone[["single_samples_per_s", "best_other_samples_per_s", "owt_paper_bytes"]].isna().all(axis=None)
    )


def test_plans_over_their_memory_are_no_comparison():
    rows = [made_up.plan(strategy=name, status=status) for name, status in
            (("layerwise", "ok"), ("owt", "ok"), ("data", "over_memory"))]  # fmt: skip
    own = of(described(as_plans(pd.DataFrame(rows))), strategy="layerwise").iloc[0]
    assert np.isnan(own["data_samples_per_s"]) and own["best_other_samples_per_s"] == own["owt_samples_per_s"]


def test_every_strategy_on_one_device_is_that_of_one_device():
    rows = [made_up.plan(strategy=name, workers=1) for name in ("data", "owt", "layerwise")]
    rows += [made_up.plan(strategy="data", workers=2)]
    found = described(as_plans(pd.DataFrame(rows)))
    assert found["strategy"].tolist() == ["single", "data"]
    assert found["single_samples_per_s"].nunique() == 1


def test_the_layers_of_a_plan_are_those_with_a_configuration_of_their_own(layers):
    vgg = of(layers, model="vgg16", workers=4, strategy="layerwise", cluster="p100-nvlink")
    assert vgg["kind"].value_counts().to_dict() == {
        "conv": 13, "pool": 5, "linear": 3, "input": 1, "flatten": 1, "loss": 1
    }  # fmt: skip
    convs = of(vgg, kind="conv")
    assert convs["number"].tolist() == list(range(1, 14))
    assert convs["stage"].tolist() == [1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]
    last = convs.iloc[-1]
    assert (last["n"], last["h"], last["w"], last["devices"]) == (1, 2, 2, 4)
    assert last["degrees_text"] == "h=2 w=2" and convs.iloc[0]["degrees_text"] == "n=4"
    # the second convolution reads the activation of the first one, which stays where that is
    assert list(convs.iloc[1]["inputs"]) == ["features.0"]


def test_the_best_number_of_devices_is_among_plans_of_equal_batch(layers):
    own = of(layers, model="inception_v3", strategy="data")
    fixed = own[own["global_batch"] == 512]
    assert set(of(fixed, kind="conv")["best_workers"]) == {16}
    assert set(of(fixed, kind="linear")["best_workers"]) == {4}
    assert own.loc[own["global_batch"] != 512, "best_workers"].isna().all()


# -- tables ------------------------------------------------------------------------------------------------------------


def test_plans_beside_the_published_bars(plans, published):
    table = layerwise.plans_table(plans, published)
    row = of(table, model="vgg16", strategy="data", workers=2, cluster="p100-nvlink").iloc[0]
    assert row["published_samples_per_s"] == 343 and row["published_paper_bytes"] == 2.056 * 2**30
    assert row["samples_error"] == row["samples_per_s"] / 343 - 1
    assert abs(row["bytes_error"]) < 0.01  # 8 P N
    assert row["speedup"] == pytest.approx(row["samples_per_s"] / 184)
    elsewhere = table[table["cluster"] != "p100-nvlink"]
    assert elsewhere["samples_error"].isna().all() and elsewhere["published_paper_bytes"].isna().all()


def test_searches_of_several_repeats_are_one_row(published):
    table = layerwise.search_table(made_up.searches(), published)
    row = of(table, model="vgg16", workers=4, algorithm="elimination").iloc[0]
    assert row["n"] == 3 and row["remaining"] == 2 and row["published_s"] == 0.1
    cut = of(table, model="vgg16", algorithm="depth_first").iloc[0]
    assert not cut["finished"] and cut["search_s"] == cut["time_limit_s"] == 60


def test_predictions_join_measured_steps_with_their_plans(runs, plans):
    table = layerwise.predictions(runs, plans)
    assert len(table) == 18 and set(table["evidence"]) == {"measured"}
    row = of(table, model="alexnet_small", strategy="owt", workers=2).iloc[0]
    # repeats take 1, 1.02 and 1.04 times the planned 50 ms a device
    assert row["predicted_s"] == pytest.approx(0.1)
    assert row["measured_s"] == pytest.approx(0.102)
    assert row["error"] == pytest.approx(1 / 1.02 - 1)
    assert of(table, workers=4)["oversubscribed"].all()


def test_only_plans_of_this_host_are_predictions(runs, plans):
    assert not len(layerwise.predictions(runs, plans[plans["cluster"] != "this-host"]))


def test_a_measured_point_has_its_own_plan_before_another_of_its_setting(runs, plans):
    own = of(plans, cluster="this-host", model="lenet5", strategy="data", workers=2)
    run = of(runs, model="lenet5", variant="data", workers=2, evidence="measured").iloc[0]["run_id"]
    both = pd.concat([own, own.assign(run_id=run, step_s=0.2)])
    table = layerwise.predictions(runs, both)
    assert of(table, model="lenet5", strategy="data", workers=2)["predicted_s"].tolist() == [0.2]


def test_the_plan_that_the_paper_prints_stands_beside_ours(layers):
    table = layerwise.plan_table(layers).set_index("layer")
    assert (table["model"] == "vgg16").all() and (table["workers"] == 4).all()
    assert table.loc["features.0", "printed"] == table.loc["features.0", "configuration"] == "n=4"
    assert table.loc["features.34", "printed"] == "h=2 w=2"  # the last pooling goes with its block
    assert table.loc["classifier.2", "printed"] == table.loc["classifier.2", "configuration"] == "c=2"
    assert table.loc["loss", "printed"] == "1 device"


def test_without_that_plan_another_is_shown(layers):
    others = layers[layers["model"] != "vgg16"]
    table = layerwise.plan_table(others)
    assert table["layer"].is_unique and table["printed"].isna().all()
    assert not len(layerwise.plan_table(layers[:0]))


def test_the_laws_of_the_bars_are_fitted_and_ours_projected(layers, published):
    table = layerwise.degrees_table(layers, published)
    assert set(table["evidence"]) == {"projected", "fitted"}
    for evidence in ("projected", "fitted"):
        best = table[table["evidence"] == evidence].groupby("layer")["best_workers"].unique()
        assert best["third convolution"].tolist() == [16]
        assert best["fully connected layer"].tolist() == [4]
    assert table.loc[table["evidence"] == "projected", "published_s"].isna().all()


def test_trainings_are_held_against_one_device(runs):
    table = layerwise.equivalence_table(runs)
    assert len(table) == 12 and set(table["strategy"]) == {"data", "model", "owt", "layerwise"}
    row = of(table, model="vgg_small", strategy="layerwise").iloc[0]
    assert row["worst_deviation"] == pytest.approx(1e-5, rel=1e-3) and row["matches_closed_form"]


def test_without_plans_and_searches_the_tables_are_there_and_empty():
    tables = make_tables_in_memory(synthetic.runs([]), None)
    for name in ("plans", "search", "prediction", "plan", "degrees", "equivalence"):
        assert not len(tables[name]) and "command" in tables[name]


# -- claims ------------------------------------------------------------------------------------------------------------


def test_every_claim_is_judged(judged):
    assert not set(judged["verdict"]) & {"not run", "not comparable here"}


def test_counts_of_given_strategies_are_reproduced(judged):
    for name in ("lw-bytes-data-parallel-closed-form", "lw-bytes-data/lw-bytes-vgg16-data-w16",
                 "lw-bytes-one-device/lw-bytes-inception-w1", "lw-bytes-model-linear"):  # fmt: skip
        assert judged.loc[name, "verdict"] == "reproduced", name
        assert judged.loc[name, "evidence"] == "projected"


def test_counts_of_the_found_plan_and_times_are_at_best_projected(judged):
    for name in ("lw-bytes-layerwise-at-most-owt", "lw-order", "lw-best-degree-fully-connected",
                 "lw-plan-first-blocks", "lw-gain-falls-with-bandwidth"):  # fmt: skip
        assert judged.loc[name, "verdict"] == "consistent (projected)", name
    # no model of time is to blame for bytes that differ
    owt, found = judged.loc["lw-bytes-owt/lw-bytes-inception-owt-w2"], judged.loc["lw-bytes-layerwise-range"]
    assert owt["verdict"] == found["verdict"] == "not reproduced"
    assert "blind projection" not in owt["reason"] and "blind projection" in found["reason"]


def test_searches_are_measured_here(judged):
    assert judged.loc["lw-search-final-graph", "verdict"] == "reproduced"
    assert judged.loc["lw-search-same-optimum", "verdict"] == "reproduced"
    assert judged.loc["lw-search-seconds-inception", "verdict"] == "shape holds"
    assert judged.loc["lw-search-depth-first-cut-off", "verdict"] == "shape holds"
    assert set(judged.loc[judged.index.str.startswith("lw-search-"), "evidence"]) == {"measured"}


def test_the_cost_model_and_the_trainings(judged):
    assert judged.loc["lw-cost-model-error", "verdict"] == "shape holds"
    assert judged.loc["lw-cost-model-error", "ours"] == pytest.approx(1 - 1 / 1.02)
    assert judged.loc["lw-same-loss", "verdict"] == "reproduced"


def over_plans(value, select):
    """A claim that the value is not negative."""
    body = {
        "id": "a-claim", "source": {"text": "so"}, "statement": "So.", "command": "make", "holds_as": "reproduced",
        "needs": {"experiments": [], "tiers": ["default"]}, "tolerance": {"low": 0, "why": "-"},
        "evaluate": {"kind": "bound", "over": "plans", "value": value, "select": select},
    }  # fmt: skip
    return Claim("layerwise", body)


@pytest.mark.parametrize(
    "strategy, value, verdict",
    [
        ("data", "paper_bytes", "reproduced"),
        (["data", "owt"], "network_bytes / workers", "reproduced"),
        ("layerwise", "paper_bytes", "consistent (projected)"),
        (["owt", "layerwise"], "paper_bytes", "consistent (projected)"),
        ("data", "paper_bytes / step_s", "consistent (projected)"),
        (None, "paper_bytes", "consistent (projected)"),
    ],
)
def test_what_needs_no_model_of_time(strategy, value, verdict):
    select = {"model": "vgg16", "cluster": "p100-nvlink"} | ({"strategy": strategy} if strategy else {})
    table = judge_all(
        [over_plans(value, select)], pd.DataFrame(), synthetic.runs([]), None, None, made_up.plans()
    )
    assert table["verdict"].tolist() == [verdict]


def test_a_plan_that_failed_is_named():
    rows = pd.DataFrame([made_up.plan() | {"status": "failed", "reason": "no such layer", "plan": None}])
    claim = over_plans("paper_bytes", {"strategy": "data"})
    table = judge_all([claim], pd.DataFrame(), synthetic.runs([]), None, None, rows)
    assert table["verdict"].tolist() == ["not run"] and "no such layer" in table["reason"].iloc[0]


# -- findings ----------------------------------------------------------------------------------------------------------


def test_findings_are_computed_from_the_tables(runs, plans, published):
    tables = make_tables_in_memory(runs, None, published=published, plans=plans, searches=made_up.searches())
    speeds, moved, search, steps, equal = layerwise_findings.findings(tables)
    assert "vgg16 13.9 times one device" in speeds and "of 48 published bars" in speeds
    assert "data -0.0 to 0.3 %" in moved
    assert "leave 2 nodes of each of 5 networks" in search and "depth first ends on lenet5" in search
    assert "10 of 10 measured configurations" in steps
    assert "12 trainings" in equal and "1e-05" in equal
    assert layerwise_findings.findings({name: table[:0] for name, table in tables.items()}) == []


def test_a_plan_is_json_of_plain_values():
    entries = json.loads(made_up.plan_json("vgg16", "layerwise", 4))
    assert {entry["layer"] for entry in entries} >= {name for entry in entries for name in entry["inputs"]}
