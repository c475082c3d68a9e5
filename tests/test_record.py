import json

import jsonschema
import pytest
from training_runs import point_of

from implementations import record
from implementations.errors import UserError


def values_of(**changes):
    return record.identity(point_of("averaging", 4)) | {"status": "ok", "attempts": 1} | changes


def test_a_record_has_every_column_and_reads_back(tmp_path):
    path = record.write(tmp_path, values_of(accuracy=0.5))
    values = record.read(path)
    assert list(values) == list(record.columns())
    assert values["accuracy"] == 0.5 and values["wer"] is None
    assert values["model"] == "fc-16-12" and values["global_batch"] == 32 and values["sync_period"] == 10


def test_numbers_that_are_not_finite_become_null(tmp_path):
    values = record.read(record.write(tmp_path, values_of(loss=float("inf"), train_loss=float("nan"))))
    assert values["loss"] is None and values["train_loss"] is None


@pytest.mark.parametrize("change", [{"status": "fine"}, {"accuracy": "high"}, {"steps": 1.5}])
def test_a_value_that_does_not_fit_is_refused(tmp_path, change):
    with pytest.raises(jsonschema.ValidationError):
        record.write(tmp_path, values_of(**change))
    assert not list(tmp_path.rglob("*.json"))


def test_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(KeyError, match="speed"):
        record.write(tmp_path, values_of(speed=1))


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"run_id": "x"})])
def test_a_damaged_record_is_named(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"record\.json is not a valid record"):
        record.read(path)


def test_a_record_of_another_schema_version_is_refused(tmp_path):
    path = record.write(tmp_path, values_of())
    values = json.loads(path.read_text()) | {"schema_version": 0}
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match="delete it and run again"):
        record.read(path)


def test_nothing_is_left_beside_a_record(tmp_path):
    path = record.write(tmp_path, values_of())
    record.write(tmp_path, values_of(accuracy=0.1))
    assert [entry.name for entry in path.parent.iterdir()] == ["record.json"]
