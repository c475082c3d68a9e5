"""What a point may name: the methods, models and data sets there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from implementations.registry import Method
from implementations.yamlfile import load_yaml

DATASETS = Path(__file__).parents[2] / "datasets"


@dataclass(frozen=True)
class Catalog:
    """Methods by name, models by name with the JSON schema of their arguments, data sets with their training size.

    The size of a data set is None when it is not known, or when any size can be generated. ``licensed`` data sets
    have sizes and no files that could be had: they can be projected and not trained on.
    """

    methods: Mapping[str, Method]
    models: Mapping[str, dict[str, Any]]
    datasets: Mapping[str, int | None]
    licensed: frozenset[str] = frozenset()

    @classmethod
    def installed(cls) -> Catalog:
        """What this copy of the suite has; imports no torch."""
        from implementations import models, registry

        cards = {path.parent.name: _card(path) for path in sorted(DATASETS.glob("*/card.yaml"))}
        return cls(
            methods=dict(registry.load()),
            models={name: builder["schema"] for name, builder in models.BUILDERS.items()},
            datasets={name: _train_size(card) for name, card in cards.items()},
            licensed=frozenset(name for name, card in cards.items() if _is_licensed(card)),
        )


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
