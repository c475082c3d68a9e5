"""How ranks find each other: by whom they were started, where they meet, and what they are told when they do not."""

import socket
import threading
from types import SimpleNamespace

import psutil
import pytest

from implementations.cluster import interfaces, rendezvous
from implementations.errors import UserError


@pytest.fixture(autouse=True)
def _interface(monkeypatch):
    """The variable that meeting sets is this test's alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "kept")


class Ranks:
    """Threads in place of processes; ``gather`` of each waits for all."""

    def __init__(self, size):
        self.words, self.barrier = [""] * size, threading.Barrier(size)

    def gather(self, rank):
        def told(words):
            self.words[rank] = words
            self.barrier.wait(20)
            everyones = list(self.words)
            self.barrier.wait(20)
            return everyones

        return told


def met(size, environment, one_host=True):
    """What each of so many ranks gets, its store or its error."""
    ranks, got = Ranks(size), [None] * size

    def run(rank):
        try:
            got[rank] = rendezvous.meet(rank, ranks.gather(rank), lambda: one_host, environment)
        except UserError as error:
            got[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return got


def test_ranks_of_one_host_meet_there_on_any_port():
    stores = met(3, {})
    stores[1].set("word", "said")
    assert [store.get("word") for store in stores] == [b"said"] * 3
    assert {store.host for store in stores} == {"127.0.0.1"}


def test_ranks_of_several_hosts_meet_where_others_reach_rank_0():
    stores = met(2, {}, one_host=False)
    assert {store.host for store in stores} == {interfaces.address_outside()}


def test_the_environment_may_name_another_place():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    stores = met(2, {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    assert {(store.host, store.port) for store in stores} == {("localhost", port)}


def test_a_port_that_is_taken_is_told_to_all():
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        errors = met(2, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    for error in errors:
        assert isinstance(error, UserError) and "rank 0 cannot listen" in str(error)


class NoMpi(Exception):
    pass


def no_mpi():
    raise NoMpi


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            "2 ranks were asked for, 3 started",
        ),
    ],
)
def test_too_many_or_too_few_ranks_are_told_of(environment, told, tmp_path):
    with pytest.raises(UserError, match=told):
        rendezvous.find(2, no_mpi, tmp_path, environment)
    alone = SimpleNamespace(COMM_WORLD=SimpleNamespace(size=1, rank=0))
    with pytest.raises(UserError, match="2 ranks were asked for, 1 started"):
        rendezvous.find(2, lambda: alone, tmp_path, {})


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "2"},  # some of torchrun's
        {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"},  # of another step
        # an MPI launcher inside what torchrun, or a batch script of Slurm, has started
        {"PMI_RANK": "1", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"},
        {"OMPI_COMM_WORLD_RANK": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
    ],
)
def test_who_started_the_ranks_is_told_by_whole_sets_of_variables(environment, tmp_path):
    with pytest.raises(NoMpi):
        rendezvous.find(2, no_mpi, tmp_path, environment)


def test_slurm_alone_meets_by_a_file(tmp_path):
    got = [None, None]

    def run(rank):
        own = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank)}
        world = rendezvous.find(2, no_mpi, tmp_path, own)
        got[rank] = world.rank, world.size, world.gather(f"word {rank}"), world.on_host()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    words = ["word 0", "word 1"]
    assert got == [(0, 2, words, 0), (1, 2, words, 1)]


def test_the_loopback_leads_to_this_machine():
    name = interfaces.interface_towards("127.0.0.1", 9)
    assert "127.0.0.1" in {one.address for one in psutil.net_if_addrs()[name]}
