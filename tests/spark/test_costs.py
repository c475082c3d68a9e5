"""The cost model against the programs that it speaks of, and against its formulas worked out by hand."""

import math

import pytest
import torch

from implementations import models
from implementations.cluster import machine
from implementations.errors import UserError
from implementations.spark import costs, nets, traffic
from implementations.spark.program import GATHER, SCATTER_SUM, Exchange
from tests.cluster.toys import described, figure

NETS = [
    ({"name": "fc", "hidden": [20, 12]}, 64, 10),
    ({"name": "cnn", "filters": [8, 12], "kernel": 3, "hidden": [24]}, 784, 10),
    ({"name": "cnn", "filters": [4], "hidden": []}, 3 * 64, 4),
    ({"name": "rnn", "steps": 4, "hidden": [8, 12]}, 24, 5),
    ({"name": "lstm", "steps": 4, "hidden": [8]}, 24, 5),
    ({"name": "lstm", "steps": 3, "hidden": [8, 12], "masked": True}, 21, 5),
]
SPARK = {
    "job_s": figure(0.2),
    "task_s": figure(0.01),
    "up_bytes_per_s": figure(1e8),
    "down_bytes_per_s": figure(2e8),
    "memory_bytes": figure(1e6),
}


def cluster(nodes=8, bandwidth=1e8, **spark):
    """One worker of 1 GFLOP/s a node."""
    device = described()["device"] | {"peak_flops": {"float32": figure(1e9)}, "efficiency": figure(1.0)}
    link = {"latency_s": figure(1e-3), "bandwidth_bytes_per_s": figure(bandwidth)}
    links = {"inside_node": link, "between_nodes": link}
    return machine.build(
        described(nodes=nodes, devices_per_node=1, device=device, links=links, spark=SPARK | spark)
    )


def case(net=None, **changes):
    """Two layers of four units, model parallel."""
    values = {
        "net": net or costs.net({"name": "fc", "hidden": [4]}, 4, 4),
        "variant": "model",
        "driver": True,
        "workers": 2,
        "minibatch": 5,
        "samples": 100,
    }
    return costs.Case(**values | changes)


@pytest.mark.parametrize("model, features, classes", NETS)
def test_parameters_and_operations_are_those_of_the_network(model, features, classes):
    net = costs.net(model, features, classes)
    built = models.build(model, features, classes, 1, torch.Generator())
    assert (net.params, net.flops()) == (built.params_per_worker, built.flops_per_sample)


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("model, features, classes", NETS)
def test_exchanges_and_shares_are_those_of_the_program(model, features, classes, workers):
    batch = 7
    net = costs.net(model, features, classes)
    program = nets.program(model, features, classes, workers, batch, "auto")
    for kind, values in ((GATHER, net.gathers), (SCATTER_SUM, net.sums)):
        found = [math.prod(one.shape) for one in program.exchanges if one and one.kind == kind]
        assert sorted(found) == sorted(batch * count for count in values)
    assert len(net.gathers) + len(net.sums) == sum(one is not None for one in program.exchanges)
    everyone = range(workers)
    assert net.worker_params(workers) == max(program.params(worker) for worker in everyone)
    assert net.flops(workers) == pytest.approx(max(program.flops_per_sample(worker) for worker in everyone))


@pytest.mark.parametrize("driver", [True, False])
@pytest.mark.parametrize("model, features, classes", NETS)
def test_bytes_of_model_parallelism_are_those_of_the_program(model, features, classes, driver):
    workers, minibatch = 4, 3
    net = costs.net(model, features, classes)
    found = costs.cost(case(net, workers=workers, minibatch=minibatch, driver=driver), cluster())
    program = nets.program(model, features, classes, workers, workers * minibatch, "auto")
    assert found.sent_bytes == pytest.approx(traffic.step_bytes(program.exchanges, workers, driver))


def test_bytes_of_data_parallelism_are_one_sum_of_all_parameters():
    at = case(variant="data", workers=4, period=2)
    found = costs.cost(at, cluster())
    sums = traffic.through_driver(Exchange("sum", (at.net.params,)), 4)
    assert (found.up_bytes, found.down_bytes) == (sum(sums.up) / 2, sum(sums.down) / 2)
    assert found.exchanges == 0.5
    ring = costs.cost(case(variant="data", workers=4, driver=False), cluster())
    assert ring.sent_bytes == pytest.approx(4 * 2 * 3 / 4 * 4 * at.net.params)
    assert ring.up_bytes == ring.down_bytes == 0


