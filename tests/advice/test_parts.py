"""What limits a method, and which is fastest, on machines where the answer is known in closed form."""

import math

import pandas as pd
import pytest

from implementations.advice import answer, estimates, nets, parts, targets, trust
from implementations.advice.parts import Seconds
from implementations.cluster.collectives import Link
from implementations.cluster.machine import Cluster, Device, Spark

SAMPLES, MINIBATCH, WORKERS = 2**14, 16, (1, 2, 4, 8)
FLOPS_PER_S = 1e9
NOTHING = answer.Grounds(pd.DataFrame(), pd.DataFrame())
REPLICAS = ("sequential", "data parallel", "averaging, K=4")


def cluster(latency_s=0.0, bytes_per_s=math.inf, flops_per_s=FLOPS_PER_S, **changes):
    """Nodes of one device each: nothing but its arithmetic, and one link."""
    link = Link(latency_s, bytes_per_s)
    return Cluster("toy", 64, 1, Device("toy", "cpu", flops_per_s, math.inf), link, link, **changes)


@pytest.fixture(scope="module")
def net():
    return nets.subject("fc-16-16", (8,), 4, SAMPLES)


def asked(net, machine, workers=WORKERS, **options):
    return answer.answer(net, machine, workers, MINIBATCH, estimates.ways(4, 4), NOTHING, **options)


def best(table):
    return table[table["best"]].set_index("method")


def test_links_that_take_no_time_leave_the_workers_arithmetic(net):
    """Every replica computes 1/m of the samples; subnets have fewer weights besides."""
    table = asked(net, cluster())
    # forward and the gradient of the weights everywhere, that of the input but for the first layer
    flops = SAMPLES * (4 * 8 * 16 + 6 * 16 * 16 + 6 * 16 * 4)
    for row in table[table["method"].isin(REPLICAS)].itertuples():
        assert row.epoch_s == pytest.approx(flops / FLOPS_PER_S / row.workers)
        assert (row.limit, row.limit_share) == ("compute", 1.0)
    chosen = best(table)
    assert (chosen["workers"][1:] == 8).all() and chosen.loc["sequential", "speedup"] == 1
    assert chosen.loc["data parallel", "place"] == chosen.loc["averaging, K=4", "place"]
    assert chosen.loc["data parallel", "speedup"] == pytest.approx(8)
    assert chosen["place"].idxmin() == "subnets, J=4"


def test_devices_that_take_no_time_leave_the_bytes(net):
    """On a link of bandwidth alone a ring's epoch is 2 (m-1)/m P b over the bandwidth for each all-reduce."""
    rate = 1e6
    table = asked(net, cluster(0.0, rate, math.inf))
    params, steps = 8 * 16 + 16 + 16 * 16 + 16 + 16 * 4 + 4, SAMPLES // MINIBATCH
    rows = table.set_index(["method", "workers"])
    for workers in WORKERS[1:]:
        for method, reduces in (("data parallel", steps / workers), ("averaging, K=4", steps / workers / 4)):
            row = rows.loc[(method, workers)]
            assert row["sent_bytes"] == pytest.approx(2 * (workers - 1) * 4 * params * reduces, rel=1e-3)
            assert row["epoch_s"] == pytest.approx(row["sent_bytes"] / workers / rate, rel=1e-3)
            assert (row["limit"], row["limit_share"]) == ("bandwidth", pytest.approx(1))
    replicas = table[table["method"].isin(REPLICAS) & (table["workers"].isin([1, 8]))]
    by_time = replicas.sort_values("epoch_s")["method"].tolist()
    assert (
        by_time
        == replicas.sort_values("sent_bytes")["method"].tolist()
        == list(REPLICAS[:1] + REPLICAS[:0:-1])
    )


def test_latencies_are_told_from_bandwidth(net):
    """An empty message of a second: rounds of a ring or fewer count, bytes do not."""
    rows = asked(net, cluster(1.0, math.inf, math.inf), (1, 2)).set_index(["method", "workers"])
    steps = SAMPLES // MINIBATCH // 2
    # two workers meet in one round of doubling
    assert rows.loc[("data parallel", 2), "latency_s"] == pytest.approx(steps)
    assert rows.loc[("averaging, K=4", 2), "latency_s"] == pytest.approx(steps / 4)
    assert set(rows.loc[[("data parallel", 2), ("averaging, K=4", 2)], "limit"]) == {"latency"}


def test_jobs_are_waited_for_like_latencies(net):
    spark = Spark(job_s=1.0, task_s=0.25, up_bytes_per_s=math.inf, down_bytes_per_s=math.inf)
    row = (
        asked(net, cluster(spark=spark), (1, 2))
        .set_index(["method", "workers"])
        .loc[("Spark, data by jobs", 2)]
    )
    assert row["latency_s"] == pytest.approx(SAMPLES / MINIBATCH / 2 * 1.5) and row["limit"] == "latency"


def test_one_worker_takes_the_same_by_every_cost_model(net):
    """Layer-wise and Spark on one machine that communicates for nothing: 1/m of one worker's arithmetic at best."""
    table = asked(net, cluster()).set_index(["method", "workers"])
    alone = table.loc[("sequential", 1), "epoch_s"]
    for method in ("Spark, data", "layer-wise"):
        assert table.loc[(method, 4), "epoch_s"] == pytest.approx(alone / 4, rel=0.35)


