"""The search: its optimum against all plans one by one, its eliminations against what is counted by hand."""

import itertools

import numpy as np
import pytest

from implementations.errors import UserError
from implementations.layerwise import search, search_elimination
from implementations.layerwise.search import Problem
from implementations.layerwise.searchtimes import search_times


def table(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.random(shape)


def problem(rng: np.random.Generator, names: str, edges: list[str], most: int = 3) -> Problem:
    """One node a letter, with 1 to ``most`` choices; an edge is two letters."""
    sizes = {name: int(rng.integers(1, most + 1)) for name in names}
    return Problem(
        {name: table(rng, size) for name, size in sizes.items()},
        [(i, j, table(rng, sizes[i], sizes[j])) for i, j in edges],
    )


def random_problem(seed: int) -> Problem:
    """Any acyclic graph: sparse or dense, with parallel edges, nodes apart from the others, and ends anywhere."""
    rng = np.random.default_rng(seed)
    names = "abcdefgh"[: rng.integers(1, 9)]
    pairs = list(itertools.combinations(names, 2))
    share = rng.choice([0.2, 0.4, 0.8])
    edges = ["".join(pair) for pair in pairs for _ in range(rng.binomial(2, share / 1.5))]
    return problem(rng, names, edges)


def series_parallel(seed: int) -> Problem:
    """A graph that the two rules reduce to its two ends: edges put in series or doubled at random."""
    rng = np.random.default_rng(seed)
    edges, names = ["az"], "a"
    for name in "bcdefg":
        k = rng.integers(len(edges))
        i, j = edges[k]
        edges += [i + name, name + j]
        if rng.random() < 0.5:
            edges.pop(k)
        names += name
    order = topological(names + "z", edges)
    return problem(rng, order, edges)


def topological(names: str, edges: list[str]) -> str:
    found = ""
    while len(found) < len(names):
        found += next(
            name for name in names if name not in found and all(i in found for i, j in edges if j == name)
        )
    return found


def cheapest(given: Problem, weights: Problem | None = None, limit: float = np.inf) -> float | None:
    """The least cost of all plans within a limit, from the definition."""
    found = []
    for indices in itertools.product(*map(range, given.sizes().values())):
        choice = dict(zip(given.nodes, indices))
        if weights is None or cost(weights, choice) <= limit:
            found.append(cost(given, choice))
    return min(found, default=None)


def cost(given: Problem, choice: dict[str, int]) -> float:
    total = sum(costs[choice[name]] for name, costs in given.nodes.items())
    return total + sum(one[choice[i], choice[j]] for i, j, one in given.edges)


@pytest.mark.parametrize("seed", range(200))
def test_optimum_of_random_graphs_is_that_of_all_plans(seed):
    given = series_parallel(seed) if seed % 2 else random_problem(seed)
    found = search.solve(given)
    assert found.finished and list(found.choice) == list(given.nodes)
    assert found.cost == pytest.approx(cheapest(given), rel=1e-12)
    assert found.cost == pytest.approx(cost(given, found.choice), rel=1e-12)
    eliminated = found.node_eliminations
    assert found.remaining == len(given.nodes) - eliminated
    if seed % 2:
        assert found.remaining_nodes == ("a", "z")
        assert (
            found.edge_eliminations == len(given.edges) - eliminated - 1
        )  # each elimination leaves one edge less


@pytest.mark.parametrize("seed", range(40))
def test_exhaustive_searches_find_the_optimum(seed):
    given = random_problem(seed)
    best = cheapest(given)
    plain = search.brute_force(given)
    assert plain.visited == plain.plans == np.prod(list(given.sizes().values()))
    for found in (
        plain,
        search.depth_first(given, 10.0),
        search.depth_first(given, 10.0, bound=True),
        search.branch_and_bound(given, 10.0),
    ):
        assert found.finished and found.cost == pytest.approx(best, rel=1e-12)
        assert found.cost == pytest.approx(cost(given, found.choice), rel=1e-12)
        assert found.visited <= found.plans


@pytest.mark.parametrize("choices", [2, 7])
def test_long_searches_agree_beyond_the_block_looked_at_at_once(choices):
    rng = np.random.default_rng(3)
    names = "abcdefghijklmnopq" if choices == 2 else "abcdefg"
    edges = ["".join(pair) for pair in itertools.pairwise(names)] + ["ac", "bf", names[0] + names[-1]]
    given = Problem(
        {name: table(rng, choices) for name in names},
        [(i, j, table(rng, choices, choices)) for i, j in edges],
    )
    found = search.solve(given)
    assert found.remaining > 2
    plain = search.depth_first(given, 30.0)
    bounded = search.depth_first(given, 30.0, bound=True)
    best_first = search.branch_and_bound(given, 30.0)
    assert plain.choice == bounded.choice == best_first.choice == found.choice
    assert plain.visited == choices ** len(names)
    assert best_first.visited < bounded.visited <= plain.visited


def test_inception_module_takes_the_four_passes_of_figure_6():
    rng = np.random.default_rng(0)
    # Four branches from i to the concatenation o: 1x1; 1x1 - 1x3 and 3x1 side by side; pool - 1x1; 1x1 - 3x3 - 3x3.
    edges = ["ia", "ao", "ib", "bc", "bd", "co", "do", "ie", "ef", "fo", "ig", "gh", "hk", "ko"]
    found = search.solve(problem(rng, "iabcdefghko", edges, most=4))
    # First a, c, d, e, f, g, h, k; then 2 of 3 edges i-o and 1 of 2 edges b-o; then b; then the last pair i-o.
    assert found.node_eliminations == 8 + 1
    assert found.edge_eliminations == 2 + 1 + 1
    assert found.passes == 4
    assert found.remaining == 2


def test_chains_and_residual_blocks_leave_two_nodes():
    rng = np.random.default_rng(0)
    chain = search.solve(problem(rng, "abcdef", ["ab", "bc", "cd", "de", "ef"]))
    assert (chain.node_eliminations, chain.edge_eliminations, chain.passes, chain.remaining) == (4, 0, 1, 2)
    residual = search.solve(problem(rng, "abcdefg", ["ab", "bc", "cd", "bd", "de", "ef", "df", "fg"]))
    assert (residual.node_eliminations, residual.edge_eliminations, residual.remaining) == (5, 2, 2)


def test_equal_costs_take_the_first_choice():
    given = Problem(
        {name: np.ones(3) for name in "abcd"},
        [(i, j, np.zeros((3, 3))) for i, j in ("ab", "bc", "cd", "ad")],
    )
    for found in (search.solve(given), search.brute_force(given), search.branch_and_bound(given, 1.0)):
        assert found.choice == dict.fromkeys("abcd", 0)


def test_min_plus_product_in_blocks_is_the_whole_one(monkeypatch):
    rng = np.random.default_rng(0)
    left, right = rng.random((5, 13)), rng.random((13, 4))
    whole = (left[:, :, None] + right[None]).min(axis=1)
    for block in (1, 45, 10**6):
        monkeypatch.setattr(search_elimination, "BLOCK", block)
        np.testing.assert_array_equal(search_elimination.min_plus(left, right), whole)


def test_inception_size_is_solved_fast():
    rng = np.random.default_rng(0)
    names = [f"layer{k}" for k in range(102)]
    shared = rng.random((70, 70))
    given = Problem(
        {name: rng.random(70) for name in names}, [(i, j, shared) for i, j in itertools.pairwise(names)]
    )
    assert min(search.solve(given).seconds for _ in range(3)) < 0.4  # the paper's time; ours is a tenth of it


def test_too_entangled_a_graph_is_said_in_one_line():
    nodes = {f"n{k}": np.zeros(70) for k in range(8)}
    edges = [(i, j, np.zeros((70, 70))) for i, j in itertools.combinations(nodes, 2)]
    with pytest.raises(UserError, match="8 layers are left") as told:
        search.solve(Problem(nodes, edges))
    assert "\n" not in str(told.value)


def test_depth_first_is_cut_off_and_says_what_it_saw():
    rng = np.random.default_rng(0)
    names = "abcdefghijkl"
    edges = [(i, j, table(rng, 15, 15)) for i, j in itertools.pairwise(names)]
    given = Problem({name: table(rng, 15) for name in names}, edges)
    found = search.depth_first(given, 0.05)
    assert not found.finished and found.seconds < 1.0
    assert 0 < found.visited < found.plans == 15**12
    assert found.cost >= search.solve(given).cost


def test_too_many_plans_for_brute_force():
    with pytest.raises(UserError, match=r"10\^369\.0 plans are too many"):
        search.brute_force(Problem({f"n{k}": np.zeros(70) for k in range(200)}, []))


@pytest.mark.parametrize("seed", range(120))
def test_cheapest_plan_within_a_limit_is_that_of_all_plans(seed):
    rng = np.random.default_rng(seed)
    given = series_parallel(seed) if seed % 2 else random_problem(seed)
    # Bytes go against time, as they do where a split in more parts is faster but copies more.
    weights = Problem(
        {name: np.round(100 * (1.2 - costs) * rng.random()) for name, costs in given.nodes.items()},
        [(i, j, np.round(100 * (1 - one))) for i, j, one in given.edges[::2]],
    )
    least, most = cheapest(weights), cost(weights, search.solve(given).choice)
    for share in (0.0, 0.3, 0.7, 1.0):
        limit = least + share * max(0, most - least)
        found = search.solve_within(given, weights, limit)
        assert found.finished and found.gap == 0
        assert found.weight == cost(weights, found.choice) <= limit
        assert found.cost == pytest.approx(cheapest(given, weights, limit), rel=1e-8)
    with pytest.raises(search.NoPlan) as told:
        search.solve_within(given, weights, least - 1)
    assert told.value.least == least and f"{least:,.0f}" in str(told.value)


def test_a_limit_that_is_not_reached_changes_nothing():
    given = random_problem(5)
    weights = Problem({name: np.ones(size) for name, size in given.sizes().items()}, [])
    found = search.solve_within(given, weights, len(given.nodes))
    assert found.choice == search.solve(given).choice and found.weight == len(given.nodes)


def test_a_limit_search_out_of_time_bounds_its_gap():
    rng = np.random.default_rng(1)
    names = [f"n{k}" for k in range(25)]
    seconds = {name: 1 + rng.random(4) for name in names}
    given = Problem(seconds, [])
    weights = Problem({name: 1000 * (3 - seconds[name]) + rng.random(4) for name in names}, [])
    least, most = search.solve(weights).cost, weights.cost(search.solve(given).choice)
    limit = (least + most) / 2
    found = search.solve_within(given, weights, limit, time_limit_s=0.0)
    assert not found.finished and found.gap > 0 and found.weight <= limit
    longer = search.solve_within(given, weights, limit, time_limit_s=1.0)
    assert found.cost / (1 + found.gap) <= longer.cost <= found.cost


@pytest.mark.parametrize(
    ("nodes", "edges", "said"),
    [
        ({"a": np.zeros(0)}, [], "one for each choice"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, [("a", "b", np.zeros((3, 2)))], "one row a choice"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, [("b", "a", np.zeros((3, 2)))], "before the other"),
        ({"a": np.array([np.nan])}, [], "finite"),
    ],
)
def test_what_is_no_problem_is_refused(nodes, edges, said):
    with pytest.raises(ValueError, match=said):
        Problem(nodes, edges)


def test_rows_of_search_times_agree_on_the_cost():
    given = series_parallel(7)
    rows = search_times(given, ["elimination", "depth_first", "branch_and_bound"], 10.0)
    assert [row["algorithm"] for row in rows] == ["elimination", "depth_first", "branch_and_bound"]
    assert all(row["finished"] and row["cost_s"] == pytest.approx(cheapest(given)) for row in rows)
    assert rows[0]["remaining"] == 2 and rows[1]["visited"] == pytest.approx(10 ** rows[1]["plans_log10"])
    with pytest.raises(UserError, match="guessing"):
        search_times(given, ["guessing"], 1.0)
