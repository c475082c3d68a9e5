"""Runs points: starts their processes, watches them, and sees to it that each point leaves a record.

A point ends ``ok``, ``diverged`` or ``target_missed`` (its own process writes that record), ``failed`` (a process
died), ``timeout`` (it ran past its limit; its checkpoint stays, the next attempt goes on from there) or ``skipped``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from implementations import lifeline, record, registry
from implementations.cluster import leftovers, ownership
from implementations.cluster.hosts import network, ranks
from implementations.cluster.hosts.plan import DRIVER, MASTER, inside, is_emulated, rate_of, worker_roles
from implementations.cluster.launcher import find_launcher, launcher_kind, mpi_command, rank_environment
from implementations.codehash import point_code_hash
from implementations.data.summary import find_fault, read_summary
from implementations.errors import UserError
from implementations.point import Point
from implementations.progress import Bar
from implementations.worker import failure_path, started_path

START_LIMIT_S = 120.0  # from the start of the processes to the first point; loading torch takes 2 s
SESSION_LIMIT_S = 180.0  # more, for a Spark session, unless it gives up by itself before
BETWEEN_POINTS_S = 30.0
POLL_S = 0.1


@dataclass(frozen=True)
class Job:
    """Settings that all points of a call share."""

    results: Path
    launcher: dict[str, Any]
    grace_s: float = 15.0  # past a point's time limit, before its processes are ended
    spark: dict[str, Any] = field(default_factory=dict)  # a tier's, of the session of measured Spark points


def run_points(points: Sequence[Point], job: Job, bar: Bar) -> dict[str, str]:
    """Run each point that has no valid record yet; returns the status of every point by run id."""
    todo = [point for point in points if not _finished(point, job.results)]
    bar.start(len(points), len(points) - len(todo))
    if todo:
        leftovers.sweep()
    while todo:
        group = _same_processes(todo)
        done = _run_group(group, job, bar)
        todo = [point for point in todo if point not in done]
    return {point.run_id: _status(point, job.results) for point in points}


def _finished(point: Point, results: Path) -> bool:
    """Whether a record of the same point, code and data stands; its experiments are brought up to date."""
    path = record.record_path(results, point.run_id)
    try:
        values = record.read(path)
    except (OSError, UserError):
        return False
    if values["status"] not in record.FINISHED or values["code_hash"] != point_code_hash(point):
        return False
    folder = results / "data" / point.dataset
    if find_fault(folder) or values["data_hash"] != read_summary(folder)["data_hash"]:
        return False
    if values["experiments"] != list(point.experiments):
        record.write(results, values | {"experiments": list(point.experiments)})
    return True


def _same_processes(points: list[Point]) -> list[Point]:
    """The first point and those that can follow it in the same processes."""

    def kind(point: Point) -> tuple[Any, ...]:
        session = session_of(point)
        where = point.device, point.transport, point.network, session
        return point.evidence == "measured", point.processes, point.threads_per_worker, *where

    return [point for point in points if kind(point) == kind(points[0])]


def _run_group(points: list[Point], job: Job, bar: Bar) -> list[Point]:
    """Run points in one set of processes up to the first failure; returns those that now have a record."""
    first = points[0]
    entries = []
    for point in points:
        attempts = record.next_attempt(job.results, point.run_id) or 1
        entries.append({"point": point.to_json(), "attempts": attempts, "code_hash": point_code_hash(point)})
        for path in (record.record_path, started_path, failure_path):
            path(job.results, point.run_id).unlink(missing_ok=True)
    if fault := find_fault(job.results / "data" / first.dataset):
        reason = (
            f"data set {first.dataset!r}: {fault}; run: python -m implementations prepare {first.dataset}"
        )
        same = [index for index, point in enumerate(points) if point.dataset == first.dataset]
        return _record_all([points[i] for i in same], [entries[i] for i in same], job, "failed", reason)
    emulated = first.evidence == "measured" and is_emulated(first.network)
    with contextlib.ExitStack() as stack:
        try:
            command = mpi_command(first.processes, job.launcher, spread=emulated) if _uses_mpi(first) else []
            hosts = stack.enter_context(_hosts(first, job)) if emulated else None
        except network.Unavailable as error:
            return _record_all(points, entries, job, "skipped", str(error))
        except UserError as error:
            return _record_all(points, entries, job, "failed", str(error))
        job_file = stack.enter_context(ownership.folder("job")) / "job.json"
        values: dict[str, Any] = {"results": str(job.results), "points": entries}
        if session_of(first):
            values |= {"cluster": session_of(first), "spark": job.spark}
            values |= {"hosts": [asdict(host) for host in hosts.plan.hosts] if hosts else []}
        job_file.write_text(json.dumps(values))
        log = record.log_path(job.results, first.run_id)
        log.parent.mkdir(parents=True, exist_ok=True)
        output = stack.enter_context(log.open("ab"))
        process = stack.enter_context(_processes(first, command, job_file, hosts, output))
        return _watch(process, points, entries, job, bar)


def _hosts(point: Point, job: Job) -> contextlib.AbstractContextManager[network.Network]:
    """Emulated hosts for a block, one for each worker; Spark's driver and master have their own."""
    roles = worker_roles(point.workers)
    if session_of(point):
        roles += (DRIVER, MASTER)
    elif (kind := launcher_kind(find_launcher(job.launcher))) not in ranks.KINDS:
        raise network.Unavailable(
            f"MPI launcher of kind {kind}: on emulated hosts ranks are started by one of {', '.join(ranks.KINDS)}"
        )
    return network.up(roles, rate_of(point.network))