def test_seconds_of_jobs_by_hand():
    """Two layers 4-4-4 on two workers, 10 samples a step: two gathers and one sum of 40 values."""
    found = costs.cost(case(), cluster())
    assert found.exchanges == 3
    # an exchange each, and the update
    assert found.schedule_s == pytest.approx(4 * (0.2 + 2 * 0.01))
    up, down = 4 * (40 + 40 + 2 * 40), 4 * (2 * 40 + 2 * 40 + 40)
    assert (found.up_bytes, found.down_bytes) == (up, down)
    # half of it is for the worker on the driver's own node
    assert found.transfer_s == pytest.approx(up / 1e8 + down / 2e8 + (up + down) / 2 / 1e8)
    assert found.compute_s == pytest.approx((4 * 16 + 6 * 16) / 2 * 10 / 1e9)
    assert found.alone_s == pytest.approx(2 * found.compute_s)
    assert found.step_s == found.compute_s + found.schedule_s + found.transfer_s
    assert found.capped_by == "jobs"
    assert found.state_bytes == 4 * (2 * 20 + 10 * (4 + 4 + 4))
    assert found.alone_bytes == 4 * (2 * 40 + 10 * (4 + 4 + 4))


def test_seconds_between_workers_by_hand():
    """Rings: k - 1 messages each way of an all-gather, twice as many of an all-reduce."""
    found = costs.cost(case(workers=4, driver=False, minibatch=10), cluster())
    assert found.schedule_s == pytest.approx(3 * 3 * 1e-3)
    assert found.transfer_s == pytest.approx(3 * 3 / 4 * 4 * 160 / 1e8)
    reduced = costs.cost(case(variant="data", workers=4, driver=False), cluster())
    assert reduced.schedule_s == pytest.approx(6 * 1e-3)
    assert reduced.transfer_s == pytest.approx(2 * 3 / 4 * 4 * 40 / 1e8)


def test_a_hybrid_has_the_exchanges_of_its_groups_and_the_sum_across_them():
    found = costs.cost(case(variant="hybrid", workers=4, group=2), cluster())
    assert found.exchanges == 4
    # the groups' exchanges are one job, and so are the sums of all blocks
    assert found.schedule_s == pytest.approx(5 * (0.2 + 4 * 0.01))
    assert found.up_bytes == 4 * (2 * (40 + 40 + 2 * 40) + 2 * 2 * 20)
    assert found.alone_s == pytest.approx(4 * found.compute_s)


def test_a_machine_that_says_nothing_of_spark_has_no_jobs():
    bare = machine.build(described())
    with pytest.raises(UserError, match="toy: its file has no section spark"):
        costs.cost(case(), bare)
    assert costs.cost(case(driver=False), bare).step_s > 0


def test_one_worker_exchanges_nothing():
    for variant in ("model", "data"):
        found = costs.cost(case(variant=variant, workers=1), cluster())
        assert (found.speedup, found.exchanges, found.sent_bytes) == (1, 0, 0)


@pytest.mark.parametrize("goal", [1.5, 3.0, 3.9])
def test_the_fewest_steps_per_job_reach_the_goal_and_one_less_does_not(goal):
    at = case(costs.net({"name": "fc", "hidden": [100]}, 100, 10), variant="data", workers=4, samples=10**6)
    least = costs.least_steps_per_job(at, cluster(), goal)

    def speedup(period):
        return costs.cost(costs.Case(**{**vars(at), "period": period}), cluster()).speedup

    assert least > 1
    assert speedup(least) >= goal > speedup(least - 1)
    assert costs.least_steps_per_job(costs.Case(**{**vars(at), "samples": 100}), cluster(), goal) is None


def test_no_number_of_steps_makes_more_of_workers_than_they_are():
    assert costs.least_steps_per_job(case(variant="data", workers=4, samples=10**9), cluster(), 4.0) is None


@pytest.mark.parametrize("driver", [True, False])
def test_speedup_rises_with_data_and_with_the_network(driver):
    def of_data(samples):
        return costs.cost(
            case(variant="data", workers=4, driver=driver, samples=samples, period=10**9), cluster()
        ).speedup

    assert of_data(10**4) < of_data(10**6) < of_data(10**8) < 4

    def of_width(width):
        net = costs.net({"name": "fc", "hidden": [width] * 2}, 64, 10)
        return costs.cost(case(net, driver=driver, minibatch=64), cluster()).speedup

    assert of_width(16) < of_width(256) < of_width(4096) < 2


def test_convolutions_gain_more_of_data_parallelism_than_full_layers_of_as_many_parameters():
    cnn = costs.net({"name": "cnn", "filters": [8, 16], "hidden": [20]}, 784, 10)
    fc = costs.net({"name": "fc", "hidden": [25]}, 784, 10)
    assert cnn.params == pytest.approx(fc.params, rel=0.03)
    gains = [costs.cost(case(net, variant="data", minibatch=64), cluster()).speedup for net in (cnn, fc)]
    assert gains[0] > 2 * gains[1]


@pytest.mark.parametrize(
    "model, features",
    [({"name": "bow", "hidden": [3]}, 9), ({"name": "cnn", "filters": [2], "hidden": [2]}, 10)],
)
def test_networks_without_costs_are_named(model, features):
    with pytest.raises(ValueError, match=r"bow|square"):
        costs.net(model, features, 2)
