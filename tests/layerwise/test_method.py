"""Layer-wise parallelism as a method: every strategy trains what one device would; its bytes, memory, checkpoints."""

import dataclasses
import itertools

import pytest
import torch
from training_runs import point_of, trained, whole_model

from implementations import data, registry
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.errors import UserError
from implementations.harness import run_point
from implementations.layerwise import planner, strategies
from implementations.layerwise.search import NoPlan

VARIANTS = ("single", "data", "model", "owt", "layerwise")
CONV = {"name": "alexnet_small", "width": 0.03125}  # maps of 8, 4, 2 and 1
DROPOUT = {"name": "vgg_small", "width": 0.0625, "dropout": 0.4}
FC = {"name": "fc", "hidden": [16, 12]}
# slow enough that the best plan has layers of every kind
SLOW = {"plan_for": "m5-2xlarge-gigabit"}


def point(variant, workers=4, **changes):
    values = {
        "paper": "layerwise",
        "variant": variant,
        "model": CONV,
        "data_size": 128,
        "minibatch": 4,
        "lr": 0.05,
    }
    return point_of("layerwise", workers, **(values | {"method_params": SLOW} | changes))


def ended(one, results):
    return run_point(one, lambda ledger: SimulatedCommunicator(one.workers, ledger), results)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": CONV},
        {"model": DROPOUT, "workers": 3},
        {"model": FC, "recipe": {"momentum": 0.9}, "minibatch": 5},
    ],
    ids=["conv", "dropout", "momentum"],
)
def test_every_strategy_ends_with_the_weights_of_one_device(changes, results):
    runs = {variant: trained(point(variant, **changes), results) for variant in VARIANTS}
    one = runs["single"]
    start = trained(point("single", epochs=1, lr=1e-30, **changes), results)
    assert (whole_model(one) - whole_model(start)).abs().max() > 0.01  # it has trained
    for run in runs.values():
        torch.testing.assert_close(whole_model(run), whole_model(one), rtol=0, atol=2e-6)
        for ours, theirs in zip(run.curve, one.curve, strict=True):
            for name in ("train_loss", "valid_loss"):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-4, nan_ok=True)
    strategies_of = {variant: tuple(run.holding.layout.strategy.values()) for variant, run in runs.items()}
    assert len(set(strategies_of.values())) >= 3


@pytest.mark.parametrize("model", [CONV, FC], ids=["conv", "fc"])
def test_one_device_is_data_parallelism_of_whole_networks(model, results):
    """The suite's own data parallelism draws the same samples, and has no plan."""
    theirs = point_of(
        "data_parallel", 4, model=model, data_size=128, minibatch=4, lr=0.05, recipe={"momentum": 0.5}
    )
    wanted = whole_model(trained(theirs, results))
    for variant in ("single", "layerwise"):
        run = trained(point(variant, model=model, recipe={"momentum": 0.5}), results)
        torch.testing.assert_close(whole_model(run), wanted, rtol=0, atol=2e-6)