def test_memory_is_what_is_held(net):
    rows = asked(net, cluster()).set_index(["method", "workers"])
    params = 8 * 16 + 16 + 16 * 16 + 16 + 16 * 4 + 4
    held = rows.loc[("data parallel", 2), "memory_bytes"] - 2 * 4 * params
    # the sample and the two hidden layers are kept for the backward pass; rectified units once or twice
    assert 4 * MINIBATCH * (8 + 2 * 16) <= held <= 4 * MINIBATCH * (8 + 4 * 16)
    refused = asked(net, cluster(), memory_limit=4 * params).set_index(["method", "workers"])
    row = refused.loc[("data parallel", 2)]
    assert row["reason"].startswith("needs ") and row["limit"] == "memory" and not row["best"]


def test_what_cannot_be_is_told(net):
    table = asked(net, cluster(), (1, 128))
    reasons = table.set_index(["method", "workers"])["reason"]
    assert reasons["data parallel", 128] == "toy has places for 64"
    reasons = asked(net, cluster(), (1, 2)).set_index(["method", "workers"])["reason"]
    assert "no section spark" in reasons["Spark, data by jobs", 2]
    few = nets.subject("fc-16-16", (8,), 4, 20)
    assert (
        "less than one step"
        in asked(few, cluster(), (1, 2)).set_index("method").loc["data parallel", "reason"]
    )


def test_limits_by_shares():
    seconds = Seconds(compute=6, waiting=1, latency=1, bandwidth=2)
    assert parts.limit(seconds) == ("compute", 0.6)
    assert parts.limit(seconds, efficiency=0.9)[0] == "compute"
    assert parts.limit(seconds, efficiency=0.3) == ("statistical efficiency", 0.7)
    assert parts.limit(seconds, efficiency=1.4) == ("compute", 0.6)  # better than one worker: nothing is lost
    assert parts.limit(seconds, too_much_memory=True)[0] == "memory"


def test_places_and_numbers_of_workers():
    assert parts.ranked([3.0, 1.0, None, 1.0, math.nan]) == [3, 1, None, 1, None]
    assert parts.best({1: 10.0, 2: 5.0, 4: 4.99, 8: 6.0}) == 2  # one per cent is not worth two workers
    assert parts.worker_counts("1-32") == [1, 2, 4, 8, 16, 32]
    assert parts.worker_counts("3-20") == [3, 4, 8, 16, 20]
    assert parts.worker_counts("6,1") == [1, 6]
    for wrong in ("0-4", "8-2", "x", "", "1-"):
        with pytest.raises(ValueError):
            parts.worker_counts(wrong)


TIMINGS = pd.DataFrame(
    [
        {"run_id": f"{method}{model}{seed}", "method": method, "variant": "default", "workers": workers, "seed": seed,
         "dataset": "d", "model": model, "model_params": params, "sync_period": period, "data_size": 1000,
         "global_batch": 10 * workers, "step_s": 2.0, "time_to_target_s": 2.0 * steps, "target_reached": True}
        for method, workers, period, model, params, seed, steps in (
            ("sequential", 1, None, "fc-8", 100, 0, 200), ("sequential", 1, None, "fc-8", 100, 1, 240),
            ("averaging", 4, 10, "fc-8", 100, 0, 100), ("averaging", 4, 10, "fc-8", 100, 1, 120),
            ("averaging", 4, 10, "fc-8", 100, 2, 160), ("averaging", 4, 10, "fc-800", 9000, 0, 7),
            ("averaging", 4, 5, "fc-8", 100, 3, 1),
        )
    ]
)  # fmt: skip


def test_epochs_to_the_target_are_those_of_the_network_most_alike():
    """Steps x samples of a step / samples of an epoch, of the same method, workers and period."""
    reached = targets.reached(TIMINGS)
    known = targets.known(reached, "averaging", "default", 4, "fully connected", 150, {"sync_period": 10})
    assert (known.epochs, known.low, known.high, known.seeds) == (4.8, 4.0, 6.4, 3)
    assert known.whose == "d fc-8" and known.alone == pytest.approx(2.2)
    assert known.efficiency == pytest.approx(2.2 / 4.8)
    large = targets.known(reached, "averaging", "default", 4, "fully connected", 5000, {"sync_period": 10})
    assert large.whose == "d fc-800" and large.efficiency is None
    for other in (
        ("averaging", 8, "fully connected"),
        ("averaging", 4, "convolutional"),
        ("ist", 4, "fully connected"),
    ):
        method, workers, kind = other
        assert targets.known(reached, method, "default", workers, kind, 150, {"sync_period": 10}) is None


def test_time_to_the_target_is_epochs_times_seconds(net):
    grounds = answer.Grounds(targets.reached(TIMINGS), pd.DataFrame())
    table = answer.answer(net, cluster(), (1, 4), MINIBATCH, estimates.ways(10, 4), grounds)
    row = table.set_index(["method", "workers"]).loc[("averaging, K=10", 4)]
    assert row["time_to_target_s"] == pytest.approx(row["target_epochs"] * row["epoch_s"])
    assert (row["limit"], row["limit_share"]) == (
        "statistical efficiency",
        pytest.approx(1 - row["efficiency"]),
    )
    assert row["place_target"] in (1, 2)


def test_errors_are_of_the_method_where_it_was_checked():
    checked = pd.DataFrame(
        {
            "method": ["averaging", "averaging", "sequential", "averaging"],
            "error": [0.02, -0.06, 0.5, 3.0],
            "oversubscribed": [False, False, False, True],
        }
    )
    found = trust.errors(checked, "averaging")
    assert (found.median, found.worst, found.points, found.of) == (pytest.approx(0.04), 0.06, 2, "averaging")
    assert trust.errors(checked, "ist").points == 3 and trust.errors(checked, "ist").of == "all methods"
    assert trust.errors(pd.DataFrame(), "ist") is None
    assert "none of that machine" in trust.told(found, "roofline", is_here=False)
    assert trust.told(None, "roofline", True) == "step from roofline; the time model was not checked here"
