"""Figures of the parts that belong to no single paper."""

from __future__ import annotations

from implementations.reporting.figures import style
from implementations.reporting.figures.suite_hosts import emulated_figure
from implementations.reporting.figures.suite_projected import projected_figure
from implementations.reporting.figures.suite_scale import cost_figure as simulation_figure
from implementations.reporting.figures.suite_scale import speedup_figure
from implementations.reporting.figures.suite_shootout import map_figure, second_map_figure
from implementations.reporting.figures.suite_shootout_costs import costs_figure, lines_figure
from implementations.reporting.figures.suite_validation import validation_figure
from implementations.reporting.suite.context import Context

# Functions of one figure each: Context -> Drawn, or None where there is nothing to draw.
FIGURES = (
    map_figure,
    second_map_figure,
    lines_figure,
    costs_figure,
    emulated_figure,
    projected_figure,
    simulation_figure,
    speedup_figure,
    validation_figure,
)


def suite_figures(context: Context) -> list[style.Drawn]:
    """Those that there is something to draw for, in the report's order."""
    return [drawn for figure in FIGURES if (drawn := figure(context)) is not None]
