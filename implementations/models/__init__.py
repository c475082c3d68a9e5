"""Networks, each able to hold the weights of many workers at once.

``BUILDERS`` names the module of each model, the inputs and the arguments that it takes; nothing here imports torch,
so that config can be checked in a moment.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from implementations.errors import UserError

if TYPE_CHECKING:
    import torch

    from implementations.models.worker_model import WorkerModel

_WIDTHS = {"type": "array", "items": {"type": "integer", "minimum": 1}}
_OUTPUT, _STATISTICS = ["norm", "mean"], ["population", "batch"]


def _schema(
    name: str, required: tuple[str, ...] = ("hidden",), **arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["name", *required],
        "properties": {"name": {"const": name}, **arguments},
    }


_WIDTH = {"type": "number", "exclusiveMinimum": 0, "default": 1, "title": "number > 0"}


def _convnet(name: str, **arguments: dict[str, Any]) -> dict[str, Any]:
    """An entry of ``BUILDERS``: ``image`` is the side of its images, which data give where there are any."""
    image = {"type": "integer", "minimum": 1}
    return {
        "module": "implementations.models.convnets",
        "named": True,
        "inputs": "dense",
        "schema": _schema(name, required=(), image=image, **arguments),
    }


def _dropout(default: float) -> dict[str, Any]:
    return {
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
        "default": default,
        "title": "number >= 0 and < 1",
    }


def _recurrent(name: str) -> dict[str, Any]:
    """An entry of ``BUILDERS``: ``masked`` where the last value of each of the ``steps`` of a sample is a mask."""
    arguments = {
        "steps": {"type": "integer", "minimum": 1},
        "hidden": {**_WIDTHS, "minItems": 1},
        "masked": {"type": "boolean", "default": False},
    }
    return {
        "module": "implementations.models.recurrent",
        "named": True,
        "inputs": "dense",
        "schema": _schema(name, required=("steps", "hidden"), **arguments),
    }


# Argument checks are JSON schemas; config reports what breaks them. ``split`` has the first letter of the labels of a
# model's units and the argument that says how many there are (``h1`` are the units of ``hidden[0]``);
# a model without it cannot be split. ``named``: its module builds several models, and is told which.
BUILDERS: dict[str, dict[str, Any]] = {
    "fc": {
        "module": "implementations.models.fc",
        "inputs": "dense",
        "split": ("h", "hidden"),
        "schema": _schema("fc", hidden=_WIDTHS, activation={"enum": ["relu", "sigmoid", "tanh"]}),
    },
    "fc_bn": {
        "module": "implementations.models.fc_bn",
        "inputs": "dense",
        "split": ("h", "hidden"),
        "schema": _schema(
            "fc_bn",
            hidden=_WIDTHS,
            output={"enum": _OUTPUT, "default": "norm"},
            statistics={"enum": _STATISTICS, "default": "population"},
            dropout=_dropout(0),
        ),
    },
    "bow": {
        "module": "implementations.models.bow",
        "inputs": "sparse",
        "split": ("h", "hidden"),
        "schema": _schema(
            "bow",
            hidden={**_WIDTHS, "minItems": 1, "maxItems": 1, "title": "array of one integer >= 1"},
            output={"enum": _OUTPUT, "default": "mean"},
            statistics={"enum": _STATISTICS, "default": "population"},
            norm_hidden={"type": "boolean", "default": True},
        ),
    },
    "resnet": {
        "module": "implementations.models.resnet",
        "inputs": "dense",
        "split": ("s", "blocks"),
        "schema": _schema(
            "resnet",
            required=("hidden", "blocks"),
            hidden={**_WIDTHS, "minItems": 1},
            blocks={"type": "array", "items": {"type": "integer", "minimum": 0}},
            split={
                "type": "array",
                "items": {"type": "integer", "minimum": 1},
                "minItems": 1,
                "uniqueItems": True,
            },
            min_blocks={"type": "integer", "minimum": 0, "default": 1},
            statistics={"enum": _STATISTICS, "default": "population"},
        ),
    },
    "cnn": {
        "module": "implementations.models.cnn",
        "inputs": "dense",
        "schema": _schema(
            "cnn",
            required=("filters", "hidden"),
            filters={**_WIDTHS, "minItems": 1},
            kernel={"enum": [1, 3, 5, 7, 9, 11], "default": 5},
            hidden=_WIDTHS,
        ),
    },
    "lenet5": _convnet("lenet5"),
    "alexnet": _convnet(
        "alexnet",
        width=_WIDTH,
        dropout=_dropout(0.5),
        fc_input={"enum": [9216, 12544], "default": 9216},
    ),
    "alexnet_small": _convnet("alexnet_small", width=_WIDTH, dropout=_dropout(0)),
    "vgg16": _convnet("vgg16", width=_WIDTH, dropout=_dropout(0.5)),
    "vgg_small": _convnet("vgg_small", width=_WIDTH, dropout=_dropout(0)),
    "inception_v3": _convnet("inception_v3", width=_WIDTH, dropout=_dropout(0.5)),
    "resnet50": _convnet("resnet50", width=_WIDTH),
    "rnn": _recurrent("rnn"),
    "lstm": _recurrent("lstm"),
    # a network of the user's: where its code is, the sizes of a sample, and what the code is called with
    "user": {
        "module": "implementations.models.user",
        "inputs": "dense",
        "schema": _schema(
            "user",
            required=("path", "input"),
            path={"type": "string", "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", "title": "MODULE:CLASS"},
            input={"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
            args={"type": "object", "default": {}},
        ),
    },
}


def build(
    model: dict[str, Any], features: int, classes: int, workers: int, generator: torch.Generator
) -> WorkerModel:
    """The model that a point names, with ``workers`` equal copies of its initial weights.

    UserError for arguments that do not fit together (``check``), the data set or the number of workers.
    """
    for problem in check(model):
        raise UserError(f"model {model['name']}: {problem}")
    builder = BUILDERS[model["name"]]
    module = importlib.import_module(builder["module"])
    arguments = {key: value for key, value in model.items() if key != "name" or builder.get("named")}
    return module.build(features=features, classes=classes, workers=workers, generator=generator, **arguments)


def check(model: dict[str, Any]) -> list[str]:
    """What is wrong with a description that its schema lets pass, as lines ``argument: got X; allowed: Y``."""
    problems = []
    if "blocks" in model and len(model["blocks"]) != len(model["hidden"]):
        problems.append(
            f"blocks: got {model['blocks']}; allowed: a number for each of hidden {model['hidden']}"
        )
    sections = len(model.get("hidden", ()))
    if any(section > sections for section in model.get("split", ())):
        problems.append(f"split: got {model['split']}; allowed: sections 1 to {sections}")
    return problems


def narrow(model: dict[str, Any], units: Mapping[str, int]) -> dict[str, Any]:
    """The description of a subnet of ``model`` with so many units of each label; others stay as they are."""
    letter, argument = BUILDERS[model["name"]]["split"]
    sizes = list(model[argument])
    for label, count in units.items():
        sizes[int(label.removeprefix(letter)) - 1] = count
    return {**model, argument: sizes}


def split_units(model: dict[str, Any]) -> dict[str, int]:
    """How many units of each label the model that is described has (``WorkerModel.units``)."""
    if "split" not in BUILDERS[model["name"]]:
        return {}
    letter, argument = BUILDERS[model["name"]]["split"]
    last = len(model[argument])
    places = model.get("split", [last]) if argument == "blocks" else range(1, last + 1)
    return {f"{letter}{place}": model[argument][place - 1] for place in places}


def least_units(model: dict[str, Any]) -> int:
    """The least number of a label's units that a subnet has (``WorkerModel.min_units``)."""
    return model.get("min_blocks", 1)


def without_defaults(model: dict[str, Any]) -> dict[str, Any]:
    """The description without the arguments that say what goes without saying, so that equal nets are written alike."""
    properties = BUILDERS[model["name"]]["schema"]["properties"]
    return {
        key: value
        for key, value in model.items()
        if key not in properties or value != properties[key].get("default")
    }
