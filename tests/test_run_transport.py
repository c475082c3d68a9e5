"""Points whose ranks torch joins, and points for GPUs that are not there, through real processes."""

import dataclasses
import shutil
import signal
import stat
import sys
import threading
import time

import psutil
import pytest
import torch
from training_runs import point_of, record_of, run_job

from implementations import record
from implementations.run import Job
from implementations.worker import started_path

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def job(results, tmp_path):
    (tmp_path / "data").symlink_to(results / "data")
    return Job(tmp_path, {"command": "auto", "args": []}, grace_s=1.0)


def measured(workers=2, method="averaging", **changes):
    return point_of(method, workers, evidence="measured", processes=workers, transport="torch", **changes)


def test_the_record_of_ranks_joined_by_torch(job):
    over_mpi = dataclasses.replace(measured(), transport="mpi")
    points = [measured(), over_mpi, point_of("averaging", 2)]
    assert list(run_job(points, job).values()) == ["ok"] * 3
    ours, theirs, simulated = (record_of(job, point) for point in points)
    assert [one["transport"] for one in (ours, theirs, simulated)] == ["torch", "mpi", None]
    assert (ours["mpi"], "MPI" in theirs["mpi"]) == (None, True)
    same = ("sent_bytes_total", "messages", "steps", "accuracy")
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert ours["comm_s"] > 0 and ours["peak_device_bytes"] is None and ours["gpu"] is None


def test_a_rank_that_is_killed_ends_the_point_and_spares_the_next(job):
    victim, after = measured(epochs=10**6, time_limit_s=60.0), measured(seed=9)
    outcome = {}
    thread = threading.Thread(target=lambda: outcome.update(run_job([victim, after], job)))
    thread.start()
    while not started_path(job.results, victim.run_id).exists():
        assert thread.is_alive()
        time.sleep(0.05)
    time.sleep(1.0)
    command = ["-m", "implementations.worker"]
    ranks = [one for one in psutil.Process().children(recursive=True) if one.cmdline()[1:3] == command]
    ranks[-1].send_signal(signal.SIGKILL)
    thread.join(60)
    assert outcome == {victim.run_id: "failed", after.run_id: "ok"}
    assert psutil.Process().children(recursive=True) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_points_for_a_gpu_are_skipped_where_there_is_none(job):
    points = [measured(device="cuda"), measured(1, "sequential", device="cuda"), measured()]
    points.insert(1, dataclasses.replace(points[0], seed=4))
    assert list(run_job(points, job).values()) == ["skipped"] * 3 + ["ok"]
    for point in points[:3]:
        values = record_of(job, point)
        assert values["reason"] == "device cuda: torch sees no GPU here"
        assert (values["device"], values["transport"], values["attempts"]) == ("cuda", "torch", 1)
        log = (job.results / "logs" / f"{point.run_id}.log").read_text()
        assert "Traceback" not in log and values["reason"] in log
    assert record.next_attempt(job.results, points[0].run_id) == 2  # another start may find one


@pytest.mark.skipif(shutil.which("torchrun") is None, reason="torchrun is not installed")
def test_torchrun_starts_the_ranks(job):
    job = dataclasses.replace(job, launcher={"command": "torchrun", "args": []})
    assert run_job([measured()], job) == {measured().run_id: "ok"}
    assert record_of(job, measured())["sent_bytes_total"] > 0


FAKE_SRUN = """#!{python}
import os, subprocess, sys
count = int(sys.argv[sys.argv.index("-n") + 1])
words = sys.argv[sys.argv.index({python!r}, 1):]
own = {{"SLURM_STEP_NUM_TASKS": str(count)}}
ranks = []
for rank in map(str, range(count)):
    own |= {{"SLURM_PROCID": rank, "SLURM_LOCALID": rank}}
    ranks.append(subprocess.Popen(words, env=os.environ | own))
sys.exit(max(rank.wait() for rank in ranks))
"""


def test_slurm_starts_the_ranks_without_an_mpi(job, tmp_path):
    """What srun tells its tasks is all that they have; a program of ours in its place."""
    srun = tmp_path / "srun"
    srun.write_text(FAKE_SRUN.format(python=sys.executable))
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    job = dataclasses.replace(job, launcher={"command": str(srun), "args": []})
    assert run_job([measured()], job) == {measured().run_id: "ok"}
    assert record_of(job, measured())["sent_bytes_total"] > 0
