"""Workers joined by torch.distributed (gloo here), or by sockets, do as those joined by MPI; on 1, 2, 3, 4 ranks."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn

from implementations.cluster.distributed import DistributedCommunicator
from implementations.cluster.exchange import Exchange
from implementations.cluster.ledger import Ledger
from implementations.cluster.mpi import MpiCommunicator
from implementations.cluster.sockets import SocketCommunicator, close_all
from implementations.layerwise import tracing
from implementations.layerwise.equivalence import random_strategy
from implementations.layerwise.executor import Executor
from implementations.layerwise.holding import scatter
from implementations.layerwise.plan import Plan

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
BATCH = 6


@pytest.fixture(scope="module", autouse=True)
def gloo():
    folder = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None))
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=RANK, world_size=SIZE)
    yield
    close_all()
    dist.destroy_process_group()


def value(rank, count=5):
    return torch.arange(count, dtype=torch.float32) + 10 * rank


def both():
    return DistributedCommunicator(Ledger()), SocketCommunicator(Ledger()), MpiCommunicator(Ledger(), WORLD)


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_allreduce(op):
    for comm in both():
        buffers = [value(RANK)]
        comm.allreduce_(buffers, op)
        total = sum(value(rank) for rank in range(SIZE))
        torch.testing.assert_close(buffers[0], total if op == "sum" else total / SIZE)


def test_groups_in_the_background():
    colors = [rank % 2 for rank in range(SIZE)]
    for comm in both():
        groups = comm.split(colors)
        assert list(groups) == [RANK % 2]
        buffer = value(RANK)
        handle = groups[RANK % 2].iallreduce_([buffer], "sum")
        handle.wait()
        torch.testing.assert_close(buffer, sum(value(rank) for rank in range(RANK % 2, SIZE, 2)))


def test_exchange():
    pairs = [(s, t) for s in range(SIZE) for t in range(SIZE) if s != t and (s + t) % 2]
    if not pairs:
        pytest.skip("one process sends nothing")
    shapes = {(s, t): (s + 1, t + 2) for s, t in pairs}
    for comm in both():
        exchange = Exchange(comm, shapes, torch.float32)
        waits = [
            exchange.start(
                {(s, t): torch.full(shapes[s, t], float(10 * s + t + n)) for s, t in exchange.sends}
            )
            for n in (0, 100)
        ]
        for n, wait in zip((0, 100), waits):
            for (s, t), received in wait().items():
                assert t == RANK
                assert torch.equal(received, torch.full(shapes[s, t], float(10 * s + t + n)))


def test_messages_beyond_the_buffers_of_a_connection():
    """Both ends write before they read: more than the system takes at once must not block them."""
    comm = SocketCommunicator(Ledger())
    values = torch.full((3_000_000,), float(RANK))
    comm.allreduce_([values], "sum")
    assert torch.equal(values, torch.full((3_000_000,), SIZE * (SIZE - 1) / 2))
    (whole,) = comm.allgather([torch.full((2_000_000,), float(RANK))], [2_000_000] * SIZE)
    assert whole.view(SIZE, -1)[:, -1].tolist() == list(range(SIZE))


def test_what_passes_through_host_memory():
    for comm in both():
        assert comm.control_sum(np.array([RANK + 1.0]))[0] == SIZE * (SIZE + 1) / 2
        assert comm.control_max(np.array([RANK]))[0] == SIZE - 1
        gathered = comm.allgather([value(RANK, RANK + 1)])
        torch.testing.assert_close(gathered[0], torch.cat([value(r, r + 1) for r in range(SIZE)]))
        (chunk,) = comm.reduce_scatter([value(RANK)])
        total = sum(value(rank) for rank in range(SIZE))
        torch.testing.assert_close(chunk, total.tensor_split(SIZE)[RANK])
        buffers = [value(RANK)]
        comm.bcast_(buffers, SIZE - 1)
        assert torch.equal(buffers[0], value(SIZE - 1))
        collected = comm.control_collect([value(RANK, RANK + 1)], [r + 1 for r in range(SIZE)])
        assert (collected is None) == (RANK > 0)
        comm.barrier()


@pytest.mark.parametrize("seed", range(4))
def test_a_strategy_gives_the_same_as_over_mpi(seed):
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(2, 6, 3, 2, 1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 5),
    )
    traced = tracing.trace(module, (2, 13, 12), "net")
    strategy = random_strategy(traced.graph, BATCH, SIZE, np.random.default_rng(seed))
    plan = Plan(traced.graph, strategy, BATCH, SIZE)
    samples = slice(*plan.stages[0].blocks[RANK][0])
    x, labels = torch.randn(BATCH, 2, 13, 12)[samples], torch.randint(0, 5, (BATCH,))[samples]
    found = []
    for comm in both():
        theta, grad = torch.zeros(plan.params(RANK)), torch.zeros(plan.params(RANK))
        scatter(plan.slots[RANK], traced.parameters, dict(module.named_parameters()), theta)
        loss = Executor(plan, comm, [theta], [grad]).gradients([x], [labels], 0)
        found.append((loss, grad, comm.world_totals()))
    *others, over_mpi = found
    for other in others:
        torch.testing.assert_close(other[:2], over_mpi[:2])
        assert other[2]["sent_bytes_total"] == over_mpi[2]["sent_bytes_total"] == sum(plan.sent_bytes())
