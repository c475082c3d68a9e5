"""The side of the benchmarks that runs on MPI ranks: ours and torch's, alternating in the same processes.

    mpiexec -n 2 python -m benchmarks.ranks averaging_operation

Rank 0 prints one JSON list of rows. torch's side runs on gloo, its CPU backend, and gets the same network, data in
memory and order, so that only the way of communicating differs. Memory is in bytes, beside what it should be by sizes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from benchmarks import subnets
from benchmarks.alone import RESULTS, point_of, train_s
from benchmarks.speech import DATASET, HIDDEN
from benchmarks.statistics import compare
from implementations import data, holding, host
from implementations.clock import Clock
from implementations.cluster.booked import BookedCommunicator
from implementations.cluster.ledger import Ledger
from implementations.cluster.mpi import MpiCommunicator
from implementations.harness import Run
from implementations.point import Point

WORLD = MPI.COMM_WORLD
SIZES_MB = (1, 4, 16, 64, 160)
NETS = {"small": [128, 128], "large": [1024, 1024]}
MINIBATCH, SPEECH_MINIBATCH = 64, 128
STEPS = {"small": 400, "large": 60}
SUBNETS = {"minibatch": 32, "lr": 0.05}  # as in the default experiments
SUBNET_PERIOD, SUBNET_STEPS = 20, 60
# Of the net whose memory is measured. Steps of a window: all but the first and the last are local ones.
WIDE_FEATURES, WIDE_CLASSES, WIDE_HIDDEN = 4096, 35, [4096, 4096]
WIDE_PERIOD, WIDE_STEPS = 5, 20


def seconds(function: Callable[[], Any], calls: int = 1) -> float:
    """Seconds of ``calls`` calls on the slowest rank, all ranks starting together."""
    WORLD.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        function()
    return WORLD.allreduce((time.perf_counter() - began) / calls, op=MPI.MAX)


def averaging_operation() -> list[dict[str, Any]]:
    """One average of all parameters: our communicator against PeriodicModelAverager."""
    return [{"name": f"average {size} MB", "goal": 1.5, **_average(size)} for size in SIZES_MB]


def _average(size_mb: int) -> dict[str, float]:
    count, calls = size_mb * 1_000_000 // 4, max(1, 32 // size_mb)
    ours_wp = torch.randn(1, count)
    comm = MpiCommunicator(Ledger(Clock(), keep_times=False), WORLD)
    layers = [torch.nn.Parameter(torch.randn(count // 6)) for _ in range(6)]
    for layer in layers:
        layer.grad = torch.zeros(1).expand_as(layer)  # parameters without a gradient are skipped
    with warnings.catch_warnings():  # it would rather have DDP at period 1
        warnings.simplefilter("ignore")
        averager = PeriodicModelAverager(period=1)
    return compare(
        lambda: seconds(lambda: comm.allreduce_(ours_wp, "mean"), calls),
        lambda: seconds(lambda: averager.average_parameters(layers), calls),
    )


def end_to_end() -> list[dict[str, Any]]:
    """Training seconds at equal samples: data parallel against DDP, averaging against PeriodicModelAverager."""
    rows = []
    for size, hidden in NETS.items():
        goal = {"data_parallel": 1.1 if size == "small" else 1.0, "averaging": 1.0}
        for method, reference in (("data_parallel", _ddp), ("averaging", _periodic)):
            point = _point(method, hidden, STEPS[size])
            theirs = reference(_run(point))
            rows.append(
                {
                    "name": f"{method}, {size} net {hidden}",
                    "goal": goal[method],
                    **compare(lambda p=point: _ours(p), lambda t=theirs: seconds(t)),
                }
            )
    return rows


def speech_end_to_end() -> list[dict[str, Any]]:
    """The same for averaging a speech net's parameters, at the experiments' minibatch, on frames spliced as used."""
    rows = []
    for width, steps in ((256, 300), (512, 100)):
        point = dataclasses.replace(
            point_of("averaging", WORLD.size, HIDDEN * [width], "measured"),
            dataset=DATASET,
            model={"name": "fc", "hidden": HIDDEN * [width], "activation": "sigmoid"},
            minibatch=SPEECH_MINIBATCH,
            data_size=steps * SPEECH_MINIBATCH * WORLD.size,
            processes=WORLD.size,
        )
        theirs = _periodic(_run(point))
        rows.append(
            {
                "name": f"averaging, speech net {point.model['hidden']}",
                "goal": 1.0,
                **compare(lambda p=point: _ours(p), lambda t=theirs: seconds(t)),
            }
        )
    return rows


def _point(method: str, hidden: list[int], steps: int) -> Point:
    return dataclasses.replace(
        point_of(method, WORLD.size, hidden, "measured"),
        data_size=steps * MINIBATCH * WORLD.size,
        processes=WORLD.size,
    )


def _run(point: Point, results: Path = RESULTS) -> Run:
    return Run(point, lambda ledger: MpiCommunicator(ledger, WORLD), results, Clock(), "benchmark")


def _ours(point: Point, results: Path = RESULTS) -> float:
    run = _run(point, results)
    run.warm_up()
    run.start_clock()
    run.train(lambda done, total: None)
    return WORLD.allreduce(run.clock.training_s, op=MPI.MAX)


def _ddp(run: Run) -> Callable[[], None]:
    model = torch.nn.parallel.DistributedDataParallel(run.net.to_module(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.point.lr)
    return lambda: _epoch(run, model, optimizer, lambda: None)


def _periodic(run: Run) -> Callable[[], None]:
    model = run.net.to_module()
    optimizer = torch.optim.SGD(model.parameters(), lr=run.point.lr)
    period = run.training.settings["sync_period"]
    averager = PeriodicModelAverager(period=period, warmup_steps=period - 1)
    return lambda: _epoch(run, model, optimizer, lambda: averager.average_parameters(model.parameters()))


def _epoch(
    run: Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, after: Callable[[], None]
) -> None:
    shards = run.training._shards
    for rows in shards.epoch(1):
        x_wbi, y_wb = shards.take(rows)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x_wbi[0]), y_wb[0]).backward()
        optimizer.step()
        after()


def speedup() -> list[dict[str, Any]]:
    """Training seconds of all ranks together against rank 0 alone, on one thread and on as many as there are ranks."""
    rows = []
    for method in ("averaging", "data_parallel"):
        for hidden in ([128, 128], [512, 512], [1024, 1024]):
            steps = 51_200 // hidden[0]
            together = _point(method, hidden, steps)
            one = dataclasses.replace(
                point_of("sequential", 1, hidden), data_size=together.data_size, minibatch=MINIBATCH
            )
            for threads in (1, WORLD.size):
                rows.append(
                    {
                        "name": f"{method} {hidden}, against 1 rank with {threads} thread(s)",
                        "goal": None,
                        **compare(lambda p=together: _ours(p), lambda p=one, t=threads: _rank_0_alone(p, t)),
                    }
                )
    return rows


def _rank_0_alone(point: Point, threads: int) -> float:
    """Seconds of a one-worker run on rank 0 while the others sleep (a barrier would spin on their cores)."""
    taken = 0.0
    if WORLD.rank == 0:
        torch.set_num_threads(threads)
        taken = train_s(point)
        torch.set_num_threads(1)
    done = WORLD.Ibarrier()
    while not done.Test():
        time.sleep(0.005)
    return WORLD.bcast(taken)


def subnet_ranks() -> list[dict[str, Any]]:
    """Training seconds of a batch-normalised net at equal samples, against torch's local SGD and DDP.

    Independent subnet training is another method than either: its steps and messages are smaller.
    """
    net = partial(
        subnets.point_of_net, workers=WORLD.size, hidden=[1024],
        data_size=SUBNET_STEPS * SUBNETS["minibatch"] * WORLD.size, **SUBNETS,
    )  # fmt: skip
    period = {"sync_period": SUBNET_PERIOD}
    local, parallel = net("averaging", method_params=period), net("data_parallel")
    central, partitioned = (
        net("ist", method_params={**period, "server": server}) for server in ("central", "partitioned")
    )
    with _noise(1960, 12, local.data_size) as results:
        theirs = {"local SGD": _periodic(_run(local, results)), "DDP": _ddp(_run(parallel, results))}
        return [
            {
                "name": f"{name}, against {reference}",
                "goal": goal,
                **compare(lambda p=point: _ours(p, results), lambda r=reference: seconds(theirs[r])),
            }
            for name, point, reference, goal in (
                ("averaging", local, "local SGD", 1.0),
                ("data_parallel", parallel, "DDP", 1.0),
                ("ist, central server", central, "local SGD", None),
                ("ist, partitioned server", partitioned, "local SGD", None),
                ("ist, central server", central, "DDP", None),
            )
        ]


def subnet_memory(server: str) -> list[dict[str, Any]]:
    """How much each rank's resident memory grows over what it should hold, by sizes: ``Holding.state_bytes``.

    That is weights and gradients of its subnet, and those of the full net's weights that it stores. Beside these there
    are activations, and at a window's ends the blocks that are exchanged, which the allocator keeps for later unless
    they are large (``rank_environment``); local steps are those in between. A process for each server, since memory
    that was freed but kept is not seen to grow again.
    """
    net = partial(
        subnets.point_of_net, "ist", WORLD.size, data_size=WIDE_STEPS * SUBNETS["minibatch"] * WORLD.size,
        method_params={"sync_period": WIDE_PERIOD, "server": server}, **SUBNETS,
    )  # fmt: skip
    point = net(WIDE_HIDDEN)
    with _noise(WIDE_FEATURES, WIDE_CLASSES, point.data_size) as results:
        _ours(net([WORLD.size, WORLD.size]), results)  # brings in the code, which is no state
        peaks = {}
        has_peaks = host.restart_peak()
        run = _run(point, results)
        before = run._resident_before
        if has_peaks:
            peaks["most in building"] = host.peak_resident_bytes() - before
            host.restart_peak()
        local = [
            subnets.resident_bytes() - before
            for progress in run.method.train(run.training)
            if progress.step % WIDE_PERIOD not in (0, 1)
        ]
        if has_peaks:
            peaks["most in training"] = host.peak_resident_bytes() - before
    dry = holding.dry(point, WIDE_FEATURES, WIDE_CLASSES, BookedCommunicator(WORLD.size, Ledger()))
    should = dry.state_bytes(point)
    if server == "central" and WORLD.rank:
        should -= dry.server_bytes  # the whole net, which worker 0 stores
    every = WORLD.allgather((should, local, peaks))
    rows = [
        (f"{who}, local steps", [(size, wanted) for wanted, sizes, _ in some for size in sizes])
        for who, some in (("rank 0", every[:1]), ("other ranks", every[1:]))
    ]
    rows += [
        (f"worst rank, {what}", [max(((most[what], wanted) for wanted, _, most in every), key=_over)])
        for what in peaks
    ]
    return [
        {
            "name": f"{server} server, {name}",
            "goal": 1.3 if "local" in name else None,
            "at_most": True,
            **_growth(pairs),
        }
        for name, pairs in rows
    ]


def _growth(pairs: list[tuple[int, int]]) -> dict[str, float]:
    """What memory grew by and what it should have, at the median of their ratio, with its quartiles."""
    pairs = sorted(pairs, key=_over)
    ratios, (ours, reference) = [*map(_over, pairs)], pairs[len(pairs) // 2]
    return {
        "ours_bytes": ours,
        "reference_bytes": reference,
        "ratio": ours / reference,
        "ratio_low": ratios[len(pairs) // 4],
        "ratio_high": ratios[-1 - len(pairs) // 4],
    }


def _over(pair: tuple[int, int]) -> float:
    return pair[0] / pair[1]


@contextmanager
def _noise(features: int, classes: int, samples: int) -> Iterator[Path]:
    """A results folder for all ranks that has a data set of noise and does not outlive its use."""
    with tempfile.TemporaryDirectory() as own:
        results = Path(WORLD.bcast(own))
        if WORLD.rank == 0:
            subnets.write_noise(results, features, classes, samples)
        WORLD.Barrier()
        yield results
        WORLD.Barrier()


def _join_gloo() -> None:
    store = WORLD.bcast(tempfile.mktemp() if WORLD.rank == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=WORLD.rank, world_size=WORLD.size)


BENCHMARKS = {
    "averaging_operation": averaging_operation,
    "end_to_end": end_to_end,
    "speech_end_to_end": speech_end_to_end,
    "speedup": speedup,
    "subnet_ranks": subnet_ranks,
    "subnet_memory_central": partial(subnet_memory, "central"),
    "subnet_memory_partitioned": partial(subnet_memory, "partitioned"),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    if not sys.argv[1].startswith("subnet"):
        data.prepare(DATASET if sys.argv[1].startswith("speech") else "fashion_mnist", RESULTS)
    _join_gloo()
    found = BENCHMARKS[sys.argv[1]]()
    if WORLD.rank == 0:
        print(json.dumps([row | {"ranks": WORLD.size} for row in found]))
    dist.destroy_process_group()
