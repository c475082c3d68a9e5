import numpy as np
import pandas as pd
import pytest

from implementations.reporting import tables
from tests.reporting import synthetic


def measured(workers, seconds, repeat=0, **given):
    values = {
        "evidence": "measured",
        "workers": workers,
        "repeat": repeat,
        "train_s": seconds,
        "wall_s": seconds + 1,
    }
    return synthetic.record(**values | {"samples_per_s": 1000.0 / seconds} | given)


def test_speedup_is_the_ratio_of_medians_and_names_its_base():
    rows = [measured(1, s, r) for r, s in enumerate([10.0, 12.0, 11.0])]
    rows += [measured(2, s, r) for r, s in enumerate([5.0, 5.5, 8.0])]
    rows += [
        measured(1, s, r, method="sequential", threads_per_worker=2) for r, s in enumerate([6.0, 7.0, 8.0])
    ]
    rows += [measured(1, s, r, method="sequential") for r, s in enumerate([9.0, 9.0, 9.0])]
    table = tables.speedup_table(synthetic.runs(rows)).set_index(["method", "workers", "base"]).sort_index()
    same = table.loc[("averaging", 2, tables.SAME_CODE)].iloc[0]
    assert same["speedup"] == 11.0 / 5.5 and same["base_seconds"] == 11.0 and same["seconds"] == 5.5
    assert same["speedup_low"] == 11.0 / np.quantile([5.0, 5.5, 8.0], 0.75)
    best = table.loc[("averaging", 2, tables.BEST_SEQUENTIAL)].iloc[0]
    assert best["speedup"] == 7.0 / 5.5 and best["base_threads"] == 2 and best["n"] == 3


def test_weak_scaling_compares_rates():
    rows = [
        measured(1, 10.0, scaling="weak", samples_per_s=100.0),
        measured(2, 11.0, scaling="weak", samples_per_s=180.0),
    ]
    table = tables.speedup_table(synthetic.runs(rows))
    found = table[(table["workers"] == 2) & (table["base"] == tables.SAME_CODE)].iloc[0]
    assert found["speedup"] == pytest.approx(1.8) and found["scaling"] == "weak"


@pytest.mark.parametrize(
    "base, method", [(tables.SAME_CODE, "averaging"), (tables.BEST_SEQUENTIAL, "sequential")]
)
def test_weak_scaling_finds_its_base_though_the_samples_in_total_grow(base, method):
    # as the harness records it: data_size is the total; two sweeps, of 500 and of 4000 samples a worker
    rows = [
        measured(1, 10.0, method=method, scaling="weak", data_size=500, samples_per_s=100.0),
        measured(1, 80.0, method=method, scaling="weak", data_size=4000, samples_per_s=120.0),
        measured(1, 9.0, method=method, scaling="strong", data_size=1000, samples_per_s=1.0),
        measured(2, 11.0, scaling="weak", data_size=1000, samples_per_s=180.0),
        measured(2, 90.0, scaling="weak", data_size=8000, samples_per_s=180.0),
    ]
    table = tables.speedup_table(synthetic.runs(rows))
    found = table[(table["workers"] == 2) & (table["base"] == base)].set_index("data_size")
    assert found.loc[1000, "speedup"] == pytest.approx(180 / 100)
    assert found.loc[8000, "speedup"] == pytest.approx(180 / 120)
    assert found.loc[1000, "base_seconds"] == 10.0


def test_strong_scaling_takes_no_base_of_other_data():
    rows = [measured(1, 10.0, data_size=500), measured(2, 11.0, data_size=1000)]
    table = tables.speedup_table(synthetic.runs(rows))
    assert table.loc[table["workers"] == 2, "speedup"].isna().all()


def test_a_row_without_a_base_has_no_speedup():
    table = tables.speedup_table(synthetic.runs([measured(2, 5.0)]))
    assert table["speedup"].isna().all() and (table["seconds"] == 5.0).all()


def test_a_missed_target_takes_for_ever():
    rows = [
        measured(1, 5.0, r, time_to_target_s=t, target_reached=t is not None)
        for r, t in enumerate([3.0, None, None])
    ]
    for row in rows[1:]:
        row["status"] = "target_missed"
    assert np.isinf(tables.speedup_table(synthetic.runs(rows))["time_to_target_s"]).all()


def test_kinds_of_evidence_never_share_a_row():
    runs = synthetic.runs()
    for table in tables.make_tables_in_memory(runs, synthetic.timings(runs)).values():
        if "evidence" in table and len(table):
            assert table["evidence"].notna().all()
    speedups = tables.speedup_table(runs, synthetic.timings(runs))
    assert set(speedups["evidence"]) == {"measured", "simulated", "projected"}
    assert speedups.loc[speedups["evidence"] == "measured", "cluster"].isna().all()


def test_timings_of_measured_traces_are_not_counted_as_simulated():
    runs = synthetic.runs([measured(1, 10.0)])
    timings = pd.DataFrame([{"run_id": runs["run_id"][0], "cluster": "this-host", "evidence": "simulated", "workers": 1,
                             "train_s": 9.0, "speedup_same_code": 1.0}])  # fmt: skip
    assert set(tables.speedup_table(runs, timings)["evidence"]) == {"measured"}


def test_simulated_speedups_are_those_of_the_time_model():
    runs = synthetic.runs()
    timings = synthetic.timings(runs)
    table = tables.speedup_table(runs, timings)
    row = table[(table["cluster"] == "ten-gigabit-cpu") & (table["workers"] == 32) & (table["method"] == "averaging")
                & (table["base"] == tables.SAME_CODE)].iloc[0]  # fmt: skip
    source = timings[(timings["cluster"] == "ten-gigabit-cpu") & (timings["workers"] == 32)
                     & (timings["method"] == "averaging")]  # fmt: skip
    assert row["speedup"] == pytest.approx(source["speedup_same_code"].mean())
    assert row["n"] == 3 and row["spread"] == "range"


