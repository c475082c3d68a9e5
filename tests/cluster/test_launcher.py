"""The launcher: its words for each MPI, and what it says when MPI is missing, broken or mixed."""

import stat
import sys
from pathlib import Path

import pytest

from implementations.cluster import launcher
from implementations.errors import UserError

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PATH", "PYTHONPATH")
EXPORTED = [word for name in VARIABLES for word in ("-x", name)]
VERSIONS = {
    "mpich": "HYDRA build details:\n    Version:  5.0.2",
    "openmpi": "mpiexec (Open MPI) 5.0.6\n\nReport bugs to https://www.open-mpi.org/community/help/",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101",
    "other": "mpiexec of a make nobody knows",
}


@pytest.fixture
def make_launcher(tmp_path):
    """Make an executable that prints a version, or does what the script says."""

    def make(text: str = "", script: str = "", name: str = "mpiexec") -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script or f'cat <<E{chr(10)}{text}{chr(10)}E'}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


@pytest.mark.parametrize(("kind", "text"), VERSIONS.items())
def test_the_kind_is_told_from_the_version(make_launcher, kind, text):
    launcher.launcher_kind.cache_clear()
    assert launcher.launcher_kind(make_launcher(text)) == kind


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mpich", ["-n", "3", "-bind-to", "none"]),
        ("openmpi", ["-n", "3", "--oversubscribe", *EXPORTED, "--bind-to", "none"]),
        ("intel", ["-n", "3"]),
        ("other", ["-n", "3"]),
    ],
)
def test_words_for_each_mpi(make_launcher, kind, words):
    launcher.launcher_kind.cache_clear()
    path = make_launcher(VERSIONS[kind])
    assert launcher.mpi_command(3, {"command": path, "args": []}) == [path, *words]


def test_srun_needs_no_version(make_launcher):
    path = make_launcher(script="exit 1", name="srun")
    command = launcher.mpi_command(2, {"command": path, "args": ["--partition=short"]})
    assert command == [path, "-n", "2", "--overcommit", "--cpu-bind=none", "--partition=short"]


def test_args_may_bind_the_ranks(make_launcher):
    launcher.launcher_kind.cache_clear()
    path = make_launcher(VERSIONS["openmpi"])
    command = launcher.mpi_command(2, {"command": path, "args": ["--bind-to", "core"]})
    assert command[-2:] == ["--bind-to", "core"]
    assert "none" not in command


def test_hosts_are_not_oversubscribed(make_launcher):
    launcher.launcher_kind.cache_clear()
    path = make_launcher(VERSIONS["openmpi"])
    command = launcher.mpi_command(2, {"command": path, "args": ["--host", "a:1,b:1"]})
    assert "--oversubscribe" not in command


def test_auto_prefers_the_mpi_of_the_environment():
    beside = Path(sys.executable).with_name("mpiexec")
    if not beside.exists():
        pytest.skip("this environment has no MPI wheel")
    assert launcher.find_launcher() == launcher.find_launcher({"command": "auto"}) == str(beside)


def test_auto_falls_back_on_the_path(make_launcher, monkeypatch, tmp_path):
    path = make_launcher(VERSIONS["mpich"], name="mpirun")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere/python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launcher.find_launcher({}) == path


@pytest.mark.parametrize("settings", [{}, {"command": "auto"}, {"command": "no-such-launcher"}])
def test_a_missing_mpi_is_told_with_the_way_out(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="make doctor") as caught:
        launcher.mpi_command(2, settings)
    named = settings.get("command", "auto")
    assert ("mpiexec" if named == "auto" else named) in str(caught.value)


@pytest.mark.parametrize("ranks", [0, -1])
def test_ranks_below_one_are_refused(ranks):
    with pytest.raises(ValueError, match="ranks"):
        launcher.mpi_command(ranks)


def test_a_launcher_that_fails_is_told_with_its_words(make_launcher):
    launcher.launcher_kind.cache_clear()
    script = 'case "$1" in --version) echo HYDRA;; *) echo "no slots left" >&2; exit 7;; esac'
    with pytest.raises(UserError, match="no slots left"):
        launcher.check_mpi({"command": make_launcher(script=script)})


def test_a_launcher_that_hangs_is_ended(make_launcher, monkeypatch):
    launcher.launcher_kind.cache_clear()
    monkeypatch.setattr(launcher, "PROBE_LIMIT_S", 1.0)
    script = 'case "$1" in --version) echo HYDRA;; *) sleep 1000 & wait;; esac'
    with pytest.raises(UserError, match="no answer within 1 s"):
        launcher.check_mpi({"command": make_launcher(script=script)})


def test_a_launcher_of_another_mpi_is_told(make_launcher):
    """Each process finds itself alone: the trap of two MPIs on one machine."""
    launcher.launcher_kind.cache_clear()
    alone = f"{sys.executable} -m implementations.cluster.launcher"
    script = f'case "$1" in --version) echo Open MPI 4.1;; *) {alone}; {alone};; esac'
    with pytest.raises(UserError, match=r"each finds 1 in its world.*openmpi.*mpi4py loaded"):
        launcher.check_mpi({"command": make_launcher(script=script)})


def test_require_world_accepts_the_wanted_size():
    launcher.require_world(4, 4, "mpich", "MPICH Version: 5.0.2")


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_probe_of_the_real_mpi(ranks):
    report = launcher.check_mpi(ranks=ranks)
    assert report.ring_ok
    assert report.ranks == ranks
    assert 0 < report.latency_s < 1
    assert 1e6 < report.bandwidth_bytes_per_s < 1e12
    assert "MPI" in report.library


def test_the_environment_of_a_rank(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    environment = launcher.rank_environment(3)
    assert {environment[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {
        "3"
    }
    assert environment["PYTHONPATH"].split(":") == [str(launcher.ROOT), "/some/where"]
    assert environment["OMPI_ALLOW_RUN_AS_ROOT"] == environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
