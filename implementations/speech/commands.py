"""Google Speech Commands: clips in folders, and a table of their labels, speakers and parts."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from implementations.data.summary import SPLITS
from implementations.errors import UserError
from implementations.speech.keywords import Clip
from implementations.speech.synthesis import RATE

# The official twelve classes (Warden 2018, arXiv 1804.03209).
LABELS = (
    "_silence_", "_unknown_", "down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes",
)  # fmt: skip

_COLUMNS = ("file", "label", "speaker", "split")
_SUFFIXES = (".opus", ".wav", ".flac")


def read(folder: Path, index: Path) -> dict[str, Iterator[Clip]]:
    """The clips of train, valid and test, decoded one by one in the index's order.

    ``folder`` holds LABEL/NAME.opus, .wav or .flac; ``index`` is a table with a row a clip: its file, label, speaker
    and split. Suffixes need not agree, as copies are coded in several ways. UserError names a column that is missing,
    a row without its clip, a clip without its row, and, once it is reached, one that is no sound of 16 kHz. What is
    labelled silence has no speaker.
    """
    rows = _rows(index)
    held = {_stem(path.relative_to(folder)): path for path in folder.rglob("*") if path.suffix in _SUFFIXES}
    _check_same(rows, held, index)
    return {part: _clips(held, [row for row in rows if row["split"] == part]) for part in SPLITS}


def _rows(index: Path) -> list[dict[str, str]]:
    with open(index, encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        absent = [name for name in _COLUMNS if name not in (table.fieldnames or ())]
        if absent:
            raise UserError(f"{index.name}: no column {absent[0]}; needed: {', '.join(_COLUMNS)}")
        rows = list(table)
    for number, row in enumerate(rows, 2):
        empty = [name for name in _COLUMNS if not row[name]]
        if empty:
            raise UserError(f"{index.name}: line {number}: {empty[0]} is empty")
        if row["split"] not in SPLITS:
            raise UserError(
                f"{index.name}: line {number}: split {row['split']!r}; allowed: {', '.join(SPLITS)}"
            )
    return rows


def _check_same(rows: Sequence[Mapping[str, str]], held: Mapping[str, Path], index: Path) -> None:
    listed = [_stem(row["file"]) for row in rows]
    twice = [name for name, times in Counter(listed).items() if times > 1]
    for problem, names in (
        (f"stand twice in {index.name}", twice),
        (f"stand in {index.name} and are not there", [one for one in listed if one not in held]),
        (f"are there and have no row in {index.name}", sorted(set(held) - set(listed))),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UserError(f"clips that {problem}: {', '.join(names[:3])}{more}")


def _clips(held: Mapping[str, Path], rows: Sequence[Mapping[str, str]]) -> Iterator[Clip]:
    for row in rows:
        speaker = None if row["label"] == LABELS[0] else row["speaker"]
        yield Clip(row["file"], row["label"], speaker, decode(held[_stem(row["file"])]))


def _stem(file: str | Path) -> str:
    """LABEL/NAME; some copies have a suffix twice."""
    return str(file).partition(".")[0]


def decode(path: Path) -> np.ndarray:
    """The samples of a clip, float32 of at most 1, (samples,) or (samples, channels).

    UserError names a file that cannot be decoded, or is not at ``RATE``.
    """
    import soundfile

    name = f"{path.parent.name}/{path.name}"
    try:
        samples, rate = soundfile.read(path, dtype="float32")
    except soundfile.LibsndfileError as error:
        raise UserError(f"clip {name}: cannot be decoded: {error.error_string}") from error
    if rate != RATE:
        raise UserError(f"clip {name}: got {rate} samples a second; needed: {RATE}")
    return samples
