import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from PIL import Image

from implementations.errors import UserError
from implementations.reporting import figures
from implementations.reporting.figures import quality, speedup, style
from implementations.reporting.figures.algorithms import algorithms_figure
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
def every_figure(runs, timings, tmp_path_factory):
    return figures.paper_figures(
        runs,
        timings,
        synthetic.published(),
        synthetic.validation(),
        tmp_path_factory.mktemp("none"),
        "averaging",
    )


@pytest.fixture(scope="module")
def main_figure(runs, timings):
    scaling = runs[[any(name.startswith("speedup/") for name in names) for names in runs["experiments"]]]
    chosen = timings[timings["run_id"].isin(scaling["run_id"]) | (timings["evidence"] == "projected")]
    return speedup.speedup_figure(speedup_table(scaling, chosen), synthetic.published(), "averaging")


def lines_of(drawn):
    return {line.get_label(): line for axes in drawn.figure.axes for line in axes.lines}


def keys_of(drawn):
    legends = drawn.figure.legends + [axes.get_legend() for axes in drawn.figure.axes if axes.get_legend()]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def test_the_csv_of_the_speedup_figure_is_what_is_drawn(main_figure):
    drawn = lines_of(main_figure)
    assert set(main_figure.data["series"]) < set(drawn)
    for name, rows in main_figure.data.groupby("series"):
        assert np.array_equal(drawn[name].get_xdata(), rows["workers"].astype(float))
        assert np.array_equal(drawn[name].get_ydata(), rows["speedup"].astype(float))


def test_our_evidence_and_the_papers_have_a_plot_each_of_equal_axes(main_figure):
    ours, theirs = main_figure.figure.axes
    kinds = main_figure.data.groupby("series")["evidence"].first()

    def drawn(axes):
        return {kinds[line.get_label()] for line in axes.lines if line.get_label() in kinds}

    assert drawn(ours) == {"measured", "simulated"} and drawn(theirs) == {"projected", "published"}
    assert ours.get_xlim() == theirs.get_xlim() and ours.get_ylim() == theirs.get_ylim()
    assert ours.get_title() == "fashion_mnist, fc-512-512"


def test_every_kind_of_evidence_has_its_mark_and_key(main_figure):
    drawn = lines_of(main_figure)
    kinds = main_figure.data.groupby("evidence")["series"].unique()
    assert set(kinds.index) == {"measured", "simulated", "projected", "published"}
    marks = {kind: {drawn[name].get_marker() for name in names} for kind, names in kinds.items()}
    assert all(len(found) == 1 for found in marks.values())
    assert len({min(found) for found in marks.values()}) == 4
    assert set(main_figure.data.loc[main_figure.data["evidence"] == "simulated", "cluster"]) == {
        "this-host", "ten-gigabit-cpu",
    }  # fmt: skip
    # colours and marks are told once each, not every pair of them
    assert sorted(keys_of(main_figure)) == [
        "gradient all-reduce", "ideal", "measured", "measured, workers > cores", "model averaging, K=10",
        "projected on stampede-k20", "published, K=10", "published, K=20", "simulated on ten-gigabit-cpu",
        "simulated on this machine",
    ]  # fmt: skip


def test_published_points_of_two_periods_look_different(main_figure):
    drawn = lines_of(main_figure)
    ten, twenty = (drawn[f"model averaging, published, K={period}"] for period in (10, 20))
    assert list(twenty.get_xdata()) == [16] and list(twenty.get_ydata()) == [10.07]
    assert 10.07 not in ten.get_ydata()
    assert ten.get_markerfacecolor() == style.colour("averaging") != twenty.get_markerfacecolor()


def test_a_curve_is_of_one_period(runs, timings):
    other = timings[timings["evidence"] == "projected"].assign(sync_period=20, speedup_same_code=99.0)
    speedups = speedup_table(runs, pd.concat([other[other["workers"] > 1], timings], ignore_index=True))
    data = speedup.speedup_data(speedups, synthetic.published(), [])
    assert set(data.loc[data["evidence"] == "projected", "sync_period"]) == {10}
    assert (data["speedup"] < 99).all()


def test_the_ideal_line_is_the_number_of_workers(main_figure):
    ideals = [line for axes in main_figure.figure.axes for line in axes.lines if line.get_label() == "ideal"]
    assert len(ideals) == 2
    assert all(np.array_equal(ideal.get_xdata(), ideal.get_ydata()) for ideal in ideals)


