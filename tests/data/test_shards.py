import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from implementations.data.shards import Order

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
