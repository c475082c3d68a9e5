"""Files of CMU Sphinx: cepstra (.mfc), lists of utterances (.fileids) and transcriptions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from implementations.errors import UserError
from implementations.speech.corpus import Utterance

CEPSTRA = 13

_MARKS = ("<s>", "</s>", "<sil>")


def read_mfc(path: Path, width: int = CEPSTRA) -> np.ndarray:
    """Frames (frames, ``width``) float32 of a feature file: big-endian int32 count of values, then float32 values.

    UserError names a file that is truncated, too long, empty or not a multiple of ``width`` values.
    """
    raw = path.read_bytes()
    promised = int.from_bytes(raw[:4], "big", signed=True) if len(raw) >= 4 else -1
    held = (len(raw) - 4) / 4
    if promised <= 0 or promised % width or held != promised:
        raise UserError(
            f"{path}: damaged feature file: {len(raw)} bytes, of which the header promises {promised} values of "
            f"4 bytes, {width} a frame; fetch it again"
        )
    return np.frombuffer(raw, ">f4", offset=4).reshape(-1, width).astype(np.float32)


def read_transcripts(path: Path) -> dict[str, tuple[str, ...]]:
    """Words of each utterance of a file with lines ``WORD WORD ... (UTTERANCE)``; sentence marks are left out."""
    transcripts = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        found = re.fullmatch(r"(.*?)\s*\(([^()\s]+)\)\s*", line)
        if not found:
            raise UserError(f"{path.name}: line {number}: got {line!r}; needed: WORD WORD ... (UTTERANCE)")
        transcripts[found[2]] = tuple(word for word in found[1].split() if word not in _MARKS)
    return transcripts


def read_utterances(features: Path, fileids: Path, transcription: Path) -> Iterator[Utterance]:
    """The utterances that ``fileids`` lists (``FOLDER/SPEAKER/UTTERANCE``), from ``features``/FILEID.mfc.

    UserError names an utterance without a transcript or without a feature file.
    """
    transcripts = read_transcripts(transcription)
    for fileid in fileids.read_text(encoding="utf-8").split():
        *_, speaker, name = fileid.split("/")
        path = features / f"{fileid}.mfc"
        if name not in transcripts:
            raise UserError(f"utterance {name}: no transcript in {transcription.name}")
        if not path.is_file():
            raise UserError(f"utterance {name}: no feature file {path}")
        yield Utterance(name, speaker, transcripts[name], read_mfc(path))
