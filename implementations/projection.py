"""The trace of a point that nobody trains: its own method, run dry at any size, for the time model.

Nothing is computed or allocated: tensors are on torch's meta device, the communicator only books what real workers
would send, and the data set's card gives the sizes. The method's code is the one that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from implementations import registry
from implementations.clock import Clock
from implementations.cluster.booked import BookedCommunicator
from implementations.cluster.ledger import Ledger
from implementations.data.cards import load_card
from implementations.data.shards import Order
from implementations.holding import dry
from implementations.point import Point
from implementations.training import Training

# An epoch of a projection has at most so many steps, and its seconds stand for the whole; periods should divide it.
TRACED_STEPS = 400


class _DryShards:
    """Stands for the samples: as many minibatches as the order says, with nothing in them."""

    def __init__(self, order: Order) -> None:
        self.order = SimpleNamespace(steps_per_epoch=min(order.steps_per_epoch, TRACED_STEPS))

    def epoch(self, epoch: int) -> range:
        return range(self.order.steps_per_epoch)

    def take(self, rows: int) -> tuple[None, None]:
        return None, None


class _DryTraining(Training):
    def optimizer(self, lr: float) -> Any:
        self._optimizer = SimpleNamespace(step=lambda: None, param_groups=[])
        return self._optimizer

    @property
    def moves_wp(self) -> torch.Tensor:
        return self.net.grad_wp  # of the momentum's size

    def measure_drift(self) -> None:
        pass

    def keep_own(self) -> None:
        pass


def project(point: Point, sizes: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], pd.DataFrame]:
    """Columns of the record that the point would leave, and the trace of (the beginning of) one epoch.

    ``sizes``: of data that have no card (``train``, ``input_shape``, ``classes``).

    ``steps`` and ``samples`` are those of the whole run; the trace has at most ``TRACED_STEPS``.
    """
    sizes = sizes or load_card(point.dataset).sizes
    samples = point.data_size or sizes["train"]
    if point.scaling == "weak" and point.data_size:
        samples *= point.workers
    # whole utterances or not, and whatever the labels, each worker has about as many samples
    sharding = "static" if point.sharding in ("balanced", "skewed") else point.sharding
    order = Order(samples, point.workers, point.minibatch, sharding, point.seed, passes=point.passes)
    ledger = Ledger(Clock())
    features = int(np.prod(sizes["input_shape"]))
    method = registry.get(point.method)
    comm = BookedCommunicator(point.workers, ledger)
    held = dry(point, features, sizes["classes"], comm)
    held.net.loss_and_grad = lambda x_wbi, y_wb: 0.0  # type: ignore[method-assign, assignment]
    run = _DryTraining(point, method.settings(point), held, comm, _DryShards(order), Clock())
    # The first epoch may be another than those that follow (mixing in pairs begins after it).
    first = run.plan.steps_per_epoch if point.epochs > 1 else 0
    run.done_steps = first
    for progress in method.train(run):
        if progress.step == first + run.plan.steps_per_epoch:
            break
    steps = point.epochs * order.steps_per_epoch
    columns = {
        "data_size": samples,
        "model_params": held.full_params,
        "worker_params": held.net.params_per_worker,
        "state_bytes_per_worker": held.state_bytes(point) - held.server_bytes,
        "server_bytes": held.server_bytes,
        "steps": steps,
        "samples": steps * point.global_batch,
        "status": "ok",
    }
    return columns, ledger.frame()
