"""Communicators on real ranks against NumPy and against simulated workers; run under mpiexec -n 1, 2, 3, 4.

What is tested must not depend on the rank: each rank makes all workers' inputs from the seed and takes its own.
"""

import numpy as np
import pytest
import torch
from mpi4py import MPI

from implementations.clock import Clock
from implementations.cluster import algorithms, mpi
from implementations.cluster.ledger import Ledger
from implementations.cluster.mixing import PAIRWISE, partners
from implementations.cluster.mpi import MpiCommunicator, MpiLinks
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.cluster.volume import ALGORITHMS, BY_SIZE, chunk_sizes, sent_bytes
from implementations.errors import UserError

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
# several workers a process, one more on the first ranks
MANY = 3 * SIZE + 1
KINDS = ("real", "simulated")
FITTING = [name for name in ALGORITHMS if name != "butterfly" or SIZE & (SIZE - 1) == 0]
NAMED = [name for name in FITTING if name not in BY_SIZE]

pytestmark = pytest.mark.mpi


def communicator(kind="real"):
    ledger = Ledger(Clock(), keep_times=True)
    return MpiCommunicator(ledger, WORLD) if kind == "real" else SimulatedCommunicator(MANY, ledger, WORLD)


def values(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 9, shape, generator=generator).to(dtype)


def mine(comm, everyones):
    """The hosted workers' rows of what all workers have, stacked."""
    return everyones[list(comm.hosted)].clone()


def same_everywhere(numbers):
    """Whether all ranks have these integers."""
    numbers = np.array(numbers, dtype=np.int64)
    low, high = np.empty_like(numbers), np.empty_like(numbers)
    WORLD.Allreduce(numbers, low, MPI.MIN)
    WORLD.Allreduce(numbers, high, MPI.MAX)
    return (low == high).all()


def totals(ledger):
    return [ledger.payload_bytes, ledger.sent_bytes_total, ledger.sent_bytes_max_worker, ledger.messages]


def test_hosted_workers_cover_the_group():
    for kind, size in zip(KINDS, (SIZE, MANY)):
        comm = communicator(kind)
        assert comm.size == size
        assert comm.control_sum(np.array([len(comm.hosted), sum(comm.hosted)])).tolist() == [
            size,
            size * (size - 1) / 2,
        ]
        assert list(comm.hosted) == list(range(comm.hosted[0], comm.hosted[-1] + 1))
        assert (comm.process, comm.processes) == (RANK, SIZE)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("length", [0, 1, 2, 103, 5000])
@pytest.mark.parametrize("algorithm", FITTING)
@pytest.mark.parametrize("kind", KINDS)
def test_allreduce(kind, algorithm, length, op, listed):
    comm = communicator(kind)
    if algorithm == "butterfly" and comm.size & (comm.size - 1):
        pytest.skip(f"the butterfly needs a power of two, not {comm.size} workers")
    everyones = values(comm.size, length)
    theta = mine(comm, everyones)
    expected = getattr(everyones.double(), op)(0)
    comm.allreduce_(list(theta.unbind(0)) if listed else theta, op, algorithm)
    torch.testing.assert_close(theta.double(), expected.expand_as(theta), rtol=1e-6, atol=4e-6)
    if comm.size > 1:
        assert comm.ledger.sent_bytes_total == sum(sent_bytes("allreduce", algorithm, 4 * length, comm.size))
        assert comm.ledger.payload_bytes == 4 * length
    assert same_everywhere(totals(comm.ledger))


