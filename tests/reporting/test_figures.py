import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from PIL import Image

from implementations.reporting import figures
from implementations.reporting.figures import quality, speedup, style
from implementations.reporting.figures.timesplit import time_split_figure, validation_figure
from implementations.reporting.tables import PARTS, SAME_CODE, speedup_table
from tests.reporting import synthetic


@pytest.fixture(scope="module")
def runs():
    return synthetic.runs(synthetic.records())


@pytest.fixture(scope="module")
def timings(runs):
    return synthetic.timings(runs)


@pytest.fixture(scope="module")
def main_figure(runs, timings):
    scaling = runs[[any(name.startswith("speedup/") for name in names) for names in runs["experiments"]]]
    chosen = timings[timings["run_id"].isin(scaling["run_id"]) | (timings["evidence"] == "projected")]
    return speedup.speedup_figure(speedup_table(scaling, chosen), synthetic.published(), "averaging")


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def test_the_csv_of_the_speedup_figure_is_what_is_drawn(main_figure):
    drawn = lines_of(main_figure.figure.axes[0])
    assert set(main_figure.data["series"]) < set(drawn)
    for name, rows in main_figure.data.groupby("series"):
        assert np.array_equal(drawn[name].get_xdata(), rows["workers"].astype(float))
        assert np.array_equal(drawn[name].get_ydata(), rows["speedup"].astype(float))


def test_every_kind_of_evidence_has_its_mark_and_entry(main_figure):
    drawn = lines_of(main_figure.figure.axes[0])
    entries = [text.get_text() for text in main_figure.figure.legends[0].get_texts()]
    assert {"ideal", "hollow dot: more workers than cores"} <= set(entries)
    kinds = main_figure.data.groupby("evidence")["series"].unique()
    assert set(kinds.index) == {"measured", "simulated", "projected", "published"}
    marks = {kind: {drawn[name].get_marker() for name in names} for kind, names in kinds.items()}
    assert all(len(found) == 1 for found in marks.values())
    assert len({min(found) for found in marks.values()}) == 4
    assert set(main_figure.data["series"]) <= set(entries)
    assert set(main_figure.data.loc[main_figure.data["evidence"] == "simulated", "cluster"]) == {
        "this-host", "ten-gigabit-cpu",
    }  # fmt: skip


def test_the_ideal_line_is_the_number_of_workers(main_figure):
    ideal = lines_of(main_figure.figure.axes[0])["ideal"]
    assert np.array_equal(ideal.get_xdata(), ideal.get_ydata())


def test_oversubscribed_points_are_hollow(main_figure):
    hollow = [line for line in main_figure.figure.axes[0].lines if line.get_label() == "_hollow"]
    assert len(hollow) == 2
    assert all(list(line.get_xdata()) == [4] and line.get_markerfacecolor() == "white" for line in hollow)


def test_a_method_has_one_colour_in_every_figure(main_figure, runs):
    others = [time_split_figure(runs, "averaging"), quality.accuracy_figure(runs, "averaging")]
    for drawn in [main_figure, others[1]]:
        for name, rows in drawn.data.groupby("series"):
            assert lines_of(drawn.figure.axes[0])[name].get_color() == style.colour(rows["method"].iloc[0])
    labels = others[0].figure.axes[0].get_yticklabels()
    assert [text.get_color() for text in labels] == [
        style.colour(method) for method in others[0].data["method"]
    ]
    assert len(set(style.METHOD_COLOURS.values())) == len(style.METHOD_COLOURS)


def test_published_points_are_targets_and_each_once():
    points = speedup.published_speedups(synthetic.published())
    assert sorted(points["speedup"]) == [1.39, 2.65, 4.99, 9.32, 10.07, 16.7]


def test_stacked_bars_are_the_parts(runs):
    drawn = time_split_figure(runs, "averaging")
    bars = drawn.figure.axes[0].containers
    assert len(bars) == len(PARTS)
    for part, container in zip(PARTS, bars, strict=True):
        assert np.allclose([bar.get_width() for bar in container], drawn.data[part])
    ends = [bar.get_x() + bar.get_width() for bar in bars[-1]]
    assert np.allclose(ends, drawn.data["wall_s"])


