"""Which sample each worker sees at which step: pure arithmetic over seeds, the same on every rank."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from implementations.errors import UserError
from implementations.seeds import numpy_stream


class Order:
    """The order of samples for ``workers`` workers that share ``samples`` samples, each equally many.

    ``static``: the samples are dealt out once; a worker sees its own shard in a new order each epoch (Su and Chen
    2015; data that stays where it is). ``reshuffled``: the samples are dealt anew each epoch, and step t of all
    workers together is the t-th minibatch of one global order, so that data parallelism with m workers of minibatch
    M sees what one worker with minibatch m M sees. ``independent``: each worker shuffles all samples each epoch, with
    a stream of its own, and makes one m-th of the steps that one worker would (the code of Yuan et al. 2022); several
    may see a sample in one epoch. ``balanced``: as static, but samples that belong together (``groups``, offsets of
    utterances) go to one worker: longest first, each to the worker with the fewest samples so far (Su and Chen's
    code). ``skewed``: as static, but the shares of the ``labels`` differ from worker to worker, the more the lower the
    concentration ``skew`` is (> 0; Hsu, Qi and Brown 2019). All workers make as many steps as the one with the fewest
    samples can, the remainder is left out.

    An epoch, at whose end a run is evaluated, is ``passes`` of these. ``labels`` are (samples,), or (samples, most) of
    which the first counts. UserError where groups or labels lack.
    """

    def __init__(
        self,
        samples: int,
        workers: int,
        minibatch: int,
        sharding: str,
        seed: int,
        groups: np.ndarray | None = None,
        labels: np.ndarray | None = None,
        skew: float | None = None,
        passes: int = 1,
    ) -> None:
        self.per_worker = samples // workers
        self._dealt: list[np.ndarray] = []
        if sharding == "balanced":
            if groups is None:
                raise UserError(
                    "sharding balanced: the data set has no utterances; allowed: static, reshuffled, independent"
                )
            self._dealt = _balanced(groups, workers)
            self.per_worker = min(map(len, self._dealt))
        elif sharding == "skewed":
            if labels is None or skew is None:
                lacks = "the data set gives no labels" if labels is None else "it needs skew, a number > 0"
                raise UserError(f"sharding skewed: {lacks}; allowed: static, reshuffled, independent")
            first = labels if labels.ndim == 1 else labels[:, 0]
            self._dealt = _skewed(first, workers, skew, numpy_stream(seed, "skew"))
        self._steps_per_pass = self.per_worker // minibatch
        self.steps_per_epoch, self._passes = passes * self._steps_per_pass, passes
        self.samples, self.workers, self.minibatch = samples, workers, minibatch
        self.sharding, self._seed = sharding, seed
        # What all workers share is drawn once: a thousand of them would each draw an order of all samples.
        self._shuffled: tuple[tuple[str | int, ...], np.ndarray] | None = None

    @property
    def private(self) -> bool:
        """Whether a worker sees its own shard only, all the run; else each may see every sample."""
        return self.sharding not in ("reshuffled", "independent")

    def shard(self, worker: int) -> np.ndarray:
        """Sorted indices of the samples a worker can ever see."""
        if not self.private:
            return np.arange(self.samples)
        if self._dealt:
            return self._dealt[worker]
        dealt = self._order_of_all("shards")
        return np.sort(dealt[worker * self.per_worker : (worker + 1) * self.per_worker])

    def epoch(self, epoch: int, worker: int) -> np.ndarray:
        """Positions in the worker's shard, (steps, minibatch), for epoch 1, 2, ..."""
        first = (epoch - 1) * self._passes + 1
        return np.concatenate([self._pass(first + index, worker) for index in range(self._passes)])

    def _pass(self, number: int, worker: int) -> np.ndarray:
        """The positions of pass 1, 2, ... over the samples, counted over the run."""
        steps, minibatch = self._steps_per_pass, self.minibatch
        if self.sharding != "reshuffled":
            order = numpy_stream(self._seed, "order", number, worker).permutation(self._size(worker))
            return order[: steps * minibatch].reshape(steps, minibatch)
        order = self._order_of_all("order", number)
        used = order[: steps * self.workers * minibatch]
        return used.reshape(steps, self.workers, minibatch)[:, worker]

    def _order_of_all(self, *stream: str | int) -> np.ndarray:
        """The permutation of all samples that a stream gives; the latest one is kept."""
        if self._shuffled is None or self._shuffled[0] != stream:
            self._shuffled = (stream, numpy_stream(self._seed, *stream).permutation(self.samples))
        return self._shuffled[1]

    def _size(self, worker: int) -> int:
        """Samples of the worker's shard."""
        if not self.private:
            return self.samples
        return len(self._dealt[worker]) if self._dealt else self.per_worker


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


def _skewed(labels: np.ndarray, workers: int, skew: float, stream: np.random.Generator) -> list[np.ndarray]:
    """Sorted samples of each worker, equally many, whose label shares are drawn from a Dirichlet distribution.

    Worker k draws shares q ~ Dirichlet(skew * the shares of all samples). Then the workers take turns, and in each the
    worker draws a label from its q, renormalised over the labels of which samples are left, and takes one of these.
    """
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = stream.permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]  # what is taken of a label is a random subset
    starts, left = (np.cumsum(counts) - counts).tolist(), counts.tolist()
    draws = [_wishes(counts, skew, stream) for _ in range(workers)]
    taken: list[list[int]] = [[] for _ in range(workers)]
    for _ in range(len(labels) // workers):
        for wishes, mine in zip(draws, taken):
            label = next(label for label in wishes if left[label])
            left[label] -= 1
            mine.append(starts[label] + left[label])
    return [np.sort(by_label[mine]) for mine in taken]


def _wishes(counts: np.ndarray, skew: float, stream: np.random.Generator) -> Iterator[int]:
    """Labels in the order in which one worker draws them, each as often as there are samples of it.

    Labels arrive as independent Poisson processes of rates q: the sequence of arrivals is one of draws from q, and
    stays one, renormalised, when the arrivals of labels that have run out are passed over. All in logarithms, as a
    low ``skew`` makes shares that no float can hold.
    """
    alphas = np.maximum(skew * counts / counts.sum(), 1e-300)
    # A gamma variable of shape a is one of shape a + 1, times U^(1 / a); q is such variables over their sum, and
    # what is common to all rates changes no order.
    log_rates = np.log(stream.standard_gamma(alphas + 1)) + np.log1p(-stream.random(len(alphas))) / alphas
    labels = np.repeat(np.arange(len(counts)), counts)
    waits = np.cumsum(stream.standard_exponential(len(labels)))
    # A label's process begins where the waits of the label before end.
    starts = np.concatenate([[0.0], waits[np.cumsum(counts) - 1]])
    log_times = np.log(np.maximum(waits - starts[labels], 1e-300)) - log_rates[labels]
    return iter(labels[np.argsort(log_times)].tolist())
