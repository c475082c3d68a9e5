import math

import numpy as np
import pandas as pd
import pytest

from implementations.reporting import targets
from implementations.reporting.curves import read_curve, steps_to_target
from implementations.reporting.findings import crossings_told, findings
from implementations.reporting.pagetables import ON_PAGE, in_words
from implementations.reporting.widths import width_table
from tests.reporting import synthetic, synthetic_ist

BANDWIDTH = np.array([10.0, 100.0, 1000.0])


def power(factor, exponent):
    return factor * BANDWIDTH**exponent


def test_power_laws_cross_where_they_are_equal():
    # 1e4/x = 10 at 1000 is a grid point; 4e3/x = 10 at 400 lies between two
    assert targets.crossings(BANDWIDTH, power(4e3, -1), power(10, 0)) == pytest.approx([400])
    assert targets.crossings(BANDWIDTH, power(10, 0), power(4e3, -1)) == pytest.approx([400])
    # 100 x^-1 = 2 x^-0.5 at 2500: beyond the table
    assert targets.crossings(BANDWIDTH, power(100, -1), power(2, -0.5)) == []


def test_equal_at_a_point_is_a_crossing_only_where_places_change():
    assert targets.crossings(BANDWIDTH, [3, 2, 1], [1, 2, 3]) == pytest.approx([100])
    assert targets.crossings(BANDWIDTH, [3, 2, 3], [1, 2, 1]) == []
    assert targets.crossings(BANDWIDTH, [2, 2, 2], [2, 2, 2]) == []


def test_methods_can_change_places_twice():
    found = targets.crossings(BANDWIDTH, [4, 1, 4], [2, 2, 2])
    assert found == pytest.approx([10**1.5, 10**2.5])


def test_what_never_comes_crosses_nothing():
    assert targets.crossings(BANDWIDTH, [math.inf] * 3, [1, 2, 3]) == []
    assert targets.crossings(BANDWIDTH, [math.inf] * 3, [math.inf] * 3) == []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    rows = [row for row in synthetic_ist.records(elsewhere=False) if row["experiments"][0].startswith("ist/")]
    folder = tmp_path_factory.mktemp("targets")
    synthetic_ist.curves(rows, folder)
    runs = synthetic.runs(rows)
    return rows, runs, folder


@pytest.fixture(scope="module")
def seconds(made):
    return targets.seed_times(targets.aimed(made[1]), synthetic_ist.timings(made[1]), synthetic_ist.CLUSTERS)


@pytest.fixture(scope="module")
def table(made):
    return targets.targets_table(made[1], made[2])


def row_of(table, name, workers=4):
    found = table[(table["name"] == name) & (table["workers"] == workers)]
    assert len(found) == 1
    return found.iloc[0]


def test_bytes_and_steps_are_medians_of_the_records(made, table):
    own = [
        row for row in made[0] if row["method"] == "ist" and row["workers"] == 4 and row["sync_period"] == 20
    ]
    row = row_of(table, "IST (J=20)")
    assert row["bytes"] == np.median([each["bytes_to_target"] for each in own])
    assert (row["n"], row["reached"], row["spread"]) == (3, 3, "range")
    # an epoch has 120 steps of each worker, and the curve a row an epoch
    crossed = []
    for each in own:  # on the straight line between two evaluations
        last = np.flatnonzero(each["curve"] >= synthetic_ist.TARGET)[0]
        pair = [last - 1, last]
        crossed.append(np.interp(synthetic_ist.TARGET, each["curve"][pair], pair))
    assert row["steps"] == pytest.approx(120 * np.median(crossed))


def test_a_missed_target_costs_for_ever_and_counts(table):
    row = row_of(table, "IST (J=20)", 8)
    assert (row["n"], row["reached"]) == (3, 0) and np.isinf(row["bytes"]) and np.isinf(row["steps"])


def spent(seed, cost, **given):
    """A run that sent so much until its target, or missed it."""
    status = "target_missed" if cost is None else "ok"
    given |= {"bytes_to_target": cost, "target_reached": cost is not None, "status": status}
    return synthetic_ist.record(seed=seed, **given)


def test_one_miss_of_three_leaves_the_median(made):
    rows = [spent(seed, cost) for seed, cost in enumerate([10, None, 30])]
    row = targets.targets_table(synthetic.runs(rows), made[2]).iloc[0]
    assert (row["bytes"], row["bytes_low"], row["bytes_high"], row["reached"]) == (30, 10, math.inf, 2)


