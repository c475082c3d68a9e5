"""Which network interface of this machine leads where."""

from __future__ import annotations

import socket

import psutil

from implementations.errors import UserError

_ELSEWHERE = (
    "192.0.2.1",
    9,
)  # reserved for documents (RFC 5737): an address that is nowhere, by the usual way out


def address_towards(host: str, port: int) -> str:
    """The IPv4 address that this machine has on its way to another; nothing is sent. OSError where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return probe.getsockname()[0]


def address_outside() -> str:
    """The IPv4 address by which other machines reach this one: that of its usual way out, else that of its name."""
    try:
        return address_towards(*_ELSEWHERE)
    except OSError:
        return socket.gethostbyname(socket.gethostname())


def interface_towards(host: str, port: int) -> str:
    """The network interface by which this machine reaches another: the loopback where that is itself."""
    address = address_towards(host, port)
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    raise UserError(f"no network interface has the address {address}, by which {host} is reached")
