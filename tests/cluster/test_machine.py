"""Costs of collectives against textbook forms, and the reading of cluster files."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from implementations.cluster import machine
from implementations.cluster.collectives import Link, Placement, seconds
from implementations.cluster.mixing import partners, pattern
from implementations.config.documents import check, read, schema
from implementations.config.problems import Place, Problems
from implementations.errors import UserError
from tests.cluster.toys import described, figure

A, B, N = 3e-6, 2e9, 6_000_000.0
ALGORITHMS = ("library", "ring", "butterfly", "rabenseifner", "tree", "star")


def flat(workers: int, latency_s: float = A, bandwidth: float = B, per_node: int | None = None) -> Placement:
    link = Link(latency_s, bandwidth, shared=False)
    return Placement(workers, per_node or workers, link, link)


@pytest.mark.parametrize("m", [2, 3, 4, 7, 16, 32])
def test_ring_all_reduce_has_the_textbook_cost(m):
    assert seconds("allreduce", "ring", flat(m), N) == pytest.approx(2 * (m - 1) * (A + N / (m * B)))


@pytest.mark.parametrize("m", [2, 4, 16, 32])
def test_costs_of_the_other_algorithms_at_powers_of_two(m):
    rounds, whole = math.log2(m), A + N / B
    assert seconds("allreduce", "butterfly", flat(m), N) == pytest.approx(rounds * whole)
    assert seconds("allreduce", "tree", flat(m), N) == pytest.approx(2 * rounds * whole)
    assert seconds("allreduce", "star", flat(m), N) == pytest.approx(2 * (m - 1) * whole)
    assert seconds("bcast", "tree", flat(m), N) == pytest.approx(rounds * whole)
    rabenseifner = 2 * rounds * A + 2 * (m - 1) / m * N / B
    assert seconds("allreduce", "rabenseifner", flat(m), N) == pytest.approx(rabenseifner)
    assert seconds("barrier", "library", flat(m), 0) == pytest.approx(rounds * A)


@pytest.mark.parametrize("m", [2, 3, 5, 8])
def test_pieces_go_round_the_ring_by_the_bytes_that_a_worker_sent(m):
    sent = N * (m - 1) / m
    expected = (m - 1) * (A + N / (m * B))
    assert seconds("reduce_scatter", "ring", flat(m), N, sent, m - 1) == pytest.approx(expected)
    assert seconds("allgather", "ring", flat(m), N / m, sent, m - 1) == pytest.approx(expected)
    assert seconds("alltoall", "library", flat(m), N, sent, m - 1) == pytest.approx(expected)
    # through one root, one worker after the other
    assert seconds("scatter", "direct", flat(m), N, N * (m - 1), m - 1) == pytest.approx(
        (m - 1) * (A + N / B)
    )
    assert seconds("gather", "direct", flat(m), N, N, 1) == pytest.approx((m - 1) * (A + N / B))
    assert seconds("permute", "library", flat(m), N, N, 1) == pytest.approx(A + N / B)


@pytest.mark.parametrize("nbytes", [4.0, 1e5, 1e8])
def test_the_library_takes_the_best_algorithm_for_the_size(nbytes):
    m = 16
    doubling, rabenseifner = 4 * (A + nbytes / B), 8 * A + 2 * 15 / 16 * nbytes / B
    ring = 30 * (A + nbytes / (16 * B))
    cost = seconds("allreduce", "library", flat(m), nbytes)
    assert cost == pytest.approx(min(doubling, rabenseifner, ring))
    assert (cost == pytest.approx(doubling)) == (nbytes < 1e3)


def test_workers_beyond_a_power_of_two_fold_in_and_out():
    assert seconds("allreduce", "butterfly", flat(5), N) == pytest.approx((2 + 2) * (A + N / B))
    assert seconds("allreduce", "tree", flat(5), N) == pytest.approx(2 * 3 * (A + N / B))


@given(st.integers(2, 40), st.integers(1, 9), st.sampled_from(ALGORITHMS), st.floats(4, 1e9))
def test_two_equal_links_are_one_flat_network(m, per_node, algorithm, nbytes):
    two = seconds("allreduce", algorithm, flat(m, per_node=per_node), nbytes)
    assert two == pytest.approx(seconds("allreduce", algorithm, flat(m), nbytes))


@given(
    st.integers(1, 40),
    st.integers(1, 9),
    st.sampled_from(ALGORITHMS),
    st.floats(4, 1e9),
    st.floats(0, 1e-3),
    st.floats(1e6, 1e12),
    st.floats(1, 100),
)
def test_slower_links_never_make_a_collective_faster(
    m, per_node, algorithm, nbytes, latency_s, bandwidth, factor
):
    inside = Link(1e-6, 1e10)

    def cost(link: Link) -> float:
        return seconds("allreduce", algorithm, Placement(m, per_node, inside, link), nbytes)

    base = cost(Link(latency_s, bandwidth))
    assert cost(Link(latency_s * factor, bandwidth)) >= base * (1 - 1e-12)
    assert cost(Link(latency_s, bandwidth / factor)) >= base * (1 - 1e-12)


def test_the_slowest_link_governs_a_ring_over_nodes():
    inside, between = Link(1e-6, 1e10), Link(1e-5, 1e9)
    ring = seconds("allreduce", "ring", Placement(8, 2, inside, between), N)
    assert ring == pytest.approx(2 * 7 * (1e-5 + N / 8 / 1e9))
    assert seconds("allreduce", "ring", Placement(2, 2, inside, between), N) == pytest.approx(
        2 * (1e-6 + N / 2 / 1e10)
    )


def test_butterfly_rounds_inside_a_node_use_its_link_and_others_share_the_adapter():
    inside, between = Link(1e-6, 1e10), Link(1e-5, 1e9)
    cost = seconds("allreduce", "butterfly", Placement(8, 2, inside, between), N)
    # distance 1 stays inside; distances 2 and 4 take both devices' messages out of each node
    assert cost == pytest.approx((1e-6 + N / 1e10) + 2 * (1e-5 + 2 * N / 1e9))
    alone = seconds("allreduce", "butterfly", Placement(8, 2, inside, Link(1e-5, 1e9, shared=False)), N)
    assert alone == pytest.approx((1e-6 + N / 1e10) + 2 * (1e-5 + N / 1e9))


@pytest.mark.parametrize("per_node", [1, 2, 3, 16])
def test_a_cycle_of_butterfly_mixing_costs_what_the_butterfly_costs(per_node):
    places = Placement(8, per_node, Link(1e-6, 1e10), Link(1e-5, 1e9))
    patterns = [pattern(partners("butterfly", 8, round)) for round in range(3)]
    cycle = sum(seconds("mix", name, places, N, N, 1) for name in patterns)
    assert cycle == pytest.approx(seconds("allreduce", "butterfly", places, N))


def test_mixing_along_a_ring_is_one_step_of_the_ring():
    inside, between = Link(1e-6, 1e10), Link(1e-5, 1e9)
    places = Placement(8, 2, inside, between)
    ring = seconds("mix", pattern(partners("ring", 8, 0)), places, N, N, 1)
    assert ring == pytest.approx(1e-5 + N / 1e9)
    assert 14 * seconds("mix", "shift-1", places, N / 8) == pytest.approx(
        seconds("allreduce", "ring", places, N)
    )
    # hops of 2 leave the node with both devices' models
    assert seconds("mix", "shift-2", places, N, N, 1) == pytest.approx(1e-5 + 2 * N / 1e9)
    assert seconds("mix", "direct", places, N, N, 1) == pytest.approx(1e-5 + 2 * N / 1e9)
    assert seconds("mix", "shift-1", flat(2), N, N, 1) == pytest.approx(A + N / B)
    assert seconds("mix", "direct", flat(4), N, 0, 0) == pytest.approx(0)


def test_tree_and_star_over_nodes():
    inside, between = Link(1e-6, 1e10), Link(1e-5, 1e9)
    near, far = 1e-6 + N / 1e10, 1e-5 + N / 1e9
    assert seconds("bcast", "tree", Placement(4, 2, inside, between), N) == pytest.approx(near + far)
    assert seconds("bcast", "star", Placement(5, 2, inside, between), N) == pytest.approx(near + 3 * far)


def test_one_worker_communicates_nothing():
    toy = machine.build(described())
    assert toy.communication_s("allreduce", "ring", 1, 1e9) == 0
    assert seconds("allreduce", "star", flat(1), N) == 0


def test_copies_to_host_memory_are_charged_once_each_way():
    gpu = described()
    gpu["device"]["host_copy"] = {"latency_s": figure(1e-5), "bandwidth_bytes_per_s": figure(6e9)}
    without = machine.build(described()).communication_s("allreduce", "ring", 8, N)
    with_copies = machine.build(gpu).communication_s("allreduce", "ring", 8, N)
    assert with_copies - without == pytest.approx(2 * (1e-5 + N / 6e9))


def test_a_measured_table_wins_is_hit_exactly_and_interpolated_in_logarithms():
    rows = [(1e3, 1e-5), (1e5, 1e-4), (1e7, 1e-2)]
    table = [
        {"op": "allreduce", "algorithm": "ring", "ranks": 2, "bytes": b, "seconds": s}
        for b, s in reversed(rows)
    ]
    toy = machine.build(described(collectives=table))
    for nbytes, expected in rows:
        assert toy.communication_s("allreduce", "ring", 2, nbytes) == pytest.approx(expected)
    assert toy.communication_s("allreduce", "ring", 2, 1e6) == pytest.approx(1e-3)
    assert toy.communication_s("allreduce", "ring", 2, 4) == pytest.approx(1e-5)
    assert toy.communication_s("allreduce", "ring", 2, 1e8) == pytest.approx(1e-1)
    # other ranks and algorithms keep latency and bandwidth
    assert toy.communication_s("allreduce", "tree", 2, 1e6) == pytest.approx(2 * (1e-6 + 1e6 / 1e10))


def test_workers_beyond_the_devices_share_them():
    toy = machine.build(described())
    assert (toy.capacity, toy.oversubscription(8), toy.oversubscription(16)) == (8, 1, 2)
    assert (toy.nodes_used(1), toy.nodes_used(3), toy.nodes_used(8), toy.nodes_used(16)) == (1, 2, 4, 4)
    assert (toy.busy_ranks(1), toy.busy_ranks(8), toy.busy_ranks(16)) == (1, 2, 2)


def test_flops_by_shape_is_hit_at_its_points_and_clamped():
    device = described()["device"]
    rows = [(16, 64, 1e9), (16, 256, 4e9), (64, 64, 2e9), (64, 256, 8e9)]
    device["flops_by_shape"] = [{"batch": b, "width": w, "flops_per_s": r} for b, w, r in rows]
    device = machine.build(described(device=device)).device
    for batch, width, expected in rows:
        assert device.flops_per_s(batch, 6 * batch * width**2) == pytest.approx(expected)
    assert device.flops_per_s(32, 6 * 32 * 128**2) == pytest.approx((1e9 * 4e9 * 2e9 * 8e9) ** 0.25)
    assert device.flops_per_s(512, 6 * 512 * 9999**2) == pytest.approx(8e9)


def test_every_problem_of_a_file_is_named_at_once_with_its_place():
    values = described(nodes=0, speed="great")
    values["device"]["peak_flops"]["float32"]["how"] = "guessed"
    del values["links"]["inside_node"]["latency_s"]["source"]
    with pytest.raises(UserError) as caught:
        machine.build(values, "toy.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("toy.yaml: ") for line in lines)
    text = str(caught.value)
    for words in ("nodes: 0", "speed", "device.peak_flops.float32.how", "links.inside_node.latency_s"):
        assert words in text


def test_what_a_schema_cannot_say_is_told_too():
    values = described()
    del values["links"]["between_nodes"]
    with pytest.raises(UserError, match=r"links\.between_nodes: missing"):
        machine.build(values)
    del values["device"]["efficiency"]
    with pytest.raises(UserError, match="one of efficiency, flops_by_shape"):
        machine.build(values)
    values = described()
    values["device"]["flops_by_shape"] = [
        {"batch": b, "width": w, "flops_per_s": 1e9} for b, w in [(16, 64), (64, 64), (16, 256)]
    ]
    with pytest.raises(UserError, match="no row for batch 64, width 256"):
        machine.build(values)


def test_files_are_found_by_name_and_a_missing_one_tells_the_way_out(tmp_path):
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(described()))
    assert machine.load("toy", tmp_path, tmp_path).nodes == 4
    assert machine.load(tmp_path / "toy.yaml").name == "toy"
    with pytest.raises(UserError, match="allowed: toy, this-host"):
        machine.load("other", tmp_path, tmp_path)
    with pytest.raises(UserError, match="implementations calibrate"):
        machine.load("this-host", tmp_path, tmp_path)
    (tmp_path / "broken.yaml").write_text("name: [")
    with pytest.raises(UserError, match=r"broken\.yaml: is no YAML"):
        machine.load("broken", tmp_path, tmp_path)


def test_numbers_and_dates_are_read_as_the_config_check_reads_them(tmp_path):
    text = (
        yaml.safe_dump(described(date="DATE"))
        .replace("value: 1.0e-06", "value: 2e-5")
        .replace("DATE", "2026-01-31")
    )
    assert "value: 2e-5" in text and "date: 2026-01-31" in text
    path = tmp_path / "toy.yaml"
    path.write_text(text)
    problems = Problems()
    assert check(read(path, problems), schema("cluster"), Place(str(path)), problems) and not problems.lines
    assert machine.load(path).inside_node.latency_s == 2e-5
    path.write_text(text + "name: again\n")
    with pytest.raises(UserError, match=r"toy\.yaml: is no YAML.*'name' stands twice"):
        machine.load(path)


def test_a_cluster_like_another_takes_over_what_it_does_not_say(tmp_path):
    host = described(name="this-host", nodes=1)
    del host["links"]["between_nodes"]
    host["collectives"] = [
        {"op": "allreduce", "algorithm": "ring", "ranks": ranks, "bytes": 8, "seconds": 1} for ranks in (2, 4)
    ]
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "this-host.yaml").write_text(yaml.safe_dump(host))
    base = described(name="joined", like="this-host", nodes=9)
    joined = {
        key: base[key] for key in ("name", "description", "date", "hardware", "source", "like", "nodes")
    }
    joined["links"] = {"between_nodes": {"latency_s": figure(5e-5), "bandwidth_bytes_per_s": figure(1e8)}}
    (tmp_path / "joined.yaml").write_text(yaml.safe_dump(joined))
    cluster = machine.load("joined", tmp_path, tmp_path)
    assert (cluster.nodes, cluster.devices_per_node) == (9, 2)
    assert cluster.between_nodes == Link(5e-5, 1e8)
    assert cluster.inside_node == Link(1e-6, 1e10)
    # four ranks took one node there and take two here
    assert set(cluster.collectives) == {("allreduce", "ring", 2)}
    joined["like"] = "joined"
    (tmp_path / "joined.yaml").write_text(yaml.safe_dump(joined))
    with pytest.raises(UserError, match="circle"):
        machine.load("joined", tmp_path, tmp_path)


def test_the_clusters_of_this_project_are_valid(root, tmp_path):
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "this-host.yaml").write_text(yaml.safe_dump(described(name="this-host")))
    files = sorted((root / "config" / "clusters").glob("*.yaml"))
    assert {file.stem for file in files} >= {"stampede-k20", "gigabit-cpu"}
    for file in files:
        cluster = machine.load(file.stem, tmp_path)
        assert cluster.name == file.stem
        assert cluster.capacity >= 8


def paired(*devices, **changes):
    """Four nodes of two devices, or other numbers, with links of their own between the devices named."""
    values = described(**changes)
    link = values["links"].pop("inside_node")
    values["links"]["pairs"] = [
        {"devices": list(pair), **link, "bandwidth_bytes_per_s": figure(rate)} for *pair, rate in devices
    ]
    return values


def test_links_of_pairs_win_and_hold_on_all_nodes():
    values = paired((1, 0, 4e10), (1, 2, 7e9), nodes=2)
    toy = machine.build(values)
    own = Link(1e-6, 4e10, shared=False)
    assert toy.link(0, 1) == toy.link(1, 0) == toy.link(2, 3) == own  # the second node is as the first
    assert toy.link(1, 2) == Link(1e-6, 7e9, shared=False)  # between nodes, but with a link of their own
    assert toy.link(0, 2) == toy.between_nodes
    assert (toy.own_link(0, 1), toy.own_link(0, 2)) == (own, None)
    # collectives know one link inside a node: as slow as the slowest
    assert toy.inside_node == Link(1e-6, 7e9, shared=False)
    values["links"]["inside_node"] = described()["links"]["inside_node"]
    both = machine.build(values | {"devices_per_node": 3})
    assert both.link(0, 1) == both.link(3, 4) == own
    assert both.link(0, 2) == both.inside_node == Link(1e-6, 1e10)


def test_without_pairs_links_are_those_of_the_node_and_between():
    toy = machine.build(described())
    assert (toy.link(0, 1), toy.link(6, 7)) == (toy.inside_node, toy.inside_node)
    assert (toy.link(1, 2), toy.link(0, 7)) == (toy.between_nodes, toy.between_nodes)
    assert toy.link(0, 2, workers=16) == toy.inside_node  # four workers share a node's two devices
    assert toy.own_link(0, 1) is None
    one = described(nodes=1)
    del one["links"]["between_nodes"]
    assert machine.build(one).link(0, 3) == machine.build(one).inside_node


def test_a_missing_or_wrong_pair_is_told_in_one_line():
    with pytest.raises(UserError) as caught:
        machine.build(paired((0, 1, 1e9), (0, 2, 1e9), nodes=1, devices_per_node=3), "toy.yaml")
    assert str(caught.value) == (
        "toy.yaml: links.pairs: no link between devices 1 and 2; add it, or give links.inside_node for all others"
    )
    with pytest.raises(
        UserError, match=r"links\.pairs: devices 1 and 8; allowed: two different ones of 0 to 7"
    ):
        machine.build(paired((0, 1, 1e9), (1, 8, 1e9)))
    with pytest.raises(UserError, match=r"links\.pairs: devices 0 and 1 stand twice"):
        machine.build(paired((0, 1, 1e9), (1, 0, 1e9)))
    none = described()
    del none["links"]["inside_node"]
    with pytest.raises(UserError, match="links: needs one of inside_node, pairs"):
        machine.build(none)


def test_shares_by_kind_are_read():
    values = described()
    values["device"] |= {"efficiency_by_kind": {"conv": figure(0.7)}, "kernel_overhead_s": figure(5e-6)}
    device = machine.build(values).device
    assert (device.efficiency_by_kind, device.kernel_overhead_s) == ({"conv": 0.7}, 5e-6)
    values["device"]["efficiency_by_kind"] = {"pool": figure(0.7)}
    with pytest.raises(UserError, match="efficiency_by_kind"):
        machine.build(values)


def test_blocks_are_packed_at_a_rate_of_their_own_where_it_is_known():
    """Cut out and put in, each by that rate; else as a copy, which reads and writes."""
    n, values = 1e6, described(nodes=1)
    plain = machine.build(values)
    values["device"]["packing_bytes_per_s"] = figure(4e9)
    packing = machine.build(values)
    copied = 2 * n / plain.device.memory_bandwidth_bytes_per_s
    assert (plain.device.packing_s(n), packing.device.packing_s(n)) == pytest.approx((copied, 2 * n / 4e9))
    for op in ("scatter", "gather", "alltoall", "allreduce"):
        how = "ring" if op == "allreduce" else "direct"
        times = [one.communication_s(op, how, 2, n, n) for one in (plain, packing)]
        assert times[1] - times[0] == pytest.approx(0.0 if op == "allreduce" else 2 * n / 4e9 - copied)


SPARK = {
    "job_s": figure(0.1),
    "task_s": figure(0.01),
    "up_bytes_per_s": figure(1e8),
    "down_bytes_per_s": figure(2e8),
    "start_s": figure(7.0),
    "memory_bytes": figure(1e9),
}


def test_the_section_of_spark_is_read_and_inherited(tmp_path):
    cluster = machine.build(described(spark=SPARK))
    assert cluster.spark == machine.Spark(0.1, 0.01, 1e8, 2e8, 7.0, 1e9)
    assert machine.build(described()).spark is None
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(described(name="base", spark=SPARK)))
    (tmp_path / "like.yaml").write_text(yaml.safe_dump({"name": "like", "like": "base", "nodes": 9}))
    assert machine.load("like", tmp_path, tmp_path).spark == cluster.spark
    without = {key: value for key, value in SPARK.items() if key != "task_s"}
    with pytest.raises(UserError, match="toy: spark: 'task_s' is a required property"):
        machine.build(described(spark=without), "toy")


@pytest.mark.parametrize(
    "op, payload, sent, up, down",
    [
        ("gather", 800, 3200, 800, 3200),
        ("scatter_sum", 800, 800, 3200, 800),
        ("sum", 800, 3200, 3200, 3200),
        ("pairs", 200, 600, 600, 600),
    ],
)
def test_what_goes_through_the_driver_takes_a_job_and_its_bytes(op, payload, sent, up, down):
    """Four workers on two nodes of two: half of the bytes leave the driver's node."""
    assert machine.driver_bytes(op, 4, payload, sent) == (up, down)
    cluster = machine.build(described(spark=SPARK))
    expected = 0.1 + 4 * 0.01 + up / 1e8 + down / 2e8 + (up + down) / 2 / 1e9
    assert cluster.communication_s(op, "driver", 5, payload, sent, 4, workers=4) == pytest.approx(expected)
    with pytest.raises(UserError, match="toy: its file has no section spark"):
        machine.build(described()).communication_s(op, "driver", 5, payload, sent)


