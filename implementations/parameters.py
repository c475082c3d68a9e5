"""Method parameters that more than one method takes, declared once so that they mean the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from implementations.registry import Param

if TYPE_CHECKING:
    from implementations.point import Point

ALGORITHM = Param(
    str,
    "library",
    "how an all-reduce is carried out; auto: as library, but the time model may also choose what knows of nodes",
    choices=("library", "ring", "butterfly", "tree", "star", "auto"),
)
LR_SCALING = Param(
    str,
    "none",
    "linear: the learning rate is multiplied by the number of workers",
    choices=("none", "linear"),
)


def check_algorithm(point: Point) -> list[str]:
    """The butterfly pairs worker r with r XOR 2^k and so needs a power of two."""
    workers = point.workers
    if point.method_params.get("algorithm") == "butterfly" and workers & (workers - 1):
        return [f"workers: got {workers}; allowed: a power of two with algorithm butterfly"]
    return []


def scaled_lr(lr: float, lr_scaling: str, workers: int) -> float:
    """The learning rate after linear scaling with the number of workers (Su and Chen 2015, section 2)."""
    return lr * workers if lr_scaling == "linear" else lr
