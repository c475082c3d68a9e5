"""The time model against measured steps: errors by hand, sources by method and network, sums, words and figure."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from implementations.reporting import validation
from implementations.reporting.figures.suite_validation import validation_figure
from implementations.reporting.suite.context import Context
from tests.reporting import synthetic


def measured(run_id, repeat=0, train_s=1.0, **more):
    """A measured run of 100 steps."""
    given = {"run_id": run_id, "repeat": repeat, "evidence": "measured", "train_s": train_s, "steps": 100}
    given |= {"workers": 2, "network": "loopback", "experiments": ["validation/steps"], "processes": 2}
    return synthetic.record(**(given | more))


def timed(run_id, step_s, cluster="this-host", **more):
    """A hundred steps, four fifths of whose seconds are computation."""
    parts = {
        "steps": 100,
        "workers": 2,
        "compute_s": 70 * step_s,
        "data_s": 5 * step_s,
        "straggler_s": 5 * step_s,
    }
    found = {"run_id": run_id, "cluster": cluster, "step_s": step_s, "compute_source": "calibrated table"}
    return found | parts | more


def test_the_error_of_a_point_is_that_of_the_median_repeat():
    seconds = [1.0, 1.2, 1.1, 1.05, 1.4]
    rows = [measured(f"v{i}", i, value) for i, value in enumerate(seconds)]
    rows += [measured("other", train_s=9.0, experiments=["speedup/all"])]
    timings = pd.DataFrame([timed(row["run_id"], 0.012) for row in rows])
    table = validation.validation(synthetic.runs(rows), timings)
    assert list(table.columns) == validation.COLUMNS
    (row,) = table.to_dict("records")
    assert (row["run_id"], row["repeats"], row["workers"]) == ("v0", 5, 2)
    assert (row["measured_s"], row["measured_low_s"], row["measured_high_s"]) == pytest.approx(
        (0.011, 0.01, 0.014)
    )
    assert row["predicted_s"] == 0.012 and row["error"] == pytest.approx(0.012 / 0.011 - 1)
    assert not any(name.startswith("evidence") for name in table.columns)


def test_a_point_is_predicted_on_the_cluster_of_its_network():
    """And points of two networks are two points; one whose network is not calibrated keeps its row."""
    networks = ("loopback", "emulated-100mbit", "emulated-10mbit")
    rows = [measured(f"r-{name}", network=name) for name in networks]
    timings = pd.DataFrame([
        timed("r-loopback", 0.01), timed("r-emulated-100mbit", 0.02, "emulated-100mbit"),
        timed("r-emulated-10mbit", 0.03),
    ])  # fmt: skip
    table = validation.validation(synthetic.runs(rows), timings).set_index("network")
    assert table.loc["loopback", "error"] == pytest.approx(0.0)
    assert table.loc["emulated-100mbit", "error"] == pytest.approx(1.0)
    assert np.isnan(table.loc["emulated-10mbit", "error"])
    assert "emulated-100mbit" in table.loc["emulated-100mbit", "group"]


def test_seconds_at_the_pace_of_the_time():
    """All of them in memory, and those of computation on a link of its own, in proportion to a fixed step's."""
    rows = [
        measured("r-loopback", pace_step_s=0.0012),
        measured("r-limited", network="emulated-100mbit", pace_step_s=0.0012),
        measured("r-crowded", workers=4, pace_step_s=0.003),
    ]
    timings = pd.DataFrame([
        timed("r-loopback", 0.01, pace_step_s=0.001), timed("r-limited", 0.01, "emulated-100mbit", pace_step_s=0.001),
        timed("r-crowded", 0.01, workers=4, pace_step_s=np.nan),
    ])  # fmt: skip
    table = validation.validation(synthetic.runs(rows), timings).set_index("run_id")
    assert table.loc["r-loopback", "pace"] == pytest.approx(1.2)
    assert table.loc["r-loopback", "predicted_at_pace_s"] == pytest.approx(0.012)
    assert table.loc["r-limited", "predicted_at_pace_s"] == pytest.approx(0.01 + 0.2 * 0.008)
    assert table.loc["r-limited", "error_at_pace"] == pytest.approx(0.0116 / 0.01 - 1)
    assert np.isnan(table.loc["r-crowded", "error_at_pace"])
    words = " ".join(validation.sentences(table.reset_index()))
    assert "took 1.20 to 1.20 times as long" in words and words.count("the goal is missed") == 1


