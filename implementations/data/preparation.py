"""Preparation: raw files into ``results/data/<name>``, all or nothing, once, whoever asks and how often.

The folder holds plain ``.npy`` arrays and ``summary.json``: counts, classes, training mean and standard
deviation, the hash of each array, the licence and the source of each raw file.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from implementations.data import sources
from implementations.data.cards import DATASETS, Card, load_card
from implementations.data.summary import SPLITS, data_hash, find_fault, read_summary, sha256
from implementations.errors import UserError
from implementations.speech import prepared

log = logging.getLogger(__name__)

_FORMAT = 1  # raise it when the prepared folder's layout changes


def prepare(
    name: str,
    results_dir: str | Path = "results",
    *,
    verify: bool = False,
    datasets_dir: str | Path = DATASETS,
) -> Path:
    """Make ``results_dir/data/<name>`` unless it is there and whole; returns the path of its ``summary.json``.

    Whole means: made by the present card and prepare.py, and every array has its recorded size; with ``verify`` its
    recorded sha256 too. UserError if no source delivers, the data is not what the card says, or the disk refuses.
    """
    card = load_card(name, datasets_dir)
    folder = Path(results_dir) / "data" / name
    try:
        if _fault_or_change(folder, card, verify):  # else nothing to write, even where writing is forbidden
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(folder.parent / f".{name}.lock"):
                if fault := _fault_or_change(folder, card, verify):  # nobody has mended it while we waited
                    level = logging.WARNING if (folder / "summary.json").exists() else logging.INFO
                    log.log(level, "%s: preparing, as %s", name, fault)
                    _build(card, folder)
    except OSError as error:
        raise UserError(
            f"cannot prepare data set {name!r} in {folder}: {error}; make room or give permission there, "
            "or choose another results folder"
        ) from error
    return folder / "summary.json"


def status(
    name: str, results_dir: str | Path = "results", *, datasets_dir: str | Path = DATASETS
) -> dict[str, str]:
    """``name``, ``state`` (``present``, ``can be had`` or ``missing``) and ``detail``; quick, without the network."""
    card = load_card(name, datasets_dir)
    folder = Path(results_dir) / "data" / name
    if not _fault_or_change(folder, card):
        return {"name": name, "state": "present", "detail": counts_of(read_summary(folder))}
    possible, detail = sources.outlook(card)
    return {"name": name, "state": "can be had" if possible else "missing", "detail": detail}


def command(name: str, results_dir: str | Path = "results") -> int:
    """Prepare with messages on the terminal; returns an exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        summary = prepare(name, results_dir)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{summary.parent}: {counts_of(read_summary(summary.parent))}")
    return 0


def counts_of(summary: dict[str, Any]) -> str:
    """Samples, sizes, classes and licence in a line."""
    samples = ", ".join(f"{summary['splits'][part]['samples']:,} {part}" for part in SPLITS)
    shape = " x ".join(map(str, summary["input_shape"]))
    return f"{samples}; {shape}, {summary['classes']} classes; {summary['licence']}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a data set's preparation."""
    # The lock belongs to the open file, so a killed process leaves none behind.
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(card: Card, folder: Path) -> None:
    def make(raw: Path, out: Path) -> dict[str, Any]:
        came_from = sources.fetch(card, raw)
        facts = _recipe(card).prepare(raw, out, card)
        _compare(card, facts)
        return {
            "name": card.name,
            "title": card.values["title"],
            "kind": card.values["kind"],
            **({"data_kind": card.values["data_kind"]} if "data_kind" in card.values else {}),
            "licence": card.values["licence"],
            **facts,
            "class_names": card.sizes.get("class_names"),
            "sources": came_from,
            "recipe_hash": _recipe_hash(card),
        }

    install(folder, make)


def install(folder: Path, make: Callable[[Path, Path], dict[str, Any]]) -> None:
    """Put a prepared folder in its place, all or nothing; call it with the folder's lock held.

    ``make(raw, out)`` writes arrays into ``out`` and returns the summary but for the arrays' hashes; ``raw`` is a place
    for its files.
    """
    for left_behind in folder.parent.glob(f".{folder.name}.*.tmp"):  # by a killed process: the lock is ours
        shutil.rmtree(left_behind, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        raw, out = work / "raw", work / "out"
        out.mkdir()
        summary = make(raw, out)
        summary["arrays"] = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in sorted(out.glob("*.npy"))
        }
        summary["data_hash"] = data_hash(summary)
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            os.replace(folder, work / "old")
        os.replace(out, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _recipe(card: Card) -> Any:
    path = card.folder / "prepare.py"
    spec = importlib.util.spec_from_file_location(f"prepare_{card.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compare(card: Card, facts: dict[str, Any]) -> None:
    made = {part: facts["splits"][part]["samples"] for part in SPLITS}
    made |= {"input_shape": facts["input_shape"], "classes": facts["classes"]}
    checked = ["input_shape"] if card.sizes.get("nominal") else made
    differ = [key for key in checked if made[key] != card.sizes[key]]
    if differ:
        wrong = [f"sizes.{key}: the card says {card.sizes[key]}, got {made[key]}" for key in differ]
        raise UserError(f"{card.folder / 'card.yaml'}: " + "; ".join(wrong))


def _fault_or_change(folder: Path, card: Card, verify: bool = False) -> str | None:
    if fault := find_fault(folder, verify=verify):
        return fault
    same = read_summary(folder)["recipe_hash"] == _recipe_hash(card)
    return None if same else f"{folder} was made by another card or prepare.py"


def _recipe_hash(card: Card) -> str:
    content = {key: card.values.get(key) for key in ("name", "sizes", "files", "generator")}
    if card.values["kind"] == "speech":
        content |= {"recogniser": prepared.VERSION, "deltas": card.values.get("deltas")}
    recipe = (card.folder / "prepare.py").read_bytes()
    return hashlib.sha256(json.dumps([_FORMAT, content], sort_keys=True).encode() + recipe).hexdigest()
