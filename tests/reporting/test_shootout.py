"""The shoot-out over made-up runs: every contender's seconds are a power of the bandwidth, so crossings are known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from implementations.reporting import plans as planning
from implementations.reporting.claims import CONFIG
from implementations.reporting.figures import style, suite_shootout, suite_shootout_costs
from implementations.reporting.pagetables import ON_PAGE
from implementations.reporting.spark import as_projections
from implementations.reporting.suite import contest, shootout
from implementations.reporting.suite.context import Context
from implementations.reporting.targets import bandwidths
from tests.reporting import synthetic

TARGET, STEPS, SEEDS = 0.75, 100, (0, 1, 2)
FC, CNN = "fc-256", "cnn-512_filters4-8"
NETWORKS = {name: mbit_s for name, mbit_s in bandwidths().items() if name.endswith("-cpu")}
# Seconds to the target at 1 Mbit/s, and the power of the bandwidth; a later seed is slower by so much each.
TIMES = {
    ("sequential", "default", None): (100.0, 0.0, 0.0),
    ("data_parallel", "default", None): (4e5, -1.0, 0.1),  # before one worker from 4000 Mbit/s
    ("averaging", "default", 4): (2e4, -1.0, 0.0),  # from 200
    ("averaging", "default", 16): (2e4 / 94.16**0.5, -0.5, 0.0),  # slower than K=4 from 94.16 on
    ("spark", "async", None): (np.inf, 0.0, 0.0),
}
PLAN_S = 0.5  # a step of the found plan, on every network


def record(method, variant, period, seed, workers, model=FC):
    known = TIMES.get((method, variant, period), (1.0, 0, 0))
    missed = not np.isfinite(known[0])
    values = {
        "paper": "suite", "experiments": ["shootout/x"], "method": method, "variant": variant, "model": model,
        "workers": workers, "seed": seed, "data_size": 4096, "minibatch": 16, "target_value": TARGET,
        "target_reached": not missed, "bytes_to_target": None if missed else workers * 1000 + seed,
        "run_id": f"{method}_{variant}_{period}_{model}_w{workers}_s{seed}", "steps": STEPS,
        "accuracy": 0.8 + 0.01 * seed, "state_bytes_per_worker": 10_000_000 // workers,
        "status": "target_missed" if missed else "ok", "mixing": None, "algorithm": None,
    }  # fmt: skip
    return synthetic.record(**values) | {"sync_period": period, "mixing": None}


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    folder, rows = tmp_path_factory.mktemp("shootout"), []
    for method, variant, period in TIMES:
        for workers in (1,) if method == "sequential" else (4, 16):
            rows += [record(method, variant, period, seed, workers) for seed in SEEDS]
    for seed in SEEDS:
        rows.append(record("sequential", "default", None, seed, 1, CNN))
        rows += [
            record(*who, None, seed, 4, CNN)
            for who in (("data_parallel", "default"), ("layerwise", "layerwise"))
        ]
    times = []
    for row in rows:
        curve = folder / "runs" / row["run_id"]
        curve.mkdir(parents=True)
        # a straight line to 1 after all steps: the target after 75
        pd.DataFrame({"step": [0, STEPS], "valid_accuracy": [0.0, 1.0]}).to_parquet(curve / "curve.parquet")
        factor, power, slower = TIMES.get(
            (row["method"], row["variant"], row["sync_period"]), (1.0, 0.0, 0.0)
        )
        if row["method"] == "layerwise":
            continue
        for name, mbit_s in NETWORKS.items():
            seconds = factor * mbit_s**power * (1 + slower * row["seed"])
            times.append({"run_id": row["run_id"], "cluster": name, "time_to_target_s": seconds})
    plans = [
        {"model": CNN, "dataset": "fashion_mnist", "minibatch": 16, "workers": 4, "cluster": name, "strategy": strategy,
         "objective": "additive", "sync": "allreduce", "degrees": "powers", "step_s": step_s, "network_bytes": 7,
         "paper": "suite", "run_id": "p", "experiments": ["shootout/plans"]}
        for name, mbit_s in NETWORKS.items()
        for strategy, step_s in (("layerwise", PLAN_S), ("data", 1.25 * 4e5 * 1.1 / mbit_s / 75))
    ]  # fmt: skip
    validation = pd.DataFrame(
        {"method": ["sequential", "data_parallel", "data_parallel", "averaging"], "error": [0.02, -0.1, 0.3, -0.05],
         "oversubscribed": [False, False, True, False]}
    )  # fmt: skip
    return Context(
        synthetic.runs(rows), pd.DataFrame(times), planning.described(planning.as_plans(pd.DataFrame(plans))),
        as_projections(None), validation, pd.DataFrame(), folder, CONFIG, "default",
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(context):
    return shootout.tables(context)


def of(table, net, workers):
    return table[(table["net"] == net) & (table["workers"] == workers)]


def test_networks_reach_from_ten_megabits_to_a_hundred_gigabits():
    assert min(NETWORKS.values()) < 10 and max(NETWORKS.values()) > 9e4


def test_seconds_are_the_time_models_but_for_plans(context):
    seconds = contest.seconds_of(contest.contenders(context), context)
    planned = seconds[seconds["method"] == "layerwise"]
    assert set(planned["seconds_by"]) == {contest.PLAN_MODEL} and len(planned) == len(SEEDS) * len(NETWORKS)
    # 75 steps of half a second, 7 bytes each
    assert planned["time_s"].tolist() == pytest.approx([37.5] * len(planned))
    assert planned["bytes_there"].tolist() == pytest.approx([525.0] * len(planned))
    assert set(seconds.loc[seconds["method"] != "layerwise", "seconds_by"]) == {contest.TIME_MODEL}


def test_the_lead_changes_where_times_are_equal(made):
    rows = of(made["changes"], contest.CONNECTED, 4)
    assert rows[["first", "second"]].to_numpy().tolist() == [[contest.ALONE, "averaging"]]
    # averaging at its best period: K=16 up to 94.16 Mbit/s, K=4 from there; equal to one worker at 200
    row = rows.iloc[0]
    assert row["crossing_mbit_s"] == pytest.approx(200, rel=1e-3)
    assert (row["crossing_low"], row["crossing_high"]) == pytest.approx((200, 200), rel=1e-3)
    assert row["seeds_crossing"] == row["n"] == 3
    # errors 2 % and 5 %, power -1
    assert row["model_low"] == pytest.approx(200 / 1.02 / 1.05, rel=1e-3)
    assert row["model_high"] == pytest.approx(200 * 1.02 * 1.05, rel=1e-3)


def test_two_models_of_one_step_tell_how_far_a_plan_may_err(made, context):
    # the plan of summed gradients takes a quarter longer than the median seed's step by the time model
    apart = contest.disagreement(contest.seconds_of(contest.contenders(context), context), context.plans)
    assert {key[:2] for key in apart} == {(CNN, 4)} and len(apart) == len(NETWORKS)
    assert list(apart.values()) == pytest.approx([0.25] * len(NETWORKS))
    rows = of(made["changes"], contest.CONVOLUTIONAL, 4)
    # of power 0 until summed gradients are faster: 4.4e5 / x = 37.5 for the median seed
    assert rows["second"].tolist() == [contest.GRADIENTS]
    assert rows["crossing_mbit_s"].iloc[0] == pytest.approx(4.4e5 / 37.5, rel=1e-3)
    assert rows["crossing_low"].iloc[0] == pytest.approx(4e5 / 37.5, rel=1e-3)
    assert rows["crossing_high"].iloc[0] == pytest.approx(4.8e5 / 37.5, rel=1e-3)
    assert rows["first_error"].iloc[0] == pytest.approx(0.25)
    assert rows["second_error"].iloc[0] == pytest.approx(0.1)  # the oversubscribed point is left out


def test_winners_are_sure_where_seeds_and_model_agree(made):
    rows = of(made["winners"], contest.CONNECTED, 4).set_index("mbit_s")
    assert rows["first"].tolist() == [contest.ALONE] * 2 + ["averaging"] * 3
    assert rows.loc[NETWORKS["hundred-megabit-cpu"], "margin"] == pytest.approx(
        2e4 / 94.16 / 100 - 1, rel=1e-3
    )
    slow = rows.loc[NETWORKS["ten-megabit-cpu"]]
    assert slow["sure"] and slow["seeds_won"] == 3 and slow["band"] == pytest.approx(1.02 * 1.05 - 1)
    fast = rows.loc[NETWORKS["gigabit-cpu"]]
    assert fast["sync_period"] == 4 and fast["second"] == contest.ALONE


def test_nets_of_one_task_race_each_other(made):
    rows = of(made["changes"], shootout.EITHER, 4)
    assert all(name.endswith(("(FC)", "(CNN)")) for name in rows["first"])
    assert made["winners"].loc[made["winners"]["net"] == shootout.EITHER, "model"].isna().all()


def test_costs_have_a_row_for_each_configuration_and_network(made):
    rows = made["shootout"]
    own = rows[(rows["name"] == "averaging (K=4)") & (rows["workers"] == 4)]
    assert sorted(own["cluster"]) == sorted(NETWORKS)
    assert own["steps"].tolist() == pytest.approx([75] * len(own))
    assert own["bytes"].tolist() == pytest.approx([4001] * len(own))
    assert (own["bytes_low"].iloc[0], own["bytes_high"].iloc[0]) == pytest.approx((4000, 4002))
    assert own["state_bytes_per_worker"].iloc[0] == 2_500_000
    assert own["accuracy"].iloc[0] == pytest.approx(0.81)
    missed = rows[rows["method"] == "spark"]
    assert (missed["reached"] == 0).all() and np.isinf(missed["time"]).all()


def test_page_has_a_column_for_each_network(made):
    page = ON_PAGE["shootout"](made["shootout"])
    seconds = [name for name in page.columns if name.startswith("on ")]
    assert seconds[0] == "on ten-megabit-cpu (s)" and seconds[-1] == "on hundred-gigabit-cpu (s)"
    assert len(ON_PAGE["winners"](made["winners"])) == len(made["winners"])
    assert len(ON_PAGE["changes"](made["changes"])) == len(made["changes"])


def test_words_say_who_leads_from_where(made):
    told = shootout.sentences(made)
    fc = next(words for words in told if "fully connected" in words and "Fastest" in words)
    assert "4 workers: one worker, from 200 Mbit/s (187 Mbit/s to 214 Mbit/s) averaging" in fc
    assert any("Spark, late gradients" in words and "missed" in words for words in told)
    assert shootout.sentences({name: table[:0] for name, table in made.items()}) == []


def test_no_runs_no_tables(context):
    empty = Context(
        context.runs[:0], pd.DataFrame(), context.plans[:0], context.projections, pd.DataFrame(), pd.DataFrame(),
        Path(), CONFIG, None,
    )  # fmt: skip
    assert all(not len(table) for table in shootout.tables(empty).values())
    assert suite_shootout.map_figure(empty) is None
    assert (
        suite_shootout_costs.lines_figure(empty) is None and suite_shootout_costs.costs_figure(empty) is None
    )


def test_figures_have_the_stretches_and_lines(context, tmp_path):
    drawn = suite_shootout.map_figure(context)
    own = of(drawn.data, contest.CONNECTED, 4)
    assert own["name"].tolist() == [contest.ALONE, "averaging"]
    assert own["to_mbit_s"].iloc[0] == own["from_mbit_s"].iloc[1] == pytest.approx(200, rel=1e-3)
    lines = suite_shootout_costs.lines_figure(context)
    assert len(lines.data[lines.data["net"] == contest.CONNECTED]) == 4 * len(NETWORKS)
    assert suite_shootout_costs.costs_figure(context) is not None
    assert suite_shootout.second_map_figure(context) is None
    assert set(style.save(drawn, tmp_path)) == {"svg", "png", "csv"}
