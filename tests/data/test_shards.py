from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.data.shards import Order
from implementations.errors import UserError

SIZES = {
    "samples": st.integers(1, 200),
    "workers": st.integers(1, 9),
    "minibatch": st.integers(1, 12),
    "sharding": st.sampled_from(["static", "reshuffled"]),
    "epoch": st.integers(1, 3),
}


@given(**SIZES)
def test_no_sample_is_seen_twice_in_an_epoch(samples, workers, minibatch, sharding, epoch):
    order = Order(samples, workers, minibatch, sharding, seed=2)
    seen = []
    for worker in range(workers):
        rows = order.epoch(epoch, worker)
        assert rows.shape == (order.steps_per_epoch, minibatch)
        seen.append(order.shard(worker)[rows].ravel())
    seen = np.concatenate(seen)
    assert len(np.unique(seen)) == len(seen) == order.steps_per_epoch * minibatch * workers
    assert len(seen) > samples - workers * minibatch - workers
    assert seen.size == 0 or 0 <= seen.min() <= seen.max() < samples


@given(workers=st.integers(1, 6), minibatch=st.integers(1, 5), epoch=st.integers(1, 3))
def test_reshuffled_workers_together_see_the_minibatches_of_one_worker(workers, minibatch, epoch):
    many = Order(90, workers, minibatch, "reshuffled", 2)
    one = Order(90, 1, minibatch * workers, "reshuffled", 2)
    together = np.concatenate([many.epoch(epoch, worker) for worker in range(workers)], axis=1)
    assert np.array_equal(together, one.epoch(epoch, 0))


def test_a_static_shard_stays_and_its_order_changes():
    order = Order(40, 4, 5, "static", 2)
    first, second = order.epoch(1, 2), order.epoch(2, 2)
    assert set(first.ravel()) == set(second.ravel()) == set(range(10))
    assert not np.array_equal(first, second)
    shards = np.concatenate([order.shard(worker) for worker in range(4)])
    assert sorted(shards) == list(range(40))


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    workers=st.integers(1, 9),
    seed=st.integers(0, 5),
)
def test_balanced_shards_keep_utterances_whole_and_are_nearly_equal(lengths, workers, seed):
    """Greedy dealing, longest first, leaves no more than the longest utterance between two workers."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    order = Order(int(offsets[-1]), workers, 4, "balanced", seed, offsets)
    shards = [order.shard(worker) for worker in range(workers)]
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(offsets[-1]))
    for first, last in pairwise(offsets):
        assert sum(first in shard for shard in shards) == 1
        assert any(set(range(first, last)) <= set(shard.tolist()) for shard in shards)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= max(lengths)
    assert order.steps_per_epoch == min(sizes) // 4
    for worker, shard in enumerate(shards):
        rows = order.epoch(1, worker)
        assert rows.shape == (order.steps_per_epoch, 4)
        assert len(np.unique(rows)) == rows.size and (rows.size == 0 or rows.max() < len(shard))


def test_balanced_shards_deal_the_longest_first():
    """By hand: 5 to the first, 4 and 3 to the second, 3 to the first, 3 to the second."""
    order = Order(18, 2, 1, "balanced", 0, np.cumsum([0, 3, 5, 3, 4, 3]))
    assert order.shard(0).tolist() == [*range(3, 8), *range(8, 11)]
    assert order.shard(1).tolist() == [*range(3), *range(11, 18)]


def test_data_without_utterances_cannot_be_balanced():
    with pytest.raises(UserError, match="has no utterances"):
        Order(100, 2, 5, "balanced", 0)
