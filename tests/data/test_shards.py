import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.data.shards import Order, _skewed
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


@given(
    samples=st.integers(1, 200),
    workers=st.integers(1, 9),
    minibatch=st.integers(1, 12),
    epoch=st.integers(1, 3),
)
def test_independent_workers_make_their_part_of_all_minibatches(samples, workers, minibatch, epoch):
    """floor(minibatches / workers) steps as in the official code; none sees a sample twice, all see any."""
    order = Order(samples, workers, minibatch, "independent", seed=2)
    assert order.steps_per_epoch == samples // minibatch // workers
    rows = [order.epoch(epoch, worker) for worker in range(workers)]
    for worker, mine in enumerate(rows):
        assert mine.shape == (order.steps_per_epoch, minibatch)
        assert len(np.unique(mine)) == mine.size and (mine.size == 0 or mine.max() < samples)
        assert np.array_equal(order.shard(worker), np.arange(samples))
    alone = Order(samples, 1, minibatch, "independent", seed=2)
    assert np.array_equal(rows[0], alone.epoch(epoch, 0)[: order.steps_per_epoch])


def test_independent_orders_overlap_as_chance_has_it():
    """Two workers that take n of N samples each share n * n / N of them on average, of deviation 18.7 here."""
    order = Order(6000, 2, 50, "independent", seed=4)
    shared = [len(np.intersect1d(order.epoch(epoch, 0), order.epoch(epoch, 1))) for epoch in (1, 2, 3)]
    assert max(abs(np.array(shared) - 1500)) < 4 * 18.7
    assert not np.array_equal(order.epoch(1, 0), order.epoch(2, 0))


@pytest.mark.parametrize(
    ("sharding", "private"),
    [("static", True), ("skewed", True), ("reshuffled", False), ("independent", False)],
)
def test_only_private_shards_are_apart(sharding, private):
    order = Order(12, 2, 3, sharding, 0, labels=np.arange(12) % 3, skew=1.0)
    assert order.private == private
    assert (len(np.intersect1d(order.shard(0), order.shard(1))) == 0) == private


def skewed(labels, workers, skew, seed=0, minibatch=1):
    return Order(len(labels), workers, minibatch, "skewed", seed, labels=np.asarray(labels), skew=skew)


def counted(order, labels, classes):
    """How many samples of each label each worker has, (workers, classes)."""
    return np.array(
        [np.bincount(labels[order.shard(worker)], minlength=classes) for worker in range(order.workers)]
    )


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=200),
    workers=st.integers(1, 9),
    minibatch=st.integers(1, 5),
    skew=st.floats(5e-324, 1e9),
    seed=st.integers(0, 5),
)
def test_skewed_shards_are_equal_and_apart(labels, workers, minibatch, skew, seed):
    """Of rare and absent labels too, and of any strength."""
    order = skewed(labels, workers, skew, seed, minibatch)
    shards = [order.shard(worker) for worker in range(workers)]
    assert [len(shard) for shard in shards] == [len(labels) // workers] * workers
    assert all(np.all(np.diff(shard) > 0) for shard in shards)
    dealt = np.concatenate(shards)
    assert len(np.unique(dealt)) == len(dealt) > len(labels) - workers
    assert dealt.size == 0 or 0 <= dealt.min() <= dealt.max() < len(labels)
    again = skewed(labels, workers, skew, seed, minibatch)
    for worker, shard in enumerate(shards):
        assert np.array_equal(again.shard(worker), shard)
        rows = order.epoch(1, worker)
        assert rows.shape == (order.steps_per_epoch, minibatch)
        assert len(np.unique(rows)) == rows.size and (rows.size == 0 or rows.max() < len(shard))


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [4000, 2000, 1500, 500]))


def test_no_skew_leaves_everybody_the_shares_of_all():
    """Within five standard deviations of draws from the shares of all."""
    shares = np.bincount(LABELS) / len(LABELS)
    order = skewed(LABELS, 8, 1e9)
    deviations = np.sqrt(shares * (1 - shares) / order.per_worker)
    assert np.all(abs(counted(order, LABELS, 4) / order.per_worker - shares) < 5 * deviations)