@pytest.mark.parametrize("algorithm", NAMED)
def test_bytes_handed_to_mpi_are_the_closed_form(algorithm):
    comm = communicator()
    for length in (0, 1, 3, 1000, algorithms.BLOCK_BYTES // 2 + 5):
        before = comm.ledger.handed_bytes
        comm.allreduce_(torch.ones(1, length), "mean", algorithm)
        handed = comm.ledger.handed_bytes - before
        if SIZE > 1:
            assert handed == sent_bytes("allreduce", algorithm, 4 * length, SIZE)[RANK]
    assert comm.control_sum(np.array([comm.ledger.handed_bytes]))[0] == comm.ledger.sent_bytes_total
    assert comm.control_max(np.array([comm.ledger.handed_bytes]))[0] == comm.ledger.sent_bytes_max_worker


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("algorithm", NAMED)
def test_named_algorithms_give_the_bits_of_simulated_workers(algorithm, op):
    everyones = values(SIZE, 777)
    theta = everyones[RANK : RANK + 1].clone()
    real = communicator()
    real.allreduce_(theta, op, algorithm)
    alone = SimulatedCommunicator(SIZE, Ledger())
    alone.allreduce_(everyones, op, algorithm)
    assert theta[0].numpy().tobytes() == everyones[RANK].numpy().tobytes()
    assert totals(real.ledger) == totals(alone.ledger)
    different = ["start_s", "end_s"]
    assert real.ledger.frame().drop(columns=different).equals(alone.ledger.frame().drop(columns=different))


@pytest.mark.parametrize("algorithm", FITTING)
def test_all_ranks_end_with_the_same_bits(algorithm):
    theta = values(1, 4099, seed=RANK)
    communicator().allreduce_(theta, "mean", algorithm)
    assert same_everywhere(theta.view(torch.int32)[0].numpy())


@pytest.mark.parametrize("algorithm", NAMED)
def test_large_buffers_go_in_blocks(algorithm):
    count = algorithms.BLOCK_BYTES // 4 * 2 + 7
    theta = values(1, count, seed=RANK)
    library = theta.clone()
    comm = communicator()
    comm.allreduce_(library)
    comm.allreduce_(theta, "mean", algorithm)
    torch.testing.assert_close(theta, library, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8]
)
@pytest.mark.parametrize("algorithm", FITTING)
def test_every_allowed_dtype(algorithm, dtype):
    everyones = values(SIZE, 40, dtype=dtype)
    theta = everyones[RANK : RANK + 1].clone()
    communicator().allreduce_(theta, "sum", algorithm)
    tolerance = 1e-2 if dtype == torch.float16 else 1e-6
    torch.testing.assert_close(theta[0].double(), everyones.double().sum(0), rtol=tolerance, atol=tolerance)


def test_one_worker_changes_no_bit():
    if SIZE > 1:
        pytest.skip("about a single rank")
    theta = values(1, 1000)
    theta[0, 0], theta[0, 1] = float("nan"), -0.0
    before = theta.numpy().tobytes()
    comm = communicator()
    for algorithm in ALGORITHMS:
        comm.allreduce_(theta, "mean", algorithm)
    comm.iallreduce_(theta).wait()
    comm.bcast_(theta, 0)
    assert theta.numpy().tobytes() == before
    assert totals(comm.ledger) == [0, 0, 0, 0] and comm.ledger.frame().empty


