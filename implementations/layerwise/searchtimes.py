"""How long each search takes on one problem: rows of search.parquet, for the paper's Table 3."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from implementations.errors import UserError
from implementations.layerwise.search import Problem, Solution, branch_and_bound, depth_first, solve

ALGORITHMS: dict[str, Callable[[Problem, float], Solution]] = {
    "elimination": lambda problem, _: solve(problem),
    "depth_first": depth_first,
    "branch_and_bound": branch_and_bound,
}


def search_times(problem: Problem, algorithms: Sequence[str], time_limit_s: float) -> list[dict[str, Any]]:
    """Run each algorithm once, and say what it took and found; elimination has no time limit, and needs none.

    ``visited`` plans were looked at, of 10 to the power of ``plans_log10``. How long the tables took, and of which net
    and how many devices they are, is for the caller to add.

    Raises UserError for an algorithm that there is not.
    """
    if unknown := [name for name in algorithms if name not in ALGORITHMS]:
        raise UserError(f"search algorithm {', '.join(unknown)}: choose from {', '.join(ALGORITHMS)}")
    rows = []
    for name in algorithms:
        found = ALGORITHMS[name](problem, time_limit_s)
        rows.append(
            {
                "evidence": "measured",
                "nodes": len(problem.nodes),
                "edges": len(problem.edges),
                "configurations": max(problem.sizes().values()),
                "algorithm": name,
                "search_s": found.seconds,
                "time_limit_s": time_limit_s,
                "finished": found.finished,
                "cost_s": found.cost,
                "visited": found.visited,
                "plans_log10": math.log10(found.plans),
                "node_eliminations": found.node_eliminations,
                "edge_eliminations": found.edge_eliminations,
                "remaining": found.remaining,
            }
        )
    return rows
