"""The schedules of real ranks, carried out here by threads, against the direct sums of simulated workers."""

import queue
import threading
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.cluster import algorithms
from implementations.cluster.algorithms import NOBODY, allreduce_rows_, divide_, run, schedule, sum_rows
from implementations.cluster.volume import traffic

NAMED = ("ring", "butterfly", "tree", "star")


def carried_out(algorithm, rows, divisor, block=1 << 20):
    """Every worker in a thread of its own; the results, bytes received from others, and messages sent."""
    m, results = len(rows), [row.copy() for row in rows]
    mail = defaultdict(queue.Queue)
    for pair in ((s, d) for s in range(m) for d in range(m)):
        mail[pair]
    handed, messages, received, errors = [0] * m, [0] * m, [0] * m, []

    def worker(r):
        def swap(to, outgoing, source, incoming):
            if to != NOBODY:
                assert to != r and outgoing.size
                messages[r] += 1
                mail[r, to].put(outgoing.copy())
            if source != NOBODY:
                incoming[:] = mail[source, r].get(timeout=10)
                received[r] += incoming.nbytes

        try:
            plan = schedule(algorithm, r, m, rows[0].size)
            handed[r] = run(plan, results[r], divisor, swap, np.empty(block, rows[0].dtype))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=worker, args=(r,)) for r in range(m)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert all(box.empty() for box in mail.values())
    return results, handed, messages, received


def rows_of(m, n, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal((m, n)).astype(dtype)


@pytest.mark.parametrize("n", [0, 1, 5, 16, 33])
@pytest.mark.parametrize(
    ("algorithm", "m"),
    [(a, m) for a in NAMED for m in (2, 3, 4, 5, 8, 9) if a != "butterfly" or m in (2, 4, 8)],
)
def test_messages_bytes_and_bits(algorithm, m, n):
    rows = rows_of(m, n)
    results, handed, messages, received = carried_out(algorithm, rows, m)
    form = traffic("allreduce", algorithm, rows[0].nbytes, m)
    assert tuple(handed) == form.sent_bytes
    assert tuple(received) == form.received_bytes
    assert tuple(messages) == form.messages
    direct = rows.copy()
    allreduce_rows_(direct, algorithm, m)
    for result, row in zip(results, direct):
        assert result.tobytes() == row.tobytes()
        np.testing.assert_allclose(result, rows.mean(0, dtype=np.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", NAMED)
def test_blocks_change_no_bit(algorithm):
    rows = rows_of(4, 103)
    whole, *_ = carried_out(algorithm, rows, 1)
    pieces, handed, sends, _ = carried_out(algorithm, rows, 1, block=7)
    assert np.array(whole).tobytes() == np.array(pieces).tobytes()
    form = traffic("allreduce", algorithm, rows[0].nbytes, 4)
    assert tuple(handed) == form.sent_bytes
    assert sum(sends) > sum(form.messages)  # the form's are the algorithm's, not the transport's


@pytest.mark.parametrize(("algorithm", "messages"), [("ring", 6), ("butterfly", 2), ("star", 3)])
def test_messages_do_not_depend_on_the_size(algorithm, messages):
    for payload in (64, 40_000_000):  # below and far above a block
        assert max(traffic("allreduce", algorithm, payload, 4).messages) == messages


@given(
    algorithm=st.sampled_from(("library", *NAMED)),
    m=st.integers(1, 17),
    n=st.integers(0, 60),
    width=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_all_rows_become_the_sum_in_any_blocks(algorithm, m, n, width, seed):
    rows = np.random.default_rng(seed).integers(-1000, 1000, (m, n)).astype(np.float32)  # exact in any order
    shortest, algorithms._SHORTEST_ROW = algorithms._SHORTEST_ROW, width
    cache, algorithms._CACHE_BYTES = algorithms._CACHE_BYTES, 0
    try:
        stacked, listed = rows.copy(), [row.copy() for row in rows]
        allreduce_rows_(stacked, algorithm, 1)
        allreduce_rows_(listed, algorithm, 1)
        out = np.full(n, np.nan, np.float32)
        sum_rows(rows, out)
    finally:
        algorithms._SHORTEST_ROW, algorithms._CACHE_BYTES = shortest, cache
    expected = rows.sum(0)
    assert (stacked == expected).all()
    assert (np.array(listed) == expected).all()
    assert (out == expected).all()


@given(divisor=st.integers(1, 100), seed=st.integers(0, 100))
def test_division_is_exact_to_the_last_bit(divisor, seed):
    values = np.random.default_rng(seed).standard_normal(50).astype(np.float32)
    expected = values / np.float32(divisor)
    divide_(values, divisor)
    assert values.tobytes() == expected.tobytes()


@pytest.mark.parametrize("algorithm", ["library", *NAMED])
def test_the_mean_of_equal_values_is_that_value(algorithm):
    rows = np.tile(
        rows_of(1, 1000), (16, 1)
    )  # sums of 2^k equal values are exact, except one that grows by one
    expected = rows[0].copy()
    allreduce_rows_(rows, algorithm, 16)
    np.testing.assert_array_max_ulp(rows, np.tile(expected, (16, 1)), maxulp=0 if algorithm == "tree" else 8)
