"""Layer-wise strategies on real ranks: against DDP, against plain torch on one rank, and against their prediction.

    mpiexec -n 2 python -m benchmarks.layerwise steps alexnet

Rank 0 prints one JSON list of rows. A row of a prediction has predicted seconds as ``ours`` and measured ones as
``reference``. The cost model's blocks are those in results/calibration, measured first where they are missing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from benchmarks.statistics import compare
from implementations.cluster import machine
from implementations.cluster.ledger import Ledger
from implementations.cluster.mpi import MpiCommunicator
from implementations.layerwise import costs, planner, tracing
from implementations.layerwise.blocktimes import MeasuredBlocks
from implementations.layerwise.executor import Executor
from implementations.layerwise.holding import scatter
from implementations.layerwise.plan import Plan
from implementations.models import convnets

WORLD = MPI.COMM_WORLD
RESULTS = "results"
MINIBATCH, LR, MOMENTUM = 32, 0.01, 0.9  # 32 images a rank, as in the paper
CLASSES = 1000
IMAGES = {"inception_v3": 299}
ROUNDS = {"alexnet": 7, "vgg16": 2, "inception_v3": 3, "resnet50": 3}
SETTINGS = {
    "objective": "additive",
    "plan_sync": "allreduce",
    "degrees": "powers",
    "plan_for": machine.THIS_HOST,
}


class Step:
    """Training steps of a network on all ranks, ours or torch's, from the same weights and images."""

    def __init__(self, net: str, ranks: int = WORLD.size) -> None:
        side = IMAGES.get(net, 224)
        self.net, self.sample, self.ranks = net, (3, side, side), ranks
        torch.manual_seed(0)
        self.module = convnets.module({"name": net, "dropout": 0.0} if net != "resnet50" else {"name": net},
                                      self.sample, CLASSES)  # fmt: skip
        self.traced = tracing.trace(self.module, self.sample, net)
        for part in self.module.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.track_running_stats = False  # ours keeps no running statistics in training
                part.running_mean = part.running_var = part.num_batches_tracked = None
        torch.manual_seed(1 + WORLD.rank)
        self.x = torch.randn(MINIBATCH, *self.sample)
        self.labels = torch.randint(0, CLASSES, (MINIBATCH,))

    def needed(self, variant: str) -> list[Any]:
        """The blocks that a plan of this variant rests on."""
        return planner.needed(variant, SETTINGS, self.traced.graph, MINIBATCH * self.ranks, self.ranks)

    def strategy(self, variant: str) -> dict[str, tuple[int, ...]]:
        """The variant's configuration of each layer."""
        return planner.strategy(variant, SETTINGS, self.traced.graph, MINIBATCH * self.ranks, self.ranks)

    def predicted_s(self, variant: str) -> float:
        """The cost model's seconds of a step."""
        cluster = machine.load(machine.THIS_HOST, RESULTS)
        times = planner.times_for(cluster, self.needed(variant), self.ranks, RESULTS)
        assert isinstance(times, MeasuredBlocks)
        return costs.predict(
            self.traced.graph, self.strategy(variant), MINIBATCH * self.ranks, self.ranks, cluster, times,
            sync="allreduce",
        ).step_s  # fmt: skip

    def ours(self, variant: str) -> Callable[[], None]:
        """A step under a strategy."""
        plan = Plan(self.traced.graph, self.strategy(variant), MINIBATCH * self.ranks, self.ranks)
        theta_p = torch.zeros(plan.params(WORLD.rank))
        grad_p = torch.zeros_like(theta_p)
        scatter(plan.slots[WORLD.rank], self.traced.parameters, dict(self.module.named_parameters()), theta_p)
        theta_p.grad = grad_p
        optimizer = torch.optim.SGD([theta_p], lr=LR, momentum=MOMENTUM)
        executor = Executor(plan, MpiCommunicator(Ledger(), WORLD), [theta_p], [grad_p])

        def step() -> None:
            executor.gradients([self.x], [self.labels], 0)
            optimizer.step()

        return step

    def torchs(self) -> Callable[[], None]:
        """A step of DDP on gloo, or of plain torch on one rank."""
        model = self.module.train()
        if self.ranks > 1:
            model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(self.x), self.labels).backward()
            optimizer.step()

        return step


def seconds(step: Callable[[], None]) -> float:
    """Seconds of a step on the slowest rank, all starting together."""
    WORLD.Barrier()
    began = time.perf_counter()
    step()
    return WORLD.allreduce(time.perf_counter() - began, op=MPI.MAX)


def steps(net: str) -> list[dict[str, Any]]:
    """The found plan and data parallelism, or one rank, against torch; then predicted against measured seconds."""
    case, rows = Step(net), []
    theirs = case.torchs()
    variants = ("layerwise", "data") if WORLD.size > 1 else ("single",)
    measured = {}
    for variant in variants:
        ours = case.ours(variant)
        times = compare(lambda o=ours: seconds(o), lambda: seconds(theirs), rounds=ROUNDS[net])
        measured[variant] = times["ours_s"]
        against = "DDP" if WORLD.size > 1 else "plain torch"
        rows.append({"name": f"{net}, {variant}, against {against}", "goal": _goal(net, variant), **times})
    if WORLD.size > 1:  # what the plan is worth, without the difference between MPI and gloo
        ours, own = case.ours("layerwise"), case.ours("data")
        times = compare(lambda: seconds(ours), lambda: seconds(own), rounds=ROUNDS[net])
        rows.append({"name": f"{net}, found plan against our data parallelism", "goal": None, **times})
    for variant in variants:
        predicted = case.predicted_s(variant)
        ratio = predicted / measured[variant]
        rows.append(
            {
                "name": f"{net}, {variant}, predicted / measured",
                "goal": 1.1, "within": True,
                "ours_s": predicted, "reference_s": measured[variant],
                "ratio": ratio, "ratio_low": ratio, "ratio_high": ratio,
            }
        )  # fmt: skip
    if WORLD.size > 1:
        ceiling = case.predicted_s("data") / case.predicted_s("layerwise")
        rows.append(
            {"name": f"{net}, found plan against data parallel, predicted", "goal": None,
             "ours_s": case.predicted_s("layerwise"), "reference_s": case.predicted_s("data"),
             "ratio": ceiling, "ratio_low": ceiling, "ratio_high": ceiling}
        )  # fmt: skip
    return rows


def _goal(net: str, variant: str) -> float | None:
    """Times as fast as the reference."""
    if variant == "single":
        return round(1 / 1.05, 3)
    return 1.05 if (net, variant) == ("alexnet", "layerwise") else None


def measure(net: str, ranks: int) -> None:
    """Time the missing blocks of a network's plans on so many ranks; started without ranks, as it starts its own."""
    case = Step(net, ranks)
    blocks = MeasuredBlocks(f"{RESULTS}/{planner.BLOCKS}", ranks)
    variants = ("layerwise", "data") if ranks > 1 else ("single",)
    specs = [spec for variant in variants for spec in case.needed(variant)]
    blocks.measure(specs, report=lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "measure":
        measure(sys.argv[2], int(sys.argv[3]))
        sys.exit(0)
    if WORLD.size > 1:
        store = WORLD.bcast(tempfile.mktemp() if WORLD.rank == 0 else None)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=WORLD.rank, world_size=WORLD.size)
    found = steps(sys.argv[2])
    if WORLD.rank == 0:
        print(json.dumps([row | {"ranks": WORLD.size} for row in found]))
    if WORLD.size > 1:
        dist.destroy_process_group()
