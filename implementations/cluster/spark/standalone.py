"""A standalone cluster on this machine: one master and worker processes of one core each.

They are reached by the loopback, or run on emulated hosts, each on one of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from implementations.cluster.hosts.plan import DRIVER, MASTER, Host, inside
from implementations.cluster.spark import setup
from implementations.errors import UserError
from implementations.lifeline import Guard

POLL_S = 0.1
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
# A worker's book-keeping counts an executor's overhead beside its heap.
_WORKER_ROOM_MB = 1024


def start(
    workers: int,
    memory_mb: int,
    home: Path,
    environment: Mapping[str, str],
    folder: Path,
    guard: Guard,
    until: float,
    hosts: Sequence[Host] = (),
) -> str:
    """Start master and workers; returns the master's URL as soon as it answers, before workers have registered.

    Args:
        workers: processes, of one core each.
        memory_mb: heap of the executor on each.
        home: Spark's folder.
        environment: of all of them; has SPARK_CONF_DIR whose log configuration lets the master tell its address.
        folder: for logs and working folders.
        guard: what ends them.
        until: when to give up, on ``time.monotonic``'s clock.
        hosts: emulated ones, of workers, driver and master; none: all on the loopback.

    Raises UserError when no master has come up by then.
    """
    spark_class = str(home / "bin" / "spark-class")
    master = next((host for host in hosts if host.role == MASTER), None)
    theirs = [host for host in hosts if host.role not in (DRIVER, MASTER)] or [None] * workers

    def launch(host: Host | None, program: str, words: list[str], log: Path) -> None:
        address = host.address if host else setup.LOOPBACK
        command = [spark_class, program, "--host", address, "--webui-port", "0", *words]
        guard.start(
            inside(host.namespace, command) if host else command,
            {**environment, **setup.addresses(address)},
            log,
        )

    log = folder / "master.log"
    launch(master, _MASTER, ["--port", "0"], log)
    url = _address(log, until)
    for number, host in enumerate(theirs):
        work = folder / f"worker{number}"
        work.mkdir()
        words = ["--cores", "1", "--memory", f"{memory_mb + _WORKER_ROOM_MB}m", "--work-dir", str(work), url]
        launch(host, _WORKER, words, work / "worker.log")
    return url


def _address(log: Path, until: float) -> str:
    """What the master says it is reached by."""
    while time.monotonic() < until:
        text = log.read_text(errors="replace") if log.exists() else ""
        if found := re.search(r"Starting Spark master at (spark://\S+)", text):
            return found[1]
        if "Exception" in text or "Error" in text:
            line = next(line for line in text.splitlines() if "Exception" in line or "Error" in line)
            raise UserError(f"Spark's standalone master does not start: {line.strip()}")
        time.sleep(POLL_S)
    raise UserError("Spark's standalone master did not come up in time; look for other load on this machine")
