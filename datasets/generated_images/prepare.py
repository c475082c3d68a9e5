"""Synthetic images of 28 x 28, 10 classes, any number of training samples (nothing is stored).

    python datasets/generated_images/prepare.py      # or: python -m implementations prepare generated_images

writes results/data/generated_images/summary.json: 100,000 train unless a point asks for another data size, 10,000
valid, 10,000 test. A sample is computed from its number when it is asked for.
"""

import sys
from pathlib import Path


def prepare(raw, out, card):
    """Nothing to store; returns the summary's facts, with a hash of the first samples."""
    from implementations.data.generated_images import GeneratedImages
    from implementations.data.teacher import describe_teacher

    return describe_teacher(card, GeneratedImages)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
