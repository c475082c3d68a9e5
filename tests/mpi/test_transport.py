"""Ranks joined by process groups of torch train as those joined by MPI do; run under mpiexec -n 1, 2, 3, 4."""

import dataclasses
import tempfile
from pathlib import Path

import fake_gpu
import pytest
import torch
from mpi4py import MPI
from training_runs import METHODS, point_of, trained, whole_model

from implementations import registry
from implementations.cluster import rendezvous
from implementations.cluster.distributed import DistributedCommunicator
from implementations.cluster.ledger import Ledger
from implementations.cluster.mixing import PAIRWISE
from implementations.cluster.mpi import MpiCommunicator
from implementations.cluster.volume import ALGORITHMS

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
HERE = [name for name in METHODS if SIZE == 1 or not registry.get(name).one_worker_only]
EVEN = SIZE & (SIZE - 1) == 0
SAME = (
    "sent_bytes_total",
    "sent_bytes_max_worker",
    "payload_bytes",
    "messages",
    "steps",
    "samples",
    "server_bytes",
)


@pytest.fixture(scope="module", autouse=True)
def joined():
    """As a worker joins them."""
    world = rendezvous.find(SIZE, lambda: MPI, Path(tempfile.gettempdir()))
    assert (world.rank, world.size) == (RANK, SIZE)
    assert world.gather(f"{RANK}") == [str(rank) for rank in range(SIZE)]
    assert world.on_host() == RANK  # all are on this machine
    rendezvous.join(world, "cpu", 60.0)
    yield
    rendezvous.leave()


def both(method, results, **changes):
    point = point_of(method, SIZE, evidence="measured", processes=SIZE, **changes)
    over_mpi = trained(point, results, lambda ledger: MpiCommunicator(ledger, WORLD))
    return trained(point, results, DistributedCommunicator), over_mpi


def assert_alike(ours, theirs):
    """Weights to rounding, books to the byte."""
    weights, reference = whole_model(ours), whole_model(theirs)
    assert (weights is None) == (reference is None)
    if weights is not None:
        torch.testing.assert_close(weights, reference, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.net.theta_wp, theirs.net.theta_wp, rtol=0, atol=1e-5)
    times = ["start_s", "end_s"]
    traces = [run.ledger.frame().drop(columns=times) for run in (ours, theirs)]
    assert traces[0].equals(traces[1])
    ours, theirs = ours.columns(), theirs.columns()
    assert {name: ours[name] for name in SAME} == {name: theirs[name] for name in SAME}
    assert ours["sent_bytes_total"] == ours["sent_bytes_predicted"]
    assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)


def variants(method):
    return [
        (method, variant)
        for variant in registry.get(method).variants
        if (method, variant) != ("ist", "faithful")
    ]


@pytest.mark.parametrize(("method", "variant"), [pair for name in HERE for pair in variants(name)])
def test_every_method_trains_as_over_mpi(method, variant, results):
    params = {"group_size": SIZE} if variant == "hybrid" else {}
    assert_alike(*both(method, results, variant=variant, method_params=params))


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "butterfly" or EVEN])
def test_every_algorithm(algorithm, results):
    assert_alike(*both("data_parallel", results, method_params={"algorithm": algorithm}, epochs=1))


@pytest.mark.parametrize("mixing", [name for name in PAIRWISE if name != "butterfly" or EVEN])
def test_averages_in_pairs(mixing, results):
    assert_alike(*both("averaging", results, method_params={"mixing": mixing, "sync_period": 7}))


@pytest.mark.parametrize("server", ["central", "partitioned"])
def test_subnets_of_unequal_width(server, results):
    model = {"name": "fc_bn", "hidden": [50, 35]}
    params = {"server": server, "sync_period": 7}
    assert_alike(*both("ist", results, model=model, method_params=params, minibatch=16, lr=0.05))


def test_operations_of_a_communicator_alike():
    """Those that methods call seldom; what is compared with comes from the other transport."""
    everyone, right = range(SIZE), [(rank + 1) % SIZE for rank in range(SIZE)]
    found = []
    for comm in (DistributedCommunicator(Ledger()), MpiCommunicator(Ledger(), WORLD)):
        value = torch.arange(7.0) + 10 * RANK
        (moved,) = comm.permute(value.unsqueeze(0), right)
        blocks = [[value[: target + 1].clone() for target in everyone]]
        (received,) = comm.alltoall(blocks)
        kept = value.clone().unsqueeze(0)
        comm.mix_(kept, right)
        sent = value.clone().unsqueeze(0)
        comm.bcast_(sent, SIZE - 1)
        (joined,) = comm.allgather(value.unsqueeze(0))
        (chunk,) = comm.reduce_scatter(value.unsqueeze(0), "mean")
        spread = comm.control_distribute([value + r for r in everyone] if RANK == 0 else None, [7] * SIZE)
        parts = [moved, *received, kept, sent, joined, chunk, *spread, comm.control_bcast(value)]
        found.append((parts, comm.world_totals()))
    for ours, theirs in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert found[0][1] == found[1][1]


@pytest.fixture
def gpu():
    fake_gpu.install()
    with fake_gpu.active():
        yield


# the parameter server sends the memory of the CPU
ON_GPUS = [
    (name, variant) for name in HERE for name, variant in variants(name) if variant != "async" and SIZE == 2
]


@pytest.mark.parametrize(("method", "variant"), ON_GPUS)
def test_buffers_on_a_device_of_their_own(method, variant, results, gpu):
    """They pass through host memory where the backend is gloo."""
    params = {"group_size": SIZE} if variant == "hybrid" else {}
    point = point_of(
        method, SIZE, evidence="measured", processes=SIZE, variant=variant, method_params=params, epochs=1
    )
    ours, theirs = (
        trained(one, results, DistributedCommunicator)
        for one in (dataclasses.replace(point, device=fake_gpu.NAME), point)
    )
    assert ours.net.theta_wp.device.type == fake_gpu.NAME
    torch.testing.assert_close(ours.net.theta_wp.cpu(), theirs.net.theta_wp, rtol=0, atol=1e-6)
    ours, theirs = ours.columns(), theirs.columns()
    assert {name: ours[name] for name in SAME} == {name: theirs[name] for name in SAME}


def test_averages_in_pairs_on_a_device(results, gpu):
    for mixing in ("ring", "hopping_ring"):
        settings = {"method_params": {"mixing": mixing, "sync_period": 7}, "epochs": 3, "transport": "torch"}
        point = point_of("averaging", SIZE, evidence="measured", processes=SIZE, **settings)
        ours, theirs = (
            trained(one, results, DistributedCommunicator)
            for one in (dataclasses.replace(point, device=fake_gpu.NAME), point)
        )
        torch.testing.assert_close(ours.net.theta_wp.cpu(), theirs.net.theta_wp, rtol=0, atol=1e-6)
        assert ours.ledger.handed_bytes == theirs.ledger.handed_bytes
