"""Optimiser, schedule, first weights and mixing inside a run, against torch's own and against closed forms."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from training_runs import point_of, trained

from implementations import recipe, registry
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.harness import Run, run_point
from implementations.models.sigmoid_init import initialise_sigmoid
from implementations.seeds import torch_stream
from implementations.training import make_optimizer, make_schedule

SIGMOID = {"name": "fc", "hidden": [16, 12], "activation": "sigmoid"}


def torch_run(point, run, make_optimizer, make_schedule):
    """The weights that torch's optimiser and schedule give on the very minibatches of a run."""
    fresh = Run(
        point, lambda ledger: SimulatedCommunicator(1, ledger, None), run.folder.parents[1], run.clock, ""
    )
    module = fresh.net.to_module()
    optimizer = make_optimizer(module.parameters())
    schedule = make_schedule(optimizer)
    for epoch in range(1, point.epochs + 1):
        for rows in run.training._shards.epoch(epoch):
            x_wbi, y_wb = run.training._shards.take(rows)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x_wbi[0]), y_wb[0]).backward()
            optimizer.step()
        schedule.step()
    return torch.cat([part.detach().flatten() for part in module.parameters()])


def test_exponential_schedule_with_momentum_equals_torchs(results):
    point = point_of(
        "sequential", epochs=4, schedule="exponential", recipe={"lr_final": 0.05, "momentum": 0.7}, lr=0.1
    )
    run = trained(point, results)
    theirs = torch_run(
        point,
        run,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.7),
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.05 ** (1 / 3)),
    )
    torch.testing.assert_close(run.net.theta_wp[0], theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_rmsprop_equals_torchs(momentum, results):
    """Torch's own on a module's tensors, beside ours on one row of all weights."""
    options = {"rms_decay": 0.8, "rms_epsilon": 1e-5, "momentum": momentum}
    point = point_of("sequential", optimizer="rmsprop", recipe=options, lr=0.003)
    run = trained(point, results)
    theirs = torch_run(
        point,
        run,
        lambda parameters: torch.optim.RMSprop(parameters, 0.003, alpha=0.8, eps=1e-5, momentum=momentum),
        lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 1),
    )
    torch.testing.assert_close(run.net.theta_wp[0], theirs, rtol=0, atol=1e-5)
    slots = 4 if momentum else 3  # weights, gradients, mean squares, momentum
    assert run.training.state_bytes_per_worker == slots * 4 * run.net.params_per_worker
    assert run.holding.state_bytes(point) == run.training.state_bytes_per_worker
    assert (run.training.moves_wp is not None) == bool(momentum)