def test_much_skew_leaves_most_workers_one_label():
    """30 workers on 3 labels: who shares a label with more than it has samples for changes over, the others do not."""
    labels = np.arange(6000) % 3
    for seed in range(3):
        counts = counted(skewed(labels, 30, 1e-6, seed), labels, 3)
        assert np.max(counts, axis=1).mean() > 0.8 * 200
        assert np.sum(counts > 0, axis=1).mean() < 2.2


def test_shares_are_further_from_those_of_all_the_lower_the_concentration_is():
    """Mean total variation distance over workers and seeds; of two shares it is at most 1."""
    shares = np.bincount(LABELS) / len(LABELS)
    distances = [
        np.mean(
            [
                abs(counted(skewed(LABELS, 8, skew, seed), LABELS, 4) / 1000 - shares).sum(axis=1) / 2
                for seed in range(5)
            ]
        )
        for skew in (0.01, 1, 10, 100, 1e4)
    ]
    assert all(first - last > 0.02 for first, last in pairwise(distances))
    assert 0 < distances[-1] < 0.02


@pytest.mark.parametrize("skew", [0.3, 3.0])
def test_skewed_shards_are_distributed_as_drawn_label_by_label(skew):
    """Against the procedure as told: q from a Dirichlet distribution; in turns a label from q over what is left."""
    labels, workers, trials = np.array([0, 0, 0, 1, 1, 2, 2]), 2, 3000
    draws, stream = np.random.default_rng(1), np.random.default_rng(2)

    def told():
        left = np.bincount(labels)
        q = draws.dirichlet(skew * left / left.sum(), size=workers)
        counts = np.zeros((workers, 3), dtype=int)
        for _ in range(len(labels) // workers):
            for worker in range(workers):
                p = np.where(left > 0, q[worker], 0)
                label = draws.choice(3, p=p / p.sum())
                left[label] -= 1
                counts[worker, label] += 1
        return counts

    def dealt():
        return [np.bincount(labels[mine], minlength=3) for mine in _skewed(labels, workers, skew, stream)]

    ours, theirs = (Counter(tuple(np.ravel(draw())) for _ in range(trials)) for draw in (dealt, told))
    outcomes = ours.keys() | theirs.keys()
    distance = sum(abs(ours[one] - theirs[one]) for one in outcomes) / (2 * trials)
    # of two samples of one distribution: about sqrt(outcomes / (pi * trials))
    assert len(outcomes) > 10 and distance < 1.5 * np.sqrt(len(outcomes) / (np.pi * trials))


def test_which_samples_of_a_label_a_worker_gets_is_chance():
    labels = np.zeros(1000, dtype=int)
    firsts = [skewed(labels, 4, 1.0, seed).shard(0) for seed in range(3)]
    assert not np.array_equal(firsts[0], firsts[1])
    assert all(abs(np.mean(shard) - 499.5) < 5 * 288.7 / np.sqrt(250) for shard in firsts)


def test_of_several_labels_the_first_counts():
    several = np.stack([LABELS, np.full(len(LABELS), -1)], axis=1)
    one, other = skewed(LABELS, 5, 0.5), skewed(several, 5, 0.5)
    assert all(np.array_equal(one.shard(worker), other.shard(worker)) for worker in range(5))


def test_skewed_shards_of_much_data_come_at_once():
    labels = np.arange(60000) % 10
    began = time.perf_counter()
    skewed(labels, 8, 0.1)
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize(
    ("given", "said"), [({"skew": 0.5}, "gives no labels"), ({"labels": LABELS}, "needs skew")]
)
def test_skew_needs_labels_and_a_strength(given, said):
    with pytest.raises(UserError, match=f"sharding skewed: .*{said}.*; allowed: static"):
        Order(len(LABELS), 2, 5, "skewed", 0, **given)


@pytest.mark.parametrize("sharding", ["static", "reshuffled", "independent"])
def test_an_epoch_of_several_passes_is_those_passes_one_after_the_other(sharding):
    one, three = (Order(50, 2, 4, sharding, 1, passes=passes) for passes in (1, 3))
    assert three.steps_per_epoch == 3 * one.steps_per_epoch
    for worker in range(2):
        passes = [one.epoch(number, worker) for number in range(1, 7)]
        epochs = [three.epoch(epoch, worker) for epoch in (1, 2)]
        assert np.array_equal(np.concatenate(epochs), np.concatenate(passes))
