"""Tables of training on Spark: bases, seconds of an exchange, memory, late updates; and what a label says."""

import numpy as np
import pandas as pd
import pytest

from implementations.reporting.spark import (
    ABSTRACT,
    REVIEW,
    as_projections,
    exactness_rows,
    kind_of,
    published_speedups,
)
from implementations.reporting.spark_findings import findings
from implementations.reporting.spark_speedups import ONE_WORKER, SEQUENTIAL, WITHOUT_SPARK, speedup_table
from implementations.reporting.spark_tables import executions_table, late_table, memory_table, steps_of
from implementations.reporting.tables import make_tables_in_memory
from tests.reporting import synthetic
from tests.reporting import synthetic_spark as made_up
from tests.reporting.synthetic_spark import JOB, STEP, TURN, record


def one(rows, timings=None, **wanted):
    table = speedup_table(synthetic.runs(rows), timings)
    for name, value in wanted.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


@pytest.mark.parametrize(
    ("label", "kind"),
    [("fc-256", "fc"), ("cnn-64_filters8-16", "cnn"), ("lstm-64_masked_steps29", "lstm"), (None, None)],
)
def test_a_label_says_the_kind(label, kind):
    assert kind_of(label) == kind


def test_measured_speedups_are_over_sequential_and_over_one_worker():
    rows = [
        record(method="sequential", experiments=["a"]),
        record(variant="data", workers=1, train_s=0.5),
        record(variant="model", workers=2, train_s=0.25),
    ]
    rows[1] |= {"train_s": 0.5}
    rows[2] |= {"train_s": 0.25}
    own = one(rows, workers=2, base=ONE_WORKER)
    assert own["speedup"] == pytest.approx(2.0) and own["base_seconds"] == 0.5
    steps = 12_000 // 64
    own = one(rows, workers=2, base=SEQUENTIAL)
    assert own["base_seconds"] == pytest.approx(steps * STEP["fc"])
    assert own["speedup"] == pytest.approx(steps * STEP["fc"] / 0.25)


def test_a_base_has_the_execution_and_the_place_of_its_row():
    rows = [
        record(variant="data", workers=1, execution="job_per_exchange"),
        record(variant="data", workers=1, cluster="standalone"),
        record(variant="data", workers=2),
    ]
    assert np.isnan(one(rows, workers=2, base=ONE_WORKER)["speedup"])


def test_of_two_bases_the_one_with_the_same_global_batch_counts():
    rows = [record(variant="data", workers=1, minibatch=m) for m in (16, 32, 64)]
    rows.append(record(variant="data", workers=2, minibatch=32))
    assert one(rows, workers=2, base=ONE_WORKER)["base_global_batch"] == 64


def test_asynchronous_runs_are_no_base_of_synchronous_ones():
    rows = [record(variant="async", workers=1), record(variant="data", workers=2)]
    assert np.isnan(one(rows, workers=2, base=ONE_WORKER)["speedup"])


def test_weak_scaling_compares_rates():
    rows = [
        record(variant="data", workers=1, minibatch=64, data_size=6400, scaling="weak"),
        record(variant="data", workers=2, minibatch=64, data_size=12_800, scaling="weak"),
    ]
    rates = [row["samples_per_s"] for row in rows]
    assert one(rows, workers=2, base=ONE_WORKER)["speedup"] == pytest.approx(rates[1] / rates[0])


def test_simulated_speedups_stay_on_their_cluster():
    rows = [record(variant="data", workers=n, evidence="simulated") for n in (1, 16)]
    runs = synthetic.runs(rows)
    table = speedup_table(runs, made_up.timings(runs))
    table = table[(table["workers"] == 16) & (table["base"] == ONE_WORKER)].set_index("cluster")["speedup"]
    assert table.to_dict() == pytest.approx({"this-host": 8.0, "gigabit-cpu": 3.2})


def test_projected_rows_are_against_one_worker_without_spark():
    table = speedup_table(synthetic.runs([]), None, made_up.projections())
    assert set(table["base"]) == {WITHOUT_SPARK} and set(table["evidence"]) == {"projected"}
    assert (table["base_seconds"] / table["seconds"]).to_numpy() == pytest.approx(table["speedup"].to_numpy())
    # what does not fit a machine has no speedup, and the map is not one of lines
    known = made_up.projections()
    assert len(table) == ((known["status"] == "ok") & (known["what"] != "map")).sum()


