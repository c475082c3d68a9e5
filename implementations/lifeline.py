"""A process that a run started ends when the one that started it is gone, so that a kill leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import psutil

VARIABLE = "PARATRAIN_LAUNCHER"  # "host:pid" of the process that started this one
WATCH_S = 1.0


def mark() -> dict[str, str]:
    """The environment that ties processes started with it to this one."""
    return {VARIABLE: f"{socket.gethostname()}:{os.getpid()}"}


def hold_on() -> None:
    """End this process once the one that its environment names is gone; ranks on other machines cannot tell."""
    host, _, pid = os.environ.get(VARIABLE, "").rpartition(":")
    if not pid or host != socket.gethostname():
        return

    def watch() -> None:
        while psutil.pid_exists(int(pid)):
            time.sleep(WATCH_S)
        # A killed rank makes its MPI launcher end the others, also those that wait in MPI_Init, which holds Python's
        # lock so that their own watch never wakes; a rank that exits with a code before MPI_Init leaves them waiting.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
