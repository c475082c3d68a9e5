"""Which sample each worker sees at which step: pure arithmetic over seeds, the same on every rank."""

from __future__ import annotations

import heapq

import numpy as np

from implementations.errors import UserError
from implementations.seeds import numpy_stream


class Order:
    """The order of samples for ``workers`` workers that share ``samples`` samples, each equally many.

    ``static``: the samples are dealt out once; a worker sees its own shard in a new order each epoch (Su and Chen
    2015; data that stays where it is). ``reshuffled``: the samples are dealt anew each epoch, and step t of all
    workers together is the t-th minibatch of one global order, so that data parallelism with m workers of minibatch
    M sees what one worker with minibatch m M sees. ``balanced``: as static, but samples that belong together
    (``groups``, offsets of utterances) go to one worker: longest first, each to the worker with the fewest samples so
    far (Su and Chen's code). All workers make as many steps as the one with the fewest samples can, the remainder is
    left out.
    """

    def __init__(
        self,
        samples: int,
        workers: int,
        minibatch: int,
        sharding: str,
        seed: int,
        groups: np.ndarray | None = None,
    ) -> None:
        self.per_worker = samples // workers
        self._dealt: list[np.ndarray] = []
        if sharding == "balanced":
            if groups is None:
                raise UserError(
                    "sharding balanced: the data set has no utterances; allowed: static, reshuffled"
                )
            self._dealt = _balanced(groups, workers)
            self.per_worker = min(map(len, self._dealt))
        self.steps_per_epoch = self.per_worker // minibatch
        self.samples, self.workers, self.minibatch = samples, workers, minibatch
        self.sharding, self._seed = sharding, seed

    def shard(self, worker: int) -> np.ndarray:
        """Sorted indices of the samples a worker can ever see."""
        if self.sharding == "reshuffled":
            return np.arange(self.samples)
        if self.sharding == "balanced":
            return self._dealt[worker]
        dealt = numpy_stream(self._seed, "shards").permutation(self.samples)
        return np.sort(dealt[worker * self.per_worker : (worker + 1) * self.per_worker])

    def epoch(self, epoch: int, worker: int) -> np.ndarray:
        """Positions in the worker's shard, (steps, minibatch), for epoch 1, 2, ..."""
        steps, minibatch = self.steps_per_epoch, self.minibatch
        if self.sharding != "reshuffled":
            size = len(self._dealt[worker]) if self._dealt else self.per_worker
            order = numpy_stream(self._seed, "order", epoch, worker).permutation(size)
            return order[: steps * minibatch].reshape(steps, minibatch)
        order = numpy_stream(self._seed, "order", epoch).permutation(self.samples)
        used = order[: steps * self.workers * minibatch]
        return used.reshape(steps, self.workers, minibatch)[:, worker]


def _balanced(groups: np.ndarray, workers: int) -> list[np.ndarray]:
    """Sorted samples of each worker when whole groups are dealt out, longest first, to whoever has the fewest."""
    lengths = np.diff(groups)
    loads = [
        (0, worker) for worker in range(workers)
    ]  # a heap: the least load, then the lowest rank, is first
    owners = np.empty(len(lengths), dtype=np.int64)
    for group in np.argsort(-lengths, kind="stable"):
        load, worker = loads[0]
        owners[group] = worker
        heapq.heapreplace(loads, (load + int(lengths[group]), worker))
    owner_of_sample = np.repeat(owners, lengths)
    return [np.flatnonzero(owner_of_sample == worker) for worker in range(workers)]
