"""What every registered method must keep; a new method is tested by being registered.

A method that must differ declares ``exemptions={contract: reason}``; those are listed, not hidden.
"""

import dataclasses

import numpy as np
import pytest
import torch
from training_runs import METHODS, point_of, trained, whole_model

from implementations import registry
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.errors import Diverged
from implementations.harness import Run, run_point

MANY = [name for name in METHODS if not registry.get(name).one_worker_only]


def exempt(method, contract):
    reason = registry.get(method).exemptions.get(contract)
    if reason:
        pytest.skip(f"{method} is exempt from {contract}: {reason}")


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_equals_sequential_bit_for_bit(method, results):
    exempt(method, "one_worker_is_sequential")
    ours = trained(point_of(method), results).net.theta_wp
    assert torch.equal(ours, trained(point_of("sequential"), results).net.theta_wp)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(method, results):
    exempt(method, "deterministic")
    workers = 1 if method not in MANY else 3
    first, again, other = (
        trained(point_of(method, workers, seed=seed), results).net.theta_wp for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("sharding", ["static", "reshuffled"])
@pytest.mark.parametrize("algorithm", ["library", "ring", "butterfly", "tree", "star"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("method", MANY)
def test_predicted_bytes_equal_counted_bytes(method, workers, algorithm, sharding, results):
    exempt(method, "predicted_bytes")
    params = {"algorithm": algorithm} if "algorithm" in registry.get(method).params else {}
    point = point_of(method, workers, method_params=params, sharding=sharding, epochs=1)
    columns = trained(point, results).columns()
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"]
    assert (columns["sent_bytes_total"] > 0) == (workers > 1)


@pytest.mark.parametrize("method", METHODS)
def test_all_workers_end_with_the_same_weights(method, results):
    exempt(method, "workers_agree")
    workers = 1 if method not in MANY else 4
    theta_wp = trained(point_of(method, workers), results).net.theta_wp
    assert torch.equal(theta_wp, theta_wp[:1].expand_as(theta_wp))


class Killed(Exception):
    pass


@pytest.mark.parametrize("killed_at", [1, 17, 25])
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_resumes_to_the_same_result(method, killed_at, results, tmp_path):
    exempt(method, "resumes")
    workers = 1 if method not in MANY else 2
    point = point_of(method, workers, checkpoint_s=0.0)
    straight = trained(point, results)
    straight.checkpoints.clear()

    def kill(done, total):
        if done > killed_at:  # a checkpoint follows the report
            raise Killed

    with pytest.raises(Killed):
        trained(point, results, report_progress=kill)
    resumed = trained(point, results, pause_s=0.2)
    resumed.checkpoints.clear()
    assert resumed.resumed
    assert resumed.columns()["host_wall_s"] > 0 and resumed._uncovered_s < 0.1  # set-up is off the clock
    assert torch.equal(resumed.net.theta_wp, straight.net.theta_wp)
    assert torch.equal(whole_model(resumed), whole_model(straight))
    timeless = [{k: v for k, v in row.items() if k != "train_s"} for row in resumed.curve]
    assert str(timeless) == str([{k: v for k, v in row.items() if k != "train_s"} for row in straight.curve])
    same = ("sent_bytes_total", "payload_bytes", "messages", "train_loss", "valid_loss", "steps", "samples")
    assert {key: resumed.columns()[key] for key in same} == {key: straight.columns()[key] for key in same}
    assert resumed.test() == straight.test()
    traces = [run.ledger.frame()["count"].sum() for run in (resumed, straight)]
    assert traces[0] == traces[1]


@pytest.mark.parametrize("method", METHODS)
def test_training_beats_chance_and_improves(method, results):
    workers = 1 if method not in MANY else 4
    changes = (
        {"model": {"name": "fc_bn", "hidden": [64]}} if method == "ist" else {}
    )  # subnets of 4 units are too few
    run = trained(point_of(method, workers, epochs=8, data_size=None, **changes), results)
    losses = [row["valid_loss"] for row in run.curve]
    assert losses[-1] < 0.5 * losses[0]
    assert run.test()["accuracy"] > 0.6  # ten classes


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_that_is_not_finite_ends_as_diverged(method, results):
    point = point_of(method, 1 if method not in MANY else 2, lr=1e30)
    values = run_point(point, lambda ledger: SimulatedCommunicator(point.workers, ledger, None), results)
    assert values["status"] == "diverged"
    assert "not finite at step" in values["reason"]
    assert "accuracy" not in values


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_that_turns_nan_in_a_later_epoch_ends_as_diverged(method, results):
    """Epochs are shorter than the time between two pulses, so that only their ends can tell."""
    workers = 1 if method not in MANY else 2
    run = trained(point_of(method, workers, epochs=1), results)
    point = point_of(method, workers, epochs=200)
    steps = run.step

    def poison(done, total):
        if done >= 100 * steps and not poisoned:
            poisoned.append(done)
            stored = runs[0].holding.state().get("weights", [])  # where subnets are cut out of
            for weights in (runs[0].net.theta_wp, *(part for parts in stored for part in parts.values())):
                weights.fill_(float("nan"))

    runs, poisoned = [], []

    class Poisoned(Run):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            runs.append(self)

    with pytest.raises(Diverged, match="not finite at step"):
        trained(point, results, report_progress=poison, kind=Poisoned)
    assert runs[0].step <= poisoned[0] + steps


@pytest.mark.parametrize("method", METHODS)
def test_every_parameter_has_a_help_text_and_an_accepted_default(method):
    for name, param in registry.get(method).params.items():
        assert param.help and param.accepts(param.default), name


@pytest.mark.parametrize("workers", [2, 4])
def test_averaging_every_step_equals_gradient_averaging(workers, results):
    """With plain SGD the mean of the models after one step is one step on the mean gradient (paper, section 2)."""
    for scaling in ("none", "linear"):
        every = point_of(
            "averaging", workers, method_params={"sync_period": 1, "lr_scaling": scaling}, lr=0.05
        )
        gradient = dataclasses.replace(every, method="data_parallel", method_params={"lr_scaling": scaling})
        ours, theirs = trained(every, results).net.theta_wp, trained(gradient, results).net.theta_wp
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("workers", [2, 5])
def test_reshuffled_data_parallel_equals_one_worker_with_the_global_batch(workers, results):
    many = point_of("data_parallel", workers, sharding="reshuffled")
    one = point_of("sequential", sharding="reshuffled", minibatch=8 * workers)
    ours, theirs = trained(many, results).net.theta_wp, trained(one, results).net.theta_wp
    torch.testing.assert_close(ours[:1], theirs, rtol=0, atol=1e-5)


def test_exemptions_name_contracts_that_exist():
    contracts = {
        "one_worker_is_sequential", "deterministic", "predicted_bytes", "workers_agree", "resumes", "real_is_simulated",
    }  # fmt: skip
    for name in METHODS:
        assert set(registry.get(name).exemptions) <= contracts


def test_averages_fall_every_k_steps_and_at_the_end_of_an_epoch(results):
    # 480 samples, 2 workers, minibatch 8: 30 steps an epoch; K = 7 averages at 7, 14, 21, 28 and 30
    run = trained(point_of("averaging", 2, method_params={"sync_period": 7}, epochs=2), results)
    frame = run.ledger.frame()
    steps = frame.loc[frame["kind"] == "comm", "step"].tolist()
    assert steps == [7, 14, 21, 28, 30, 37, 44, 51, 58, 60]
    assert run.ledger.sent_bytes_total == 10 * 2 * (2 - 1) * run.net.params_per_worker * 4
    assert np.isclose(run.columns()["paper_bytes"], 10 * run.net.params_per_worker * 4)