def test_bytes_against_the_period_lie_on_the_closed_form(runs):
    drawn = quality.period_figure(runs[runs["workers"] == 16], "averaging")
    averaging = drawn.data[drawn.data["method"] == "averaging"]
    assert list(averaging["sync_period"]) == [1, 5, 10, 20, 50]
    assert np.allclose(averaging["sent_bytes_per_worker"], averaging["closed_form_bytes_per_worker"])
    per_epoch = synthetic.SAMPLES // (16 * synthetic.MINIBATCH)
    expected = [2 * 15 / 16 * 4 * synthetic.PARAMS * 2 * -(-per_epoch // k) for k in averaging["sync_period"]]
    assert np.allclose(averaging["sent_bytes_per_worker"], expected)


def test_one_worker_has_no_place_in_the_bytes_figure():
    rows = [synthetic.record(workers=w, seed=s) for w in (1, 16) for s in range(2 if w == 16 else 9)]
    rows += [synthetic.record(workers=16, method="data_parallel")]
    drawn = quality.period_figure(synthetic.runs(rows), "averaging")
    assert set(drawn.data["workers"]) == {16} and sorted(drawn.data["sync_period"]) == [1, 10]


def test_sequential_training_is_shown_beside_the_methods(runs):
    drawn = quality.accuracy_figure(runs[runs["evidence"] == "simulated"], "averaging")
    assert set(drawn.data["method"]) == {"sequential", "data_parallel", "averaging"}


@pytest.mark.parametrize(
    "largest, unit", [(3.2e9, "GB"), (1e8, "GB"), (9e7, "MB"), (4e4, "kB"), (10, "B"), (float("nan"), "B")]
)
def test_bytes_are_shown_in_a_unit_that_suits_them(largest, unit):
    assert style.byte_unit(largest)[1] == unit


def test_curves_leave_out_seconds_that_mean_nothing(runs, tmp_path):
    synthetic.curves(runs, tmp_path)
    data = quality.curves_data(runs, tmp_path)
    assert set(data.loc[data["panel"] == "seconds", "evidence"]) == {"measured"}
    assert "sequential" not in set(data.loc[data["panel"] == "bytes", "method"])
    assert set(data["panel"]) == {"seconds", "bytes"}


def test_predicted_against_measured():
    given = synthetic.validation()
    drawn = validation_figure(given, "averaging")
    points = np.concatenate([c.lines[0].get_xydata() for c in drawn.figure.axes[0].containers])
    expected = given[["measured_s", "predicted_s"]].to_numpy() * 1e3
    assert np.allclose(np.sort(points, axis=0), np.sort(expected, axis=0))
    assert "14 %" in drawn.caption


def test_files_of_every_figure(made, tmp_path):
    index, folder = made.index, made.folder / "reports/figures"
    names = {entry["name"] for entry in index}
    assert names == {
        "speedup", "speedup_clusters", "accuracy", "period", "time_split", "sizes_speedup", "sizes_bytes",
        "sizes_accuracy", "validation", "curves",
    }  # fmt: skip
    assert json.loads((folder / figures.INDEX).read_text()) == index
    for entry in index:
        assert entry["alt"] and entry["caption"] and entry["command"].startswith("snakemake")
        assert all((folder / "averaging" / f"{entry['name']}.{kind}").is_file() for kind in entry["files"])
        assert len(pd.read_csv(entry["files"]["csv"])) > 0
        with Image.open(entry["files"]["png"]) as image:
            assert abs(image.info["dpi"][0] - 200) < 1
    headline = figures.make_headline("averaging", "speedup", folder, tmp_path)
    assert [path.name for path in headline] == ["headline.svg", "headline.png"]
    assert headline[0].read_bytes() == (folder / "averaging/speedup.svg").read_bytes()


def test_the_same_data_gives_the_same_bytes(main_figure, runs, timings, tmp_path):
    speedups = speedup_table(runs, timings)
    for folder in ("a", "b"):
        style.save(speedup.speedup_figure(speedups, synthetic.published(), "averaging"), tmp_path / folder)
    for kind in ("svg", "png", "csv"):
        assert (tmp_path / f"a/speedup.{kind}").read_bytes() == (tmp_path / f"b/speedup.{kind}").read_bytes()
    assert b"<dc:date>" not in (tmp_path / "a/speedup.svg").read_bytes()


def test_no_text_is_smaller_than_a_phone_can_show_and_none_is_cut(main_figure, runs, timings, tmp_path):
    drawn = figures.paper_figures(
        runs, timings, synthetic.published(), synthetic.validation(), tmp_path, "averaging"
    )
    for each in [main_figure, *drawn]:
        each.figure.draw_without_rendering()
        box, (width, height) = each.figure.get_tightbbox(), each.figure.get_size_inches()
        assert box.x0 >= -0.02 and box.x1 <= width + 0.02, each.name
        assert box.y0 >= -0.02 and box.y1 <= height + 0.02, each.name
        for text in each.figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_text()):
            assert text.get_fontsize() >= style.SMALLEST_FONT, (each.name, text)


def test_nothing_to_draw_is_said_in_the_figure(tmp_path):
    rows = [synthetic.record(status="failed", reason="broke")]
    index = figures.make_figures(
        synthetic.runs(rows), None, None, tmp_path, tmp_path / "f", published=synthetic.published()
    )
    empty = {entry["name"]: entry for entry in index}
    assert "no accuracies yet" not in empty["accuracy"]["caption"] and empty["accuracy"]["alt"].startswith(
        "Empty plot"
    )
    assert len(pd.read_csv(empty["accuracy"]["files"]["csv"])) == 0
    # the published points need no run
    assert set(pd.read_csv(empty["speedup"]["files"]["csv"])["evidence"]) == {"published"}


def test_no_runs_is_an_empty_index(tmp_path):
    assert (
        figures.make_figures(None, None, None, tmp_path, tmp_path / "f", published=synthetic.published())
        == []
    )


def test_the_smoke_tier_alone_fills_the_figures(tmp_path):
    rows = [synthetic.record(dataset="digits", model="fc-64-64", data_size=1200, method=m, workers=w, evidence=e,
                             experiments=["smoke/x"])
            for m in ("data_parallel", "averaging") for e, w in (("measured", 1), ("measured", 2), ("simulated", 1),
                                                                 ("simulated", 4), ("simulated", 16))]  # fmt: skip
    runs = synthetic.runs(rows)
    index = figures.make_figures(runs, synthetic.timings(runs), None, tmp_path, tmp_path / "f",
                                 published=synthetic.published())  # fmt: skip
    data = pd.read_csv(next(e for e in index if e["name"] == "speedup")["files"]["csv"])
    assert {"measured", "simulated", "published"} <= set(data["evidence"])
    assert (data.loc[data["evidence"] == "measured", "base"] == SAME_CODE).all()


def test_reporting_imports_no_training_and_starts_quickly():
    modules = ["collect", "statistics", "claims", "verdicts", "tables", "figures", "report", "status"]
    code = (
        "import sys, importlib\n"
        f"for name in {modules}: importlib.import_module('implementations.reporting.' + name)\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'mpi4py', 'pyspark') or m.startswith(\n"
        "    ('implementations.averaging', 'implementations.baselines', 'implementations.models',\n"
        "     'implementations.harness', 'matplotlib.pyplot'))]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
