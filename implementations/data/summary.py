"""The summary of a prepared data set, and whether the folder still is what its summary says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SPLITS = ("train", "valid", "test")

_NOT_CONTENT = ("title", "licence", "sources", "recipe_hash", "data_hash")  # not what trains a network


def read_summary(folder: Path) -> dict[str, Any]:
    """``summary.json`` of a prepared folder; ValueError if it does not match its own ``data_hash``."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if not isinstance(summary, dict) or summary.get("data_hash") != data_hash(summary):
        raise ValueError("it does not match its own data_hash")
    return summary


def data_hash(summary: dict[str, Any]) -> str:
    """Hash of everything in a summary that bears on training, the hashes of the arrays included."""
    content = {key: value for key, value in summary.items() if key not in _NOT_CONTENT}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def find_fault(folder: Path, *, verify: bool = False) -> str | None:
    """What is wrong with a prepared folder, or None; reads the arrays' content only with ``verify``."""
    path = folder / "summary.json"
    if not path.exists():
        return f"{folder} is not prepared"
    try:
        summary = read_summary(folder)
    except (OSError, ValueError) as error:
        return f"{path} is damaged: {error}"
    for file, recorded in summary["arrays"].items():
        path = folder / file
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != recorded["bytes"]:
            return f"{path} is damaged: {path.stat().st_size} bytes instead of {recorded['bytes']}"
        if verify and sha256(path) != recorded["sha256"]:
            return f"{path} is damaged: its sha256 is not the recorded one"
    return None


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
