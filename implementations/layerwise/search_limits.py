"""The cheapest plan that keeps a limit on memory, which the paper's search does not know.

A multiplier prices a byte; the cheapest plan at a price is found by elimination, and bounds every plan that keeps the
limit from below (Lagrangian relaxation). What lies between that bound and the best plan seen is then searched, in the
order of undo: there the tables of the eliminations give the exact least cost of completing a beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np

from implementations.layerwise.search_elimination import Reduction, solve
from implementations.layerwise.search_problem import NoPlan, Problem, Solution

ALIKE = 1e-9  # plans whose costs differ by a smaller share count as equal


def solve_within(problem: Problem, weights: Problem, limit: float, time_limit_s: float = 5.0) -> Solution:
    """The cheapest plan of which the weights add up to ``limit`` at most.

    ``weights`` has the same nodes; bytes on the fullest device. Device 0 has a block of every layer, so that the sum
    over the layers is what it needs. Where the time ends before the search does, ``finished`` is False and ``gap`` says
    how far above an optimum the plan may be.

    Raises NoPlan if no plan keeps the limit.
    """
    began = perf_counter()
    if problem.sizes() != weights.sizes():
        raise ValueError("costs and weights need the same nodes and choices")
    free = solve(problem)
    if weights.cost(free.choice) <= limit:
        return replace(free, weight=weights.cost(free.choice), seconds=perf_counter() - began)
    least = solve(weights)
    if least.cost > limit:
        raise NoPlan(limit, least.cost)
    costs, weights = _alike(problem, weights)
    choice, price, bound = _priced(costs, weights, limit, free.choice, least.choice)
    closing = _Closing(costs, weights, limit, price, choice)
    finished = closing.run(began + time_limit_s)
    choice = {name: closing.best[name] for name in problem.nodes}
    cost = problem.cost(choice)
    return replace(
        free,
        choice=choice,
        cost=cost,
        finished=finished,
        weight=weights.cost(choice),
        gap=0.0 if finished else max(0.0, cost / bound - 1) if bound > 0 else np.inf,
        visited=closing.visited,
        seconds=perf_counter() - began,
    )


def _alike(first: Problem, second: Problem) -> tuple[Problem, Problem]:
    """The two with one edge for each pair of nodes that either has, in one order."""
    pairs = list(dict.fromkeys((i, j) for problem in (first, second) for i, j, _ in problem.edges))
    sizes = first.sizes()
    found = []
    for problem in (first, second):
        tables = dict.fromkeys(pairs)
        for i, j, table in problem.edges:
            tables[i, j] = table if tables[i, j] is None else tables[i, j] + table
        nothing = {pair: np.zeros((sizes[pair[0]], sizes[pair[1]])) for pair in pairs if tables[pair] is None}
        edges = [(i, j, nothing.get((i, j), table)) for (i, j), table in tables.items()]
        found.append(Problem({name: problem.nodes[name] for name in sizes}, edges))
    return found[0], found[1]


def _sum(costs: Problem, weights: Problem, price: float) -> Problem:
    """Costs plus the price of the weights; both from ``_alike``."""
    return Problem(
        {name: own + price * weights.nodes[name] for name, own in costs.nodes.items()},
        [
            (i, j, own + price * other)
            for (i, j, own), (*_, other) in zip(costs.edges, weights.edges, strict=True)
        ],
    )


def _priced(
    costs: Problem, weights: Problem, limit: float, over: dict[str, int], within: dict[str, int]
) -> tuple[dict[str, int], float, float]:
    """(a plan within the limit, the price with the highest bound, that bound).

    The cost of a plan at a price is a line over the price. The next price to try is where the lines of the best plan
    over the limit and of the best one within it cross; once no plan lies below the crossing, the bound is highest.
    """
    best, price = within, 0.0
    bound = costs.cost(over)
    while (spread := weights.cost(over) - weights.cost(within)) > 0:
        tried = (costs.cost(within) - costs.cost(over)) / spread
        choice = Reduction(_sum(costs, weights, tried)).choice()
        cost, weight = costs.cost(choice), weights.cost(choice)
        crossing = costs.cost(over) + tried * weights.cost(over)
        if (below := cost + tried * (weight - limit)) > bound:
            bound, price = below, tried
        if weight <= limit and cost < costs.cost(best):
            best = choice
        if cost + tried * weight >= crossing - ALIKE * abs(crossing):
            break
        if weight <= limit:
            within = choice
        else:
            over = choice
    return best, price, bound


class _Closing:
    """Depth-first search in the order of undo, that gives up what cannot lead to a cheaper plan within the limit.

    Three sums are followed: the cost at the price, the cost alone, and the weight alone. Each is the exact least over
    all completions, and grows by what a choice costs above the best one.
    """

    def __init__(
        self, costs: Problem, weights: Problem, limit: float, price: float, best: dict[str, int]
    ) -> None:
        self.costs, self.weights, self.limit, self.price, self.best = costs, weights, limit, price, best
        reductions = [Reduction(one) for one in (_sum(costs, weights, price), costs, weights)]
        self.steps = list(zip(*(reversed(one.steps) for one in reductions), strict=True))
        self.least = np.array([one.cost for one in reductions])
        self.visited = 0
        self._set(costs.cost(best))

    def _set(self, cost: float) -> None:
        """What a completion must stay below to be worth anything."""
        worth = cost - ALIKE * abs(cost)
        self.most = np.array([worth + self.price * self.limit, worth, self.limit * (1 + 1e-12)])

    def run(self, deadline: float) -> bool:
        """Whether it came to its end."""
        choice: dict[str, int] = {}
        open_nodes = [self._choices(choice, 0, self.least)]
        while open_nodes:
            if perf_counter() > deadline:
                return False
            entry = next(open_nodes[-1], None)
            if entry is None:
                open_nodes.pop()
                continue
            depth = len(open_nodes)
            choice[self.steps[depth - 1][0].node], sums = entry
            if depth < len(self.steps):
                open_nodes.append(self._choices(choice, depth, sums))
            else:
                self._look_at(choice)
        return True

    def _choices(
        self, choice: dict[str, int], depth: int, sums: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(choice, the three sums) of a node, the cheapest at the price first, as long as they are worth it."""
        more = [step.costs(choice) - step.least(choice) for step in self.steps[depth]]
        found = sums[:, None] + np.stack(more)
        for index in np.argsort(found[0], kind="stable"):
            if (found[:, index] <= self.most).all():  # the best plan may have become cheaper meanwhile
                yield int(index), found[:, index]

    def _look_at(self, choice: dict[str, int]) -> None:
        self.visited += 1
        cost = self.costs.cost(choice)
        if self.weights.cost(choice) <= self.limit and cost < self.costs.cost(self.best):
            self.best = dict(choice)
            self._set(cost)
