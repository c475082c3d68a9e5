"""A thousand workers: the same results as by direct formulas, and no cost that grows with their square."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from implementations.cluster import algorithms
from implementations.cluster.exchange import Exchange
from implementations.cluster.ledger import Ledger
from implementations.cluster.mixing import partners
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.cluster.volume import ALGORITHMS, Messages, chunk_sizes, direct_op, traffic
from implementations.data.shards import Order
from implementations.seeds import numpy_stream

MANY = 512


def rows_of(workers, values, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((workers, values)).astype(dtype)


@given(
    workers=st.integers(2, 40), values=st.integers(0, 300), dtype=st.sampled_from([np.float32, np.float64])
)
def test_short_chunks_of_the_ring_add_up_in_its_order(workers, values, dtype):
    """Chunk c: worker c + 1's values, then those of c + 2, ..., to c; one addition after the other, to the bit."""
    rows = rows_of(workers, values, dtype=dtype)
    expected, start = np.empty(values, dtype), 0
    for chunk, size in enumerate(chunk_sizes(values, workers)):
        part = slice(start, start + size)
        total = rows[(chunk + 1) % workers, part].copy()
        for step in range(2, workers + 1):
            total = total + rows[(chunk + step) % workers, part]
        expected[part], start = total, start + size
    algorithms.allreduce_rows_(rows, "ring", 1)
    assert (rows == expected).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_all_reduce_of_many_is_their_mean(algorithm):
    comm, theta = SimulatedCommunicator(MANY, Ledger()), torch.from_numpy(rows_of(MANY, 777))
    expected = theta.double().mean(0)
    began = time.process_time()
    comm.allreduce_(theta, "mean", algorithm)
    assert time.process_time() - began < 2
    torch.testing.assert_close(theta.double(), expected.expand(MANY, 777), rtol=1e-5, atol=1e-6)
    assert (theta == theta[0]).all()
    assert comm.ledger.sent_bytes_total == sum(traffic("allreduce", algorithm, 4 * 777, MANY).sent_bytes)


@pytest.mark.parametrize("mixing", ["butterfly", "ring", "hopping_ring"])
def test_mixing_of_many_is_the_mean_of_two(mixing):
    comm, theta = SimulatedCommunicator(MANY, Ledger()), torch.from_numpy(rows_of(MANY, 777))
    for round in (0, 5):
        sources = partners(mixing, MANY, round)
        expected = (theta + theta[sources]) / 2
        comm.mix_(theta, sources)
        assert torch.equal(theta, expected)


@given(values=st.integers(0, 5000), m=st.integers(1, 60))
def test_bytes_of_the_ring_are_those_of_the_chunks_that_each_sends(values, m):
    chunks = [4 * size for size in chunk_sizes(values, m)]
    form = traffic("allreduce", "ring", 4 * values, m)
    for r in range(m):
        sent = [c for q, c in enumerate(chunks) if q != r] + [
            c for q, c in enumerate(chunks) if q != (r + 1) % m
        ]
        assert (form.sent_bytes[r], form.messages[r]) == (sum(sent), sum(size > 0 for size in sent))
        assert form.received_bytes[r] == form.sent_bytes[r - 1]


@given(data=st.data(), m=st.integers(1, 7))
def test_messages_of_few_pairs_are_those_of_the_matrix(data, m):
    pairs = data.draw(st.dictionaries(st.tuples(*[st.integers(0, m - 1)] * 2), st.integers(1, 99)))
    matrix = [[pairs.get((source, to), 0) for to in range(m)] for source in range(m)]
    few = Messages(tuple((source, to, size) for (source, to), size in sorted(pairs.items())))
    assert traffic("alltoall", "direct", few, m) == traffic("alltoall", "direct", matrix, m)
    assert direct_op(few) == direct_op(matrix)


def test_forms_and_exchanges_of_many_take_no_time_that_grows_with_their_square():
    """At 65,536 workers a square would be four billion."""
    many = 1 << 16
    began = time.process_time()
    form = traffic("allreduce", "library", 4 * 10**6, many)
    assert sum(form.sent_bytes) == 2 * (many - 1) * 4 * 10**6
    comm = SimulatedCommunicator(many, Ledger())
    shapes = {(0, worker): (3,) for worker in range(many)}
    Exchange(comm, shapes, torch.float32).start({(0, 0): torch.zeros(3)})
    assert comm.ledger.sent_bytes_total == 12 * (many - 1)
    assert time.process_time() - began < 5


def test_what_a_worker_has_for_itself_is_handed_over_and_one_alone_books_nothing():
    ledger = Ledger()
    own = torch.ones(4)
    received = Exchange(SimulatedCommunicator(1, ledger), {(0, 0): (4,)}, torch.float32).start(
        {(0, 0): own}
    )()
    assert received[0, 0] is own
    assert ledger.frame().empty


@pytest.mark.parametrize("sharding", ["static", "reshuffled", "independent"])
def test_orders_of_many_workers_are_drawn_from_their_streams(sharding):
    samples, workers, minibatch, seed = 5 * MANY + 3, MANY, 2, 4
    order = Order(samples, workers, minibatch, sharding, seed)
    began = time.process_time()
    shards = [order.shard(worker) for worker in range(workers)]
    epoch = np.stack([order.epoch(2, worker) for worker in range(workers)])
    assert time.process_time() - began < 3
    if sharding == "static":
        dealt = numpy_stream(seed, "shards").permutation(samples)
        assert np.array_equal(np.sort(np.concatenate(shards)), np.sort(dealt[: 5 * workers]))
        assert all(np.array_equal(shards[w], np.sort(dealt[5 * w : 5 * w + 5])) for w in (0, 1, workers - 1))
    if sharding == "reshuffled":
        globally = numpy_stream(seed, "order", 2).permutation(samples)
        assert np.array_equal(epoch.transpose(1, 0, 2).ravel(), globally[: epoch.size])
