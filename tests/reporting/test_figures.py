import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from PIL import Image

from implementations.errors import UserError
from implementations.reporting import figures, tables
from implementations.reporting.figures import conditions, lines, quality, recipes, speedup, style
from implementations.reporting.figures import speech as speech_errors
from implementations.reporting.figures.algorithms import algorithms_figure
from implementations.reporting.figures.timesplit import time_split_figure
from implementations.reporting.tables import PARTS, SAME_CODE, speedup_table
from implementations.reporting.wordtable import wer_table
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
        tmp_path_factory.mktemp("none"),
        "averaging",
    )


@pytest.fixture(scope="module")
def speech():
    rows = synthetic.speech_records()
    return synthetic.runs(rows), synthetic.utterances(rows)


@pytest.fixture(scope="module")
def words(speech):
    return wer_table(tables.reported(speech[0]), speech[1], synthetic.published())


@pytest.fixture(scope="module")
def on_speech(speech, tmp_path_factory):
    """The figures of speech by their names."""
    folder = tmp_path_factory.mktemp("speech")
    synthetic.curves(speech[0], folder)
    drawn = figures.speech_figures(*speech, synthetic.published(), folder, "averaging")
    return {figure.name: figure for figure in drawn}


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


def test_slower_networks_change_no_figure_of_speedups(runs, timings):
    slow = timings[timings["cluster"] == "ten-gigabit-cpu"].assign(cluster="ten-megabit-cpu")
    more = speedup_table(runs, pd.concat([timings, slow], ignore_index=True))
    assert speedup.main_cluster(["this-host", "ten-megabit-cpu", "ten-gigabit-cpu"]) == "ten-gigabit-cpu"
    assert (
        speedup.main_cluster(["this-host", "b", "a"]) == "b" and speedup.main_cluster(["this-host"]) is None
    )
    assert speedup.main_cluster(["b", "a"], "a") == "a"
    for draw in (speedup.speedup_figure, speedup.clusters_figure):
        arguments = (synthetic.published(), "averaging") if draw is speedup.speedup_figure else ("averaging",)
        before, after = draw(speedup_table(runs, timings), *arguments), draw(more, *arguments)
        pd.testing.assert_frame_equal(before.data, after.data)


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


SPEECH = ("workers", "rates", "init", "period", "drift", "schedule", "minibatch", "mixing", "rule", "content",
          "scaling", "ranks")  # fmt: skip


def test_files_of_every_figure(made, tmp_path):
    index, folder = made.index, made.folder / "reports/figures"
    names = {entry["name"] for entry in index}
    beside = {"speedup", "speedup_clusters", "accuracy", "period", "time_split", "curves"}
    assert names == {
        "speedup", "speedup_clusters", "period", "time_split", "algorithms", "validation",
        *(f"{name}_fashion_mnist" for name in beside),
        *(f"sizes_{name}_an4" for name in ("speedup", "bytes", "accuracy")),
        *(f"sizes_{name}_fashion_mnist" for name in ("speedup", "bytes", "accuracy")),
        *(f"speech_{name}" for name in SPEECH),
    }  # fmt: skip
    for entry in index:
        assert entry["alt"] and entry["caption"] and entry["command"].startswith("snakemake")
        paper = "suite" if entry["name"] == "validation" else "averaging"
        assert entry["paper"] == paper
        assert all((folder / paper / f"{entry['name']}.{kind}").is_file() for kind in entry["files"])
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


def test_no_text_is_smaller_than_a_phone_can_show_and_none_is_cut(main_figure, every_figure, on_speech):
    for each in [main_figure, *every_figure, *on_speech.values()]:
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


def test_keys_cover_no_plot_and_no_label(every_figure, on_speech):
    for each in [*every_figure, *on_speech.values()]:
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
    drawn = figures.paper_figures(runs, synthetic.timings(runs), synthetic.published(), tmp_path, "averaging")
    data = next(figure for figure in drawn if figure.name == "speedup").data
    assert {"measured", "simulated", "published"} <= set(data["evidence"])
    assert (data.loc[data["evidence"] == "measured", "base"] == SAME_CODE).all()


