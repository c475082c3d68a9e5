"""The figures of training on Spark, in the report's order."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from implementations.reporting.figures import style
from implementations.reporting.figures.spark_late import late_figure
from implementations.reporting.figures.spark_map import map_figure
from implementations.reporting.figures.spark_speedup import DATA, MODEL, WORKERS, speedup_figure
from implementations.reporting.figures.spark_split import split_figure
from implementations.reporting.figures.spark_training import accuracy_figure, training_figure
from implementations.reporting.spark_speedups import speedup_table


def spark_figures(
    runs: pd.DataFrame,
    timings: pd.DataFrame,
    projections: pd.DataFrame,
    published: pd.DataFrame,
    results_dir: Path,
    paper: str,
    tier: str | None = None,
) -> list[style.Drawn]:
    """What there are runs and projections for.

    ``runs``: the paper's results; ``projections``: of ``spark.as_projections``.
    """
    speedups = speedup_table(runs, timings, projections)
    drawn = [
        *(speedup_figure(speedups, published, paper, against, tier) for against in (WORKERS, DATA, MODEL)),
        map_figure(projections, published, paper, tier),
        split_figure(runs, paper, tier),
        accuracy_figure(runs, paper, tier),
        training_figure(runs, results_dir, paper, tier),
        late_figure(runs, paper, tier),
    ]
    return [figure for figure in drawn if figure is not None]
