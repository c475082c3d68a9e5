"""What a ``prepare.py`` needs: stratified splits by a fixed seed, and arrays on disk with their facts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from implementations.data.summary import SPLITS
from implementations.errors import UserError
from implementations.seeds import derive

Arrays = tuple[np.ndarray, np.ndarray]  # x (n, ...), y (n,)

_MASTER = 0  # splits belong to the data set: they do not follow the master seed of an experiment


def split_indices(labels: np.ndarray, held_out: Mapping[str, int], name: str) -> dict[str, np.ndarray]:
    """Indices into ``labels`` of "train" and of each split in ``held_out`` (name: samples), for data set ``name``.

    Splits are disjoint, keep the class shares, and stand in random order, so that the first n training samples
    are a random subset for any n.
    """
    from sklearn.model_selection import train_test_split

    train, parts = np.arange(len(labels)), {}
    for part, samples in held_out.items():
        seed = derive(_MASTER, "data", name, part) % 2**32  # what scikit-learn takes
        split = train_test_split(train, test_size=samples, stratify=labels[train], random_state=seed)
        train, parts[part] = split
    return {"train": train, **parts}


def write_splits(out: Path, splits: Mapping[str, Arrays], classes: int) -> dict[str, Any]:
    """Write ``<split>_x.npy`` (as given) and ``<split>_y.npy`` (int64); returns the summary's facts.

    ``mean`` and ``std`` are those of all training values; loading normalises by them. UserError for labels that
    are not below ``classes``, or splits that do not fit together.
    """
    shapes = {x.shape[1:] for x, _ in splits.values()}
    if set(splits) != set(SPLITS) or len(shapes) != 1:
        got = f"{', '.join(splits)} of shapes {sorted(shapes)}"
        raise UserError(f"{out}: got splits {got}; needed: {', '.join(SPLITS)} of one shape")
    counts = {}
    for part, (x, y) in splits.items():
        if len(x) != len(y) or not len(y) or y.min() < 0 or y.max() >= classes:
            got = f"{len(x)} samples and {len(y)} labels"
            raise UserError(
                f"{out}: {part}: got {got}; needed: as many of both, and labels in 0..{classes - 1}"
            )
        counts[part] = {"samples": len(y), "per_class": np.bincount(y, minlength=classes).tolist()}
        np.save(out / f"{part}_x.npy", np.ascontiguousarray(x), allow_pickle=False)
        np.save(out / f"{part}_y.npy", np.ascontiguousarray(y, dtype=np.int64), allow_pickle=False)
    shape, train = shapes.pop(), splits["train"][0]
    return {
        "classes": classes,
        "input_shape": list(shape),
        "features": math.prod(shape),
        "splits": counts,
        "mean": float(train.mean(dtype=np.float64)),
        "std": float(train.std(dtype=np.float64)),
    }