def test_reporting_imports_no_training_and_starts_quickly():
    modules = [
        "collect",
        "statistics",
        "claims",
        "utterances",
        "verdicts",
        "tables",
        "figures",
        "report",
        "status",
    ]
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


# -- speech ------------------------------------------------------------------------------------------------------------


def rows_of(data, **wanted):
    for name, value in wanted.items():
        data = data[(data[name] == value).fillna(False)]
    return data


def test_all_figures_of_speech_are_drawn_and_name_the_corpus(on_speech):
    assert tuple(on_speech) == tuple(f"speech_{name}" for name in SPEECH)
    for drawn in on_speech.values():
        assert "an4 (real recordings)" in drawn.caption and "an4 (real recordings)" in drawn.title
        assert drawn.caption.startswith("Evidence: ") and drawn.section == "speech" and drawn.alt
        assert len(drawn.data) and "recipe" not in drawn.data


def test_errors_against_workers_are_those_of_the_table(on_speech, words):
    drawn = on_speech["speech_workers"]
    top_left, top_right, _ = drawn.figure.axes
    for axes, metric in ((top_left, "wer"), (top_right, "frame_error")):
        line = next(line for line in axes.lines if line.get_label() == "ng_sgd rbm")
        own = rows_of(words, evidence="simulated", optimizer="ng_sgd", init="rbm", lr=0.32, minibatch=128,
                      schedule="exponential", settings="lr_final=0.01", max_change_rule="author",
                      data_size=200_000, lr_scaling="linear", mixing="allreduce", sync_period=10)  # fmt: skip
        own = own.sort_values("workers")
        assert list(own["workers"]) == [1, 4, 16, 32]
        assert np.allclose(line.get_ydata(), 100 * own[metric])
        # set apart, but less than a third of the way to the next number of workers
        assert np.allclose(np.log2(line.get_xdata()), np.log2(own["workers"].astype(float)), atol=0.3)


def test_the_best_rate_stands_beside_the_own_where_it_is_another(on_speech):
    data = on_speech["speech_workers"].data
    best = data[data["series"] == speech_errors.BEST_RATE]
    assert set(data.loc[data["series"] == "own rate", "lr"]) == {0.32, 0.016}
    assert set(best["lr"]) <= {0.08, 0.004} and set(best["workers"]) <= {16}


def test_losses_stand_beside_the_papers(on_speech):
    loss = on_speech["speech_workers"].figure.axes[2]
    printed = {line.get_label(): line for line in loss.lines if line.get_label().startswith("published")}
    assert {name: [round(y, 1) for y in line.get_ydata()] for name, line in printed.items()} == {
        "published ng_sgd rbm": [0.4, 0.4, 0.5], "published ng_sgd random": [0.8], "published sgd rbm": [1.4],
    }  # fmt: skip
    assert all(line.get_markerfacecolor() == "white" for line in printed.values())
    data = on_speech["speech_workers"].data
    line = next(line for line in loss.lines if line.get_label() == "ng_sgd rbm")
    own = rows_of(data, optimizer="ng_sgd", init="rbm", series="own rate").sort_values("workers")
    assert np.allclose(line.get_ydata(), 100 * own["wer_minus_one_worker"].iloc[1:].astype(float))


def test_what_diverged_or_is_far_above_is_told_at_the_top(on_speech):
    drawn = on_speech["speech_workers"]
    axes = drawn.figure.axes[0]
    lost = [line for line in axes.lines if line.get_label() == "_diverged" and len(line.get_xdata())]
    assert len(lost) == 2 and "all seeds diverged" in drawn.alt  # plain SGD on 32, from both first weights
    beyond = [line for line in axes.lines if line.get_label() == "_beyond" and len(line.get_xdata())]
    value = rows_of(drawn.data, optimizer="sgd", init="random", workers=16)["wer"].iloc[0]
    assert len(beyond) == 1 and f"{100 * value:.0f}" in [text.get_text() for text in axes.texts]
    assert axes.get_ylim()[1] < 30


