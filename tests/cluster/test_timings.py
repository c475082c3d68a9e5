"""Rows of timings.parquet: times to target, speedups and their bases."""

import dataclasses
import math
import time

import pandas as pd
import pytest
import yaml

from implementations.cluster import timemodel
from implementations.cluster.collectives import Link
from implementations.errors import UserError
from implementations.fitted import LOSS_COLUMNS
from implementations.point import Point
from implementations.reporting.claims import load_published
from implementations.timings import (
    COLUMNS,
    loss_split,
    timings,
    write_timings,
)
from tests.cluster.toys import BATCH, MODEL, PARAMS, described, events, figure, steps_table, with_links

STEP_S = 1e-3 + 1e-5


def run(
    run_id: str,
    folder,
    *,
    workers=1,
    method="averaging",
    steps=100,
    seed=1,
    target=None,
    reached=None,
    **more,
):
    """A record's columns, with a trace and a curve beside where the record would lie."""
    place = folder / "runs" / run_id
    place.mkdir(parents=True)
    period = more.pop("period", 10)
    events(steps, period if workers > 1 else steps, workers).to_parquet(place / "trace.parquet")
    accuracy = [0.1, 0.6, 0.9 if reached else 0.7]
    pd.DataFrame({"step": [0, steps // 2, steps], "valid_accuracy": accuracy}).to_parquet(
        place / "curve.parquet"
    )
    values = {
        "run_id": run_id, "status": "ok", "paper": "averaging", "method": method, "variant": "default",
        "dataset": "digits", "data_size": 6400, "model": MODEL, "model_params": PARAMS, "threads_per_worker": 1,
        "scaling": "strong", "minibatch": BATCH, "global_batch": BATCH * workers, "epochs": 2,
        "sync_period": period if method == "averaging" else None,
        "algorithm": None if method == "sequential" else "ring", "lr": 0.1, "lr_scaling": None,
        "optimizer": "sgd", "seed": seed, "repeat": 0, "steps": steps, "workers": workers,
        "samples": steps * BATCH * workers, "evidence": "simulated", "target_metric": "accuracy",
        "target_value": target, "train_s": None, "experiments": ["speedup/all"], "processes": 1,
    }  # fmt: skip
    return values | more


@pytest.fixture
def cluster():
    return with_links(steps=steps_table())


def test_one_row_per_trained_run_and_cluster(tmp_path, cluster):
    other = with_links(1e-3, name="slow", steps=steps_table())
    runs = pd.DataFrame([
        run("a", tmp_path), run("b", tmp_path, workers=4), run("c", tmp_path, status="failed"),
        run("d", tmp_path, status="target_missed"),
    ])  # fmt: skip
    (tmp_path / "runs" / "a" / "trace.parquet").unlink()
    table = timings(runs, tmp_path, [cluster, other])
    assert list(table.columns) == COLUMNS
    assert list(zip(table["run_id"], table["cluster"], strict=True)) == [
        ("b", "toy"), ("b", "slow"), ("d", "toy"), ("d", "slow"),
    ]  # fmt: skip
    parts = table["compute_s"] + table["data_s"] + table["comm_s"] + table["straggler_s"] - table["overlap_s"]
    assert table["train_s"].tolist() == pytest.approx(parts.tolist())
    assert table["epoch_s"].tolist() == pytest.approx((parts / 2).tolist())
    assert set(table["evidence"]) == {"simulated"}
    expected = timemodel.predict(events(100, 10, 4), cluster, 4, model_params=PARAMS)
    first = table.iloc[0]
    assert first["train_s"] == pytest.approx(expected.train_s)
    assert first["step_s"] == pytest.approx(expected.step_s)
    assert first["samples_per_s"] == pytest.approx(100 * BATCH * 4 / expected.train_s)
    assert (first["nodes"], first["workers"], first["compute_source"]) == (2, 4, "calibrated table")


def test_time_to_target_is_that_of_the_first_evaluation_at_the_target(tmp_path, cluster):
    runs = pd.DataFrame([
        run("early", tmp_path, method="sequential", target=0.6), run("end", tmp_path, target=0.9, reached=True),
        run("missed", tmp_path, target=0.9, status="target_missed"), run("none", tmp_path),
    ])  # fmt: skip
    table = timings(runs, tmp_path, [cluster]).set_index("run_id")
    assert table.loc["early", "time_to_target_s"] == pytest.approx(50 * STEP_S)
    assert table.loc["end", "time_to_target_s"] == pytest.approx(table.loc["end", "train_s"])
    assert math.isinf(table.loc["missed", "time_to_target_s"])
    assert math.isnan(table.loc["none", "time_to_target_s"])
    assert table["target_reached"].tolist() == [True, True, False, pd.NA]


def test_a_loss_reaches_its_target_from_above(tmp_path, cluster):
    runs = pd.DataFrame([run("a", tmp_path, target=0.5, target_metric="loss")])
    curve = pd.DataFrame({"step": [0, 40, 100], "valid_loss": [2.0, 0.5, 0.4]})
    curve.to_parquet(tmp_path / "runs" / "a" / "curve.parquet")
    table = timings(runs, tmp_path, [cluster])
    assert table["time_to_target_s"].item() == pytest.approx(40 * STEP_S)


def test_speedups_name_their_bases(tmp_path, cluster):
    runs = pd.DataFrame([
        run("avg-1-s1", tmp_path, seed=1), run("avg-1-s2", tmp_path, seed=2),
        run("avg-4-s2", tmp_path, workers=4, steps=25, seed=2),
        run("avg-4-other-k", tmp_path, workers=4, steps=25, period=5),
        run("avg-4-other-epochs", tmp_path, workers=4, steps=25, epochs=3),
        run("seq", tmp_path, method="sequential"),
        run("seq-2t", tmp_path, method="sequential", threads_per_worker=2, evidence="measured"),
        run("avg-2-2t", tmp_path, workers=2, steps=50, threads_per_worker=2),
        run("avg-2-4t", tmp_path, workers=2, threads_per_worker=4),
    ])  # fmt: skip
    fast = [row | {"threads": 2, "step_s": row["step_s"] / 1.6} for row in steps_table()]
    cluster = with_links(steps=steps_table() + fast)
    table = timings(runs, tmp_path, [cluster]).set_index("run_id")
    row = table.loc["avg-4-s2"]
    assert row["same_code_run_id"] == "avg-1-s2"
    assert row["speedup_same_code"] == pytest.approx(table.loc["avg-1-s2", "train_s"] / row["train_s"])
    # the base has the run's threads, though two of them are faster
    assert table.loc["seq-2t", "train_s"] < table.loc["seq", "train_s"]
    for name, base, threads in (("avg-4-s2", "seq", 1), ("avg-2-2t", "seq-2t", 2)):
        row = table.loc[name]
        assert (row["best_sequential_run_id"], row["best_sequential_threads"]) == (base, threads)
        assert row["speedup_best_sequential"] == pytest.approx(table.loc[base, "train_s"] / row["train_s"])
    assert math.isnan(table.loc["avg-2-4t", "speedup_best_sequential"])
    assert pd.isna(table.loc["avg-2-4t", "best_sequential_threads"])
    # one worker averages nothing, so it serves every K
    assert table.loc["avg-4-other-k", "same_code_run_id"] == "avg-1-s1"
    assert math.isnan(table.loc["avg-4-other-epochs", "speedup_same_code"])
    assert table.loc["avg-4-other-epochs", "same_code_run_id"] is None
    assert table.loc["seq", "speedup_same_code"] == pytest.approx(1)
    assert table.loc["seq-2t", "speedup_best_sequential"] == pytest.approx(1)


def no_parquet(path):
    path.write_bytes(b"no parquet")


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def no_pages(path):
    """A file whose footer is whole and whose data are not."""
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(len(content) // 4) + content[4 + len(content) // 4 :])


def other_table(path):
    pd.DataFrame({"a": [1]}).to_parquet(path)


@pytest.mark.parametrize("harm", [no_parquet, cut, no_pages, other_table])
def test_a_damaged_trace_is_named_and_the_others_are_timed(tmp_path, cluster, capsys, harm):
    runs = pd.DataFrame([run("whole", tmp_path), run("hurt", tmp_path, workers=4)])
    path = tmp_path / "runs" / "hurt" / "trace.parquet"
    harm(path)
    assert timings(runs, tmp_path, [cluster])["run_id"].tolist() == ["whole"]
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert f"hurt gets no timings: {path} " in said and "delete the run's folder and run again" in said


def test_a_damaged_curve_is_named_and_the_others_are_timed(tmp_path, cluster, capsys):
    runs = pd.DataFrame([run("whole", tmp_path, target=0.6), run("hurt", tmp_path, target=0.6)])
    no_parquet(tmp_path / "runs" / "hurt" / "curve.parquet")
    assert timings(runs, tmp_path, [cluster])["run_id"].tolist() == ["whole"]
    assert "curve.parquet is damaged" in capsys.readouterr().err


def test_a_target_that_no_curve_has_is_a_mistake_of_the_config(tmp_path, cluster):
    runs = pd.DataFrame([run("a", tmp_path, target=0.6, target_metric="f1")])
    with pytest.raises(UserError, match="f1 or valid_f1"):
        timings(runs, tmp_path, [cluster])


def test_nothing_ran(tmp_path, cluster):
    runs = pd.DataFrame([run("a", tmp_path, status="failed")])
    table = timings(runs, tmp_path, [cluster])
    assert list(table.columns) == COLUMNS
    assert table.empty


def test_it_survives_a_file(tmp_path, cluster):
    runs = pd.DataFrame(
        [run("a", tmp_path, target=0.9, status="target_missed"), run("b", tmp_path, workers=2)]
    )
    table = timings(runs, tmp_path, [cluster])
    back = pd.read_parquet(write_timings(runs, tmp_path, [cluster], tmp_path / "out" / "timings.parquet"))
    pd.testing.assert_frame_equal(back, table, check_dtype=False)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["timings.parquet"]


def test_hundreds_of_runs_on_five_machines_take_seconds(tmp_path):
    clusters = [with_links(name=f"c{i}", steps=steps_table()) for i in range(5)]
    runs = pd.DataFrame(
        [run(f"r{i}", tmp_path, workers=8, steps=4000, period=1 + i % 3, seed=i) for i in range(60)]
    )
    began = time.perf_counter()
    table = timings(runs, tmp_path, clusters)
    assert len(table) == 300
    assert time.perf_counter() - began < 10


def test_the_lost_efficiency_is_split_into_parts_that_add_up(tmp_path, cluster):
    """One worker does 100 steps; four do 26 instead of 25, each a millisecond slower with both devices busy."""
    runs = pd.DataFrame([
        run("one", tmp_path, steps=100), run("four", tmp_path, workers=4, steps=26),
        run("weak", tmp_path, workers=4, steps=26, scaling="weak"),
        run("more-data", tmp_path, workers=4, steps=26, data_size=12_800),
        run("no-base", tmp_path, workers=4, steps=26, epochs=3),
    ])  # fmt: skip
    table = timings(runs, tmp_path, [cluster])
    split = loss_split(table)
    assert list(split.columns) == LOSS_COLUMNS
    assert set(split["workers"]) == {4} and len(split) == 4
    minutes = split.set_index("part")["minutes"]
    row = table.set_index("run_id").loc["four"]
    assert minutes["communication"] * 120 == pytest.approx(row["comm_s"])  # two epochs
    assert minutes["whole steps"] * 120 == pytest.approx(STEP_S)
    assert minutes["slower steps"] * 120 == pytest.approx(26 * 1e-3)
    assert minutes["waiting for the slowest"] * 120 == pytest.approx(row["straggler_s"])
    assert split["share_of_lost"].sum() == pytest.approx(1)
    lost_s = row["train_s"] - 100 * STEP_S / 4
    assert split["lost_min"].tolist() == pytest.approx(4 * [lost_s / 120])
    assert minutes.sum() == pytest.approx(lost_s / 120)
    assert loss_split(table.iloc[:0]).empty


def test_cores_that_workers_share_make_steps_slower(tmp_path):
    """Eight workers on four devices take turns: twice the step of two busy devices."""
    shared = with_links(steps=steps_table(), nodes=2)
    assert shared.capacity == 4
    runs = pd.DataFrame([run("one", tmp_path, steps=80), run("eight", tmp_path, workers=8, steps=10)])
    minutes = loss_split(timings(runs, tmp_path, [shared])).set_index("part")["minutes"]
    assert minutes["slower steps"] * 120 == pytest.approx(10 * (2 * (2e-3 + 1e-5) - STEP_S))
    assert minutes["whole steps"] == pytest.approx(0, abs=1e-12)


def paper_point(method, workers, period=None):
    """The paper's net and data on its cluster."""
    return Point(
        paper="averaging",
        method=method,
        dataset="switchboard",
        model={"name": "fc", "hidden": [2048] * 6, "activation": "sigmoid"},
        workers=workers,
        evidence="projected",
        seed=0,
        minibatch=1024,
        network="stampede-k20",
        method_params={} if period is None else {"sync_period": period},
    )


def test_the_papers_cluster_takes_its_one_gpu_epoch_as_input(tmp_path):
    """And an average costs the copies to the host and back, and a halving and doubling over FDR InfiniBand."""
    points = [paper_point("sequential", 1), paper_point("averaging", 1, 10), paper_point("averaging", 16, 10)]
    table = timings(pd.DataFrame({"status": [], "run_id": []}), tmp_path, ["stampede-k20"], None, points)
    assert set(table["evidence"]) == {"projected"}
    one, _, sixteen = table.to_dict("records")
    assert one["epoch_s"] / 60 == pytest.approx(load_published().loc["avg-epoch-min-w1", "value"], rel=1e-3)
    steps, megabytes = 97_200_000 // (16 * 1024), 4 * 39_928_422 / 1e6
    average_s = 2 * (1e-5 + megabytes / 6000) + 2 * 4 * 1.2e-6 + 2 * 15 / 16 * megabytes / 6300
    assert sixteen["comm_s"] == pytest.approx(steps / 10 * average_s, rel=5e-3)
    split = loss_split(table).set_index("part")
    assert set(split["evidence"]) == {"projected"}
    assert split.loc["communication", "minutes"] * 60 == pytest.approx(sixteen["comm_s"])
    assert split.loc["communication", "share_of_lost"] == pytest.approx(1, abs=0.01)


def test_a_projection_borrows_the_steps_that_runs_here_took_to_their_target(tmp_path, cluster):
    """Of the same method, workers and period and as deep a net: the largest one's, the median over its seeds."""
    ours = {"workers": 16, "target": 0.9, "period": 10}
    runs = pd.DataFrame([
        run("a", tmp_path, steps=100, reached=True, seed=1, **ours),
        run("b", tmp_path, steps=140, reached=True, seed=2, **ours),
        run("c", tmp_path, steps=100, status="target_missed", seed=3, **ours),
        run("smaller", tmp_path, steps=20, reached=True, model_params=10, **ours),
        run("other period", tmp_path, steps=20, reached=True, workers=16, target=0.9, period=5),
        run("shallow", tmp_path, steps=20, reached=True, **{**ours, "model": "fc-8"}),
        # larger, but no other method was run on it with so many workers
        run("alone", tmp_path, steps=20, reached=True, dataset="an4", model_params=10**9, **ours),
        run("other method", tmp_path, steps=20, reached=True, method="data_parallel", **ours),
    ])  # fmt: skip
    deep = "-".join(["fc", *["2048"] * 6])
    runs.loc[runs["run_id"] != "shallow", "model"] = deep
    points = [paper_point("averaging", 16, 10), paper_point("averaging", 8, 10)]
    table = timings(runs, tmp_path, [cluster, "stampede-k20"], None, points)
    projected, without = table[table["evidence"] == "projected"].to_dict("records")
    assert projected["own_steps_to_target"] == 140  # of 100, 140 and one that missed
    assert projected["time_to_own_target_s"] == pytest.approx(140 * projected["step_s"])
    assert projected["time_to_own_target_low_s"] == pytest.approx(100 * projected["step_s"])
    assert math.isinf(projected["time_to_own_target_high_s"])
    assert math.isnan(without["time_to_own_target_s"])
    assert table.loc[table["evidence"] != "projected", "time_to_own_target_s"].isna().all()


def test_runs_by_sparks_jobs_have_times_where_something_is_known_of_these(tmp_path, cluster):
    """Ten sums of 40 kB by two workers through the driver: ten jobs, and the bytes of both, up and down."""
    spark = {"job_s": 0.1, "task_s": 0.01, "up_bytes_per_s": 1e7, "down_bytes_per_s": 1e7}
    known = with_links(name="known", steps=steps_table(), spark={k: figure(v) for k, v in spark.items()})
    here = run("jobs", tmp_path, workers=2, method="spark", variant="data")
    trace = tmp_path / "runs" / "jobs" / "trace.parquet"
    table = pd.read_parquet(trace)
    table.loc[table["kind"] == "comm", ["op", "algorithm", "group_size"]] = ["sum", "driver", 3]
    table.to_parquet(trace)
    found = timings(pd.DataFrame([here]), tmp_path, [cluster, known])
    assert found["cluster"].tolist() == ["known"]
    assert found.loc[0, "comm_s"] == pytest.approx(10 * (0.1 + 2 * 0.01 + 2 * 2 * 40_000 / 1e7))


def test_a_model_parallel_worker_takes_the_step_of_its_samples_in_the_whole_network(tmp_path, cluster):
    """It has a part of the weights, and all samples of its group: as many operations."""
    part = run("part", tmp_path, workers=2, method="spark", variant="model", worker_params=PARAMS // 2)
    found = timings(pd.DataFrame([part]), tmp_path, [cluster])
    assert found.loc[0, "compute_source"] == timemodel.CALIBRATED


def test_spark_has_projections_of_its_own(tmp_path, cluster):
    point = Point(
        "spark", "spark", "digits", {"name": "fc", "hidden": [8]}, 2, "projected", 0, variant="model",
        network=cluster.name,
    )  # fmt: skip
    assert timings(pd.DataFrame([run("a", tmp_path)]), tmp_path, [cluster], projected=[point])[
        "run_id"
    ].tolist() == ["a"]


def test_a_run_on_emulated_hosts_is_placed_on_its_own_network_alone(tmp_path, cluster, capsys):
    """Calibrated as like this host: its file is found by the network's name, without being named among clusters."""
    here = with_links(name="this-host", steps=steps_table())
    (tmp_path / "calibration").mkdir()
    hosts = described(name="emulated-10mbit", shared_devices=2, steps=steps_table())
    (tmp_path / "calibration" / "emulated-10mbit.yaml").write_text(yaml.safe_dump(hosts))
    runs = pd.DataFrame([
        run("memory", tmp_path, workers=2, evidence="measured", network="loopback"),
        run("hosts", tmp_path, workers=2, evidence="measured", network="emulated-10mbit"),
        run("unknown", tmp_path, workers=2, evidence="measured", network="emulated-20mbit"),
        run("simulated", tmp_path, workers=2, network="emulated-10mbit"),
    ])  # fmt: skip
    table = timings(runs, tmp_path, [here])
    placed = list(zip(table["run_id"], table["cluster"], strict=True))
    assert placed == [("memory", "this-host"), ("hosts", "emulated-10mbit"), ("simulated", "this-host")]
    assert "calibrate --network emulated-20mbit" in capsys.readouterr().err


def test_tasks_of_spark_are_joined_by_links_of_their_own(tmp_path):
    """In place of MPI's table and links."""
    here = with_links(name="this-host", steps=steps_table(), nodes=1, devices_per_node=4)
    here = dataclasses.replace(here, tasks=Link(1e-3, 1e9))
    runs = pd.DataFrame([
        run("spark", tmp_path, workers=2, method="spark", variant="data", period=1),
        run("ranks", tmp_path, workers=2, method="data_parallel", period=1),
    ])  # fmt: skip
    table = timings(runs, tmp_path, [here]).set_index("run_id")["comm_s"]
    # a ring of two: two messages of half the payload each
    assert table["spark"] / 100 == pytest.approx(2 * (1e-3 + 40_000 / 2 / 1e9))
    assert table["ranks"] < table["spark"]
