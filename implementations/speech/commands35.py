"""All 35 words of Google Speech Commands, out of the folders of its archive, as Yuan et al. 2019 take them."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from implementations.data.summary import SPLITS
from implementations.errors import UserError
from implementations.seeds import numpy_stream
from implementations.speech.commands import decode
from implementations.speech.keywords import SAMPLES
from implementations.speech.logmel import FrontEnd, log_mel
from implementations.speech.spoken import WORDS

log = logging.getLogger(__name__)

TEST_SHARE = 20.0  # of 100 parts of the speakers' hashes
VALID_SHARE = 8.0  # a tenth of the others

_HASHES = 2**27  # that the archive's authors tell apart
_MASTER = 0  # the order of clips belongs to the data set


def part_of(file: str) -> str:
    """The part of a clip by its name, SPEAKER_nohash_NUMBER.wav: ``train``, ``valid`` or ``test``.

    The rule of the archive's README, with 20 parts of 100 for test as in the published code of Yuan et al. 2019; the
    archive's own lists of validation and test clips are the first and the last 10 of these.
    """
    speaker = _speaker(file)
    place = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % _HASHES * (100 / (_HASHES - 1))
    return "test" if place < TEST_SHARE else "valid" if place < TEST_SHARE + VALID_SHARE else "train"


def write(out: Path, folder: Path, front_end: FrontEnd) -> dict[str, Any]:
    """Write the spectrograms of ``folder``/WORD/*.wav, as (clips, 1, mels, frames) float16; returns the facts.

    Clips that have not exactly ``SAMPLES`` samples are left out, and counted under each part's ``left_out``. Those of
    ``train`` stand in random order, so that the first n are a random subset for any n. A spectrogram is written as it
    is made. UserError names a word without clips, a clip that is damaged, and a part without clips.
    """
    parts, left_out = _choose(folder)
    order = numpy_stream(_MASTER, "data", "speech_commands_35", "order").permutation(len(parts["train"]))
    parts["train"] = [parts["train"][place] for place in order]
    splits, moments = {}, {}
    for part, paths in parts.items():
        moments[part] = _write_spectrograms(out / f"{part}_x.npy", paths, front_end)
        y = np.array([WORDS.index(path.parent.name) for path in paths], dtype=np.int64)
        np.save(out / f"{part}_y.npy", y, allow_pickle=False)
        splits[part] = {
            "samples": len(y),
            "per_class": np.bincount(y, minlength=len(WORDS)).tolist(),
            "speakers": len({_speaker(path.name) for path in paths}),
            "left_out": left_out[part],
        }
    shape = (1, front_end.mels, front_end.frames(SAMPLES))
    mean, std = moments["train"]
    return {
        "classes": len(WORDS),
        "input_shape": list(shape),
        "features": math.prod(shape),
        "splits": splits,
        "mean": mean,
        "std": std,
    }


def _choose(folder: Path) -> tuple[dict[str, list[Path]], dict[str, int]]:
    """Clips of the right length by part, sorted by word and name, and how many others there are."""
    by_word = {word: sorted((folder / word).glob("*.wav")) for word in WORDS}
    absent = [word for word, paths in by_word.items() if not paths]
    if absent:
        raise UserError(
            f"{folder}: no clips (.wav) in the folder of: {', '.join(absent)}; "
            f"needed: a folder for each of the {len(WORDS)} words of Speech Commands v0.02"
        )
    parts: dict[str, list[Path]] = {part: [] for part in SPLITS}
    left_out = dict.fromkeys(SPLITS, 0)
    for path in (path for paths in by_word.values() for path in paths):
        if _has_all_samples(path):
            parts[part_of(path.name)].append(path)
        else:
            left_out[part_of(path.name)] += 1
    others = sum(left_out.values())
    log.info("%s: %d clips are left out, as they have not %d samples", folder.name, others, SAMPLES)
    for part, paths in parts.items():
        if not paths:
            raise UserError(f"{folder}: no clip of {SAMPLES} samples for {part}; the archive has thousands")
    return parts, left_out


def _has_all_samples(path: Path) -> bool:
    samples = decode(path)
    name = f"{path.parent.name}/{path.name}"
    if samples.ndim > 1:
        raise UserError(f"clip {name}: got {samples.shape[1]} channels; needed: one")
    if len(samples) == SAMPLES:
        return True
    # The end of a file may be lost, and decoders take the rest for a shorter clip.
    with open(path, "rb") as file:
        promised = 8 + int.from_bytes(file.read(8)[4:], "little")  # RIFF: the bytes that follow
    held = path.stat().st_size
    if held < promised:
        raise UserError(f"clip {name}: damaged: {held} of {promised} bytes; fetch it anew, or delete it")
    return False


def _write_spectrograms(file: Path, paths: Sequence[Path], front_end: FrontEnd) -> tuple[float, float]:
    """Mean and standard deviation of what was written."""
    shape = (len(paths), 1, front_end.mels, front_end.frames(SAMPLES))
    x = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)
    total = squares = 0.0
    for row, path in enumerate(paths):
        x[row, 0] = log_mel(decode(path), front_end)
        values = x[row].astype(np.float64)
        total += values.sum()
        squares += (values**2).sum()
    x.flush()
    mean = total / x.size
    return float(mean), math.sqrt(squares / x.size - mean**2)


def _speaker(file: str) -> str:
    return re.sub("_nohash_.*$", "", file)
