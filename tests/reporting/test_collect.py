import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

from implementations.point import Point
from implementations.reporting.collect import collect
from implementations.reporting.columns import as_runs, in_experiment, types
from tests.reporting import synthetic


def write(results_dir, record, text=None):
    path = results_dir / "runs" / record["run_id"] / "record.json"
    path.parent.mkdir(parents=True)
    record, rows = {k: v for k, v in record.items() if k != "utterances"}, record.get("utterances")
    path.write_text(json.dumps(record) if text is None else text)
    if rows is not None:
        rows.drop(columns="run_id").to_parquet(path.with_name("utterances.parquet"), index=False)
    return path


def test_all_columns_and_the_same_types_whatever_ran(results_dir):
    one, other = (
        synthetic.record(),
        synthetic.record(method="sequential", workers=1, status="failed", reason="broke"),
    )
    write(results_dir, one)
    write(results_dir, other)
    collect([one["run_id"], other["run_id"]], results_dir)
    both = pq.read_schema(results_dir / "runs.parquet")
    collect([], results_dir, results_dir / "none.parquet")
    assert both.names == list(types())
    assert both.equals(pq.read_schema(results_dir / "none.parquet"))


def test_values_survive(results_dir):
    record = synthetic.record(lr=0.1, target_value=None)
    write(results_dir, record)
    found = collect([record["run_id"]], results_dir).iloc[0]
    assert found["accuracy"] == record["accuracy"]
    assert found["sent_bytes_total"] == record["sent_bytes_total"]
    assert list(found["experiments"]) == record["experiments"]
    assert pd.isna(found["target_value"])


def test_a_failed_run_stays_a_row(results_dir):
    record = synthetic.record(status="timeout", reason="over the limit", log_path="results/logs/x.log")
    write(results_dir, record)
    found = collect([record["run_id"]], results_dir).iloc[0]
    assert (found["status"], found["reason"]) == ("timeout", "over the limit")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"run_id": 3}', '"\\ud800', "\x00\x01", "{" * 3000],
    ids=["empty", "cut", "list", "null", "wrong", "surrogate", "binary", "deep"],
)
def test_a_damaged_record_is_named_and_counted_as_failed(results_dir, text):
    good, bad = synthetic.record(), synthetic.record(seed=5)
    write(results_dir, good)
    path = write(results_dir, bad, text)
    (results_dir / "logs").mkdir()
    (results_dir / "logs" / f"{bad['run_id']}.log").write_text("killed")
    found = collect([good["run_id"], bad["run_id"]], results_dir).set_index("run_id")
    assert len(found) == 2 and found.loc[good["run_id"], "status"] == "ok"
    row = found.loc[bad["run_id"]]
    assert row["status"] == "failed" and str(path) in row["reason"]
    assert row["log_path"].endswith(f"{bad['run_id']}.log")
    assert (row["workers"], row["seed"], row["evidence"]) == (4, 5, "simulated")


def test_a_record_of_another_run_is_damage(results_dir):
    record = synthetic.record()
    path = write(results_dir, record)
    path.write_text(json.dumps(record | {"run_id": "another"}))
    found = collect([record["run_id"]], results_dir).iloc[0]
    assert found["status"] == "failed" and "another" in found["reason"]


def test_a_missing_record_is_skipped_with_what_its_point_tells(results_dir):
    point = Point("averaging", "averaging", "digits", {"name": "fc", "hidden": [64]}, 4, "simulated", 7,
                  method_params={"sync_period": 5}, experiments=("smoke/simulated",))  # fmt: skip
    found = collect([point], results_dir).iloc[0]
    assert (found["status"], found["model"], found["sync_period"], found["seed"]) == (
        "skipped",
        "fc-64",
        5,
        7,
    )
    assert in_experiment(as_runs(results_dir / "runs.parquet"), "smoke").all()


def test_a_run_that_is_asked_for_twice_is_one_row(results_dir):
    record = synthetic.record()
    write(results_dir, record)
    assert len(collect([record["run_id"]] * 2, results_dir)) == 1


