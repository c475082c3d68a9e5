"""What steps made by Spark jobs have in common: the run, the cluster's jobs, what is noted and saved of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch

from implementations.cluster.spark import session
from implementations.spark.cluster import Cluster
from implementations.spark.lineage import States
from implementations.training import Batch, Training


def cluster_of(holding: Any) -> Cluster:
    """The jobs of a run, of this process's Spark session; made when first asked for."""
    if holding.cluster is None:
        holding.cluster = Cluster(session.current().context, holding.spec)
    return holding.cluster


class JobSteps(ABC):
    """What all have: the run, its cluster, and what is noted of it.

    in_step: whether the driver's weights are those after the latest step.
    """

    in_step = True

    def __init__(self, run: Training) -> None:
        self.run, self.ledger, self.holding = run, run.comm.ledger, run.holding
        self.cluster = cluster_of(run.holding)
        self.cluster.open_books(self.ledger.clock)
        self.optimizer = run.optimizer(run.point.lr)
        # filled with slots where these are brought here; a state that is being saved refers to it
        self.slots = self.optimizer.state[run.net.theta_wp]
        self._noted = dict(self.holding.kept.get("notes", {}))  # by an earlier attempt
        self.holding.pull = self.pull

    @property
    def lr(self) -> float:
        """The epoch's rate."""
        return self.optimizer.param_groups[0]["lr"]

    def place(self, batch: Batch) -> tuple[int, int]:
        """Epoch (from 1) and place in it (from 0) of a step."""
        return (batch.step - 1) // self.run.plan.steps_per_epoch + 1, batch.step_in_epoch - 1

    @abstractmethod
    def make(self, batch: Batch) -> torch.Tensor:
        """One step; returns its mean loss (0-d)."""

    def states(self, frames: list[bytearray]) -> States:
        """States that begin with these frames."""
        spec = self.cluster.spec
        folder = Path(spec.results) / "runs" / spec.point.run_id / "lineage"
        return States(self.cluster, frames, self.run.settings["lineage_steps"], folder)

    def notes(self) -> dict[str, Any]:
        """Columns of the record, up to now."""
        now = {
            **self.cluster.seconds,
            "spark_jobs": self.cluster.jobs,
            "checkpoint_bytes": self.cluster.written_bytes,
        }
        return {name: value + self._noted.get(name, 0) for name, value in now.items()}

    def note(self) -> None:
        """Leave them with the run."""
        self.run.notes.update(self.notes())

    def pull(self) -> dict[str, Any]:
        """What a checkpoint of the run has beside the driver's weights and optimiser, which are brought up to date."""
        return {"notes": self.notes()}

    def close(self) -> None:
        """Give back what the steps hold on the executors."""
        self.note()
        self.holding.pull = None
