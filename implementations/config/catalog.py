"""What a point may name: the methods, models and data sets there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from implementations.registry import Method

DATASETS = Path(__file__).parents[2] / "datasets"


@dataclass(frozen=True)
class Catalog:
    """Methods by name, models by name with the JSON schema of their arguments, data sets with their training size.

    The size of a data set is None when it is not known, or when any size can be generated.
    """

    methods: Mapping[str, Method]
    models: Mapping[str, dict[str, Any]]
    datasets: Mapping[str, int | None]

    @classmethod
    def installed(cls) -> Catalog:
        """What this copy of the suite has; imports no torch."""
        from implementations import models, registry

        return cls(
            methods=dict(registry.load()),
            models={name: builder["schema"] for name, builder in models.BUILDERS.items()},
            datasets={card.parent.name: _train_size(card) for card in sorted(DATASETS.glob("*/card.yaml"))},
        )


def _train_size(card: Path) -> int | None:
    """The number of training samples that a card states. A faulty card is the data loader's to report."""
    try:
        content = yaml.safe_load(card.read_text(encoding="utf-8"))
        return None if content["kind"] == "synthetic" else int(content["sizes"]["train"])
    except (yaml.YAMLError, OSError, KeyError, TypeError, ValueError):
        return None
