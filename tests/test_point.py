import dataclasses
import json

from implementations.point import Point

POINT = Point(
    paper="averaging",
    method="averaging",
    dataset="digits",
    model={"name": "fc", "hidden": [64, 64]},
    workers=4,
    evidence="simulated",
    seed=1,
    method_params={"sync_period": 10},
)


def test_the_run_id_reads_as_words():
    assert POINT.run_id.startswith("averaging_k10_digits_fc-64-64_w4_simulated_s1_")


def test_a_point_of_before_keeps_its_run_id():
    """This is the id under which it had run when points had no ``skew`` and no ``memory_limit_bytes``."""
    assert POINT.run_id == "averaging_k10_digits_fc-64-64_w4_simulated_s1_f67eb590bf"
    later = {
        "skew",
        "memory_limit_bytes",
        "passes",
        "gradient_norms",
        "checkpoint_steps",
        "transport",
        "nodes",
        "eval_size",
    }
    assert not later & set(POINT.identity())
    assert Point.from_json({k: v for k, v in POINT.to_json().items() if k not in later}) == POINT
    assert dataclasses.replace(POINT, skew=0.5).identity()["skew"] == 0.5


def test_what_computes_nothing_else_does_not_change_the_run_id():
    same = dataclasses.replace(POINT, paper="x", experiments=("a/b",), time_limit_s=1.0, checkpoint_s=2.0)
    assert same.run_id == POINT.run_id


def test_every_other_field_changes_the_run_id():
    changed = {
        "method": "sequential", "dataset": "d", "model": {"name": "fc", "hidden": [64]}, "workers": 8,
        "evidence": "measured", "seed": 2, "variant": "v", "method_params": {"sync_period": 5}, "data_size": 9,
        "epochs": 2, "passes": 3, "minibatch": 32, "optimizer": "o", "lr": 0.2, "init": "i", "schedule": "s",
        "recipe": {"momentum": 0.9}, "sharding": "reshuffled", "skew": 0.5, "scaling": "weak",
        "processes": 2, "threads_per_worker": 2, "device": "cuda", "network": "n", "repeat": 1,
        "memory_limit_bytes": 10**6, "target_metric": "m", "target_value": 0.5, "decode": False, "gradient_norms": True,
        "checkpoint_steps": 5, "transport": "torch", "nodes": 7, "eval_size": 50,
    }  # fmt: skip
    covered = set(changed) | {"paper", "experiments", "time_limit_s", "checkpoint_s"}
    assert covered == {field.name for field in dataclasses.fields(Point)}
    ids = {dataclasses.replace(POINT, **{key: value}).run_id for key, value in changed.items()}
    assert len(ids | {POINT.run_id}) == len(changed) + 1


def test_json_and_back():
    point = dataclasses.replace(POINT, experiments=("speedup/measured",))
    assert Point.from_json(json.loads(json.dumps(point.to_json()))) == point
