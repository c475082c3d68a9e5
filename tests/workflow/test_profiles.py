"""Profiles name rules and settings that there are; a dry run with one says what would be submitted."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

PLUGIN = "snakemake_executor_plugin_slurm"
# Rules that start ranks, or time things on this machine: for them Slurm must give tasks in place of one.
WITH_RANKS = {"run_measured", "run_validation", "calibrate", "plans"}


@pytest.fixture
def slurm(root):
    return yaml.safe_load((root / "profiles/slurm/config.yaml").read_text())


def test_resources_are_for_rules_that_leave_the_head_node(slurm, root):
    snakefile = (root / "Snakefile").read_text()
    rules = set(re.findall(r"^(?:use rule \w+ as|rule) (\w+)", snakefile, re.MULTILINE))
    local = set(re.search(r"localrules:\n((?:    \w+,\n)+)", snakefile)[1].replace(",", "").split())
    named = set(slurm["set-resources"])
    assert named <= rules - local
    with_ranks = {rule for rule, resources in slurm["set-resources"].items() if "mpi" in resources}
    assert with_ranks == WITH_RANKS
    for rule in with_ranks:
        resources = slurm["set-resources"][rule]
        assert resources["tasks"] > 1  # Slurm's plugin refuses MPI jobs of one
        assert resources["tasks"] == resources["nodes"] * slurm["cores"]  # whole nodes: they are timed


def test_the_profile_has_as_many_tasks_as_the_example_tier_has_ranks(slurm, root):
    from implementations import config

    settings = config.load(root / "config/cluster-example.yaml")
    most = max(point.processes for point in settings.points if point.evidence == "measured")
    assert most <= slurm["set-resources"]["run_measured"]["tasks"]


def dry_run(folder, *words):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--quiet", "progress", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.fixture
def copy(root, tmp_path):
    """The repository, without results."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("implementations", "config", "datasets", "profiles"):
        shutil.copytree(root / name, tmp_path / name, ignore=skip)
    shutil.copy(root / "Snakefile", tmp_path)
    return tmp_path


def assert_told(answer):
    assert answer.returncode == 0, answer.stdout + answer.stderr
    jobs = re.findall(r"rule run_measured:\n(?:    .*\n)+", answer.stdout + answer.stderr)
    assert jobs
    for job in jobs:
        assert (
            "mpi=srun" in job and "nodes=2" in job and "tasks=32" in job and "slurm_extra=--exclusive" in job
        )


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_snakemake_takes_the_resources_without_the_plugin(copy, slurm):
    """Whoever has no Slurm here: all of the profile but the name of what submits."""
    (copy / "profiles/slurm/config.yaml").write_text(yaml.safe_dump(slurm | {"executor": "local"}))
    assert_told(dry_run(copy, "--profile", "profiles/slurm", "--configfile", "config/cluster-example.yaml"))


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.skipif(importlib.util.find_spec(PLUGIN) is None, reason=f"{PLUGIN} is not installed")
def test_a_dry_run_for_slurm(copy):
    assert_told(dry_run(copy, "--profile", "profiles/slurm", "--configfile", "config/cluster-example.yaml"))
