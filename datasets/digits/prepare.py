"""Handwritten digits of scikit-learn: 1,797 images of 8 x 8 values, 10 classes, as uint8 arrays (0.1 MB).

    python datasets/digits/prepare.py      # or: python -m implementations prepare digits

writes results/data/digits: 1,200 train, 297 valid, 300 test, stratified by a fixed seed. Nothing is downloaded
where scikit-learn is installed.
"""

import sys
from pathlib import Path


def prepare(raw, out, card):
    """Turn the table in ``raw`` (a line: 64 values, label) into arrays in ``out``; returns the summary's facts."""
    import numpy as np

    from implementations.data.arrays import split_indices, write_splits

    table = np.loadtxt(raw / "digits.csv.gz", delimiter=",").astype(np.uint8)
    images, labels = table[:, :64].reshape(-1, 1, 8, 8), table[:, 64]
    chosen = split_indices(labels, {part: card.sizes[part] for part in ("test", "valid")}, card.name)
    splits = {part: (images[index], labels[index]) for part, index in chosen.items()}
    return write_splits(out, splits, classes=card.sizes["classes"])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
