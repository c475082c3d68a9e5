"""What all tests share: one thread per library, reproducible property tests, no process left behind."""

import os
import sys

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before any library reads them
    os.environ[_name] = "1"

from pathlib import Path

import hypothesis
import psutil
import pytest

# Time limits are pytest-timeout's business; a shared machine makes hypothesis' own deadline fire at random.
hypothesis.settings.register_profile("local", deadline=None)
# The same examples on every rank (tests/mpi must draw alike to call the same collectives) and in every CI run.
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
UNDER_MPI = any(name in os.environ for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"))
hypothesis.settings.load_profile("fixed" if UNDER_MPI or os.environ.get("CI") else "local")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _one_thread():
    """Torch on one thread, whatever the test before did: small operations, and sums in a fixed order."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def results_dir(tmp_path: Path) -> Path:
    """An empty results folder."""
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


def _children() -> dict[int, str]:
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found[child.pid] = " ".join(child.cmdline()[:6])
        except psutil.Error:
            continue
    return found


# Python's own, kept for the whole session once a test has used multiprocessing.
_ALLOWED = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@pytest.fixture(autouse=True)
def _no_process_left():
    """A test that leaves a process running fails (and the process is ended)."""
    before = _children()
    yield
    left = {
        pid: words
        for pid, words in _children().items()
        if pid not in before and not any(word in words for word in _ALLOWED)
    }
    processes = [psutil.Process(pid) for pid in left if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=3)
    for process in alive:
        process.kill()
    assert not alive, f"left running: {[left[process.pid] for process in alive]}"


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with the digits prepared, for training runs."""
    from implementations import data

    folder = tmp_path_factory.mktemp("results")
    data.prepare("digits", folder)
    return folder
