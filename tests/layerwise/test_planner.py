"""What is found against all strategies, one by one predicted; where times come from."""

import dataclasses
import itertools

import numpy as np
import pytest

from implementations.cluster import machine
from implementations.errors import UserError
from implementations.layerwise import algebra, blocktimes, costs, planner, strategies
from implementations.layerwise.blocktimes import MeasuredBlocks
from implementations.layerwise.graph import INPUT, Graph
from implementations.layerwise.roofline import Roofline
from implementations.layerwise.search import NoPlan
from tests.cluster.toys import described, with_links
from tests.layerwise.networks import chain, conv, flatten, image, linear, loss, norm, relu

SETTINGS = {"plan_for": "p100-nvlink", "plan_sync": "server", "objective": "additive", "degrees": "powers"}


def tiny():
    """Four to choose for: the convolution with its followers, the flattening, the linear layer, the loss."""
    x = image(3, 6, 6)
    a = conv("a", x, 4)
    n = norm("n", a)
    r = relu("r", n)
    f = flatten("f", r)
    w = linear("w", f, 6)
    return Graph("tiny", [x, a, n, r, f, w, loss(w)])


def vectors():
    x = dataclasses.replace(image(1, 1, 1), out=(40,))
    u = linear("u", x, 30)
    t = relu("t", u)
    w = linear("w", t, 7)
    return Graph("vectors", [x, u, t, w, loss(w)])


CLUSTERS = {
    "fast": with_links(1e-7, 1e11),
    "slow": with_links(1e-5, 1e7),
    "p100": machine.load("p100-nvlink"),
}


def every_strategy(graph, batch, devices, degrees):
    """All strategies in which each layer has a configuration of its own, or that of the layer it follows."""
    leaders = graph.leaders()
    choices = {
        name: algebra.configurations(graph[name], batch, devices, degrees)
        if graph[name].kind != INPUT
        else [(devices, *[1] * len(graph[name].out))]
        for name in dict.fromkeys(leaders.values())
    }
    for one in itertools.product(*choices.values()):
        chosen = dict(zip(choices, one))
        yield {name: chosen[leader] for name, leader in leaders.items()}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(
    ("graph", "devices", "degrees", "count"),
    [(tiny(), 2, "powers", 5 * 3 * 3 * 2), (vectors(), 3, "all", 5 * 5 * 3)],
    ids=["tiny", "vectors"],
)
def test_the_found_plan_is_the_best_of_all(graph, devices, degrees, count, cluster):
    cluster, batch = CLUSTERS[cluster], 2 * devices
    times = Roofline(cluster.device)
    everything = list(every_strategy(graph, batch, devices, degrees))
    assert len(everything) == count
    for sync in ("server", "allreduce"):
        predicted = [
            costs.predict(graph, one, batch, devices, cluster, times, sync=sync) for one in everything
        ]
        for objective in ("additive", "hidden"):
            found = planner.find(
                graph, batch, devices, cluster, times, sync=sync, objective=objective, degrees=degrees
            )
            values = [one.value(objective) for one in predicted]
            assert found.solution.finished
            assert found.solution.cost == pytest.approx(min(values), rel=1e-12)
            assert values[everything.index(found.strategy)] == pytest.approx(min(values), rel=1e-12)
            # and the tables cost every strategy as it is predicted
            choice = dict(found.solution.choice)
            for place in np.random.default_rng(0).integers(0, count, 10):
                choice = {
                    leader: found.tables.configs[leader].index(everything[place][leader]) for leader in choice
                }
                assert found.tables.problem.cost(choice) == pytest.approx(values[place], rel=1e-12)


def test_a_slow_network_and_a_fast_one_have_other_plans():
    graph = chain()
    plans = [
        planner.find(graph, 64, 4, CLUSTERS[name], Roofline(CLUSTERS[name].device)).strategy
        for name in CLUSTERS
    ]
    assert plans[0] != plans[1]
    used = [np.prod(plan["a"]) for plan in plans]
    assert used[0] == 4 and used[1] == 1  # nothing is worth a message where a message takes for ever


def test_without_idle_every_device_works():
    cluster = CLUSTERS["slow"]
    found = planner.find(tiny(), 4, 2, cluster, Roofline(cluster.device), idle=False)
    assert all(np.prod(config) == 2 for config in found.strategy.values())


def test_the_best_within_a_memory_limit_is_the_best_that_keeps_it():
    graph, cluster, batch = tiny(), CLUSTERS["slow"], 4
    times = Roofline(cluster.device)
    free = planner.find(graph, batch, 2, cluster, times)
    tables = free.tables
    everything = [
        {leader: tables.configs[leader].index(one[leader]) for leader in tables.configs}
        for one in every_strategy(graph, batch, 2, "powers")
    ]
    weighed = [(tables.problem.cost(choice), tables.memory.cost(choice)) for choice in everything]
    needs = sorted({weight for _, weight in weighed})
    assert len(needs) > 5
    seen = set()
    for limit in [needs[0], *needs[1::3], needs[-1], 2 * needs[-1]]:
        found = planner.find(graph, batch, 2, cluster, times, memory_limit=limit)
        assert found.solution.cost == pytest.approx(min(cost for cost, weight in weighed if weight <= limit))
        state = costs.predict(graph, found.strategy, batch, 2, cluster, times).state_bytes_max
        assert state <= found.solution.weight <= limit
        seen.add(found.solution.cost)
    assert len(seen) > 1 and free.solution.cost == min(seen)
    with pytest.raises(NoPlan) as caught:
        planner.find(graph, batch, 2, cluster, times, memory_limit=needs[0] - 1)
    assert isinstance(caught.value, UserError) and "\n" not in str(caught.value)
    assert f"memory limit of {needs[0] - 1:,.0f} bytes" in str(caught.value)
    assert f"needs {needs[0]:,.0f}" in str(caught.value)
    assert (caught.value.limit, caught.value.least) == (needs[0] - 1, needs[0])