def test_modelled_rows_say_the_threads_of_their_base():
    runs = synthetic.runs([synthetic.record(threads_per_worker=2, workers=4)])
    timing = {"run_id": runs["run_id"][0], "cluster": "c", "evidence": "simulated", "workers": 4, "train_s": 9.0,
              "speedup_same_code": np.nan, "speedup_best_sequential": 3.0, "best_sequential_threads": 2}  # fmt: skip
    table = tables.speedup_table(runs, pd.DataFrame([timing])).set_index("base")
    assert table.loc[tables.BEST_SEQUENTIAL, "base_threads"] == 2
    assert pd.isna(table.loc[tables.SAME_CODE, "base_threads"])  # it has no base
    runs = synthetic.runs()
    modelled = tables.speedup_table(runs, synthetic.timings(runs))
    modelled = modelled[(modelled["evidence"] == "simulated") & modelled["speedup"].notna()]
    assert len(modelled) and (modelled["base_threads"] == modelled["threads_per_worker"]).all()


def test_time_parts_add_up_to_the_wall():
    table = tables.time_split_table(synthetic.runs())
    assert len(table) and set(table["evidence"]) == {"measured"}
    assert np.allclose(table[list(tables.PARTS)].sum(axis=1), table["wall_s"])


def test_accuracy_over_seeds():
    rows = [synthetic.record(seed=s, accuracy=a) for s, a in enumerate([0.80, 0.84, 0.82])]
    rows.append(synthetic.record(seed=9, status="diverged", accuracy=None))
    found = tables.accuracy_table(synthetic.runs(rows))
    assert len(found) == 1
    row = found.iloc[0]
    assert row["mean"] == pytest.approx(0.82) and (row["low"], row["high"]) == (0.80, 0.84)
    assert (row["spread"], row["n"], row["diverged"]) == ("range", 3, 1)


def test_repeats_of_a_seed_are_one_value():
    rows = [synthetic.record(seed=s, repeat=r, accuracy=0.8 + 0.01 * s) for s in range(2) for r in range(5)]
    assert tables.accuracy_table(synthetic.runs(rows)).iloc[0]["n"] == 2


def test_word_errors_come_before_accuracy():
    row = tables.accuracy_table(synthetic.runs([synthetic.record(wer=0.21)])).iloc[0]
    assert (row["metric"], row["mean"]) == ("wer", 0.21)


def test_runs_of_different_recipes_are_no_repeats():
    rows = [
        synthetic.record(seed=s, optimizer=o, init=i)
        for s in range(2)
        for o in ("sgd", "ng_sgd")
        for i in "ab"
    ]
    table = tables.accuracy_table(synthetic.runs(rows))
    assert len(table) == 4 and (table["n"] == 2).all()


def test_volume_against_the_closed_form():
    good = synthetic.record(workers=4)
    off = synthetic.record(workers=8)
    off["sent_bytes_total"] += 1
    table = tables.volume_table(synthetic.runs([good, off])).set_index("workers")
    assert table.loc[4, "matches_closed_form"] and not table.loc[8, "matches_closed_form"]
    sends = 2 * -(-(synthetic.SAMPLES // (4 * 64)) // 10)
    assert table.loc[4, "sent_bytes_total"] == 2 * 3 * 4 * synthetic.PARAMS * sends
    assert table.loc[4, "sent_bytes_per_worker"] == table.loc[4, "sent_bytes_total"] / 4


def test_tuning_trials_stay_out_of_the_results():
    trial = synthetic.record(seed=101, experiments=["tuning/workers"], accuracy=0.1)
    both = synthetic.record(seed=1, experiments=["tuning/workers", "speedup/simulated"])
    runs = synthetic.runs([trial, both])
    assert list(tables.reported(runs)["run_id"]) == [both["run_id"]]
    assert tables.make_tables_in_memory(runs, None)["tuning"]["n"].sum() == 2


def test_failures_carry_reason_command_and_the_logs_tail(tmp_path):
    runs = synthetic.runs(synthetic.broken(tmp_path))
    table = tables.failures_table(runs, "extended").set_index("status")
    assert "<cannot> allocate & stop" in table.loc["failed", "log_tail"]
    assert (
        table.loc["failed", "command"] == "snakemake --cores all averaging --configfile config/extended.yaml"
    )
    assert table.loc["diverged", "log_tail"] == "no log"


def test_the_tail_of_a_log_is_its_end(tmp_path):
    log = tmp_path / "long.log"
    log.write_text("\n".join(f"line {i}" for i in range(100_000)))
    assert tables.log_tail(str(log), 3).splitlines() == ["line 99997", "line 99998", "line 99999"]
    assert "No such file" in tables.log_tail(str(tmp_path / "none"))


def test_files_hold_the_tables(tmp_path):
    runs = synthetic.runs(synthetic.records()[:40])
    made = tables.make_tables(runs, synthetic.timings(runs), synthetic.validation(), tmp_path)
    for name, table in made.items():
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{name}.parquet"), table)
        assert (tmp_path / f"{name}.csv").is_file()


def test_nothing_gives_empty_tables_of_the_same_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a run has left in the repository's results is not looked at
    full = synthetic.runs(synthetic.records()[:10])
    some = tables.make_tables_in_memory(full, synthetic.timings(full))
    none = tables.make_tables(None, None, None, tmp_path, config_dir=tmp_path)
    for name, table in none.items():
        assert len(table) == 0
        if name not in ("validation", "failures"):
            assert list(table.columns) == list(some[name].columns)
