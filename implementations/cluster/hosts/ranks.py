"""What programs on emulated hosts must be told so that they use the hosts' network, and nothing else.

Variables of the environment, so that a launcher takes them as it is: MPICH and Open MPI find the hosts and start a
process on one by a small program of ours (in place of ssh); their transports through shared memory, which would pass
the network by, are switched off. torch.distributed (gloo) finds interface and meeting place.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from implementations.cluster.hosts.counters import SWITCH_VARIABLE
from implementations.cluster.hosts.network import Network
from implementations.cluster.hosts.plan import INTERFACE, Host

# Of host 0, where nothing else can have it.
MEETING_PORT = 29500
KINDS = ("mpich", "openmpi")  # launchers that can start ranks there
_AGENT = """#!/bin/sh
# Starts a command on an emulated host, as ssh does on a real one: agent [options] ADDRESS COMMAND...
# With a hostname of its own: programs take hosts of equal names for one.
while [ "${{1#-}}" != "$1" ]; do shift; done
address=$1
shift
case "$address" in
{cases}
*) echo "agent: no emulated host $address" >&2; exit 1 ;;
esac
exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"
"""


def environment(network: Network) -> dict[str, str]:
    """The variables; the files that they name are written into the network's folder."""
    hosts = network.plan.hosts
    agent, hostfile = network.folder / "agent", network.folder / "hosts"
    agent.write_text(agent_script(hosts))
    agent.chmod(0o700)
    hostfile.write_text("".join(f"{host.address}\n" for host in hosts))
    return {
        SWITCH_VARIABLE: network.plan.switch,
        **_mpich(agent, hostfile),
        **_open_mpi(agent, hostfile),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(MEETING_PORT),
    }


def agent_script(hosts: Sequence[Host]) -> str:
    """A shell script that stands in for ssh."""
    cases = "\n".join(f"{host.address}) name={shlex.quote(host.namespace)} ;;" for host in hosts)
    return _AGENT.format(cases=cases)


def _mpich(agent: Path, hostfile: Path) -> dict[str, str]:
    return {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "HYDRA_HOST_FILE": str(hostfile),
        "HYDRA_IFACE": INTERFACE,
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": INTERFACE,
        "MPIR_CVAR_NOLOCAL": "1",
        "FI_PROVIDER": "tcp",  # of builds on libfabric
        "FI_TCP_IFACE": INTERFACE,
    }


def _open_mpi(agent: Path, hostfile: Path) -> dict[str, str]:
    """Of version 5 (PRTE) and 4 (ORTE)."""
    return {
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "PRTE_MCA_prte_default_hostfile": str(hostfile),
        "PRTE_MCA_rmaps_default_mapping_policy": "node",
        "PRTE_MCA_prte_if_include": INTERFACE,
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "OMPI_MCA_rmaps_base_mapping_policy": "node",
        "OMPI_MCA_oob_tcp_if_include": INTERFACE,
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": INTERFACE,
    }