def test_an_axis_ends_where_most_errors_fit():
    assert lines.ceiling(pd.Series([8.0, 9.0, 10.0])) is None
    assert lines.ceiling(pd.Series([8.0, 9.0, 10.0, 95.0])) == pytest.approx(13.0)
    assert lines.ceiling(pd.Series([np.nan])) is None


def test_an_optimiser_has_one_colour_that_is_no_methods(on_speech):
    for name in ("workers", "period", "rates", "init", "drift"):
        for line in (line for axes in on_speech[f"speech_{name}"].figure.axes for line in axes.lines):
            optimizer = line.get_label().split(" ")[0]
            if optimizer in style.OPTIMIZER_COLOURS:
                assert line.get_color() == style.optimizer_colour(optimizer)
                assert line.get_markerfacecolor() in (line.get_color(), "white")
    colours = [*style.OPTIMIZER_COLOURS.values(), *style.METHOD_COLOURS.values()]
    assert len(set(colours)) == len(colours)


def test_once_an_epoch_is_the_longest_period(on_speech):
    drawn = on_speech["speech_period"]
    whole = 200_000 // (16 * 128)
    assert sorted(drawn.data["period"]) == [1, 5, 10, 20, whole]
    for axes in drawn.figure.axes:
        assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "5", "10", "20", "epoch"]
    frame, word = drawn.figure.axes
    assert (frame.get_ylabel(), word.get_ylabel()) == ("frame error (%)", "word error (%)")
    # lines of a single period are left out
    assert set(drawn.data["optimizer"]) == {"ng_sgd"} and set(drawn.data["workers"]) == {16}


def test_drift_against_workers_and_period(on_speech):
    workers, period = on_speech["speech_drift"].figure.axes
    line = next(line for line in workers.lines if line.get_label() == "ng_sgd rbm")
    assert np.allclose(line.get_ydata(), [4, 8, 10])  # 2 % times log2 of the workers
    line = next(line for line in period.lines if line.get_label() == "ng_sgd rbm")
    assert np.allclose(line.get_ydata(), [8 * (k / 10) ** 0.5 for k in (1, 5, 10, 20, 98)])


def test_settings_of_the_schedules_are_told_apart(on_speech):
    data = on_speech["speech_schedule"].data
    assert list(dict.fromkeys(label.replace("\n", " ") for label in data["label"])) == [
        "exponential, final 0.01, rate 0.08", "exponential, final 0.01, rate 0.32",
        "exponential, final 0.01, rate 0.64", "exponential, final 0.1, rate 0.32",
        "newbob, start below 0.00125, rate 0.32", "newbob, start below 0.005, rate 0.32",
        "newbob, start below 0.005, reject worse, rate 0.64",
    ]  # fmt: skip
    axes = on_speech["speech_schedule"].figure.axes[0]
    points = [line for line in axes.lines if line.get_marker() == "s"]
    assert np.allclose(sorted(line.get_xdata()[0] for line in points), sorted(100 * data["wer"]))
    hollow = [line for line in points if line.get_markerfacecolor() == "white"]
    assert len(hollow) == (data["workers"] == 1).sum() == 2


def test_each_setting_is_shown_at_its_own_rate(on_speech):
    rates = on_speech["speech_rule"].data.groupby("max_change_rule")["lr"].unique().map(list).to_dict()
    assert rates == {"author": [0.32], "standard": [0.008]}
    assert set(on_speech["speech_scaling"].data["lr"]) == {0.32}
    assert set(on_speech["speech_mixing"].data["workers"]) == {32}


