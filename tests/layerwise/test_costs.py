"""Tables against direct counts, hand-made sums and the search; the roofline against its two bounds."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from implementations.cluster import machine
from implementations.cluster.collectives import Link, Placement, seconds
from implementations.errors import UserError
from implementations.layerwise import algebra, costs, search, strategies
from implementations.layerwise.costmodel import CostModel, block_spec, choices, specs
from implementations.layerwise.graph import INPUT, NORM
from implementations.layerwise.roofline import Roofline
from implementations.layerwise.transfers import Fabric
from tests.cluster.toys import described, figure, with_links
from tests.layerwise.networks import branched, chain, random_network, vgg16

A, B = 1e-5, 1e9


class Unit:
    """A block takes as long as it has elements, backward twice; the update as long as it has parameters."""

    moving = (0.0, 0.0)

    def seconds(self, layer, source_shapes, block_shape, **_):
        return float(math.prod(block_shape)), 2.0 * math.prod(block_shape)

    def update_s(self, params):
        return float(params)


class Free:
    """Computing costs nothing, nor does what is done around a message."""

    moving = (0.0, 0.0)

    def seconds(self, *_, **__):
        return 0.0, 0.0

    def update_s(self, params):
        return 0.0


def flat(devices=8, latency_s=A, bandwidth=B, per="device"):
    """One node whose devices have a port each."""
    link = {"latency_s": figure(latency_s), "bandwidth_bytes_per_s": figure(bandwidth), "per": per}
    return machine.build(described(nodes=1, devices_per_node=devices, links={"inside_node": link}))


def counted(graph, layer, place, producer, reader, batch, devices):
    """Elements that move, point by point of the algebra."""
    owned = algebra.blocks(graph.inputs(layer)[place], producer, batch)
    return algebra.moved_elements(
        algebra.moves(owned, algebra.reads(graph, layer, place, reader, batch)), devices
    )


@pytest.mark.parametrize("degrees", ["powers", "all"])
def test_moved_elements_of_all_pairs_are_those_of_each_pair(degrees):
    graph, devices, batch = branched(), 4, 6
    model = CostModel(graph, batch, devices, flat(), Unit())
    allowed = choices(graph, batch, devices, degrees)
    draws = np.random.default_rng(1)
    for layer in graph:
        for place, source in enumerate(graph.inputs(layer)):
            i, j = allowed[source.name], allowed[layer.name]
            found = model.elements(layer, place, i, j)
            pairs = list(itertools.product(range(len(i)), range(len(j))))
            for a, b in draws.permutation(pairs)[:40]:
                assert found[a, b].tolist() == counted(graph, layer, place, i[a], j[b], batch, devices)


@pytest.mark.parametrize("seed", range(8))
def test_moved_elements_of_random_networks(seed):
    draws = np.random.default_rng(seed)
    graph, devices, batch = random_network(draws), int(draws.integers(2, 7)), int(draws.integers(1, 9))
    model = CostModel(graph, batch, devices, flat(), Unit())
    allowed = choices(graph, batch, devices, "all")
    for layer in graph:
        for place, source in enumerate(graph.inputs(layer)):
            i, j = allowed[source.name], allowed[layer.name]
            found = model.elements(layer, place, i, j)
            for a, b in draws.integers(0, (len(i), len(j)), (10, 2)):
                assert found[a, b].tolist() == counted(graph, layer, place, i[a], j[b], batch, devices)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sync", ["server", "allreduce"])
def test_a_plan_of_the_tables_costs_what_it_is_predicted_to(seed, sync):
    """Sums over leaders and shared tables against a sum over layers of the plan that is run."""
    draws = np.random.default_rng(seed)
    graph, devices, batch = branched(), 4, 5
    cluster = machine.build(described(nodes=2))
    for objective in ("additive", "hidden"):
        made = costs.tables(
            graph, batch, devices, cluster, Roofline(cluster.device), sync=sync, objective=objective
        )
        choice = {name: int(draws.integers(len(allowed))) for name, allowed in made.configs.items()}
        plan = costs.predict(
            graph, made.strategy(choice), batch, devices, cluster, Roofline(cluster.device), sync=sync
        )
        assert made.problem.cost(choice) == pytest.approx(plan.value(objective), rel=1e-12)
        assert made.memory.cost(choice) >= plan.state_bytes_max
        assert plan.additive_s == pytest.approx(plan.compute_s + plan.transfer_s + plan.sync_s)
        assert plan.hidden_s <= plan.additive_s


def test_nodes_are_leaders_and_edges_are_reads_between_their_groups():
    graph = branched()
    made = costs.tables(graph, 4, 2, flat(), Unit())
    assert set(made.configs) == {layer.name for layer in graph} - {"n", "r", "t"}
    ends = [(i, j) for i, j, _ in made.problem.edges]
    # b, c, s and p read the relu of a's group; s reads it and c
    assert sorted(ends) == sorted(
        [("input", "a"), ("a", "b"), ("a", "c"), ("a", "s"), ("c", "s"), ("a", "p"), ("b", "j"), ("s", "j"), ("p", "j"),
         ("j", "q"), ("q", "f"), ("f", "w"), ("w", "v"), ("v", "loss")]
    )  # fmt: skip
    assert made.configs["input"] == [(2, 1, 1, 1)]
    assert made.strategy(dict.fromkeys(made.configs, 0))["r"] == made.configs["a"][0]


def test_a_node_costs_its_largest_block_and_the_update_of_its_shard():
    graph = chain()
    made = costs.tables(graph, 6, 4, flat(latency_s=0, bandwidth=1e30), Unit())
    for layer, config, elements, params in (
        ("w", (1, 1), 6 * 20, 20 * 193),
        ("w", (4, 1), 2 * 20, 20 * 193),
        ("w", (1, 4), 6 * 5, 5 * 193),
        ("a", (1, 1, 2, 2), 2 * 6 * 8 * 4 * 4, 8 * 28),  # and its relu's, as large
    ):
        cost = made.problem.nodes[layer][made.configs[layer].index(config)]
        assert cost == pytest.approx(3 * elements + params)


def test_transfers_go_forward_and_back_but_not_to_the_input():
    graph = chain()
    model = CostModel(graph, 4, 2, flat(), Free())
    moving, _ = model.edge(graph["w"], 0, [(2, 1)], [(1, 1), (2, 1), (1, 2)])
    half = 4 * 2 * 192  # bytes of two samples' features
    one_way = [A + half / B, 0.0, A + half / B]
    assert moving[0].tolist() == pytest.approx([2 * s for s in one_way])
    moving, held = model.edge(graph["a"], 0, [(2, 1, 1, 1)], [(1, 1, 1, 1)])
    assert moving[0, 0] == pytest.approx(A + 4 * 2 * 192 / B) and held[0, 0] == 4 * 2 * 192


def test_halo_of_a_convolution_by_hand():
    graph = chain()
    model = CostModel(graph, 2, 2, flat(), Free())
    # b reads maps of 4x4 with 8 channels in windows of three: one row of the other half, of each of two samples
    found = model.elements(graph["b"], 0, [(1, 1, 2, 1)], [(1, 1, 2, 1)])
    assert found[0, 0].tolist() == [[0, 2 * 8 * 4], [2 * 8 * 4, 0]]


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("nbytes", [64.0, 1e5, 1e8])
def test_all_reduce_of_one_group_is_that_of_the_collectives_model(size, nbytes):
    """Consecutive devices on one node, or one on each of several."""
    for per_node in (size, 1):
        values = described(nodes=size // per_node, devices_per_node=per_node)
        cluster = machine.build(values)
        fabric = Fabric(cluster, size)
        places = Placement(size, per_node, cluster.inside_node, cluster.between_nodes)
        ring = seconds("allreduce", "ring", places, nbytes)
        best = seconds("allreduce", "library", places, nbytes)
        found = fabric.allreduce_s([range(size)], [nbytes])
        assert found == pytest.approx(best if size & (size - 1) == 0 else ring)


def test_measured_all_reduces_win_on_one_node():
    rows = [
        {"op": "allreduce", "algorithm": "library", "ranks": 2, "bytes": b, "seconds": b} for b in (8, 80)
    ]
    fabric = Fabric(machine.build(described(collectives=rows)), 4)
    assert fabric.allreduce_s([(0, 1), (2, 3)], [80, 80]) == pytest.approx(80)
    assert fabric.allreduce_s([(0, 2), (1, 3)], [80, 80]) < 1  # over nodes: latency and bandwidth


def test_groups_over_nodes_share_the_adapter():
    cluster = machine.build(described())  # nodes of two; 1e9 bytes a second between them, 1e-5 s
    n = 1e6
    alone = Fabric(cluster, 4).allreduce_s([(0, 2)], [n])
    both = Fabric(cluster, 4).allreduce_s([(0, 2), (1, 3)], [n, n])
    assert alone == pytest.approx(1e-5 + n / 1e9)  # two swap what they have
    assert both == pytest.approx(1e-5 + 2 * n / 1e9)


def test_a_parameter_server_sums_in_the_node_and_then_over_nodes():
    cluster = machine.build(described())
    n = 1e6
    found = Fabric(cluster, 8).server_s([range(8)], [n])
    near, far = 1e-6 + n / 1e10, 3 * (1e-5 + n / 1e9)
    assert found == pytest.approx(2 * (near + far))
    # replicas of two shards: each has a server of its own, on different nodes; sends and gets n
    assert Fabric(cluster, 4).server_s([(0, 1), (2, 3)], [n, n]) == pytest.approx(2 * near)


def test_wires_work_at_once_and_ports_in_turn():
    n = 1e6
    values = described(nodes=1, devices_per_node=3)
    link = values["links"].pop("inside_node")
    del values["links"]["between_nodes"]
    wired = {"pairs": [{"devices": list(pair), **link} for pair in itertools.combinations(range(3), 2)]}
    gather = np.array([[0, 0, 0], [n, 0, 0], [n, 0, 0]])
    ported = Fabric(machine.build({**values, "links": {"inside_node": link}}), 3)
    own = Fabric(machine.build({**values, "links": wired}), 3)
    assert own.exchange_s(gather) == pytest.approx(1e-6 + n / 1e10)
    assert ported.exchange_s(gather) == pytest.approx(2 * (1e-6 + n / 1e10))
    assert ported.device_s(gather).tolist() == pytest.approx([2e-6 + 2e-4, 1e-6 + 1e-4, 1e-6 + 1e-4])


def test_cutting_and_joining_blocks_is_charged_beside_the_links():
    """Once for each device that takes part, and by what goes through it; a step counts it, and so does the search."""

    class Moving(Free):
        moving = (1e-3, 1e-6)

    graph, cluster = chain(), flat(3)
    free, moving = (CostModel(graph, 4, 3, cluster, times()) for times in (Free, Moving))
    n = 1e6
    gather = np.array([[0, n, 0], [0, 0, 0], [0, 0, 0]])
    extra = moving.transfer_s(gather) - free.transfer_s(gather)
    assert extra.tolist() == pytest.approx([1e-3 + 1e-6 * n, 1e-3 + 1e-6 * n, 0.0])
    for find in (costs.predict, lambda *given: costs.predict(*given, background=True)):
        plan = strategies.fixed("model", graph, 4, 2)
        times = [find(graph, plan, 4, 2, cluster, kind()).step_s for kind in (Free, Moving)]
        assert times[1] > times[0] + 1e-3
    tables = [costs.tables(graph, 4, 2, cluster, kind()).problem for kind in (Free, Moving)]
    for (*_, plain), (*_, slower) in zip(tables[0].edges, tables[1].edges):
        assert ((slower >= plain + 1e-3) == (plain > 0)).all()


def test_copies_to_host_memory_are_charged_both_ways():
    n = 1e6
    values = described(nodes=1)
    values["device"]["host_copy"] = {"latency_s": figure(1e-5), "bandwidth_bytes_per_s": figure(5e9)}
    fabric, plain = Fabric(machine.build(values), 2), Fabric(machine.build(described(nodes=1)), 2)
    swap = np.array([[0, n], [n, 0]])
    assert fabric.exchange_s(swap) - plain.exchange_s(swap) == pytest.approx(2 * (1e-5 + n / 5e9))
    assert fabric.allreduce_s([(0, 1)], [n]) - plain.allreduce_s([(0, 1)], [n]) == pytest.approx(
        2 * (1e-5 + n / 5e9)
    )


def test_parameters_cost_what_their_replicas_exchange():
    graph, cluster = chain(), flat()
    model = CostModel(graph, 8, 4, cluster, Free(), "allreduce")
    params = 20 * 193
    whole = model.layer(graph["w"], (4, 1)).sync_s
    assert whole == pytest.approx(Fabric(cluster, 4).allreduce_s([range(4)], [4 * params]))
    halves = model.layer(graph["w"], (2, 2)).sync_s
    assert halves == pytest.approx(Fabric(cluster, 4).allreduce_s([(0, 2), (1, 3)], [2 * params] * 2))
    assert model.layer(graph["w"], (1, 4)).sync_s == 0
    # as many replicas by height as by sample
    assert model.layer(graph["a"], (1, 1, 4, 1)).sync_s == model.layer(graph["a"], (4, 1, 1, 1)).sync_s > 0


def test_a_normalisation_exchanges_sums_for_each_channel_both_ways():
    graph, cluster = branched(), flat()
    for sync in ("server", "allreduce"):
        cost = CostModel(graph, 8, 4, cluster, Free(), sync).layer(graph["n"], (2, 1, 2, 1))
        assert cost.sync_s == 0
        fabric = Fabric(cluster, 4)
        # mean, then variance; two sums backward
        assert cost.statistics_forward_s == pytest.approx(2 * fabric.allreduce_s([range(4)], [6 * 4]))
        assert cost.statistics_backward_s == pytest.approx(fabric.allreduce_s([range(4)], [2 * 6 * 4]))
    assert CostModel(graph, 8, 2, cluster, Free()).layer(graph["n"], (1, 2, 1, 1)).statistics_s == 0


def test_hidden_takes_the_longer_of_backward_and_synchronisation():
    cost = CostModel(chain(), 8, 4, flat(), Unit()).layer(chain()["b"], (4, 1, 1, 1))
    assert cost.value("additive") == pytest.approx(
        cost.forward_s + cost.backward_s + cost.update_s + cost.sync_s
    )
    assert cost.value("hidden") == cost.forward_s + cost.backward_s + cost.update_s
    slow = replace(cost, sync_s=2 * cost.backward_s)
    assert slow.value("hidden") == pytest.approx(cost.value("hidden") + cost.backward_s)


def test_the_largest_block_is_as_large_as_any_and_reads_as_much():
    graph, batch = branched(), 5
    for layer in graph:
        if layer.kind == INPUT:
            continue
        for config in algebra.configurations(layer, batch, 6, "all"):
            spec = block_spec(graph, layer, config, batch)
            blocks = algebra.blocks(layer, config, batch)
            assert math.prod(spec.block_shape) == max(map(algebra.volume, blocks))
            if layer.window is not None:
                like = [b for b in blocks if algebra.shape(b) == spec.block_shape]
                read = [algebra.volume(algebra.input_box(graph, layer, 0, b)) for b in like]
                assert math.prod(spec.source_shapes[0]) == max(read)
            assert spec.active == math.prod(config)


def test_few_blocks_are_different():
    graph = vgg16()
    wanted = specs(graph, choices(graph, 64, 2), 64)
    assert len(wanted) == sum(len(choices(graph, 64, 2)[x.name]) for x in graph if x.kind != INPUT)
    assert {spec.active for spec in wanted} == {1, 2}
    assert not next(spec for spec in wanted if spec.layer.name == "conv0.0").input_gradient


def test_the_found_plan_is_no_worse_than_the_fixed_ones_and_equals_brute_force():
    graph, batch, devices = chain(), 8, 2
    cluster = with_links(1e-6, 1e8)
    times = Roofline(cluster.device)
    for objective in ("additive", "hidden"):
        made = costs.tables(graph, batch, devices, cluster, times, objective=objective)
        solution = search.solve(made.problem)
        assert solution.cost == pytest.approx(search.brute_force(made.problem).cost)
        for name in ("single", "data", "model", "owt"):
            fixed = strategies.fixed(name, graph, batch, devices)
            value = costs.predict(graph, fixed, batch, devices, cluster, times).value(objective)
            assert solution.cost <= value * (1 + 1e-12)


def test_layers_of_equal_sizes_share_their_times():
    calls = []

    class Counting(Unit):
        def seconds(self, layer, source_shapes, block_shape, **_):
            calls.append(layer.name)
            return 1.0, 2.0

    costs.tables(vgg16(), 64, 2, flat(), Counting())
    assert "conv2.1" in calls and "conv2.2" not in calls


def test_times_follow_the_roofline():
    device = machine.build(described()).device  # 5e11 flop/s, 1e11 bytes/s
    graph = vgg16()
    deep, shallow = graph["conv2.1"], graph["fc1"]
    roof = Roofline(device)
    spec = block_spec(graph, deep, (1, 1, 1, 1), 4)
    forward, backward = roof.seconds(deep, spec.source_shapes, spec.block_shape)
    assert forward == pytest.approx(4 * deep.flops / 5e11) and backward == pytest.approx(2 * forward)
    assert roof.arithmetic_bound(deep, spec.source_shapes, spec.block_shape)
    # one sample of a linear layer reads all its weights for two operations each
    forward, backward = roof.seconds(shallow, [(1, 25088)], (1, 4096))
    assert forward == pytest.approx(4 * (25088 + 4096 + shallow.params) / 1e11)
    assert not roof.arithmetic_bound(shallow, [(1, 25088)], (1, 4096))
    first = roof.seconds(deep, spec.source_shapes, spec.block_shape, input_gradient=False)
    assert first[1] == pytest.approx(first[0])
    assert roof.update_s(1_000_000) == pytest.approx(5 * 4e6 / 1e11)
    twice = Roofline(device, 2.0).seconds(deep, spec.source_shapes, spec.block_shape)
    assert twice[0] == pytest.approx(2 * 4 * deep.flops / 5e11)


def test_shares_by_kind_and_starts_of_operations_count():
    values = described()
    values["device"] |= {"efficiency_by_kind": {"conv": figure(0.25)}, "kernel_overhead_s": figure(1e-3)}
    roof, graph = Roofline(machine.build(values).device), vgg16()
    conv, pool = graph["conv2.1"], graph["pool0"]
    shape = (4, *conv.out)
    assert roof.seconds(conv, [shape], shape)[0] == pytest.approx(4 * conv.flops / 2.5e11 + 1e-3)
    read, written = 64 * 224 * 224, 64 * 112 * 112
    forward, backward = roof.seconds(pool, [(1, 64, 224, 224)], (1, 64, 112, 112))
    assert forward == pytest.approx(4 * (read + written) / 1e11 + 1e-3)
    assert backward == pytest.approx(4 * (2 * read + written) / 1e11 + 1e-3)


def test_rates_by_shape_are_those_of_the_product_that_a_convolution_is():
    values = described()
    values["device"]["flops_by_shape"] = [
        {"batch": b, "width": w, "flops_per_s": 1e6 * b * w} for b in (16, 65536) for w in (16, 4096)
    ]
    roof, graph = Roofline(machine.build(values).device), chain()
    # b: 12 channels out of 8 x 3 x 3, in 16 places of 4 samples: (64 x 72) by (72 x 12)
    rate = 1e6 * 64 * math.sqrt(72 * 12)
    forward, _ = roof.seconds(graph["b"], [(4, 8, 4, 4)], (4, 12, 4, 4))
    assert forward == pytest.approx(2 * 64 * 72 * 12 / rate)


def test_wrong_words_are_refused():
    with pytest.raises(UserError, match=r"objective 'least': allowed: additive \| hidden"):
        costs.tables(chain(), 4, 2, flat(), Unit(), objective="least")
    with pytest.raises(UserError, match=r"sync 'ring': allowed: server \| allreduce"):
        costs.tables(chain(), 4, 2, flat(), Unit(), sync="ring")


def test_memory_by_hand():
    graph = chain()
    made = costs.tables(graph, 4, 2, flat(), Unit())
    held = dict(zip(made.configs["w"], made.memory.nodes["w"]))
    params = 20 * 193
    assert held[(1, 1)] == 4 * (3 * params + 4 * 20)
    assert held[(2, 1)] == 4 * (3 * params + 2 * 20)
    assert held[(1, 2)] == 4 * (3 * params / 2 + 4 * 10)
    relu_and_conv = dict(zip(made.configs["a"], made.memory.nodes["a"]))[(1, 1, 1, 1)]
    assert relu_and_conv == 4 * (3 * 8 * 28 + 2 * 4 * 8 * 64)
    gathered = {(i, j): table for i, j, table in made.memory.edges}["f", "w"]
    producer, reader = made.configs["f"].index((2, 1)), made.configs["w"].index((1, 2))
    assert gathered[producer, reader] == 4 * 2 * 192
    assert NORM not in {layer.kind for layer in graph}


def test_link_is_a_plain_value():
    assert flat().link(0, 1) == Link(A, B, shared=False)
