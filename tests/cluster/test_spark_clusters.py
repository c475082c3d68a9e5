"""Sessions on clusters of processes of their own: they have what was asked for, and leave nothing."""

import tempfile
import time

import psutil
import pytest

from implementations.cluster.spark import java, session, setup, standalone
from implementations.cluster.spark.stage import run_in_barrier
from implementations.errors import UserError
from implementations.lifeline import Guard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def two_processes(running):
    """What a stage of two workers finds: each in an executor of its own, joined with the other."""

    def function(rank):
        import os

        import psutil
        import torch
        import torch.distributed as dist

        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        executor = psutil.Process(os.getppid()).ppid()  # above the process that forks Python's workers
        return float(total), executor, psutil.Process(executor).cmdline()

    outcome = run_in_barrier(running, 2, function, 60.0)
    assert [total for total, _, _ in outcome.values] == [3.0, 3.0]
    assert len({executor for _, executor, _ in outcome.values}) == 2
    assert all("-Xmx640M" in words for _, _, words in outcome.values)


def test_executors_of_their_own(temporary):
    with session.start(2, "local_cluster", {"executor_memory_mb": 640, "start_limit_s": 150.0}) as running:
        assert running.slots == 2
        two_processes(running)
    assert psutil.Process().children(recursive=True) == []
    assert list(temporary.iterdir()) == []


def test_a_standalone_cluster_given_by_its_master(temporary, monkeypatch):
    folder = temporary / "cluster"
    folder.mkdir()
    guard = Guard(folder)
    try:
        home = setup.spark_home(folder)
        environment = setup.environment(java.find().home_for(folder), home, folder, own=True)
        until = time.monotonic() + 150
        url = standalone.start(2, 640, home, environment, folder, guard, until)
        settings = {"master": url, "executor_memory_mb": 640}
        with session.start(2, "given", settings) as running:
            assert running.master == url
            two_processes(running)
        monkeypatch.setattr(session, "SLOTS_LIMIT_S", 3.0)
        with pytest.raises(UserError, match=rf"{url} has \d slots of one core for 3 workers"):
            session.start(3, "given", settings)
    finally:
        guard.close()
    assert psutil.Process().children(recursive=True) == []
    assert list(temporary.iterdir()) == []


def test_a_standalone_cluster_of_the_session(temporary):
    with session.start(1, "standalone", {"start_limit_s": 150.0}) as running:
        assert running.master.startswith("spark://127.0.0.1:")
        commands = [" ".join(one.cmdline()) for one in _family() if one.status() != psutil.STATUS_ZOMBIE]
        for name in ("master.Master", "worker.Worker", "CoarseGrainedExecutorBackend"):
            assert sum(f"{name} " in words for words in commands) == 1
    assert psutil.Process().children(recursive=True) == []
    assert list(temporary.iterdir()) == []


def _family():
    return psutil.Process().children(recursive=True)
