"""Real ranks end with the weights of simulated workers, for every method; run under mpiexec -n 1, 2, 3, 4."""

import pytest
import torch
from mpi4py import MPI
from training_runs import METHODS, point_of, trained, whole_model

from implementations import registry
from implementations.cluster.mpi import MpiCommunicator
from implementations.cluster.simulated import SimulatedCommunicator

WORLD = MPI.COMM_WORLD
HERE = [name for name in METHODS if WORLD.size == 1 or not registry.get(name).one_worker_only]


@pytest.mark.parametrize("method", HERE)
def test_real_ranks_equal_simulated_workers(method, results):
    reason = registry.get(method).exemptions.get("real_is_simulated")
    if reason:
        pytest.skip(f"{method} is exempt: {reason}")
    simulated = trained(point_of(method, WORLD.size), results)
    measured = trained(
        point_of(method, WORLD.size, evidence="measured", processes=WORLD.size),
        results,
        lambda ledger: MpiCommunicator(ledger, WORLD),
    )
    ours, theirs = whole_model(measured), whole_model(simulated)
    assert (ours is None) <= (WORLD.rank > 0)
    if ours is not None:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    if WORLD.size == 1:
        assert torch.equal(ours, theirs)
    ours, theirs = measured.columns(), simulated.columns()
    for name in (
        "sent_bytes_total",
        "sent_bytes_max_worker",
        "payload_bytes",
        "steps",
        "samples",
        "messages",
    ):
        assert ours[name] == theirs[name], name
    assert ours["valid_accuracy"] == pytest.approx(theirs["valid_accuracy"], abs=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"method_params": {"mixing": "ring", "sync_period": 3}, "epochs": 3},
        {
            "method_params": {"mixing": "hopping_ring", "content": "with_momentum"},
            "recipe": {"momentum": 0.5},
        },
        {
            # smooth units: one step's rounding can throw a rectifier over its kink, and all that follows
            "model": {"name": "fc", "hidden": [16, 12], "activation": "sigmoid"},
            "optimizer": "ng_sgd",
            "lr": 0.05,
            "schedule": "newbob",
            "epochs": 4,
        },
        # evaluated by one process alone, as answers depend on what is shown together
        {
            "model": {"name": "fc_bn", "hidden": [40], "statistics": "batch"},
            "minibatch": 16,
            "lr": 0.05,
        },
        {
            "model": {"name": "fc", "hidden": [16, 12], "activation": "sigmoid"},
            "init": "rbm",
            "schedule": "exponential",
            "recipe": {"reduction": "sum"},
        },
    ],
)
def test_real_ranks_equal_simulated_workers_by_any_recipe(changes, results):
    simulated = trained(point_of("averaging", WORLD.size, **changes), results)
    measured = trained(
        point_of("averaging", WORLD.size, evidence="measured", processes=WORLD.size, **changes),
        results,
        lambda ledger: MpiCommunicator(ledger, WORLD),
    )
    torch.testing.assert_close(
        measured.net.theta_wp[0], simulated.net.theta_wp[WORLD.rank], rtol=0, atol=1e-4
    )
    ours, theirs = measured.columns(), simulated.columns()
    for name in ("sent_bytes_total", "payload_bytes", "steps", "messages", "epochs_done"):
        assert ours[name] == theirs[name], name
    assert (ours["drift"] is None) == (WORLD.size == 1)
    if WORLD.size > 1:
        assert ours["drift"] == pytest.approx(theirs["drift"], rel=1e-3)
    accuracies = [run.test().get("rank0_accuracy", 0.0) for run in (measured, simulated)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.01)


@pytest.mark.parametrize(
    ("params", "changes"),
    [
        ({"server": "partitioned"}, {}),
        ({"server": "partitioned", "partition": "stratified", "overlap": 0.3}, {}),
        ({"redraw": False}, {"recipe": {"momentum": 0.5}, "sharding": "skewed", "skew": 2.0}),
        (
            {"lost_steps": True},
            {
                "variant": "faithful",
                "sharding": "independent",
                "model": {"name": "fc_bn", "hidden": [50, 35], "statistics": "batch"},
            },
        ),
        ({"server": "partitioned"}, {"model": {"name": "fc_bn", "hidden": [39], "output": "mean"}}),
    ],
)
def test_real_ranks_hold_the_subnets_of_simulated_workers(params, changes, results):
    """Also where the widths (50, 35, 39) are not divided by the workers, so that ranks' subnets differ in size."""
    # slow, and not too narrow: where units are nearly constant, normalising them makes much of rounding
    point = {
        "model": {"name": "fc_bn", "hidden": [50, 35]},
        "method_params": {"sync_period": 7, **params},
        "minibatch": 16,
        "lr": 0.05,
    } | changes
    simulated = trained(point_of("ist", WORLD.size, **point), results)
    measured = trained(
        point_of("ist", WORLD.size, evidence="measured", processes=WORLD.size, **point),
        results,
        lambda ledger: MpiCommunicator(ledger, WORLD),
    )
    held = measured.holding.layout.units
    assert measured.net.units.keys() == held.keys()
    ours, theirs = whole_model(measured), whole_model(simulated)
    assert (ours is None) == (WORLD.rank > 0)
    if ours is not None:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    ours, theirs = measured.columns(), simulated.columns()
    same = (
        "sent_bytes_total",
        "payload_bytes",
        "steps",
        "messages",
        "worker_params",
        "state_bytes_per_worker",
    )
    for name in same:
        assert ours[name] == theirs[name], name
    assert ours["sent_bytes_total"] == ours["sent_bytes_predicted"]
    assert ours["valid_accuracy"] == pytest.approx(theirs["valid_accuracy"], abs=0.01)
    stored = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes()
        for parts in measured.holding._weights
        for part in parts.values()
    }
    assert sum(stored.values()) <= measured.holding.server_bytes  # views would keep more of the net alive


@pytest.mark.parametrize("method", HERE)
def test_the_time_parts_add_up(method, results):
    # steps of about a millisecond, as small as any that is worth timing
    point = point_of(
        method,
        WORLD.size,
        evidence="measured",
        processes=WORLD.size,
        epochs=30,
        model={"name": "fc", "hidden": [256, 256]},
        minibatch=32,
    )
    shares = []
    for _ in range(3):  # a busy machine may take the processor away just where no part is open
        columns = trained(point, results, lambda ledger: MpiCommunicator(ledger, WORLD)).columns()
        parts = sum(columns[f"{label}_s"] for label in ("data", "compute", "comm", "eval", "other"))
        assert columns["uncovered_s"] >= 0
        assert parts <= columns["wall_s"] * (1 + 1e-9)
        assert columns["compute_s"] > 0 and columns["data_s"] > 0
        assert (columns["comm_s"] > 0) == (WORLD.size > 1)
        shares.append(columns["uncovered_s"] / columns["wall_s"])
    assert min(shares) <= 0.02


@pytest.mark.parametrize("method", [name for name in METHODS if not registry.get(name).one_worker_only])
def test_simulated_workers_may_be_shared_out_over_processes(method, results):
    point = point_of(method, 2 * WORLD.size + 1)
    alone = trained(point, results)
    shared = trained(point, results, lambda ledger: SimulatedCommunicator(point.workers, ledger, WORLD))
    ours, theirs = whole_model(shared), whole_model(alone)
    if ours is not None:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert shared.columns()["sent_bytes_total"] == alone.columns()["sent_bytes_total"]
    assert shared.columns()["train_loss"] == pytest.approx(alone.columns()["train_loss"], rel=1e-4)
