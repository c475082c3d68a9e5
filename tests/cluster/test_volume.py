from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.cluster.volume import (
    ALGORITHMS,
    bounds,
    chunk_sizes,
    direct_op,
    paper_volume_per_epoch,
    sent_bytes,
    traffic,
    tree_children,
)
from implementations.errors import UserError

ACOUSTIC_NET = 39_928_422  # 440 - 6 x 2048 - 8806, weights and biases: 159.7 MB

sizes = st.integers(0, 10**9)
groups = st.integers(1, 70)


@given(values=sizes, m=groups, itemsize=st.sampled_from([1, 2, 4, 8]))
def test_ring_and_library_send_the_same_whole_total(values, m, itemsize):
    payload = values * itemsize
    for algorithm in ("ring", "library"):
        sent = sent_bytes("allreduce", algorithm, payload, m, itemsize=itemsize)
        assert sum(sent) == 2 * (m - 1) * payload
        assert max(sent) - min(sent) <= 2 * itemsize
        assert all(isinstance(n, int) and n % itemsize == 0 for n in sent)


@given(values=st.integers(0, 10**7), m=groups)
def test_ring_sends_two_m_minus_one_over_m_where_m_divides(values, m):
    payload = 4 * values * m
    assert set(sent_bytes("allreduce", "ring", payload, m)) == {2 * (m - 1) * payload // m}


@given(values=sizes, power=st.integers(0, 6))
def test_butterfly_sends_log2_m_payloads(values, power):
    m = 2**power
    form = traffic("allreduce", "butterfly", 4 * values, m)
    assert set(form.sent_bytes) == set(form.received_bytes) == {int(log2(m)) * 4 * values}


@pytest.mark.parametrize("m", [3, 5, 6, 7, 12, 31])
def test_butterfly_needs_a_power_of_two(m):
    with pytest.raises(UserError, match=f"butterfly.*{m} workers.*power of two"):
        sent_bytes("allreduce", "butterfly", 400, m)


@given(values=sizes, m=groups)
def test_tree_and_star_send_the_payload_up_and_down_for_each_other_worker(values, m):
    payload = 4 * values
    star, tree = (traffic("allreduce", algorithm, payload, m) for algorithm in ("star", "tree"))
    assert sum(star.sent_bytes) == sum(tree.sent_bytes) == 2 * (m - 1) * payload
    assert star.sent_bytes[0] + star.received_bytes[0] == 2 * (m - 1) * payload
    assert set(star.sent_bytes[1:]) <= {payload}
    assert max(tree.sent_bytes) <= (m - 1).bit_length() * payload


@given(m=st.integers(1, 200))
def test_every_worker_but_the_root_has_one_parent(m):
    children = [child for worker in range(m) for child in tree_children(worker, m)]
    assert sorted(children) == list(range(1, m))


@given(data=st.data(), m=st.integers(1, 12))
def test_what_is_sent_is_received(data, m):
    some = st.integers(0, 1000)
    per_worker = data.draw(st.lists(some, min_size=m, max_size=m))
    matrix = data.draw(st.lists(st.lists(some, min_size=m, max_size=m), min_size=m, max_size=m))
    destination = data.draw(st.permutations(range(m)))
    root = data.draw(st.integers(0, m - 1))
    payload = 4 * data.draw(some)
    forms = [
        *(traffic("allreduce", a, payload, m) for a in ALGORITHMS if a != "butterfly" or m & (m - 1) == 0),
        traffic("reduce_scatter", "library", payload, m),
        traffic("allgather", "library", per_worker, m),
        traffic("alltoall", "direct", matrix, m),
        traffic("bcast", "library", payload, m, root=root),
        traffic("permute", "direct", per_worker, m, destination=destination),
        traffic("mix", "direct", payload, m, destination=destination),
        traffic("barrier", "library", 0, m),
    ]
    for form in forms:
        assert len(form.sent_bytes) == len(form.received_bytes) == len(form.messages) == m
        assert sum(form.sent_bytes) == sum(form.received_bytes)
        assert m > 1 or (sum(form.sent_bytes), sum(form.messages)) == (0, 0)


@given(sizes=st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_allgather_moves_every_block_to_every_other_worker(sizes):
    assert sum(sent_bytes("allgather", "library", sizes, len(sizes))) == (len(sizes) - 1) * sum(sizes)


@given(values=sizes, m=groups)
def test_an_allreduce_is_a_reduce_scatter_and_an_allgather(values, m):
    chunks = [4 * size for size in chunk_sizes(values, m)]
    scatter = sent_bytes("reduce_scatter", "library", 4 * values, m)
    gather = sent_bytes("allgather", "library", chunks, m)
    assert np.add(scatter, gather).tolist() == sent_bytes("allreduce", "ring", 4 * values, m)


@given(total=st.integers(0, 500), parts=st.integers(1, 40))
def test_chunks_are_those_of_array_split(total, parts):
    expected = [len(chunk) for chunk in np.array_split(np.arange(total), parts)]
    assert chunk_sizes(total, parts) == expected
    assert [high - low for low, high in bounds(expected)] == expected


def test_alltoall_keeps_its_own_block():
    form = traffic("alltoall", "direct", [[1, 2, 3], [4, 5, 0], [7, 8, 9]], 3)
    assert form.sent_bytes == (5, 4, 15)
    assert form.received_bytes == (11, 10, 3)
    assert form.messages == (2, 1, 2)
    assert form.payload_bytes == 24


def test_messages_of_one_source_are_a_scatter_and_to_one_target_a_gather():
    assert direct_op([[5, 1, 1], [0, 0, 0], [0, 0, 7]]) == "scatter"
    assert direct_op([[5, 0, 0], [2, 0, 0], [2, 0, 0]]) == "gather"
    assert direct_op([[5, 1, 0], [2, 0, 0], [0, 0, 0]]) == "alltoall"
    assert direct_op([[5]]) == "alltoall"  # nothing is sent
    assert traffic("scatter", "direct", [[5, 1, 2], [0, 0, 0], [0, 0, 0]], 3).sent_bytes == (3, 0, 0)
    assert traffic("gather", "direct", [[5, 0, 0], [1, 0, 0], [2, 0, 0]], 3).received_bytes == (3, 0, 0)


def test_permute_to_oneself_sends_nothing():
    form = traffic("permute", "direct", [10, 20, 30], 3, destination=[1, 0, 2])
    assert form.sent_bytes == (10, 20, 0)
    assert form.received_bytes == (20, 10, 0)


@given(values=sizes, m=groups)
def test_a_round_of_mixing_sends_every_model_once(values, m):
    form = traffic("mix", "direct", 4 * values, m)
    assert form.sent_bytes == form.received_bytes == ((4 * values if m > 1 else 0),) * m
    assert form.payload_bytes == 4 * values
    still = traffic("mix", "direct", 4 * values, m, destination=range(m))
    assert sum(still.sent_bytes) == sum(still.messages) == 0


@given(values=st.integers(1, 10**6), power=st.integers(0, 6))
def test_a_cycle_of_butterfly_mixing_sends_what_the_butterfly_sends(values, power):
    m = 2**power
    once, whole = traffic("mix", "direct", 4 * values, m), traffic("allreduce", "butterfly", 4 * values, m)
    assert tuple(power * n for n in once.sent_bytes) == whole.sent_bytes
    assert tuple(power * n for n in once.messages) == whole.messages


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match=r"hypercube.*library, ring, butterfly, tree, star"):
        sent_bytes("allreduce", "hypercube", 4, 2)
    with pytest.raises(UserError, match="gather_everything"):
        sent_bytes("gather_everything", "library", 4, 2)
    with pytest.raises(ValueError, match="whole number"):
        sent_bytes("allreduce", "ring", 7, 2)


@pytest.mark.parametrize(("m", "megabytes"), [(2, 159.7), (4, 239.6), (8, 279.5), (16, 299.5), (32, 309.4)])
def test_paper_bytes_of_a_reduce_per_rank(m, megabytes):
    volume = paper_volume_per_epoch(100 * m * 10_240, m, 1024, 10, ACOUSTIC_NET)
    assert round(volume.sent_bytes_per_reduce / 1e6, 1) == megabytes
    ours = sent_bytes("allreduce", "ring", 4 * ACOUSTIC_NET, m)
    assert sum(ours) == volume.total_bytes_per_reduce
    assert max(abs(n - volume.sent_bytes_per_reduce) for n in ours) <= 8


def test_paper_volume_of_an_epoch():
    volume = paper_volume_per_epoch(100_000_000, 16, 1024, 10, ACOUSTIC_NET)
    assert round(volume.total_bytes_per_reduce / 1e9, 2) == 4.79
    assert volume.root_bytes_per_reduce == 2 * 15 * 4 * ACOUSTIC_NET
    assert volume.butterfly_bytes_per_reduce == 4 * 4 * ACOUSTIC_NET
    assert volume.reduces_per_epoch == 610  # 100e6 / 163,840 = 610.35
    assert volume.total_bytes_per_epoch == 610 * volume.total_bytes_per_reduce
    assert paper_volume_per_epoch(10**8, 3, 1024, 10, 1).butterfly_bytes_per_reduce is None


@given(period=st.integers(1, 50), m=st.integers(2, 32))
def test_averaging_every_k_minibatches_sends_k_times_less(period, m):
    often, seldom = (paper_volume_per_epoch(10**7, m, 64, k, 1000).bytes_per_frame for k in (1, period))
    assert often / seldom == pytest.approx(period)


def test_one_worker_sends_nothing():
    volume = paper_volume_per_epoch(10**6, 1, 64, 1, 1000)
    assert (volume.sent_bytes_per_epoch, volume.total_bytes_per_epoch, volume.bytes_per_frame) == (0, 0, 0)