def test_a_variant_is_its_rule_or_the_best_plan():
    graph = tiny()
    for name in ("single", "data", "model", "owt"):
        settings = SETTINGS | {"plan_for": "there is no such cluster"}  # which no rule asks
        assert planner.strategy(name, settings, graph, 4, 2) == strategies.fixed(name, graph, 4, 2)
    cluster = machine.load("p100-nvlink")
    for objective in ("additive", "hidden"):
        found = planner.find(
            graph,
            8,
            4,
            cluster,
            Roofline(cluster.device),
            sync="allreduce",
            objective=objective,
            degrees="all",
        )
        settings = SETTINGS | {"plan_sync": "allreduce", "objective": objective, "degrees": "all"}
        assert planner.strategy("layerwise", settings, graph, 8, 4) == found.strategy
    with pytest.raises(NoPlan):
        planner.strategy("layerwise", SETTINGS, graph, 8, 4, memory_limit=1.0)
    with pytest.raises(UserError, match="cluster 'nowhere'"):
        planner.strategy("layerwise", SETTINGS | {"plan_for": "nowhere"}, graph, 8, 4)


def test_needed_are_the_blocks_of_each_layer_under_each_configuration():
    graph = tiny()
    layers = len(graph) - 1  # the input is computed by nobody
    for name in ("single", "data", "model", "owt"):
        assert len(planner.needed(name, SETTINGS, graph, 4, 2)) == layers
    # conv, norm and relu have five each; flatten and linear three, the loss two
    assert len(planner.needed("layerwise", SETTINGS, graph, 4, 2)) == 3 * 5 + 2 * 3 + 2


@pytest.fixture
def here(monkeypatch):
    """This machine as a toy cluster; blocks take one millisecond forward and two backward, and nothing around them."""

    def measured(parts, busy, settings):
        seconds = [1e-3 * (block["kind"] != "handling") for part in parts for block in part]
        return [{"forward_s": s, "backward_s": 2 * s, "repeats": 3} for s in seconds]

    monkeypatch.setattr(blocktimes, "_measured", measured)
    monkeypatch.setattr(blocktimes.host, "cores", lambda: 8)
    return machine.build(described(name=machine.THIS_HOST))


def test_times_are_measured_ones_where_all_are_there(here, tmp_path):
    graph = tiny()
    fixed, wanted = (planner.needed(name, SETTINGS, graph, 4, 2) for name in ("data", "layerwise"))
    assert isinstance(planner.times_for(here, wanted, 2, tmp_path), Roofline)
    MeasuredBlocks(tmp_path / planner.BLOCKS, 2).measure(fixed, report=lambda line: None)
    times = planner.times_for(here, fixed, 2, tmp_path, scale=3.0)
    assert isinstance(times, MeasuredBlocks)
    spec = next(spec for spec in fixed if spec.layer.name == "a")
    shapes = (spec.layer, spec.source_shapes, spec.block_shape)
    assert times.seconds(*shapes, active=2, input_gradient=False, shared=True) == pytest.approx((1e-3, 2e-3))
    # other configurations have not been measured, nor these beside more processes
    fallback = planner.times_for(here, wanted, 2, tmp_path, scale=3.0)
    assert fallback == Roofline(here.device, 3.0, 2, 8)
    assert isinstance(planner.times_for(here, fixed, 3, tmp_path), Roofline)
    # another cluster has nothing of what was measured here
    other = dataclasses.replace(here, name="elsewhere")
    assert isinstance(planner.times_for(other, fixed, 2, tmp_path), Roofline)


def test_a_plan_of_measured_blocks_is_made_of_their_times(here, tmp_path):
    graph = tiny()
    wanted = planner.needed("layerwise", SETTINGS, graph, 4, 2)
    MeasuredBlocks(tmp_path / planner.BLOCKS, 2).measure(wanted, report=lambda line: None)
    times = planner.times_for(here, wanted, 2, tmp_path)
    alone = costs.predict(graph, strategies.fixed("single", graph, 4, 2), 4, 2, here, times)
    # five layers, and a flattening that costs nothing; the update in proportion to the parameters
    params = 4 * 28 + 2 * 4 + 6 * 145
    update = 1e-3 * params / blocktimes.UPDATE_PARAMS
    assert alone.compute_s == pytest.approx(5 * 3e-3 + update)


@pytest.mark.parametrize("cluster", ["p100", "slow"])
@pytest.mark.parametrize("rate", [3.0, 745.0, 1e6])
def test_one_device_trains_the_rate_that_is_asked_for(cluster, rate):
    cluster = CLUSTERS[cluster]
    for graph, batch in ((tiny(), 32), (vectors(), 5)):
        scale = planner.scale_to(graph, cluster, batch, rate)
        times = Roofline(cluster.device, scale)
        for name in ("single", "data", "model", "owt"):
            alone = strategies.fixed(name, graph, batch, 1)
            assert batch / costs.predict(graph, alone, batch, 1, cluster, times).step_s == pytest.approx(rate)
