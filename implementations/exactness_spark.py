"""How exactly training that is cut inside its layers does what one device does: rows of results/exactness.parquet.

Simulated: programs of small networks, with the exchanges of both executions. Measured: whole runs on a Spark session,
in a barrier stage and by jobs, where a session can be started. What they are held against is plain torch.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from implementations.clock import Clock
from implementations.cluster import ownership
from implementations.cluster.communicator import Communicator
from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.data.preparation import prepare
from implementations.errors import UserError
from implementations.harness import Run
from implementations.point import Point
from implementations.spark import equivalence
from implementations.spark.equivalence import BATCH, STEPS, Data, Net

BARRIER, JOBS = "barrier", "job_per_exchange"
COLUMNS = [
    "paper", "evidence", "model", "cut", "execution", "optimizer", "precision", "devices", "steps", "worst_error",
    "torch_error", "step_bytes", "expected_bytes", "bytes_as_predicted",
]  # fmt: skip
# Networks of measured runs, on images of 8 x 8 handwritten digits.
DIGITS = (
    Net({"name": "fc", "hidden": [16]}, 64),
    Net({"name": "cnn", "filters": [4], "kernel": 3, "hidden": [16]}, 64, "filters"),
    Net({"name": "cnn", "filters": [4], "kernel": 3, "hidden": [16]}, 64, "rows"),
    Net({"name": "rnn", "steps": 8, "hidden": [8]}, 64),
    Net({"name": "lstm", "steps": 8, "hidden": [8]}, 64),
)
# How much is checked in each tier. Measured: kind of network, execution and workers; by jobs a step takes a second.
SCOPES: dict[str, dict[str, Any]] = {
    "smoke": {"workers": (1, 2), "measured": ()},
    "default": {
        "measured": (("fc", BARRIER, 1), ("fc", BARRIER, 2), ("fc", JOBS, 2)),
        "optimizers": ("rmsprop",),
    },
}
FULL_SCOPE: dict[str, Any] = {
    "measured": tuple(itertools.product(("fc", "cnn", "rnn", "lstm"), (BARRIER, JOBS), (1, 2)))
}
LIMIT_S = 60.0  # that one worker of a stage waits for another
Asked = tuple[str, str, int]
Trained = tuple[list[torch.Tensor], int]  # weights in plain torch's order, and bytes of all steps


def make(
    workers: Sequence[int] = (1, 2, 4, 8),
    measured: Sequence[Asked] = (),
    optimizers: Sequence[str] = tuple(equivalence.OPTIMIZERS),
) -> pd.DataFrame:
    """A row for each network and cut, number of workers, optimiser, execution and precision.

    ``worst_error``: largest difference of a weight after all steps; ``torch_error``: the same of one device in single
    precision against double. Bytes are those of a step of all workers, in single precision. ``measured``: kinds of
    network, executions and numbers of workers of runs on Spark, ``optimizers`` theirs.
    """
    rows = list(_simulated(workers))
    if measured:
        try:
            rows += _measured(measured, optimizers)
        except UserError as error:  # no Java, say
            print(f"paratrain: warning: exactness is simulated only: {error}", file=sys.stderr)
    return pd.DataFrame(rows, columns=COLUMNS)


def _simulated(workers: Sequence[int]) -> Iterator[dict[str, Any]]:
    for net in equivalence.NETS:
        known = Data(net)
        for count, optimizer, driver, dtype in itertools.product(
            workers, equivalence.OPTIMIZERS, (False, True), (torch.float64, torch.float32)
        ):
            ended = equivalence.simulated(known, count, optimizer, dtype, driver)
            own = _row(net, count, optimizer, JOBS if driver else BARRIER)
            error = equivalence.furthest(ended.weights, known.one_device(optimizer, dtype))
            own |= {"evidence": "simulated", "worst_error": error, "precision": "double"}
            if dtype == torch.float32:
                own |= {"precision": "single", "torch_error": known.rounding(optimizer)}
                own |= _bytes(net, count, driver, ended.step_bytes)
            yield own


def _row(net: Net, workers: int, optimizer: str, execution: str) -> dict[str, Any]:
    return {
        "paper": "spark",
        "model": net.kind,
        "cut": net.cut,
        "execution": execution,
        "optimizer": optimizer,
        "devices": workers,
        "steps": STEPS,
    }


def _bytes(net: Net, workers: int, driver: bool, sent: float) -> dict[str, Any]:
    expected = equivalence.step_bytes(net, workers, driver)
    return {"step_bytes": sent, "expected_bytes": expected, "bytes_as_predicted": sent == expected}


# -- whole runs on Spark -----------------------------------------------------------------------------------------------


def _measured(asked: Sequence[Asked], optimizers: Sequence[str]) -> list[dict[str, Any]]:
    from implementations.cluster.spark import session

    with ownership.folder("exactness") as folder:
        prepare("digits", folder)
        with session.start(max(workers for _, _, workers in asked), "local") as running:
            return list(measured_on(running, folder, asked, optimizers))


def measured_on(
    running: Any, results: Path, asked: Sequence[Asked], optimizers: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Rows of whole runs on a running session; ``results`` has the digits prepared."""
    counts = sorted({workers for _, _, workers in asked})
    for net, workers, optimizer in itertools.product(DIGITS, counts, optimizers):
        executions = [way for kind, way, count in asked if (kind, count) == (net.kind, workers)]
        if not executions:
            continue
        known = _data_of(_point(net, workers, optimizer), net, results)
        for execution in executions:
            weights, sent = _on_spark(running, _point(net, workers, optimizer, execution), results)
            own = _row(net, workers, optimizer, execution)
            own |= {"evidence": "measured", "precision": "single", "torch_error": known.rounding(optimizer)}
            own["worst_error"] = equivalence.furthest(weights, known.one_device(optimizer, torch.float32))
            yield own | _bytes(net, workers, execution == JOBS, sent / STEPS)


