"""The parameter server among the tasks of a real barrier stage."""

import functools
import sys

import pytest
import training_runs
from pyspark import cloudpickle
from training_runs import point_of, trained

from implementations.cluster.spark.stage import RankFailed, run_in_barrier

WORKERS = 2


@pytest.fixture(scope="module", autouse=True)
def _functions_travel():
    """Tasks cannot import tests."""
    for module in (training_runs, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (training_runs, sys.modules[__name__]):
        cloudpickle.unregister_pickle_by_value(module)


def run_on(point, results, break_at, rank):
    """A run in one task; returns its columns and its last weights."""
    from implementations.cluster.sockets import SocketCommunicator
    from implementations.models.worker_model import WorkerModel

    compute, calls = WorkerModel.loss_and_grad, []

    def failing(self, *batch):
        calls.append(1)
        if rank == 1 and len(calls) == break_at:
            raise ValueError("a task of a stage")
        return compute(self, *batch)

    WorkerModel.loss_and_grad = failing
    try:
        run = trained(point, results, SocketCommunicator)
    finally:
        WorkerModel.loss_and_grad = compute
    return run.columns(), run.net.theta_wp[0].numpy()


def measured(staleness):
    return point_of(
        "spark",
        WORKERS,
        variant="async",
        method_params={"staleness": staleness},
        evidence="measured",
        processes=WORKERS,
    )


@pytest.mark.parametrize("staleness", [0, 3])
def test_a_stage_trains_with_a_server(staleness, spark, results):
    task = functools.partial(run_on, measured(staleness), results, None)
    (ours, theta_p), (theirs, other_p) = run_in_barrier(spark, WORKERS, task, limit_s=30).values
    assert (theta_p == other_p).all()
    assert ours["sent_bytes_total"] == ours["sent_bytes_predicted"] == theirs["sent_bytes_total"] > 0
    assert ours["staleness_max"] == theirs["staleness_max"] <= staleness
    assert ours["comm_s"] > 0
    if staleness == 0:
        synchronous = trained(point_of("spark", WORKERS, variant="data"), results)
        assert theta_p == pytest.approx(synchronous.net.theta_wp[0].numpy(), abs=1e-5)


def test_the_worker_that_failed_is_the_one_that_is_named(spark, results):
    task = functools.partial(run_on, measured(3), results, 10)
    with pytest.raises(RankFailed) as raised:
        run_in_barrier(spark, WORKERS, task, limit_s=30)
    assert raised.value.rank == 1
    assert raised.value.reason == "ValueError: a task of a stage"
    assert "in failing" in raised.value.story
