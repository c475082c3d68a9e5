"""Sweeps to drafts: every combination of a grid, each value with the place it was written at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from implementations.config.problems import Place, Problems, show

MAX_POINTS = 20_000  # of one sweep: more is a slip in a grid, and expanding it would take all memory


@dataclass
class Layer:
    """What one place adds to a sweep: single values (defaults, set) and a grid with its cases."""

    place: Place
    values: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Any] = field(default_factory=dict)
    values_key: str = "set"
    refused: frozenset[str] = frozenset()  # keys whose value was wrong, and has been reported

    @property
    def values_place(self) -> Place:
        """Where the single values stand: under their key, or in the place itself when that is empty."""
        return self.place.at(self.values_key) if self.values_key else self.place


@dataclass
class Sweep:
    """One sweep of an experiment with the changes of the tier's file laid over it."""

    experiment: str
    name: str
    paper: str
    evidence: str
    place: Place
    layers: list[Layer]
    seeds: list[int]
    repeats: int

    @property
    def refused(self) -> frozenset[str]:
        """Keys that lack because a value was wrong."""
        return frozenset().union(*(layer.refused for layer in self.layers))

    @property
    def title(self) -> str:
        """The name that its points carry."""
        return f"{self.experiment}/{self.name}"


@dataclass
class Draft:
    """A point to be: values by key, and where each was written."""

    sweep: Sweep
    values: dict[str, Any]
    places: dict[str, Place]
    seed: int
    repeat: int

    def place(self, key: str) -> Place:
        """Where the key's value was written; the sweep itself for what was not."""
        return self.places.get(key, self.sweep.place)


Cell = tuple[tuple[str, Any, Place], ...]  # values that go together


def axes(sweep: Sweep, problems: Problems) -> list[list[Cell]]:
    """The sweep's axes: one per key of the grid, one for the cases, one of length 1 with the single values.

    A later layer replaces a key of an earlier one, wherever that stood, and its cases replace all earlier cases.
    Within one layer a key may stand once.
    """
    single: dict[str, tuple[Any, Place]] = {}
    lists: dict[str, list[tuple[Any, Place]]] = {}
    cases: list[Cell] = []
    for layer in sweep.layers:
        _check_once(layer, problems)
        grid_place = layer.place.at("grid")
        listed = {key: values for key, values in layer.grid.items() if key != "cases"}
        new_cases = layer.grid.get("cases", [])
        fresh = {*layer.values, *listed, *itertools.chain.from_iterable(new_cases)}
        for key in fresh:
            single.pop(key, None)
            lists.pop(key, None)
        cases = [tuple(entry for entry in cell if entry[0] not in fresh) for cell in cases]
        for key, value in layer.values.items():
            single[key] = (value, layer.values_place.at(key))
        for key, values in listed.items():
            lists[key] = [(value, grid_place.at(key, index)) for index, value in enumerate(values)]
        if new_cases:
            cases = [
                tuple((key, value, grid_place.at("cases", index, key)) for key, value in case.items())
                for index, case in enumerate(new_cases)
            ]
    result: list[list[Cell]] = [[tuple((key, value, place) for key, (value, place) in single.items())]]
    result += [[((key, value, place),) for value, place in values] for key, values in lists.items()]
    cases = [case for case in cases if case]
    return result + ([cases] if cases else [])


def _check_once(layer: Layer, problems: Problems) -> None:
    """A key may stand in `set`, in the grid or in the cases of one layer, and each case has the same keys."""
    cases = layer.grid.get("cases", [])
    in_cases = set(itertools.chain.from_iterable(cases))
    for key in layer.grid:
        if key in layer.values:
            problems.say(
                layer.place.at("grid", key), f"stands in {layer.values_key} too; keep one of the two"
            )
        if key in in_cases:
            problems.say(layer.place.at("grid", key), "stands in the cases too; keep one of the two")
    for key in sorted(in_cases & set(layer.values)):
        problems.say(
            layer.place.at("grid", "cases"), f"{key} stands in {layer.values_key} too; keep one of the two"
        )
    for index, case in enumerate(cases):
        for key in sorted(in_cases - set(case)):
            problems.say(layer.place.at("grid", "cases", index), f"lacks {key}, which other cases have")


def drafts(sweep: Sweep, problems: Problems) -> Iterator[Draft]:
    """Every combination of the sweep's values, then of seeds and repeats; the first key varies slowest."""
    combined = axes(sweep, problems)
    count = math.prod(map(len, combined)) * len(sweep.seeds) * sweep.repeats
    if count > MAX_POINTS:
        problems.add(sweep.place, f"a grid of {show(count)} points", f"at most {MAX_POINTS} a sweep")
        return
    for cells in itertools.product(*combined):
        entries = [entry for cell in cells for entry in cell]
        values = {key: value for key, value, _ in entries}
        places = {key: place for key, _, place in entries}
        for seed in sweep.seeds:
            for repeat in range(sweep.repeats):
                yield Draft(sweep, values, places, seed, repeat)
