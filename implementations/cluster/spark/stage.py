"""A barrier stage: Spark starts all workers at once, and torch.distributed (gloo) joins them while they run.

The driver hosts the store by which the workers find each other. Spark's own ``allGather`` would do, but looks for an
answer once a second. A stage that loses a process is tried again by Spark; its workers meet under the attempt's number.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implementations.cluster.interfaces import interface_towards
from implementations.cluster.spark.session import Session
from implementations.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import Store

START_LIMIT_S = 60.0  # until all workers run
AGAIN_LIMIT_S = 20.0  # of a stage that has lost a worker
MEET_LIMIT = datetime.timedelta(seconds=60)
WATCH_S = 0.5


class RankFailed(Exception):
    """A worker ended by an exception. ``story`` is its traceback; empty where it says all to a user."""

    def __init__(self, rank: int, reason: str, story: str) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.rank, self.reason, self.story = rank, reason, story


@dataclass(frozen=True)
class Outcome:
    """What the workers returned, in the order of ranks, and how many times the stage was tried."""

    values: list[Any]
    attempts: int


@dataclass(frozen=True)
class _Meeting:
    """Where and how the workers of a stage meet; sent to all of them."""

    host: str
    port: int
    workers: int
    threads: int
    limit_s: float
    log: str | None


@dataclass(frozen=True)
class _Ended:
    """How a worker ended: ``order`` counts those that failed, from 1; 0 for one that did not.

    ``value`` is what it returned, or the reason of its failure.
    """

    order: int
    value: Any
    story: str = ""


def run_in_barrier(
    session: Session,
    workers: int,
    function: Callable[[int], Any],
    limit_s: float,
    threads: int = 1,
    log: Path | None = None,
) -> Outcome:
    """Run ``function(rank)`` on each of ``workers``, joined as torch.distributed's world, and return what they return.

    Args:
        session: the running session.
        workers: tasks of the stage, one a slot.
        function: what can be pickled; what it returns too.
        limit_s: how long a worker waits for another before it fails.
        threads: of torch in each worker.
        log: file that all workers can reach, for what they print; Spark's own logs unless given.

    Raises RankFailed for the first worker that raised; UserError when there are too few slots, the workers do not
    start, or Spark has given up after losing processes several times.
    """
    if (slots := session.slots) < workers:
        raise UserError(f"{session.master} has {slots} slots for {workers} workers: lower workers")
    from torch.distributed import TCPStore

    host = session.driver_host
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    meeting = _Meeting(host, port, workers, threads, limit_s, None if log is None else str(log))
    task = functools.partial(_run_rank, meeting, function)
    lost = 0
    for again in (True, False):
        group = uuid.uuid4().hex
        try:
            with _watched(session, group, workers) as given_up:
                ended = _collected(session, task, workers, group, given_up)
            break
        except UserError:
            # Now and then a stage that Spark tries again after a loss never gets its slots back; a new job does.
            tried = max((one.currentAttemptId for one in _stages(session, group)), default=0)
            if not (again and given_up and tried):
                raise
            lost += 1 + tried
    attempts = lost + 1 + max(one.currentAttemptId for one in _stages(session, group))
    del store  # it lives as long as the workers may ask
    failures = [(one.order, rank) for rank, one in enumerate(ended) if one.order]
    if failures:
        _, rank = min(failures)
        raise RankFailed(rank, ended[rank].value, ended[rank].story)
    return Outcome([one.value for one in ended], attempts)


def _collected(
    session: Session, task: Callable[..., Any], workers: int, group: str, given_up: list[str]
) -> list[_Ended]:
    """Run the stage; how each worker ended, by rank."""
    from py4j.protocol import Py4JError

    context = session.context
    context.setJobGroup(group, "workers that exchange among themselves")
    try:
        stage = context.parallelize(range(workers), workers).barrier().mapPartitions(task)
        # Spark tries a stage of barrier tasks again only where another stage follows, which gathers what they return.
        ended = dict(stage.partitionBy(1).collect())
    except Py4JError as error:
        lost = f"Spark gave up, after it had lost workers several times; the last time: {_reason(error)}"
        raise UserError(given_up[0] if given_up else lost) from error
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    return [ended[rank] for rank in range(workers)]


@contextlib.contextmanager
def _watched(session: Session, group: str, workers: int) -> Iterator[list[str]]:
    """Cancel the group's job when its workers do not all run; yields a list for the reason."""
    over, reason = threading.Event(), []

    def watch() -> None:
        since = time.monotonic()
        while not over.wait(WATCH_S):
            stages = _stages(session, group)
            if any(one.numActiveTasks + one.numCompletedTasks >= workers for one in stages):
                since = time.monotonic()
            elif time.monotonic() - since > (
                AGAIN_LIMIT_S if any(one.currentAttemptId for one in stages) else START_LIMIT_S
            ):
                reason.append(
                    f"{session.master}: the {workers} workers did not all start within {START_LIMIT_S:g} s "
                    f"({session.slots} slots)"
                )
                session.context.cancelJobGroup(group)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield reason
    finally:
        over.set()
        watcher.join(10 * WATCH_S)