def test_a_diverged_run_missed_its_target(made):
    rows = [
        synthetic_ist.record(seed=0),
        synthetic_ist.record(seed=1, status="diverged", reason="loss is nan", target_reached=False),
    ]
    row = targets.targets_table(synthetic.runs(rows), made[2]).iloc[0]
    assert (row["n"], row["reached"]) == (2, 1) and np.isinf(row["bytes"])


def test_ratios_pair_seeds(table, made):
    runs = made[1]

    def spent(method, period=None):
        rows = runs[(runs["method"] == method) & (runs["workers"] == 4)]
        rows = rows if period is None else rows[rows["sync_period"] == period]
        return rows.set_index("seed")["bytes_to_target"].astype(float)

    row = row_of(table, "IST (J=40)")
    for name, other in (("data_parallel", spent("data_parallel")), ("local_sgd", spent("averaging", 40))):
        ratios = other / spent("ist", 40)
        assert row[f"{name}_ratio"] == pytest.approx(ratios.median())
        assert row[f"{name}_ratio_low"] == pytest.approx(ratios.min())
    assert row["pairs"] == 3
    assert table.loc[table["method"] != "ist", "data_parallel_ratio"].isna().all()


def test_a_ratio_of_two_misses_is_none(made):
    costs = {"ist": [None, 10, None], "data_parallel": [None, None, 40]}
    rows = [spent(seed, cost, method=method) for method in costs for seed, cost in enumerate(costs[method])]
    row = targets.targets_table(synthetic.runs(rows), made[2]).set_index("method").loc["ist"]
    # seed 0: neither; seed 1: only IST arrived; seed 2: only the other did
    assert row["pairs"] == 2
    assert (row["data_parallel_ratio_low"], row["data_parallel_ratio_high"]) == (0, math.inf)


def test_six_seeds_give_an_interval(made):
    rows = [synthetic_ist.record(seed=s, bytes_to_target=10 * (s + 1)) for s in range(6)]
    row = targets.targets_table(synthetic.runs(rows), made[2]).iloc[0]
    assert row["spread"] == "95 % interval" and row["bytes"] == 35 and 10 <= row["bytes_low"] < 35


def test_steps_need_a_curve(made, tmp_path):
    run = made[0][0]
    assert np.isnan(steps_to_target(run, tmp_path))
    assert np.isinf(steps_to_target(run | {"target_reached": False}, tmp_path))
    assert np.isnan(steps_to_target(run | {"target_value": None}, made[2]))


def test_a_damaged_curve_is_said_and_left_out(made, tmp_path, capsys):
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "curve.parquet").write_bytes(b"PAR1 no")
    assert read_curve(tmp_path, "a") is None and "a curve is left out" in capsys.readouterr().err
    assert read_curve(tmp_path, "b") is None


def test_times_are_medians_on_each_cluster(seconds, made):
    times = targets.times_table(seconds)
    timings = synthetic_ist.timings(made[1])
    own = timings[(timings["method"] == "ist") & (timings["workers"] == 4) & (timings["sync_period"] == 20)]
    for cluster, mbit in synthetic_ist.CLUSTERS.items():
        row = times[
            (times["name"] == "IST (J=20)") & (times["workers"] == 4) & (times["cluster"] == cluster)
        ].iloc[0]
        assert row["time_s"] == pytest.approx(own.loc[own["cluster"] == cluster, "time_to_target_s"].median())
        assert row["mbit_s"] == mbit and row["reached"] == 3
    never = times[(times["name"] == "IST (J=20)") & (times["workers"] == 8)]
    assert np.isinf(never["time_s"]).all() and not never["best"].any()


def test_the_best_period_is_the_fastest_of_its_method(seconds):
    times = targets.times_table(seconds)
    own = times[(times["method"] == "ist") & (times["workers"] == 4)]
    for _, rows in own.groupby("cluster"):
        assert rows.loc[rows["best"].astype(bool), "time_s"].max() == rows["time_s"].min()
        assert rows["best"].sum() == 1


def test_the_fastest_line_takes_at_each_bandwidth_the_best_period(seconds):
    here = seconds[seconds["workers"] == 4]
    fastest = targets.fastest_lines(here)
    own = fastest[fastest["line"] == "IST"]
    for row in own.to_dict("records"):
        medians = here[(here["line"] == "IST") & (here["mbit_s"] == row["mbit_s"])].groupby("sync_period")[
            "time_s"
        ]
        assert row["time_s"] == pytest.approx(medians.median().min())
    assert list(own["mbit_s"]) == sorted(synthetic_ist.CLUSTERS.values())


