"""A process that a run started ends when the one that started it is gone, so that a kill leaves nothing behind.

python -m implementations.lifeline FOLDER      what ``Guard`` starts: ends its charges when its standard input closes
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

VARIABLE = "PARATRAIN_LAUNCHER"  # "host:pid" of the process that started this one
WATCH_S = 1.0
END_POLL_S = 0.02
LAST_LIMIT_S = 30.0
ROOT = Path(__file__).resolve().parents[1]
GUARD = "implementations.lifeline"  # by which a guard's process is known


def mark() -> dict[str, str]:
    """The environment that ties processes started with it to this one."""
    return {VARIABLE: f"{socket.gethostname()}:{os.getpid()}"}


def hold_on() -> None:
    """End this process once the one that its environment names is gone; ranks on other machines cannot tell."""
    launcher = launcher_in(os.environ)
    if launcher is None:
        return

    def watch() -> None:
        while psutil.pid_exists(launcher):
            time.sleep(WATCH_S)
        # A killed rank makes its MPI launcher end the others, also those that wait in MPI_Init, which holds Python's
        # lock so that their own watch never wakes; a rank that exits with a code before MPI_Init leaves them waiting.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def launcher_in(environment: Mapping[str, str]) -> int | None:
    """The process on this host that an environment ties to; None where it ties to none, or to another host's."""
    host, _, pid = environment.get(VARIABLE, "").rpartition(":")
    return int(pid) if pid and host == socket.gethostname() else None


class Guard:
    """Programs that cannot watch for themselves, such as Java's, and the folder they use.

    A process beside this one starts them. When ``close`` is called, or this process ends in whatever way, they and
    their descendants are killed, and the folder is removed.
    """

    def __init__(self, folder: Path) -> None:
        """``folder``: exists, and is the guard's to remove."""
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", GUARD, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": paths},
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is not meant for it
        )

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start a program whose output goes to ``log``."""
        self._tell({"start": list(command), "environment": dict(environment), "log": str(log)})

    def adopt(self, pid: int) -> None:
        """Take care of a process that runs already."""
        self._tell({"adopt": pid})

    def at_end(self, command: Sequence[str]) -> None:
        """Have a command run once all of them have ended, to give back what is no process."""
        self._tell({"at_end": list(command)})

    def close(self) -> None:
        """End them all; returns when nothing is left. A second call does nothing."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, order: dict[str, object]) -> None:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()


def _keep_guard(folder: Path) -> None:
    """Follow the orders on standard input to its end."""
    charges: list[psutil.Process] = []
    last: list[list[str]] = []
    for line in sys.stdin:
        order = json.loads(line)
        with contextlib.suppress(
            OSError, psutil.NoSuchProcess
        ):  # whoever gave the order sees that nothing runs
            if "adopt" in order:
                charges.append(psutil.Process(order["adopt"]))
                continue
            if "at_end" in order:
                last.append(order["at_end"])
                continue
            with open(order["log"], "ab") as log:
                started = subprocess.Popen(
                    order["start"],
                    env=order["environment"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            charges.append(psutil.Process(started.pid))
    end(charges)
    for command in last:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=LAST_LIMIT_S)
    shutil.rmtree(folder, ignore_errors=True)


def end(processes: Sequence[psutil.Process], limit_s: float = 10.0) -> None:
    """Kill processes and all below them, and wait for their end; one that has gone, or whose pid is another's, not."""
    family: dict[int, psutil.Process] = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running():
                family |= {one.pid: one for one in (process, *process.children(recursive=True))}
    for one in family.values():  # parents before their children, which a parent may replace
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    until = time.monotonic() + limit_s
    while any(map(_runs, family.values())) and time.monotonic() < until:
        time.sleep(END_POLL_S)


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended; one that its parent has not asked about yet has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # of a whole group: its charges end with the one it guards them for
    _keep_guard(Path(sys.argv[1]))
