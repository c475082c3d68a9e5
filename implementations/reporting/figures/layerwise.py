"""The figures of layer-wise parallelism, in the report's order."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd

from implementations.reporting import plans as planning
from implementations.reporting.columns import in_experiment
from implementations.reporting.figures import style
from implementations.reporting.figures.layerwise_curves import training_figure
from implementations.reporting.figures.layerwise_devices import BYTES, THROUGHPUT, devices_figure
from implementations.reporting.figures.layerwise_links import links_figure
from implementations.reporting.figures.layerwise_plan import plan_figures
from implementations.reporting.figures.layerwise_prediction import degrees_figure, prediction_figure
from implementations.reporting.figures.layerwise_search import growth_figure, search_figure
from implementations.reporting.figures.layerwise_sizes import sizes_figure
from implementations.reporting.figures.timesplit import time_split_figure
from implementations.reporting.layerwise import predictions

RANKS = "layerwise_ranks"


def layerwise_figures(
    runs: pd.DataFrame,
    plans: pd.DataFrame,
    searches: pd.DataFrame,
    published: pd.DataFrame,
    results_dir: Path,
    paper: str,
    tier: str | None = None,
) -> list[style.Drawn]:
    """What there are plans, searches and runs for.

    ``runs``: the paper's results; ``plans``: of ``plans.described``; ``searches``: of ``plans.as_searches``.
    """
    layers = planning.layers_of(plans)
    drawn: list[style.Drawn | None] = [
        devices_figure(plans, published, paper, THROUGHPUT, tier),
        devices_figure(plans, published, paper, BYTES, tier),
        *plan_figures(layers, paper, tier),
        search_figure(searches, published, paper, tier),
        growth_figure(searches, paper, tier),
        prediction_figure(predictions(runs, plans), paper, tier),
        training_figure(runs, results_dir, paper, tier),
        degrees_figure(layers, published, paper, tier),
        links_figure(plans, layers, paper, tier),
        sizes_figure(plans, paper, tier),
    ]
    ranks = runs[in_experiment(runs, RANKS)]
    if (ranks["evidence"] == "measured").fillna(False).any():
        drawn.append(dataclasses.replace(time_split_figure(ranks, paper, tier), section="time"))
    return [figure for figure in drawn if figure is not None]
