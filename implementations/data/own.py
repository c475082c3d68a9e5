"""A user's own data: a folder of images, arrays or a table, prepared once into ``results/data/user_<hash>``.

The hash is that of the files' content and of how they are read, so that changed data are another data set. From there
on all is as for the suite's own: the folder has the same arrays and the same ``summary.json``.

Parts that the data do not have are held out of the training samples, class by class, by a seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from implementations.data import own_readers
from implementations.data.arrays import Arrays, split_indices, write_splits
from implementations.data.own_readers import Raw
from implementations.data.preparation import install, locked
from implementations.data.summary import SPLITS, find_fault, sha256
from implementations.errors import UserError

PREFIX = "user_"
HELD_OUT = 0.1  # share of the samples that each part gets that is not given
_FORMAT = 1  # raise it when the same files would give other arrays


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the data lie and how they are read.

    label: of a table, the column with the classes.
    side: of images, to be resized to squares of so many pixels.
    split_seed: of the parts that are held out.
    """

    path: Path
    label: str | None = None
    side: int | None = None
    split_seed: int = 0


def prepare(source: Source, results: str | Path = "results") -> str:
    """Make ``results/data/user_<hash>`` unless it is there and whole; returns the data set's name.

    UserError in one line for data that are missing, damaged, or nothing to train a classifier with.
    """
    reader = own_readers.reader_of(source.path)
    name = PREFIX + _hash(source, reader.files(source.path))
    folder = Path(results) / "data" / name
    try:
        if find_fault(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(folder.parent / f".{name}.lock"):
                if find_fault(folder):  # nobody has made it while we waited
                    install(folder, lambda _, out: _made(name, source, reader, out))
    except OSError as error:
        raise UserError(f"cannot prepare {source.path} in {folder}: {error}") from error
    return name


def _hash(source: Source, files: Mapping[str, Path]) -> str:
    options = [_FORMAT, source.label, source.side, source.split_seed]
    digest = hashlib.sha256(json.dumps(options).encode())
    for name, path in sorted(files.items()):
        digest.update(f"\n{name} {sha256(path)}".encode())
    return digest.hexdigest()[:10]


def _made(name: str, source: Source, reader: Any, out: Path) -> dict[str, Any]:
    """Write the arrays; the summary but for what ``install`` adds."""
    raw: Raw = reader.read(source)
    where = source.path
    classes = _classes(where, raw.parts)
    place = {one: number for number, one in enumerate(classes)}
    parts = {
        part: (x, np.array([place[one] for one in labels.tolist()], np.int64))
        for part, (x, labels) in raw.parts.items()
    }
    parts = _split(where, parts, [str(one) for one in classes], source.split_seed)
    for part, (x, _) in parts.items():
        _check_finite(where, part, x, raw.columns)
    if raw.columns:
        parts = _standardised(parts)
    facts = write_splits(out, parts, classes=len(classes))
    if facts["std"] == 0:
        raise UserError(f"--data {where}: all values are {facts['mean']:g}; there is nothing to learn from")
    return {
        "name": name,
        "title": f"{where.name}, your own",
        "kind": "images" if len(facts["input_shape"]) == 3 else "vectors",
        "licence": "your own",
        **facts,
        "class_names": [str(one) for one in classes],
        **({"columns": list(raw.columns)} if raw.columns else {}),
        "split_seed": source.split_seed,
        "sources": {"path": str(where), "notes": list(raw.notes)},
    }


def _classes(where: Path, parts: Mapping[str, Arrays]) -> list[Any]:
    """The classes in order; UserError where there are fewer than two, or some that training never sees."""
    by_part = {part: set(labels.tolist()) for part, (_, labels) in parts.items()}
    classes = sorted(by_part["train"])
    for part, found in by_part.items():
        if unseen := sorted(found - by_part["train"]):
            raise UserError(f"--data {where}: class {unseen[0]!r} is in {part} and not in train")
    if len(classes) < 2:
        only = f"one class, {classes[0]}" if classes else "no samples"
        raise UserError(f"--data {where}: {only}; needed: samples of two classes or more")
    return classes


def _split(where: Path, parts: Mapping[str, Arrays], classes: list[str], seed: int) -> dict[str, Arrays]:
    """All three parts, those that are not there held out of the training samples; these stand in random order."""
    missing = [part for part in SPLITS if part not in parts]
    x, y = parts["train"]
    per_class = np.bincount(y, minlength=len(classes))
    needed = 1 + len(missing)
    if per_class.min() < needed:
        few = int(per_class.argmin())
        raise UserError(
            f"--data {where}: class {classes[few]} has {per_class[few]} samples for training; needed: at least "
            f"{needed}" + (f", as one each is held out for {' and '.join(missing)}" if missing else "")
        )
    share = max(len(classes), round(HELD_OUT * len(y)))
    if len(y) - share * len(missing) < len(classes):
        raise UserError(
            f"--data {where}: {len(y)} samples of {len(classes)} classes; needed: more, as {share} each are held out "
            f"for {' and '.join(missing)}"
        )
    if missing:
        chosen = split_indices(y, dict.fromkeys(missing, share), f"user/{seed}")
    else:
        chosen = {"train": np.random.default_rng(seed).permutation(len(y))}
    return {**parts, **{part: (x[rows], y[rows]) for part, rows in chosen.items()}}


def _check_finite(where: Path, part: str, x: np.ndarray, columns: tuple[str, ...]) -> None:
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return
    row, *place = (int(index) for index in np.argwhere(~np.isfinite(x))[0])
    there = f"column {columns[place[0]]}" if columns else f"place {tuple(place)} of a sample"
    raise UserError(
        f"--data {where}: {part} has a value that is {x[(row, *place)]} ({there}); fill the gaps, or leave such "
        "samples out"
    )


def _standardised(parts: Mapping[str, Arrays]) -> dict[str, Arrays]:
    """Columns of mean 0 and deviation 1 in training; a column that is always the same becomes 0."""
    train = parts["train"][0].astype(np.float64)
    mean, deviation = train.mean(0), train.std(0)
    deviation[deviation == 0] = 1
    return {part: (((x - mean) / deviation).astype(np.float32), y) for part, (x, y) in parts.items()}
