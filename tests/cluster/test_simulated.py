import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from implementations.clock import Clock
from implementations.cluster import algorithms
from implementations.cluster.ledger import Ledger
from implementations.cluster.mixing import partners
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.cluster.volume import ALGORITHMS, sent_bytes, traffic
from implementations.errors import UserError

FLOATS = [torch.float32, torch.float64, torch.float16]
INTEGERS = [torch.int32, torch.int64, torch.uint8]


def communicator(size):
    return SimulatedCommunicator(size, Ledger(Clock(), keep_times=True))


def values(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 9, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_allreduce(size, algorithm, op, listed):
    comm = communicator(size)
    theta = values(size, 7, 5)
    expected = getattr(theta.double(), op)(0)
    buffers = list(theta.unbind(0)) if listed else theta
    comm.allreduce_(buffers, op, algorithm)
    torch.testing.assert_close(theta.double(), expected.expand(size, 7, 5), rtol=1e-6, atol=1e-6)
    assert (theta == theta[0]).all()
    assert comm.ledger.sent_bytes_total == sum(sent_bytes("allreduce", algorithm, 140, size))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_every_allowed_dtype(dtype):
    comm = communicator(3)
    theta = values(3, 40, dtype=dtype)
    expected = theta.to(torch.float64).sum(0)
    comm.allreduce_(theta, "sum", "ring")
    tolerance = 1e-2 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(theta[2].double(), expected, rtol=tolerance, atol=tolerance)
    assert comm.ledger.payload_bytes == 40 * dtype.itemsize


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_worker_changes_no_bit_and_sends_nothing(algorithm):
    comm = communicator(1)
    theta = values(1, 1000)
    theta[0, 0], theta[0, 1], theta[0, 2] = float("nan"), float("-inf"), -0.0
    before = theta.numpy().tobytes()
    comm.allreduce_(theta, "mean", algorithm)
    comm.iallreduce_(theta).wait()
    comm.bcast_(theta, 0)
    comm.barrier()
    (chunk,) = comm.reduce_scatter(theta)
    (gathered,) = comm.allgather(theta)
    comm.mix_(theta, [0])
    (moved,) = comm.permute(theta, [0])
    ((received,),) = comm.alltoall([[theta[0]]])
    assert theta.numpy().tobytes() == before
    for result in (chunk, gathered, moved, received):
        assert result.numpy().tobytes() == before
        assert result.data_ptr() != theta.data_ptr()
    ledger = comm.ledger
    assert ledger.frame().empty
    assert (ledger.payload_bytes, ledger.sent_bytes_total, ledger.messages) == (0, 0, 0)


def test_the_same_input_gives_the_same_bits_whatever_the_threads():
    theta = values(32, 40_000)
    results = []
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        copy = theta.clone()
        communicator(32).allreduce_(copy)
        results.append(copy)
    torch.set_num_threads(1)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_parameters_that_need_gradients_are_reduced_in_place():
    theta = torch.nn.Parameter(values(4, 6))
    expected = theta.detach().mean(0)
    communicator(4).allreduce_(theta)
    torch.testing.assert_close(theta.detach()[3], expected)


@given(size=st.integers(1, 9), length=st.integers(0, 40), op=st.sampled_from(["sum", "mean"]))
def test_reduce_scatter(size, length, op):
    comm = communicator(size)
    theta = values(size, length, dtype=torch.float64)
    before = theta.clone()
    pieces = comm.reduce_scatter(theta, op)
    expected = np.array_split(getattr(theta.numpy(), op)(0), size)
    for piece, chunk in zip(pieces, expected, strict=True):
        np.testing.assert_allclose(piece.numpy(), chunk, atol=1e-12)
    assert torch.equal(theta, before)
    if size > 1:
        assert comm.ledger.sent_bytes_total == (size - 1) * length * 8


@given(lengths=st.lists(st.integers(0, 6), min_size=2, max_size=7), given_lengths=st.booleans())
def test_ragged_allgather(lengths, given_lengths):
    comm = communicator(len(lengths))
    buffers = [values(n, 3, seed=r) for r, n in enumerate(lengths)]
    everywhere = comm.allgather(buffers, lengths if given_lengths else None)
    for joined in everywhere:
        assert torch.equal(joined, torch.cat(buffers))
    assert len({joined.data_ptr() for joined in everywhere}) == len(lengths) or sum(lengths) == 0
    assert comm.ledger.sent_bytes_total == (len(lengths) - 1) * sum(lengths) * 12


@given(size=st.integers(1, 5), seed=st.integers(0, 10**6), shapes_given=st.booleans())
def test_ragged_alltoall(size, seed, shapes_given):
    comm = communicator(size)
    draw = np.random.default_rng(seed)
    shapes = [
        [tuple(draw.integers(0, 4, size=draw.integers(0, 4)).tolist()) for _ in range(size)]
        for _ in range(size)
    ]
    blocks = [[values(*shapes[s][d], seed=s * size + d) for d in range(size)] for s in range(size)]
    received = comm.alltoall(blocks, shapes if shapes_given else None)
    for d in range(size):
        for s in range(size):
            assert torch.equal(received[d][s], blocks[s][d])
            assert received[d][s].shape == shapes[s][d]
    expected = sum(blocks[s][d].nbytes for s in range(size) for d in range(size) if s != d)
    assert comm.ledger.sent_bytes_total == expected


@given(data=st.data(), size=st.integers(1, 7), stacked=st.booleans())
def test_permute(data, size, stacked):
    comm = communicator(size)
    to = data.draw(st.permutations(range(size)))
    buffers = [values(2 if stacked else r, 3, seed=r) for r in range(size)]
    results = comm.permute(torch.stack(buffers) if stacked else buffers, to)
    for r, buffer in enumerate(buffers):
        assert torch.equal(results[to[r]], buffer)
        assert results[to[r]].data_ptr() != buffer.data_ptr() or buffer.numel() == 0
    assert comm.ledger.sent_bytes_total == sum(b.nbytes for r, b in enumerate(buffers) if to[r] != r)


@given(data=st.data(), size=st.integers(1, 9), stacked=st.booleans(), length=st.integers(0, 40))
def test_mixing_is_the_mean_of_two(data, size, stacked, length):
    comm = communicator(size)
    sources = data.draw(st.permutations(range(size)))
    everyones = values(size, length)
    expected = (everyones + everyones[sources]) / 2
    theta = everyones.clone()
    comm.mix_(theta if stacked else list(theta.unbind(0)), sources)
    assert theta.numpy().tobytes() == expected.numpy().tobytes()
    assert comm.ledger.sent_bytes_total == sum(4 * length for r, s in enumerate(sources) if r != s)
    assert comm.ledger.messages == sum(length > 0 for r, s in enumerate(sources) if r != s)
    assert comm.ledger.payload_bytes == (4 * length if size > 1 else 0)


def test_mixing_in_blocks_of_all_rows(monkeypatch):
    monkeypatch.setattr(algorithms, "BLOCK_BYTES", 4 * 64)
    comm, theta = communicator(5), values(5, 100)  # blocks of 12 columns
    before = theta.clone()
    comm.mix_(theta, [2, 0, 1, 3, 4])
    assert torch.equal(theta[:3], (before[:3] + before[[2, 0, 1]]) / 2)
    assert torch.equal(theta[3:], before[3:])


@pytest.mark.parametrize("size", [2, 8])
def test_butterfly_mixing_ends_at_the_bits_of_the_butterfly(size):
    one = values(size, 333)
    other = one.clone()
    mixer, reducer = communicator(size), communicator(size)
    for round in range(size.bit_length() - 1):
        mixer.mix_(one, partners("butterfly", size, round))
    reducer.allreduce_(other, "mean", "butterfly")
    # halving is exact, so that the sums are the same
    assert torch.equal(one, other)
    assert mixer.ledger.sent_bytes_total == reducer.ledger.sent_bytes_total
    assert mixer.ledger.messages == reducer.ledger.messages


@pytest.mark.parametrize("root", [0, 2, 4])
def test_bcast(root):
    comm = communicator(5)
    theta = values(5, 4)
    expected = theta[root].clone()
    comm.bcast_(theta, root)
    assert (theta == expected).all()
    assert comm.ledger.sent_bytes_total == 4 * 16


def test_iallreduce_equals_allreduce():
    comm = communicator(6)
    one, other = values(6, 50), values(6, 50)
    comm.allreduce_(one)
    handle = comm.iallreduce_(other)
    handle.wait()
    handle.wait()
    assert torch.equal(one, other)
    frame = comm.ledger.frame()
    assert frame["op"].tolist() == ["allreduce", "iallreduce"]
    assert frame["sent_bytes_total"].nunique() == 1


def test_split_reduces_inside_its_groups():
    comm = communicator(7)
    theta = values(7, 9)
    before = theta.clone()
    colors = [1, 0, 1, -1, 0, 1, 5]
    groups = comm.split(colors)
    assert list(groups) == [0, 1, 5]
    for color, group in groups.items():
        members = [r for r, c in enumerate(colors) if c == color]
        assert group.workers == group.rows == tuple(members)
        assert group.hosted == tuple(range(len(members)))
        group.allreduce_([theta[row] for row in group.rows], "mean", "ring")
        torch.testing.assert_close(theta[members], before[members].mean(0).expand(len(members), 9))
    assert torch.equal(theta[3], before[3]) and torch.equal(theta[6], before[6])
    frame = comm.ledger.frame()
    assert frame["group_size"].tolist() == [2, 3]  # the group of one communicates nothing
    assert frame["group"].tolist() == ["world/0:0", "world/0:1"]
    two, three = (sent_bytes("allreduce", "ring", 36, m) for m in (2, 3))
    assert comm.ledger.sent_bytes_total == sum(two) + sum(three)
    assert comm.ledger.sent_bytes_max_worker == max(*two, *three)
    assert comm.split(colors)[0] is groups[0]
    assert comm.world_totals() == comm.ledger.totals()


def test_split_of_a_split_names_world_workers():
    comm = communicator(8)
    odd = comm.split([r % 2 for r in range(8)])[1]
    last = odd.split([0, 0, 1, 1])[1]
    assert last.workers == (5, 7) and last.rows == (2, 3)
    assert last.label == "world/0:1/0:1"
    last.bcast_(values(2, 3), root=1)
    per_worker = comm.ledger._totals()[1]
    assert per_worker[7] == 12 and per_worker.sum() == 12


def test_control_operations_of_one_process():
    comm = communicator(4)
    numbers = np.array([1.5, -2.0])
    assert (comm.control_sum(numbers) == numbers).all() and comm.control_sum(numbers) is not numbers
    assert (comm.control_max(numbers) == numbers).all()
    assert comm.control_max(np.array([2**62 + 1]))[0] == 2**62 + 1
    assert (comm.process, comm.processes) == (0, 1)
    row = values(2, 3)[1]
    copy = comm.control_bcast(row)
    assert torch.equal(copy, row) and copy.data_ptr() != row.data_ptr()
    assert comm.ledger.frame().empty


def test_barrier_is_booked_without_bytes():
    comm = communicator(5)
    comm.barrier()
    (row,) = comm.ledger.frame().to_dict("records")
    assert (row["op"], row["sent_bytes_total"], row["messages"]) == ("barrier", 0, 3)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["library", "ring", "tree", "star"]), st.integers(0, 30)), max_size=8
    ),
    size=st.integers(2, 11),
)
def test_totals_equal_the_closed_forms(calls, size):
    comm = communicator(size)
    forms = []
    for algorithm, length in calls:
        comm.allreduce_(torch.zeros(size, length), "sum", algorithm)
        forms.append(traffic("allreduce", algorithm, 4 * length, size))
    per_worker = np.array([form.sent_bytes for form in forms] or [[0] * size]).sum(0)
    assert comm.ledger.sent_bytes_total == per_worker.sum()
    assert comm.ledger.sent_bytes_max_worker == per_worker.max()
    assert comm.ledger.payload_bytes == sum(form.payload_bytes for form in forms)
    assert comm.ledger.messages == sum(sum(form.messages) for form in forms)