def test_dropout_follows_the_seed(results):
    """Masks are another seed's, not another run's."""
    first, again, other = (
        whole_model(trained(point("data", model=DROPOUT, epochs=1, seed=seed), results)) for seed in (3, 3, 4)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_bytes_of_fixed_strategies_are_their_closed_forms(results):
    workers, minibatch = 4, 4
    for model, pixels in ((CONV, 64), (FC, 64)):
        columns = {
            variant: trained(point(variant, model=model, epochs=1), results).columns()
            for variant in ("single", "data")
        }
        data, single = columns["data"], columns["single"]
        steps, params = data["steps"], data["model_params"]
        assert steps == 128 // (workers * minibatch)
        # the paper: each device sends all gradients and gets all parameters; a ring sends 2 (N - 1) times the weights
        assert data["paper_bytes"] == steps * 8 * params * workers
        assert (
            data["sent_bytes_total"] == data["sent_bytes_predicted"] == steps * 2 * (workers - 1) * 4 * params
        )
        # one device gets the samples and labels of the others
        others = (workers - 1) * minibatch
        assert single["paper_bytes"] == steps * 4 * pixels * others
        assert single["sent_bytes_total"] == steps * (4 * pixels + 8) * others


@pytest.mark.parametrize("variant", VARIANTS)
def test_counted_bytes_are_predicted_ones_and_warming_up_counts_nothing(variant, results):
    run = trained(point(variant, model=DROPOUT, epochs=1), results)
    columns = run.columns()
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"] > 0
    frame = run.ledger.frame()
    assert set(frame["step"]) == set(range(1, run.step + 1))


@pytest.mark.parametrize(("recipe", "slots"), [({}, 2), ({"momentum": 0.9}, 3)])
def test_state_is_that_of_the_parameters_a_device_holds(recipe, slots, results):
    """By hand: weights, gradients and momentum, four bytes each."""
    widths = [64, 16, 12, 10]
    layers = [(i + 1) * o for i, o in itertools.pairwise(widths)]
    whole = sum(layers)
    a_third = sum((i + 1) * -(-o // 3) for i, o in itertools.pairwise(widths))  # the first part is the larger
    for variant, held in (("single", whole), ("data", whole), ("model", a_third), ("owt", a_third)):
        columns = trained(point(variant, 3, model=FC, recipe=recipe, epochs=1), results).columns()
        assert columns["model_params"] == whole and columns["worker_params"] == held
        assert columns["state_bytes_per_worker"] == 4 * slots * held


@pytest.mark.parametrize("variant", ["data", "owt", "layerwise"])
def test_a_state_beyond_the_limit_is_a_result(variant, results):
    over = ended(point(variant, memory_limit_bytes=5000), results)
    assert over["status"] == "over_memory" and "limit" in over["reason"] and "\n" not in over["reason"]
    assert "accuracy" not in over
    assert ended(point(variant, epochs=1, memory_limit_bytes=10**7), results)["status"] == "ok"


def test_the_search_keeps_the_limit(results):
    """Of all that a device holds in training, of which a record's state is a part."""
    free = point("layerwise", epochs=1)
    settings, layout = registry.get("layerwise").settings(free), trained(free, results).holding.layout
    with pytest.raises(NoPlan) as caught:
        planner.strategy("layerwise", settings, layout.graph, free.global_batch, 4, 1)
    states = []
    for limit in (caught.value.least, 1.3 * caught.value.least, 10**7):
        limited = dataclasses.replace(free, memory_limit_bytes=int(limit))
        states.append(trained(limited, results).columns()["state_bytes_per_worker"])
        assert states[-1] < limit
    assert states[0] < states[-1]


class Killed(Exception):
    pass


def killed(one, results, at):
    """The run, ended after some steps; its checkpoint stays."""

    def kill(done, total):
        if done >= at:
            raise Killed

    with pytest.raises(Killed):
        trained(one, results, report_progress=kill)


@pytest.mark.parametrize("variant", ["model", "layerwise"])
@pytest.mark.parametrize("at", [3, 10])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(variant, at, results):
    one = point(variant, model=DROPOUT, checkpoint_s=0.0, recipe={"momentum": 0.9})
    straight = trained(one, results)
    killed(one, results, at)
    resumed = trained(one, results)
    resumed.checkpoints.clear()
    assert resumed.resumed
    assert torch.equal(resumed.net.theta_wp, straight.net.theta_wp)
    assert resumed.columns()["sent_bytes_total"] == straight.columns()["sent_bytes_total"]
    assert resumed.test() == straight.test()


@pytest.mark.parametrize("later", ["data", "model"])  # devices hold as much as before, or less
def test_a_checkpoint_of_another_strategy_is_void(later, results, monkeypatch):
    """The machine that a plan was found for may be calibrated anew before a run goes on."""
    one = point("layerwise", checkpoint_s=0.0, seed=11)
    with monkeypatch.context() as before:
        before.setattr(planner, "strategy", lambda *given: strategies.fixed("single", *given[2:5]))
        killed(one, results, 3)
    monkeypatch.setattr(planner, "strategy", lambda *given: strategies.fixed(later, *given[2:5]))
    again = trained(one, results)
    assert not again.resumed
    torch.testing.assert_close(whole_model(again), whole_model(trained(one, results)), rtol=0, atol=0)


def test_no_worker_has_a_whole_network(results):
    run = trained(point("model", epochs=1), results)
    assert not run.holding.everywhere
    with pytest.raises(NotImplementedError):
        run.net.logits(torch.zeros(4, 1, 64))
    with pytest.raises(NotImplementedError):
        run.net.to_module()
    with run.holding.whole() as net:  # put together it has the modules of the network
        module = net.to_module()
        assert sum(p.numel() for p in module.parameters()) == run.holding.full_params
        x, y = run.dataset.samples("test").take(torch.arange(300))
        with torch.no_grad():
            right = (module.eval()(x.view(-1, 1, 8, 8)).argmax(1) == y).float().mean()
    assert run.test()["accuracy"] == pytest.approx(float(right))


def test_operations_are_those_of_the_busiest_device(results):
    flops = {}
    for variant in ("single", "data"):
        run = trained(point(variant, model=FC, epochs=1), results)
        (flops[variant],) = set(run.ledger.frame().query("kind == 'compute'")["flops"])
    sequential = trained(point_of("sequential", model=FC, data_size=128, minibatch=4, epochs=1), results)
    (alone,) = set(sequential.ledger.frame().query("kind == 'compute'")["flops"])
    assert flops["data"] == pytest.approx(alone, rel=1e-3)
    assert flops["single"] == pytest.approx(4 * alone, rel=1e-3)


def test_a_plan_for_this_machine_is_made_from_the_runs_own_results(root, tmp_path, monkeypatch):
    """Wherever the run is started from."""
    data.prepare("digits", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="calibrate"):
        trained(point("layerwise", method_params={"plan_for": "this-host"}), tmp_path)
    calibration = tmp_path / "calibration" / "this-host.yaml"
    calibration.parent.mkdir()
    described = (root / "config/clusters/m5-2xlarge.yaml").read_text()
    calibration.write_text(described.replace("name: m5-2xlarge\n", "name: this-host\n"))
    monkeypatch.chdir("/")
    run = trained(point("layerwise", method_params={"plan_for": "this-host"}, epochs=1), tmp_path)
    there = trained(point("layerwise", method_params={"plan_for": "m5-2xlarge"}, epochs=1), tmp_path)
    assert run.holding.layout.strategy == there.holding.layout.strategy


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"optimizer": "ng_sgd"}, "optimizer: got 'ng_sgd'; allowed: sgd"),
        ({"init": "rbm"}, "init: got 'rbm'; allowed: uniform"),
        ({"init": "random"}, "init: got 'random'; allowed: uniform"),
        ({"variant": "best"}, "variant: got 'best'; allowed: layerwise | data | model | owt | single"),
        ({"method_params": {"objective": "least"}}, "objective: got 'least'"),
        ({"method_params": {"plan_sync": "ring"}}, "plan_sync: got 'ring'"),
        ({"method_params": {"degrees": 3}}, "degrees: got 3"),
        ({"method_params": {"searches": "some"}}, "searches: got 'some'"),
        ({"method_params": {"device_rate": -1.0}}, "device_rate: got -1.0"),
        ({"method_params": {"search_limit_s": -1.0}}, "search_limit_s: got -1.0"),
        ({"method_params": {"sync_period": 2}}, "sync_period: layerwise has no such parameter"),
    ],
)
def test_what_cannot_be_run_is_told_before(changes, told):
    one = dataclasses.replace(point("data"), **changes)
    (line,) = registry.get("layerwise").check(one)
    assert line.startswith(told)


def test_what_can_be_run_is_not():
    for variant in VARIANTS:
        assert registry.get("layerwise").check(point(variant, recipe={"momentum": 0.9})) == []
