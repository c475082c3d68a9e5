"""A run packed for the repository, and drawn again from there."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from implementations.__main__ import main
from implementations.errors import UserError
from implementations.reporting import reference
from implementations.reporting.columns import to_table
from implementations.reporting.curves import read_curve
from implementations.reporting.figures import style
from tests.reporting import synthetic

ROOT = Path(__file__).resolve().parents[2]


BENCHED = [
    {"benchmark": name, "name": "net", "ratio": ratio} for name, ratio in (("steps", 1.0), ("words", 2.0))
]


@pytest.fixture
def results(tmp_path):
    """A few made-up results, and what the pipeline leaves beside them."""
    folder = tmp_path / "results"
    leave(folder, synthetic.records()[:8] + synthetic.speech_records()[:4])
    for name in ("data/digits/train.parquet", "batches/one.json", "calibration/this-host.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "bench.json").write_text(json.dumps(BENCHED))
    return folder


def leave(folder: Path, records: list[dict]) -> None:
    synthetic.curves(synthetic.runs(records), folder)
    pq.write_table(to_table(records), folder / "runs.parquet")


def with_timings(folder: Path) -> None:
    """A table of timings as the pipeline leaves it where no trace could be timed: columns, and no row."""
    there = pd.read_parquet(ROOT / "results/reference/timings.parquet")
    there.iloc[:0].to_parquet(folder / "timings.parquet")


def test_curves_come_back_as_they_were(results, tmp_path):
    packed = tmp_path / "reference"
    names = reference.pack(results, packed, tier="smoke")
    assert {"runs.parquet", "curves.parquet", "calibration/this-host.yaml", "bench.json"} <= set(names)
    assert not any(name.startswith(("data", "batches", "runs/", "logs")) for name in names)
    for name in names:
        assert (packed / name).is_file()
    ids = list(pd.read_parquet(packed / "runs.parquet")["run_id"])
    before = [read_curve(results, run_id) for run_id in ids]
    after = [read_curve(packed, run_id) for run_id in ids]
    assert sum(curve is not None for curve in before) > 3
    for one, other in zip(before, after):
        if one is None:
            assert other is None
        else:
            pd.testing.assert_frame_equal(one, other)


def test_the_next_pack_takes_the_place_of_the_last(results, tmp_path):
    packed = tmp_path / "reference"
    (packed / "extended").mkdir(parents=True)
    (packed / "extended/runs.parquet").write_text("another tier's")
    reference.pack(results, packed)
    (results / "calibration/this-host.yaml").unlink()
    reference.pack(results, packed)
    assert not (packed / "calibration/this-host.yaml").exists()
    assert (packed / "extended/runs.parquet").exists()
    assert "calibration/this-host.yaml" not in json.loads((packed / "reference.json").read_text())["files"]


def test_benchmarks_that_were_not_run_anew_stay(results, tmp_path):
    packed = tmp_path / "reference"
    reference.pack(results, packed)
    anew = [BENCHED[1] | {"ratio": 3.0}, {"benchmark": "sessions", "name": "net", "ratio": 4.0}]
    (results / "bench.json").write_text(json.dumps(anew))
    reference.pack(results, packed)
    assert json.loads((packed / "bench.json").read_text()) == [BENCHED[0], *anew]
    (results / "bench.json").unlink()
    assert "bench.json" in reference.pack(results, packed)
    assert json.loads((packed / "bench.json").read_text()) == [BENCHED[0], *anew]
    (packed / "bench.json").write_text("{")
    with pytest.raises(UserError, match=r"bench\.json cannot be read: .*; remove it"):
        reference.pack(results, packed)


def numbers_alone(drawn: style.Drawn, folder: Path) -> dict[str, str]:
    """In place of ``style.save``, for speed: the numbers of a figure, and no picture."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {kind: folder / f"{drawn.name}.{kind}" for kind in ("svg", "csv")}
    files["svg"].write_text('<svg viewBox="0 0 9 9"></svg>')
    drawn.data.to_csv(files["csv"], index=False)
    return {kind: str(path) for kind, path in files.items()}


def test_what_is_drawn_from_a_pack_is_what_is_drawn_from_the_run(results, tmp_path, monkeypatch):
    """The same numbers in every figure and table, and the user's own reports left alone."""
    monkeypatch.setattr(style, "save", numbers_alone)
    with_timings(results)
    packed, reports = tmp_path / "reference", tmp_path / "reports"
    reports.mkdir()
    (reports / "report.html").write_text("the user's own")
    common = ["--configfile", str(ROOT / "config/smoke.yaml"), "--reports", str(reports)]
    assert main(["reference", "--pack", "--results", str(results), "--reference", str(packed), *common]) == 0
    assert main(["reference", "--reference", str(packed), *common]) == 0
    assert main(["reference", "--reference", str(results), "--out", str(tmp_path / "direct"), *common]) == 2
    direct = tmp_path / "direct"
    shutil.copy(packed / "curves.parquet", results)  # the runs' own curves are still read first
    assert main(["reference", "--reference", str(results), "--out", str(direct), *common]) == 0

    drawn = sorted(path.relative_to(direct) for path in direct.rglob("*.csv"))
    assert any("figures" in path.parts for path in drawn) and any("tables" in path.parts for path in drawn)
    for path in drawn:
        assert (reports / "reference" / path).read_bytes() == (direct / path).read_bytes(), path
    assert (reports / "reference/report.html").stat().st_size > 10_000
    assert (reports / "report.html").read_text() == "the user's own"


def test_what_is_no_finished_run_is_not_packed(results, tmp_path):
    leave(results, synthetic.records()[:3] + synthetic.broken())
    with pytest.raises(UserError, match=r"is (failed|timeout)"):
        reference.pack(results, tmp_path / "reference")
    assert not (tmp_path / "reference").exists()


def test_what_is_too_large_is_not_packed(results, tmp_path):
    (results / "large.csv").write_bytes(b"x" * (reference.MOST_BYTES + 1))
    with pytest.raises(UserError, match=r"more than the 5 MB.*the largest is large\.csv"):
        reference.pack(results, tmp_path / "reference")


def test_an_empty_folder_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"has no runs\.parquet"):
        reference.require(tmp_path)


def test_the_committed_reference_is_whole_and_small():
    folder = ROOT / "results/reference"
    about = json.loads((folder / "reference.json").read_text())
    assert all((folder / name).is_file() for name in about["files"])
    runs = pd.read_parquet(folder / "runs.parquet")
    assert len(runs) == about["runs"]
    curves = pd.read_parquet(folder / "curves.parquet", columns=["run_id"])
    assert set(curves["run_id"]) <= set(runs["run_id"])
    assert len(set(curves["run_id"])) > 0.9 * len(runs)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < reference.MOST_BYTES
