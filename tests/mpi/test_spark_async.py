"""A parameter server and real workers, over any communicator; run under mpiexec -n 1, 2, 3, 4."""

import dataclasses
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from training_runs import point_of, trained

from implementations.cluster.distributed import DistributedCommunicator
from implementations.cluster.mpi import MpiCommunicator
from implementations.errors import UserError
from implementations.harness import Run
from implementations.models.worker_model import WorkerModel

WORLD = MPI.COMM_WORLD
SAME = ("sent_bytes_total", "sent_bytes_max_worker", "payload_bytes", "messages", "steps", "server_bytes")


def real(results, staleness=0, variant="async", **changes):
    return trained(
        measured_point(staleness, variant, **changes),
        results,
        lambda ledger: MpiCommunicator(ledger, WORLD),
    )


def measured_point(staleness=0, variant="async", **changes):
    params = {"staleness": staleness} if variant == "async" else {}
    return point_of(
        "spark",
        WORLD.size,
        variant=variant,
        method_params=params,
        evidence="measured",
        processes=WORLD.size,
        **changes,
    )


@pytest.fixture(autouse=True)
def _no_server_left():
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "parameter-server"]


@pytest.fixture
def slow_last_rank(monkeypatch):
    """The last worker takes its time, so that the others run ahead."""
    compute = WorkerModel.loss_and_grad

    def slow(self, *batch):
        if WORLD.rank == WORLD.size - 1:
            time.sleep(0.002)
        return compute(self, *batch)

    monkeypatch.setattr(WorkerModel, "loss_and_grad", slow)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": {"momentum": 0.5}},
        {"optimizer": "rmsprop", "lr": 0.002},
        {"schedule": "exponential", "epochs": 3},
        {"checkpoint_steps": 7},
    ],
)
def test_without_staleness_it_is_the_synchronous_run(changes, results):
    synchronous, ours = real(results, variant="data", **changes), real(results, **changes)
    torch.testing.assert_close(ours.net.theta_wp, synchronous.net.theta_wp, rtol=0, atol=1e-5)
    columns = ours.columns()
    assert (columns["staleness_mean"], columns["staleness_max"]) == (0, 0)
    assert columns["train_loss"] == pytest.approx(synchronous.columns()["train_loss"], rel=1e-4)
    simulated = trained(dataclasses.replace(ours.point, evidence="simulated", processes=1), results)
    assert {name: columns[name] for name in SAME} == {name: simulated.columns()[name] for name in SAME}
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"]
    again = real(results, **changes)
    assert torch.equal(again.net.theta_wp, ours.net.theta_wp)  # whatever the order of arrivals


@pytest.mark.parametrize("staleness", [1, 3])
def test_workers_run_ahead_of_a_slow_one_by_no_more_than_the_bound(staleness, results, slow_last_rank):
    run = real(results, staleness, epochs=6, data_size=None, lr=0.1)
    columns = run.columns()
    if WORLD.size == 1:
        assert columns["staleness_max"] == 0
        synchronous = real(results, variant="data", epochs=6, data_size=None, lr=0.1)
        assert torch.equal(run.net.theta_wp, synchronous.net.theta_wp)
        return
    assert columns["staleness_max"] == staleness  # those that are fast reach it
    assert 0 < columns["staleness_mean"] < staleness
    newest = run.comm.control_bcast(run.net.theta_wp[0])
    assert torch.equal(run.net.theta_wp[0], newest)
    losses = [row["valid_loss"] for row in run.curve]
    assert losses[-1] < 0.5 * losses[0]
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"]


def test_workers_joined_by_torch_distributed(results, tmp_path, monkeypatch):
    """As Spark's are, over an interface that is named."""
    store = WORLD.bcast(str(tmp_path / "store"))
    (name,) = (
        n for n, known in psutil.net_if_addrs().items() if any(one.address == "127.0.0.1" for one in known)
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=WORLD.rank, world_size=WORLD.size)
    try:
        ours = trained(measured_point(), results, DistributedCommunicator)
        torch.testing.assert_close(ours.net.theta_wp, real(results).net.theta_wp, rtol=0, atol=0)
        assert ours.columns()["staleness_max"] == 0
    finally:
        dist.destroy_process_group()


class Killed(Exception):
    pass


def cleared(run):
    """Whose checkpoints are gone, on all ranks."""
    WORLD.Barrier()
    run.checkpoints.clear()
    WORLD.Barrier()


@pytest.mark.parametrize("changes", [{"checkpoint_s": 0.0}, {"checkpoint_steps": 4}])
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_killed_run_resumes(staleness, changes, results):
    """At the same step on all ranks, as pulses have it."""
    results = WORLD.bcast(results)  # a folder that all ranks see
    changes = changes | {"recipe": {"momentum": 0.5}, "epochs": 3, "seed": 11 + staleness}
    straight = real(results, staleness, **changes)
    cleared(straight)
    steps = straight.training.plan.steps_per_epoch

    class Stopped(Run):
        def _evaluate(self, epoch):
            if epoch == 2 and not self.resumed:
                raise Killed
            super()._evaluate(epoch)

    point = straight.point

    def attempt(kind):
        return trained(point, results, lambda ledger: MpiCommunicator(ledger, WORLD), kind=kind)

    try:
        attempt(Stopped)
    except Killed:
        pass
    else:
        pytest.fail("it was to be killed")
    WORLD.Barrier()  # rank 0 has written down that there is a checkpoint
    resumed = attempt(Stopped)
    cleared(resumed)
    assert resumed.resumed and resumed.step == 3 * steps
    same = ("sent_bytes_total", "payload_bytes", "messages", "steps", "samples")
    assert {key: resumed.columns()[key] for key in same} == {key: straight.columns()[key] for key in same}
    if staleness == 0:
        assert torch.equal(resumed.net.theta_wp, straight.net.theta_wp)
        assert resumed.test() == straight.test()
    assert resumed.holding.lateness.count == resumed.step
    assert resumed.columns()["staleness_max"] <= staleness


@pytest.mark.parametrize("failing", [0, WORLD.size - 1])
def test_a_worker_that_fails_ends_all_with_its_reason(failing, results, monkeypatch):
    compute, calls = WorkerModel.loss_and_grad, []

    def failing_compute(self, *batch):
        calls.append(1)
        if WORLD.rank == failing and len(calls) == 20:
            raise UserError("no more")
        return compute(self, *batch)

    monkeypatch.setattr(WorkerModel, "loss_and_grad", failing_compute)
    message = ""
    try:
        real(results, 2, data_size=None, seed=5)
    except UserError as error:
        message = str(error)
    if WORLD.rank == failing:
        assert message == "no more"
    else:
        assert f"worker {failing} failed" in message and "UserError: no more" in message
