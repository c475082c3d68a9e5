"""Jobs on Spark itself: results, what is left behind, and an executor that is killed in the middle of a step."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch
from training_runs import point_of, trained, whole_model

from implementations.cluster.communicator import Communicator
from implementations.spark.cluster import Cluster

MODEL = {"name": "fc", "hidden": [9]}


def pair(workers, steps, **changes):
    """A measured point whose steps are jobs, and the same one simulated."""
    params = {"execution": "job_per_exchange", "lineage_steps": 3} | changes.pop("method_params", {})
    values = {"data_size": 4 * workers * steps, "epochs": 1, "minibatch": 4, "model": MODEL} | changes
    measured = point_of("spark", workers, evidence="measured", method_params=params, **values)
    return measured, dataclasses.replace(measured, evidence="simulated")


def run_jobs(point, results):
    return trained(point, results, lambda ledger: Communicator(ledger, [0] * point.workers))


@pytest.mark.timeout(240)
@pytest.mark.slow
@pytest.mark.parametrize(
    "workers, steps, changes",
    [
        (2, 6, {}),
        (4, 4, {"variant": "hybrid", "method_params": {"group_size": 2}, "optimizer": "rmsprop", "lr": 0.01}),
        (2, 5, {"variant": "data", "method_params": {"partitions": 7}}),
        (2, 5, {"variant": "data", "method_params": {"sync_period": 2}, "recipe": {"momentum": 0.9}}),
    ],
)
def test_steps_equal_those_of_simulated_workers(workers, steps, changes, spark, results):
    measured, simulated = pair(workers, steps, **changes)
    ran, plain = run_jobs(measured, results), trained(simulated, results)
    torch.testing.assert_close(whole_model(ran), whole_model(plain), rtol=0, atol=1e-5)
    columns = ran.columns()
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"] > 0
    parts = sum(columns[f"{label}_s"] for label in ("data", "compute", "comm", "eval", "other"))
    assert parts == pytest.approx(columns["wall_s"], rel=0.02)
    assert columns["spark_jobs"] > 0 and columns["schedule_s"] > columns["serialise_s"] > 0
    assert spark.context._jsc.getPersistentRDDs().size() == 0
    assert not list((results / "runs" / measured.run_id).glob("lineage/*"))


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_lineage_is_cut(spark, results, monkeypatch):
    measured, _ = pair(2, 9, model={"name": "fc", "hidden": []}, method_params={"lineage_steps": 3})
    depths, kept, collect = [], [], Cluster.collect

    def collect_and_look(self, rdds, *arguments):
        depths.append(rdds[0].toDebugString().decode().count("\n"))
        kept.append(spark.context._jsc.getPersistentRDDs().size())
        return collect(self, rdds, *arguments)

    monkeypatch.setattr(Cluster, "collect", collect_and_look)
    columns = run_jobs(measured, results).columns()
    assert max(depths) <= 3 + 4 and max(kept) <= 2 * 5
    assert columns["checkpoint_bytes"] > 3 * 2 * 65 * 5 * 4


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["executor", "python"])
def test_a_killed_executor_changes_nothing(victim, root, results):
    """Killed while a job in the middle of a step is under way; states were last written down some steps before."""
    script = root / "tests/spark/killed_executor.py"
    paths = f"{root}:{root / 'tests'}"
    answer = subprocess.run(
        [sys.executable, script, victim, results],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    assert told["killed"] and told["same_bytes"]
    assert told["difference"] < 1e-6
