"""What killed processes leave on a machine is told apart from what live ones use, and removed."""

import mmap
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from implementations import lifeline
from implementations.cluster import leftovers, ownership

OLD_S = 60.0
WAITS = "import sys; sys.stdin.read()"


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Temporary files and shared memory of this test alone."""
    for name in ("tmp", "shm", "results"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(leftovers.network, "sweep", list)
    return tmp_path


def aged(path: Path, age_s: float = OLD_S) -> Path:
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def ended_pid() -> int:
    """The id of a process that has been."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_folder_is_there_for_the_block(places):
    with ownership.folder("job") as path:
        assert path.parent == places / "tmp" and path.name.startswith("paratrain-")
        (path / "file").touch()
        assert leftovers.sweep() == []
        assert (path / "file").exists(), "its owner lives"
    assert not path.exists()


def test_the_folder_of_a_killed_process_is_removed(places):
    program = (
        f"import os, tempfile; tempfile.tempdir = {str(places / 'tmp')!r}\n"
        "from implementations.cluster import ownership\n"
        "with ownership.folder('job') as path:\n"
        "    (path / 'file').touch()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=lifeline.ROOT, check=False)
    (left,) = (places / "tmp").iterdir()
    (places / "tmp/another-program's").mkdir()
    with ownership.folder("job") as path:
        assert leftovers.sweep() == [f"folder {left}"]
        assert path.exists()
    assert [path.name for path in (places / "tmp").iterdir()] == ["another-program's"]


def test_a_folder_of_snakemakes_goes_with_the_process_that_claimed_it(places):
    folders = [places / "tmp" / f"snakemake{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
    leftovers.claim(folders[0])
    gone = ownership.Owner(ownership.own().pid, 1).prefix(0)
    (folders[1] / ownership.folder_name(gone, "claim")).touch()
    assert leftovers.sweep() == [f"folder {folders[1]}"]
    assert [folder.exists() for folder in folders] == [True, False, True]


def test_a_process_id_used_again_is_not_its_former_owner(places):
    own = ownership.own()
    other = ownership.Owner(own.pid, own.ticks + 1)
    left = places / "tmp" / ownership.folder_name(other.prefix(0), "job")
    left.mkdir()
    assert leftovers.sweep() == [f"folder {left}"]


def test_shared_memory_goes_where_nobody_has_mapped_it(places):
    names = ("mpich_shm_1_0", "mpich_shm_2_0", "mpich_shm_3_0", "another_program's")
    unused, used, young, other = (places / "shm" / name for name in names)
    for path in (unused, used, young, other):
        path.write_bytes(bytes(mmap.PAGESIZE))
        aged(path, 0.0 if path == young else OLD_S)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert leftovers.sweep() == [f"shared memory {unused}"]
    assert {path.name for path in (places / "shm").iterdir()} == set(names[1:])


def test_files_cut_short_are_removed_unless_somebody_may_still_write_them(places):
    results = places / "results"
    (results / "runs/one").mkdir(parents=True)
    cut_short = aged(touch(results / f"runs/one/.record.json.{ended_pid()}"))
    kept = {
        aged(touch(results / f".runs.parquet.{os.getpid()}")),  # its writer lives
        touch(
            results / f".timings.parquet.{ended_pid()}"
        ),  # of a moment ago, by a process of another machine
        aged(touch(results / ".hidden")),
        aged(touch(results / "runs/one/record.json")),
    }
    assert leftovers.sweep(results) == [f"file {cut_short}"]
    assert {path for path in results.rglob("*") if path.is_file()} == kept


def touch(path: Path) -> Path:
    path.touch()
    return path


def test_processes_whose_launcher_is_gone_are_ended_and_no_others(places):
    def start(pid: int, folder: Path, *words: str) -> subprocess.Popen:
        environment = os.environ | {lifeline.VARIABLE: f"{socket.gethostname()}:{pid}"}
        command = [sys.executable, "-c", WAITS, *words]
        return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.PIPE)

    (places / "elsewhere").mkdir()
    gone = ended_pid()
    orphan = start(gone, places)
    others = [start(os.getpid(), places), start(gone, places / "elsewhere")]
    try:
        for process in (orphan, *others):  # until Python itself has started, its folder is not told yet
            while not psutil.Process(process.pid).environ().get(lifeline.VARIABLE):
                time.sleep(0.01)
        assert leftovers.end_orphans(places) == 1
        orphan.wait(10)
        assert [process.poll() for process in others] == [None, None]
    finally:
        for process in (orphan, *others):
            process.kill()
            process.wait()
            process.stdin.close()


def test_a_guard_is_waited_for_and_left_to_its_work(places, monkeypatch):
    folder = places / "guarded"
    folder.mkdir()
    monkeypatch.chdir(places)
    monkeypatch.setenv(lifeline.VARIABLE, f"{socket.gethostname()}:{ended_pid()}")
    guard = lifeline.Guard(folder)
    monkeypatch.setattr(leftovers, "GUARDS_S", 0.5)
    try:
        assert leftovers.end_orphans(places) == 0
        assert guard._process.poll() is None
    finally:
        guard.close()
    assert not folder.exists()