def test_worker_0_stands_beside_the_final_average(on_speech):
    drawn = on_speech["speech_mixing"]
    own = [line for line in drawn.figure.axes[0].lines if line.get_marker() == "v"]
    expected = drawn.data["rank0_wer"].dropna()
    assert len(expected) == 2 and np.allclose(sorted(o.get_xdata()[0] for o in own), sorted(100 * expected))


def test_rates_are_judged_on_validation_data_of_the_trials(on_speech, speech):
    drawn = on_speech["speech_rates"]
    assert [axes.get_title() for axes in drawn.figure.axes] == [
        "1 worker",
        "4 workers",
        "16 workers",
        "32 workers",
    ]
    row = rows_of(drawn.data, optimizer="sgd", workers=16, lr=0.016)
    trials = rows_of(speech[0], optimizer="sgd", workers=16, lr=0.016)
    trials = trials[trials["seed"] >= 100]
    assert (
        row["error"].iloc[0] == pytest.approx(1 - trials["valid_accuracy"].mean()) and row["n"].iloc[0] == 3
    )
    best = [line for line in drawn.figure.axes[2].lines if line.get_label() == "_best"]
    assert sorted(line.get_xdata()[0] for line in best) == [0.016, 0.32]


def test_without_trials_there_is_no_figure_of_rates(speech):
    assert recipes.rates_figure(tables.reported(speech[0])[:0], "averaging") is None


def test_first_weights_are_compared_epoch_by_epoch(on_speech, speech):
    data = on_speech["speech_init"].data
    assert set(data["workers"]) == {1, 32} and set(data["init"]) == {"rbm", "random"}
    last = rows_of(data, optimizer="ng_sgd", init="rbm", workers=1, epoch=synthetic.EPOCHS).iloc[0]
    own = rows_of(speech[0], optimizer="ng_sgd", init="rbm", workers=1, evidence="simulated", lr=0.32, minibatch=128,
                  schedule="exponential", max_change_rule="author", data_size=200_000)  # fmt: skip
    errors = 1 - own[own["seed"] < 100]["valid_accuracy"]
    assert (last["valid_frame_error"], last["low"], last["high"]) == pytest.approx(
        (errors.mean(), errors.min(), errors.max())
    )
    assert last["n"] == 3


def test_ranks_show_speedup_and_share_beside_the_papers(on_speech):
    data = on_speech["speech_ranks"].data
    ours = data[data["source"] == "measured"].set_index(["method", "mixing", "workers"]).sort_index()
    assert ours.loc[("averaging", "allreduce", 2), "share"] == pytest.approx(0.1)
    assert ours.loc[("averaging", "butterfly", 4), "share"] == pytest.approx(0.1)
    assert ours.loc[("averaging", "allreduce", 2), "speedup"] == pytest.approx(40 / 21.5)
    # each way to mix begins at one rank, which mixes with nobody
    assert ours.loc[("averaging", "butterfly", 1), "speedup"] == 1.0


def test_the_papers_shares_are_minutes_in_mpi_over_minutes_of_an_epoch(speech):
    rows = [("e1", "epoch_time", 254.5, 1, None), ("e16", "epoch_time", 27.3, 16, "allreduce"),
            ("m16", "mpi_time", 4.31, 16, "allreduce"), ("b16", "epoch_time", 25.2, 16, "butterfly"),
            ("n16", "mpi_time", 2.17, 16, "butterfly")]  # fmt: skip
    published = pd.DataFrame(rows, columns=["id", "metric", "value", "workers", "reduce"]).set_index("id")
    data = figures.ranks_figure(speech[0], published.assign(paper="averaging"), "averaging").data
    printed = data[data["source"] == "published"].set_index("mixing")
    assert printed.loc["allreduce", "speedup"] == pytest.approx(9.32, abs=0.005)
    assert dict((100 * printed["share"]).round(1)) == {"allreduce": 15.8, "butterfly": 8.6}


