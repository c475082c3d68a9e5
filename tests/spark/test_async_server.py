"""The parameter server alone, with clients in threads: versions, bounds, order, and every way to end."""

import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from implementations.errors import UserError
from implementations.spark import server as module
from implementations.spark.server import Address, Client, ParameterServer

SIZE = 5


def served(workers, rate=1.0, version=0):
    """A server of gradient descent from zero, its weights, and the rates that it was told."""
    weights_p, rates = np.zeros(SIZE, np.float32), []

    def apply(mean_p, rate):
        rates.append(rate)
        np.subtract(weights_p, np.float32(rate) * mean_p, out=weights_p)

    return ParameterServer(workers, weights_p, apply, version), weights_p, rates


def gradient(worker, number):
    return np.full(SIZE, 1000 * number + worker, np.float32)


def started(address, worker):
    client, weights_p = Client(address, worker), np.empty(SIZE, np.float32)
    return client, weights_p, client.pull(weights_p)


@pytest.fixture(autouse=True)
def _no_thread_left(monkeypatch):
    monkeypatch.setattr(module, "_YIELD_S", 0.0)
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "parameter-server"]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_workers_that_run_freely_end_with_the_sum_of_all_rounds(workers, staleness):
    rounds = 20
    server, weights_p, rates = served(workers)

    def work(worker):
        client, mine_p, version = started(server.address, worker)
        late = []
        for number in range(1, rounds + 1):
            late.append(number - 1 - version)
            last = number == rounds
            time.sleep(0.0005 * worker)
            client.push(gradient(worker, number), number, number if last else number - staleness, 0.5)
            version = client.pull(mine_p)
        client.leave()
        return version, mine_p, max(late)

    with ThreadPoolExecutor(workers) as pool:
        ends = list(pool.map(work, range(workers)))
    server.close()
    means = [np.mean([gradient(worker, n)[0] for worker in range(workers)]) for n in range(1, rounds + 1)]
    for version, mine_p, late in ends:
        assert version == rounds
        np.testing.assert_allclose(mine_p, -0.5 * sum(means), rtol=1e-6)
        assert late <= staleness
    assert rates == [0.5] * rounds
    np.testing.assert_array_equal(weights_p, ends[0][1])


def test_a_round_is_applied_when_its_last_gradient_has_come_and_weights_keep_their_version():
    server, _, _ = served(2)
    fast, fast_p, version = started(server.address, 0)
    slow, slow_p, _ = started(server.address, 1)
    assert version == 0
    for number in (1, 2, 3):  # staleness 3: never waits
        fast.push(gradient(0, number), number, number - 3, 1.0)
        assert fast.pull(fast_p) == 0
        assert not fast_p.any()
    slow.push(gradient(1, 1), 1, 0, 1.0)
    assert slow.pull(slow_p) == 1
    np.testing.assert_array_equal(slow_p, np.full(SIZE, -1000.5))
    slow.push(gradient(1, 2), 2, 0, 1.0)
    assert slow.pull(slow_p) == 2
    np.testing.assert_array_equal(slow_p, np.full(SIZE, -3001.0))
    fast.leave()
    slow.leave()
    server.close()


def test_a_worker_too_far_ahead_waits():
    server, _, _ = served(2)
    fast, fast_p, _ = started(server.address, 0)
    slow, slow_p, _ = started(server.address, 1)
    fast.push(gradient(0, 1), 1, 1, 1.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fast.pull, fast_p)
        time.sleep(0.1)
        assert not waiting.done()
        slow.push(gradient(1, 1), 1, 1, 1.0)
        assert waiting.result(10) == 1
    slow.pull(slow_p)
    fast.leave()
    slow.leave()
    server.close()


def test_the_order_of_arrivals_changes_no_bit():
    numbers = np.random.default_rng(0).standard_normal((3, SIZE)).astype(np.float32)
    found = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        server, weights_p, _ = served(3)
        clients = [started(server.address, worker) for worker in range(3)]
        for worker in order:
            clients[worker][0].push(numbers[worker], 1, 0, 1.0)
            clients[worker][0].pull(clients[worker][1])
        for client, *_ in clients:
            client.leave()
        server.close()
        found.append(weights_p.copy())
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_versions_go_on_from_where_a_run_was_cut_off():
    server, _, _ = served(1, version=7)
    client, mine_p, version = started(server.address, 0)
    assert version == 7
    client.push(gradient(0, 8), 8, 8, 1.0)
    assert client.pull(mine_p) == 8
    client.leave()
    server.close()


