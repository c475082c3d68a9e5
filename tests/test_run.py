"""Points through real processes: records always, nothing left behind, nothing finished lost."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest
from training_runs import point_of, record_of, run_job, trained

from implementations import record
from implementations.cluster.launcher import mpi_command, rank_environment
from implementations.run import Job
from implementations.worker import started_path

pytestmark = pytest.mark.timeout(180)
ENDLESS = 10**6  # epochs


@pytest.fixture
def job(results, tmp_path):
    """Records of its own, the prepared data of all."""
    (tmp_path / "data").symlink_to(results / "data")
    return Job(tmp_path, {"command": "auto", "args": []}, grace_s=1.0, spark={"start_limit_s": 150.0})


def measured(workers, **changes):
    return point_of("averaging", workers, evidence="measured", processes=workers, **changes)


def wait_for(condition, limit_s=60.0):
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def workers_of(process):
    """The ranks, not the launcher between."""
    command = ["-m", "implementations.worker"]
    return [child for child in process.children(recursive=True) if child.cmdline()[1:3] == command]


def test_points_of_all_kinds_leave_records_and_files(job):
    points = [
        point_of("sequential"),
        point_of("data_parallel", 4, lr=1e30),
        point_of("averaging", 4, target_value=0.999),
        point_of("averaging", 4, target_value=0.2),
        measured(2),
    ]
    statuses = run_job(points, job)
    assert list(statuses.values()) == ["ok", "diverged", "target_missed", "ok", "ok"]
    for point in points:
        values = record_of(job, point)
        assert values["attempts"] == 1
        assert {path.name for path in (job.results / "runs" / point.run_id).iterdir()} >= {
            "record.json",
            "curve.parquet",
            "trace.parquet",
        }
        assert point.run_id in (job.results / "logs" / f"{point.run_id}.log").read_text()
    two = record_of(job, points[4])
    assert two["wall_s"] > 0 and "MPI" in two["mpi"] and two["samples_per_s"] > 0
    simulated = record_of(job, points[3])
    assert simulated["wall_s"] is None and simulated["host_wall_s"] > 0 and simulated["target_reached"]
    assert simulated["sent_bytes_total"] == simulated["sent_bytes_predicted"] > 0


def test_a_finished_point_is_not_run_again_and_a_damaged_record_is(job):
    point = point_of("sequential")
    run_job([point], job)
    path = record.record_path(job.results, point.run_id)
    before = path.stat().st_mtime_ns
    run_job([point], job)
    assert path.stat().st_mtime_ns == before
    renamed = dataclasses.replace(point, experiments=("speedup/x",))
    run_job([renamed], job)
    assert record_of(job, point)["experiments"] == ["speedup/x"] and record_of(job, point)["attempts"] == 1
    path.write_text("{")
    assert run_job([point], job)[point.run_id] == "ok"


def test_a_record_of_other_code_is_run_again(job):
    point = point_of("sequential")
    run_job([point], job)
    values = record_of(job, point)
    record.write(job.results, values | {"code_hash": "0"})
    run_job([point], job)
    assert record_of(job, point)["code_hash"] == values["code_hash"]


def test_a_point_past_its_limit_times_out_and_goes_on_next_time(job):
    endless = point_of("sequential", epochs=800, time_limit_s=3.0, checkpoint_s=0.5)
    straight = point_of("sequential")
    statuses = run_job([endless, straight], job)
    assert list(statuses.values()) == ["timeout", "ok"]
    assert "limit of 3 s" in record_of(job, endless)["reason"]
    assert psutil.Process().children(recursive=True) == []
    assert record.next_attempt(job.results, endless.run_id) == 2
    longer = dataclasses.replace(endless, time_limit_s=120.0)
    assert run_job([longer], job)[endless.run_id] == "ok"
    values = record_of(job, endless)
    assert values["attempts"] == 2 and values["resumed"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stuck_rank_ends_the_point_and_spares_the_next(job, how):
    victim = measured(2, epochs=ENDLESS, time_limit_s=8.0)
    after = measured(2)
    outcome = {}
    thread = threading.Thread(target=lambda: outcome.update(run_job([victim, after], job)))
    thread.start()
    wait_for(started_path(job.results, victim.run_id).exists)
    time.sleep(1.0)
    workers_of(psutil.Process())[0].send_signal(how)
    thread.join(90)
    assert not thread.is_alive()
    assert outcome == {
        victim.run_id: "failed" if how == signal.SIGKILL else "timeout",
        after.run_id: "ok",
    }
    assert psutil.Process().children(recursive=True) == []
    assert record_of(job, victim)["reason"]


def test_a_killed_launcher_leaves_no_process(job):
    command = [
        *(sys.executable, "-m", "implementations", "train", "--method", "averaging", "--dataset", "digits"),
        *("--workers", "2", "--set", f"epochs={ENDLESS}", "--results", str(job.results)),
    ]
    launcher = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers = wait_for(lambda: len(found := workers_of(launcher)) == 2 and found)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    _, alive = psutil.wait_procs(workers, timeout=15)
    assert alive == []


def test_a_rank_that_waits_in_mpi_init_ends_with_the_launcher(job):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    rank = (
        "import os, socket, time\n"
        "from implementations import lifeline\n"
        "rank = int(os.environ['PMI_RANK'])\n"
        f"os.environ[lifeline.VARIABLE] = f'{{socket.gethostname()}}:{{[{gone.pid}, {os.getpid()}][rank]}}'\n"
        "if rank == 0: time.sleep(2)\n"  # the other is in MPI_Init by then
        "else: from mpi4py import MPI\n"
        "lifeline.hold_on()\n"
        "time.sleep(60)\n"
    )
    command = [*mpi_command(2, job.launcher), sys.executable, "-c", rank]
    ended = subprocess.run(command, env=rank_environment(1), capture_output=True, timeout=30, check=False)
    assert ended.returncode == signal.SIGKILL


def test_an_interrupted_launcher_ends_its_workers_at_once(job):
    command = [
        *(sys.executable, "-m", "implementations", "train", "--method", "averaging", "--dataset", "digits"),
        *("--workers", "2", "--set", f"epochs={ENDLESS}", "--results", str(job.results)),
    ]
    launcher = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    workers = wait_for(lambda: len(found := workers_of(launcher)) == 2 and found)
    launcher.send_signal(signal.SIGTERM)
    _, message = launcher.communicate(timeout=20)
    assert launcher.returncode == 130
    assert "interrupted" in message and "Traceback" not in message
    assert psutil.wait_procs(workers, timeout=5)[1] == []


def test_without_mpi_every_point_fails_with_the_way_out(job):
    broken = dataclasses.replace(job, launcher={"command": "/no/such/mpiexec", "args": []})
    points = [measured(2), measured(2, seed=4), point_of("sequential")]
    assert list(run_job(points, broken).values()) == ["failed", "failed", "ok"]
    assert "launcher" in record_of(job, points[0])["reason"]
    assert list(run_job(points, job).values()) == ["ok", "ok", "ok"]


def test_points_whose_data_are_missing_fail_at_once_and_spare_the_others(job):
    missing = [point_of("sequential", dataset="fashion_mnist", seed=seed) for seed in (1, 2)]
    assert list(run_job([*missing, point_of("sequential")], job).values()) == ["failed", "failed", "ok"]
    assert "prepare fashion_mnist" in record_of(job, missing[0])["reason"]
    assert not started_path(job.results, missing[1].run_id).exists()


def test_sizes_that_do_not_fit_fail_with_their_names(job):
    point = point_of("averaging", 100, minibatch=64)
    assert run_job([point], job)[point.run_id] == "failed"
    reason = record_of(job, point)["reason"]
    assert "minibatch 64" in reason and "Traceback" not in reason


# On Spark


def on_spark(workers=2, **changes):
    return point_of("spark", workers, paper="spark", evidence="measured", processes=workers, **changes)


@pytest.mark.slow
def test_points_on_spark_share_a_session_and_end_with_it(job, monkeypatch, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    by_jobs = {"execution": "job_per_exchange"}
    points = [
        on_spark(),
        on_spark(variant="data"),
        on_spark(variant="data", method_params=by_jobs, data_size=64, epochs=1),
        on_spark(epochs=ENDLESS, time_limit_s=3.0),
    ]
    assert list(run_job(points, job).values()) == ["ok", "ok", "ok", "timeout"]
    assert psutil.Process().children(recursive=True) == []
    assert list(temporary.iterdir()) == []
    ended = [record_of(job, point) for point in points[:3]]
    assert len({values["session_s"] for values in ended}) == 1
    for values in ended:
        assert values["mpi"] is None and values["spark_jobs"] >= 1
        assert values["sent_bytes_total"] == values["sent_bytes_predicted"] > 0
        assert values["wall_s"] > 0 and values["samples_per_s"] > 0
    assert [values["stage_attempts"] for values in ended[:2]] == [1, 1]
    simulated = trained(point_of("spark", 2), job.results).columns()
    assert ended[0]["train_loss"] == pytest.approx(simulated["train_loss"], rel=1e-6)
    log = (job.results / "logs" / f"{points[0].run_id}.log").read_text()
    assert log.count(f"{points[0].run_id}: ok") == 2  # what each worker prints


def test_a_session_that_cannot_start_fails_all_its_points_at_once(job):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broken = dataclasses.replace(job, spark={"properties": {"spark.driver.port": port}})
        points = [on_spark(), on_spark(seed=4)]
        began = time.monotonic()
        assert list(run_job(points, broken).values()) == ["failed", "failed"]
    assert time.monotonic() - began < 60
    for point in points:
        reason = record_of(job, point)["reason"]
        assert reason.startswith(f"spark.driver.port: port {port} cannot be had")
        assert not started_path(job.results, point.run_id).exists()


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_java(job):
    command = [
        *(sys.executable, "-m", "implementations", "train", "--method", "spark", "--dataset", "digits"),
        *("--workers", "2", "--set", f"epochs={ENDLESS}", "--results", str(job.results)),
    ]
    launcher = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: list((job.results / "runs").glob("*/progress.json")), limit_s=120)
    family = launcher.children(recursive=True)
    assert any(one.name() == "java" for one in family)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_lost_executor_changes_nothing_but_the_number_of_attempts(job):
    changes = {"epochs": 300, "lr": 0.02}  # seconds: it must not end before an executor is killed
    point = on_spark(**changes, method_params={"cluster": "local_cluster"}, checkpoint_steps=20)
    outcome = {}
    thread = threading.Thread(target=lambda: outcome.update(run_job([point], job)))
    thread.start()
    marker = job.results / "runs" / point.run_id / "checkpoint" / "latest.json"
    wait_for(marker.exists, limit_s=150)
    executors = [
        one
        for one in psutil.Process().children(recursive=True)
        if one.name() == "java" and "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())
    ]
    assert len(executors) == 2
    executors[0].kill()
    thread.join(150)
    values = record_of(job, point)
    assert values["status"] == "ok" and values["attempts"] == 1
    assert values["stage_attempts"] == 2 and values["resumed"]
    undisturbed = trained(point_of("spark", 2, **changes), job.results)
    columns = undisturbed.columns() | undisturbed.test()
    assert values["steps"] == columns["steps"] and values["sent_bytes_total"] == columns["sent_bytes_total"]
    for name in ("train_loss", "valid_loss", "loss", "accuracy"):
        assert values[name] == pytest.approx(columns[name], rel=1e-4)
