"""The figures of the report: one function per figure, each saved as SVG, PNG and CSV of what it draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from implementations.errors import UserError
from implementations.reporting.claims import CONFIG, load_published
from implementations.reporting.columns import as_runs, in_experiment
from implementations.reporting.figures import style
from implementations.reporting.figures.algorithms import algorithms_figure
from implementations.reporting.figures.quality import accuracy_figure, curves_figure, period_figure
from implementations.reporting.figures.sizes import sizes_figures
from implementations.reporting.figures.speedup import clusters_figure, speedup_figure
from implementations.reporting.figures.timesplit import time_split_figure, validation_figure
from implementations.reporting.files import write_whole
from implementations.reporting.rows import as_timings
from implementations.reporting.tables import command_for, reported, speedup_table

INDEX = "figures.json"


def make_figures(
    runs: pd.DataFrame | str | Path | None,
    timings: pd.DataFrame | str | Path | None,
    validation: pd.DataFrame | None = None,
    results_dir: str | Path = "results",
    out_dir: str | Path = "reports/figures",
    config_dir: str | Path = CONFIG,
    tier: str | None = None,
    published: pd.DataFrame | None = None,
) -> list[dict[str, Any]]:
    """Draw every figure of every paper into ``out_dir/<paper>`` and write the index ``out_dir/figures.json``.

    A figure without data is drawn empty and says so; the sizes and clusters figures need several sizes or clusters.
    Returns the index: paper, name, title, caption, alt, command and files of each.
    """
    runs, timings = reported(as_runs(runs)), as_timings(timings)
    published = load_published(config_dir) if published is None else published
    index = []
    for paper in sorted(set(runs["paper"].dropna())):
        for drawn in paper_figures(runs, timings, published, validation, Path(results_dir), paper, tier):
            files = style.save(drawn, Path(out_dir) / paper)
            index.append(drawn.described() | {"files": files})
    write_whole(Path(out_dir) / INDEX, json.dumps(index, indent=1).encode())
    return index


def paper_figures(
    runs: pd.DataFrame,
    timings: pd.DataFrame,
    published: pd.DataFrame,
    validation: pd.DataFrame | None,
    results_dir: Path,
    paper: str,
    tier: str | None = None,
) -> list[style.Drawn]:
    """The figures of one paper, in the report's order."""
    own = runs[runs["paper"] == paper]
    numbers = published[published["paper"] == paper] if len(published) else published

    def of(*experiments: str) -> pd.DataFrame:
        """The paper's runs of the first experiment that has any; all of them when none has."""
        for name in experiments:
            found = own[in_experiment(own, name)]
            if len(found):
                return found
        return own

    scaling = of("speedup", "smoke")
    speedups = speedup_table(scaling, _timed(timings, scaling, paper))
    sizes = own[in_experiment(own, "sizes")]
    drawn = [
        speedup_figure(speedups, numbers, paper, tier=tier),
        clusters_figure(speedups, paper, tier),
        accuracy_figure(scaling, paper, tier),
        period_figure(of("period", "smoke"), paper, tier),
        time_split_figure(scaling, paper, tier),
        algorithms_figure(own[in_experiment(own, "algorithms")], paper, tier),
        *sizes_figures(sizes, timings, paper, tier=tier),
        validation_figure(validation, paper, tier),
        curves_figure(scaling, results_dir, paper, tier),
    ]
    return [figure for figure in drawn if figure is not None]


def _timed(timings: pd.DataFrame, runs: pd.DataFrame, paper: str) -> pd.DataFrame:
    """The timings of the runs, and the paper's projections."""
    if not len(timings):
        return timings
    projected = (timings["evidence"] == "projected") & (timings["paper"] == paper)
    return timings[timings["run_id"].isin(runs["run_id"]) | projected]


def make_headline(
    paper: str = "averaging",
    name: str = "speedup",
    figures_dir: str | Path = "reports/figures",
    out_dir: str | Path = "reports",
) -> list[Path]:
    """Copy one figure to ``out_dir/headline.svg`` and ``.png``, which the project's first page shows."""
    made = []
    for kind in ("svg", "png"):
        source, target = Path(figures_dir) / paper / f"{name}.{kind}", Path(out_dir) / f"headline.{kind}"
        if not source.is_file():
            raise UserError(f"{source} does not exist; draw the figures first: {command_for(paper)}")
        write_whole(target, source.read_bytes())
        made.append(target)
    return made