def test_the_bytes_through_the_driver_are_those_that_a_trace_tells():
    """From what runs book: the most that one hands over or is given, and the most that one sends."""
    from implementations.spark.program import Exchange
    from implementations.spark.traffic import through_driver

    for exchange in (
        Exchange("gather", (6, 8), 1, (3, 3, 2)),
        Exchange("scatter_sum", (6, 8), 1, (3, 3, 2)),
        Exchange("sum", (48,)),
        Exchange("pairs", pairs={(0, 1): (4, 2), (1, 0): (4, 1), (2, 1): (4, 2)}),
    ):
        form = through_driver(exchange, 3)
        payload, sent = max(*form.up, *form.down), max(*form.up, sum(form.down))
        assert machine.driver_bytes(exchange.kind, 3, payload, sent) == (sum(form.up), sum(form.down))


def test_all_workers_share_the_adapter_of_a_parameter_server():
    cluster = machine.build(described())
    assert cluster.communication_s("push", "server", 5, 1e6, 1e6) == pytest.approx(1e-5 + 4e6 / 1e9)
    assert cluster.communication_s("pull", "server", 3, 1e6, 2e6) == pytest.approx(1e-6 + 2e6 / 1e10)


def test_hosts_on_one_machine_share_its_cores():
    """However many nodes there are: three workers on two cores take 1.5 times as long, each on a node of its own."""
    hosts = machine.build(described(nodes=64, devices_per_node=1, shared_devices=2))
    assert (hosts.capacity, hosts.devices) == (64, 2)
    assert [hosts.oversubscription(workers) for workers in (1, 2, 3, 8)] == [1, 1, 1.5, 4]
    assert [hosts.busy_ranks(workers) for workers in (1, 2, 8)] == [1, 2, 2]
    assert hosts.nodes_used(8) == 8
    # all of it between nodes: a ring of two, 1e-5 s and 1 GB/s
    assert hosts.communication_s("allreduce", "ring", 2, 1e6) == pytest.approx(2 * (1e-5 + 5e5 / 1e9))