def _point(net: Net, workers: int, optimizer: str, execution: str | None = None) -> Point:
    """A point of as many steps; simulated unless told how it is executed."""
    settings = {"cut": net.cut} | ({"execution": execution} if execution else {})
    return Point(
        paper="spark",
        method="spark",
        variant="model",
        dataset="digits",
        data_size=STEPS * BATCH,
        model=net.model,
        workers=workers,
        processes=workers if execution == BARRIER else 1,
        minibatch=BATCH // workers,
        epochs=1,
        optimizer=optimizer,
        lr={"sgd": 0.1, "rmsprop": 1e-3}[optimizer],
        evidence="measured" if execution else "simulated",
        seed=1,
        method_params=settings,
    )


def _data_of(point: Point, net: Net, results: Path) -> Data:
    """First weights and minibatches of a point's run, for plain torch."""
    run = _run(point, results, lambda ledger: SimulatedCommunicator(point.workers, ledger))
    run.training.optimizer(point.lr)  # minibatches are asked for by what trains
    x, y = [], []
    for batch in run.training.batches():
        x.append(batch.x.reshape(BATCH, net.features).double())
        y.append(batch.y.reshape(BATCH))
    return Data(net, _weights(run), torch.cat(x), torch.cat(y))


def _run(point: Point, results: Path, communicator: Callable[[Ledger], Communicator]) -> Run:
    return Run(point, communicator, results, Clock(), "")


def _weights(run: Run) -> list[torch.Tensor]:
    """Where this process has the whole network: its weights."""
    with run.holding.whole() as net:
        return [] if net is None else [weight[0].clone() for weight in net.weights.values()]


def _train(point: Point, results: Path, communicator: Callable[[Ledger], Communicator]) -> Trained:
    run = _run(point, results, communicator)
    run.warm_up()
    run.start_clock()
    run.train(lambda done, total: None)
    run.stop_clock()
    return _weights(run), run.ledger.sent_bytes_total


def _on_spark(running: Any, point: Point, results: Path) -> Trained:
    if point.method_params["execution"] == JOBS:
        return _train(point, results, lambda ledger: Communicator(ledger, [0] * point.workers))
    from implementations.cluster.spark.stage import run_in_barrier

    task = functools.partial(_in_stage, point.to_json(), str(results))
    weights, sent = run_in_barrier(running, point.workers, task, limit_s=LIMIT_S).values[0]
    return [torch.from_numpy(weight) for weight in weights], sent


def _in_stage(point: dict[str, Any], results: str, rank: int) -> Any:
    """One worker of a barrier stage; arrays are sent back, as tensors would come by shared memory."""
    from implementations.cluster.sockets import SocketCommunicator

    weights, sent = _train(Point.from_json(point), Path(results), SocketCommunicator)
    return [weight.numpy() for weight in weights], sent
