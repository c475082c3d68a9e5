"""python killed_executor.py executor|python RESULTS: a run by jobs that loses an executor in mid-step.

Prints, as JSON, whether one was killed, how far weights are from those of simulated workers, and whether bytes are the
same. A process of its own, as there is one Spark session a process.
"""

import contextlib
import dataclasses
import json
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
from training_runs import point_of, trained

from implementations.cluster.communicator import Communicator
from implementations.cluster.spark import session
from implementations.spark.cluster import Cluster

WORDS = {"executor": "CoarseGrainedExecutorBackend", "python": "pyspark.daemon"}
STEPS = 5
JOBS_A_STEP = 4  # two layers forward, one backward, and the update
collect = Cluster.collect


def measured():
    """Five steps of two workers; states are written down after the second and the fourth."""
    return point_of(
        "spark",
        2,
        evidence="measured",
        method_params={"execution": "job_per_exchange", "lineage_steps": 2, "cluster": "local_cluster"},
        data_size=2 * 4 * STEPS,
        epochs=1,
        minibatch=4,
        model={"name": "fc", "hidden": [9]},
        recipe={"momentum": 0.9},
    )


def kill(word: str, killed: list[int]) -> None:
    """End the first process of that kind, a moment after a job has begun."""
    time.sleep(0.02)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(word in part for part in process.cmdline()):
                process.send_signal(signal.SIGKILL)
                killed.append(process.pid)
                return


def main(victim: str, results: Path) -> None:
    """See the module."""
    killed: list[int] = []

    def collect_and_kill(self, *arguments):
        # one for the writing after step 2; then in the fourth step, two steps away from what was written
        if self.jobs == 3 * JOBS_A_STEP + 1 + 2 and not killed:
            threading.Thread(target=kill, args=(WORDS[victim], killed)).start()
        return collect(self, *arguments)

    Cluster.collect = collect_and_kill
    with session.start(2, "local_cluster", {"executor_memory_mb": 640, "start_limit_s": 150.0}):
        disturbed = trained(measured(), results, lambda ledger: Communicator(ledger, [0, 0]))
    plain = trained(dataclasses.replace(measured(), evidence="simulated"), results)
    same = [one.columns()["sent_bytes_total"] for one in (plain, disturbed)]
    difference = (plain.net.theta_wp - disturbed.net.theta_wp).abs().max()
    print(json.dumps({"killed": killed, "difference": float(difference), "same_bytes": same[0] == same[1]}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