@pytest.mark.parametrize(
    ("end", "reason"),
    [(Client.close, "its connection was closed"), (lambda client: client.fail("no " * 5000), "no no")],
)
def test_a_worker_that_vanishes_or_fails_ends_the_others(end, reason):
    server, _, _ = served(2)
    one, one_p, _ = started(server.address, 0)
    other, _, _ = started(server.address, 1)
    one.push(gradient(0, 1), 1, 1, 1.0)
    end(other)
    with pytest.raises(UserError, match=f"worker 1 failed in round 1: {reason}"):
        one.pull(one_p)
    one.close()
    server.stop("it is over")


def test_a_server_that_stops_tells_why_to_those_that_wait_and_to_those_that_come_later():
    server, _, _ = served(2)
    waits, waits_p, _ = started(server.address, 0)
    later, later_p, _ = started(server.address, 1)
    waits.push(gradient(0, 1), 1, 1, 1.0)
    time.sleep(0.05)
    server.stop("the disk is full")
    with pytest.raises(UserError, match="the disk is full"):
        waits.pull(waits_p)
    with pytest.raises(UserError, match=r"the disk is full|is gone"):
        for number in range(1, 100):
            later.push(gradient(1, number), number, 0, 1.0)
            later.pull(later_p)
    waits.close()
    later.close()


def test_an_update_that_fails_ends_the_run():
    def apply(mean_p, rate):
        raise ValueError("no such optimiser")

    server = ParameterServer(1, np.zeros(SIZE, np.float32), apply)
    client, mine_p, _ = started(server.address, 0)
    client.push(gradient(0, 1), 1, 1, 1.0)
    with pytest.raises(UserError, match="the update of round 1 failed: no such optimiser"):
        client.pull(mine_p)
    client.close()
    server.stop("over")


@pytest.mark.parametrize(("number", "values"), [(2, SIZE), (1, SIZE + 1), (-3, SIZE)])
def test_a_push_out_of_turn_or_of_another_size_ends_the_run(number, values):
    server, _, _ = served(1)
    client, mine_p, _ = started(server.address, 0)
    with pytest.raises(UserError, match=r"worker 0 failed in round 1: it sent|is gone"):
        client.push(np.zeros(values, np.float32), number, 0, 1.0)
        client.pull(mine_p)
    client.close()
    server.stop("over")


def test_strangers_are_turned_away(monkeypatch):
    monkeypatch.setattr(module, "_HELLO_S", 0.05)
    server, _, _ = served(1)
    host, port, token = server.address.host, server.address.port, server.address.token
    assert host == "127.0.0.1" and server._listener.getsockname()[0] == host  # nobody else can reach it
    stranger = Client(Address(host, port, token + 1), 0)
    with pytest.raises(UserError, match="is gone"):
        stranger.pull(np.empty(SIZE, np.float32))
    stranger.close()
    for words in (b"", b"GET", struct.pack("!qi", token, 5)):  # silent, short, and a worker that there is not
        with socket.create_connection((host, port)) as connection:
            connection.sendall(words)
            assert connection.recv(1) == b""
    client, _, version = started(server.address, 0)
    assert version == 0
    with pytest.raises(UserError, match="cannot reach"):  # all are there: nothing listens any more
        Client(server.address, 0)
    client.leave()
    server.close()


def test_an_address_without_a_server_is_named():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UserError, match=f"worker 3 cannot reach the parameter server at 127.0.0.1:{port}"):
        Client(Address("127.0.0.1", port, 1), 3)
    with pytest.raises(UserError, match=r"parameter server: cannot listen at 203\.0\.113\.7"):
        ParameterServer(1, np.zeros(1, np.float32), print, host="203.0.113.7")  # nobody's (RFC 5737)


def test_large_models_pass_whole():
    values = 3_000_000
    weights_p = np.arange(values, dtype=np.float32)
    server = ParameterServer(1, weights_p, lambda mean_p, rate: np.add(weights_p, mean_p, out=weights_p))
    client, mine_p = Client(server.address, 0), np.empty(values, np.float32)
    client.pull(mine_p)
    np.testing.assert_array_equal(mine_p, np.arange(values, dtype=np.float32))
    client.push(np.ones(values, np.float32), 1, 1, 1.0)
    client.pull(mine_p)
    np.testing.assert_array_equal(mine_p, np.arange(values, dtype=np.float32) + 1)
    client.leave()
    server.close()
