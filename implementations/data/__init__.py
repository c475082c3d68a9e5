"""Data sets: fetched from the first source that verifies, prepared once into plain arrays, loaded by name.

A data set is a folder in ``datasets/`` with a ``card.yaml`` (what it is, and where it can be had) and a
``prepare.py`` (raw files to arrays). ``prepare(name)`` makes ``results/data/<name>``, ``load(name)`` opens it.
"""

from implementations.data.cards import Card, load_card, names
from implementations.data.dataset import ArrayData, DataSet, Split
from implementations.data.loading import load
from implementations.data.preparation import command, prepare, status
from implementations.data.speech import SpeechData
from implementations.data.teacher import TeacherData

__all__ = [
    "ArrayData",
    "Card",
    "DataSet",
    "SpeechData",
    "Split",
    "TeacherData",
    "command",
    "load",
    "load_card",
    "names",
    "prepare",
    "status",
]