def test_one_worker_is_crossed_where_its_time_is_met(seconds):
    crossing = targets.crossings_table(seconds)
    row = crossing[
        (crossing["workers"] == 4) & (crossing["first"] == "IST") & (crossing["second"] == "one worker")
    ]
    assert len(row) == 1
    row = row.iloc[0]
    assert (row["faster_below"], row["faster_above"]) == ("one worker", "IST")
    fastest = targets.fastest_lines(seconds[(seconds["workers"] == 4) | (seconds["method"] == "sequential")])
    at = {name: rows.set_index("mbit_s")["time_s"] for name, rows in fastest.groupby("line")}
    logs = np.log(row["crossing_mbit_s"]), np.log(list(synthetic_ist.CLUSTERS.values()))
    met = [np.interp(logs[0], logs[1], np.log(at[name])) for name in ("IST", "one worker")]
    assert met[0] == pytest.approx(met[1])
    assert row["crossing_low"] <= row["crossing_mbit_s"] <= row["crossing_high"]


def test_a_method_that_is_always_faster_has_a_row_without_a_bandwidth(seconds):
    crossing = targets.crossings_table(seconds)
    row = crossing[(crossing["workers"] == 4) & (crossing["second"] == "data parallel")].iloc[0]
    assert row["first"] == "IST" and pd.isna(row["crossing_mbit_s"])
    assert row["faster_below"] == row["faster_above"] == "IST"
    # 8 workers: IST never arrives, and everything else is before it
    never = crossing[(crossing["workers"] == 8) & (crossing["first"] == "IST")]
    assert len(never) and (never["faster_below"] != "IST").all()
    said = crossings_told(crossing[crossing["workers"] == 4])
    assert "IST before data parallel" in said and "one worker is faster than IST below" in said


def test_bandwidths_come_from_the_files_of_equal_machines(tmp_path):
    folder = tmp_path / "clusters"
    folder.mkdir()
    link = "links: {between_nodes: {bandwidth_bytes_per_s: {value: 1.25e+6}}}"
    (folder / "a.yaml").write_text(f"name: slow\nlike: this-host\n{link}\n")
    (folder / "b.yaml").write_text(f"name: gpu\n{link}\n")
    assert targets.bandwidths(tmp_path) == {"slow": 10.0}
    ours = targets.bandwidths()
    assert {"ten-megabit-cpu", "hundred-megabit-cpu", "gigabit-cpu", "ten-gigabit-cpu"} <= set(ours)
    assert 5 < ours["ten-megabit-cpu"] < 11 and "stampede-k20" not in ours


def test_without_timings_there_are_no_times(made):
    for timings in (None, pd.DataFrame()):
        none = targets.seed_times(targets.aimed(made[1]), timings, synthetic_ist.CLUSTERS)
        assert not len(targets.times_table(none)) and not len(targets.crossings_table(none))
    nothing = targets.aimed(synthetic.runs([]))
    assert not len(targets.targets_table(synthetic.runs([]))) and not len(nothing)


def test_the_page_puts_values_and_ranges_together(table, seconds, made):
    shown = in_words(ON_PAGE["targets"](table), "ist")
    row = shown[(shown["name"] == "IST (J=20)") & (shown["workers"] == 4)].iloc[0]
    assert row["reached_of"] == "3 of 3" and row["byte_ratios"].endswith(" : 1")
    missed = shown[(shown["name"] == "IST (J=20)") & (shown["workers"] == 8)].iloc[0]
    assert missed["bytes_spent"] == "never" and missed["byte_ratios"] == "never reached"
    times = ON_PAGE["times"](targets.times_table(seconds))
    columns = [name for name in times.columns if name.startswith("on ")]
    assert columns == [f"on {name} (s)" for name in synthetic_ist.CLUSTERS]
    assert times[columns].map(lambda text: text.endswith("*")).any().all()
    crossing = ON_PAGE["crossings"](targets.crossings_table(seconds))
    assert crossing["crossing"].notna().any()


def test_what_is_found_is_said_in_sentences(table, seconds, made):
    said = findings(table, width_table(made[1]), targets.crossings_table(seconds))
    assert len(said) == 2 and said[0].startswith("Bytes to the target, data parallel : local SGD : IST")
    assert "with 4 workers (3 seeds)" in said[0] and "never reached with 8 workers" in said[0]
    assert "4 workers: changes of places" in said[1]
    assert findings(table[:0], width_table(made[1]), targets.crossings_table(seconds[:0])) == []
