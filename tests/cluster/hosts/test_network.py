"""Real emulated hosts: reached, limited, counted, and always taken down."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from implementations.__main__ import main
from implementations.cluster.hosts import counters, network
from implementations.cluster.hosts.plan import inside, worker_roles
from implementations.cluster.ownership import Owner, own

pytestmark = pytest.mark.timeout(120)

# Sends bytes by TCP from host 1 to host 0, and prints the seconds until the last of them has come.
RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    link, _ = server.accept()
    link.recv(1, socket.MSG_WAITALL)
    began, got = time.perf_counter(), 0
    while piece := link.recv(1 << 16):
        got += len(piece)
    print(got, time.perf_counter() - began, flush=True)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as link:
    link.sendall(b"x")
    link.sendall(bytes(int(sys.argv[3])))
"""
OWNER = """
import subprocess, sys, time
from implementations.cluster.hosts import network
from implementations.cluster.hosts.plan import inside, worker_roles
with network.up(worker_roles(2), 10**8) as made:
    one = subprocess.Popen(inside(made.plan.hosts[1].namespace, ["sleep", "600"]), start_new_session=True)
    print(made.plan.prefix, one.pid, made.folder, flush=True)
    time.sleep(600)
"""


def transfer(made, size):
    """Bytes that came, and the seconds that they took."""
    receiver, sender = made.plan.hosts
    command = inside(receiver.namespace, [sys.executable, "-c", RECEIVE, receiver.address])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        port = process.stdout.readline().strip()
        words = [sys.executable, "-c", SEND, receiver.address, port, str(size)]
        subprocess.run(inside(sender.namespace, words), check=True)
        got, seconds = process.stdout.readline().split()
    return int(got), float(seconds)


def of(prefix):
    return [name for name in network.namespaces() if name.startswith(f"{prefix}-")]


def runs(pid):
    """Whether a process runs; one that nobody has asked about since it ended does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until(condition, limit_s=40.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def owner(can_have_hosts):
    """A process that has hosts and a program on them; told: its prefix, that program's pid, its folder."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        prefix, pid, folder = process.stdout.readline().split()
        assert len(of(prefix)) == 3 and runs(int(pid)) and os.path.isdir(folder)
        yield process, prefix, int(pid), folder
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        network.remove(prefix)


def test_hosts_are_gone_after_the_block(can_have_hosts):
    with network.up(worker_roles(3)) as made:
        assert (
            of(made.plan.prefix) == sorted(made.plan.namespaces, reverse=True)
            or len(of(made.plan.prefix)) == 4
        )
        left = subprocess.Popen(inside(made.plan.hosts[2].namespace, ["sleep", "600"]))
    assert left.wait(10) == -signal.SIGKILL
    assert not of(made.plan.prefix) and not made.folder.exists()


def test_an_error_takes_them_down_too(can_have_hosts):
    with pytest.raises(ZeroDivisionError), network.up(worker_roles(1)) as made:
        raise ZeroDivisionError
    assert not of(made.plan.prefix)


def test_a_link_is_as_slow_as_it_should_be(can_have_hosts):
    """At 20 Mbit/s 2 MB take 0.8 s, but for what a port may send at once; more where the machine is busy."""
    size = 2_000_000
    with network.up(worker_roles(2), 20 * 10**6) as made:
        got, seconds = transfer(made, size)
    assert got == size
    assert (
        seconds > 8 * (size - 2 * 32 * 1024 - 200_000) / 20e6
    )  # of the two ports, and on its way at the start


SEGMENT_BYTES = 1448  # of 1500, without the headers of IP and TCP and its time stamps


