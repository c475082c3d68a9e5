"""What a process holds for variant ``async``: replicas, and of the weights that were before as many as may be used.

Shapes: w worker hosted by this process, p parameter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from implementations import models
from implementations.cluster.communicator import Communicator
from implementations.cluster.ledger import Ledger
from implementations.cluster.volume import Traffic
from implementations.holding import Replicas
from implementations.models.worker_model import WorkerModel
from implementations.point import Point
from implementations.seeds import torch_stream

SERVER = "server"


@dataclass(frozen=True)
class Served:
    """The traffic of ``workers`` workers with a server of ``model_bytes`` of weights; the server is worker ``workers``.

    In each round every worker sends its gradient (op ``push``) and is sent weights (op ``pull``). A worker that is
    alone is its own server and sends nothing.
    """

    workers: int
    model_bytes: int

    @property
    def round_bytes(self) -> int:
        """All bytes on the wire in a round."""
        return 2 * self.workers * self.model_bytes if self.workers > 1 else 0

    def book(self, ledger: Ledger) -> tuple[int, int]:
        """The ledger's numbers for the pushes and the pulls of a round; -1 for a worker alone."""
        if self.workers == 1:
            return -1, -1
        m, size = self.workers, self.model_bytes
        each, none, members = (size,) * m, (0,) * m, tuple(range(m + 1))
        push = Traffic(size, (*each, 0), (*none, m * size), ((1,) * m + (0,)))
        pull = Traffic(size, (*none, m * size), (*each, 0), (none + (m,)))
        return tuple(
            ledger.kind(op, SERVER, SERVER, members, form) for op, form in (("push", push), ("pull", pull))
        )


class History:
    """The weights of up to ``staleness`` versions before the newest."""

    def __init__(self, staleness: int) -> None:
        self._past: deque[torch.Tensor] = deque(maxlen=staleness)

    def __len__(self) -> int:
        return len(self._past)

    def rewind_(self, theta_wp: torch.Tensor, late_w: Sequence[int]) -> None:
        """Give each row the weights ``late_w`` versions back (at most as many as are kept); remember the newest.

        All rows hold the newest version before. ``renew_`` brings it back.
        """
        if self._past.maxlen == 0:
            return
        newest_p = theta_wp[0].clone()
        for row, late in enumerate(late_w):
            if late:
                theta_wp[row].copy_(self._past[-late])
        self._past.append(newest_p)

    def renew_(self, theta_wp: torch.Tensor) -> None:
        """Give all rows the version that was the newest at ``rewind_``."""
        if self._past.maxlen:
            theta_wp.copy_(self._past[-1])

    def state(self) -> list[torch.Tensor]:
        """The versions, oldest first, for a checkpoint."""
        return list(self._past)

    def restore(self, versions: Sequence[torch.Tensor]) -> None:
        """Go on with saved versions."""
        self._past.clear()
        self._past.extend(versions)


class Lateness:
    """How late the gradients of the hosted workers were, in versions."""

    def __init__(self) -> None:
        self.total = self.count = self.most = 0

    def add(self, late_w: Sequence[int]) -> None:
        """Note the gradients of a round."""
        self.total += sum(late_w)
        self.count += len(late_w)
        self.most = max(self.most, *late_w)

    def columns(self, comm: Communicator) -> dict[str, float]:
        """Mean and maximum over all workers, as columns of a record; collective over the processes."""
        total, count = comm.control_sum(np.array([self.total, self.count]))
        most = comm.control_max(np.array([self.most]))[0]
        return {"staleness_mean": float(total / count) if count else 0.0, "staleness_max": int(most)}


class Versions(Replicas):
    """Replicas, with what a resume needs of the versions before.

    history: of simulated workers.
    replica: in measured runs the weights and gradient that worker 0 computes with, on its process, whose ``net`` has
        the server's; None on the others, and where there is no server.
    server_bytes: the server's weights, which stand beside what worker 0 trains.
    """

    def __init__(
        self,
        point: Point,
        settings: dict[str, Any],
        features: int,
        classes: int,
        comm: Communicator,
        results: Path,
    ) -> None:
        super().__init__(point, settings, features, classes, comm, results)
        self.layout = Served(comm.size, self.full_params * self.net.theta_wp.itemsize)
        self.history, self.lateness = History(settings["staleness"]), Lateness()
        self.replica: WorkerModel | None = None
        if comm.size > 1:
            self.server_bytes = self.layout.model_bytes
            if point.evidence == "measured" and 0 in comm.hosted:
                start = torch_stream(point.seed, "init")
                self.replica = models.build(point.model, features, classes, 1, start)

    def state(self) -> dict[str, Any]:
        """The versions before the newest, and how late gradients were."""
        late = self.lateness
        return {"past": self.history.state(), "lateness": [late.total, late.count, late.most]}

    def restore(self, state: dict[str, Any]) -> None:
        """Take them up."""
        self.history.restore(state["past"])
        self.lateness.total, self.lateness.count, self.lateness.most = state["lateness"]
