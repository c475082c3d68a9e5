"""Data sets: fetched from the first source that verifies, prepared once into plain arrays, loaded by name.

A data set is a folder in ``datasets/`` with a ``card.yaml`` (what it is, and where it can be had) and a
``prepare.py`` (raw files to arrays). ``prepare(name)`` makes ``results/data/<name>``, ``load(name)`` opens it.
"""

from __future__ import annotations

import importlib
from typing import Any

# What the package offers, by its module. Loaded when it is asked for: most of these load torch, and who starts a job
# or reads a summary needs none of it. Modules whose code counts for a run import each other by name.
_PLACES = {
    "Card": "cards",
    "load_card": "cards",
    "names": "cards",
    "ArrayData": "dataset",
    "DataSet": "dataset",
    "Split": "dataset",
    "load": "loading",
    "command": "preparation",
    "prepare": "preparation",
    "status": "preparation",
    "SpeechData": "speech",
    "TeacherData": "teacher",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
