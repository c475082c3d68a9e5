"""What a crashed run has left never blocks the next one: ranks that still run, a Spark master, ports."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from implementations import config, lifeline, record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 90.0


@contextlib.contextmanager
def crashing(program: str, **environment: str):
    """A Python program whose descendants are noted while the block runs; all of them are ended after it."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    family: list[psutil.Process] = []
    try:
        yield process, family
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        lifeline.end(family)


def words(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):  # it has ended, or is about to
        return " ".join(process.cmdline())
    return ""


def below(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_ranks_that_still_run_do_not_stop_the_next_run_of_their_point(results):
    """The launcher is killed, its ranks (who notice a second later) are training: the same point runs again."""
    settings = config.load(ROOT / "config/smoke.yaml")
    point = next(
        p for p in settings.points if p.evidence == "measured" and p.workers == 2 and p.method == "averaging"
    )
    program = f"""
from pathlib import Path
from implementations import config
from implementations.progress import Bar
from implementations.run import Job, run_points
settings = config.load("config/smoke.yaml")
points = [point for point in settings.points if point.run_id == {point.run_id!r}]
run_points(points, Job(Path({str(results)!r}), settings.launcher), Bar())
"""
    path = record.record_path(results, point.run_id)
    with crashing(program) as (process, family):
        until = time.monotonic() + LIMIT_S
        while not (path.with_name("started.json")).exists() and time.monotonic() < until:
            time.sleep(0.01)
            family[:] = below(process) or family
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S
        )
        assert json.loads(path.read_text())["status"] in record.FINISHED
        _, alive = psutil.wait_procs(family, LIMIT_S)
        assert not alive, "ranks end by themselves once their launcher is gone"


def test_a_spark_master_without_its_guard_does_not_stop_the_next_session():
    """Driver and guard are killed at once, so that nothing takes master and workers down."""
    from implementations.cluster.spark import session

    program = """
import time
from implementations.cluster.spark import session
session.start(1, "standalone", {"start_limit_s": 90})
print("up", flush=True)
time.sleep(600)
"""
    with crashing(program) as (process, family):
        assert process.stdout.readline().strip() == "up"
        family[:] = below(process)
        guards = [one for one in family if lifeline.GUARD in words(one)]
        assert guards
        for one in (*guards, psutil.Process(process.pid)):
            one.kill()
        process.wait()
        masters = [one for one in family if "deploy.master.Master" in words(one)]
        assert masters, "the master is left behind"
        with session.start(1, "standalone", {"start_limit_s": 90}) as running:
            assert running.context.parallelize([1, 2, 3], 1).sum() == 6
        assert masters[0].is_running()
