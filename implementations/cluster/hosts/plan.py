"""What emulated hosts are called, where they are reached, and the commands that make them; starts nothing.

Each host is a network namespace with one interface, a cable (veth pair) to a switch (a bridge in a namespace of its
own). Both ends of a cable limit what they send, as a full-duplex port of that rate does. Nothing touches the machine's
own network, so that any number of such networks, with the same addresses, live side by side.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from implementations.errors import UserError

INTERFACE = "eth0"  # of every host
DRIVER, MASTER = "driver", "master"  # of a Spark cluster, beside the workers
MOST_HOSTS = 250
MOST_MBIT = 100_000
# What a port may send at once after it had nothing to send (tbf's `burst`): a real one nothing. Here it is what goes by
# in so many seconds, for timers are no finer, but at least a few frames. Then how long its queue may be.
BURST_S, LEAST_BURST_BYTES = 2e-4, 6000
QUEUE = "50ms"
_NETWORK = re.compile(r"emulated(?:-(\d+)mbit)?")
_SUBNET, _BITS = "10.77.0", 24
_SWITCH = "switch"


def is_emulated(network: str) -> bool:
    """Whether a point's network is one of emulated hosts, by its name."""
    return network == "emulated" or network.startswith("emulated-")


def rate_of(network: str) -> int | None:
    """Bits a second of each host's link in each direction; None for ``emulated``, which is not limited.

    UserError for another name than ``emulated`` and ``emulated-100mbit`` (any whole number of Mbit/s).
    """
    found = _NETWORK.fullmatch(network)
    if found is None or (found[1] and not 0 < int(found[1]) <= MOST_MBIT):
        raise UserError(
            f"network {network!r}: emulated hosts are joined by `emulated` (no limit) or `emulated-NUMBERmbit`, of at "
            f"most {MOST_MBIT} Mbit/s"
        )
    return int(found[1]) * 10**6 if found[1] else None


@dataclass(frozen=True)
class Host:
    """An emulated host: ``namespace`` is its name for `ip netns exec`, ``port`` the switch's interface towards it."""

    role: str
    namespace: str
    address: str
    port: str


@dataclass(frozen=True)
class Plan:
    """A network. ``prefix``: of its namespaces' names; ``roles``: of its hosts; ``bits_per_s``: of a link, or None."""

    prefix: str
    roles: tuple[str, ...]
    bits_per_s: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.roles) <= MOST_HOSTS:
            raise UserError(f"{len(self.roles)} hosts cannot be emulated: allowed are 1 to {MOST_HOSTS}")

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{self.prefix}-{_SWITCH}"

    @property
    def hosts(self) -> tuple[Host, ...]:
        """In the order of roles."""
        return tuple(
            Host(role, f"{self.prefix}-{role}", f"{_SUBNET}.{number + 1}", f"port{number}")
            for number, role in enumerate(self.roles)
        )

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Of hosts and switch."""
        return (*(host.namespace for host in self.hosts), self.switch)

    def making(self) -> list[list[str]]:
        """The commands that make the network, in order."""
        switch = self.switch
        words = [
            f"ip netns add {switch}",
            f"ip -n {switch} link add bridge type bridge",
            f"ip -n {switch} link set bridge addrgenmode none",
            f"ip -n {switch} link set bridge up",
        ]
        for host in self.hosts:
            name, port = host.namespace, host.port
            words += [
                f"ip netns add {name}",
                f"ip -n {name} link set lo up",
                f"ip link add {INTERFACE} netns {name} type veth peer name {port} netns {switch}",
                # no addresses of IPv6, whose neighbours would be looked for: only what programs send is counted
                f"ip -n {switch} link set {port} addrgenmode none master bridge up",
                f"ip -n {name} link set {INTERFACE} addrgenmode none",
                f"ip -n {name} address add {host.address}/{_BITS} dev {INTERFACE}",
                f"ip -n {name} link set {INTERFACE} up",
            ]
            if self.bits_per_s is not None:
                burst = max(LEAST_BURST_BYTES, round(self.bits_per_s / 8 * BURST_S))
                limit = f"root tbf rate {self.bits_per_s}bit burst {burst} latency {QUEUE}"
                words += [
                    f"tc -n {name} qdisc add dev {INTERFACE} {limit}",
                    f"tc -n {switch} qdisc add dev {port} {limit}",
                ]
        return [line.split() for line in words]


def worker_roles(workers: int) -> tuple[str, ...]:
    """The hosts of workers, one each: ``h0``, ``h1``, ..."""
    return tuple(f"h{number}" for number in range(workers))


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """A command that is run in a namespace."""
    return ["ip", "netns", "exec", namespace, *command]
