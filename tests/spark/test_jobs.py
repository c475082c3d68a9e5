"""Jobs against simulated workers that run the same programs, on a stand-in for Spark."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from spark_fake import FakeContext
from training_runs import point_of, trained, whole_model

from implementations.cluster.communicator import Communicator
from implementations.data.dataset import ArrayData
from implementations.errors import UserError
from implementations.spark import jobs, jobsteps, station
from implementations.spark.cluster import Cluster

MODEL = {"name": "fc", "hidden": [9, 7]}
TOLERANCE = {"rtol": 0, "atol": 1e-5}


@pytest.fixture
def context(tmp_path, monkeypatch):
    local = tmp_path / "local"
    local.mkdir()
    made = FakeContext(local)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    monkeypatch.setattr(jobsteps.session, "current", lambda: SimpleNamespace(context=made))
    monkeypatch.setattr(station, "_station", None)
    yield made
    assert made.alive == 0 and not made.kept  # nothing is left on executors


def pair(workers, **changes):
    """A measured point whose steps are jobs, and the same one simulated."""
    params = {"execution": "job_per_exchange", "lineage_steps": 4} | changes.pop("method_params", {})
    values = {"data_size": 240, "epochs": 1, "minibatch": 4, "model": MODEL} | changes
    measured = point_of("spark", workers, evidence="measured", method_params=params, **values)
    return measured, dataclasses.replace(measured, evidence="simulated")


def run_jobs(point, results, **options):
    return trained(point, results, lambda ledger: Communicator(ledger, [0] * point.workers), **options)


def compare(measured, simulated, results):
    ran, plain = run_jobs(measured, results), trained(simulated, results)
    torch.testing.assert_close(whole_model(ran), whole_model(plain), **TOLERANCE)
    ours, theirs = ran.columns(), plain.columns()
    assert ours["sent_bytes_total"] == ours["sent_bytes_predicted"]
    if not measured.method_params.get("partitions"):
        assert ours["sent_bytes_total"] == theirs["sent_bytes_total"]
    assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
    return ran, plain


SLOTS = [
    {"lr": 0.2},
    {"lr": 0.05, "recipe": {"momentum": 0.9}},
    {"lr": 0.01, "optimizer": "rmsprop"},
    {"lr": 0.01, "optimizer": "rmsprop", "recipe": {"momentum": 0.5}},
]


@pytest.mark.parametrize(
    "workers, recipe",
    [(1, SLOTS[0]), (2, SLOTS[0]), (4, SLOTS[0]), (2, SLOTS[1]), (2, SLOTS[2]), (3, SLOTS[3])],
)
def test_twenty_steps_equal_those_of_simulated_workers(workers, recipe, context, results):
    steps = 20
    measured, simulated = pair(workers, data_size=4 * workers * steps, **recipe)
    ran, plain = compare(measured, simulated, results)
    assert ran.step == steps
    torch.testing.assert_close(ran.net.theta_wp, plain.net.theta_wp, **TOLERANCE)
    exchanges = 0 if workers == 1 else 3 + 2
    assert context.jobs >= steps * (exchanges + 1)


@pytest.mark.parametrize("size, recipe", [(1, SLOTS[0]), (2, SLOTS[1]), (2, SLOTS[2]), (4, SLOTS[0])])
def test_groups_average_their_gradients(size, recipe, context, results):
    measured, simulated = pair(
        4, variant="hybrid", data_size=160, method_params={"group_size": size}, **recipe
    )
    ran, plain = compare(measured, simulated, results)
    torch.testing.assert_close(ran.net.theta_wp, plain.net.theta_wp, **TOLERANCE)


@pytest.mark.parametrize(
    "model, cut",
    [
        ({"name": "cnn", "filters": [4, 6], "kernel": 3, "hidden": [9]}, "filters"),
        ({"name": "cnn", "filters": [4, 6], "kernel": 3, "hidden": [9]}, "rows"),
        ({"name": "lstm", "steps": 4, "hidden": [6, 5]}, "units"),
        ({"name": "rnn", "steps": 4, "hidden": [6]}, "units"),
    ],
)
def test_other_programs_go_through_jobs_as_they_are(model, cut, context, results):
    compare(*pair(2, model=model, data_size=48, lr=0.1, method_params={"cut": cut}), results)


@pytest.mark.parametrize("model", [MODEL, {"name": "lstm", "steps": 4, "hidden": [5]}])
def test_a_lost_executor_changes_nothing(model, context, results, monkeypatch):
    """Blocks and files vanish before jobs of all kinds: those of the first phase, in mid-step, of the last."""
    measured, _ = pair(2, model=model, data_size=4 * 2 * 9, recipe={"momentum": 0.9}, lr=0.05)
    undisturbed = run_jobs(measured, results)

    collect, lost = Cluster.collect, []

    def collect_and_lose(self, *arguments):
        if context.jobs % 7 == 3:
            context.lose_executor()
            lost.append(context.jobs)
        return collect(self, *arguments)

    monkeypatch.setattr(Cluster, "collect", collect_and_lose)
    assert torch.equal(run_jobs(measured, results).net.theta_wp, undisturbed.net.theta_wp)
    assert len(lost) > 5


def test_lineage_and_what_is_held_do_not_grow(context, results):
    held, files = [], []

    def look(done, total):
        held.append((context.alive, len(context.kept), len(list(context.local.rglob("*")))))
        files.append(len(list(context.checkpoints.glob("rdd-*"))))

    params = {"lineage_steps": 5}
    measured, _ = pair(2, model={"name": "fc", "hidden": []}, data_size=480, epochs=4, method_params=params)
    run = run_jobs(measured, results, report_progress=look)
    assert run.step == 240
    broadcasts, kept, scratch = (max(values) for values in zip(*held, strict=True))
    assert broadcasts <= 2 + 2 * (5 + 1) and kept <= 2 * (5 + 2) and scratch < 40
    assert context.deepest <= 5 + 4
    assert max(files) <= 2
    # 48 times the states of two workers, each (64 + 1) x 5 values and a header
    assert 48 * 2 * 65 * 5 * 4 < run.columns()["checkpoint_bytes"] < 48 * 2 * (65 * 5 * 4 + 1000)


@pytest.mark.parametrize("killed_at", [2, 12])
@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {"momentum": 0.9}, "lr": 0.05},
        {"optimizer": "rmsprop", "lr": 0.01},
        {"variant": "data", "recipe": {"momentum": 0.9}, "lr": 0.05},
        {"variant": "data", "method_params": {"sync_period": 4}, "recipe": {"momentum": 0.9}, "lr": 0.05},
        {"variant": "data", "method_params": {"sync_period": 4}, "optimizer": "rmsprop", "lr": 0.01},
    ],
)
def test_a_killed_driver_resumes_to_the_same_bits(changes, killed_at, context, results):
    measured, _ = pair(2, data_size=80, epochs=2, **changes)
    straight = run_jobs(measured, results)
    measured = dataclasses.replace(measured, checkpoint_steps=1)

    class Killed(Exception):
        pass

    def kill(done, total):
        if done >= killed_at:
            raise Killed

    with pytest.raises(Killed):
        run_jobs(measured, results, report_progress=kill)
    resumed = run_jobs(measured, results)
    resumed.checkpoints.clear()
    assert resumed.resumed
    assert torch.equal(resumed.net.theta_wp, straight.net.theta_wp)
    same = ("sent_bytes_total", "train_loss", "valid_loss", "steps")
    assert [resumed.columns()[key] for key in same] == [straight.columns()[key] for key in same]
    assert resumed.columns()["spark_jobs"] >= straight.columns()["spark_jobs"]


def test_an_epoch_that_is_undone_is_undone_with_the_executors_too(context, results):
    """Some epochs of a short training do not get better; weights go back, moves do not."""
    recipe = {"reject_worse": True, "newbob_start_below": 0.5, "newbob_stop_below": -9.0, "momentum": 0.5}
    measured, simulated = pair(2, data_size=80, epochs=8, lr=0.3, schedule="newbob", recipe=recipe)
    ran, _ = compare(measured, simulated, results)
    assert not all(row["accepted"] for row in ran.curve)


@pytest.mark.parametrize("recipe", SLOTS[1:3])
@pytest.mark.parametrize("partitions", [0, 1, 3, 5, 16])
def test_parts_of_any_number_and_size_give_the_whole_gradient(partitions, recipe, context, results):
    measured, simulated = pair(4, variant="data", method_params={"partitions": partitions}, **recipe)
    compare(measured, simulated, results)


def test_empty_parts_bend_nothing(context, results, monkeypatch):
    """More parts than rows are refused; were they let through, the result would stay."""
    measured, simulated = pair(2, variant="data", minibatch=3, data_size=60, method_params={"partitions": 9})
    with pytest.raises(UserError, match="partitions: got 9; allowed: at most the 6 rows"):
        run_jobs(measured, results)
    monkeypatch.setattr(jobs, "_parts", lambda run: 9)
    compare(measured, simulated, results)


@pytest.mark.parametrize("recipe", SLOTS)
@pytest.mark.parametrize("period", [2, 5])
def test_local_steps_equal_those_of_simulated_workers(period, recipe, context, results):
    measured, simulated = pair(
        3, variant="data", data_size=156, epochs=2, method_params={"sync_period": period}, **recipe
    )
    compare(measured, simulated, results)


def test_local_steps_count_workers_by_their_rows(context, results):
    """Two uneven parts of 5 and 4 rows: the average by hand, of plain SGD."""
    measured, _ = pair(
        3, variant="data", minibatch=3, data_size=18, method_params={"sync_period": 2, "partitions": 2}
    )
    run = run_jobs(measured, results)
    start = dataclasses.replace(measured, lr=0.0)
    net = run_jobs(start, results).net
    minibatches = station.Minibatches(measured, run.dataset)
    begin, ends = net.theta_wp.clone(), []
    for part in range(2):
        weights = begin
        for step in range(2):
            x, y = (
                torch.cat(parts)
                for parts in zip(*(minibatches.take(range(w, w + 1), 1, step) for w in range(3)))
            )
            rows = np.array_split(np.arange(9), 2)[part]
            net.theta_wp.copy_(weights)
            net.loss_and_grad(x[rows].unsqueeze(0), y[rows].unsqueeze(0))
            weights = weights - measured.lr * net.grad_wp
        ends.append(weights)
    torch.testing.assert_close(run.net.theta_wp, (5 * ends[0] + 4 * ends[1]) / 9, **TOLERANCE)


@pytest.mark.parametrize(
    "changes", [{}, {"variant": "data"}, {"variant": "data", "method_params": {"sync_period": 3}}]
)
def test_a_sample_that_is_not_a_number_is_named(changes, context, results, monkeypatch):
    measured, _ = pair(2, data_size=64, **changes)
    tensors = ArrayData.tensors

    def spoiled(self, split, indices=None):
        x, y = tensors(self, split, indices)
        if split == "train" and indices is not None:
            x[indices == 37, 5] = float("nan")
        return x, y

    monkeypatch.setattr(ArrayData, "tensors", spoiled)
    with pytest.raises(
        UserError, match="data set 'digits': training sample 37 has a value that is not a finite"
    ):
        run_jobs(measured, results)


def test_the_parts_of_the_clock_add_up_to_the_wall(context, results):
    measured, _ = pair(2, data_size=160)
    columns = run_jobs(measured, results).columns()
    parts = sum(columns[f"{label}_s"] for label in ("data", "compute", "comm", "eval", "other"))
    assert parts == pytest.approx(columns["wall_s"], rel=0.02)
    assert 0 < columns["schedule_s"] + columns["serialise_s"] <= columns["comm_s"] * 1.02
    assert columns["compute_s"] > 0
