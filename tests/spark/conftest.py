"""One Spark session for the tests of a file: those of other files look at this process's children."""

import psutil
import pytest

from implementations.cluster.spark import session

_shared: list[set[psutil.Process]] = []  # processes of the session that runs, if one does


@pytest.fixture(scope="module")
def spark():
    """A session on local[2], started by the first test that asks for it and ended after the file's last."""
    before = set(psutil.Process().children())
    started = session.start(2, "local", {"start_limit_s": 150.0})
    _shared.append(set(psutil.Process().children()) - before)
    yield started
    _shared.clear()
    started.stop()


def _of_the_shared():
    return {
        one
        for processes in _shared
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