def test_mpi_gets_the_tensors_own_memory(monkeypatch):
    """Zero copy: each array given to MPI lies inside the tensor (received blocks that are added aside)."""
    addresses = []

    class Spy:
        def __init__(self, comm):
            self.comm, self.rank, self.size = comm, comm.rank, comm.size

        def __getattr__(self, name):
            real = getattr(self.comm, name)

            def call(*args, **kwargs):
                arrays = [a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)]
                addresses.extend((name, a.ctypes.data, a.nbytes) for a in arrays if a.nbytes)
                return real(*args, **kwargs)

            return call

    monkeypatch.setattr(mpi, "MpiLinks", lambda comm: MpiLinks(Spy(comm)))
    comm = communicator()
    theta = values(1, algorithms.BLOCK_BYTES // 2)
    low, high = theta.data_ptr(), theta.data_ptr() + theta.nbytes

    def inside():
        found = [low <= address and address + nbytes <= high for _, address, nbytes in addresses]
        addresses.clear()
        return found

    comm.allreduce_(theta)
    first = addresses[0][1] if addresses else low
    assert first == low and all(inside())
    comm.iallreduce_(theta).wait()
    assert all(inside())
    comm.bcast_(theta, 0)
    assert all(inside())
    comm.allreduce_(theta, "mean", "star")
    scratch = comm._scratch_like(theta.numpy()[0])
    assert all(low <= address < high or address == scratch.ctypes.data for _, address, _ in addresses)
    addresses.clear()
    comm.permute(theta, [(r + 1) % SIZE for r in range(SIZE)])
    assert SIZE == 1 or low in [address for name, address, _ in addresses if name == "Isend"]


@pytest.mark.parametrize("kind", KINDS)
def test_iallreduce(kind):
    comm = communicator(kind)
    everyones = values(comm.size, 3000)
    first, second = mine(comm, everyones), mine(comm, 2 * everyones)
    handles = [comm.iallreduce_(first), comm.iallreduce_(second, "sum")]
    busy = torch.randn(64, 64) @ torch.randn(64, 64)
    for handle in reversed(handles):
        handle.wait()
        handle.wait()
    assert busy.isfinite().all()
    torch.testing.assert_close(first, everyones.mean(0).expand_as(first), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(second, 2 * everyones.sum(0).expand_as(second), rtol=1e-5, atol=1e-5)
    frame = comm.ledger.frame()
    assert frame["op"].tolist() == (["iallreduce"] * 2 if comm.size > 1 else [])
    assert (frame["end_s"] >= frame["start_s"]).all()


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("length", [0, 2, 50, 51])
@pytest.mark.parametrize("kind", KINDS)
def test_reduce_scatter(kind, length, op):
    comm = communicator(kind)
    everyones = values(comm.size, length)
    theta = mine(comm, everyones)
    pieces = comm.reduce_scatter(theta, op)
    expected = np.array_split(getattr(everyones.numpy(), op)(0), comm.size)
    for worker, piece in zip(comm.hosted, pieces, strict=True):
        np.testing.assert_allclose(piece.numpy(), expected[worker], rtol=1e-5, atol=1e-6)
    assert torch.equal(theta, mine(comm, everyones))
    assert comm.ledger.sent_bytes_total == (comm.size - 1) * 4 * length


@pytest.mark.parametrize("lengths_given", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_allgather(kind, lengths_given):
    comm = communicator(kind)
    lengths = [(r * 5) % 4 for r in range(comm.size)]
    everyones = [values(n, 3, seed=r) for r, n in enumerate(lengths)]
    results = comm.allgather([everyones[r] for r in comm.hosted], lengths if lengths_given else None)
    assert len(results) == len(comm.hosted)
    for result in results:
        assert torch.equal(result, torch.cat(everyones))
    assert comm.ledger.sent_bytes_total == (comm.size - 1) * sum(lengths) * 12
    assert same_everywhere(totals(comm.ledger))


def test_a_chunked_sum_gathers_to_the_allreduce():
    comm = communicator()
    theta = values(1, 37, seed=RANK)
    gathered = comm.allgather(comm.reduce_scatter(theta, "mean"), chunk_sizes(37, SIZE))
    comm.allreduce_(theta)
    torch.testing.assert_close(gathered[0], theta[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shapes_given", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_alltoall(kind, shapes_given):
    comm = communicator(kind)
    everyone = range(comm.size)

    def block(s, d):
        shape = [(), (0, 2), (s + 1,), (d, 3), (2, s, 2)][(s + 2 * d) % 5]
        return values(*shape, seed=100 * s + d)

    shapes = [[tuple(block(s, d).shape) for d in everyone] for s in everyone]
    received = comm.alltoall(
        [[block(s, d) for d in everyone] for s in comm.hosted], shapes if shapes_given else None
    )
    for d, row in zip(comm.hosted, received, strict=True):
        for s, result in zip(everyone, row, strict=True):
            assert torch.equal(result, block(s, d)) and result.shape == shapes[s][d]
    expected = sum(block(s, d).nbytes for s in everyone for d in everyone if s != d)
    assert comm.ledger.sent_bytes_total == expected
    assert same_everywhere(totals(comm.ledger))
    if kind == "real":
        assert comm.control_sum(np.array([comm.ledger.handed_bytes]))[0] == expected


@pytest.mark.parametrize("count", [1, 40_000])
@pytest.mark.parametrize("form", ["stacked", "ragged", "ragged, shapes given"])
@pytest.mark.parametrize("kind", KINDS)
def test_permutations(kind, form, count):
    """Shifts, reversals and random ones: hosted to hosted, hosted to remote, large messages that do not buffer."""
    comm = communicator(kind)
    everyone = range(comm.size)
    lengths = [count if form == "stacked" else count + r for r in everyone]
    everyones = [values(n, seed=r) for r, n in enumerate(lengths)]
    buffers = [everyones[r] for r in comm.hosted]
    draws = np.random.default_rng(count)
    permutations = [
        *[[(r + shift) % comm.size for r in everyone] for shift in (0, 1, -1, 2)],
        list(reversed(everyone)),
        draws.permutation(comm.size).tolist(),
    ]
    for to in permutations:
        results = comm.permute(
            torch.stack(buffers) if form == "stacked" else buffers,
            to,
            [(n,) for n in lengths] if form == "ragged, shapes given" else None,
        )
        for worker, result in zip(comm.hosted, results, strict=True):
            assert torch.equal(result, everyones[to.index(worker)])
    moved = sum(4 * lengths[r] for to in permutations for r in everyone if to[r] != r)
    assert comm.ledger.sent_bytes_total == moved
    assert same_everywhere(totals(comm.ledger))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("length", [0, 1, 501, 150_003])
@pytest.mark.parametrize("kind", KINDS)
def test_mixing(monkeypatch, kind, length, listed):
    """Of real ranks and of workers shared out over them: the bits of as many workers in one process."""
    monkeypatch.setattr(algorithms, "BLOCK_BYTES", 1 << 19)  # the longest goes in blocks that do not buffer
    comm, alone = communicator(kind), SimulatedCommunicator(SIZE if kind == "real" else MANY, Ledger())
    everyone = range(comm.size)
    theta, reference = mine(comm, values(comm.size, length)), values(comm.size, length)
    draws = np.random.default_rng(length)
    fitting = [m for m in PAIRWISE if m != "butterfly" or comm.size & (comm.size - 1) == 0]
    rounds = [
        *[partners(mixing, comm.size, round) for mixing in fitting for round in range(2)],
        *[draws.permutation(comm.size).tolist() for _ in range(2)],
        [0, *[1 + (r % (comm.size - 1)) for r in everyone[1:]]],  # worker 0 keeps its own
        list(everyone),
    ]
    for sources in rounds:
        comm.mix_(list(theta.unbind(0)) if listed else theta, sources)
        expected = (reference + reference[sources]) / 2
        alone.mix_(reference, sources)
        assert torch.equal(reference, expected)
    assert theta.numpy().tobytes() == reference[list(comm.hosted)].numpy().tobytes()
    moved = sum(4 * length for sources in rounds for r in everyone if sources[r] != r)
    assert comm.ledger.sent_bytes_total == moved
    assert totals(comm.ledger) == totals(alone.ledger)
    if kind == "real":
        assert comm.control_sum(np.array([comm.ledger.handed_bytes]))[0] == moved


def test_mixing_inside_a_split():
    comm = communicator("simulated")
    everyones = values(comm.size, 7)
    for group in comm.split([r % 2 for r in range(comm.size)]).values():
        sources = partners("ring", group.size, 0)
        rows = [everyones[comm.hosted[row]].clone() for row in group.rows]
        group.mix_(rows, sources)
        for r, row in zip(group.hosted, rows, strict=True):
            pair = everyones[[group.workers[r], group.workers[sources[r]]]]
            assert torch.equal(row, pair.sum(0) / 2)
    comm.free()


@pytest.mark.parametrize("kind", KINDS)
def test_bcast_from_every_root(kind):
    comm = communicator(kind)
    everyones = values(comm.size, 11)
    for root in range(comm.size):
        theta = mine(comm, everyones)
        comm.bcast_(theta, root)
        assert torch.equal(theta, everyones[root].expand_as(theta))
    assert comm.ledger.sent_bytes_total == comm.size * (comm.size - 1) * 44


@pytest.mark.parametrize("kind", KINDS)
def test_splits(kind):
    """Groups inside one process, across processes, of one worker, and workers in none."""
    comm = communicator(kind)
    everyone = range(comm.size)
    everyones = values(comm.size, 23)
    coloured = [
        [r % 2 for r in everyone],
        [r // 3 for r in everyone],
        [-1 if r == 0 else r % 3 for r in everyone],
        [0 for _ in everyone],
        list(everyone),
    ]
    sent = np.zeros(comm.size, dtype=np.int64)
    for colors in coloured:
        groups = comm.split(colors)
        assert set(groups) == {colors[r] for r in comm.hosted if colors[r] >= 0}
        theta = mine(comm, everyones)
        for color, group in groups.items():
            members = [r for r in everyone if colors[r] == color]
            assert group.workers == tuple(members) and group.ledger is comm.ledger
            assert [members[r] for r in group.hosted] == [comm.hosted[row] for row in group.rows]
            group.allreduce_([theta[row] for row in group.rows], "mean", "ring")
            for row in group.rows:
                torch.testing.assert_close(theta[row], everyones[members].mean(0), rtol=1e-5, atol=1e-6)
            gathered = group.allgather([theta[row] for row in group.rows])
            assert all(len(result) == 23 * len(members) for result in gathered)
            everyones_sizes = [92] * len(members)
            assert group.control_sum(np.ones(1))[0] == group.processes
        for color in set(colors) - {-1}:
            members = [r for r in everyone if colors[r] == color]
            if len(members) > 1:
                everyones_sizes = [92] * len(members)
                sent[members] += sent_bytes("allreduce", "ring", 92, len(members))
                sent[members] += sent_bytes("allgather", "library", everyones_sizes, len(members))
        untouched = [row for row, r in enumerate(comm.hosted) if colors[r] < 0]
        assert torch.equal(theta[untouched], mine(comm, everyones)[untouched])
    total = comm.world_totals()
    assert total["sent_bytes_total"] == sent.sum()
    assert total["sent_bytes_max_worker"] == sent.max()
    assert same_everywhere(list(total.values()))
    comm.free()
    WORLD.Barrier()


def test_permute_inside_a_split():
    comm = communicator("simulated")
    everyones = values(comm.size, 5)
    for group in comm.split([r % 2 for r in range(comm.size)]).values():
        to = [(r + 1) % group.size for r in range(group.size)]
        results = group.permute([everyones[comm.hosted[row]] for row in group.rows], to)
        for r, result in zip(group.hosted, results, strict=True):
            assert torch.equal(result, everyones[group.workers[r - 1]])
    comm.free()


def test_simulated_workers_in_processes_equal_those_in_one():
    everyones = values(MANY, 501)
    several = communicator("simulated")
    alone = SimulatedCommunicator(MANY, Ledger())
    theta, reference = mine(several, everyones), everyones.clone()
    for comm, buffers in ((several, theta), (alone, reference)):
        comm.allreduce_(buffers)
        comm.allreduce_(buffers, "sum", "tree")
        comm.bcast_(buffers, 1)
        comm.barrier()
    torch.testing.assert_close(theta, reference[list(several.hosted)], rtol=1e-6, atol=1e-6)
    assert totals(several.ledger) == totals(alone.ledger)
    again = mine(several, everyones)
    once = mine(several, everyones)
    several.allreduce_(again)
    several.allreduce_(once)
    assert torch.equal(again, once)


def test_control_operations():
    for kind in KINDS:
        comm = communicator(kind)
        assert comm.control_sum(np.array([1.0, RANK])).tolist() == [SIZE, SIZE * (SIZE - 1) / 2]
        assert comm.control_max(np.array([RANK, -RANK])).tolist() == [SIZE - 1, 0]
        large = comm.control_max(np.array([2**62 + RANK]))
        assert large.dtype == np.int64 and large[0] == 2**62 + SIZE - 1
        everyones = values(comm.size, 4099)
        theta = mine(comm, everyones)
        assert torch.equal(comm.control_bcast(theta[0]), everyones[0])
        assert torch.equal(theta, mine(comm, everyones))
        long = np.arange(algorithms.BLOCK_BYTES // 8 + 5) + RANK
        assert (comm.control_sum(long) == SIZE * (long - RANK) + SIZE * (SIZE - 1) / 2).all()
        assert comm.ledger.frame().empty
        assert comm.ledger.clock.seconds["comm"] == 0


@pytest.mark.parametrize("hosting", ["one_each", "shared"])
def test_control_collect_brings_every_buffer_to_the_process_of_worker_0(hosting):
    shared = SimulatedCommunicator(2 * SIZE + 1, Ledger(Clock()), WORLD)
    comm = communicator() if hosting == "one_each" else shared
    sizes = [3 * (worker % 3) for worker in range(comm.size)]  # some have nothing
    everyones = [torch.arange(size, dtype=torch.float32) + 100 * worker for worker, size in enumerate(sizes)]
    collected = comm.control_collect([everyones[worker] for worker in comm.hosted], sizes)
    assert (collected is None) == (RANK > 0)
    if collected is not None:
        assert all(torch.equal(one, other) for one, other in zip(collected, everyones, strict=True))
    assert comm.ledger.frame().empty and comm.ledger.handed_bytes == 0


def test_barrier_and_times():
    comm = communicator()
    comm.barrier()
    comm.allreduce_(torch.zeros(1, 10))
    frame = comm.ledger.frame()
    assert len(frame) == (2 if SIZE > 1 else 0)
    assert (frame["end_s"] >= frame["start_s"]).all()
    assert (comm.ledger.clock.seconds["comm"] > 0) == (SIZE > 1)


def test_mistakes_are_refused_on_every_rank_before_anything_is_sent():
    comm = communicator()
    with pytest.raises(UserError, match="bfloat16"):
        comm.allreduce_(torch.zeros(1, 3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="contiguous"):
        comm.allreduce_(torch.zeros(1, 6)[:, ::2])
    with pytest.raises(ValueError, match="2 buffers for the 1 workers"):
        comm.allreduce_(torch.zeros(2, 3))
    if SIZE & (SIZE - 1):
        with pytest.raises(UserError, match="power of two"):
            comm.allreduce_(torch.zeros(1, 3), "mean", "butterfly")
    if SIZE > 1:
        with pytest.raises(ValueError, match="dtype"):
            comm.permute(
                [torch.zeros(2, dtype=torch.float64 if RANK else torch.float32)],
                [(r + 1) % SIZE for r in range(SIZE)],
            )
    assert comm.ledger.frame().empty
