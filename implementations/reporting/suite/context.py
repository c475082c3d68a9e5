"""What the parts of the report that belong to no single paper are made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

PAPER = "suite"


@dataclass(frozen=True, eq=False)  # frames have no equality to go by
class Context:
    """Results and config of one report; every frame may be empty.

    ``runs``: rows of runs.parquet, without tuning trials; ``timings``: of timings.parquet; ``plans``: of plans.parquet,
    described; ``projections``: of spark.parquet; ``validation``: the time model against measured points;
    ``published``: the papers' numbers; ``results_dir``: where curves and further results lie.
    """

    runs: pd.DataFrame
    timings: pd.DataFrame
    plans: pd.DataFrame
    projections: pd.DataFrame
    validation: pd.DataFrame
    published: pd.DataFrame
    results_dir: Path
    config_dir: Path
    tier: str | None