# What a caller can get wrong


def test_bfloat16_is_refused_by_name():
    comm = communicator(2)
    half = torch.zeros(2, 3, dtype=torch.bfloat16)
    calls = [
        lambda: comm.allreduce_(half),
        lambda: comm.iallreduce_(half),
        lambda: comm.reduce_scatter(half),
        lambda: comm.allgather(half),
        lambda: comm.permute(half, [1, 0]),
        lambda: comm.mix_(half, [1, 0]),
        lambda: comm.bcast_(half, 0),
        lambda: comm.alltoall([[half, half], [half, half]]),
        lambda: communicator(1).allreduce_(half[:1]),
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"bfloat16.*float32"):
            call()
    assert comm.ledger.frame().empty


def test_buffers_that_are_not_contiguous_are_refused():
    comm = communicator(2)
    with pytest.raises(ValueError, match="contiguous"):
        comm.allreduce_(torch.zeros(3, 2).t())
    with pytest.raises(ValueError, match="contiguous"):
        comm.allreduce_([torch.zeros(4, 4)[:, 1], torch.zeros(4)])


@pytest.mark.parametrize(
    ("buffers", "what"),
    [
        ([torch.zeros(3), torch.zeros(4)], r"\(3,\).*\(4,\)"),
        ([torch.zeros(3), torch.zeros(3, dtype=torch.float64)], "float64"),
        (torch.zeros(3, 4), "3 buffers for the 2 workers"),
        ([torch.zeros(4)], "1 buffers for the 2 workers"),
        (torch.zeros(()), "buffers for the 2 workers"),
    ],
)
def test_buffers_that_do_not_fit_the_workers_are_refused(buffers, what):
    with pytest.raises(ValueError, match=what):
        communicator(2).allreduce_(buffers)


