"""What the pipeline runs again and what not, how failures end, and what it says; the training is stood in for."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIER = "tier: default\nexperiments: [tiny]\n"
EXPERIMENT = """
paper: averaging
title: the smallest there is
defaults: {dataset: digits, model: {name: fc, hidden: [8]}, minibatch: 8, epochs: 1, lr: 0.1}
sweeps:
  - {name: periodic, evidence: simulated, set: {method: averaging, sync_period: 2}, grid: {workers: [1, 2]}}
  - {name: gradients, evidence: simulated, set: {method: data_parallel}, grid: {workers: [1, 2]}}
  - {name: ranks, evidence: measured, set: {method: data_parallel}, grid: {workers: [1, 2]}}
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class World:
    """A copy of the repository with a tiny tier."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        skip = shutil.ignore_patterns("__pycache__", "results", "reports")
        for name in ("implementations", "config", "datasets", "profiles"):
            shutil.copytree(ROOT / name, folder / name, ignore=skip)
        shutil.copy(ROOT / "Snakefile", folder)
        shutil.copy(Path(__file__).with_name("stand_in.py"), folder / "implementations/__main__.py")
        (folder / "config/config.yaml").write_text(TIER)
        (folder / "config/experiments/tiny.yaml").write_text(EXPERIMENT)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", *words]

    def start(self, *words: str) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
        )

    def trained(self) -> list[str]:
        """Points trained since the last call."""
        journal = self.folder / "journal"
        lines = journal.read_text().split() if journal.exists() else []
        journal.write_text("")
        return sorted(lines)

    def jobs(self, *words: str) -> dict[str, int]:
        """What a start would run, by rule."""
        answer = self.start("-n", *words)
        assert answer.returncode == 0, answer.stdout
        rows = [line.split() for line in answer.stdout.splitlines()]
        return {
            row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit() and row[0] != "total"
        }

    def change(self, path: str, old: str, new: str) -> None:
        file = self.folder / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    def append(self, path: str, text: str) -> None:
        with (self.folder / path).open("a") as file:
            file.write(text)

    @property
    def report(self) -> Path:
        return self.folder / "reports/report.html"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_stand_in_is_trained_on_where_data_cannot_be_had(world):
    world.change("datasets/digits/card.yaml", "name: digits\n", "name: digits\nstand_in: fashion_mnist\n")
    (world.folder / "fail").write_text("prepare")
    data = world.start("data")
    assert data.returncode == 0 and "prepare was told to fail" in data.stdout
    (world.folder / "fail").write_text("")
    answer = world.start()
    assert answer.returncode == 0, answer.stdout
    assert "digits cannot be had here: fashion_mnist stands in" in answer.stdout
    trained = world.trained()
    assert len(trained) == 6 and all("_fashion_mnist_" in run_id for run_id in trained)
    assert world.jobs().get("run", 0) == 0  # and so it stays


def methods_of(run_ids: list[str]) -> set[str]:
    return {"data_parallel" if name.startswith("data_parallel") else name.split("_")[0] for name in run_ids}


def test_what_is_run_again(world):
    first = world.start()
    assert first.returncode == 0, first.stdout
    assert len(world.trained()) == 6
    assert f"report: {world.report}" in first.stdout
    assert world.report.exists()

    before = world.report.stat().st_mtime_ns
    method = "implementations/averaging/method.py"
    world.change(method, '"""', '"""Other words at the start. ')
    world.append(method, "\n# a comment\n")
    world.append("implementations/reporting/figures/style.py", "\nA_LARGER_FONT = 1\n")
    second = world.start()
    assert second.returncode == 0, second.stdout
    assert world.trained() == []
    assert world.report.stat().st_mtime_ns > before, "the report is made again"
    assert not {"run", "run_measured", "run_validation", "prepare", "calibrate"} & set(world.jobs())

    world.append(method, "\nCHANGED = True\n")
    assert world.jobs()["run"] == 1
    third = world.start()
    assert third.returncode == 0, third.stdout
    trained = world.trained()
    assert len(trained) == 2
    assert methods_of(trained) == {"averaging"}
    assert not {"run", "run_measured", "run_validation"} & set(world.jobs())

    world.change(
        "config/experiments/tiny.yaml",
        "sync_period: 2}, grid: {workers: [1, 2]",
        "sync_period: 2}, grid: {workers: [2]",
    )
    assert world.start().returncode == 0
    assert world.trained() == [], "the point that stays in the edited sweep stands"

    zipped = world.start("--report", "report.zip")
    assert zipped.returncode == 0, zipped.stdout
    names = zipfile.ZipFile(world.folder / "report.zip").namelist()
    assert any(name.endswith("report.html") for name in names)


def test_a_failed_point_stops_nothing_and_is_tried_again(world):
    (world.folder / "fail").write_text("k2_")
    first = world.start()
    assert first.returncode != 0
    assert len(world.trained()) == 6
    assert world.report.exists()
    assert "failed: averaging_k2" in first.stdout
    assert f"something failed (see above): {world.report}" in first.stdout

    again = world.start()
    assert again.returncode != 0
    assert methods_of(world.trained()) == {"averaging"}

    (world.folder / "fail").write_text("")
    third = world.start()
    assert third.returncode == 0, third.stdout
    assert len(world.trained()) == 2
    assert not {"run", "run_measured", "run_validation"} & set(world.jobs())

    shutil.rmtree(next((world.folder / "results/runs").glob("averaging*")))
    assert world.start().returncode == 0
    assert len(world.trained()) == 1, "a record that was lost is made again"


def test_a_failed_preparation_or_calibration_stops_nothing_and_is_tried_again(world):
    (world.folder / "fail").write_text("prepare calibrate")
    first = world.start()
    assert first.returncode != 0
    assert world.report.exists()
    assert len(world.trained()) == 6, "each point leaves a record that says what it lacked"
    for told in (
        "failed: preparation of digits: prepare was told to fail (log: results/logs/prepare_digits.log)",
        "failed: calibration of this machine: calibrate was told to fail (log: results/logs/calibrate.log)",
        f"something failed (see above): {world.report}",
    ):
        assert told in first.stdout
    assert not (world.folder / "results/calibration/this-host.yaml").exists()

    (world.folder / "fail").write_text("calibrate")
    second = world.start()
    assert second.returncode != 0
    assert len(world.trained()) == 6
    assert "failed: preparation" not in second.stdout
    assert "failed: calibration of this machine" in second.stdout
    jobs = world.jobs()
    assert jobs["calibrate"] == 1
    assert not {"run", "run_measured", "run_validation", "prepare"} & set(jobs)

    (world.folder / "fail").write_text("")
    third = world.start()
    assert third.returncode == 0, third.stdout
    assert world.trained() == []
    assert not {"run", "run_measured", "run_validation", "prepare", "calibrate"} & set(world.jobs())

    (world.folder / "results/data/digits/summary.json").unlink()
    assert world.jobs()["prepare"] == 1, "what was lost is made again"


def test_a_killed_start_goes_on(world):
    (world.folder / "slow").touch()
    records = (world.folder / "results/runs").glob
    killed = subprocess.Popen(
        world.command(),
        cwd=world.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(records("*/record.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert world.trained()
    assert any((world.folder / ".snakemake/locks").iterdir()), "a killed Snakemake leaves its lock"
    done = len(list(records("*/record.json")))
    assert 0 < done < 6

    (world.folder / "slow").unlink()
    answer = world.start()
    assert answer.returncode == 0, answer.stdout
    assert "removed the lock" in answer.stdout
    assert len(world.trained()) == 6 - done


def test_the_lock_of_a_live_start_is_kept(tmp_path):
    from implementations import workflow

    locks = tmp_path / ".snakemake/locks"
    locks.mkdir(parents=True)
    workflow.drop_stale_lock(tmp_path)
    (locks / "0.input.lock").touch()
    program = "import sys, time; sys.stdin.read()"
    script = tmp_path / "snakemake"
    script.write_text(program)
    live = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, stdin=subprocess.PIPE)
    try:
        assert not workflow.drop_stale_lock(tmp_path)
        assert any(locks.iterdir())
    finally:
        live.communicate()
    (tmp_path / ".snakemake/locked-on").write_text("another-host")
    assert not workflow.drop_stale_lock(tmp_path), "who can tell what runs on another host"
    (tmp_path / ".snakemake/locked-on").write_text(workflow.socket.gethostname())
    assert workflow.drop_stale_lock(tmp_path)
    assert not any(locks.iterdir())


def test_a_full_calibration_will_do_for_smoke_but_not_the_other_way_round(world):
    """And a tier with other models or data is calibrated for them."""
    assert world.start("--until", "calibrate", "--", "smoke").returncode == 0
    note = world.folder / "results/calibration/covers.json"
    assert json.loads(note.read_text())["quick"] is True
    assert world.jobs()["calibrate"] == 1
    assert world.start("--until", "calibrate", "--", "all").returncode == 0
    assert json.loads(note.read_text())["quick"] is False
    assert "calibrate" not in world.jobs()
    assert "calibrate" not in world.jobs("smoke")
    world.change("config/experiments/tiny.yaml", "hidden: [8]", "hidden: [9]")
    assert world.jobs()["calibrate"] == 1


def test_what_a_dry_run_says(world):
    answer = world.start("-n")
    assert answer.returncode == 0, answer.stdout
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert ["method", "measured", "simulated", "points"] in lines
    assert ["averaging", "0", "2", "2"] in lines
    assert ["data_parallel", "2", "2", "4"] in lines
    assert ["run", "1"] in lines  # sweeps of one experiment share a job
    assert ["run_measured", "2"] in lines
    assert not (world.folder / "results/runs").exists()

    smoke = world.start("-n", "smoke")
    assert smoke.returncode == 0, smoke.stdout
    assert "tier smoke" in smoke.stdout


@pytest.mark.parametrize(
    ("words", "tier", "told"),
    [
        (["smoke", "all"], TIER, "ask for it alone"),
        (["ist"], TIER, "has no points of the paper ist"),
        (["--config", "master_seed=1"], TIER, "--config is not used here"),
        ([], "tier: default\nexperiments: [tiny]\nworkers: 0\nlaunch: {}\n", "workers"),
    ],
)
def test_mistakes_end_in_one_message(world, words, tier, told):
    (world.folder / "config/config.yaml").write_text(tier)
    answer = world.start("-n", *words)
    assert answer.returncode != 0
    assert told in answer.stdout
    assert "Traceback" not in answer.stdout
    assert "Exception" not in answer.stdout
    if "workers: 0" in tier:
        assert "launch" in answer.stdout, "all mistakes at once"


def test_the_snakefile_is_clean(world):
    lint = world.start("--lint")
    assert lint.returncode == 0, lint.stdout
    snakefmt = Path(sys.executable).with_name("snakefmt")
    format_ = subprocess.run(
        [snakefmt, "--check", ROOT / "Snakefile"], capture_output=True, text=True, check=False
    )
    assert format_.returncode == 0, format_.stderr


def test_results_can_lie_elsewhere(world, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    answer = world.start("--directory", str(elsewhere))
    assert answer.returncode == 0, answer.stdout
    assert (elsewhere / "reports/report.html").exists()
    covers = json.loads((elsewhere / "results/calibration/covers.json").read_text())
    assert covers["quick"] is False
    assert not (world.folder / "results").exists()