def test_layerwise_training_has_its_own_model():
    row = measured(
        "lw", method="layerwise", variant="data", samples_per_s=3200.0, global_batch=64, minibatch=32
    )
    plan = {
        "run_id": "lw", "cluster": "this-host", "status": "ok", "step_s": 0.015, "additive_s": 0.02, "compute_s": 0.01,
        "compute_source": "measured blocks", "strategy_hash": None, "dataset": None,
    }  # fmt: skip
    timings = pd.DataFrame([timed("lw", 9.0)])
    runs = synthetic.runs([row])
    (found,) = validation.validation(runs, timings, pd.DataFrame([plan])).to_dict("records")
    assert (found["predicted_s"], found["compute_source"]) == (0.015, "measured blocks")
    (found,) = validation.validation(runs, timings, None).to_dict("records")
    assert np.isnan(found["predicted_s"])


def test_the_summary_takes_crowded_points_apart():
    told = validation.summary(synthetic.validation())
    rows = {(row["over"], row["oversubscribed"]): row for row in told.to_dict("records")}
    # |errors| of three models: 3 % and 14 % on the loopback, 4 % at 100 Mbit/s, 50 % on four ranks
    assert rows["all points", False]["n"] == 9
    assert rows["all points", False]["median_error"] == pytest.approx(0.04)
    assert rows["all points", False]["worst_error"] == pytest.approx(0.14)
    assert rows["network: loopback", False]["median_error"] == pytest.approx((0.03 + 0.14) / 2)
    assert rows["network: emulated-100mbit", False]["worst_error"] == pytest.approx(0.04)
    assert rows["all points", True]["median_error"] == pytest.approx(0.5)
    assert ("network: emulated-100mbit", True) not in rows


def test_it_is_said_in_words_and_whether_the_goal_is_met():
    given = synthetic.validation()
    said = " ".join(validation.sentences(given))
    assert (
        "Over 9 points with a core for each rank" in said
        and "4.0 % in the median and 14.0 % at worst" in said
    )
    assert "is missed" in said and "Over 3 points with more ranks than cores" in said
    good = given.assign(error=0.02)
    assert "is met" in " ".join(validation.sentences(good))
    lost = given.assign(error=[np.nan] + [0.02] * (len(given) - 1))
    assert "Nothing was predicted for 1 further point." in validation.sentences(lost)
    assert validation.sentences(given.iloc[:0]) == []
    assert validation.sentences(pd.DataFrame()) == []


def context(frame: pd.DataFrame) -> Context:
    none = pd.DataFrame()
    return Context(none, none, none, none, frame, none, Path("results"), Path("config"), None)


def test_the_figure_has_a_point_for_each_row_in_its_methods_colour():
    given = synthetic.validation()
    drawn = validation_figure(context(given))
    points = np.concatenate([c.lines[0].get_xydata() for c in drawn.figure.axes[0].containers])
    expected = given[["measured_s", "predicted_s"]].to_numpy() * 1e3
    assert np.allclose(points, expected)
    assert {c.lines[0].get_color() for c in drawn.figure.axes[0].containers} == {"#0072B2"}
    assert drawn.paper == "suite" and "14.0 %" in drawn.caption
    labels = [text.get_text() for text in drawn.figure.axes[0].get_legend().get_texts()]
    assert {"one machine's memory", "emulated, 100 Mbit/s", "hollow: more ranks than cores"} <= set(labels)
    assert len(labels) == 4


def test_without_points_nothing_is_drawn():
    assert validation_figure(context(pd.DataFrame())) is None
    assert validation_figure(context(synthetic.validation().assign(predicted_s=np.nan))) is None