def test_generated_speech_is_named_in_every_caption(tmp_path):
    rows = synthetic.speech_records(dataset="generated_words", data_kind="generated")
    runs = synthetic.runs(rows)
    synthetic.curves(runs, tmp_path)
    drawn = figures.speech_figures(
        runs, synthetic.utterances(rows), synthetic.published(), tmp_path, "averaging"
    )
    assert len(drawn) == len(SPEECH)
    assert all("generated_words (generated speech)" in figure.caption for figure in drawn)
    others = figures.paper_figures(
        runs, synthetic.timings(runs), synthetic.published(), tmp_path, "averaging"
    )
    assert {"speedup", "period", "sizes_accuracy"} <= {figure.name for figure in others}
    for figure in others:
        assert "generated_words (generated speech)" in figure.caption, figure.name


def test_each_corpus_has_its_figures(speech, tmp_path):
    few = [
        synthetic.speech_record(workers=m, dataset="generated_words", data_kind="generated") for m in (1, 16)
    ]
    both = pd.concat([speech[0], synthetic.runs(few)], ignore_index=True)
    utterances = pd.concat([speech[1], synthetic.utterances(few)], ignore_index=True)
    drawn = figures.speech_figures(both, utterances, synthetic.published(), tmp_path, "averaging")
    names = [figure.name for figure in drawn if figure.name.startswith("speech_workers")]
    assert names == ["speech_workers_an4", "speech_workers_generated_words"]


def test_without_speech_or_without_several_values_nothing_is_drawn(runs, tmp_path):
    given = (synthetic.published(), tmp_path, "averaging")
    assert figures.speech_figures(runs, synthetic.utterances([]), *given) == []
    one = [synthetic.speech_record(workers=16)]
    assert figures.speech_figures(synthetic.runs(one), synthetic.utterances(one), *given) == []


def test_errors_of_frames_are_drawn_where_nothing_was_decoded(tmp_path):
    rows = [synthetic.speech_record(workers=m, seed=s, decode=False) for m in (1, 4, 16) for s in range(2)]
    drawn = figures.speech_figures(
        synthetic.runs(rows), synthetic.utterances([]), synthetic.published(), tmp_path, "averaging"
    )
    figure = next(figure for figure in drawn if figure.name == "speech_workers")
    words, frames, _ = figure.figure.axes
    assert [text.get_text() for text in words.texts] == ["no word errors here"]
    line = next(line for line in frames.lines if line.get_label() == "ng_sgd rbm")
    assert np.isfinite(line.get_ydata()).all() and "bars: range" in figure.caption


def test_the_main_condition_is_the_most_frequent(words):
    main = conditions.main_condition(conditions.quality_rows(words))
    for name, value in (("minibatch", 128), ("schedule", "exponential"), ("data_size", 200_000)):
        assert set(main[name]) == {value}
    several = main[main["workers"] > 1]
    assert set(several["sync_period"]) == {10} and set(several["mixing"]) == {"allreduce"}
    assert set(several["lr_scaling"]) == {"linear"}
    assert not main.duplicated(["optimizer", "init", "workers", "lr"]).any()
    assert set(conditions.quality_rows(words)["evidence"]) == {"simulated"}


def speech_words(rows):
    frame = synthetic.runs(rows)
    return frame, wer_table(frame, synthetic.utterances(rows), synthetic.published(), "default")


@pytest.mark.parametrize(
    "other", [{"epochs": 8}, {"epochs": 8, "model": "fc-64-64-64", "model_params": 60_000}]
)
def test_settings_that_were_run_longer_or_on_another_net_are_compared_among_themselves(other):
    short = [synthetic.speech_record(workers=w, seed=s, epochs=3) for w in (1, 4, 8, 16) for s in range(3)]
    long = [synthetic.speech_record(workers=16, seed=s, mixing=mixing, **other)
            for mixing in ("allreduce", "butterfly") for s in range(2)]  # fmt: skip
    _, words = speech_words(short + long)
    drawn = {one.name: one for one in speech_errors.settings_figures(words, "averaging")}
    data = drawn["speech_mixing"].data
    assert all(set(data[name]) == {value} for name, value in other.items())
    assert sorted(data["mixing"]) == ["allreduce", "butterfly"]


