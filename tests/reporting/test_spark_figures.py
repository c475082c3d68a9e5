"""The figures of training on Spark: what they draw, and that they do without what is not there."""

import matplotlib
import pandas as pd
import pytest

from implementations.reporting.figures import spark_lines as lines
from implementations.reporting.figures import style
from implementations.reporting.figures.spark import spark_figures
from implementations.reporting.figures.spark_late import late_figure
from implementations.reporting.figures.spark_map import map_data, map_figure
from implementations.reporting.figures.spark_speedup import DATA, MODEL, WORKERS, speedup_data
from implementations.reporting.figures.spark_split import split_data
from implementations.reporting.figures.spark_training import training_data
from implementations.reporting.spark import as_projections, published_speedups
from implementations.reporting.spark_speedups import speedup_table
from tests.reporting import synthetic
from tests.reporting import synthetic_spark as made_up

NAMES = [
    "spark_workers", "spark_data_size", "spark_model_size", "spark_map", "spark_split", "spark_accuracy",
    "spark_training", "spark_late",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs():
    return synthetic.runs(made_up.records())


@pytest.fixture(scope="module")
def projections():
    return as_projections(made_up.projections())


@pytest.fixture(scope="module")
def speedups(runs, projections):
    return speedup_table(runs, made_up.timings(runs), projections)


@pytest.fixture(scope="module")
def every(runs, projections, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    made_up.curves(runs, folder)
    made = spark_figures(runs, made_up.timings(runs), projections, made_up.published(), folder, "spark")
    assert [figure.name for figure in made] == NAMES
    return {figure.name: figure for figure in made}


def test_nothing_is_drawn_of_nothing(tmp_path):
    nothing = synthetic.runs([])
    assert (
        spark_figures(nothing, pd.DataFrame(), as_projections(None), pd.DataFrame(), tmp_path, "spark") == []
    )


def test_projections_alone_have_their_figures(projections, tmp_path):
    made = spark_figures(synthetic.runs([]), pd.DataFrame(), projections, pd.DataFrame(), tmp_path, "spark")
    assert [figure.name for figure in made] == NAMES[:4]


def test_figures_say_what_they_show(every):
    for drawn in every.values():
        assert drawn.title and drawn.alt and drawn.caption.startswith("Evidence: ") and len(drawn.data)
        assert drawn.paper == "spark" and drawn.command == "snakemake --cores all spark"


def test_letters_are_as_large_as_elsewhere(every):
    for drawn in every.values():
        drawn.figure.draw_without_rendering()
        texts = drawn.figure.findobj(matplotlib.text.Text)
        sizes = [text.get_fontsize() for text in texts if text.get_text()]
        assert min(sizes) > style.SMALLEST_FONT - 0.01, drawn.name


def test_no_line_mixes_evidence(every):
    for name in NAMES[:3]:
        for axes in every[name].figure.axes:
            marks = {
                line.get_label(): line.get_marker()
                for line in axes.lines
                if line.get_label() in style.EVIDENCE_MARKERS
            }
            assert all(style.EVIDENCE_MARKERS[kind] == mark for kind, mark in marks.items())


def test_lines_against_workers_start_at_one(speedups):
    data = speedup_data(speedups, WORKERS)
    measured = data[(data["evidence"] == "measured") & (data["kind"] == "cnn")]
    assert set(measured["base"]) == {"sequential"}
    assert measured.groupby("variant")["workers"].agg(list).to_dict() == {
        "data": [1, 2, 4, 8], "hybrid": [1, 4, 8], "model": [1, 2, 4, 8]
    }  # fmt: skip
    assert set(measured.loc[measured["oversubscribed"], "workers"]) == {4, 8}


def test_against_sizes_measured_lines_have_workers_that_fit(speedups):
    marks = published_speedups(made_up.published())
    data = speedup_data(speedups, DATA, marks)
    assert set(data.loc[data["evidence"] == "measured", "workers"]) == {2}
    assert set(data.loc[(data["evidence"] == "projected") & (data["kind"] == "cnn"), "workers"]) == {
        2,
        16,
        64,
    }
    # where a printed number has workers, those are shown
    data = speedup_data(speedups, MODEL, marks)
    assert set(data.loc[data["evidence"] == "projected", "workers"]) == {5}
    assert data["model_params"].max() == 4e9


def test_printed_numbers_are_marked_by_who_says_so(every):
    axes = {axes.get_title(): axes for axes in every["spark_data_size"].figure.axes}
    stars = [line for line in axes["CNN"].lines if line.get_label() == "_published"]
    assert [(line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor()) for line in stars] == [
        (5e6, 11, "white")
    ]
    assert any(text.get_text() == "11x, abstract" for text in axes["CNN"].texts)
    told = [text.get_text() for text in every["spark_data_size"].figure.legends[0].get_texts()]
    assert "printed: review (unverified)" in told


def test_the_map_frames_what_reaches_eleven(every, projections):
    data = map_data(projections)
    assert len(data) == 5 * 4 * 4 and set(data["mbit_s"]) == {10, 100, 1000, 10_000}
    upper, lower = every["spark_map"].figure.axes[:2]
    cells = [float(text.get_text()) for axes in (upper, lower) for text in axes.texts]
    # 11 in a cell may be rounded up
    framed = sum(len(axes.patches) for axes in (upper, lower))
    assert sum(value > 11 for value in cells) <= framed <= sum(value >= 11 for value in cells)
    assert "Nothing is fitted" in every["spark_map"].caption


def test_without_bandwidths_there_is_no_map(projections):
    rest = projections[projections["what"] != "map"]
    assert map_figure(rest, pd.DataFrame(), "spark") is None


def test_bars_of_a_step_are_by_execution(runs):
    data = split_data(runs)
    fc = data[(data["kind"] == "fc") & (data["variant"] == "model")]
    assert fc["execution"].tolist() == ["barrier", "job_per_exchange"] and fc["label"].nunique() == 1
    assert set(fc["global_batch"]) == {1024}
    assert not (data.loc[data["variant"] != "hybrid", "workers"] > 2).any()


def test_curves_are_of_the_longest_training(runs, tmp_path):
    made_up.curves(runs, tmp_path)
    data = training_data(runs, tmp_path)
    assert data.groupby(["kind", "optimizer"])["epoch"].max().eq(8).all()
    assert data.loc[data["epoch"] == 3, "gradient_norm"].to_numpy() == pytest.approx(2 / 8)


def test_one_staleness_is_no_figure(runs):
    assert late_figure(runs[runs["staleness"] != 2], "spark") is not None
    assert late_figure(runs[runs["staleness"] == 0], "spark") is None


@pytest.mark.parametrize(("value", "text"), [(100, "100"), (1e4, "10k"), (5e6, "5M"), (4e9, "4G")])
def test_counts_are_short(value, text):
    assert lines.short(value) == text