def test_runs_are_the_same_read_by_pandas_or_by_us(results_dir):
    records = synthetic.records()[:20]
    for record in records:
        write(results_dir, record)
    collect([record["run_id"] for record in records], results_dir)
    path = results_dir / "runs.parquet"
    pd.testing.assert_frame_equal(as_runs(path), as_runs(pd.read_parquet(path)))


def test_no_file_is_no_rows(tmp_path):
    frame = as_runs(tmp_path / "runs.parquet")
    assert len(frame) == 0 and list(frame.columns) == list(types())


def test_the_utterances_of_all_runs_are_one_table(results_dir):
    rows = [synthetic.speech_record(seed=seed) for seed in range(2)]
    for row in [*rows, synthetic.record()]:
        write(results_dir, row)
    collect([*(row["run_id"] for row in rows), synthetic.record()["run_id"]], results_dir)
    table = pd.read_parquet(results_dir / "utterances.parquet")
    assert list(table.columns) == [
        "run_id", "utterance", "speaker", "words", "substitutions", "deletions", "insertions", "frames", "frame_errors",
    ]  # fmt: skip
    pd.testing.assert_frame_equal(table, synthetic.utterances(rows), check_dtype=False)
    for row in rows:
        own = table[table["run_id"] == row["run_id"]]
        edits = own[["substitutions", "deletions", "insertions"]].to_numpy().sum()
        assert edits / own["words"].sum() == row["wer"]


def test_no_speech_is_an_empty_table_of_the_same_columns(results_dir):
    write(results_dir, synthetic.record())
    collect([synthetic.record()["run_id"]], results_dir)
    write(results_dir, row := synthetic.speech_record())
    empty = pq.read_schema(results_dir / "utterances.parquet")
    collect([row["run_id"]], results_dir)
    assert empty.equals(pq.read_schema(results_dir / "utterances.parquet"))


@pytest.mark.parametrize(
    "damage, told",
    [
        (lambda path: path.unlink(), "does not exist"),
        (lambda path: path.write_bytes(b"PAR1 not really"), "is damaged"),
        (lambda path: pd.DataFrame({"words": [1]}).to_parquet(path), "has other columns"),
        (lambda path: pd.read_parquet(path).assign(words="many").to_parquet(path), "has other columns"),
    ],
    ids=["missing", "damaged", "columns", "types"],
)
def test_utterances_that_cannot_be_had_are_named_and_the_run_stays(results_dir, capsys, damage, told):
    rows = [synthetic.speech_record(seed=seed) for seed in range(2)]
    for row in rows:
        write(results_dir, row)
    path = results_dir / "runs" / rows[0]["run_id"] / "utterances.parquet"
    damage(path)
    found = collect([row["run_id"] for row in rows], results_dir)
    assert list(found["status"]) == ["ok", "ok"]
    assert set(pd.read_parquet(results_dir / "utterances.parquet")["run_id"]) == {rows[1]["run_id"]}
    warning = capsys.readouterr().err
    assert str(path) in warning and told in warning and "run again" in warning


def test_tables_written_before_there_was_speech_are_read(results_dir, tmp_path):
    old = synthetic.runs([synthetic.record()]).drop(columns=["data_kind", "mixing", "recipe", "init"])
    old.to_parquet(tmp_path / "old.parquet")
    found = as_runs(tmp_path / "old.parquet")
    assert list(found.columns) == list(types()) and found["data_kind"].isna().all()


def test_a_missing_record_has_the_recipe_as_a_record_has_it(tmp_path):
    point = Point("averaging", "averaging", "an4", {"name": "fc", "hidden": [64], "activation": "sigmoid"}, 4,
                  "simulated", 7, optimizer="ng_sgd", init="rbm",
                  recipe={"max_change_rule": "author", "reduction": "sum"})  # fmt: skip
    found = collect([point], tmp_path).iloc[0]
    recipe = json.loads(found["recipe"])
    assert (recipe["max_change_rule"], recipe["reduction"]) == ("author", "sum")
    assert (found["max_change_rule"], found["reduction"], found["mixing"]) == ("author", "sum", "allreduce")
