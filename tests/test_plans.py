"""Rows of plans.parquet and search.parquet: tiny networks on the layer-wise paper's machine, and on this one."""

import csv
import dataclasses
import json
import math

import pandas as pd
import pytest
import yaml

from implementations import plans
from implementations.__main__ import main
from implementations.errors import UserError
from implementations.layerwise import blocktimes, strategies
from implementations.point import Point
from implementations.reporting.files import read_table, write_parquet
from implementations.yamlfile import load_yaml
from tests.cluster.toys import described

CONV = {"name": "alexnet_small", "width": 0.0625}  # of digits: maps of 8, 4, 2 and 1
FC = {"name": "fc", "hidden": [16, 12]}
FC_PARAMS = 65 * 16 + 17 * 12 + 13 * 10

IDENTITY = {
    "run_id", "paper", "experiments", "model", "params", "dataset", "image", "minibatch", "global_batch", "workers",
    "cluster", "strategy", "objective", "sync", "degrees", "memory_limit_bytes", "evidence", "compute_source",
    "status", "reason",
}  # fmt: skip
COST = {
    "objective_s", "step_s", "additive_s", "compute_s", "transfer_s", "sync_s", "overlap_s", "samples_per_s",
    "additive_samples_per_s", "network_bytes", "paper_bytes", "state_bytes_max", "strategy_hash", "plan",
}  # fmt: skip
SEARCH = {
    "layers", "nodes", "edges", "configurations", "node_eliminations", "edge_eliminations", "remaining", "tables_s",
    "search_s", "gap", "finished",
}  # fmt: skip
RUN = {
    "run_id", "paper", "experiments", "model", "params", "workers", "cluster", "degrees", "layers", "tables_s",
    "repeat", "status", "evidence", "nodes", "edges", "configurations", "algorithm", "search_s", "time_limit_s",
    "finished", "cost_s", "node_eliminations", "edge_eliminations", "remaining",
}  # fmt: skip
PLAN = {"layer", "kind", "leader", "config", "out", "params", "inputs", "compute_s", "sync_s", "transfer_s"}


def point(variant, workers=4, params=None, **changes):
    """A projected point on the paper's machine."""
    values = {
        "paper": "layerwise",
        "method": "layerwise",
        "variant": variant,
        "dataset": "digits",
        "model": CONV,
        "workers": workers,
        "evidence": "projected",
        "network": "p100-nvlink",
        "seed": 0,
        "minibatch": 8,
        "method_params": {"plan_sync": "server"} | (params or {}),
        "experiments": ("layerwise_toy/plans",),
    }
    return Point(**(values | changes))


