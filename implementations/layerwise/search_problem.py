"""What the search minimises: a cost for each choice of each node and each pair of choices of each edge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from implementations.errors import UserError

Edge = tuple[str, str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """An acyclic graph of choices; the cost of a plan is the sum over nodes and edges (equation 1 of the paper).

    Attributes:
        nodes: (C,) the cost of each of a node's choices; in an order in which each edge goes forward.
        edges: (producer, reader, (C_producer, C_reader)); two nodes may have several.

    Raises ValueError for an edge that has no such nodes, goes backward, or has another shape, and for costs that are
    not finite.
    """

    nodes: Mapping[str, np.ndarray]
    edges: Sequence[Edge]

    def __post_init__(self) -> None:
        place = {name: k for k, name in enumerate(self.nodes)}
        for name, costs in self.nodes.items():
            if np.ndim(costs) != 1 or not len(costs):
                raise ValueError(f"node {name}: costs of shape {np.shape(costs)}; needs one for each choice")
        for i, j, table in self.edges:
            if i not in place or j not in place or place[i] >= place[j]:
                raise ValueError(f"edge {i} - {j}: both must be nodes, the first one before the other")
            if np.shape(table) != (len(self.nodes[i]), len(self.nodes[j])):
                raise ValueError(
                    f"edge {i} - {j}: table of shape {np.shape(table)}; needs one row a choice of {i}"
                )
        for table in (*self.nodes.values(), *(one for *_, one in self.edges)):
            if not np.isfinite(table).all():
                raise ValueError("costs must be finite")

    def sizes(self) -> dict[str, int]:
        """Choices of each node."""
        return {name: len(costs) for name, costs in self.nodes.items()}

    def cost(self, choice: Mapping[str, int]) -> float:
        """The cost of a plan: one index of a choice for each node."""
        return math.fsum(
            [costs[choice[name]] for name, costs in self.nodes.items()]
            + [table[choice[i], choice[j]] for i, j, table in self.edges]
        )

    def plans(self) -> int:
        """How many plans there are."""
        return math.prod(self.sizes().values())


@dataclass(frozen=True)
class Solution:
    """A plan, and how it was found.

    Attributes:
        choice: for each node the index of its choice.
        cost: of the plan, by ``Problem.cost``.
        finished: the search ended by itself; without a ``gap`` the plan is then an optimum.
        seconds: wall clock of the search.
        node_eliminations, edge_eliminations, passes, remaining: of the reduction by the paper's two rules; the passes
            alternate between the rules, ``remaining`` is the paper's K. 0 where nothing was reduced.
        visited: plans whose cost was looked at one by one, for searches that do so; ``plans`` is how many there are.
        weight: what ``solve_within`` limits; None elsewhere.
        gap: the plan costs at most this share more than an optimum; 0 where it is known to be one.
    """

    choice: dict[str, int]
    cost: float
    finished: bool
    seconds: float
    node_eliminations: int = 0
    edge_eliminations: int = 0
    passes: int = 0
    remaining: int = 0
    remaining_nodes: tuple[str, ...] = ()
    visited: int = 0
    plans: int = 0
    weight: float | None = None
    gap: float = 0.0


class NoPlan(UserError):
    """No plan keeps the limit; ``least`` is the smallest weight that a plan can have."""

    def __init__(self, limit: float, least: float) -> None:
        super().__init__(
            f"memory limit of {limit:,.0f} bytes a device: the smallest plan needs {least:,.0f} on the fullest one;"
            " raise the limit, or allow more devices or a smaller batch"
        )
        self.limit, self.least = limit, least
