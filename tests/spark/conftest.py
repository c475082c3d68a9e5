"""One Spark session for the tests of this folder."""

from pathlib import Path

import psutil
import pytest

from implementations.cluster.spark import session

FOLDER = Path(__file__).parent
_shared: list[tuple[session.Session, set[psutil.Process]]] = []


@pytest.fixture(scope="session")
def spark():
    """A session on local[2], started by the first test that asks for it and ended after the folder's last."""
    before = set(psutil.Process().children())
    started = session.start(2, "local", {"start_limit_s": 150.0})
    _shared.append((started, set(psutil.Process().children()) - before))
    yield started
    _stop()


def _stop():
    while _shared:
        _shared.pop()[0].stop()


def pytest_runtest_teardown(item, nextitem):
    """Tests of other folders look at this process's children."""
    if nextitem is None or FOLDER not in nextitem.path.parents:
        _stop()


def _of_the_shared():
    return {
        one
        for _, processes in _shared
        for process in processes
        if process.is_running()
        for one in (process, *process.children(recursive=True))
    }


@pytest.fixture(autouse=True)
def _no_process_left():
    """As for all tests; the shared session may start and end processes as it likes."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before - _of_the_shared()
    _, alive = psutil.wait_procs(left, timeout=3)
    for process in alive:
        process.kill()
    assert not alive, f"left running: {alive}"
