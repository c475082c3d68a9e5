"""Two kills, and what the script finds where something is amiss; `kills.py` has as many as one likes."""

import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import kills
import world as worlds


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_runs_finish_with_the_same_numbers_and_leave_nothing(tmp_path, capfd):
    world = worlds.World(tmp_path / "world", quick=True)
    try:
        amiss = kills.kill_often(world, count=2, seed=3)
    finally:
        world.end()
    assert amiss == 0, f"{capfd.readouterr().out}\n{world.said.read_text()[-4000:]}"


@pytest.fixture
def world(tmp_path):
    made = worlds.World(tmp_path / "world", quick=True)
    made.fresh()
    yield made
    made.end()


def test_the_quick_tier_has_points_of_every_kind_of_process(world):
    from implementations import config

    points = config.load(world.folder / "config/smoke.yaml").points
    kinds = {(point.evidence, point.method == "spark", point.processes) for point in points}
    assert kinds == {("simulated", False, 1), ("measured", False, 2), ("measured", True, 2)}


def test_what_is_left_is_found(world):
    assert world.left(wait_s=0) == []
    (world.temporary / "paratrain-x").mkdir()
    (world.temporary / "torchinductor_root").mkdir()
    folder = world.folder / "results/runs/one"
    folder.mkdir(parents=True)
    (folder / ".record.json.123").touch()
    stray = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=folder)
    try:
        found = "\n".join(world.left(wait_s=0))
    finally:
        stray.kill()
        stray.wait()
    assert f"process {stray.pid}" in found
    assert "temporary paratrain-x" in found and "inductor" not in found
    assert ".record.json.123" in found
    world.fresh()
    assert world.left(wait_s=0) == []


def test_numbers_that_differ_are_told():
    wanted = pd.DataFrame({"accuracy": [0.5, None], "experiments": [["a"], ["b"]]}, index=["one", "two"])
    assert worlds.differences(wanted.copy(), wanted) == []
    found = wanted.copy()
    found.loc["one", "accuracy"] = 0.25
    assert worlds.differences(found, wanted) == ["one: accuracy is 0.25, was 0.5"]
    assert worlds.differences(found.loc[["two"]], wanted) == ["run one is there once only"]