def test_parts_of_a_step_add_up():
    rows = [record(execution=name, minibatch=512, data_size=8192) for name in ("barrier", "job_per_exchange")]
    steps = steps_of(synthetic.runs(rows))
    parts = [name for name in steps if name.startswith("step_") and name != "step_s"]
    assert steps[parts].sum(axis=1).to_numpy() == pytest.approx(steps["step_s"].to_numpy())
    jobs = steps[steps["execution"] == "job_per_exchange"].iloc[0]
    assert jobs["step_schedule_s"] == pytest.approx(5 * 0.7 * JOB)
    assert jobs["step_exchange_s"] == pytest.approx(5 * 0.1 * JOB)


def test_an_exchange_by_a_job_against_one_in_a_stage():
    table = executions_table(synthetic.runs(made_up.records())).set_index("variant")
    # the made-up time of five exchanges is that of six jobs: the last one updates
    shares = pd.Series({"data": 1.0, "model": 5 / 6})
    assert table["jobs_per_step"].to_dict() == {"data": 1.0, "model": 6.0}
    assert table["jobs_exchange_s"].to_dict() == pytest.approx((JOB * shares).to_dict())
    assert table["barrier_exchange_s"].to_numpy() == pytest.approx([TURN, TURN])
    assert table["exchange_ratio"].to_dict() == pytest.approx((JOB / TURN * shares).to_dict())


def test_one_execution_alone_has_no_ratio():
    assert not len(executions_table(synthetic.runs([record(), record(repeat=1)])))


def test_memory_names_what_does_not_fit():
    table = memory_table(synthetic.runs(made_up.records()), made_up.projections())
    largest = table[table["params"] == 4_000_000_000]
    assert set(largest.loc[largest["variant"] == "data", "status"]) == {"over_memory"}
    model = largest[largest["variant"] == "model"].drop_duplicates("workers").set_index("workers")
    assert model["status"].to_dict() == {2: "over_memory", 5: "ok", 16: "ok"}
    assert model.loc[5, "state_bytes_per_worker"] == 12 * 4e9 / 5
    assert set(table["evidence"]) == {"measured", "projected"}


def test_late_updates_lose_points_against_the_synchronous_run():
    table = late_table(synthetic.runs(made_up.records())).set_index(["staleness", "lr"])
    assert table.loc[(0, 0.2), "points_lost"] == 0
    assert table.loc[(8, 0.2), "points_lost"] == pytest.approx(100 * 0.02 * 8 * 0.2)
    lost = table.loc[(8, 0.8)]
    assert lost["diverged"] == 2 and lost["n"] == 0 and np.isnan(lost["accuracy"])


def test_exactness_is_told_of_its_paper_alone():
    both = pd.concat([made_up.exactness(), made_up.exactness().assign(paper="layerwise")])
    assert len(exactness_rows(both)) == 16
    assert not len(exactness_rows(None)) and not len(as_projections(None))


def test_printed_speedups_say_who_says_so():
    table = published_speedups(made_up.published())
    assert table["said_by"].tolist() == [ABSTRACT, REVIEW, REVIEW, REVIEW]
    assert table["kind"].tolist() == ["cnn", "cnn", "fc", "fc"]
    assert not len(published_speedups(pd.DataFrame()))


def test_findings_say_what_the_tables_say():
    runs = synthetic.runs(made_up.records())
    tables = make_tables_in_memory(
        runs, made_up.timings(runs), exactness=made_up.exactness(), projections=made_up.projections()
    )
    said = findings(tables)
    assert len(said) == 7
    assert said[0].startswith("Exactness: after 20 steps on up to 2 workers no weight of FC, LSTM is further")
    assert "8 of 8 cases" in said[0]
    assert "RNN data 1.94" in said[1] and "job" not in said[1]
    assert "110 ms (median of 2 configurations, measured), 1,000 to 1,200 times" in said[3]
    assert (
        "4e+09 parameters: one worker would need 48.0 GB for it (the machine has 16.0 GB); it fits from 5"
        in said[5]
    )
    assert "8 late 84.2 % at rate 0.05 (1 of 3 rates diverge)" in said[6] and "unverified" in said[6]


def test_nothing_is_said_of_nothing():
    assert findings(make_tables_in_memory(synthetic.runs([]), None)) == []
