"""Searches that look at plans one by one: the baseline that the paper compares with, and what tests compare with.

All go through the nodes depth first, in the problem's order. The last nodes, as many as have ``tail`` joint choices,
are looked at in one array operation: a favour to these searches, whose time the paper measured node by node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import perf_counter

import numpy as np

from implementations.errors import UserError
from implementations.layerwise.search_problem import Problem, Solution

MOST_PLANS = 10**8


def brute_force(problem: Problem) -> Solution:
    """The cheapest of all plans; the first of equally cheap ones.

    Raises UserError beyond 10^8 plans.
    """
    if problem.plans() > MOST_PLANS:
        raise UserError(
            f"search: 10^{math.log10(problem.plans()):.1f} plans are too many to try all; at most {MOST_PLANS:.0e}"
        )
    return depth_first(problem, math.inf)


def depth_first(problem: Problem, time_limit_s: float, bound: bool = False) -> Solution:
    """All plans depth first, until the time is over: the baseline of the paper (its Table 3).

    With ``bound`` a beginning of a plan is given up once it alone costs what the best plan does; the paper does not say
    whether its search did. Then costs must not be negative (ValueError).
    """
    if bound and _least_cost(problem) < 0:
        raise ValueError("a beginning of a plan bounds its cost only where no cost is negative")
    rest = [0.0] * (len(problem.nodes) + 1) if bound else None
    return _Descent(problem, rest, tail=1 << 8 if bound else 1 << 15).run(time_limit_s)


def branch_and_bound(problem: Problem, time_limit_s: float) -> Solution:
    """Depth first, cheapest choice first; gives up where the least costs of all that is open add up to too much."""
    return _Descent(problem, _rest(problem), tail=1 << 8, cheapest_first=True).run(time_limit_s)


def _least_cost(problem: Problem) -> float:
    return min(
        [*(np.min(one) for one in problem.nodes.values()), *(np.min(one) for *_, one in problem.edges)]
    )


def _rest(problem: Problem) -> list[float]:
    """For each node a bound of what it, the nodes behind it, and the edges into any of them cost."""
    least = {name: float(np.min(costs)) for name, costs in problem.nodes.items()}
    for _, j, table in problem.edges:
        least[j] += float(np.min(table))
    return [*np.cumsum(list(least.values())[::-1])[::-1].tolist(), 0.0]


class _Descent:
    """Depth-first search over the nodes before the tail; each of its ends looks at all joint choices of the tail.

    ``rest[d]`` is a bound of the cost of nodes d and behind, None to look at all plans.
    """

    def __init__(
        self, problem: Problem, rest: list[float] | None, tail: int, cheapest_first: bool = False
    ) -> None:
        self.problem, self.rest, self.cheapest_first = problem, rest, cheapest_first
        self.costs = [np.asarray(costs, dtype=float) for costs in problem.nodes.values()]
        sizes = [len(costs) for costs in self.costs]
        self.start = len(sizes) - 1
        while self.start and math.prod(sizes[self.start - 1 :]) <= tail:
            self.start -= 1
        place = {name: d for d, name in enumerate(problem.nodes)}
        edges = [(place[i], place[j], table) for i, j, table in problem.edges]
        self.shape = tuple(sizes[self.start :])
        self.into: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(self.start)]
        self.across: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(self.start)]
        self.tail = np.zeros(self.shape)
        for axis, costs in enumerate(self.costs[self.start :]):
            self.tail = self.tail + self._along(costs, axis)
        for i, j, table in edges:
            if j < self.start:
                self.into[j].append((i, table))
            elif i < self.start:
                self.across[i].append((j - self.start, table))
            else:
                axes = [1] * len(self.shape)
                axes[i - self.start], axes[j - self.start] = table.shape
                self.tail = self.tail + table.reshape(axes)
        self.index = [0] * self.start
        self.best, self.best_index, self.visited = math.inf, (0,) * len(sizes), 0

    def _along(self, row: np.ndarray, axis: int) -> np.ndarray:
        return row.reshape([-1 if k == axis else 1 for k in range(len(self.shape))])

    def run(self, time_limit_s: float) -> Solution:
        began = perf_counter()
        finished = self._search(began + time_limit_s)
        names = list(self.problem.nodes)
        choice = dict(zip(names, map(int, self.best_index)))
        return Solution(
            choice,
            self.problem.cost(choice),
            finished,
            perf_counter() - began,
            visited=self.visited,
            plans=self.problem.plans(),
        )

    def _search(self, deadline: float) -> bool:
        """Whether it came to its end."""
        open_nodes: list[Iterator[tuple[float, int]]] = []
        tails = [self.tail] * (self.start + 1)  # with the edges from the nodes before each depth
        depth, cost = 0, 0.0
        while True:
            if perf_counter() > deadline and self.visited:
                return False
            if depth == self.start:
                self._look_at(cost, tails[depth])
            else:
                open_nodes.append(self._choices(depth, cost))
            while open_nodes:  # the next choice of the last node that has one
                entry = next(open_nodes[-1], None)
                if entry is not None and self._hopeful(entry[0], len(open_nodes)):
                    break
                if entry is None or self.cheapest_first:  # the next ones cost more
                    open_nodes.pop()
            else:
                return True
            depth = len(open_nodes)
            cost, self.index[depth - 1] = entry
            tails[depth] = tails[depth - 1]
            for axis, table in self.across[depth - 1]:
                tails[depth] = tails[depth] + self._along(table[self.index[depth - 1]], axis)

    def _choices(self, depth: int, cost: float) -> Iterator[tuple[float, int]]:
        """(cost so far, choice) of a node."""
        sums = self.costs[depth] + cost
        for i, table in self.into[depth]:
            sums = sums + table[self.index[i]]
        order = np.argsort(sums, kind="stable") if self.cheapest_first else range(len(sums))
        return iter([(float(sums[k]), int(k)) for k in order])

    def _hopeful(self, cost: float, depth: int) -> bool:
        return self.rest is None or cost + self.rest[depth] < self.best

    def _look_at(self, cost: float, tail: np.ndarray) -> None:
        self.visited += tail.size
        place = int(np.argmin(tail))
        if (found := cost + float(tail.flat[place])) < self.best:
            self.best = found
            self.best_index = (*self.index, *np.unravel_index(place, self.shape))