def _stages(session: Session, group: str) -> list[Any]:
    """What Spark tells of the stages of a group's job."""
    tracker = session.context.statusTracker()
    jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
    return list(filter(None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds)))


def _reason(error: Exception) -> str:
    """The telling line of a Java exception: Spark says which task it was before it says what had happened to it."""
    text = str(getattr(error, "java_exception", None) or error)
    _, _, recent = text.partition("Most recent failure reason:")
    lines = [line.strip() for line in (recent or text).splitlines() if line.strip()]
    line = lines[1 if recent and len(lines) > 1 else 0].removeprefix("org.apache.spark.SparkException: ")
    return line.partition(". ")[0]


# In a worker


def _run_rank(
    meeting: _Meeting, function: Callable[[int], Any], rows: Iterable[int]
) -> Iterator[tuple[int, _Ended]]:
    """One worker of the stage. An exception is a result: tried again it would come again."""
    import torch.distributed as dist
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    rank = context.partitionId()
    # Python's workers are not told the number of the stage's attempt; but Spark numbers an attempt's tasks, which it
    # starts at once, one after the other.
    attempt = context.taskAttemptId() - rank
    with _output_to(meeting.log):
        everyone = dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=MEET_LIMIT)
        store = dist.PrefixStore(f"attempt{attempt}", everyone)
        try:
            _join(meeting, store, rank)
            ended = _Ended(0, function(rank))
        except Exception as error:
            user = isinstance(error, UserError)
            reason = str(error) if user else f"{type(error).__name__}: {error}"
            # counted before the connections close, so that the first is the one that made the others fail
            ended = _Ended(store.add("failed", 1), reason, "" if user else traceback.format_exc())
        _leave_together(store, meeting, failed=ended.order > 0)
    yield rank, ended


def _leave_together(store: Store, meeting: _Meeting, failed: bool) -> None:
    """Close the connections when nobody needs them: after a failure at once, so that the others fail too."""
    import torch.distributed as dist

    from implementations.cluster.sockets import close_all

    if store.add("ended", 1) == meeting.workers:
        store.set("all ended", "")
    if not failed:
        with contextlib.suppress(RuntimeError):  # one that was lost never ends, and the stage is tried again
            store.wait(["all ended"], datetime.timedelta(seconds=meeting.limit_s))
    close_all()
    if dist.is_initialized():
        dist.destroy_process_group()


def _join(meeting: _Meeting, store: Store, rank: int) -> None:
    """Threads, and the process group."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(meeting.threads)
    with contextlib.suppress(RuntimeError):  # a process that Spark uses again has it set
        torch.set_num_interop_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(meeting.host, meeting.port)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=meeting.workers,
        timeout=datetime.timedelta(seconds=meeting.limit_s),
    )


@contextlib.contextmanager
def _output_to(path: str | None) -> Iterator[None]:
    """What this process prints goes to a file for a while."""
    if path is None:
        yield
        return
    kept = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        import sys

        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(log)
