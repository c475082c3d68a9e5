"""Extreme-classification files, the text format of the Extreme Classification Repository (Bhatia et al.).

The first line is ``points features labels``; a line a point follows, ``l1,l2 f:v f:v``, with numbers from 0. The part
before the first space is empty where a point has no label.
"""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from implementations.data import sparse
from implementations.errors import UserError
from implementations.seeds import numpy_stream

if TYPE_CHECKING:
    from scipy.sparse import csr_array

VALID_SHARE = 0.1  # of the training points, as such files come as train and test only

_MASTER = 0  # splits belong to the data set
_MOST = np.iinfo(np.int32).max  # points, features and labels; numbers of the latter are stored as int32
_BLOCK = 4096  # points parsed at once: enough to be quick, little to hold as Python objects
_POINT = re.compile(rb"(?:(\d+(?:,\d+)*)(?!\S))?((?:\s+\d+:[-+.\deE]+)*)\s*")
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class Points(NamedTuple):
    """What a file holds: ``features`` (points, features) float32, ``labels`` (points, labels) of ones; both sorted."""

    features: csr_array
    labels: csr_array


def read(path: str | Path) -> Points:
    """The points of a file, plain or packed (``.gz``, ``.xz``); those without a label have an empty row.

    Memory is that of the arrays, not of the text. UserError names file and line where the header's counts are not
    those of the file, a number is out of the header's range or stands twice, or a line is damaged.
    """
    path = Path(path)
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            return _read(file, path)
    except _DAMAGE as error:
        raise UserError(f"{path}: not a whole {path.suffix} file: {error}") from error


def labelled(points: Points, path: str | Path) -> Points:
    """The points that have a label, which alone can be learnt from and scored; UserError if none has."""
    rows = np.flatnonzero(np.diff(points.labels.indptr))
    if not len(rows):
        held = points.labels.shape[0]
        raise UserError(f"{path}: none of its {held} points has a label; needed: the file with its labels")
    return Points(points.features[rows], points.labels[rows])


def prepare(train: Path, test: Path, out: Path, name: str) -> dict[str, Any]:
    """Write the data set of two files below ``out``; returns the summary's facts.

    A tenth of the training points, drawn by a fixed seed, becomes valid; the others stand in random order, so that
    the first n are a random subset. Points without a label are left out.
    """
    parts = {path: read(path) for path in (train, test)}
    if len({(one.features.shape[1], one.labels.shape[1]) for one in parts.values()}) != 1:
        raise UserError(f"{train} and {test}: line 1: numbers of features and labels differ between the two")
    whole, tested = (labelled(one, path) for path, one in parts.items())
    points = whole.labels.shape[0]
    order = numpy_stream(_MASTER, "data", name, "valid").permutation(points)
    held_out = round(VALID_SHARE * points)
    if not 0 < held_out < points:
        raise UserError(f"{train}: {points} points with a label; needed: 10 or more, as a tenth is held out")
    valid, kept = np.sort(order[:held_out]), order[held_out:]
    splits = {
        "train": (whole.features[kept], whole.labels[kept]),
        "valid": (whole.features[valid], whole.labels[valid]),
        "test": tuple(tested),
    }
    return sparse.write_splits(out, splits)


class _Damaged(Exception):
    """What is wrong with some line."""


class _Rows(NamedTuple):
    """Rows of a sparse matrix: how many entries each has, and these."""

    lengths: np.ndarray
    indices: np.ndarray
    values: np.ndarray


def _read(file: IO[bytes], path: Path) -> Points:
    points, features, labels = _header(file.readline(), path)
    done, blocks = 0, []
    while lines := list(islice(file, min(_BLOCK, points - done))):
        try:
            blocks.append(_parse(lines, features, labels))
        except _Damaged:
            raise UserError(f"{path}: {_first_fault(lines, done + 2, features, labels)}") from None
        done += len(lines)
    if done < points:
        raise UserError(f"{path}: ends after line {done + 1}, with {done} points; its header says {points}")
    for number, line in enumerate(file, points + 2):
        if line.strip():
            raise UserError(f"{path}: line {number}: one point more than the {points} of the header")
    x, y = (list(rows) for rows in zip(*blocks))
    return Points(_matrix(x, features), _matrix(y, labels))


def _header(line: bytes, path: Path) -> list[int]:
    counts = line.split()
    if len(counts) != 3 or not all(
        field.isdigit() and len(field) <= len(str(_MOST)) and 0 < int(field) <= _MOST for field in counts
    ):
        wanted = f"points features labels, three counts from 1 to {_MOST}"
        raise UserError(f"{path}: line 1: got {_shown(line)}; needed: {wanted}")
    return list(map(int, counts))


def _parse(lines: list[bytes], features: int, labels: int) -> tuple[_Rows, _Rows]:
    """Features and labels of these lines; _Damaged if any of them is wrong."""
    found = [_POINT.fullmatch(line) for line in lines]
    if None in found:
        raise _Damaged(
            f"got {_shown(lines[found.index(None)])}; needed: label,label feature:value feature:value"
        )
    tokens = b"".join(one[2] for one in found).replace(b":", b" ").split()
    marks = [one[1].split(b",") if one[1] else [] for one in found]
    try:
        with np.errstate(over="ignore"):  # to infinity, which is refused below
            values = np.array(list(map(float, tokens[1::2])), dtype=np.float32)
    except ValueError as error:
        raise _Damaged(str(error)) from error
    if not np.isfinite(values).all():
        raise _Damaged("a value is out of the range of float32")
    x = _rows([one[2].count(b":") for one in found], tokens[::2], values, features, "feature")
    fields = [mark for some in marks for mark in some]
    y = _rows(list(map(len, marks)), fields, np.ones(len(fields), np.float32), labels, "label")
    return x, y


def _rows(lengths: list[int], fields: list[bytes], values: np.ndarray, limit: int, what: str) -> _Rows:
    """Rows with sorted numbers below ``limit``, none of them twice."""
    try:
        numbers = list(map(int, fields))
    except ValueError as error:  # thousands of digits
        raise _Damaged(f"a {what} that is no number: {error}") from error
    if numbers and max(numbers) >= limit:
        raise _Damaged(f"{what} {max(numbers)} is out of range; by the header: 0 to {limit - 1}")
    indices, lengths = np.array(numbers, dtype=np.int32), np.array(lengths, dtype=np.int64)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((indices, owners))
    indices = indices[order]
    if (twice := (np.diff(indices) == 0) & (np.diff(owners) == 0)).any():
        raise _Damaged(f"{what} {indices[:-1][twice][0]} stands twice")
    return _Rows(lengths, indices, values[order])


def _first_fault(lines: list[bytes], number: int, features: int, labels: int) -> str:
    for here, line in enumerate(lines, number):
        try:
            _parse([line], features, labels)
        except _Damaged as fault:
            return f"line {here}: {fault}"
    raise AssertionError("a block is wrong where none of its lines is")


def _matrix(blocks: list[_Rows], width: int) -> csr_array:
    from scipy.sparse import csr_array

    lengths, indices, values = (np.concatenate(parts) for parts in zip(*blocks))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    matrix = csr_array((values, indices, offsets), shape=(len(lengths), width))
    matrix.has_canonical_format = True
    return matrix


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip("\r\n")
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
