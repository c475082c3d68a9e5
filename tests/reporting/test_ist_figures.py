import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from implementations.reporting import subnets
from implementations.reporting.claims import load_published
from implementations.reporting.figures import style
from implementations.reporting.figures.ist import subnet_figures
from implementations.reporting.figures.ist_bandwidth import bandwidth_data, bandwidth_figure
from implementations.reporting.figures.ist_curves import curves_data, training_figure
from implementations.reporting.figures.ist_lines import at_most_periods, chosen
from implementations.reporting.figures.ist_memory import memory_figure
from implementations.reporting.figures.ist_settings import (
    choices_data,
    choices_figure,
    skew_data,
    skew_figure,
)
from implementations.reporting.figures.ist_width import hypothesis_data, hypothesis_figure, width_figure
from implementations.reporting.figures.ist_workers import workers_data, workers_figure
from implementations.reporting.targets import aimed, seed_times
from tests.reporting import synthetic, synthetic_ist

METHODS = {
    "IST": "ist",
    "local SGD": "averaging",
    "data parallel": "data_parallel",
    "one worker": "sequential",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Runs, timings and the folder with their curves."""
    rows = synthetic_ist.records()
    folder = tmp_path_factory.mktemp("ist")
    drawn = ("ist/", "ist_deep/", "ist_images/", "ist_keywords/")
    synthetic_ist.curves([row for row in rows if row["experiments"][0].startswith(drawn)], folder)
    runs = synthetic.runs(rows)
    return runs, synthetic_ist.timings(runs), folder


@pytest.fixture(scope="module")
def every(results):
    """Each figure by its name."""
    runs, timings, folder = results
    made = subnet_figures(runs, timings, load_published(), synthetic_ist.CLUSTERS, folder, "ist")
    return {figure.name: figure for figure in made}


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def keys_of(drawn):
    legends = drawn.figure.legends + [axes.get_legend() for axes in drawn.figure.axes if axes.get_legend()]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def test_each_question_has_its_figure(every):
    main = ["curves", "workers", "width", "bandwidth", "memory", "skew", "ablations", "hypothesis"]
    assert {f"ist_{name}" for name in main} <= {name for name, drawn in every.items() if not drawn.section}
    assert {"sizes_accuracy", "sizes_bytes", "sizes_speedup"} <= set(every)
    elsewhere = {name for name, drawn in every.items() if drawn.section == "elsewhere"}
    assert elsewhere == {
        "ist_curves_deep", "ist_workers_deep", "ist_bandwidth_deep", "ist_curves_keywords", "ist_workers_keywords",
        "ist_bandwidth_keywords", "ist_curves_images_cifar10", "ist_curves_images_fashion_mnist", "ist_faithful",
    }  # fmt: skip
    assert {name for name, drawn in every.items() if drawn.section == "time"} == {"speedup", "time_split"}


def test_each_says_its_evidence_data_and_variant(every):
    for name, drawn in every.items():
        assert "Evidence: " in drawn.caption and drawn.alt and drawn.command == "snakemake --cores all ist", (
            name
        )
        assert len(drawn.data) or name == "ist_curves"
        if name.startswith("ist_"):
            assert "ariant " in drawn.caption, name
            dataset = drawn.data["dataset"].iloc[0]
            assert dataset in drawn.caption and dataset in drawn.title


def test_a_method_is_called_and_coloured_the_same_everywhere(every):
    for name, drawn in every.items():
        assert not any("averaging" in text or "all-reduce" in text for text in keys_of(drawn)), name
        for legend in drawn.figure.legends:
            for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
                method = METHODS.get(text.get_text().split(",")[0])
                tone = text.get_text().startswith("IST, ") and "workers" in text.get_text()
                if method and hasattr(handle, "get_color") and not tone:
                    assert to_hex(handle.get_color()).upper() == style.colour(method), (name, text)


@pytest.mark.parametrize(
    "experiment, draw",
    [
        ("ist", lambda runs, timings, folder: training_figure(runs, timings, folder, "ist", "ist")),
        ("ist", lambda runs, timings, folder: workers_figure(runs, "ist", "ist")),
        (
            "ist",
            lambda runs, timings, _: bandwidth_figure(runs, timings, synthetic_ist.CLUSTERS, "ist", "ist"),
        ),
        ("ist_width", lambda runs, *_: width_figure(runs, "ist")),
        ("ist_hypothesis", lambda runs, *_: hypothesis_figure(runs, "ist")),
        ("ist_memory", lambda runs, *_: memory_figure(runs, load_published(), "ist")),
        ("ist_skew", lambda runs, *_: skew_figure(runs, "ist")),
        ("ist_ablations", lambda runs, *_: choices_figure(runs, "ist")),
    ],
)
def test_a_question_that_was_not_asked_has_no_figure(results, experiment, draw):
    runs, timings, folder = results
    kept = runs[[not name[0].startswith(f"{experiment}/") for name in runs["experiments"]]]
    assert draw(kept, timings, folder) is None


def test_nothing_run_draws_nothing(results, tmp_path):
    nothing = synthetic.runs([])
    assert subnet_figures(nothing, pd.DataFrame(), pd.DataFrame(), {}, tmp_path, "ist") == []


def test_curves_are_means_of_seeds_against_steps_bytes_and_seconds(results):
    runs, timings, folder = results
    rows, workers = at_most_periods(chosen(runs, "ist"))
    assert workers == 4
    data = curves_data(rows, timings, folder)
    own = runs[[name[0] == "ist/ist" for name in runs["experiments"]]]
    own = own[own["sync_period"] == 20]
    line = data[data["name"] == "IST (J=20)"]
    assert len(line) == synthetic_ist.EPOCHS + 1 and (line["n"] == 3).all()
    assert line["accuracy"].iloc[-1] == pytest.approx(own["valid_accuracy"].mean())
    assert line["high"].iloc[-1] == pytest.approx(own["valid_accuracy"].max())
    assert (
        line["step"].iloc[-1] == 2400 and line["sent_bytes_total"].iloc[-1] == own["sent_bytes_total"].iloc[0]
    )
    step = timings[timings["run_id"].isin(own["run_id"]) & (timings["cluster"] == "gigabit-cpu")][
        "step_s"
    ].iloc[0]
    assert np.allclose(line["seconds"], line["step"] * step)


def test_the_curves_that_are_drawn_are_those_of_the_data(every):
    drawn = every["ist_curves"]
    for axes, column in zip(drawn.figure.axes, ("step", "sent_bytes_total", "seconds"), strict=False):
        line = drawn.data[(drawn.data["name"] == "local SGD (J=40)") & (drawn.data["epoch"] > 0)]
        seen = lines_of(axes)["local SGD (J=40)"]
        x = np.asarray(seen.get_xdata())[-len(line) :]
        assert np.allclose(np.asarray(seen.get_ydata())[-len(line) :], line["accuracy"])
        assert np.allclose(x / x[-1], line[column] / line[column].iloc[-1])
    # nothing is sent by one worker, which a logarithmic axis cannot show
    assert not len(lines_of(drawn.figure.axes[1])["one worker"].get_xdata())
    assert {"J=5", "J=20", "J=40", "J=60", "target"} <= set(keys_of(drawn))
    assert "first at the target of 0.6 in steps data parallel, in bytes IST (J=60)" in drawn.caption


def test_curves_without_timings_say_so(results):
    drawn = training_figure(results[0], pd.DataFrame(), results[2], "ist", "ist")
    assert [text.get_text() for text in drawn.figure.axes[2].texts] == ["no times on gigabit-cpu yet"]
    assert bandwidth_figure(results[0], pd.DataFrame(), synthetic_ist.CLUSTERS, "ist", "ist") is None


def test_accuracy_and_bytes_against_workers(results, every):
    runs = results[0]
    data = workers_data(chosen(runs, "ist")).set_index(["line", "workers"])
    own = runs[(runs["method"] == "ist") & (runs["workers"] == 2)]
    own = own[[name[0] == "ist/workers" for name in own["experiments"]]]
    row = data.loc[("IST", 2)]
    assert row["accuracy"] == pytest.approx(own["accuracy"].mean()) and row["sync_period"] == 20
    assert row["bytes"] == own["bytes_to_target"].astype(float).median() and row["reached"] == 3
    assert np.isinf(data.loc[("IST", 8), "bytes"]) and data.loc[("IST", 8), "reached"] == 0
    drawn = every["ist_workers"]
    right = drawn.figure.axes[1]
    assert "3/3" in [text.get_text() for text in right.texts]
    assert np.isfinite(np.concatenate([line.get_ydata() for line in right.lines]).astype(float)).all()
    ratio = data.loc[("data parallel", 4), "bytes"] / data.loc[("IST", 4), "bytes"]
    assert f"{ratio:.3g}" in drawn.caption and "at 8 workers" not in drawn.caption


def test_the_threshold_is_drawn_where_it_is(every):
    axes = every["ist_width"].figure.axes[0]
    upright = [line for line in axes.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2]
    assert [line.get_xdata()[0] for line in upright] == [512]
    assert "threshold: 512 units" in keys_of(every["ist_width"])
    assert "below 1 point: 512" in every["ist_width"].caption


def test_no_width_that_is_enough_is_said_and_not_drawn(results):
    runs = results[0]
    narrow = runs[runs["model"] != "fc_bn-2048"]
    drawn = width_figure(narrow[narrow["workers"] != 2], "ist")
    assert "below 1 point: none" in drawn.caption and not any("threshold" in text for text in keys_of(drawn))


def test_time_against_bandwidth_takes_the_fastest_period(results, every):
    rows, _ = at_most_periods(chosen(results[0], "ist"))
    seconds = seed_times(aimed(rows), results[1], synthetic_ist.CLUSTERS)
    data = bandwidth_data(seconds)
    own = data[data["line"] == "IST"].set_index("mbit_s")
    for mbit, row in own.iterrows():
        here = seconds[(seconds["line"] == "IST") & (seconds["mbit_s"] == mbit)]
        assert row["time_s"] == here.groupby("sync_period")["time_s"].median().min()
        best = here[here["sync_period"] == row["sync_period"]]["time_s"]
        assert (row["low"], row["high"], row["reached"]) == (best.min(), best.max(), 3)
    drawn = every["ist_bandwidth"]
    circles = lines_of(drawn.figure.axes[0])["_crossing"]
    flat = data[data["line"] == "one worker"]["time_s"].iloc[0]
    assert (
        np.isclose(circles.get_ydata(), flat).sum() == 2 * 3
    )  # with and without dropout, of the three others
    assert "one worker is faster than IST below" in drawn.caption and "IST before local SGD" in drawn.caption


def test_a_missed_target_is_drawn_at_the_top(results):
    runs, timings, _ = results
    here = runs[[name[0].startswith("ist/") for name in runs["experiments"]]]
    missed = (here["method"] == "ist").astype(bool)
    given = {"target_reached": False, "status": "target_missed"}
    late = here.assign(**{name: here[name].mask(missed, value) for name, value in given.items()})
    drawn = bandwidth_figure(late, timings, synthetic_ist.CLUSTERS, "ist", "ist")
    triangles = [line for line in drawn.figure.axes[0].lines if line.get_label() == "_missed"]
    assert len(triangles) == 4 and {line.get_color() for line in triangles} == {style.colour("ist")}
    assert "target missed" in keys_of(drawn) and "most seeds miss the target" in drawn.caption
    assert "IST" not in drawn.caption.partition("Changes of places")[2].partition("At every")[0]


def test_what_does_not_fit_is_crossed(every):
    drawn = every["ist_memory"]
    ours, theirs = drawn.figure.axes

    def crosses(axes):
        return sum(len(line.get_xdata()) for line in axes.lines if line.get_label() == "_fail")

    data = drawn.data
    published = data["evidence"] == "published"
    assert crosses(ours) == (~data.loc[~published, "fits"].astype(bool)).sum() > 0
    assert crosses(theirs) == 4 and theirs.get_title() == "the paper's: amazon-670k"
    assert "Each worker may hold 4 MB" in drawn.caption and "IST, 8 workers: 512 units" in drawn.caption
    assert "does not fit (Fail)" in keys_of(drawn)


def test_skew_has_a_point_for_each_strength(results, every):
    rows = subnets.described(results[0])
    rows = rows[[name[0] == "ist_skew/skewed" for name in rows["experiments"]]]
    data = skew_data(rows)
    assert len(data) == 8 and data["skew"].isna().sum() == 2
    row = data[(data["line"] == "local SGD") & (data["skew"] == 1.2)].iloc[0]
    own = rows[(rows["method"] == "averaging") & (rows["skew"] == 1.2).fillna(False).astype(bool)]
    assert row["accuracy"] == pytest.approx(own["accuracy"].mean()) and row["n"] == 3
    labels = [text.get_text() for text in every["ist_skew"].figure.axes[0].get_xticklabels()]
    assert labels == ["1.2", "12", "120", "equal\nshares"]


def test_choices_are_differences_to_the_default(results, every):
    data = choices_data(results[0], "ist_ablations").set_index("setting")
    assert data.loc["default", "points"] == 0 and data.index[0] == "default"
    # noise is of the seed, and the same for all settings
    expected = {
        "drawn once": -4.0, "overlap 0.5": 0.6, "stratified groups": 0.2, "no output normalisation": -2.0,
        "batch statistics at test": -1.0, "each worker shuffles all data": 0.1,
        "partitioned server, stratified groups": 0.0,
    }  # fmt: skip
    assert dict(data["points"].drop("default").round(6)) == pytest.approx(expected)
    caption = every["ist_ablations"].caption
    assert "worse: batch statistics at test; no output normalisation; drawn once" in caption


def test_the_published_code_is_held_against_the_corrected_at_each_period(results):
    data = choices_data(results[0], "ist_faithful").set_index("setting")
    assert list(data.index[data["is_default"].astype(bool)]) == ["default (J=5)", "default (J=20)"]
    assert data.loc["as published, lost steps (J=20)", "points"] == pytest.approx(-2.2)
    assert data.loc["as published (J=5)", "points"] == pytest.approx(-1.2)
    assert len(data) == 10


def test_the_hypothesis_is_counted_cell_by_cell(results, every):
    data = hypothesis_data(results[0])
    assert len(data) == 12 and (data["n"] == 3).all()
    cell = data[(data["width"] == 256) & (data["data_size"] == 6000)].iloc[0]
    assert cell["points"] == pytest.approx(-100 * (synthetic_ist.lost(64) + 20e-4), abs=0.3)
    below = (data["high"] < 0).sum()
    assert f"in {(data['low'] > 0).sum()} of 12 cells, worse in {below}" in every["ist_hypothesis"].caption
    assert len(every["ist_hypothesis"].figure.axes[0].texts) == 12


def test_kinds_of_evidence_never_share_a_figure(every):
    for name, drawn in every.items():
        kinds = set(drawn.data["evidence"].dropna()) - {"published"}
        assert len(kinds) == 1, name


def test_tones_of_a_colour_get_darker():
    def luminance(tint):
        return sum(int(tint[k : k + 2], 16) for k in (1, 3, 5))

    tones = [luminance(style.shade(style.colour("ist"), place, 4)) for place in range(4)]
    assert tones == sorted(tones, reverse=True) and len(set(tones)) == 4
    assert style.shade("#009E73", 0, 1).upper() == "#009E73"


def test_the_smallest_tier_has_the_main_figures_too(results, tmp_path):
    rows = [
        synthetic_ist.record(method=method, workers=workers, seed=seed, experiments=["ist_smoke/simulated"])
        for method, counts in (("sequential", (1,)), ("ist", (2, 4)), ("data_parallel", (2, 4)))
        for workers in counts
        for seed in range(2)
    ]
    # a run under a limit of memory is no other line
    rows.append(synthetic_ist.record(experiments=["ist_smoke/over-memory"], memory_limit_bytes=10**9))
    synthetic_ist.curves(rows, tmp_path)
    made = subnet_figures(synthetic.runs(rows), pd.DataFrame(), pd.DataFrame(), {}, tmp_path, "ist")
    assert [figure.name for figure in made] == ["ist_curves", "ist_workers"]
    lines = made[0].data.groupby("name")["n"].max()
    assert dict(lines) == {"IST (J=20)": 2, "data parallel": 2, "one worker": 2}
