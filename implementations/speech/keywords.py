"""Single words, a clip of one second each: spectrograms and labels as arrays, no speaker in two parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from implementations.data.arrays import write_splits
from implementations.errors import UserError
from implementations.seeds import numpy_stream
from implementations.speech.logmel import FrontEnd, log_mel
from implementations.speech.synthesis import RATE

SAMPLES = RATE  # of a clip

_MASTER = 0  # the order of clips belongs to the data set


@dataclass(frozen=True)
class Clip:
    """A word of a speaker (None: nobody speaks): ``samples`` (16000,) float of at most 1, at 16 kHz."""

    name: str
    label: str
    speaker: str | None
    samples: np.ndarray


def write(
    out: Path, parts: Mapping[str, Iterable[Clip]], labels: Sequence[str], front_end: FrontEnd
) -> dict[str, Any]:
    """Write the spectrograms of train, valid and test as (clips, 1, mels, frames) float16; returns the summary's facts.

    A label's class is its place in ``labels``. Clips of ``train`` stand in random order, the same for every front end,
    so that the first n are a random subset for any n. float16 keeps decibels to 0.03. UserError names a clip whose
    length is not ``SAMPLES``, a label that is not in ``labels``, and a speaker of two parts.
    """
    classes = {label: number for number, label in enumerate(labels)}
    splits: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    speakers: dict[str, set[str]] = {}
    for part, clips in parts.items():
        x, y, speakers[part] = [], [], set()
        for clip in clips:
            _check(clip, classes)
            x.append(log_mel(clip.samples, front_end).astype(np.float16))
            y.append(classes[clip.label])
            speakers[part] |= {clip.speaker} - {None}
        splits[part] = _stacked(x, front_end), np.array(y, dtype=np.int64)
    _check_speakers(speakers)
    order = numpy_stream(_MASTER, "data", "keywords", "order").permutation(len(splits["train"][1]))
    splits["train"] = tuple(array[order] for array in splits["train"])
    facts = write_splits(out, splits, classes=len(labels))
    for part, some in speakers.items():
        facts["splits"][part]["speakers"] = len(some)
    return facts


def _stacked(spectrograms: list[np.ndarray], front_end: FrontEnd) -> np.ndarray:
    return np.reshape(spectrograms, (-1, 1, front_end.mels, front_end.frames(SAMPLES)))


def _check(clip: Clip, classes: Mapping[str, int]) -> None:
    if clip.samples.shape != (SAMPLES,):
        got = " x ".join(map(str, clip.samples.shape))
        raise UserError(
            f"clip {clip.name}: got {got} samples; needed: {SAMPLES}, a second of one channel; "
            "leave it out or cut it"
        )
    if clip.label not in classes:
        raise UserError(f"clip {clip.name}: label {clip.label!r}; allowed: {', '.join(classes)}")


def _check_speakers(speakers: Mapping[str, set[str]]) -> None:
    owners: dict[str, str] = {}
    for part, some in speakers.items():
        for speaker in sorted(some):
            if speaker in owners:
                raise UserError(
                    f"speaker {speaker} is in {owners[speaker]} and in {part}; each speaker belongs to one part"
                )
            owners[speaker] = part