def session_of(point: Point) -> str | None:
    """The kind of Spark cluster that the point's workers run on, if on any."""
    return registry.get(point.method).session(point)


def _uses_mpi(point: Point) -> bool:
    return session_of(point) is None and (point.evidence == "measured" or point.processes > 1)


@contextlib.contextmanager
def _processes(
    point: Point, command: list[str], job_file: Path, hosts: network.Network | None, output: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """The processes of a job; whatever is left of them is ended at the end of the block.

    ``hosts``: emulated ones on which they run; of MPI's launcher, or of Spark's driver, here.
    """
    environment = rank_environment(point.threads_per_worker) | lifeline.mark()
    module = "implementations.worker"
    if session_of(point):
        module = "implementations.spark_worker"
        environment["TMPDIR"] = str(job_file.parent)  # so that a kill leaves nothing there
    words = [*command, sys.executable, "-m", module, str(job_file)]
    if hosts:
        environment |= ranks.environment(hosts)
        words = inside(hosts.named(DRIVER if session_of(point) else "h0").namespace, words)
    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    known: dict[int, psutil.Process] = {}
    process.known = known  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        _remember(process)
        _end(process, known)


def _remember(process: subprocess.Popen[bytes]) -> None:
    """Note the descendants: a launcher that dies leaves its ranks without a parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            process.known[child.pid] = child  # type: ignore[attr-defined]


def _end(process: subprocess.Popen[bytes], known: dict[int, psutil.Process]) -> None:
    for child in known.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()  # psutil checks the start time, so that a reused pid is safe
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(list(known.values()), timeout=10)


def _watch(
    process: subprocess.Popen[bytes], points: list[Point], entries: list[dict[str, Any]], job: Job, bar: Bar
) -> list[Point]:
    """Follow the points in order; returns those that have a record when the processes have ended."""
    start_limit_s = START_LIMIT_S + (SESSION_LIMIT_S if session_of(points[0]) else 0)
    deadline = time.time() + start_limit_s
    known_at = 0.0
    for index, point in enumerate(points):
        started = False
        while not record.record_path(job.results, point.run_id).exists():
            now = time.time()
            if now - known_at > 1:
                _remember(process)
                known_at = now
            if not started and (began := _read(started_path(job.results, point.run_id))):
                started = True
                deadline = began["time"] + point.time_limit_s + job.grace_s
                bar.begin(point)
            if process.poll() is not None:
                if record.record_path(job.results, point.run_id).exists():
                    break
                return _after_death(process, points, entries, index, started, job, bar)
            if now > deadline:
                reason = (
                    f"ran past its limit of {point.time_limit_s:g} s; the next start goes on from its checkpoint"
                    if started
                    else f"its processes did not start within {start_limit_s:g} s"
                )
                _write(point, entries[index], job, "timeout", reason)
                bar.end(point, "timeout", reason)
                return points[: index + 1]
            bar.update(point, _read(job.results / "runs" / point.run_id / "progress.json"))
            time.sleep(POLL_S)
        bar.end(point, _status(point, job.results), "")
        deadline = time.time() + BETWEEN_POINTS_S
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(BETWEEN_POINTS_S)
    return list(points)


def _after_death(
    process: subprocess.Popen[bytes],
    points: list[Point],
    entries: list[dict[str, Any]],
    index: int,
    started: bool,
    job: Job,
    bar: Bar,
) -> list[Point]:
    """Record why the point at ``index`` has none: all points where no process could even begin."""
    started = started or started_path(job.results, points[index].run_id).exists()  # since the last look
    failure = _read(failure_path(job.results, points[index].run_id))
    if failure:
        rank = "" if failure["rank"] is None else f"rank {failure['rank']}: "
        reason = f"{rank}{failure['reason']}"
    elif started:
        reason = f"a process died without a word (exit status {process.returncode})"
    else:
        reason = f"its processes ended before it began (exit status {process.returncode})"
    if not started:
        bar.end(points[index], "failed", reason)
        return points[:index] + _record_all(points[index:], entries[index:], job, "failed", reason)
    _write(points[index], entries[index], job, "failed", reason)
    bar.end(points[index], "failed", reason)
    return points[: index + 1]


def _record_all(
    points: list[Point], entries: list[dict[str, Any]], job: Job, status: str, reason: str
) -> list[Point]:
    for point, entry in zip(points, entries):
        _write(point, entry, job, status, reason)
    return list(points)


def _write(point: Point, entry: dict[str, Any], job: Job, status: str, reason: str) -> None:
    values = {
        **record.identity(point),
        "status": status,
        "reason": reason,
        "attempts": entry["attempts"],
        "code_hash": entry["code_hash"],
        "log_path": str(record.log_path(job.results, point.run_id)),
    }
    record.write(job.results, values)


def _status(point: Point, results: Path) -> str:
    return record.read(record.record_path(results, point.run_id))["status"]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
