"""Points on emulated hosts: real ranks and Spark's workers across them, counted by the kernel as by the ledger."""

import pytest
from training_runs import point_of, record_of, run_job

from implementations import record
from implementations.cluster.hosts import network
from implementations.cluster.ownership import Owner, own
from implementations.run import Job

pytestmark = pytest.mark.timeout(180)
TOLERANCE = 0.02
WIDE = {"name": "fc", "hidden": [256, 256]}  # 0.34 MB


@pytest.fixture
def job(results, tmp_path):
    (tmp_path / "data").symlink_to(results / "data")
    return Job(tmp_path, {"command": "auto", "args": []}, grace_s=5.0, spark={"start_limit_s": 150.0})


def on_hosts(method, workers=2, **changes):
    values = {"network": "emulated", "model": WIDE, "minibatch": 16, "epochs": 2}
    return point_of(method, workers, evidence="measured", processes=workers, **(values | changes))


def difference(values):
    return values["interface_arrived_bytes_total"] / values["sent_bytes_total"] - 1


def test_the_kernel_counts_what_the_ledger_says(can_have_hosts, job):
    """Also where the harness sends a good deal beside training: weights' drift, and whole models to be evaluated."""
    points = [
        on_hosts("data_parallel"),
        on_hosts("averaging", method_params={"sync_period": 2}),
        on_hosts("averaging", method_params={"sync_period": 2, "mixing": "ring"}),
        on_hosts("ist", model={"name": "fc_bn", "hidden": [256]}, method_params={"sync_period": 1}),
        on_hosts("layerwise", model={"name": "vgg_small"}, variant="owt"),
    ]
    assert set(run_job(points, job).values()) == {"ok"}
    for point in points:
        values = record_of(job, point)
        assert values["network"] == "emulated" and values["sent_bytes_total"] > 1_000_000
        assert 0 < difference(values) < TOLERANCE, point.run_id
        assert values["interface_received_bytes_total"] == pytest.approx(
            values["interface_sent_bytes_total"], rel=0.01
        )
    assert not [name for name in network.namespaces() if Owner.of(name) == own()]


def test_four_ranks_on_four_hosts(can_have_hosts, job):
    point = on_hosts("data_parallel", 4, epochs=1)
    assert run_job([point], job) == {point.run_id: "ok"}
    assert 0 < difference(record_of(job, point)) < TOLERANCE


def test_torch_process_groups_across_hosts(can_have_hosts, job):
    point = on_hosts("data_parallel", transport="torch", network="emulated-100mbit", epochs=1)
    assert run_job([point], job) == {point.run_id: "ok"}
    assert 0 <= difference(record_of(job, point)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_spark_on_hosts(can_have_hosts, job):
    """Workers of a barrier stage; executors, driver and master each have a host."""
    settings = {"cluster": "standalone", "execution": "barrier", "sync_period": 1}
    point = on_hosts("spark", variant="data", method_params=settings, minibatch=32)
    assert run_job([point], job) == {point.run_id: "ok"}, record_of(job, point)["reason"]
    assert 0 <= difference(record_of(job, point)) < TOLERANCE


def test_points_are_skipped_where_there_can_be_no_hosts_and_tried_again(monkeypatch, job):
    point = on_hosts("data_parallel", epochs=1)
    monkeypatch.setattr(network, "why_not", lambda: "only root may")
    assert run_job([point], job) == {point.run_id: "skipped"}
    values = record_of(job, point)
    assert values["reason"] == "only root may" and values["attempts"] == 1
    assert record.next_attempt(job.results, point.run_id) == 2
    assert run_job([point], job) == {point.run_id: "skipped"}
    assert record_of(job, point)["attempts"] == 2


def test_another_launcher_cannot_start_ranks_there(tmp_path, job):
    path = tmp_path / "mpiexec"
    path.write_text("#!/bin/sh\necho nobody knows\n")
    path.chmod(0o700)
    point = on_hosts("data_parallel", epochs=1)
    assert run_job([point], Job(job.results, {"command": str(path)})) == {point.run_id: "skipped"}
    assert "mpich, openmpi" in record_of(job, point)["reason"]
