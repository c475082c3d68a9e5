"""Real ranks under a strategy end with the gradients of devices in one process; run under mpiexec -n 1, 2, 3, 4."""

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from training_runs import point_of, trained, whole_model

from implementations.cluster.ledger import Ledger
from implementations.cluster.mpi import MpiCommunicator
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.layerwise import tracing
from implementations.layerwise.equivalence import random_strategy
from implementations.layerwise.executor import Executor
from implementations.layerwise.holding import scatter
from implementations.layerwise.plan import Plan

WORLD = MPI.COMM_WORLD
BATCH = 7  # one more sample for some than for others


class Net(nn.Module):
    """Branches, a residual, normalisation and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, 2, 1), nn.BatchNorm2d(6)
        self.left, self.right = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.linear = nn.Linear(11 * 9, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        joined = torch.cat([torch.relu(self.left(x)), x + self.right(x)], 1)
        return self.linear(nn.functional.max_pool2d(joined, 2).flatten(1))


def executed(comm, plan, traced, module, x, labels):
    """Loss of all devices and gradients of the hosted ones."""
    theta = [torch.zeros(plan.params(device), dtype=x.dtype) for device in comm.hosted]
    grads = [torch.full_like(part, float("nan")) for part in theta]
    for part, device in zip(theta, comm.hosted):
        scatter(plan.slots[device], traced.parameters, dict(module.named_parameters()), part)
    blocks = [slice(*plan.stages[0].blocks[device][0]) for device in comm.hosted]
    run = Executor(plan, comm, theta, grads)
    for _ in range(2):  # the second pass meets what the first has left
        loss = run.gradients([x[b] for b in blocks], [labels[b] for b in blocks], 0)
    return float(comm.control_sum(np.array([float(loss)]))[0]), dict(zip(comm.hosted, grads))


@pytest.mark.parametrize("seed", range(12))
def test_real_ranks_equal_devices_in_one_process(seed):
    torch.manual_seed(seed)
    module = Net()
    traced = tracing.trace(module, (2, 13, 11), "net")
    module.double()
    x, labels = torch.randn(BATCH, 2, 13, 11, dtype=torch.float64), torch.randint(0, 5, (BATCH,))
    strategy = random_strategy(traced.graph, BATCH, WORLD.size, np.random.default_rng(seed))
    plan = Plan(traced.graph, strategy, BATCH, WORLD.size)
    real, one = MpiCommunicator(Ledger(), WORLD), SimulatedCommunicator(WORLD.size, Ledger())
    loss, grads = executed(real, plan, traced, module, x, labels)
    wanted_loss, wanted = executed(one, plan, traced, module, x, labels)
    assert loss == pytest.approx(wanted_loss, rel=1e-12)
    torch.testing.assert_close(grads[WORLD.rank], wanted[WORLD.rank], rtol=1e-10, atol=1e-12)
    totals = real.world_totals()
    assert totals == one.world_totals()
    assert totals["sent_bytes_total"] == 2 * sum(plan.sent_bytes(8))
    real.free()


@pytest.mark.parametrize("variant", ["layerwise", "data", "model", "owt", "single"])
def test_training_is_the_same_under_every_strategy(variant, results):
    point = point_of("layerwise", WORLD.size, variant=variant, evidence="measured", processes=WORLD.size)
    ours = whole_model(trained(point, results, lambda ledger: MpiCommunicator(ledger, WORLD)))
    alone = whole_model(trained(point_of("layerwise", WORLD.size, variant="single"), results))
    if ours is not None:
        torch.testing.assert_close(ours, alone, rtol=0, atol=1e-5)
