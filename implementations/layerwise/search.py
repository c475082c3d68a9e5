"""The search for the cheapest plan: what is given, what is found, and the algorithms. Pure; needs NumPy only."""

from implementations.layerwise.search_elimination import solve
from implementations.layerwise.search_exhaustive import branch_and_bound, brute_force, depth_first
from implementations.layerwise.search_limits import solve_within
from implementations.layerwise.search_problem import NoPlan, Problem, Solution

__all__ = [
    "NoPlan",
    "Problem",
    "Solution",
    "branch_and_bound",
    "brute_force",
    "depth_first",
    "solve",
    "solve_within",
]
