"""Which program trains a model that a point names."""

from __future__ import annotations

from typing import Any

from implementations.errors import UserError
from implementations.spark.options import CUTS
from implementations.spark.program import Program


def program(
    model: dict[str, Any], features: int, classes: int, workers: int, batch: int, cut: str
) -> Program:
    """The program of ``model`` on ``workers`` workers and ``batch`` samples a step.

    ``cut``: "auto" for the network's usual one. UserError for a model or sizes that cannot be cut so.
    """
    name = model["name"]
    if name not in CUTS:
        raise UserError(
            f"model {name}: its layers cannot be cut; allowed: {', '.join(CUTS)} (or variant data, for any model)"
        )
    cut = CUTS[name][0] if cut == "auto" else cut
    least = min((*model.get("hidden", ()), *model.get("filters", ())), default=workers)
    if cut != "rows" and least < workers:
        raise UserError(
            f"model {name} has a layer of {least} units for {workers} workers; needed: at least one for each "
            f"(lower workers or group_size, or take a wider model)"
        )
    if name == "fc":
        from implementations.spark.fc import FullyConnectedProgram

        widths = [features, *model["hidden"], classes]
        return FullyConnectedProgram(widths, model.get("activation", "relu"), workers, batch)
    if name == "cnn":
        from implementations.spark.cnn import FilterProgram
        from implementations.spark.rows import RowProgram

        return (RowProgram if cut == "rows" else FilterProgram)(model, features, classes, workers, batch)
    from implementations.spark.recurrent import RecurrentProgram

    return RecurrentProgram(model, features, classes, workers, batch)