def test_other_mistakes_are_named():
    comm = communicator(3)
    theta = torch.zeros(3, 4)
    with pytest.raises(UserError, match="power of two"):
        comm.allreduce_(theta, "mean", "butterfly")
    with pytest.raises(UserError, match="hypercube"):
        comm.allreduce_(theta, "mean", "hypercube")
    with pytest.raises(ValueError, match="median"):
        comm.allreduce_(theta, "median")
    with pytest.raises(ValueError, match="int64"):
        comm.allreduce_(theta.long(), "mean")
    with pytest.raises(ValueError, match="root 3"):
        comm.bcast_(theta, 3)
    with pytest.raises(ValueError, match="no permutation"):
        comm.permute(theta, [0, 0, 1])
    with pytest.raises(ValueError, match=r"mix_: \[1, 1, 0\] is no permutation"):
        comm.mix_(theta, [1, 1, 0])
    with pytest.raises(ValueError, match="the mean of int64"):
        comm.mix_(theta.long(), [1, 2, 0])
    with pytest.raises(ValueError, match="2 colors for 3 workers"):
        comm.split([0, 1])
    with pytest.raises(ValueError, match="3 blocks for each of 3"):
        comm.alltoall([[theta[0]]] * 3)
    with pytest.raises(ValueError, match=r"\(4,\).*\(5,\) was announced"):
        comm.permute(theta, [1, 2, 0], shapes=[(4,), (5,), (4,)])
    with pytest.raises(ValueError, match="dtype"):
        comm.permute([theta[0], theta[1].double(), theta[2]], [1, 2, 0])
    with pytest.raises(ValueError, match="all dimensions but the first"):
        comm.allgather([torch.zeros(1, 2), torch.zeros(1, 3), torch.zeros(1, 2)])
    assert comm.ledger.frame().empty


def test_more_processes_than_workers_is_refused():
    class Three:
        size, rank = 3, 0

    with pytest.raises(UserError, match=r"2 simulated workers.*3 processes"):
        SimulatedCommunicator(2, Ledger(), Three())


def test_a_missing_mpi_names_the_way_out(monkeypatch):
    import builtins
    import sys

    real = builtins.__import__

    def without_mpi(name, *args, **kwargs):
        if name == "mpi4py":
            raise RuntimeError("cannot load MPI library")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "implementations.cluster.mpi", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_mpi)
    with pytest.raises(UserError, match=r"cannot load MPI library.*make doctor"):
        import implementations.cluster.mpi  # noqa: F401
    SimulatedCommunicator(2, Ledger()).allreduce_(torch.zeros(2, 3))
