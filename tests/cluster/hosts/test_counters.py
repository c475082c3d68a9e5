"""Counters of interfaces: reading them, and what is counted of a run."""

import pytest

from implementations.cluster.hosts import counters
from implementations.cluster.hosts.counters import Counts, Meter
from implementations.errors import UserError

# As the kernel writes it (Documentation/networking/statistics.rst, proc(5)): eight numbers received, eight sent.
TEXT = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
  eth0:1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0
port1: 30 3 0 0 0 0 0 0 40 4 0 0 0 0 0 0
"""


def test_the_kernels_table_without_the_loopback():
    assert counters.parse(TEXT) == {"eth0": Counts(2000, 20, 1000, 10), "port1": Counts(40, 4, 30, 3)}


def test_data_is_what_is_left_without_headers():
    """A full frame of a TCP stream with time stamps: 1500 bytes of IP carry 1448, and Ethernet adds 14."""
    frames = Counts(sent_bytes=1000 * (1500 + 14), sent_packets=1000)
    assert frames.data_bytes == 1000 * 1448


def test_columns_of_a_record():
    assert counters.columns(Counts(1066, 1, 500, 5)) == {
        "interface_sent_bytes_total": 1066,
        "interface_sent_packets_total": 1,
        "interface_received_bytes_total": 500,
        "interface_received_packets_total": 5,
        "interface_data_bytes_total": 1000,
        "interface_arrived_bytes_total": 170,
    }


class Wire:
    """A made-up interface that a test sends on."""

    def __init__(self, monkeypatch):
        self.sent = 10_000  # before the run
        monkeypatch.setattr(counters, "own", lambda: Counts(sent_bytes=self.sent))


def test_a_pause_is_not_counted(monkeypatch):
    wire, meter = Wire(monkeypatch), Meter()
    meter.start()
    wire.sent += 5
    with meter.paused():
        wire.sent += 700
    wire.sent += 8
    assert meter.counts.sent_bytes == 13
    meter.stop()
    wire.sent += 100
    assert meter.counts.sent_bytes == 13


def test_a_pause_before_the_start_starts_nothing(monkeypatch):
    wire, meter = Wire(monkeypatch), Meter()
    with meter.paused():
        wire.sent += 700
    wire.sent += 8
    assert meter.counts == Counts()


def test_a_resumed_run_counts_on(monkeypatch):
    wire, meter = Wire(monkeypatch), Meter()
    meter.start(Counts(sent_bytes=1000))
    wire.sent += 5
    assert meter.counts.sent_bytes == 1005


def test_bytes_that_passed_the_network_by_are_an_error():
    with pytest.raises(UserError, match="shared memory"):
        counters.require_passed(Counts(sent_bytes=500_000, sent_packets=10), 2_000_000)
    counters.require_passed(Counts(sent_bytes=2_100_000, sent_packets=10), 2_000_000)
    counters.require_passed(Counts(), 1000)  # too few to tell
