"""A Spark session: started on one of four kinds of cluster, with one slot for each worker, and ended without remains.

Loads no pyspark until a session starts. There is one session at a time in a process, as there is one Spark context.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from implementations.cluster.hosts.plan import DRIVER, Host
from implementations.cluster.spark import gateway, java, setup, standalone
from implementations.errors import UserError
from implementations.lifeline import Guard

if TYPE_CHECKING:
    from pyspark import SparkContext

SETTINGS: dict[str, Any] = {
    "master": None,  # of cluster `given`
    "executor_memory_mb": 1024,
    "driver_memory_mb": 2048,
    "start_limit_s": 60.0,
    "properties": {},  # further ones of Spark's
}
REACH_LIMIT_S = 10.0
SLOTS_LIMIT_S = 45.0  # for a master that is there, to give what it has
POLL_S = 0.1
_PORTS = ("spark.driver.port", "spark.driver.blockManager.port", "spark.blockManager.port")
_current: Session | None = None


class Session:
    """A running session; made by ``start``.

    Attributes:
        context: Spark's context.
        workers, cluster: what was asked for.
        start_s: seconds that the start took, with master and workers of a standalone cluster.
        folder: for temporary files of the driver; removed at the end.
    """

    def __init__(
        self, context: SparkContext, guard: Guard, workers: int, cluster: str, start_s: float, folder: Path
    ) -> None:
        self.context, self.workers, self.cluster = context, workers, cluster
        self.start_s, self.folder, self._guard = start_s, folder, guard

    @property
    def master(self) -> str:
        """The address that Spark runs by."""
        return self.context.master

    @property
    def slots(self) -> int:
        """Tasks that can run at once, now."""
        return _slots(self.context)

    @property
    def driver_host(self) -> str:
        """The name by which executors reach this process."""
        return self.context.getConf().get("spark.driver.host")

    def stop(self) -> None:
        """End the session and every process of it; a second call does nothing."""
        global _current
        if _current is self:
            _current = None
            with contextlib.suppress(Exception):  # a Java that has died, or was killed, has nothing to stop
                self.context.stop()
            gateway.close(self._guard, self.folder)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def current() -> Session:
    """The session of this process; UserError when none runs."""
    if _current is None:
        raise UserError("no Spark session runs in this process: it takes a measured point to start one")
    return _current


def start(
    workers: int, cluster: str, settings: Mapping[str, Any] | None = None, hosts: Sequence[Host] = ()
) -> Session:
    """Start a session that can run ``workers`` tasks at once, each of one thread.

    Args:
        workers: slots to have.
        cluster: local (threads of one JVM), local_cluster (executors of their own), standalone (master and worker
            processes as well), or given (the master that ``settings`` names).
        settings: any of ``SETTINGS``, as in a tier's ``spark``.
        hosts: emulated ones for the processes of a standalone cluster, and for this one, which runs on its own there.

    Raises UserError, in one line, where there is no Java to run it, a port is taken, a master cannot be reached or has
    too few slots, or it takes more than ``start_limit_s``.
    """
    global _current
    if _current is not None:
        raise UserError("a Spark session runs already in this process: stop it before another starts")
    values = SETTINGS | {key: value for key, value in (settings or {}).items() if value is not None}
    began = time.monotonic()
    until = began + values["start_limit_s"]
    found = java.find()
    _check_ports(values["properties"])
    if cluster == "given":
        _check_reach(values["master"])
    address = next((host.address for host in hosts if host.role == DRIVER), setup.LOOPBACK)
    folder = Path(tempfile.mkdtemp(prefix="paratrain-spark-"))
    guard = Guard(folder)
    try:
        home = setup.spark_home(folder)
        environment = setup.environment(
            found.home_for(folder), home, folder, own=cluster != "given", address=address
        )
        memory_mb = values["executor_memory_mb"]
        if cluster == "local":
            master = f"local[{workers},4]"  # tries of a task, as elsewhere; alone it would have one
        elif cluster == "local_cluster":
            master = f"local-cluster[{workers},1,{memory_mb}]"
        elif cluster == "standalone":
            master = standalone.start(workers, memory_mb, home, environment, folder, guard, until, hosts)
        elif cluster == "given":
            master = values["master"]
        else:
            raise UserError(f"cluster {cluster!r}: allowed: local, local_cluster, standalone, given")
        properties = setup.properties(workers, cluster, values, folder, environment, address)
        properties |= values["properties"]
        context = gateway.start(master, properties, environment, guard, folder, until)
        slots_until = min(until, time.monotonic() + SLOTS_LIMIT_S) if cluster == "given" else until
        _await_slots(context, workers, master, slots_until)
    except BaseException:
        gateway.close(guard, folder)
        raise
    _current = Session(context, guard, workers, cluster, time.monotonic() - began, folder)
    return _current


def _await_slots(context: SparkContext, workers: int, master: str, until: float) -> None:
    """Return when all workers could start at once: a stage of them waits for the last, for ever if it must."""
    while (found := _slots(context)) < workers:
        if time.monotonic() > until:
            raise UserError(
                f"{master} has {found} slots of one core for {workers} workers: give it more, or lower workers"
            )
        time.sleep(POLL_S)


def _slots(context: SparkContext) -> int:
    java_context = context._jsc.sc()
    profile = java_context.resourceProfileManager().defaultResourceProfile()
    return java_context.maxNumConcurrentTasks(profile)


def _check_ports(properties: Mapping[str, Any]) -> None:
    """Fixed ports must be free; Spark would go on to the next one, which a firewall may not know."""
    for name in _PORTS:
        port = int(properties.get(name, 0))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                raise UserError(
                    f"{name}: port {port} cannot be had ({reason}): choose another, or 0 for any"
                ) from error


def _check_reach(master: str | None) -> None:
    """Whether a standalone or Kubernetes master answers at all; Spark itself takes a minute to find out."""
    if not master:
        raise UserError("cluster given: the tier names no master (spark: master), such as spark://HOST:7077")
    for address in master.split(","):  # standby masters have commas between them
        parts = urlsplit(
            address.removeprefix("k8s://") if "k8s://http" in address else f"//{address.split('//')[-1]}"
        )
        if not master.startswith(("spark://", "k8s://")):
            return
        try:
            with socket.create_connection((parts.hostname or "", parts.port or 443), REACH_LIMIT_S):
                return
        except (OSError, ValueError) as error:
            reason = str(error)
    raise UserError(f"master {master} (spark: master) cannot be reached: {reason}")