def by_strategy(frame):
    return {row["strategy"]: row for row in frame.to_dict("records")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All strategies of the small convolutional network on four devices."""
    frame, searches = plans.make(
        [point(name) for name in strategies.STRATEGIES], tmp_path_factory.mktemp("results")
    )
    return frame, searches


def test_each_strategy_has_a_row_with_its_columns(made):
    frame, searches = made
    assert set(frame.columns) == IDENTITY | COST | SEARCH and searches.empty
    assert frame["strategy"].tolist() == list(strategies.STRATEGIES)
    for row in frame.to_dict("records"):
        wanted = point(row["strategy"])
        assert (row["run_id"], row["model"], row["experiments"]) == (
            wanted.run_id, "alexnet_small_width0.0625", ["layerwise_toy/plans"],
        )  # fmt: skip
        assert (row["dataset"], row["image"], row["minibatch"], row["global_batch"], row["workers"]) == (
            "digits", 8, 8, 32, 4,
        )  # fmt: skip
        assert (row["cluster"], row["sync"], row["objective"], row["degrees"], row["evidence"]) == (
            "p100-nvlink", "server", "additive", "powers", "projected",
        )  # fmt: skip
        assert (row["compute_source"], row["status"], row["reason"]) == ("roofline", "ok", None)
        for name in COST - {"plan", "strategy_hash"}:
            assert math.isfinite(row[name]), name
        searched = [pd.notna(row[name]) for name in SEARCH]
        assert all(searched) if row["strategy"] == "layerwise" else not any(searched)


def test_what_a_plan_costs_fits_together(made):
    for row in made[0].to_dict("records"):
        assert row["additive_s"] == pytest.approx(row["compute_s"] + row["transfer_s"] + row["sync_s"])
        assert row["objective_s"] == row["additive_s"]
        assert row["samples_per_s"] == pytest.approx(32 / row["step_s"])
        assert row["additive_samples_per_s"] == pytest.approx(32 / row["additive_s"])
        assert row["overlap_s"] == pytest.approx(max(0, row["additive_s"] - row["step_s"]))
    found = by_strategy(made[0])
    assert found["layerwise"]["objective_s"] == min(row["objective_s"] for row in found.values())
    assert found["data"]["paper_bytes"] == 8 * found["data"]["params"] * 4
    assert found["data"]["network_bytes"] == 2 * 3 * 4 * found["data"]["params"]
    assert found["data"]["transfer_s"] == found["model"]["sync_s"] == 0


def test_the_plan_is_complete(made):
    for row in made[0].to_dict("records"):
        plan = json.loads(row["plan"])
        assert all(set(layer) == PLAN for layer in plan)
        assert (plan[0]["kind"], plan[-1]["kind"]) == ("input", "loss")
        assert sum(layer["params"] for layer in plan) == row["params"]
        # five convolutions, three poolings and three linear layers
        kinds = [layer["kind"] for layer in plan]
        assert [kinds.count(kind) for kind in ("conv", "pool", "linear")] == [5, 3, 3]
        places = {layer["layer"]: place for place, layer in enumerate(plan)}
        for place, layer in enumerate(plan):
            assert len(layer["config"]) == 1 + len(layer["out"]) and math.prod(layer["config"]) <= 4
            assert all(places[read] < place for read in layer["inputs"])
            assert plan[places[layer["leader"]]]["config"] == layer["config"]
        for name in ("compute_s", "sync_s", "transfer_s"):
            assert sum(layer[name] for layer in plan) == pytest.approx(row[name])
    assert by_strategy(made[0])["layerwise"]["layers"] == 11


@pytest.mark.parametrize("objective", ["additive", "hidden"])
@pytest.mark.parametrize("degrees", ["powers", "all"])
def test_the_search_gets_what_the_point_says(objective, degrees, results_dir):
    frame, _ = plans.make(
        [point("layerwise", 3, {"objective": objective, "degrees": degrees}, model=FC)], results_dir
    )
    row = frame.iloc[0]
    assert (row["objective"], row["degrees"]) == (objective, degrees)
    # of a linear layer on three devices: 1 alone, 2 ways to split in two; and 2 in three
    assert row["configurations"] == (3 if degrees == "powers" else 5)
    assert row["objective_s"] <= row["additive_s"] and (
        objective == "hidden" or row["objective_s"] == row["additive_s"]
    )


@pytest.mark.parametrize("rate", [745.0, 12.5])
def test_one_device_trains_what_the_point_says_it_does(rate, results_dir):
    """More devices are counted from there, whatever their rates on paper."""
    one = [point(name, 1, {"device_rate": rate}) for name in ("data", "layerwise")]
    frame, _ = plans.make([*one, point("data", 4, {"device_rate": rate}), point("data", 4)], results_dir)
    assert frame["samples_per_s"][:2].tolist() == pytest.approx([rate, rate])
    assert frame["network_bytes"][:2].tolist() == [0, 0]
    assert 0 < frame["samples_per_s"][2] < 4 * rate
    assert frame["compute_s"][3] != pytest.approx(frame["compute_s"][2])
    assert frame["sync_s"][3] == frame["sync_s"][2]  # links are as they are


def test_a_memory_limit_that_is_not_kept_is_a_result(made, results_dir):
    needs = {name: row["state_bytes_max"] for name, row in by_strategy(made[0]).items()}
    least, most = min(needs.values()), max(needs.values())
    limit = int((least + most) / 2)
    points = [point(name, memory_limit_bytes=limit) for name in strategies.STRATEGIES]
    frame, _ = plans.make([*points, point("layerwise", memory_limit_bytes=1000), point("owt")], results_dir)
    *limited, impossible, free = frame.to_dict("records")
    for row in limited:
        assert row["memory_limit_bytes"] == limit
        if row["strategy"] == "layerwise":
            assert row["status"] == "ok" and row["state_bytes_max"] <= limit
            continue
        assert row["state_bytes_max"] == needs[row["strategy"]]  # its cost is told all the same
        assert row["status"] == ("over_memory" if needs[row["strategy"]] > limit else "ok")
        assert (row["reason"] is None) == (row["status"] == "ok")
    reasons = {row["strategy"]: row["reason"] for row in limited if row["status"] == "over_memory"}
    assert reasons and all("the limit is" in reason for reason in reasons.values())
    assert impossible["status"] == "over_memory" and math.isnan(impossible["step_s"])
    assert "the smallest plan needs" in impossible["reason"] and "\n" not in impossible["reason"]
    assert free["status"] == "ok"


def test_a_point_that_cannot_be_planned_does_not_keep_others_from_it(results_dir, capsys):
    small = point("data", model={"name": "lenet5"})  # digits are too small for it
    points = [small, point("data", model=FC)]
    frame, searches = plans.make(points, results_dir)
    failed, planned = frame.to_dict("records")
    assert failed["status"] == "failed" and "too small" in failed["reason"]
    assert failed["run_id"] == small.run_id and failed["strategy"] == "data"
    assert planned["status"] == "ok" and planned["params"] == FC_PARAMS
    assert planned["image"] == 8  # a network of vectors, of images all the same
    message = capsys.readouterr().err
    assert message.startswith("paratrain: warning: no plan for layerwise_digits_lenet5")
    for table, name in ((frame, "plans"), (searches, "search")):
        write_parquet(table, results_dir / f"{name}.parquet")
        assert len(read_table(results_dir / f"{name}.parquet")) == len(table)


def test_images_of_another_side_than_the_data_sets(results_dir):
    model = {"name": "vgg_small", "width": 0.0625, "image": 32}
    frame, _ = plans.make([point("data", model=model, dataset="imagenet")], results_dir)
    row = frame.iloc[0]
    assert (row["status"], row["image"]) == ("ok", 32)
    plan = json.loads(row["plan"])
    assert plan[0]["out"] == [3, 32, 32] and plan[-2]["out"] == [1000]


def test_searches_are_timed_where_the_point_asks_for_it(results_dir):
    asked = {
        "none": [],
        "elimination": ["elimination"],
        "all": ["elimination", "depth_first", "branch_and_bound"],
    }
    for searches, algorithms in asked.items():
        one = point("layerwise", 2, {"searches": searches, "search_limit_s": 5.0}, model=FC, repeat=2)
        frame, found = plans.make([one], results_dir)
        assert len(frame) == 1 and len(found) == len(algorithms)
        if not algorithms:
            continue
        assert found["algorithm"].tolist() == algorithms and set(found.columns) >= RUN
        for row in found.to_dict("records"):
            assert (row["evidence"], row["status"], row["time_limit_s"]) == ("measured", "ok", 5.0)
            assert row["finished"] and row["search_s"] >= 0
            assert row["cost_s"] == pytest.approx(frame["objective_s"][0])
            assert (row["nodes"], row["layers"], row["params"]) == (
                5,
                3,
                FC_PARAMS,
            )  # the input and the loss, too
            assert row["model"] == "fc-16-12" and row["cluster"] == "p100-nvlink"
    assert plans.make([point("data", params={"searches": "all"})], results_dir)[1].empty


def test_which_points_are_planned():
    """Projected and measured ones of the method, but not each repetition."""
    first = point("data")
    given = [
        first,
        dataclasses.replace(first, seed=5),
        dataclasses.replace(first, repeat=3),
        point("owt"),
        point("data", evidence="measured"),
        point("data", evidence="simulated"),
        dataclasses.replace(first, method="data_parallel", variant="default", method_params={}),
    ]
    assert plans.of(given) == [first, given[3], given[4]]


def calibrated(results, monkeypatch):
    """This machine as a toy; blocks that take a millisecond forward and two backward, and nothing around them."""
    counted = []

    def measured(parts, busy, settings):
        counted.append((busy, settings))
        seconds = [1e-3 * (block["kind"] not in ("handling", "update")) for part in parts for block in part]
        return [{"forward_s": s, "backward_s": 2 * s, "repeats": 3} for s in seconds]

    monkeypatch.setattr(blocktimes, "_measured", measured)
    (results / "calibration").mkdir()
    values = described(name="this-host", nodes=1, devices_per_node=2)
    (results / "calibration" / "this-host.yaml").write_text(yaml.safe_dump(values))
    return counted


def test_a_measured_point_is_predicted_from_blocks_measured_here(results_dir, monkeypatch):
    one = point("single", 2, model=FC, evidence="measured", network="loopback")
    assert plans.make([one], results_dir)[0].empty  # a machine that is not calibrated
    counted = calibrated(results_dir, monkeypatch)
    frame, _ = plans.make([one], results_dir, launcher={"mpiexec": "mpirun"})
    row = frame.iloc[0]
    assert (row["cluster"], row["evidence"], row["compute_source"]) == (
        "this-host",
        "projected",
        "measured blocks",
    )
    assert row["compute_s"] == pytest.approx(6 * 3e-3)  # three linear layers, two relus and the loss
    assert {busy for busy, _ in counted} == {1, 2}  # the update is timed in both processes
    assert all(settings == {"mpiexec": "mpirun"} for _, settings in counted)
    before = len(counted)
    again, _ = plans.make([one, point("data", 2, model=FC)], results_dir)
    assert len(counted) == before and again["compute_source"].tolist() == ["measured blocks", "roofline"]
    assert again["compute_s"][0] == row["compute_s"]


def test_blocks_of_all_points_are_timed_in_the_same_processes(results_dir, monkeypatch):
    counted = calibrated(results_dir, monkeypatch)
    wider = {"name": "fc", "hidden": [20, 12]}
    both = [
        point(name, 2, model=model, evidence="measured", network="loopback")
        for name, model in (("data", FC), ("data", wider), ("owt", FC))
    ]
    frame, _ = plans.make(both, results_dir)
    assert frame["compute_source"].tolist() == ["measured blocks"] * 3
    assert [busy for busy, _ in counted] == [2]  # all layers are split over both processes


def test_a_network_that_cannot_be_timed_costs_only_its_own_plan(results_dir, monkeypatch, capsys):
    calibrated(results_dir, monkeypatch)
    good = blocktimes._measured

    def failing(parts, busy, settings):
        if any(20 in block["block"] for part in parts for block in part):
            raise UserError("blocks: 2 measuring process(es) failed")
        return good(parts, busy, settings)

    monkeypatch.setattr(blocktimes, "_measured", failing)
    wider = {"name": "fc", "hidden": [20, 12]}
    both = [point("data", 2, model=model, evidence="measured", network="loopback") for model in (FC, wider)]
    frame, _ = plans.make(both, results_dir)
    assert frame["status"].tolist() == ["ok", "failed"]
    assert "2 measuring process(es) failed" in frame["reason"][1]
    assert "no plan for" in capsys.readouterr().err


def test_the_verb_writes_both_tables(root, tmp_path, monkeypatch):
    """For a tier of its own."""
    config = tmp_path / "config"
    (config / "experiments").mkdir(parents=True)
    (config / "experiments" / "toy.yaml").write_text(
        yaml.safe_dump(
            {
                "paper": "layerwise",
                "title": "Toy",
                "mirrors": "none",
                "defaults": {"method": "layerwise", "dataset": "digits", "model": "fc-16", "lr": 0.1},
                "sweeps": [
                    {
                        "name": "plans",
                        "evidence": "projected",
                        "set": {"workers": 2, "network": "p100-nvlink", "searches": "elimination"},
                        "grid": {"variant": ["data", "layerwise"]},
                    }
                ],
            }
        )
    )
    tier = load_yaml(root / "config/smoke.yaml") | {"experiments": ["toy"], "clusters": ["p100-nvlink"]}
    (config / "tier.yaml").write_text(yaml.safe_dump(tier))
    monkeypatch.chdir(tmp_path)
    assert main(["plans", "--configfile", str(config / "tier.yaml"), "--results", str(tmp_path / "out")]) == 0
    found, searches = (read_table(tmp_path / "out" / f"{name}.parquet") for name in ("plans", "search"))
    assert sorted(found["strategy"]) == ["data", "layerwise"] and set(
        found["experiments"].map(list).str[0]
    ) == {"toy/plans"}
    assert searches["algorithm"].tolist() == ["elimination"]


def device_rates(node):
    """All (model, rate) of a file of experiments."""
    if isinstance(node, dict):
        if "device_rate" in node:
            yield node["model"], node["device_rate"]
        for value in node.values():
            yield from device_rates(value)
    elif isinstance(node, list):
        for value in node:
            yield from device_rates(value)


def test_the_rates_of_one_device_are_the_published_bars(root):
    """The only figures of the paper that its projection starts from: Figure 7, one GPU."""
    with open(root / "config/published/layerwise.csv", newline="") as file:
        published = {
            row["model"]: float(row["value"]) for row in csv.DictReader(file) if row["role"] == "input"
        }
    assert len(published) == 3
    found = {}
    for model, rate in device_rates(load_yaml(root / "config/experiments/layerwise_projection.yaml")):
        label = point("data", model=model if isinstance(model, dict) else {"name": model}).model_label
        found.setdefault(label, set()).add(rate)
    assert found == {label: {rate} for label, rate in published.items()}
