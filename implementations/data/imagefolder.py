"""Images in a folder for each class, as ImageNet has them: resized, cropped, and written one after another.

FOLDER/train/CLASS/*.JPEG      for training, of which a share is held out for validation
FOLDER/val/CLASS/*.JPEG        for test, as the official test images have no published labels
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from implementations.data.arrays import split_indices
from implementations.errors import UserError

log = logging.getLogger(__name__)

SOURCES = {"train": "train", "test": "val"}  # the folder of a part
ENDINGS = (".jpeg", ".jpg")  # ImageNet's are .JPEG
VALID_SHARE = 0.04  # of each class's training images: about as many as there are for test
# Of values from 0 to 1, channel by channel: what networks for ImageNet are commonly fed with.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_PIECE = 256  # images that are in memory together
_REPORT_S = 30.0


def write(out: Path, folder: Path, side: int) -> dict[str, Any]:
    """Write ``<part>_x.npy``, (images, 3, side, side) uint8, and ``<part>_y.npy``; returns the summary's facts.

    Classes are the folders in the order of their names, as many as there are. Train stands in random order, so that
    the first n are a random subset for any n. The images of a data set of another ``side`` are split alike. UserError
    for a folder of another layout, a damaged image (named), or too little room on the disk.
    """
    classes, parts = _choose(folder)
    total = sum(len(paths) for paths, _ in parts.values())
    needed, free = total * 3 * side * side, shutil.disk_usage(out).free
    if needed > free:
        raise UserError(
            f"{out}: {total:,} images of {side} x {side} need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
            "make room, choose another results folder, or bring fewer images"
        )
    told = _Progress(folder.name, total)
    splits = {}
    for part, (paths, labels) in parts.items():
        _write_images(out / f"{part}_x.npy", paths, side, told.done)
        np.save(out / f"{part}_y.npy", labels, allow_pickle=False)
        splits[part] = {
            "samples": len(labels),
            "per_class": np.bincount(labels, minlength=len(classes)).tolist(),
        }
    return {
        "classes": len(classes),
        "class_folders": classes,
        "input_shape": [3, side, side],
        "features": 3 * side * side,
        "splits": splits,
        "gathered": True,  # images.ImageData: read from the file as they are asked for
        "mean": [255 * value for value in MEAN],
        "std": [255 * value for value in STD],
    }


def read(path: Path, side: int) -> np.ndarray:
    """One image, (3, side, side) uint8; UserError names a damaged one.

    The shorter side is resized to 8/7 of ``side`` (256 for 224, 342 for 299), bilinear, and the centre is cut out:
    torchvision's Resize and CenterCrop of a PIL image. Grey and CMYK images become RGB.
    """
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow's own words for this one are a path of the machine
        why = "not an image" if isinstance(error, UnidentifiedImageError) else error
        name = "/".join(path.parts[-3:])
        raise UserError(f"image {name}: damaged: {why}; fetch it anew, or delete it") from error
    shorter = round(side * 8 / 7)
    width, height = (shorter * size // min(image.size) for size in image.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + side, top + side))).transpose(2, 0, 1)


def _choose(folder: Path) -> tuple[list[str], dict[str, tuple[list[Path], np.ndarray]]]:
    """Classes, and the images of each part with their labels, in the order to write them."""
    found = {part: _by_class(folder / source) for part, source in SOURCES.items()}
    classes = list(found["train"])
    if differing := sorted(set(classes) ^ set(found["test"])):
        raise UserError(
            f"{folder}: class {differing[0]} is in one of train and val only ({len(differing)} such classes); "
            "needed: the same class folders in both"
        )
    if len(classes) < 2:
        raise UserError(
            f"{folder / 'train'}: one class, {classes[0]}; needed: a folder for each of two or more"
        )
    few = [name for name, paths in found["train"].items() if len(paths) < 2]
    if few:
        raise UserError(f"{folder / 'train' / few[0]}: one image; needed: two or more, as some are held out")
    listed = {part: _listed(by_class) for part, by_class in found.items()}
    paths, labels = listed["train"]
    held_out = max(len(classes), round(VALID_SHARE * len(paths)))
    # The name is that of the images: the split is the same whatever they are resized to.
    chosen = split_indices(labels, {"valid": held_out}, "imagenet")
    parts = {part: ([paths[one] for one in rows], labels[rows]) for part, rows in chosen.items()}
    return classes, {**parts, "test": listed["test"]}


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """Sorted images of each class folder, by class."""
    wanted = f"needed: {folder.name}/CLASS/*.JPEG, a folder for each class, such as n01440764"
    if not folder.is_dir():
        raise UserError(f"{folder.parent}: no folder {folder.name}; {wanted}")
    found = {}
    for one in sorted(folder.iterdir()):
        if not one.is_dir():
            if _is_image(one):  # ImageNet's own archive of val has them all in one folder
                raise UserError(f"{folder}: images that are in no class folder ({one.name}); {wanted}")
            continue
        found[one.name] = sorted(path for path in one.iterdir() if _is_image(path))
        if not found[one.name]:
            raise UserError(f"{one}: no images ({', '.join(ENDINGS)}); fill the folder, or delete it")
    if not found:
        raise UserError(f"{folder}: no class folders; {wanted}")
    return found


def _is_image(path: Path) -> bool:
    # "._NAME": what some systems' archivers leave beside a file
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".")


def _listed(by_class: dict[str, list[Path]]) -> tuple[list[Path], np.ndarray]:
    counts = [len(paths) for paths in by_class.values()]
    labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return [path for paths in by_class.values() for path in paths], labels


def _write_images(file: Path, paths: Sequence[Path], side: int, done: Callable[[int], None]) -> None:
    """An ``.npy`` file piece by piece. Not through a mapped file, where a full disk would kill the process."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(paths), 3, side, side)}
    with open(file, "wb") as sink, ThreadPoolExecutor(os.cpu_count()) as pool:
        np.lib.format.write_array_header_1_0(sink, header)
        for first in range(0, len(paths), _PIECE):
            piece = paths[first : first + _PIECE]
            for pixels in pool.map(lambda path: read(path, side), piece):  # Pillow lets other threads run
                sink.write(pixels.tobytes())
            done(len(piece))


class _Progress:
    """Says now and then how many images are done, and how long the others will take."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._done = name, total, 0
        self._began = self._told = time.monotonic()

    def done(self, images: int) -> None:
        self._done += images
        now = time.monotonic()
        if now - self._told < _REPORT_S and self._done < self._total:
            return
        self._told = now
        rate = self._done / max(now - self._began, 1e-9)
        minutes = (self._total - self._done) / rate / 60
        log.info(
            "%s: %s of %s images, %.0f a second, about %.0f minutes left",
            self._name, f"{self._done:,}", f"{self._total:,}", rate, minutes,
        )  # fmt: skip
