"""Files of a user's own data as arrays with labels, by kind of file; each problem is told in one line.

Parts are ``train``, ``valid`` and ``test``; there may be training samples alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from implementations.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from implementations.data.own import Source

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
LABELS = ("label", "target", "class", "y")  # columns that are taken for the classes
_PARTS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Raw:
    """Samples (n, ...) and labels (n,) of each part that is there; ``columns`` of a table, which are standardised."""

    parts: Mapping[str, tuple[np.ndarray, np.ndarray]]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reader:
    """``files``: those whose content counts, by name. ``read``: their content."""

    files: Callable[[Path], dict[str, Path]]
    read: Callable[[Source], Raw]


def reader_of(path: Path) -> Reader:
    """Who reads such a file or folder; UserError where nobody does."""
    if path.is_dir():
        return Reader(_image_files, _read_images)
    if not path.exists():
        raise UserError(f"--data {path}: there is no such file or folder")
    read = {".npz": _read_npz, ".pt": _read_pt, ".csv": _read_table, ".parquet": _read_table}.get(path.suffix)
    if read is None:
        raise UserError(f"--data {path}: write a folder of images, or a file .npz, .pt, .csv or .parquet")
    return Reader(lambda one: {one.suffix: one}, read)


# Images


def _image_files(folder: Path) -> dict[str, Path]:
    found = (path for path in folder.rglob("*") if _is_image(path))
    files = {path.relative_to(folder).as_posix(): path for path in found}
    if not files:
        raise UserError(
            f"--data {folder}: holds no images; needed: FOLDER/CLASS/*.png, a folder for each class"
        )
    return files


def _read_images(source: Source) -> Raw:
    folder = source.path
    named = {one.name.lower(): one for one in folder.iterdir() if one.is_dir()}
    by_part = {_PARTS[name]: one for name, one in named.items() if name in _PARTS}
    if "train" not in by_part:
        by_part = {"train": folder}
    paths = {part: _by_class(one) for part, one in by_part.items()}
    every = [path for found in paths.values() for path, _ in found]
    side, mode, notes = _form(folder, every, source.side)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = {
            part: (
                np.stack(list(pool.map(lambda pair: _image(pair[0], side, mode), found))),
                np.array([label for _, label in found]),
            )
            for part, found in paths.items()
        }
    return Raw(parts, notes=notes)


def _by_class(folder: Path) -> list[tuple[Path, str]]:
    """The images of a part with their classes, which are folders; in order of their names."""
    loose = next((path for path in folder.iterdir() if _is_image(path)), None)
    if loose is not None:
        raise UserError(f"--data {folder}: {loose.name} lies in no class folder; needed: FOLDER/CLASS/*.png")
    found = []
    for one in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        images = sorted(path for path in one.rglob("*") if _is_image(path))
        if not images:
            raise UserError(f"--data {one}: class {one.name} has no images; fill the folder, or delete it")
        found += [(path, one.name) for path in images]
    return found


def _is_image(path: Path) -> bool:
    # "._NAME": what some systems' archivers leave beside a file
    return path.suffix.lower() in IMAGES and not path.name.startswith(".") and path.is_file()


def _form(folder: Path, paths: Iterable[Path], side: int | None) -> tuple[int | None, str, tuple[str, ...]]:
    """The side to resize to, if any, and "L" where all images are grey, else "RGB"."""
    first: dict[tuple[int, int], Path] = {}
    modes = set()
    for path in paths:
        with _opened(path) as image:
            first.setdefault(image.size, path)
            modes.add(image.mode)
    mode = "L" if modes <= {"L", "1"} else "RGB"
    if side is not None:
        return side, mode, (f"images resized to {side} x {side}",)
    if len(first) > 1:
        (one, a), (other, b) = list(first.items())[:2]
        raise UserError(
            f"--data {folder}: images of several sizes ({a.name} {one[0]} x {one[1]}, {b.name} {other[0]} x "
            f"{other[1]}); say --image-size SIDE"
        )
    return None, mode, ()


def _image(path: Path, side: int | None, mode: str) -> np.ndarray:
    """(channels, height, width) uint8; resized along its shorter side, and its centre cut out."""
    with _opened(path) as image:
        try:
            found = image.convert(mode)
        except (OSError, SyntaxError, ValueError) as error:
            _damaged(path, error)
    if side is not None:
        found = ImageOps.fit(found, (side, side), Image.Resampling.BILINEAR)
    pixels = np.asarray(found)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except UnidentifiedImageError:
        _damaged(path, "not an image")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        _damaged(path, error)


def _damaged(path: Path, why: object) -> NoReturn:
    name = "/".join(path.parts[-2:])
    raise UserError(f"--data: image {name} is damaged: {why}; put it right, or delete it") from None


# Arrays


def _read_npz(source: Source) -> Raw:
    try:
        with np.load(source.path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except ValueError as error:
        objects = "Object arrays" in str(error)
        why = "holds Python objects; needed: arrays of numbers" if objects else f"is damaged: {error}"
        raise UserError(f"--data {source.path}: {why}") from None
    except Exception as error:  # whatever a broken archive raises
        raise UserError(f"--data {source.path}: is damaged: {error}") from None
    return _arrays(source.path, arrays)


def _read_pt(source: Source) -> Raw:
    import torch

    try:
        found = torch.load(source.path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a broken or foreign file raises
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"--data {source.path}: holds no tensors alone ({why})") from None
    if isinstance(found, tuple | list) and len(found) == 2:
        found = {"x": found[0], "y": found[1]}
    if not isinstance(found, dict):
        raise UserError(f"--data {source.path}: a {type(found).__name__}; needed: a dict with x and y")
    tensors = {str(name): one.numpy() for name, one in found.items() if isinstance(one, torch.Tensor)}
    return _arrays(source.path, tensors)


def _arrays(where: Path, arrays: Mapping[str, np.ndarray]) -> Raw:
    """Parts of x and y, or x_train and y_train with those of valid and test, whatever else there is."""
    named = {name.lower(): array for name, array in arrays.items()}
    pairs = {"train": (named["x"], named["y"])} if {"x", "y"} <= set(named) else {}
    for name, part in _PARTS.items():
        if {f"x_{name}", f"y_{name}"} <= set(named):
            pairs[part] = named[f"x_{name}"], named[f"y_{name}"]
    if "train" not in pairs:
        raise UserError(
            f"--data {where}: holds {', '.join(arrays) or 'nothing'}; needed: x and y, or x_train and y_train (and "
            "x_valid, y_valid, x_test, y_test)"
        )
    notes: tuple[str, ...] = ()
    parts = {}
    for part, (x, y) in pairs.items():
        if x.dtype.kind not in "buif" or x.ndim < 2:
            kind = f"{x.dtype}, {' x '.join(map(str, x.shape))}"
            raise UserError(f"--data {where}: x of {part} is {kind}; needed: numbers, samples x values")
        if len(x) != len(y):
            raise UserError(f"--data {where}: {part} has {len(x)} samples and {len(y)} labels")
        x = _compact(x)
        if x.ndim == 4 and x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
            x, notes = np.ascontiguousarray(x.transpose(0, 3, 1, 2)), ("channels moved from last to first",)
        parts[part] = x, _labels(where, y)
    if len(shapes := {x.shape[1:] for x, _ in parts.values()}) > 1:
        told = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
        raise UserError(f"--data {where}: samples of several sizes: {told}")
    return Raw(parts, notes=notes)


def _compact(x: np.ndarray) -> np.ndarray:
    """As bytes or float32, which is all that training uses."""
    if x.dtype.kind == "b" or x.dtype == np.uint8:
        return x.astype(np.uint8)
    return x.astype(np.float32)


def _labels(where: Path, y: np.ndarray) -> np.ndarray:
    """Labels (n,) as whole numbers or words."""
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        sizes = " x ".join(map(str, y.shape))
        raise UserError(f"--data {where}: labels are {sizes}; needed: one class for each sample")
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            raise UserError(f"--data {where}: a label is {y[~np.isfinite(y)][0]}; each sample needs a class")
        if (y != np.round(y)).any():
            wrong = y[y != np.round(y)][0]
            raise UserError(f"--data {where}: label {wrong} is no class; the suite trains classifiers only")
        y = y.astype(np.int64)
    return y.astype(str) if y.dtype.kind == "O" else y


# Tables


def _read_table(source: Source) -> Raw:
    import pandas as pd

    where = source.path
    try:
        table = pd.read_parquet(where) if where.suffix == ".parquet" else pd.read_csv(where)
    except Exception as error:  # whatever a broken file raises
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"--data {where}: cannot be read as a table: {why}") from None
    if table.empty:
        raise UserError(f"--data {where}: has no rows")
    label = _label_column(source, table)
    if table[label].isna().any():
        raise UserError(f"--data {where}: column {label} has rows without a class; leave them out")
    labels = _labels(where, table.pop(label).to_numpy())
    given = table.pop("split") if "split" in table and table["split"].dtype.kind not in "if" else None
    values = _numbers(where, table)
    columns = tuple(map(str, table.columns))
    if given is None:
        return Raw({"train": (values, labels)}, columns)
    known = given.map(lambda word: _PARTS.get(str(word).lower()))
    if known.isna().any():
        wrong = given[known.isna()].iloc[0]
        raise UserError(f"--data {where}: column split says {wrong!r}; allowed: train, valid, test")
    parts = {part: (known == part).to_numpy() for part in known.unique()}
    if "train" not in parts:
        raise UserError(f"--data {where}: column split has no train")
    return Raw({part: (values[rows], labels[rows]) for part, rows in parts.items()}, columns)


def _label_column(source: Source, table: pd.DataFrame) -> str:
    names = [str(name) for name in table.columns]
    table.columns = names
    found = source.label or next((name for name in LABELS if name in names), None)
    if found not in names:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        what = f"has no column {found}" if found else "say which column has the classes, by --label"
        raise UserError(f"--data {source.path}: {what}; columns: {some}")
    return found


def _numbers(where: Path, table: pd.DataFrame) -> np.ndarray:
    """The columns as float32 (n, columns)."""
    if not len(table.columns):
        raise UserError(f"--data {where}: has no column beside the classes")
    words: list[Any] = [name for name in table.columns if table[name].dtype.kind not in "buif"]
    if words:
        raise UserError(
            f"--data {where}: column {words[0]} holds no numbers ({len(words)} such); write them as numbers, or leave "
            "them out"
        )
    return table.to_numpy(dtype=np.float32, na_value=np.nan)
