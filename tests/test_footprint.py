"""Memory of simulated workers: predicted within a tenth of the tensors that are really made, and bounded."""

import dataclasses

import pytest
import torch
from training_runs import point_of, trained, whole_model

from implementations import data, footprint, host
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.errors import OverMemory, UserError
from implementations.harness import Run, run_point


class Counted(Run):
    """A run whose tensors are counted while it is built and trains; what had been there before is not."""

    live = None

    def __init__(self, *args):
        Counted.live = footprint.LiveBytes()
        with Counted.live:
            super().__init__(*args)
        Counted.live.peak = Counted.live.now  # the prediction itself went through sizes without memory

    def train(self, report_progress):
        with Counted.live:
            super().train(report_progress)


@pytest.fixture(scope="module", autouse=True)
def _samples(results):
    """Data of which any number of workers has as many samples as it wants."""
    data.prepare("teacher", results)


def wide(method, workers, **changes):
    values = {"dataset": "teacher", "scaling": "weak", "data_size": 32, "minibatch": 16, "epochs": 1,
              "model": {"name": "fc", "hidden": [96, 64]}}  # fmt: skip
    return point_of(method, workers, **(values | changes))


def test_live_bytes_are_those_of_storages():
    with footprint.LiveBytes() as live:
        first = torch.zeros(1000)
        second = first.view(10, 100).t()[2:] + 1  # 98 x 10 new values, 20 fewer than the first has
        assert live.now == 4000 + 4 * 980
        first.add_(1)
        del second
        assert (live.now, live.peak) == (4000, 4000 + 4 * 980)
        with torch.device("meta"):
            sizes = torch.empty(10**12)  # four terabytes that nobody has
        assert live.now == 4000 + 4 * 10**12
        del sizes
    assert live.now == 4000


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("data_parallel", {}),
        ("averaging", {"method_params": {"sync_period": 1}, "recipe": {"momentum": 0.9}}),
        ("data_parallel", {"optimizer": "rmsprop", "lr": 0.01}),
        ("averaging", {"model": {"name": "fc_bn", "hidden": [96, 64]}}),
        ("ist", {"method_params": {"sync_period": 1}}),
        ("ist", {"method_params": {"sync_period": 1, "server": "partitioned"}}),
    ],
)
def test_the_prediction_is_within_a_tenth_of_the_tensors(method, changes, results):
    # weights and activations, beside which fixed things do not count
    wider = {} if method != "ist" else {"model": {"name": "fc", "hidden": [960, 640]}}
    workers = 40
    run = trained(wide(method, workers, **(wider | changes)), results, kind=Counted)
    predicted = run.footprint
    # orders of samples, and samples themselves, are NumPy's until torch takes them over
    tensors = predicted.held + predicted.optimizer + predicted.step
    assert run.footprint.total >= tensors
    assert Counted.live.peak == pytest.approx(tensors, rel=0.1)


def test_what_a_point_needs_grows_with_its_workers(results):
    totals = [trained(wide("data_parallel", workers), results).footprint for workers in (1, 8, 64)]
    params = 64 * 96 + 96 + 96 * 64 + 64 + 64 * 10 + 10
    assert [found.held for found in totals] == [2 * 4 * params * workers for workers in (1, 8, 64)]
    assert (
        totals[2].step > 6 * totals[1].step or totals[1].step == totals[0].step
    )  # else evaluation is the most


def ended(point, results):
    return run_point(point, lambda ledger: SimulatedCommunicator(point.workers, ledger), results)


def test_a_point_that_this_machine_could_never_hold_is_a_result(results, monkeypatch):
    monkeypatch.setattr(host, "memory", lambda: (10**6, 10**6))
    built = []
    monkeypatch.setattr(
        "implementations.harness.Shards", lambda *args: built.append(args)
    )  # samples would come first
    values = ended(wide("data_parallel", 64), results)
    assert values["status"] == "over_memory" and not built
    assert "64 workers takes 0.0" in values["reason"] and "\n" not in values["reason"]
    assert "this machine has 0.001 GB; take fewer workers than 64, a smaller network" in values["reason"]
    assert values["simulation_bytes_predicted"] > 10**6


def test_a_point_that_does_not_fit_now_is_tried_again(results, monkeypatch):
    monkeypatch.setattr(host, "memory", lambda: (10**12, 10**6))
    with pytest.raises(UserError, match=r"0.001 GB are free now; end other programs, or take fewer workers"):
        ended(wide("data_parallel", 64), results)


def test_a_point_of_a_billion_workers_is_refused_before_anything_is_there(results):
    found = footprint.Footprint(held=10**18, optimizer=0, step=0, samples=0)
    with pytest.raises(OverMemory, match=r"takes 1e\+09 GB \(held 1e\+09, optimizer 0, step 0, samples 0\)"):
        footprint.require(found, wide("data_parallel", 10**9), 1, {})


@pytest.mark.parametrize("method", ["data_parallel", "averaging", "ist"])
def test_workers_that_take_turns_in_a_step_come_to_the_same_weights(method, results, monkeypatch):
    point = wide(method, 13, epochs=2)
    together = trained(point, results)
    monkeypatch.setattr(footprint, "STEP_BYTES", 20_000)
    turns = trained(point, results)
    assert together.footprint.at_once is None and 2 <= turns.footprint.at_once < 13
    assert turns.footprint.step <= together.footprint.step
    assert torch.equal(together.net.theta_wp, turns.net.theta_wp)
    assert torch.equal(whole_model(together), whole_model(turns))
    assert turns.curve[-1]["train_loss"] == pytest.approx(together.curve[-1]["train_loss"], rel=1e-6)


def test_a_record_tells_what_simulating_took_and_no_measured_time(results):
    values = ended(wide("averaging", 4), results)
    assert 0 < values["simulation_s"] < values["host_wall_s"]
    assert values["simulation_bytes_predicted"] > 0
    assert "train_s" not in values and "wall_s" not in values
    measured = ended(dataclasses.replace(wide("averaging", 1), evidence="measured"), results)
    assert "simulation_s" not in measured


def test_a_layer_wise_run_has_no_prediction(results):
    values = ended(point_of("layerwise", 2, variant="data", epochs=1), results)
    assert values["simulation_bytes_predicted"] is None and values["simulation_s"] > 0


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_CONTROL_GROUP", tmp_path)
    whole = host.memory()
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert host.memory() == (1000000, 600000)
    (tmp_path / "memory.max").write_text("max\n")
    assert host.memory()[0] == whole[0]


def test_512_workers_train_quickly(results):
    """By process time, so that a busy machine does not fail it."""
    import time

    began = time.process_time()
    run = trained(wide("averaging", 512, method_params={"sync_period": 1}), results)
    assert time.process_time() - began < 15
    assert run.comm.ledger.sent_bytes_total == run.method.volume(run.training.plan).sent_bytes_total