def test_oversubscribed_points_are_hollow(main_figure):
    hollow = [line for line in main_figure.figure.axes[0].lines if line.get_label() == "_hollow"]
    assert len(hollow) == 2
    assert all(list(line.get_xdata()) == [4] and line.get_markerfacecolor() == "white" for line in hollow)


def test_a_method_has_one_colour_in_every_figure(main_figure, runs):
    others = [time_split_figure(runs, "averaging"), quality.accuracy_figure(runs, "averaging")]
    for drawn in [main_figure, others[1]]:
        for name, rows in drawn.data.groupby("series"):
            assert lines_of(drawn)[name].get_color() == style.colour(rows["method"].iloc[0])
    labels = others[0].figure.axes[0].get_yticklabels()
    assert [text.get_color() for text in labels] == [
        style.colour(method) for method in others[0].data["method"]
    ]
    assert len(set(style.METHOD_COLOURS.values())) == len(style.METHOD_COLOURS)


def test_quality_of_each_kind_of_evidence_has_a_plot(runs):
    drawn = quality.accuracy_figure(runs, "averaging")
    assert [axes.get_title().split("\n")[0] for axes in drawn.figure.axes] == ["measured", "simulated"]
    for axes, kind in zip(drawn.figure.axes, ("measured", "simulated"), strict=True):
        assert all(line.get_label().endswith(kind) for line in axes.lines)
    assert "Measured: one seed." in drawn.caption
    assert "Simulated: mean of 3 seeds, bars are their range." in drawn.caption
    averaging = drawn.data[(drawn.data["method"] == "averaging") & (drawn.data["evidence"] == "simulated")]
    assert set(averaging["sync_period"]) == {10} and set(averaging["lr_scaling"]) == {"linear"}


def algorithm_run(algorithm, workers, comm_s, sent, repeat=0, **given):
    return synthetic.record(evidence="measured", method="data_parallel", algorithm=algorithm, workers=workers,
                            comm_s=comm_s, train_s=4.0, steps=100, sent_bytes_total=sent, repeat=repeat,
                            oversubscribed=workers > 2, experiments=["algorithms/ranks"], **given)  # fmt: skip


def test_algorithms_are_compared_by_the_step():
    rows = [algorithm_run("ring", 2, s, 2_000_000, r) for r, s in enumerate([0.2, 0.3, 0.7])]
    rows += [algorithm_run("library", 2, 0.1, 2_000_000), algorithm_run("ring", 4, 0.4, 12_000_000)]
    rows += [algorithm_run("butterfly", 1, 0.0, 0), algorithm_run("butterfly", 2, 9.0, 9, status="failed")]
    drawn = algorithms_figure(synthetic.runs(rows), "averaging")
    found = drawn.data.set_index("label")
    assert list(found.index) == ["2 ranks, library", "2 ranks, ring", "4 ranks*, ring"]
    ring = found.loc["2 ranks, ring"]
    assert ring["comm_step_s"] == pytest.approx(0.003) and ring["comm_share"] == pytest.approx(0.3 / 4)
    assert (ring["low_s"], ring["high_s"], ring["n"]) == (pytest.approx(0.0025), pytest.approx(0.005), 3)
    assert list(found["sent_bytes_step"]) == [10_000, 10_000, 30_000]
    seconds, sent = drawn.figure.axes
    assert [bar.get_width() for bar in seconds.patches] == pytest.approx([1.0, 3.0, 4.0])
    assert [bar.get_width() for bar in sent.patches] == pytest.approx([10, 10, 30])
    assert "kB" in sent.get_xlabel() and "Evidence: measured" in drawn.caption
    hollow = [bar.get_facecolor() == (1.0, 1.0, 1.0, 1.0) for bar in seconds.patches]
    assert hollow == [False, False, True]


def test_one_algorithm_alone_is_not_compared():
    assert algorithms_figure(synthetic.runs([algorithm_run("ring", 2, 0.2, 100)]), "averaging") is None


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


