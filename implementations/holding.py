"""What a process holds of the network: the models that its workers train, and the one that is evaluated.

Most methods give every worker a whole replica. One that splits the network gives each a part, and puts the whole
together where it is evaluated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from implementations import models, registry
from implementations.cluster.communicator import Communicator
from implementations.models.worker_model import WorkerModel
from implementations.point import Point
from implementations.seeds import torch_stream


class Holding(ABC):
    """The network as a process holds it.

    net: what the hosted workers train, the worker axis first.
    model: its description, as a point has it.
    full_params: parameters of the whole network.
    server_bytes: weights that the busiest worker stores beside what it trains.
    stacked: whether ``net`` has all that the hosted workers hold, side by side, and takes a step by ``loss_and_grad``.
    exchanges: whether copies of what they hold go from worker to worker.
    assembled_bytes: of the whole network, where it is put together each time that it is evaluated.
    everywhere: whether each process has the whole model, and so its share of the evaluation; else the first one has.
    """

    net: WorkerModel
    model: dict[str, Any]
    full_params: int
    server_bytes = 0
    stacked = False
    exchanges = False
    assembled_bytes = 0
    everywhere = True
    tag = ""  # of a checkpoint: state that was saved under another one is void

    def state_bytes(self, point: Point) -> int:
        """Bytes of a worker's state by its sizes: weights, gradients, momentum, RMSprop's squares, what it stores."""
        slots = 2 + bool(point.recipe.get("momentum")) + (point.optimizer == "rmsprop")
        return self.net.params_per_worker * self.net.theta_wp.itemsize * slots + self.server_bytes

    @abstractmethod
    @contextmanager
    def whole(self) -> Iterator[WorkerModel | None]:
        """The model to evaluate, of one worker; None where this process has no part in that. Off the ledger."""

    def warm_up(self, x_wbi: Any, y_wb: torch.Tensor) -> None:
        """A pass over a minibatch that counts for nothing; changes no weight."""
        self.net.loss_and_grad(x_wbi, y_wb)

    def state(self) -> dict[str, Any]:
        """What a resume needs beside the trained weights."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 (most have nothing to take up)
        """Take up what ``state`` gave."""


class Replicas(Holding):
    """Every worker trains the whole network; all start equal."""

    stacked = True

    def __init__(
        self,
        point: Point,
        settings: dict[str, Any],
        features: int,
        classes: int,
        comm: Communicator,
        results: Path,
    ) -> None:
        self.net = models.build(
            point.model, features, classes, len(comm.hosted), torch_stream(point.seed, "init")
        )
        self.full_params, self.model = self.net.params_per_worker, point.model

    @contextmanager
    def whole(self) -> Iterator[WorkerModel]:
        """The first hosted worker's model."""
        yield self.net.one_worker(0)


def hold(
    point: Point,
    settings: dict[str, Any],
    features: int,
    classes: int,
    comm: Communicator,
    results: Path = Path("results"),
) -> Holding:
    """What the point's method gives this process of the network; ``results``: where what is known of machines lies."""
    make = registry.get(point.method).holding or Replicas
    return make(
        point=point, settings=settings, features=features, classes=classes, comm=comm, results=results
    )


def dry(
    point: Point, features: int, classes: int, comm: Communicator, results: Path = Path("results")
) -> Holding:
    """What the first worker would hold, with sizes and no memory."""
    with torch.device("meta"):
        return hold(point, registry.get(point.method).settings(point), features, classes, comm, results)
