"""Real ranks end with the weights of simulated workers, for every method; run under mpiexec -n 1, 2, 3, 4."""

import pytest
import torch
from mpi4py import MPI
from training_runs import METHODS, point_of, trained

from implementations import registry
from implementations.cluster.mpi import MpiCommunicator

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
    torch.testing.assert_close(
        measured.net.theta_wp[0], simulated.net.theta_wp[WORLD.rank], rtol=0, atol=1e-5
    )
    if WORLD.size == 1:
        assert torch.equal(measured.net.theta_wp, simulated.net.theta_wp)
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


@pytest.mark.parametrize("method", HERE)
def test_the_time_parts_add_up(method, results):
    # steps of about a millisecond, as small as any that is worth timing
    model = {"name": "fc", "hidden": [256, 256]}
    point = point_of(
        method, WORLD.size, evidence="measured", processes=WORLD.size, epochs=10, model=model, minibatch=32
    )
    columns = trained(point, results, lambda ledger: MpiCommunicator(ledger, WORLD)).columns()
    parts = sum(columns[f"{label}_s"] for label in ("data", "compute", "comm", "eval", "other"))
    assert columns["uncovered_s"] >= 0
    assert columns["uncovered_s"] <= 0.02 * columns["wall_s"]
    assert parts <= columns["wall_s"] * (1 + 1e-9)
    assert columns["compute_s"] > 0 and columns["data_s"] > 0
    assert (columns["comm_s"] > 0) == (WORLD.size > 1)
