"""Names, addresses and commands of emulated hosts: plain values, no root needed."""

import ipaddress
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.cluster.hosts import ranks
from implementations.cluster.hosts.plan import (
    DRIVER,
    MASTER,
    MOST_HOSTS,
    Host,
    Plan,
    inside,
    is_emulated,
    rate_of,
    worker_roles,
)
from implementations.cluster.ownership import Owner
from implementations.errors import UserError


@pytest.mark.parametrize(
    ("network", "rate"),
    [("emulated", None), ("emulated-10mbit", 10_000_000), ("emulated-1000mbit", 1_000_000_000)],
)
def test_a_network_name_tells_its_rate(network, rate):
    assert is_emulated(network)
    assert rate_of(network) == rate


@pytest.mark.parametrize(
    "network", ["emulated-", "emulated-0mbit", "emulated-100", "emulated-1gbit", "emulated-999999mbit"]
)
def test_other_emulated_names_are_mistakes(network):
    assert is_emulated(network)
    with pytest.raises(UserError, match="emulated-NUMBERmbit"):
        rate_of(network)


@pytest.mark.parametrize("network", ["loopback", "gigabit-cpu", "my-emulated-net"])
def test_other_networks_are_none_of_ours(network):
    assert not is_emulated(network)


@given(
    st.integers(1, 2**22), st.integers(0, 2**63), st.integers(0, 99), st.sampled_from(["h0", "h17", DRIVER])
)
def test_a_name_tells_its_owner(pid, ticks, number, role):
    owner = Owner(pid, ticks)
    plan = Plan(owner.prefix(number), (role,))
    assert [Owner.of(name) for name in plan.namespaces] == [owner, owner]


@pytest.mark.parametrize("name", ["", "pt", "pt12", "ptx-1-0-h0", "pt12-zz-0-h0", "mine", "apt1-2-0-h0"])
def test_other_namespaces_have_no_owner(name):
    assert Owner.of(name) is None


@given(st.integers(1, MOST_HOSTS))
def test_hosts_have_names_and_addresses_of_their_own(number):
    hosts = Plan("p", worker_roles(number)).hosts
    addresses = {ipaddress.ip_address(host.address) for host in hosts}
    assert (
        len(addresses)
        == len({host.namespace for host in hosts})
        == len({host.port for host in hosts})
        == number
    )
    assert addresses <= set(ipaddress.ip_network("10.77.0.0/24").hosts())
    assert all(len(host.port) <= 15 for host in hosts)  # the kernel's limit of an interface's name


@pytest.mark.parametrize("number", [0, MOST_HOSTS + 1])
def test_too_few_and_too_many_hosts(number):
    with pytest.raises(UserError, match=f"{number} hosts"):
        Plan("p", worker_roles(number))


def test_both_ends_of_each_cable_are_limited():
    plan = Plan("p", worker_roles(3), 10**8)
    limits = [command for command in plan.making() if command[0] == "tc"]
    assert {tuple(command[2:7]) for command in limits} == {
        *((f"p-h{n}", "qdisc", "add", "dev", "eth0") for n in range(3)),
        *(("p-switch", "qdisc", "add", "dev", f"port{n}") for n in range(3)),
    }
    assert all(command[command.index("rate") + 1] == "100000000bit" for command in limits)
    assert all(command[command.index("burst") + 1] == "6000" for command in limits)  # four frames
    assert not [command for command in Plan("p", worker_roles(3)).making() if command[0] == "tc"]


def test_nothing_is_made_in_the_machines_own_network():
    for command in Plan("p", (*worker_roles(2), DRIVER, MASTER), 10**7).making():
        assert command[1] in ("-n", "netns") or command.count("netns") == 2, command


def test_the_agent_runs_a_command_where_its_address_is(tmp_path):
    """Called as Hydra calls ssh: with an option before the host, and the command as words or as one."""
    hosts = [Host("h0", "space0", "10.0.0.1", "port0"), Host("h1", "space1", "10.0.0.2", "port1")]
    (tmp_path / "agent").write_text(ranks.agent_script(hosts))
    (tmp_path / "ip").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (tmp_path / "ip").chmod(0o700)

    def agent(*words):
        return subprocess.run(
            ["/bin/sh", str(tmp_path / "agent"), *words],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )

    def at(space, words):
        return f"netns|exec|{space}|unshare|--uts|sh|-c|hostname {space}; {words}|"

    assert agent("-x", "10.0.0.2", '"a b"', "--c", "1").stdout == at("space1", '"a b" --c 1')
    assert agent("10.0.0.1", "prog --d").stdout == at("space0", "prog --d")
    lost = agent("10.0.0.9", "prog")
    assert lost.returncode == 1 and "no emulated host 10.0.0.9" in lost.stderr


def test_a_command_inside():
    assert inside("space", ["prog", "-n"]) == ["ip", "netns", "exec", "space", "prog", "-n"]
