"""The driver of measured points on Spark: one session serves them all. Started by ``implementations.run``.

python -m implementations.spark_worker JOB.json

Workers are tasks of a barrier stage that train among themselves; or the driver trains, and each exchange is a job.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implementations import lifeline, record, registry
from implementations.cluster.hosts.plan import Host
from implementations.point import Point
from implementations.worker import leave_reason, log_to, mark_started, told, train, write_record

if TYPE_CHECKING:
    from implementations.cluster.spark.session import Session


def main(job_path: str) -> int:
    """Train every point of the job; the first failure ends this process, and the session with it."""
    lifeline.hold_on()
    job = json.loads(Path(job_path).read_text())
    results = Path(job["results"])

    import torch  # after the thread variables were set by the launcher

    from implementations.cluster.spark import session
    from implementations.cluster.spark.stage import RankFailed

    points = [Point.from_json(entry["point"]) for entry in job["points"]]
    point = points[0]
    torch.set_num_threads(point.threads_per_worker)
    torch.set_num_interop_threads(1)
    log_to(record.log_path(results, point.run_id))
    try:
        hosts = [Host(**values) for values in job.get("hosts", [])]
        with session.start(point.workers, job["cluster"], job["spark"], hosts) as running:
            for point, entry in zip(points, job["points"]):
                log_to(record.log_path(results, point.run_id))
                mark_started(results, point)
                values = run_point(running, point, entry["code_hash"], results)
                write_record(results, point, entry, {"session_s": running.start_s, **values})
    except RankFailed as error:
        leave_reason(results, point, error.rank, error.reason, error.story)
        return 1
    except BaseException as error:
        leave_reason(results, point, None, *told(error))
        return 1
    return 0


def run_point(running: Session, point: Point, code_hash: str, results: Path) -> dict[str, Any]:
    """Train a point on the session's workers; the columns of its record that a run knows."""
    settings = registry.get(point.method).settings(point)
    if settings["execution"] == "job_per_exchange":
        from implementations.cluster.communicator import Communicator

        return train(point, code_hash, results, lambda ledger: Communicator(ledger, [0] * point.workers))
    from implementations.cluster.spark.stage import run_in_barrier

    outcome = run_in_barrier(
        running,
        point.workers,
        functools.partial(train_rank, point.to_json(), code_hash, str(results.resolve())),
        limit_s=point.time_limit_s,
        threads=point.threads_per_worker,
        log=record.log_path(results, point.run_id).resolve(),
    )
    return outcome.values[0] | {"stage_attempts": outcome.attempts, "spark_jobs": 1}


def train_rank(point: dict[str, Any], code_hash: str, results: str, rank: int) -> dict[str, Any] | None:
    """Train in one task of the stage, a rank of torch.distributed; rank 0 returns what is to be known."""
    from implementations.cluster.sockets import SocketCommunicator

    values = train(Point.from_json(point), code_hash, Path(results), SocketCommunicator)
    return values if rank == 0 else None


if __name__ == "__main__":
    # Spark's processes import what they are to run by its module's name, which this one is not called here.
    from implementations import spark_worker

    sys.exit(spark_worker.main(sys.argv[1]))
