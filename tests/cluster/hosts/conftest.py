"""Emulated hosts, where this machine and user can have them."""

import pytest

from implementations.cluster.hosts import network
from implementations.cluster.hosts.plan import worker_roles


@pytest.fixture(scope="session")
def can_have_hosts():
    """Skips what needs real hosts, with the reason."""
    try:
        with network.up(worker_roles(1), 10**8):
            pass
    except network.Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def two_hosts(can_have_hosts):
    with network.up(worker_roles(2)) as made:
        yield made
