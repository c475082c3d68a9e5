"""Which sample each worker sees at which step: pure arithmetic over seeds, the same on every rank."""

from __future__ import annotations

import numpy as np

from implementations.seeds import numpy_stream


class Order:
    """The order of samples for ``workers`` workers that share ``samples`` samples, each equally many.

    ``static``: the samples are dealt out once; a worker sees its own shard in a new order each epoch (Su and Chen
    2015; data that stays where it is). ``reshuffled``: the samples are dealt anew each epoch, and step t of all
    workers together is the t-th minibatch of one global order, so that data parallelism with m workers of minibatch
    M sees what one worker with minibatch m M sees. The remainder that cannot be dealt evenly is left out.
    """

    def __init__(self, samples: int, workers: int, minibatch: int, sharding: str, seed: int) -> None:
        self.per_worker = samples // workers
        self.steps_per_epoch = self.per_worker // minibatch
        self.samples, self.workers, self.minibatch = samples, workers, minibatch
        self.sharding, self._seed = sharding, seed

    def shard(self, worker: int) -> np.ndarray:
        """Sorted indices of the samples a worker can ever see."""
        if self.sharding == "reshuffled":
            return np.arange(self.samples)
        dealt = numpy_stream(self._seed, "shards").permutation(self.samples)
        return np.sort(dealt[worker * self.per_worker : (worker + 1) * self.per_worker])

    def epoch(self, epoch: int, worker: int) -> np.ndarray:
        """Positions in the worker's shard, (steps, minibatch), for epoch 1, 2, ..."""
        steps, minibatch = self.steps_per_epoch, self.minibatch
        if self.sharding == "static":
            order = numpy_stream(self._seed, "order", epoch, worker).permutation(self.per_worker)
            return order[: steps * minibatch].reshape(steps, minibatch)
        order = numpy_stream(self._seed, "order", epoch).permutation(self.samples)
        used = order[: steps * self.workers * minibatch]
        return used.reshape(steps, self.workers, minibatch)[:, worker]