def sent_again(namespace: str) -> int:
    """Segments that TCP has sent twice there: a late acknowledgement on a busy machine is enough."""
    text = subprocess.run(inside(namespace, ["cat", "/proc/net/snmp"]), capture_output=True, text=True).stdout
    names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def test_the_kernel_counts_what_is_sent(two_hosts):
    size = 3_000_000
    before = counters.each(two_hosts.plan.switch)
    again = sent_again(two_hosts.plan.hosts[1].namespace)
    transfer(two_hosts, size)
    after = counters.each(two_hosts.plan.switch)
    again = sent_again(two_hosts.plan.hosts[1].namespace) - again
    receiver, sender = (after[host.port] - before[host.port] for host in two_hosts.plan.hosts)
    # to some bytes: a packet that opens a connection, or asks for an address, has another header
    assert size * (1 - 1e-4) <= sender.data_bytes <= size * (1 + 1e-4) + SEGMENT_BYTES * again
    assert abs(receiver.data_bytes) < 1e-4 * size  # acknowledgements are headers alone
    assert sender.received_bytes == pytest.approx(receiver.sent_bytes, abs=1000)


def test_hosts_of_two_owners_do_not_meet(two_hosts, owner):
    """They have the same addresses; each program sees its own network alone."""
    _, prefix, _, _ = owner
    listening = inside(f"{prefix}-h0", [sys.executable, "-c", RECEIVE, "10.77.0.1"])
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = process.stdout.readline().strip()
            send = [sys.executable, "-c", SEND, "10.77.0.1", port, "1"]
            lost = subprocess.run(
                inside(two_hosts.plan.hosts[1].namespace, send), capture_output=True, text=True
            )
            assert "ConnectionRefusedError" in lost.stderr
            subprocess.run(inside(f"{prefix}-h1", send), check=True)
        finally:
            process.kill()
    with pytest.raises(OSError), socket.create_connection(("10.77.0.1", int(port)), timeout=1):
        pass  # the machine itself has no way there


def test_hosts_of_a_killed_owner_are_taken_down(owner):
    process, prefix, program, folder = owner
    process.kill()
    process.wait()
    wait_until(lambda: not of(prefix) and not runs(program) and not os.path.exists(folder))


def test_the_next_start_sweeps_what_was_left_when_the_guard_was_killed_too(owner):
    process, prefix, program, folder = owner
    guards = [
        child
        for child in psutil.Process(process.pid).children()
        if "implementations.lifeline" in child.cmdline()
    ]
    for one in (*guards, process):
        one.kill()
    process.wait()
    with network.up(worker_roles(1)) as made:  # sweeps first
        assert of(made.plan.prefix)
        assert not of(prefix) and not runs(program) and not os.path.exists(folder)


def test_living_owners_keep_their_hosts(owner):
    _, prefix, _, _ = owner
    network.sweep()
    assert len(of(prefix)) == 3


def test_a_user_without_rights_is_told(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if sys.platform.startswith("linux") and not network.why_not().startswith("emulated hosts need"):
        assert "only root" in network.why_not()
    with pytest.raises(network.Unavailable), network.up(worker_roles(1)):
        pass


def test_a_kernel_that_refuses_is_told_by_what_it_says(monkeypatch, can_have_hosts):
    making = network.Plan.making
    monkeypatch.setattr(
        network.Plan,
        "making",
        lambda self: [*making(self), ["tc", "qdisc", "add", "dev", "lo", "root", "nosuch"]],
    )
    with pytest.raises(network.Unavailable, match=r"tbf.*nosuch"), network.up(worker_roles(1)):
        pass
    assert not [name for name in network.namespaces() if Owner.of(name) == own()]


def test_the_verb_runs_a_command_on_each_host(can_have_hosts, capfd):
    # in one piece, as both hosts write to one place
    show = "import os; print('at ' + ' '.join(map(os.environ.get, ('RANK', 'WORLD_SIZE', 'MASTER_ADDR'))))"
    code = main(["hosts", "--hosts", "2", "--rate", "10mbit", "--each", "--", sys.executable, "-c", show])
    text = capfd.readouterr().out
    assert code == 0
    assert "at 0 2 10.77.0.1" in text and "at 1 2 10.77.0.1" in text
    assert "2 hosts, 10 Mbit/s in each direction" in text and "h1  sent" in text


def test_the_verb_hands_on_a_commands_exit_code(can_have_hosts, capfd):
    assert main(["hosts", "--hosts", "1", "--", "sh", "-c", "exit 7"]) == 7


def test_the_verb_takes_no_rate_that_is_none(capfd):
    assert main(["hosts", "--rate", "fast"]) == 2
    assert "emulated-NUMBERmbit" in capfd.readouterr().err
