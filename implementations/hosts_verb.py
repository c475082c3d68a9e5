"""The verb `hosts`: make emulated hosts, run a command on them, tell what their interfaces counted, take them down."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from implementations.cluster import leftovers
from implementations.cluster.hosts import counters, network, plan, ranks
from implementations.cluster.launcher import rank_environment
from implementations.errors import UserError

MB = 1e6


def hosts(number: int, rate: str | None, command: Sequence[str], each: bool = False) -> int:
    """Run ``command`` on ``number`` emulated hosts; returns the exit code of the first that failed, else 0.

    Args:
        number: hosts, each with a link to the same switch.
        rate: of a link in each direction, as ``100mbit``; None: no limit.
        command: run on host 0, where mpiexec starts ranks on all of them; none: hosts stay until Enter is pressed.
        each: run it on every host at once, with the variables by which torch.distributed's processes meet.

    Raises UserError (``network.Unavailable``) where hosts cannot be had, and for a rate that is none.
    """
    bits_per_s = plan.rate_of(f"emulated-{rate}" if rate else "emulated")
    with network.up(plan.worker_roles(number), bits_per_s) as made:
        print("\n".join(described(made.plan)), flush=True)
        environment = rank_environment(1) | ranks.environment(made)
        before = counters.each(made.plan.switch)
        code = _run(made.plan, list(command), environment, each) if command else _wait()
        after = counters.each(made.plan.switch)
        print(
            "\n".join(counted(made.plan, {port: after[port] - before[port] for port in before})), flush=True
        )
    return code


def clean() -> int:
    """Remove what runs that were killed have left; tells what."""
    removed = leftovers.sweep()
    print("\n".join(f"removed {what}" for what in removed) or "nothing was left by runs that have ended")
    return 0


def described(made: plan.Plan) -> list[str]:
    """Lines that name hosts and addresses, and how to get there."""
    limit = f"{made.bits_per_s / 1e6:g} Mbit/s in each direction" if made.bits_per_s else "no limit of rate"
    return [
        f"{len(made.hosts)} hosts, {limit}",
        *(f"  {host.role}  {host.address}  ip netns exec {host.namespace} bash" for host in made.hosts),
    ]


def counted(made: plan.Plan, counts: dict[str, counters.Counts]) -> list[str]:
    """Lines that tell what each host has sent and received."""
    lines = ["sent and received, counted by the kernel (headers included):"]
    for host in made.hosts:
        one = counts[host.port]
        lines.append(
            f"  {host.role}  sent {one.sent_bytes / MB:.3f} MB in {one.sent_packets} packets "
            f"({one.data_bytes / MB:.3f} MB without headers), "
            f"received {one.received_bytes / MB:.3f} MB in {one.received_packets}"
        )
    return lines


def _run(made: plan.Plan, command: list[str], environment: dict[str, str], each: bool) -> int:
    chosen = made.hosts if each else made.hosts[:1]
    processes = []
    try:
        for rank, host in enumerate(chosen):
            own = {"RANK": str(rank), "WORLD_SIZE": str(len(chosen)), "LOCAL_RANK": "0"} if each else {}
            processes.append(subprocess.Popen(plan.inside(host.namespace, command), env=environment | own))
        codes = [process.wait() for process in processes]
    except OSError as error:
        raise UserError(f"{command[0]} does not start: {os.strerror(error.errno or 0)}") from error
    finally:
        for process in processes:
            process.kill()  # nothing to one that has ended
            process.wait()
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _wait() -> int:
    """Until Enter is pressed, or there is nobody who could."""
    if sys.stdin.isatty():
        print("Enter takes them down.", flush=True)
        sys.stdin.readline()
    return 0
