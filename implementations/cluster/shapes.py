"""Which training steps a calibration times: a fixed list of sizes to interpolate between, and those of given points.

A shape is a mapping: ``label`` (of the step table), ``model``, ``features``, ``classes``, ``minibatch``, and where they
are not the plain ones ``optimizer`` (its name and settings) and ``threads`` (besides one, how many).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any


def _plain(width: int, sizes: dict[str, int], minibatch: int) -> dict[str, Any]:
    """Two layers trained by plain SGD."""
    model = {"name": "fc", "hidden": [width, width]}
    return {"label": f"fc-{width}-{width}", "model": model, **sizes, "minibatch": minibatch}


# What is measured whatever the points use: sizes to interpolate between.
DIGITS = {"features": 64, "classes": 10}
IMAGES = {"features": 784, "classes": 10}
FIXED: tuple[dict[str, Any], ...] = (
    _plain(64, DIGITS, 16),
    *(_plain(width, IMAGES, 64) for width in (128, 256, 512, 1024)),
    *(_plain(512, IMAGES, minibatch) for minibatch in (16, 256)),
)
# What measured runs time beside themselves; calibration has it too, with as many ranks busy.
PACE = _plain(256, IMAGES, 64)
QUICK = (*FIXED[:2], PACE)
# Networks of 0.2 to 9 MB between whose steps an all-reduce is timed.
EXCHANGING = tuple(_plain(width, IMAGES, 16) for width in (64, 192, 512, 1152))
# A step that is all overhead.
TINY = {"label": "fc-8", "model": {"name": "fc", "hidden": [8]}, "features": 8, "classes": 2, "minibatch": 1}


def wanted(shapes: Iterable[dict[str, Any]], quick: bool, cores: int) -> list[dict[str, Any]]:
    """The fixed list, by one thread and by all, and the given shapes; each once."""
    fixed = QUICK if quick else FIXED
    return distinct([*({**shape, "threads": cores} if cores > 1 else shape for shape in fixed), *shapes])


def by(threads: int, shapes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The shapes to time by so many threads: all of them by one, and by more those that ask for it."""
    found = [shape for shape in shapes if threads in (1, shape.get("threads", 1))]
    return distinct({key: value for key, value in shape.items() if key != "threads"} for shape in found)


def of_points(points: Iterable[Any]) -> list[dict[str, Any]]:
    """The distinct training steps of points; the cards of their data sets tell the sizes.

    Steps on sparse inputs are not timed: how long they take depends on the samples. Nor are those of points that are
    not ``timed``.
    """
    from implementations import recipe, registry
    from implementations.data.cards import load_card
    from implementations.models import BUILDERS

    shapes = []
    for point in points:
        method = registry.get(point.method)
        if BUILDERS[point.model["name"]]["inputs"] == "sparse" or not timed(point):
            continue
        sizes = load_card(point.dataset).sizes
        point = method.worker_point(point)
        shape = {
            "label": point.step_label,
            "model": dict(point.model),
            "features": math.prod(sizes["input_shape"]),
            "classes": sizes["classes"],
            "minibatch": point.minibatch,
        }
        if point.optimizer != "sgd":
            shape["optimizer"] = {"name": point.optimizer, **recipe.settings(point)}
        if point.threads_per_worker > 1:
            shape["threads"] = point.threads_per_worker
        shapes.append(shape)
    return distinct(shapes)


def timed(point: Any) -> bool:
    """Whether a point's step is worth timing by itself.

    Not where its method has a cost model of its own, nor where gradients' norms are taken, which show convergence.
    """
    from implementations import registry

    return not registry.get(point.method).own_cost_model and not point.gradient_norms


def distinct(shapes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each shape once, in order."""
    return [json.loads(text) for text in dict.fromkeys(json.dumps(shape, sort_keys=True) for shape in shapes)]
