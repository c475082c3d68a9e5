"""What the kernel counts of the network interfaces of emulated hosts: bytes and packets sent.

Counts are those of Ethernet: of each packet also its headers, and packets that carry no data (acknowledgements, the
opening of connections). What is left of them without ``HEADER_BYTES`` a packet is what programs have written to
their connections. The kernel hands a whole batch of data to an interface as one packet where the link allows, with
one header; it counts it so too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from implementations.errors import UserError

# Ethernet 14, IPv4 20, TCP 20 and its time stamps 12.
HEADER_BYTES = 66
READ_LIMIT_S = 20.0
SWITCH_VARIABLE = "PARATRAIN_SWITCH"  # the namespace of the switch, whose ports see what all hosts send
# Of bytes enough to tell, how many must have crossed the interfaces: compression aside, all.
LEAST_BYTES, LEAST_SHARE = 1_000_000, 0.9
NAMES = ("sent_bytes", "sent_packets", "received_bytes", "received_packets")


@dataclass(frozen=True)
class Counts:
    """Bytes and packets of the interfaces of one host or several."""

    sent_bytes: int = 0
    sent_packets: int = 0
    received_bytes: int = 0
    received_packets: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) + getattr(other, name) for name in NAMES))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) - getattr(other, name) for name in NAMES))

    @property
    def data_bytes(self) -> int:
        """Sent bytes without the headers of their packets."""
        return self.sent_bytes - HEADER_BYTES * self.sent_packets

    @property
    def arrived_bytes(self) -> int:
        """Received bytes without the headers of their packets: without what a full queue dropped, to be sent again."""
        return self.received_bytes - HEADER_BYTES * self.received_packets

    def values(self) -> list[int]:
        """In the order of ``NAMES``."""
        return [getattr(self, name) for name in NAMES]


def parse(text: str) -> dict[str, Counts]:
    """Each interface's counts in the text of /proc/net/dev, the loopback's aside."""
    found = {}
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() != "lo":
            values = [int(word) for word in numbers.split()]
            found[name.strip()] = Counts(values[8], values[9], values[0], values[1])
    return found


def own() -> Counts:
    """Of the host that this process runs on."""
    return sum(parse(Path("/proc/self/net/dev").read_text()).values(), Counts())


def each(switch: str) -> dict[str, Counts]:
    """Of every host, by the switch's port towards it: what a port receives, its host has sent.

    ``switch``: the namespace. UserError where it cannot be read.
    """
    try:
        text = subprocess.run(
            ["ip", "netns", "exec", switch, "cat", "/proc/net/dev"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READ_LIMIT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            f"the counters of the emulated hosts behind {switch} cannot be read: {error}"
        ) from error
    return {
        name: Counts(one.received_bytes, one.received_packets, one.sent_bytes, one.sent_packets)
        for name, one in parse(text).items()
        if name != "bridge"
    }


class Meter:
    """Counts from ``start`` on, without what passes while it is paused."""

    def __init__(self, switch: str | None = None) -> None:
        """``switch``: count all hosts behind it; unless given, that of this process."""
        self._switch, self._counted = switch, Counts()
        self._since: Counts | None = None

    def _now(self) -> Counts:
        return own() if self._switch is None else sum(each(self._switch).values(), Counts())

    def start(self, counted: Counts = Counts()) -> None:
        """Count from now on, on top of ``counted``."""
        self._counted, self._since = counted, self._now()

    @property
    def counts(self) -> Counts:
        """What was counted up to now."""
        return self._counted if self._since is None else self._counted + self._now() - self._since

    def stop(self) -> None:
        """Count no more."""
        self._counted, self._since = self.counts, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block whose traffic is not the training's. All processes must have received what was sent before it."""
        running = self._since is not None
        if running:
            self.stop()
        try:
            yield
        finally:
            if running:
                self._since = self._now()


def meter(emulated: bool, all_hosts: bool) -> Meter | None:
    """What counts for a run's process, if its network is one of emulated hosts.

    ``all_hosts``: it speaks for all of them, as a driver does whose workers count nothing.
    """
    if not emulated:
        return None
    return Meter(os.environ.get(SWITCH_VARIABLE) if all_hosts else None)


def columns(counts: Counts) -> dict[str, int]:
    """Columns of a record."""
    values = dict(zip(NAMES, counts.values()))
    values |= {"data_bytes": counts.data_bytes, "arrived_bytes": counts.arrived_bytes}
    return {f"interface_{name}_total": value for name, value in values.items()}


def require_passed(counts: Counts, sent_bytes: int) -> None:
    """UserError where less went over the hosts' interfaces than the ledger has: a library has found another way."""
    if sent_bytes >= LEAST_BYTES and counts.data_bytes < LEAST_SHARE * sent_bytes:
        raise UserError(
            f"only {counts.data_bytes} of {sent_bytes} bytes crossed the emulated network: a library passes it by, "
            f"through shared memory say; its limit was none, and the times are worthless"
        )
