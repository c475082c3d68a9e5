"""Node and edge elimination with undo: the cheapest plan of any acyclic graph (Algorithm 1 of the paper).

Every elimination of a node is kept as a ``Step``: the tables that the node took part in, the nodes that they reach
(its scope), and the table over the scope that replaces them. The steps in reverse give the plan back. Choices that
were best are not recorded: undo needs those of one plan only, and finds each by a sum over one row.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from implementations.errors import UserError
from implementations.layerwise.search_problem import Edge, Problem, Solution

Factor = tuple[tuple[str, ...], np.ndarray]

BLOCK = 1 << 15  # values of a temporary; 256 KiB stay in a core's second cache
MOST_ENTRIES = 1 << 25  # of one table over the scope of an eliminated node
MOST_SUMS = 1 << 32  # for one of them


@dataclass(frozen=True)
class Step:
    """One eliminated node: ``table`` is the least over its choices of the sum of ``factors``, for each of ``scope``."""

    node: str
    scope: tuple[str, ...]
    factors: tuple[Factor, ...]
    table: np.ndarray

    def costs(self, choice: dict[str, int]) -> np.ndarray:
        """(C,) what each choice of the node adds, given those of the scope."""
        rows = [
            table[tuple(slice(None) if name == self.node else choice[name] for name in names)]
            for names, table in self.factors
        ]
        return sum(rows[1:], rows[0])

    def least(self, choice: dict[str, int]) -> float:
        """The smallest of them."""
        return self.table[tuple(choice[name] for name in self.scope)]


class Reduction:
    """A problem reduced to nothing, with the steps back.

    First the paper's two rules, until neither applies; then the K nodes that are left, one at a time in the order of
    the smallest tables. For K = 2 that is the paper's enumeration, and for no K does it take more sums than one.
    The order depends on the shape of the graph and the numbers of choices alone, not on costs.

    Raises UserError where what is left is too large for that.
    """

    def __init__(self, problem: Problem) -> None:
        self.steps: list[Step] = []
        self.node_eliminations = self.edge_eliminations = self.passes = 0
        self._nodes = {name: np.asarray(costs, dtype=float) for name, costs in problem.nodes.items()}
        edges = self._reduce(list(problem.edges))
        self.remaining_nodes = tuple(self._nodes)
        self._eliminate_rest(edges)

    @property
    def cost(self) -> float:
        """Of the cheapest plan."""
        return float(sum(step.table for step in self.steps if not step.scope))

    def choice(self) -> dict[str, int]:
        """The cheapest plan; of equally cheap choices of a node the first."""
        found: dict[str, int] = {}
        for step in reversed(self.steps):
            found[step.node] = int(np.argmin(step.costs(found)))
        return found

    def _reduce(self, edges: list[Edge]) -> list[Edge]:
        """Alternate between the rules; returns the edges of what is left."""
        while True:
            edges, nodes_gone = self._node_pass(edges)
            edges, edges_gone = self._edge_pass(edges)
            self.node_eliminations += nodes_gone
            self.edge_eliminations += edges_gone
            self.passes += (nodes_gone > 0) + (edges_gone > 0)
            if not edges_gone:  # a node's edges become fewer by an edge elimination only
                return edges

    def _node_pass(self, edges: list[Edge]) -> tuple[list[Edge], int]:
        """Eliminate each node with one edge in and one out (equation 2)."""
        into, out = defaultdict(list), defaultdict(list)
        alive = dict(enumerate(edges))
        for k, (i, j, _) in alive.items():
            out[i].append(k)
            into[j].append(k)
        found = [name for name in self._nodes if len(into[name]) == len(out[name]) == 1]
        for name in found:
            (first,), (second,) = into[name], out[name]
            (i, _, before), (_, k, behind) = alive.pop(first), alive.pop(second)
            own = self._nodes.pop(name)
            table = min_plus(before + own, behind)
            factors = (((i, name), before), ((name,), own), ((name, k), behind))
            self.steps.append(Step(name, (i, k), factors, table))
            alive[first] = (i, k, table)
            into[k][into[k].index(second)] = first
        return list(alive.values()), len(found)

    def _edge_pass(self, edges: list[Edge]) -> tuple[list[Edge], int]:
        """Add up the tables of parallel edges (equation 3)."""
        merged: dict[tuple[str, str], np.ndarray] = {}
        for i, j, table in edges:
            merged[i, j] = merged[i, j] + table if (i, j) in merged else table
        return [(i, j, table) for (i, j), table in merged.items()], len(edges) - len(merged)

    def _eliminate_rest(self, edges: list[Edge]) -> None:
        sizes = {name: len(costs) for name, costs in self._nodes.items()}
        factors: list[Factor] = [((name,), costs) for name, costs in self._nodes.items()]
        factors += [((i, j), table) for i, j, table in edges]
        while sizes:
            scopes = {name: self._scope(name, factors) for name in sizes}
            entries = {name: math.prod(sizes[other] for other in scope) for name, scope in scopes.items()}
            name = min(sizes, key=lambda one: entries[one])
            if entries[name] > MOST_ENTRIES or entries[name] * sizes[name] > MOST_SUMS:
                raise UserError(
                    f"search: {len(self.remaining_nodes)} layers are left that neither rule eliminates, and joining"
                    f" {name} with {', '.join(scopes[name])} takes {entries[name] * sizes[name]:.1e} sums;"
                    " allow fewer degrees or devices"
                )
            own = tuple(factor for factor in factors if name in factor[0])
            factors = [factor for factor in factors if name not in factor[0]]
            table = _least(name, scopes[name], own, sizes)
            self.steps.append(Step(name, scopes[name], own, table))
            if scopes[name]:
                factors.append((scopes[name], table))
            del sizes[name]

    @staticmethod
    def _scope(name: str, factors: list[Factor]) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(other for names, _ in factors if name in names for other in names if other != name)
        )


def min_plus(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(I, K) the least over j of ``left[i, j] + right[j, k]``."""
    (rows, between), columns = left.shape, right.shape[1]
    step = min(between, max(1, BLOCK // (rows * columns)))
    across = np.ascontiguousarray(left.T)
    sums, least = np.empty((step, rows, columns)), np.empty((rows, columns))
    found = np.full((rows, columns), np.inf)
    for j in range(0, between, step):
        some = right[j : j + step, None, :]
        np.add(across[j : j + step, :, None], some, out=sums[: len(some)])
        np.minimum(found, sums[: len(some)].min(axis=0, out=least), out=found)
    return found


def _least(
    name: str, scope: tuple[str, ...], factors: tuple[Factor, ...], sizes: dict[str, int]
) -> np.ndarray:
    """The least over the node's choices of the sum of its factors, for each joint choice of the scope."""
    aligned = [_aligned(name, scope, factor) for factor in factors]
    shape = tuple(sizes[other] for other in scope)
    step = max(1, BLOCK // math.prod(shape))
    found = np.full(shape, np.inf)
    for j in range(0, sizes[name], step):
        sums = sum((table[j : j + step] for table in aligned[1:]), aligned[0][j : j + step])
        found = np.minimum(found, np.broadcast_to(sums, (len(sums), *shape)).min(axis=0))
    return found


def _aligned(name: str, scope: tuple[str, ...], factor: Factor) -> np.ndarray:
    """A factor with the node's choices on the first axis, and one axis for each of the scope."""
    names, table = factor
    order = [name, *(other for other in scope if other in names)]
    table = table.transpose([names.index(one) for one in order])
    return table.reshape(
        len(table), *(table.shape[order.index(other)] if other in names else 1 for other in scope)
    )


def solve(problem: Problem) -> Solution:
    """The cheapest plan, exactly.

    Raises UserError where more is left by the two rules than can be enumerated.
    """
    began = perf_counter()
    reduced = Reduction(problem)
    found = reduced.choice()
    choice = {name: found[name] for name in problem.nodes}
    return Solution(
        choice=choice,
        cost=problem.cost(choice),
        finished=True,
        seconds=perf_counter() - began,
        node_eliminations=reduced.node_eliminations,
        edge_eliminations=reduced.edge_eliminations,
        passes=reduced.passes,
        remaining=len(reduced.remaining_nodes),
        remaining_nodes=reduced.remaining_nodes,
        plans=problem.plans(),
    )
