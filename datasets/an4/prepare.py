"""CMU AN4: 1,078 real recordings of spelled names, numbers and dates as 13 mel cepstra (15 MB).

    python datasets/an4/prepare.py      # or: python -m implementations prepare an4

writes results/data/an4: for train, valid (8 training speakers, held out by a fixed seed) and test (the official one)
normalised frames of 39 values, their HMM states, where utterances start, speakers and words; beside them the
pronouncing dictionary and the monophone recogniser that gave the states. Takes about a minute on one core.
"""

import sys
from pathlib import Path

HELD_OUT = 8  # training speakers


def prepare(raw, out, card):
    """Turn the archive in ``raw`` into arrays in ``out``; returns the summary's facts."""
    from implementations.speech import prepared

    return prepared.write(out, *read(raw, card))


def read(raw, card):
    """The corpora train, valid and test with 13 values a frame, and the lexicon, from the archive in ``raw``."""
    from implementations.data.archives import unpack
    from implementations.seeds import numpy_stream
    from implementations.speech import corpus, lexicon, sphinx

    unpack(raw / card.files[0].name, raw / "unpacked")
    etc, feat = raw / "unpacked" / "an4" / "etc", raw / "unpacked" / "an4" / "feat"
    words = lexicon.read(etc / "an4.dic", etc / "an4.phone")
    official = {
        part: list(
            sphinx.read_utterances(feat, etc / f"an4_{part}.fileids", etc / f"an4_{part}.transcription")
        )
        for part in ("train", "test")
    }
    speakers = sorted({one.speaker for one in official["train"]})
    held_out = set(numpy_stream(0, "data", card.name, "valid").permutation(speakers)[:HELD_OUT])
    parts = {
        "train": [one for one in official["train"] if one.speaker not in held_out],
        "valid": [one for one in official["train"] if one.speaker in held_out],
        "test": official["test"],
    }
    return {part: corpus.build(utterances, words) for part, utterances in parts.items()}, words


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
