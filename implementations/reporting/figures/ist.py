"""The figures of independent subnet training, in the report's order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from implementations.reporting.columns import in_experiment
from implementations.reporting.figures import style
from implementations.reporting.figures.ist_bandwidth import bandwidth_figure
from implementations.reporting.figures.ist_curves import training_figure
from implementations.reporting.figures.ist_memory import memory_figure
from implementations.reporting.figures.ist_settings import ABLATIONS, PUBLISHED, choices_figure, skew_figure
from implementations.reporting.figures.ist_width import hypothesis_figure, width_figure
from implementations.reporting.figures.ist_workers import workers_figure
from implementations.reporting.figures.sizes import sizes_figures
from implementations.reporting.figures.speedup import speedup_figure
from implementations.reporting.figures.timesplit import time_split_figure
from implementations.reporting.tables import speedup_table

MAIN, RANKS, SMOKE = "ist", "ist_ranks", "ist_smoke"
# The same experiment elsewhere; the names of its figures end as it does, and in the data set where there are several.
ELSEWHERE = ("ist_deep", "ist_keywords", "ist_images")


def subnet_figures(
    runs: pd.DataFrame,
    timings: pd.DataFrame,
    published: pd.DataFrame,
    networks: Mapping[str, float],
    results_dir: Path,
    paper: str,
    tier: str | None = None,
) -> list[style.Drawn]:
    """What there are runs for: figures of the main experiment, of each question, and the main ones elsewhere.

    Without the main experiment, the smallest one stands for it.

    ``runs``: the paper's results; ``networks``: of ``targets.bandwidths``.
    """
    main = MAIN if in_experiment(runs, MAIN).any() else SMOKE
    drawn: list[style.Drawn | None] = [
        training_figure(runs, timings, results_dir, paper, main, tier),
        workers_figure(runs, paper, main, tier),
        width_figure(runs, paper, tier),
        bandwidth_figure(runs, timings, networks, paper, main, tier),
        memory_figure(runs, published, paper, tier),
        skew_figure(runs, paper, tier),
        choices_figure(runs, paper, ABLATIONS, tier),
        hypothesis_figure(runs, paper, tier),
        *sizes_figures(runs[in_experiment(runs, "ist_sizes")], timings, paper, tier=tier),
    ]
    for experiment in ELSEWHERE:
        own = runs[in_experiment(runs, experiment)]
        for dataset in sorted(set(own["dataset"])):
            here = own[own["dataset"] == dataset]
            suffix = experiment.removeprefix(MAIN) + (f"_{dataset}" if own["dataset"].nunique() > 1 else "")
            drawn += [
                training_figure(here, timings, results_dir, paper, experiment, tier, suffix),
                workers_figure(here, paper, experiment, tier, suffix),
                bandwidth_figure(here, timings, networks, paper, experiment, tier, suffix),
            ]
    drawn.append(choices_figure(runs, paper, PUBLISHED, tier))
    drawn += _ranks_figures(runs[in_experiment(runs, RANKS, SMOKE)], timings, paper, tier)
    return [figure for figure in drawn if figure is not None]


def _ranks_figures(
    ranks: pd.DataFrame, timings: pd.DataFrame, paper: str, tier: str | None
) -> list[style.Drawn | None]:
    """Speedups of real ranks and where their seconds went, in a section of their own; none where none ran."""
    if not (ranks["evidence"] == "measured").any():
        return []
    own = timings[timings["run_id"].isin(ranks["run_id"])] if len(timings) else timings
    made = [
        speedup_figure(speedup_table(ranks, own), pd.DataFrame(), paper, tier=tier),
        time_split_figure(ranks, paper, tier),
    ]
    return [dataclasses.replace(figure, section="time") for figure in made]