def test_the_first_step_of_rmsprop_has_one_length_in_every_weight(results):
    """With r = (1 - rho) g^2 a step is lr g / (|g| sqrt(1 - rho)) but for the epsilon: its sign is all that is left."""
    rho, lr = 0.9, 0.01
    point = point_of("sequential", optimizer="rmsprop", recipe={"rms_decay": rho, "rms_epsilon": 0.0}, lr=lr)
    run = Run(point, lambda ledger: SimulatedCommunicator(1, ledger, None), results, None, "")
    before = run.net.theta_wp.clone()
    optimizer = make_optimizer(run.net, "rmsprop", lr, recipe.settings(point))
    run.net.grad_wp.copy_(torch.linspace(-3, 3, before.shape[1] // 2 * 2 + 2)[: before.shape[1]])
    optimizer.step()
    expected = -lr / math.sqrt(1 - rho) * run.net.grad_wp.sign()
    torch.testing.assert_close(run.net.theta_wp - before, expected, rtol=1e-4, atol=1e-7)


def test_a_killed_run_with_rmsprop_resumes(results):
    changes = {"optimizer": "rmsprop", "lr": 0.003, "recipe": {"momentum": 0.5}, "checkpoint_s": 0.0}
    point = point_of("averaging", 2, method_params={"sync_period": 4}, **changes)
    straight = trained(point, results)

    class Killed(Exception):
        pass

    def kill(done, total):
        if done >= 35:
            raise Killed

    with pytest.raises(Killed):
        trained(point, results, report_progress=kill)
    resumed = trained(point, results)
    resumed.checkpoints.clear()
    assert resumed.resumed
    assert torch.equal(resumed.net.theta_wp, straight.net.theta_wp)


def test_a_rate_of_summed_gradients_is_that_of_means_times_the_minibatch(results):
    summed = trained(point_of("sequential", lr=0.01, recipe={"reduction": "sum"}), results)
    mean = trained(point_of("sequential", lr=0.01 * 8), results)
    torch.testing.assert_close(summed.net.theta_wp, mean.net.theta_wp, rtol=0, atol=1e-6)


def test_newbob_stops_and_what_was_not_run_is_not_predicted(results):
    point = point_of("averaging", 2, epochs=60, schedule="newbob", data_size=None, lr=0.3)
    run = trained(point, results)
    columns = run.columns()
    assert 1 < columns["epochs_done"] < 60
    assert columns["epochs_done"] * run.training.plan.steps_per_epoch == columns["steps"]
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"]
    gains = np.diff([row["valid_accuracy"] for row in run.curve])
    assert gains[-1] < 0.001  # the criterion of Su and Chen 2015, section 3
    assert run.training.schedule.rate == 0.5 ** (len(gains) - int(np.argmax(gains < 0.005)))


def test_rejected_epochs_are_undone(results):
    """At a rate that throws the weights about, the model that is left is the best that was seen."""
    point = point_of(
        "sequential",
        epochs=12,
        schedule="newbob",
        recipe={"reject_worse": True, "newbob_stop_below": -1.0},
        lr=1.2,
    )
    run = trained(point, results)
    accuracies = [row["valid_accuracy"] for row in run.curve]
    assert min(np.diff(accuracies)) < 0  # some epoch was worse
    accuracy, _ = run._score(run._valid)
    assert accuracy == max(accuracies) == run.columns()["valid_accuracy"]
    assert not all(row["accepted"] for row in run.curve)


@pytest.mark.parametrize("reject", [False, True])
def test_a_killed_run_with_a_schedule_and_natural_gradient_resumes(reject, results):
    point = point_of(
        "averaging",
        2,
        epochs=5,
        schedule="newbob",
        optimizer="ng_sgd",
        lr=0.05,
        recipe={"reject_worse": reject, "ng_rank_in": 5, "ng_rank_out": 3},
        checkpoint_s=0.0,
    )
    straight = trained(point, results)

    class Killed(Exception):
        pass

    def kill(done, total):
        if done >= 75:
            raise Killed

    with pytest.raises(Killed):
        trained(point, results, report_progress=kill)
    resumed = trained(point, results)
    resumed.checkpoints.clear()
    assert resumed.resumed
    assert torch.equal(resumed.net.theta_wp, straight.net.theta_wp)
    assert resumed.columns()["epochs_done"] == straight.columns()["epochs_done"]


def test_one_worker_with_natural_gradient_equals_sequential(results):
    changes = {"optimizer": "ng_sgd", "lr": 0.05, "recipe": {"max_change_rule": "author", "reduction": "sum"}}
    ours = trained(point_of("averaging", 1, **changes), results).net.theta_wp
    assert torch.equal(ours, trained(point_of("sequential", **changes), results).net.theta_wp)


def test_random_weights_are_the_recipes(results):
    point = point_of("sequential", model=SIGMOID, init="random", epochs=1)
    run = Run(point, lambda ledger: SimulatedCommunicator(1, ledger, None), results, None, "")
    expected = run.net.theta_wp.clone()
    initialise_sigmoid(run.net, torch_stream(point.seed, "init"))
    assert torch.equal(run.net.theta_wp, expected)
    biases = run.net.weights["b0"][0]
    assert biases.min() >= -4 and biases.max() <= 0 and biases.std() > 0.5


def test_points_of_a_seed_share_one_pretraining(results, tmp_path):
    (tmp_path / "data").symlink_to(results / "data")
    for workers in (1, 2):
        point = point_of("averaging", workers, model=SIGMOID, init="rbm", epochs=1)
        run_point(point, partial(SimulatedCommunicator, workers, processes=None), tmp_path)
    assert len(list((tmp_path / "pretrained").glob("*.pt"))) == 1
    assert (tmp_path / "runs" / point.run_id / "pretraining.parquet").is_file()


def test_averaging_parameters_and_momentum_each_step_is_data_parallelism(results):
    """Both are linear in the gradient, so that the means of all workers move as with the mean gradient."""
    changes = {"recipe": {"momentum": 0.8}, "lr": 0.05}
    ours = trained(
        point_of("averaging", 4, method_params={"sync_period": 1, "content": "with_momentum"}, **changes),
        results,
    )
    theirs = trained(point_of("data_parallel", 4, **changes), results)
    torch.testing.assert_close(ours.net.theta_wp, theirs.net.theta_wp, rtol=0, atol=2e-6)
    assert ours.ledger.sent_bytes_total == 2 * theirs.ledger.sent_bytes_total


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("mixing", ["butterfly", "ring", "hopping_ring"])
def test_pairs_end_in_a_full_average(mixing, workers, results):
    point = point_of("averaging", workers, method_params={"mixing": mixing, "sync_period": 4}, epochs=3)
    run = trained(point, results)
    theta_wp = run.net.theta_wp
    assert torch.equal(theta_wp, theta_wp[:1].expand_as(theta_wp))
    columns = run.columns()
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"]
    own = run.training.own_theta_p
    assert torch.equal(own, theta_wp[0]) == (workers <= 2)  # a pair of two is all of them
    values = run.test()
    assert run.curve[-1]["epoch"] == 3 and len(run.curve) == 4
    run.net.theta_wp[0] = own
    assert values["rank0_accuracy"] == run._score(run._share("test"))[0]


def test_two_workers_of_a_butterfly_are_an_all_reduce(results):
    pairs = trained(point_of("averaging", 2, method_params={"mixing": "butterfly"}), results)
    whole = trained(point_of("averaging", 2), results)
    torch.testing.assert_close(pairs.net.theta_wp, whole.net.theta_wp, rtol=0, atol=1e-6)


def test_drift_of_pairs_is_that_of_the_epochs_in_which_pairs_mix(results):
    drifts = {}
    for mixing in ("allreduce", "butterfly", "ring"):
        point = point_of("averaging", 4, method_params={"mixing": mixing, "sync_period": 4}, epochs=3)
        drifts[mixing] = trained(point, results).columns()["drift"]
    assert drifts["ring"] > drifts["allreduce"]  # a ring of four never agrees
    assert len(set(drifts.values())) == 3


def test_drift_is_the_distance_from_the_mean_before_the_average(results):
    """With one average, at the end of the only epoch, the workers before it are two sequential runs."""
    point = point_of("averaging", 2, epochs=1, method_params={"sync_period": 1000})
    run = trained(point, results)
    own = Run(point, lambda ledger: SimulatedCommunicator(2, ledger, None), results, run.clock, "")
    optimizer = own.training.optimizer(point.lr)
    for batch in own.training.batches():
        own.net.loss_and_grad(batch.x, batch.y)
        optimizer.step()
    mean_p = own.net.theta_wp.mean(0)
    distance = (own.net.theta_wp - mean_p).square().sum(1).mean().sqrt() / mean_p.norm()
    assert run.training.drift == pytest.approx(float(distance), rel=1e-5)
    assert trained(point_of("averaging", 1, epochs=1), results).training.drift is None


def test_every_recipe_parameter_has_a_help_text_and_an_accepted_default():
    for choices in (recipe.OPTIMIZERS, recipe.INITS, recipe.SCHEDULES):
        for params in choices.values():
            for name, param in params.items():
                assert param.help and param.accepts(param.default), name


def test_names_of_recipe_and_method_parameters_do_not_collide():
    for method in registry.load().values():
        assert not set(method.params) & set(recipe.ALL_PARAMS)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"recipe": {"max_change_rule": "author"}}, "max_change_rule: not a parameter of optimizer sgd"),
        ({"optimizer": "ng_sgd", "recipe": {"max_change_rule": "none"}}, "standard | author"),
        ({"optimizer": "rmsprop", "recipe": {"reduction": "sum"}}, "rms_decay, rms_epsilon, momentum"),
        ({"optimizer": "rmsprop", "recipe": {"rms_decay": 1.0}}, "<= 0.9999"),
        ({"optimizer": "ng_sgd", "model": {"name": "cnn"}}, "allowed: sgd | rmsprop"),
        ({"init": "rbm"}, "activation: sigmoid"),
        ({"recipe": {"momentum": -1.0}}, ">= 0"),
        ({"recipe": {"momentum": 1.5}}, "<= 0.999"),
        ({"schedule": "newbob", "recipe": {"newbob_start_below": math.nan}}, "float"),
    ],
)
def test_mistakes_are_named(changes, told):
    (line,) = recipe.check(point_of("averaging", **changes))
    assert told in line


def test_momentum_is_averaged_only_where_there_is_some():
    point = point_of("averaging", 2, method_params={"content": "with_momentum"})
    assert "no momentum" in registry.get("averaging").check(point)[0]
    with_some = dataclasses.replace(point, recipe={"momentum": 0.5})
    assert registry.get("averaging").check(with_some) == []


def test_constant_rates_stay():
    schedule = make_schedule(point_of("sequential", epochs=3))
    rates = []
    while not schedule.finished:
        rates.append(schedule.rate)
        schedule.observe(math.nan)
    assert rates == [1.0, 1.0, 1.0]
