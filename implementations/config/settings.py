"""What a tier's file says once it is read, checked and expanded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from implementations.config.batches import Batch
from implementations.point import EVIDENCE, Point

OTHER = "other"  # in expected hours: what belongs to no paper


@dataclass(frozen=True)
class Experiment:
    """What an experiment's file says about itself, for tables and captions."""

    name: str
    paper: str
    title: str
    mirrors: str
    note: str
    sweeps: tuple[str, ...]  # those that the tier runs


@dataclass(frozen=True)
class Settings:
    """A tier: how processes are started, and the points with the jobs that run them."""

    configfile: Path
    tier: str
    master_seed: int
    launcher: dict[str, Any]  # {"command": "auto" or a program, "args": [...]}
    spark: dict[
        str, Any
    ]  # of the sessions of measured Spark points; cluster/spark/session.py has the defaults
    device: str
    threads_per_worker: int
    time_limit_s: float
    grace_s: float
    clusters: tuple[str, ...]
    experiments: tuple[Experiment, ...]
    points: tuple[Point, ...]  # those that processes run
    projected: tuple[Point, ...]  # those of which the time model alone speaks
    batches: tuple[Batch, ...]
    expected: dict[str, Any] = dataclasses.field(default_factory=dict)  # a tier's; {} where it says nothing

    @cached_property
    def point_by_id(self) -> dict[str, Point]:
        """Points by run id."""
        return {point.run_id: point for point in self.points}

    @cached_property
    def batch_by_id(self) -> dict[str, Batch]:
        """Batches by id."""
        return {batch.id: batch for batch in self.batches}

    def points_of(self, batch: Batch) -> list[Point]:
        """The points of a batch, in the order in which they run."""
        return [self.point_by_id[run_id] for run_id in batch.run_ids]

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that must be prepared."""
        return tuple(sorted({point.dataset for point in self.points}))


def select(settings: Settings, paper: str) -> Settings:
    """The settings with one paper's experiments only. Batches stay whole, so that their ids stay the same."""
    experiments = tuple(one for one in settings.experiments if one.paper == paper)
    names = {one.name for one in experiments}
    wanted = {
        point.run_id
        for point in settings.points
        if any(title.split("/")[0] in names for title in point.experiments)
    }
    batches = tuple(batch for batch in settings.batches if wanted.intersection(batch.run_ids))
    kept = {run_id for batch in batches for run_id in batch.run_ids}
    points = tuple(point for point in settings.points if point.run_id in kept)
    projected = tuple(point for point in settings.projected if point.paper == paper)
    return dataclasses.replace(
        settings, experiments=experiments, points=points, projected=projected, batches=batches
    )


def counts(settings: Settings) -> dict[str, dict[str, int]]:
    """Number of points by method and evidence."""
    table: dict[str, dict[str, int]] = {}
    for point in (*settings.points, *settings.projected):
        row = table.setdefault(point.method, {})
        row[point.evidence] = row.get(point.evidence, 0) + 1
    return table


def describe(settings: Settings) -> str:
    """The tier in a few lines: points by method and evidence, and the jobs that run them."""
    table = counts(settings)
    evidence = [kind for kind in EVIDENCE if any(kind in row for row in table.values())]
    rows = [["method", *evidence, "points"]]
    rows += [
        [name, *(str(row.get(kind, 0)) for kind in evidence), str(sum(row.values()))]
        for name, row in table.items()
    ]
    sums = [sum(row.get(kind, 0) for row in table.values()) for kind in evidence]
    rows.append(["all", *map(str, sums), str(sum(sums))])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    jobs = f"{len(settings.points)} points in {len(settings.batches)} jobs"
    head = f"tier {settings.tier} ({settings.configfile}): {jobs}"
    experiments = ", ".join(f"{one.name} ({len(one.sweeps)} sweeps)" for one in settings.experiments)
    lines += expectation(settings)
    return "\n".join(
        [head, f"experiments: {experiments}", f"clusters: {', '.join(settings.clusters)}", *lines]
    )


def expectation(settings: Settings) -> list[str]:
    """How long the tier takes, paper by paper, as its file says; a line, or none where it does not say."""
    if not settings.expected:
        return []
    hours = settings.expected["hours"]
    papers = list(dict.fromkeys(one.paper for one in settings.experiments))
    told = {paper: hours[paper] for paper in (*papers, OTHER) if paper in hours}
    parts = ", ".join(f"{paper} {duration(value)}" for paper, value in told.items())
    unknown = [paper for paper in papers if paper not in hours]
    more = f", without {' and '.join(unknown)}, of which no time is known" if unknown else ""
    total = duration(sum(told.values()))
    return [f"expected to take {total}{more}: {parts} ({settings.expected['how']})"]


def duration(hours: float) -> str:
    """Hours as one would say them."""
    if hours < 1 / 60:
        return "< 1 min"
    return f"{hours * 60:.0f} min" if hours < 1.5 else f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"
