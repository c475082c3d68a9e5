"""Networks, each able to hold the weights of many workers at once.

``BUILDERS`` names the module of each model and the arguments it takes; nothing here imports torch, so that config
can be checked in a moment.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from implementations.models.worker_model import WorkerModel

# Argument checks are JSON schemas; config reports what breaks them.
BUILDERS: dict[str, dict[str, Any]] = {
    "fc": {
        "module": "implementations.models.fc",
        "schema": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "hidden"],
            "properties": {
                "name": {"const": "fc"},
                "hidden": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                "activation": {"enum": ["relu", "sigmoid", "tanh"]},
            },
        },
    },
}


def build(
    model: dict[str, Any], features: int, classes: int, workers: int, generator: torch.Generator
) -> WorkerModel:
    """The model that a point names, with ``workers`` equal copies of its initial weights."""
    module = importlib.import_module(BUILDERS[model["name"]]["module"])
    arguments = {key: value for key, value in model.items() if key != "name"}
    return module.build(features=features, classes=classes, workers=workers, generator=generator, **arguments)