def test_a_curve_is_that_of_the_repeat_of_median_time(tmp_path):
    rows = [
        synthetic.record(evidence="measured", train_s=s, repeat=r, seed=1)
        for r, s in enumerate([9.0, 3.0, 2.0])
    ]
    rows.append(synthetic.record(evidence="measured", train_s=1.0, seed=2))
    runs = synthetic.runs(rows)
    synthetic.curves(runs, tmp_path)
    data = quality.curves_data(runs, tmp_path)
    assert set(data["run_id"]) == {rows[1]["run_id"]}


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
        "speedup", "speedup_clusters", "accuracy", "period", "time_split", "algorithms", "sizes_speedup", "sizes_bytes",
        "sizes_accuracy", "validation", "curves",
    }  # fmt: skip
    assert json.loads((folder / figures.INDEX).read_text()) == index
    for entry in index:
        assert entry["alt"] and entry["caption"] and entry["command"].startswith("snakemake")
        assert all((folder / "averaging" / f"{entry['name']}.{kind}").is_file() for kind in entry["files"])
        assert len(pd.read_csv(entry["files"]["csv"])) > 0
        with Image.open(entry["files"]["png"]) as image:
            assert abs(image.info["dpi"][0] - 200) < 1


def test_the_headline_is_a_copy_of_the_main_figure(made, tmp_path):
    folder = made.folder / "reports/figures"
    headline = figures.make_headline(figures_dir=folder, out_dir=tmp_path)
    assert [path.name for path in headline] == ["headline.svg", "headline.png"]
    for path in headline:
        assert path.read_bytes() == (folder / f"averaging/speedup{path.suffix}").read_bytes()


def test_a_headline_without_figures_says_how_to_draw_them(tmp_path):
    with pytest.raises(UserError, match=r"speedup\.svg does not exist.*snakemake --cores all averaging"):
        figures.make_headline(figures_dir=tmp_path, out_dir=tmp_path)


def test_the_same_data_gives_the_same_bytes(main_figure, runs, timings, tmp_path):
    speedups = speedup_table(runs, timings)
    for folder in ("a", "b"):
        style.save(speedup.speedup_figure(speedups, synthetic.published(), "averaging"), tmp_path / folder)
    for kind in ("svg", "png", "csv"):
        assert (tmp_path / f"a/speedup.{kind}").read_bytes() == (tmp_path / f"b/speedup.{kind}").read_bytes()
    assert b"<dc:date>" not in (tmp_path / "a/speedup.svg").read_bytes()


def test_no_text_is_smaller_than_a_phone_can_show_and_none_is_cut(main_figure, every_figure):
    for each in [main_figure, *every_figure]:
        each.figure.draw_without_rendering()
        width, height = each.figure.get_size_inches() * each.figure.dpi
        for text in each.figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_text()):
            assert text.get_fontsize() >= style.SMALLEST_FONT, (each.name, text)
            box = text.get_window_extent()
            # an axis keeps a label for ticks outside its limits, which it does not draw
            if text.get_visible() and box.width and not outside(text, each.figure):
                assert box.x0 >= -1 and box.x1 <= width + 1, (each.name, text)
                assert box.y0 >= -1 and box.y1 <= height + 1, (each.name, text)


def outside(text, figure):
    """Whether a text is the label of a tick beyond its axis' limits."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if text in (tick.label1, tick.label2):
                    return not low <= tick.get_loc() <= high
    return False


def test_keys_cover_no_plot_and_no_label(every_figure):
    for each in every_figure:
        each.figure.draw_without_rendering()
        boxes = [axes.get_tightbbox(for_layout_only=True) for axes in each.figure.axes if axes.get_visible()]
        for legend in each.figure.legends:
            assert not any(legend.get_window_extent().overlaps(box) for box in boxes), each.name
        for axes in each.figure.axes:
            legend, label = axes.get_legend(), axes.xaxis.label
            if legend is not None:
                assert not legend.get_window_extent().overlaps(axes.get_window_extent()), each.name
                assert not legend.get_window_extent().overlaps(label.get_window_extent()), each.name


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
    drawn = figures.paper_figures(
        runs, synthetic.timings(runs), synthetic.published(), None, tmp_path, "averaging"
    )
    data = next(figure for figure in drawn if figure.name == "speedup").data
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


def test_a_damaged_curve_is_named_and_left_out(tmp_path, capsys):
    runs = synthetic.runs([synthetic.record(workers=count) for count in (2, 4)])
    synthetic.curves(runs, tmp_path)
    path = tmp_path / "runs" / runs["run_id"][0] / "curve.parquet"
    path.write_bytes(b"no parquet")
    data = quality.curves_data(runs, tmp_path)
    assert set(data["workers"]) == {4}
    assert f"{path} is damaged" in capsys.readouterr().err
