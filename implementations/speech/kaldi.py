"""Kaldi data directories: features, transcripts, speakers, normalisation and alignments of one's own corpus.

A data directory has ``feats.scp``, ``text`` and, where there is more than one utterance a speaker, ``utt2spk``;
``cmvn.scp`` (statistics by speaker) is applied where present. Alignments are integer vectors by utterance, one
number a frame (``ali-to-pdf`` writes them), as text or archive, plain or gzipped.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from implementations.errors import UserError
from implementations.speech.corpus import Corpus, Utterance, build
from implementations.speech.lexicon import Lexicon

_KEY = 1024  # bytes that hold the first utterance's name


def read_directory(folder: Path, lexicon: Lexicon, *, normalise_variance: bool = True) -> Corpus:
    """The corpus of a data directory, in the order of ``feats.scp``.

    With ``cmvn.scp`` a speaker's mean is taken off and, unless told otherwise, values divided by their standard
    deviation. UserError names a missing file, an utterance without words or speaker statistics, an archive that
    cannot be read, a table entry that is a command (never run), and all that ``corpus.build`` refuses.
    """
    return build(list(_utterances(folder, normalise_variance)), lexicon)


def read_alignments(path: Path, corpus: Corpus, classes: int | None = None) -> np.ndarray:
    """Class of every frame of ``corpus`` (frames,) int64, from a file of alignments or a folder of such files.

    UserError names an utterance that has none, has another number of frames, or a class not below ``classes``.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise UserError(f"no alignments {path}")
    found = {name: one for file in files for name, one in _integer_vectors(file)}
    parts = []
    for name, frames in zip(corpus.names.tolist(), corpus.lengths.tolist(), strict=True):
        if name not in found:
            raise UserError(f"utterance {name}: no alignment in {path}")
        one = found[name]
        if len(one) != frames:
            raise UserError(f"utterance {name}: {len(one)} aligned frames, but {frames} of features")
        wrong = one[(one < 0) | (one >= (np.inf if classes is None else classes))]
        if len(wrong):
            allowed = "0 or more" if classes is None else f"0 to {classes - 1}"
            raise UserError(f"utterance {name}: class {wrong.max()} in {path}; allowed: {allowed}")
        parts.append(one)
    return np.concatenate(parts)


def _utterances(folder: Path, normalise_variance: bool) -> Iterator[Utterance]:
    feats, text = _table(folder / "feats.scp"), _table(folder / "text")
    speakers = _table(folder / "utt2spk") if (folder / "utt2spk").is_file() else {}
    cmvn = _table(folder / "cmvn.scp") if (folder / "cmvn.scp").is_file() else None
    statistics: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, place in feats.items():
        if name not in text:
            raise UserError(f"utterance {name}: no transcript in {folder / 'text'}")
        speaker = speakers.get(name, name)
        features = _matrix(place, folder, f"utterance {name}")
        if cmvn is not None:
            if speaker not in statistics:
                statistics[speaker] = _statistics(cmvn, speaker, folder, normalise_variance)
            mean, scale = statistics[speaker]
            if features.shape[1] != len(mean):
                raise UserError(
                    f"utterance {name}: {features.shape[1]} values a frame, {len(mean)} in cmvn.scp"
                )
            features = ((features - mean) * scale).astype(np.float32)
        yield Utterance(name, speaker, tuple(text[name].split()), features)


def _table(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise UserError(f"{path.parent}: not a whole Kaldi data directory: no {path.name}")
    lines = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {fields[0]: (fields[1].strip() if len(fields) > 1 else "") for fields in lines}


def _matrix(place: str, folder: Path, owner: str) -> np.ndarray:
    """The matrix at ``FILE`` or ``FILE:OFFSET``; a relative file is looked for from here, then from ``folder``."""
    import kaldiio

    if not place or "|" in place:
        # Kaldi would run it. A data directory from elsewhere shall not choose what runs here.
        raise UserError(
            f"{owner}: entry {place!r} is not a file; copy the features into an archive (copy-feats)"
        )
    file = place.partition("[")[0]
    name, colon, offset = file.rpartition(":")
    path, start = (Path(name), int(offset)) if colon and offset.isdigit() else (Path(file), 0)
    if not path.is_absolute() and not path.is_file():
        path, place = folder / path, str(folder / place)
    try:
        with open(path, "rb") as source:
            source.seek(start)
            mark = source.read(5)
        # Of the formats kaldiio knows, some run code when read; Kaldi's own begin like this, binary or text.
        if not mark.startswith(b"\0B") and not mark.lstrip().startswith(b"["):
            raise UserError(f"{owner}: {place}: not a Kaldi matrix")
        found = kaldiio.load_mat(place)
    except UserError:
        raise
    except (OSError, ValueError, AssertionError, IndexError, struct.error) as error:
        raise UserError(f"{owner}: cannot read {place}: {error or type(error).__name__}") from error
    if not isinstance(found, np.ndarray) or found.ndim != 2:
        raise UserError(f"{owner}: {place}: not a matrix with a row for each frame")
    return found


def _statistics(
    cmvn: dict[str, str], speaker: str, folder: Path, normalise_variance: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and reciprocal standard deviation from a (2, values + 1) matrix of sums, count, and sums of squares."""
    if speaker not in cmvn:
        raise UserError(f"speaker {speaker}: no statistics in {folder / 'cmvn.scp'}")
    sums = _matrix(cmvn[speaker], folder, f"speaker {speaker}").astype(np.float64)
    if sums.ndim != 2 or len(sums) != 2 or not sums[0, -1] > 0:
        raise UserError(f"speaker {speaker}: statistics of shape {sums.shape} in cmvn.scp hold no frames")
    mean = sums[0, :-1] / sums[0, -1]
    variance = np.maximum(sums[1, :-1] / sums[0, -1] - np.square(mean), 1e-20)  # Kaldi's floor
    return mean, 1 / np.sqrt(variance) if normalise_variance else np.ones_like(mean)


def _integer_vectors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        yield from _binary_vectors(raw) if b"\0B" in raw[:_KEY] else _text_vectors(raw)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UserError(f"{path}: damaged alignments: {error or type(error).__name__}") from error


def _text_vectors(raw: bytes) -> Iterator[tuple[str, np.ndarray]]:
    for fields in filter(None, map(str.split, raw.decode().splitlines())):
        yield fields[0], np.array(fields[1:], dtype=np.int64)


def _binary_vectors(raw: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Entries of a name, a blank, NUL, B, then the count and the numbers, each int32 after a byte 4 for its size."""
    place = 0
    while place < len(raw):
        stop = raw.index(b" ", place)
        if raw[stop + 1 : stop + 4] != b"\0B\4":
            raise ValueError("not integer vectors")
        count = int.from_bytes(raw[stop + 4 : stop + 8], "little")
        numbers = np.frombuffer(raw, [("size", "i1"), ("value", "<i4")], count, stop + 8)
        yield raw[place:stop].decode(), numbers["value"].astype(np.int64)
        place = stop + 8 + numbers.nbytes
