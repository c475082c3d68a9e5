"""One process of a run: trains the points of a job one after the other. Started by ``implementations.run``.

python -m implementations.worker JOB.json             (hosts all workers of simulated points)
mpiexec -n 4 python -m implementations.worker JOB.json (one rank of measured points; or srun, or torchrun)
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implementations import lifeline, record
from implementations.errors import UserError
from implementations.point import Point

if TYPE_CHECKING:
    from implementations.cluster.communicator import Communicator
    from implementations.cluster.ledger import Ledger


def main(job_path: str) -> int:
    """Train every point of the job; the first failure ends this process, since ranks may no longer agree."""
    lifeline.hold_on()
    job = json.loads(Path(job_path).read_text())
    results = Path(job["results"])

    import torch  # after the thread variables were set by the launcher

    points = [Point.from_json(entry["point"]) for entry in job["points"]]
    torch.set_num_threads(points[0].threads_per_worker)
    torch.set_num_interop_threads(1)
    try:
        ranks = Ranks.of(points, Path(job_path).parent)
    except BaseException as error:
        leave_reason(results, points[0], None, *told(error))
        os._exit(1)  # without a farewell to MPI, so that its launcher ends the others
    if ranks.lacks:
        if ranks.rank == 0:
            skip(results, points, job["points"], ranks.lacks)
        return 0
    for point, entry in zip(points, job["points"]):
        log_to(record.log_path(results, point.run_id))
        if ranks.rank == 0:
            mark_started(results, point)
        try:
            values = train(point, entry["code_hash"], results, ranks.communicator(point))
        except BaseException as error:  # a rank must end the others, whatever happened to it
            try:  # a full disk may be the reason: whatever fails here, the other ranks must not wait
                leave_reason(results, point, ranks.rank, *told(error))
            finally:
                ranks.abort()
        if ranks.rank == 0:
            write_record(results, point, entry, {"mpi": ranks.library, **values})
    ranks.leave()
    return 0


@dataclass(frozen=True)
class Ranks:
    """The processes of a job, of which this is one; ``mpi`` where MPI was loaded, for it joins or has started them.

    lacks: the reason, the same in all, why the job's points cannot run here.
    """

    rank: int
    size: int
    mpi: Any = None
    joined: bool = False  # by torch.distributed
    lacks: str | None = None

    @classmethod
    def of(cls, points: Sequence[Point], folder: Path) -> Ranks:
        """Those of the job, whose points all need the same; ``folder`` is its own."""
        point = points[0]
        if point.transport == "torch" and point.evidence == "measured":
            return cls._of_torch(point, max(point.time_limit_s for point in points), folder)
        if point.processes == 1 and point.evidence != "measured":
            return cls(0, 1)
        mpi = _mpi()
        return cls(mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size, mpi)

    @classmethod
    def _of_torch(cls, point: Point, limit_s: float, folder: Path) -> Ranks:
        from implementations import devices
        from implementations.cluster import rendezvous

        loaded: list[Any] = []

        def load() -> Any:
            loaded.append(_mpi())
            return loaded[0]

        world = rendezvous.find(point.workers, load, folder)
        local = devices.local_rank(world.rank, world.on_host) if point.device != "cpu" else 0
        lacks = devices.take_up(point.device, world.rank, local, world.gather)
        if lacks is None:
            rendezvous.join(world, point.device, limit_s)
        return cls(world.rank, world.size, loaded[0] if loaded else None, lacks is None, lacks)

    @property
    def library(self) -> str | None:
        """The MPI that joins the processes."""
        if self.mpi is None or self.joined:
            return None
        return self.mpi.Get_library_version().split("\n")[0].rstrip("\0").replace("\t", " ")

    def communicator(self, point: Point) -> Callable[[Ledger], Communicator]:
        """A maker of the point's communicator around a ledger."""
        if self.joined:
            from implementations.cluster.distributed import DistributedCommunicator

            return lambda ledger: DistributedCommunicator(ledger, "cpu" if point.device == "cpu" else None)
        world = self.mpi.COMM_WORLD if self.mpi else None
        if point.evidence == "measured":
            from implementations.cluster.mpi import MpiCommunicator

            if self.size != point.workers:
                raise UserError(f"{point.workers} ranks were asked for, {self.size} started")
            return lambda ledger: MpiCommunicator(ledger, world)
        from implementations.cluster.simulated import SimulatedCommunicator

        return lambda ledger: SimulatedCommunicator(point.workers, ledger, world)

    def abort(self) -> None:
        """End all of them."""
        if self.mpi and self.size > 1:
            self.mpi.COMM_WORLD.Abort(1)
        os._exit(1)

    def leave(self) -> None:
        """End well, after the last point."""
        if not self.joined:
            return
        from implementations.cluster import rendezvous

        rendezvous.leave()
        if self.mpi:
            self.mpi.Finalize()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # torch's own threads sometimes abort a process that leaves by itself


