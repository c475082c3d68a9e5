"""Fashion-MNIST: 70,000 images of 28 x 28 grey values, 10 balanced classes, as uint8 arrays (55 MB).

    python datasets/fashion_mnist/prepare.py      # or: python -m implementations prepare fashion_mnist

writes results/data/fashion_mnist: 54,000 train, 6,000 valid (600 of each class), 10,000 test (the official
ones). Fetches 31 MB once. The valid images are drawn from the official training images by a fixed seed.
"""

import sys
from pathlib import Path


def prepare(raw, out, card):
    """Turn the four IDX files in ``raw`` into arrays in ``out``; returns the summary's facts."""
    from implementations.data.arrays import split_indices, write_splits
    from implementations.data.idx import read_idx

    images = read_idx(raw / "train-images-idx3-ubyte.gz")[:, None]
    labels = read_idx(raw / "train-labels-idx1-ubyte.gz")
    chosen = split_indices(labels, {"valid": card.sizes["valid"]}, card.name)
    splits = {name: (images[index], labels[index]) for name, index in chosen.items()}
    splits["test"] = (
        read_idx(raw / "t10k-images-idx3-ubyte.gz")[:, None],
        read_idx(raw / "t10k-labels-idx1-ubyte.gz"),
    )
    return write_splits(out, splits, classes=card.sizes["classes"])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
