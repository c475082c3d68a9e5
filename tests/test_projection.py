"""Methods run dry at tens of thousands of workers: in seconds, with the bytes of the closed forms."""

import dataclasses
import time

import pytest

from implementations import registry
from implementations.cluster import machine, timemodel
from implementations.cluster.collectives import Placement, seconds
from implementations.errors import UserError
from implementations.point import Point
from implementations.projection import project
from implementations.reporting.columns import as_runs
from implementations.timings import timings

MANY = 1 << 16
HIDDEN = [512, 256]
PARAMS = 64 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10


def point(method, workers, hidden=HIDDEN, **changes):
    values = {
        "paper": "suite", "method": method, "variant": registry.get(method).variants[0], "dataset": "teacher",
        "data_size": 640, "scaling": "weak", "model": {"name": "fc", "hidden": hidden}, "workers": workers,
        "evidence": "projected", "seed": 0, "minibatch": 64, "lr": 0.1, "network": "stampede-k20", "nodes": MANY,
    }  # fmt: skip
    return Point(**(values | changes))


@pytest.mark.parametrize(
    ("method", "changes", "events"),
    [
        ("data_parallel", {"method_params": {"algorithm": "auto"}}, 10),
        ("data_parallel", {"method_params": {"algorithm": "ring"}}, 10),
        ("averaging", {"method_params": {"sync_period": 5}}, 2),
        ("averaging", {"method_params": {"sync_period": 5, "mixing": "butterfly"}, "epochs": 2}, 2),
        ("averaging", {"method_params": {"sync_period": 5, "mixing": "hopping_ring"}, "epochs": 2}, 2),
    ],
)
def test_65536_workers_are_projected_in_seconds(method, changes, events):
    one = point(method, MANY, **changes)
    cluster = machine.load(one.network).with_nodes(one.nodes)
    began = time.process_time()
    columns, trace = project(one)
    timing = timemodel.predict(trace, cluster, MANY, model_params=columns["worker_params"])
    assert time.process_time() - began < 8
    assert columns["samples"] == 640 * MANY * one.epochs and columns["model_params"] == PARAMS
    calls = trace[trace["kind"] == "comm"]
    # those of the epoch that is traced; pairs end with a full average of all
    assert len(calls) in (events, events + 1)
    whole = calls[calls["op"] == "allreduce"]
    assert (whole["sent_bytes_total"] == 2 * (MANY - 1) * 4 * PARAMS).all()
    pairs = calls[calls["op"] == "mix"]
    assert (pairs["sent_bytes_total"] == MANY * 4 * PARAMS).all()
    assert timing.nodes == MANY and not timing.oversubscribed
    if method == "data_parallel" and changes["method_params"]["algorithm"] == "ring":
        link = cluster.between_nodes
        ring = 2 * (MANY - 1) * (link.latency_s + 4 * PARAMS / MANY / link.bandwidth_bytes_per_s)
        copies = 2 * cluster.device.host_copy.seconds(4 * PARAMS) if cluster.device.host_copy else 0.0
        assert timing.comm_s == pytest.approx(10 * (ring + copies))
        assert timing.collective == "ring"


@pytest.mark.parametrize("server", ["central", "partitioned"])
def test_subnets_of_a_thousand_workers_are_projected(server):
    one = point("ist", 1024, [1024, 1024], method_params={"sync_period": 5, "server": server})
    began = time.process_time()
    columns, trace = project(one)
    assert time.process_time() - began < 10
    # a subnet: one unit of each layer, all inputs and outputs
    assert columns["worker_params"] == 64 + 1 + 1 + 1 + 10 + 10
    calls = trace[trace["kind"] == "comm"]
    assert calls["op"].tolist() == (["scatter", "gather"] * 2 if server == "central" else ["alltoall"] * 4)
    if server == "central":  # worker 0's own subnet stays where it is
        assert (calls["sent_bytes_total"] == 4 * 1023 * columns["worker_params"]).all()


def test_a_projected_point_has_the_nodes_that_it_names():
    few = point("data_parallel", 128, method_params={"algorithm": "auto"}, nodes=64)
    many = dataclasses.replace(few, nodes=None)
    rows = timings(as_runs(None), "results", ["stampede-k20"], projected=[few, many]).to_dict("records")
    assert [row["nodes"] for row in rows] == [
        64,
        machine.load("stampede-k20").with_nodes(None).nodes_used(128),
    ]
    assert rows[0]["oversubscribed"] and rows[0]["compute_s"] == pytest.approx(2 * rows[1]["compute_s"])
    assert all(
        row["collective"] in ("butterfly", "rabenseifner", "ring", "leaders", "hierarchical") for row in rows
    )


def test_nodes_that_nothing_joins_cannot_be_more():
    alone = machine.load("h100-node")
    with pytest.raises(UserError, match="h100-node: nodes 9, but its file does not say what joins nodes"):
        alone.with_nodes(9)
    assert alone.with_nodes(1) is alone


def test_auto_takes_what_was_measured_of_the_library():
    cluster = machine.load("stampede-k20")
    table = ((1.0, 0.25), (1e9, 0.25))
    cluster = dataclasses.replace(cluster, collectives={("allreduce", "library", 4): table})
    assert cluster.communication_s("allreduce", "auto", 4, 1000.0) >= 0.25
    assert cluster.chosen("allreduce", "auto", 4, 1000.0) == machine.MEASURED
    assert cluster.chosen("allreduce", "auto", 8, 1e8) in ("rabenseifner", "ring")
    assert cluster.chosen("mix", "shift-1", 4, 1000.0) is None


def test_an_all_to_all_of_many_has_its_closed_form_quickly():
    """All distances of a thousand nodes of eight, whose adapter takes as many messages as leave it."""
    cluster = machine.load("stampede-k20")
    inside, between = cluster.inside_node, cluster.between_nodes
    m, p, each = 8192, 8, 1000.0
    began = time.process_time()
    cost = seconds("alltoall", "direct", Placement(m, p, inside, between), 0, each * (m - 1), m - 1)
    assert time.process_time() - began < 5
    flows = [min(p, k, m - k) for k in range(1, m)]
    expected = sum(
        between.latency_s + each * (f if between.shared else 1) / between.bandwidth_bytes_per_s for f in flows
    )
    assert cost == pytest.approx(expected, rel=1e-6)


def test_waiting_in_pairs_among_many_goes_on_as_among_few():
    """What a round waits grows ever more slowly with the workers."""
    began = time.process_time()
    few, more, many = (timemodel.expected_pair_wait(count) for count in (256, 1024, MANY))
    assert time.process_time() - began < 20
    assert few < more < many < 1.2 * more