def skip(results: Path, points: Sequence[Point], entries: Sequence[dict[str, Any]], reason: str) -> None:
    """Record that none of a job's points can run here."""
    for point, entry in zip(points, entries):
        log_to(record.log_path(results, point.run_id))
        print(reason, flush=True)
        mark_started(results, point)
        write_record(results, point, entry, {"status": "skipped", "reason": reason})


def train(
    point: Point, code_hash: str, results: Path, communicator: Callable[[Ledger], Communicator]
) -> dict[str, Any]:
    """Train a point in this process, which reports its progress; the columns of its record that a run knows."""
    from implementations.harness import run_point

    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    print(f"{started_at} {point.run_id}: {json.dumps(point.identity())}", flush=True)
    reporter = _ProgressFile(results / "runs" / point.run_id / "progress.json")
    values = run_point(point, communicator, results, reporter, code_hash)
    print(f"{point.run_id}: {values['status']}", json.dumps(values, default=str), flush=True)
    return values | {"started_at": started_at}


def write_record(results: Path, point: Point, entry: dict[str, Any], values: dict[str, Any]) -> None:
    """Complete a run's values by those of point, host and job, and write them; its checkpoint is not needed more."""
    from implementations import host
    from implementations.checkpoint import Checkpoints

    threads = point.processes * point.threads_per_worker
    values = {
        **record.identity(point),
        **host.describe(),
        "oversubscribed": threads > host.cores(),
        "code_commit": host.code_commit(),
        "code_hash": entry["code_hash"],
        "attempts": entry["attempts"],
        "log_path": str(record.log_path(results, point.run_id)),
        **values,
    }
    record.write(results, values)
    Checkpoints(results / "runs" / point.run_id / "checkpoint", 0, lambda: None).clear()


def leave_reason(results: Path, point: Point, rank: int | None, reason: str, story: str = "") -> None:
    """Leave for the launcher why this process ends; ``rank`` where it is that of one. The story goes to the log."""
    print(f"{story}{'' if rank is None else f'rank {rank}: '}{reason}", file=sys.stderr, flush=True)
    failure = json.dumps({"rank": rank, "reason": reason.split("\n")[0]})
    path = failure_path(results, point.run_id)
    if not path.exists():  # the first to fail has the reason; the others only miss that one
        record.write_text(path, failure)


def told(error: BaseException) -> tuple[str, str]:
    """The reason that an exception gives, and its traceback unless it says all to a user."""
    if isinstance(error, UserError):
        return str(error), ""
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def failure_path(results: Path, run_id: str) -> Path:
    """Where a dying process leaves its reason."""
    return results / "runs" / run_id / "failure.json"


def started_path(results: Path, run_id: str) -> Path:
    """Where a process says that it began a point."""
    return results / "runs" / run_id / "started.json"


def mark_started(results: Path, point: Point) -> None:
    """Tell the launcher that a point has begun."""
    failure_path(results, point.run_id).unlink(missing_ok=True)
    record.write_text(started_path(results, point.run_id), json.dumps({"time": time.time()}))


class _ProgressFile:
    """Writes steps done for the launcher's progress bar, at most twice a second."""

    def __init__(self, path: Path) -> None:
        self._path, self._written = path, 0.0

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._written > 0.5:
            self._written = time.monotonic()
            record.write_text(self._path, json.dumps({"done": done, "total": total}))


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(f"mpi4py cannot load an MPI library ({error}); run `make doctor`") from error
    return MPI


def log_to(path: Path) -> None:
    """Send what this process prints, C libraries included, to the point's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
