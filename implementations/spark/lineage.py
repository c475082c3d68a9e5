"""The states of workers as RDDs, one a worker and of one partition, from step to step.

A worker's state after a step is an RDD made of the state before and of what the worker received, so that Spark itself
makes a state anew that was lost with its executor: from the last one that was written down, through the steps since.
Broadcasts of these steps are kept for that. Every so many steps states are written to files (``RDD.checkpoint``; what
``localCheckpoint`` keeps would die with the executor), older ones are forgotten, and broadcasts are destroyed. So
lineage and memory are bounded however long a run is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from implementations.spark import tasks
from implementations.spark.cluster import Cluster, drop

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast

Advance = Callable[[Iterator[bytearray]], Iterator[bytearray]]


class States:
    """The workers' states, to begin with ``frames``. ``folder`` is for what is written down, each ``every`` steps."""

    def __init__(self, cluster: Cluster, frames: list[bytearray], every: int, folder: Path) -> None:
        self._cluster, self._every, self._folder = cluster, every, folder
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed
        cluster.context.setCheckpointDir(folder.resolve().as_uri())
        # what lineage needs, step by step: first of all the states themselves
        self._broadcasts: list[list[Broadcast]] = [[cluster.send(frame) for frame in frames]]
        seed = cluster.context.parallelize([0], 1)
        self.rdds: list[RDD] = [
            self._kept(seed.mapPartitions(partial(tasks.begin, sent))) for sent in self._broadcasts[0]
        ]
        self._holders = self.rdds  # whose blocks the states are
        self._before: list[RDD] = []  # whose blocks are of no use once those of ``rdds`` are there
        self._older: list[RDD] = []  # back to the last that was written down
        self._steps = 0

    @staticmethod
    def _kept(rdd: RDD) -> RDD:
        from pyspark import StorageLevel

        return rdd.persist(StorageLevel.MEMORY_AND_DISK)

    def advance(self, steps: list[Advance], broadcasts: list[Broadcast]) -> None:
        """Each worker's state becomes that after its step; ``broadcasts``: what the steps read, kept as long as needed.

        Nothing is computed yet: the next job does, or ``write`` where it is time for that.
        """
        self._broadcasts.append(broadcasts)
        self._before = self._holders
        self._older += self._holders
        self.rdds = [self._kept(rdd.mapPartitions(step)) for rdd, step in zip(self.rdds, steps, strict=True)]
        self._holders = self.rdds
        self._steps += 1

    def settled(self) -> None:
        """The states have been computed: drop the blocks of those before.

        They stay marked as kept, so that Spark computes a lost state step by step, in one process, and not in a
        pipeline of as many processes as there are steps.
        """
        for rdd in self._before:
            self._kept(rdd.unpersist())
        self._before = []

    @property
    def due(self) -> bool:
        """Whether it is time to write the states down."""
        return self._steps >= self._every

    def write(self) -> None:
        """Write the states to files and forget how they came about. Before any other job on them."""
        for rdd in self.rdds:
            rdd.checkpoint()
        self._cluster.collect([rdd.mapPartitions(tasks.drain) for rdd in self.rdds])
        files = [_path(rdd.getCheckpointFile()) for rdd in self.rdds]
        self._cluster.written_bytes += sum(
            path.stat().st_size for file in files for path in file.rglob("part-*")
        )
        # The RDDs just written would not read their broadcasts again, but name them.
        self._forget(self._older, self._broadcasts[:-1])
        self._before, self._older, self._broadcasts = [], [], self._broadcasts[-1:]
        self._steps = 0
        for old in self._folder.glob("*/rdd-*"):
            if old not in files:
                shutil.rmtree(old, ignore_errors=True)
        # RDDs of Python remember those they were made of; a union does not.
        self.rdds = [self._cluster.context.union([rdd]) for rdd in self.rdds]

    def pull(self) -> list[bytearray]:
        """All workers' states, brought to the driver."""
        frames = self._cluster.collect(self.rdds)
        self.settled()
        return frames

    @staticmethod
    def _forget(rdds: list[RDD], broadcasts: list[list[Broadcast]]) -> None:
        for rdd in rdds:
            rdd.unpersist()
        drop(one for step in broadcasts for one in step)

    def close(self) -> None:
        """Give up all of it."""
        self._forget(self._older + self._holders, self._broadcasts)
        shutil.rmtree(self._folder, ignore_errors=True)


def _path(address: Any) -> Path:
    return Path(unquote(urlparse(address).path))
