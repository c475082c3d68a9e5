"""Rows of spark.parquet: what stands in them, against the cost model's own answers and by hand."""

import json
import math

import pytest
import yaml

from implementations import sparkprojections
from implementations.__main__ import main
from implementations.cluster import machine
from implementations.point import Point
from implementations.reporting.files import read_table, write_parquet
from implementations.reporting.spark import PROJECTION_COLUMNS, as_projections
from implementations.spark import costs

CNN = {"name": "cnn", "filters": [8, 16], "hidden": [64]}


def point(**changes):
    """A convolutional network on digits, averaged once an epoch, on the assumed cluster."""
    params = changes.pop("params", {})
    values = {
        "paper": "spark",
        "method": "spark",
        "variant": "data",
        "dataset": "digits",
        "model": CNN,
        "workers": 16,
        "evidence": "projected",
        "network": "commodity-2017",
        "seed": 0,
        "minibatch": 4,
        "data_size": 1024,
        "method_params": {"execution": "job_per_exchange", "sync_period": 1_000_000} | params,
        "experiments": ("spark_projection/sizes",),
    }
    return Point(**values | changes)


def test_a_row_has_every_column_and_the_cost_models_numbers(tmp_path):
    frame = sparkprojections.make([point(), point(evidence="simulated")], tmp_path)
    assert list(frame.columns) == sparkprojections.COLUMNS and len(frame) == 1
    row = frame.iloc[0]
    case = sparkprojections.case_of(point())
    found = costs.cost(case, machine.load("commodity-2017"))
    assert row["step_s"] == pytest.approx(found.step_s)
    assert row["step_s"] == pytest.approx(row["compute_s"] + row["schedule_s"] + row["transfer_s"])
    assert (row["steps_per_epoch"], row["steps_per_job"], row["exchanges"]) == (16, 16, 1 / 16)
    assert row["epoch_s"] == pytest.approx(16 * found.step_s)
    assert row["speedup"] == pytest.approx(row["alone_epoch_s"] / row["epoch_s"])
    assert row["params"] == 208 + 3216 + (4 * 16 + 1) * 64 + 65 * 10
    assert (row["what"], row["model_kind"], row["evidence"], row["status"]) == (
        "sizes",
        "cnn",
        "projected",
        "ok",
    )
    constants = json.loads(row["constants"])
    assert constants["flops_per_s"] == 1e10 and constants["job_s"] == 0.1
    assert row["state_bytes_fp64"] == 2 * row["state_bytes"]


def test_a_map_has_a_row_for_each_bandwidth_and_tells_what_it_takes_to_reach_the_goal(tmp_path):
    asked = point(data_size=500_000, dataset="teacher", model={"name": "cnn", "filters": [64], "hidden": []},
                  experiments=("spark_projection/sizes", "spark_projection/map"))  # fmt: skip
    frame = sparkprojections.make([asked], tmp_path)
    assert sorted(frame["what"]) == ["map"] * (1 + len(sparkprojections.BANDWIDTHS)) + ["sizes"]
    rows = frame[frame["what"] == "map"].sort_values("mbit_s")
    assert set(sparkprojections.BANDWIDTHS) <= set(rows["mbit_s"].round(6))
    assert rows["speedup"].is_monotonic_increasing
    reached = rows[rows["least_steps_per_job"].notna()]
    assert len(reached) > 0 and (reached["speedup"] >= sparkprojections.GOAL).all()
    assert reached["least_steps_per_job"].is_monotonic_decreasing
    assert (rows.loc[rows["least_steps_per_job"].isna(), "speedup"] < sparkprojections.GOAL).all()


def test_a_network_beyond_the_memory_is_said_to_be_and_so_is_a_worker_alone(tmp_path):
    """62,800 units: about 4e9 weights, each with its gradient, in single precision; 16 GB a machine."""
    wide = {"name": "fc", "hidden": [62_800, 62_800]}
    params = {"sync_period": 1}
    frame = sparkprojections.make(
        [point(model=wide, variant=variant, params=params, workers=5) for variant in ("model", "data")],
        tmp_path,
    ).set_index("variant")
    assert (
        frame.loc["data", "status"] == "over_memory"
        and "a worker needs 31.6 GB" in frame.loc["data", "reason"]
    )
    assert (
        frame.loc["model", "status"] == "ok" and "one worker alone would need" in frame.loc["model", "reason"]
    )
    weights = 64 * 62_800 + 62_800**2 + 62_800 * 10 + 2 * 62_800 + 10
    assert frame.loc["model", "params"] == weights
    assert frame.loc["model", "state_bytes"] == pytest.approx(4 * 2 * weights / 5, rel=0.01)


def test_a_machine_that_is_not_calibrated_gets_no_rows_and_is_told_once(tmp_path, capsys):
    frame = sparkprojections.make([point(network="gigabit-cpu"), point(network="this-host")] * 2, tmp_path)
    assert list(frame.columns) == sparkprojections.COLUMNS and frame.empty
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_reporting_reads_what_is_written(tmp_path):
    path = tmp_path / "spark.parquet"
    write_parquet(sparkprojections.make([point()], tmp_path), path)
    rows = as_projections(path)
    assert set(PROJECTION_COLUMNS) - {"kind"} <= set(sparkprojections.COLUMNS)
    assert rows.loc[0, "kind"] == "cnn" and rows.loc[0, "workers"] == 16
    assert math.isfinite(rows.loc[0, "mbit_s"])


def test_the_verb_writes_the_table_of_a_tier(tmp_path):
    experiment = {
        "paper": "spark", "title": "toy", "defaults": {"method": "spark", "dataset": "digits", "model": "fc-8"},
        "sweeps": [{"name": "sizes", "evidence": "projected", "set": {"workers": 2, "network": "commodity-2017"},
                    "grid": {"variant": ["model", "data"]}}],
    }  # fmt: skip
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/toy.yaml").write_text(yaml.safe_dump(experiment))
    tier = tmp_path / "tier.yaml"
    tier.write_text("tier: default\nexperiments: [toy]\nclusters: [commodity-2017]\n")
    assert main(["spark", "--configfile", str(tier), "--results", str(tmp_path)]) == 0
    assert read_table(tmp_path / "spark.parquet")["variant"].tolist() == ["model", "data"]
