"""Opening a prepared data set by name."""

from __future__ import annotations

from pathlib import Path

from implementations.data.dataset import ArrayData, DataSet
from implementations.data.generated_images import GeneratedImages
from implementations.data.images import ImageData
from implementations.data.sparse import SparseData
from implementations.data.speech import SpeechData
from implementations.data.summary import find_fault, read_summary
from implementations.data.teacher import TeacherData
from implementations.data.text import CharacterData
from implementations.errors import UserError


def load(
    name: str, results_dir: str | Path = "results", *, data_size: int | None = None, verify: bool = False
) -> DataSet:
    """The prepared data set ``name`` with ``data_size`` training samples (None: all, or the card's number).

    UserError if it is not prepared, is damaged (``verify`` reads all of it to find out), or is too small.
    """
    folder = Path(results_dir) / "data" / name
    if fault := find_fault(folder, verify=verify):
        raise UserError(f"data set {name!r}: {fault}; run: python -m implementations prepare {name}")
    summary = read_summary(folder)
    if "generator" in summary:
        computed = GeneratedImages if "filters" in summary["generator"] else TeacherData
        return computed(summary, data_size)
    if summary["kind"] == "speech":
        return SpeechData(folder, summary, data_size)
    if summary["kind"] == "text":
        return CharacterData(folder, summary, data_size)
    if summary["kind"] == "sparse":
        return SparseData(folder, summary, data_size)
    if summary.get("gathered"):
        return ImageData(folder, summary, data_size)
    return ArrayData(folder, summary, data_size)