def test_a_collective_costs_what_the_step_after_it_takes_longer():
    """Linear between what was measured, from nothing for nothing, at the last rate beyond; ranks by the nearest."""
    rows = [{"ranks": 2, "bytes": 1e6, "seconds": 1e-4}, {"ranks": 2, "bytes": 3e6, "seconds": 5e-4}]
    plain = machine.build(described())
    toy = machine.build(described(refills=rows))
    for nbytes, refill_s in ((0, 0.0), (5e5, 5e-5), (1e6, 1e-4), (2e6, 3e-4), (3e6, 5e-4), (6e6, 1e-3)):
        assert toy.refill_s(2, nbytes) == pytest.approx(refill_s)
        for op, algorithm in (("allreduce", "ring"), ("mix", "exchange-1"), ("scatter", "direct")):
            question = (op, algorithm, 4, nbytes, nbytes)
            assert toy.communication_s(*question) == pytest.approx(
                plain.communication_s(*question) + refill_s
            )
    assert toy.communication_s("allreduce", "ring", 1, 1e6) == 0


def test_measured_points_ran_on_the_cluster_of_their_network(tmp_path):
    assert machine.of_network("loopback") == machine.of_network(None) == "this-host"
    assert machine.of_network("emulated-100mbit") == "emulated-100mbit"
    with pytest.raises(machine.NotCalibrated, match="calibrate --network emulated-100mbit"):
        machine.load("emulated-100mbit", tmp_path)
    (tmp_path / "calibration").mkdir()
    for name, values in (
        ("this-host", described(name="this-host")),
        ("emulated-100mbit", {"name": "emulated-100mbit", "like": "this-host", "nodes": 9, "shared_devices": 2,
                              "description": "hosts", "date": "2026-01-31", "hardware": "none", "source": "test"}),
    ):  # fmt: skip
        (tmp_path / "calibration" / f"{name}.yaml").write_text(yaml.safe_dump(values))
    hosts = machine.load("emulated-100mbit", tmp_path)
    assert (hosts.nodes, hosts.devices, hosts.is_here) == (9, 2, True)
    assert not machine.build(described()).is_here


def test_spark_tasks_are_joined_by_their_own_links():
    values = described()
    assert machine.build(values).between_tasks() == machine.build(values)
    values["links"]["tasks"] = {
        "latency_s": figure(1e-4),
        "bandwidth_bytes_per_s": figure(1e8),
        "per": "device",
    }
    table = [{"op": "allreduce", "algorithm": "ring", "ranks": 2, "bytes": 100, "seconds": 1.0}]
    toy = machine.build(values | {"collectives": table})
    assert toy.communication_s("allreduce", "ring", 2, 100) == 1.0
    assert toy.between_tasks().communication_s("allreduce", "ring", 2, 100) == pytest.approx(
        2 * (1e-4 + 50 / 1e8)
    )
