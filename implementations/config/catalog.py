"""What a point may name: the methods, models and data sets there are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from implementations.registry import Method
from implementations.yamlfile import load_yaml

DATASETS = Path(__file__).parents[2] / "datasets"
RESULTS = Path("results")  # of the working directory
STAND_INS_VARIABLE = "PARATRAIN_STAND_INS"  # names of the data sets that are replaced, joined by commas


@dataclass(frozen=True)
class Catalog:
    """Methods by name, models by name with the JSON schema of their arguments, data sets with their training size.

    The size of a data set is None when it is not known, or when any size can be generated. ``licensed`` data sets
    have sizes and no files that could be had: they can be projected, and trained on once somebody has prepared them.
    ``stand_ins`` names the data set that takes the place of one that cannot be had here.
    """

    methods: Mapping[str, Method]
    models: Mapping[str, dict[str, Any]]
    datasets: Mapping[str, int | None]
    licensed: frozenset[str] = frozenset()
    speech: frozenset[str] = frozenset()  # whose samples are the frames of utterances
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    sparse: frozenset[str] = frozenset()  # data sets whose samples are sparse
    sparse_models: frozenset[str] = frozenset()  # models for these, and for no others

    @classmethod
    def installed(cls) -> Catalog:
        """What this copy of the suite has, and the working directory's results have prepared; imports no torch."""
        from implementations import models, registry

        cards = {path.parent.name: _card(path) for path in sorted(DATASETS.glob("*/card.yaml"))}
        return cls(
            methods=dict(registry.load()),
            models={name: builder["schema"] for name, builder in models.BUILDERS.items()},
            datasets={name: _train_size(card) for name, card in cards.items()},
            licensed=frozenset(
                name for name, card in cards.items() if _is_licensed(card) and not _is_prepared(name)
            ),
            speech=frozenset(name for name, card in cards.items() if card.get("kind") == "speech"),
            stand_ins=_stand_ins(cards),
            sparse=frozenset(name for name, card in cards.items() if card.get("kind") == "sparse"),
            sparse_models=frozenset(
                name
                for name, builder in models.BUILDERS.items()
                if builder.get("inputs", "dense") == "sparse"
            ),
        )


def notices(stand_ins: Mapping[str, str]) -> list[str]:
    """What to tell of the stand-ins in force, a line each."""
    return [
        f"{name} cannot be had here: {stand_in} stands in for it, and every table and figure says so "
        f"(to try again: python -m implementations prepare {name})"
        for name, stand_in in stand_ins.items()
    ]


def _card(path: Path) -> dict[str, Any]:
    """The content of a card. A faulty card is the data loader's to report."""
    try:
        content = load_yaml(path)
    except (yaml.YAMLError, OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _train_size(card: dict[str, Any]) -> int | None:
    """The number of training samples that a card states."""
    try:
        return None if card["kind"] == "synthetic" else int(card["sizes"]["train"])
    except (KeyError, TypeError, ValueError):
        return None


def _is_licensed(card: dict[str, Any]) -> bool:
    """Whether a card names sources but no files: it only tells where the data is sold. Computed data has neither."""
    return bool(card.get("sources")) and not card.get("files")


def _is_prepared(name: str) -> bool:
    return (RESULTS / "data" / name / "summary.json").is_file()


def _stand_ins(cards: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """The stand-ins in force: of data sets that are not there and whose preparation failed.

    A start of the workflow decides once and tells its jobs by an environment variable, as a preparation may fail
    while they run.
    """
    declared = {name: card["stand_in"] for name, card in cards.items() if "stand_in" in card}
    if STAND_INS_VARIABLE in os.environ:
        names = os.environ[STAND_INS_VARIABLE].split(",")
        return {name: stand_in for name, stand_in in declared.items() if name in names}
    return {name: stand_in for name, stand_in in declared.items() if not _is_prepared(name) and _failed(name)}


def _failed(name: str) -> bool:
    """Whether the latest preparation of a data set failed (``implementations.workflow.leave_outcome``)."""
    try:
        outcome = json.loads((RESULTS / "prepared" / f"{name}.json").read_text(encoding="utf-8"))
        return not outcome["ok"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
