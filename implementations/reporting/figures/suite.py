"""Figures of the parts that belong to no single paper."""

from __future__ import annotations

from implementations.reporting.figures import style
from implementations.reporting.suite.context import Context

# Functions of one figure each: Context -> Drawn, or None where there is nothing to draw.
FIGURES = ()


def suite_figures(context: Context) -> list[style.Drawn]:
    """Those that there is something to draw for, in the report's order."""
    return [drawn for figure in FIGURES if (drawn := figure(context)) is not None]
