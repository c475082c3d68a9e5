"""The figures of the report: one function per figure, each saved as SVG, PNG and CSV of what it draws."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas as pd

from implementations.errors import UserError
from implementations.reporting import plans as planning
from implementations.reporting import subnets
from implementations.reporting.claims import CONFIG, load_published
from implementations.reporting.columns import as_runs, in_experiment, is_speech
from implementations.reporting.figures import style
from implementations.reporting.figures.algorithms import algorithms_figure
from implementations.reporting.figures.ist import subnet_figures
from implementations.reporting.figures.layerwise import layerwise_figures
from implementations.reporting.figures.loss import loss_figure
from implementations.reporting.figures.quality import accuracy_figure, curves_figure, period_figure
from implementations.reporting.figures.ranks import ranks_figure
from implementations.reporting.figures.recipes import init_figure, rates_figure
from implementations.reporting.figures.sizes import sizes_figures
from implementations.reporting.figures.spark import spark_figures
from implementations.reporting.figures.speech import (
    drift_figure,
    errors_figure,
    settings_figures,
    workers_figure,
)
from implementations.reporting.figures.speedup import clusters_figure, speedup_figure
from implementations.reporting.figures.suite import suite_figures
from implementations.reporting.figures.timesplit import time_split_figure
from implementations.reporting.files import write_whole
from implementations.reporting.grouping import most_frequent
from implementations.reporting.rows import as_timings
from implementations.reporting.spark import PAPER as SPARK
from implementations.reporting.spark import as_projections
from implementations.reporting.suite.context import PAPER as SUITE
from implementations.reporting.suite.context import Context
from implementations.reporting.tables import command_for, reported, speedup_table, trials
from implementations.reporting.targets import bandwidths
from implementations.reporting.utterances import as_utterances
from implementations.reporting.wordtable import corpus_name, wer_table

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
    utterances: pd.DataFrame | str | Path | None = None,
    losses: pd.DataFrame | None = None,
    plans: pd.DataFrame | str | Path | None = None,
    searches: pd.DataFrame | str | Path | None = None,
    projections: pd.DataFrame | str | Path | None = None,
) -> list[dict[str, Any]]:
    """Draw every figure of every paper into ``out_dir/<paper>`` and write the index ``out_dir/figures.json``.

    A figure without data is drawn empty and says so; the sizes and clusters figures need several sizes or clusters,
    those of speech runs of speech, and take their intervals from ``utterances`` (``utterances.parquet``, or its rows).
    ``losses``: the time model's split of the lost efficiency, see ``losses.loss_table``. ``plans``, ``searches``:
    ``plans.parquet`` and ``search.parquet``, or their rows; ``projections``: ``spark.parquet``, or its rows.
    Returns the index: paper, section, name, title, caption, alt, command and files of each.
    """
    runs, timings, results_dir = as_runs(runs), as_timings(timings), Path(results_dir)
    results, errors = reported(runs), as_utterances(utterances)
    published = load_published(config_dir) if published is None else published
    planned = planning.described(planning.as_plans(plans), planning.links(config_dir))
    searched = planning.as_searches(searches)
    projected = as_projections(projections)
    index = []
    sources = (results, planned, searched, projected)
    checked = pd.DataFrame() if validation is None else validation
    context = Context(
        results, timings, planned, projected, checked, published, results_dir, Path(config_dir), tier
    )
    papers = {paper for source in sources for paper in source["paper"].dropna()}
    for paper in sorted(papers - {SUITE}) + [SUITE] * bool(papers):
        if paper == planning.PAPER:
            own = results[results["paper"] == paper]
            made = layerwise_figures(own, planned, searched, published, results_dir, paper, tier)
        elif paper == subnets.PAPER:
            own = results[results["paper"] == paper]
            made = subnet_figures(own, timings, published, bandwidths(config_dir), results_dir, paper, tier)
        elif paper == SUITE:
            made = suite_figures(context)
        elif paper == SPARK:
            own = results[results["paper"] == paper]
            made = spark_figures(own, timings, projected, published, results_dir, paper, tier)
        else:
            made = paper_figures(results, timings, published, results_dir, paper, tier, losses)
            made += speech_figures(runs, errors, published, results_dir, paper, tier)
        for drawn in made:
            files = style.save(drawn, Path(out_dir) / paper)
            index.append(drawn.described() | {"files": files})
    write_whole(Path(out_dir) / INDEX, json.dumps(index, indent=1).encode())
    return index


def paper_figures(
    runs: pd.DataFrame,
    timings: pd.DataFrame,
    published: pd.DataFrame,
    results_dir: Path,
    paper: str,
    tier: str | None = None,
    losses: pd.DataFrame | None = None,
) -> list[style.Drawn]:
    """The figures of one paper about time, bytes and accuracy, in the report's order.

    Speech comes first where there is any (its errors have figures of their own); what ran on images beside it is of
    the section ``images``, named after the data set.
    """
    every = runs[runs["paper"] == paper]
    numbers = published[published["paper"] == paper] if len(published) else published
    speech, images = every[is_speech(every)], every[~is_speech(every)]
    drawn: list[style.Drawn | None] = []
    if len(speech):
        scaling = _first_of(speech, ("speech", "speech_ranks"), ("smoke",))
        trained = most_frequent(
            _first_of(speech, ("speech",), ("smoke",)),
            ["optimizer", "init", "schedule", "recipe", "lr", "epochs", "minibatch"],
        )
        own = [
            *_time_figures(scaling, timings, numbers, paper, tier),
            period_figure(trained[trained["evidence"] == "simulated"], paper, tier),
        ]
        drawn += [_naming_corpora(figure, scaling) for figure in own if figure]
    own = images if not len(speech) else images[in_experiment(images, "speedup", "smoke")]
    if len(own) or not len(speech):
        scaling = _first_of(own, ("speedup",), ("smoke",))
        beside = [
            *_time_figures(scaling, timings, numbers, paper, tier),
            accuracy_figure(scaling, paper, tier),
            period_figure(_first_of(images, ("period",), ("smoke",)), paper, tier),
            curves_figure(scaling, results_dir, paper, tier),
        ]
        drawn += [_named_after(figure, own) for figure in beside if figure] if len(speech) else beside
    drawn += [
        algorithms_figure(every[in_experiment(every, "algorithms")], paper, tier),
        *sizes_figures(every[in_experiment(every, "sizes", "speech_sizes")], timings, paper, tier=tier),
        loss_figure(numbers, losses, paper, tier),
    ]
    return [figure for figure in drawn if figure is not None]


def _time_figures(
    runs: pd.DataFrame, timings: pd.DataFrame, published: pd.DataFrame, paper: str, tier: str | None
) -> list[style.Drawn | None]:
    """Speedups, on every cluster too, and where the measured seconds went."""
    speedups = speedup_table(runs, _timed(timings, runs, paper))
    return [
        speedup_figure(speedups, published, paper, tier=tier),
        clusters_figure(speedups, paper, tier),
        time_split_figure(runs, paper, tier),
    ]


def _first_of(runs: pd.DataFrame, *choices: tuple[str, ...]) -> pd.DataFrame:
    """The runs of the first of some sets of experiments that has any; all of them when none has."""
    for names in choices:
        found = runs[in_experiment(runs, *names)]
        if len(found):
            return found
    return runs


def _naming_corpora(figure: style.Drawn, runs: pd.DataFrame) -> style.Drawn:
    """A figure on speech whose caption says whose speech it is."""
    corpora = runs[["dataset", "data_kind"]].drop_duplicates().to_dict("records")
    names = ", ".join(corpus_name(**corpus) for corpus in corpora)
    return dataclasses.replace(figure, caption=f"{figure.caption} Speech: {names}.")


def _named_after(figure: style.Drawn, runs: pd.DataFrame) -> style.Drawn:
    """A figure on images that stands beside the same one on speech."""
    dataset = runs["dataset"].mode().iloc[0]
    named = {"name": f"{figure.name}_{dataset}", "title": f"{figure.title}, {dataset}", "section": "images"}
    return dataclasses.replace(figure, **named)


def speech_figures(
    runs: pd.DataFrame,
    utterances: pd.DataFrame,
    published: pd.DataFrame,
    results_dir: Path,
    paper: str,
    tier: str | None = None,
) -> list[style.Drawn]:
    """The figures of one paper's runs of speech, tuning trials among them: the same for each corpus, real first.

    ``utterances``: of ``utterances.parquet``.
    """
    speech = runs[(runs["paper"] == paper).fillna(False).astype(bool) & is_speech(runs)]
    corpora = speech[["data_kind", "dataset"]].drop_duplicates()
    corpora = corpora.sort_values(["data_kind", "dataset"], ascending=[False, True])
    drawn: list[style.Drawn | None] = []
    for dataset in corpora["dataset"]:
        suffix = "" if len(corpora) == 1 else f"_{dataset}"
        own = speech[speech["dataset"] == dataset]
        results = reported(own)
        words = wer_table(results, utterances, published)
        drawn += [
            workers_figure(words, published, paper, tier, suffix),
            rates_figure(trials(own), paper, tier, suffix),
            init_figure(words, results, results_dir, paper, tier, suffix),
            errors_figure(words, paper, tier, suffix),
            drift_figure(words, paper, tier, suffix),
            *settings_figures(words, paper, tier, suffix),
            ranks_figure(results, published, paper, tier, suffix),
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
