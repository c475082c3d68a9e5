"""Emulated hosts made and taken down again, whatever becomes of the process that made them.

    with network.up(worker_roles(2), 100_000_000) as hosts: ...

python -m implementations.cluster.hosts.network remove PREFIX      what the guard of such a network runs at the end
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from implementations.cluster import ownership
from implementations.cluster.hosts.plan import Host, Plan
from implementations.cluster.ownership import Owner
from implementations.errors import UserError
from implementations.lifeline import END_POLL_S, GUARD, Guard

COMMAND_LIMIT_S = 20.0
REMOVE_LIMIT_S, GUARD_LIMIT_S = 10.0, 5.0


class Unavailable(UserError):
    """This machine, or this user, cannot have emulated hosts: points on them are skipped, with this reason."""


class Network:
    """Hosts that are up. ``plan``: names and addresses; ``folder``: for files of their users, removed at the end."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder

    def named(self, role: str) -> Host:
        """The host of a role."""
        return next(host for host in self.plan.hosts if host.role == role)


def why_not() -> str | None:
    """Why emulated hosts cannot be had, as far as can be told without trying; None where nothing speaks against it."""
    if not sys.platform.startswith("linux"):
        return "emulated hosts are network namespaces, which Linux alone has"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"emulated hosts need {' and '.join(missing)} (Debian's package iproute2)"
    if os.geteuid() != 0:
        return (
            "emulated hosts are network namespaces, which only root may make: run as root, or in a container"
        )
    return None


@contextlib.contextmanager
def up(roles: Iterable[str], bits_per_s: int | None = None) -> Iterator[Network]:
    """Hosts of these roles for the time of the block. What crashed runs have left is removed first.

    A guard beside this process takes them down, with all that still runs on them, at the block's end or when this
    process is gone. Raises Unavailable with the reason where they cannot be had.
    """
    if reason := why_not():
        raise Unavailable(reason)
    sweep()
    ownership.sweep_folders()  # of guards that were killed as well
    plan = Plan(ownership.new_prefix(), tuple(roles), bits_per_s)
    folder = ownership.make_folder(plan.prefix, "hosts")
    guard = Guard(folder)
    guard.at_end([sys.executable, "-m", "implementations.cluster.hosts.network", "remove", plan.prefix])
    try:
        for command in plan.making():
            _run(command)
        yield Network(plan, folder)
    finally:
        guard.close()


def _run(command: list[str]) -> str:
    """What a command says; Unavailable with its complaint where it fails."""
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"`{' '.join(command)}` does not run: {error}") from error
    if answer.returncode:
        said = (answer.stderr or answer.stdout).strip().splitlines() or [f"exit status {answer.returncode}"]
        what = "has no limits of rate (tbf)" if command[0] == "tc" else "does not allow network namespaces"
        raise Unavailable(f"this kernel or container {what}: `{' '.join(command)}` said: {said[0]}")
    return answer.stdout


def namespaces() -> list[str]:
    """All of this machine that bear a name of ours."""
    try:
        names = [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line.strip()]
    except Unavailable:
        return []
    return [name for name in names if Owner.of(name)]


def sweep() -> list[str]:
    """Remove the namespaces whose owner is gone, with what runs in them; returns their names."""
    stale = [name for name in namespaces() if not Owner.of(name).lives]
    _remove(stale)
    return stale


def remove(prefix: str) -> None:
    """Remove the namespaces of one network, with what runs in them."""
    _remove([name for name in namespaces() if name.startswith(f"{prefix}-")])


def _remove(names: list[str]) -> None:
    """A namespace lives on, nameless, while a process is in it: these are ended first."""
    began = time.monotonic()
    while inhabitants := [process for name in names for process in _inhabitants(name)]:
        waited_s = time.monotonic() - began
        if waited_s > REMOVE_LIMIT_S:
            break
        for process in inhabitants:
            with contextlib.suppress(psutil.NoSuchProcess):
                # guards of what ran there, Spark's say, have their own to clean up, and end then
                if waited_s > GUARD_LIMIT_S or GUARD not in process.cmdline():
                    process.kill()
        time.sleep(END_POLL_S)
    for name in names:
        with contextlib.suppress(Unavailable):  # the guard of a process that was just killed removes the same
            _run(["ip", "netns", "delete", name])


def _inhabitants(name: str) -> list[psutil.Process]:
    """The processes in a namespace, this one aside."""
    found = []
    with contextlib.suppress(Unavailable):
        for pid in map(int, _run(["ip", "netns", "pids", name]).split()):
            with contextlib.suppress(psutil.NoSuchProcess):
                if pid != os.getpid():
                    found.append(psutil.Process(pid))
    return found


if __name__ == "__main__":
    remove(sys.argv[2])