def test_schedules_are_compared_at_one_length_and_one_pretraining():
    def rows(seeds, epochs, **settings):
        return [synthetic.speech_record(workers=16, seed=seed, epochs=epochs, settings=settings)
                for seed in range(seeds)]  # fmt: skip

    _, words = speech_words(
        rows(3, 3) + rows(2, 3, rbm_gaussian_epochs=8) + rows(2, 8) + rows(2, 8, lr_final=0.1)
    )
    drawn = {one.name: one for one in speech_errors.settings_figures(words, "averaging")}
    data = drawn["speech_schedule"].data
    labels = [label.replace("\n", " ") for label in data["label"]]
    assert labels == ["exponential, final 0.01", "exponential, final 0.1"] and set(data["epochs"]) == {8}


def test_the_period_of_speech_is_shown_at_the_main_rate_alone():
    rows = [
        synthetic.speech_record(workers=16, sync_period=k, seed=s, lr=0.32) for k in (5, 10) for s in range(3)
    ]
    rows += [synthetic.speech_record(workers=16, seed=s, lr=0.08) for s in range(2)]
    frame = synthetic.runs(rows)
    drawn = figures.paper_figures(frame, synthetic.timings(frame), synthetic.published(), None, "averaging")
    period = next(one for one in drawn if one.name == "period")
    ten = frame[(frame["sync_period"] == 10) & (frame["lr"] == 0.32)]
    assert float(rows_of(period.data, sync_period=10)["mean"].iloc[0]) == pytest.approx(ten["wer"].mean())
    quality_axes = period.figure.axes[1]
    assert quality_axes.get_ylabel() == "word error (%)"
    assert quality_axes.yaxis.get_major_formatter()(0.125, None) == "12.5"
    assert "mean of 3 seeds, bars are their range" in period.caption


def test_values_above_the_axis_of_two_lines_do_not_cover_each_other():
    axes = style.new_figure(5.2, 4.0)[1][0, 0]
    for tint in ("red", "blue"):
        lines.draw_beyond(axes, pd.Series([16.0]), pd.Series([98.0]), tint)
    lines.draw_beyond(axes, pd.Series(dtype=float), pd.Series(dtype=float), "green")
    heights = [text.xy[1] for text in axes.texts]
    assert len(heights) == 2 and abs(heights[0] - heights[1]) >= 0.05


def test_no_interval_of_what_is_shown_is_cut(on_speech):
    drawn = on_speech["speech_workers"]
    for axes, metric in zip(drawn.figure.axes, ("wer", "frame_error", "wer_minus_one_worker"), strict=True):
        low, high = axes.get_ylim()
        shown = drawn.data[100 * drawn.data[metric].astype(float) <= high]
        assert 100 * shown[f"{metric}_low"].min() >= low and 100 * shown[f"{metric}_high"].max() <= high


def test_every_published_loss_is_inside_the_plot():
    rows = [synthetic.speech_record(workers=w, seed=s) for w in (1, 16) for s in range(2)]
    _, words = speech_words(rows)
    axes = speech_errors.workers_figure(words, synthetic.published(), "averaging").figure.axes[2]
    left, right = axes.get_xlim()
    drawn = [x for line in axes.lines if line.get_label().startswith("published") for x in line.get_xdata()]
    assert drawn and left < min(drawn) and max(drawn) < right
    assert left >= 0.5 * min(axes.get_xticks())
    low, high = axes.get_ylim()
    values = [y for line in axes.lines if line.get_label().startswith("published") for y in line.get_ydata()]
    assert low < 0 and max(values) < high
