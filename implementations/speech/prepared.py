"""What the preparation of a speech data set leaves on disk: corpora, labels and the recogniser that gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from implementations.errors import UserError
from implementations.speech import corpus, hmm, recogniser, wer
from implementations.speech.corpus import Corpus
from implementations.speech.decoder import DecoderSettings
from implementations.speech.features import CONTEXT
from implementations.speech.lexicon import Lexicon

VERSION = (
    1  # raise it when features, training or synthesis change what is written: data is then prepared anew
)
START = DecoderSettings(12.0, -20.0)  # of the search for the mixtures' own settings


def write(
    out: Path,
    parts: Mapping[str, Corpus],
    lexicon: Lexicon,
    schedule: Sequence[int] = hmm.SCHEDULE,
    deltas: bool = True,
) -> dict[str, Any]:
    """Train a recogniser on ``train``, align every part with it, write all; returns the summary's facts.

    ``parts`` are train, valid and test, with values that ``frames`` turns into what is written. ``reference`` is what
    the monophone mixtures themselves reach: settings chosen on ``valid``, word error rate on ``test`` with its 95 %
    interval. UserError names a speaker of two parts, and utterances that no path fits.
    """
    check_speakers(parts)
    # One BLAS thread, as the order of its sums, and so the last bit, would follow the number of threads.
    with threadpool_limits(1, "blas"):
        parts = frames(parts, deltas)
        trained, alignment = recogniser.train(parts["train"], lexicon, schedule)
        labels = {
            part: (alignment if part == "train" else trained.align(one)).classes
            for part, one in parts.items()
        }
        reference = _reference(trained, parts)
    recogniser.save(out, trained)
    return write_labelled(out, parts, labels, lexicon) | {"deltas": deltas, "reference": reference}


def frames(parts: Mapping[str, Corpus], deltas: bool) -> dict[str, Corpus]:
    """What the recogniser and a network see of the parts.

    With ``deltas``: static values, deltas and delta-deltas, normalised by utterance and speaker. Without, for features
    that are adapted to their speaker: as they are, but for the mean and standard deviation over all frames of
    ``train``, which become 0 and 1.
    """
    if deltas:
        return {part: recogniser.acoustic(one) for part, one in parts.items()}
    mean, spread = (
        moment(parts["train"].features, axis=0, dtype=np.float64).astype(np.float32)
        for moment in (np.mean, np.std)
    )
    scale = np.where(spread > 0, 1 / np.maximum(spread, 1e-30), 0)
    return {part: replace(one, features=(one.features - mean) * scale) for part, one in parts.items()}


def write_labelled(
    out: Path, parts: Mapping[str, Corpus], labels: Mapping[str, np.ndarray], lexicon: Lexicon
) -> dict[str, Any]:
    """Write corpora as they are and their frames' classes, (frames,) int64; returns the summary's facts.

    A sample is a frame with ``CONTEXT`` neighbours on each side, which are put together when it is loaded.
    """
    facts = corpus.write(out, parts, lexicon)
    for part, classes in labels.items():
        np.save(_labels(out, part), classes, allow_pickle=False)
    shape = [2 * CONTEXT + 1, facts["features"]]
    return facts | {"input_shape": shape, "features": shape[0] * shape[1]}


def read_labels(folder: Path, part: str) -> np.ndarray:
    """Class of every frame of a part, (frames,) int64."""
    return np.load(_labels(folder, part), allow_pickle=False)


def check_speakers(parts: Mapping[str, Corpus]) -> None:
    """UserError names a speaker who is in two parts."""
    owners: dict[str, str] = {}
    for part, one in parts.items():
        for speaker in one.speaker_names[np.unique(one.speakers)].tolist():
            if speaker in owners:
                raise UserError(
                    f"speaker {speaker} is in {owners[speaker]} and in {part}; each speaker belongs to one part"
                )
            owners[speaker] = part


def _reference(trained: recogniser.Recogniser, parts: Mapping[str, Corpus]) -> dict[str, float]:
    valid, test = parts["valid"], parts["test"]
    settings, valid_wer = recogniser.tune(trained.decoder, valid, trained.scores(valid), start=START)
    errors = recogniser.score(trained.decoder, test, trained.scores(test), settings)
    found = wer.interval(errors, test.speakers)
    return {
        "gmm_wer": found.value,
        "gmm_wer_low": found.low,
        "gmm_wer_high": found.high,
        "valid_wer": valid_wer,
        "lm_weight": settings.lm_weight,
        "word_penalty": settings.word_penalty,
    }


def _labels(folder: Path, part: str) -> Path:
    return folder / f"{part}_labels.npy"
