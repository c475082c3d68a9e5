"""The processes of a measurement, among each other."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from implementations.cluster.launcher import RANK_VARIABLES, library_name


class Ranks:
    """The processes that measure together; one alone needs no MPI."""

    def __init__(self) -> None:
        self.world: Any = None
        self.rank, self.size, self.library = 0, 1, "none"
        if any(name in os.environ for name in RANK_VARIABLES):
            from mpi4py import MPI

            self.world = MPI.COMM_WORLD
            self.rank, self.size = self.world.rank, self.world.size
            self.library = library_name(MPI)

    def barrier(self) -> None:
        """Wait for all."""
        if self.world is not None:
            self.world.Barrier()

    def slowest(self, seconds: float) -> float:
        """The most that one of them took."""
        return seconds if self.world is None else max(self.world.allgather(seconds))

    def all(self, values: np.ndarray) -> np.ndarray:
        """The values of all ranks, side by side along the last axis."""
        return values if self.world is None else np.concatenate(self.world.allgather(values), axis=-1)
