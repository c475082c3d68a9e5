"""Synthetic teacher data: 64 normal inputs, 10 classes, any number of training samples (nothing is stored).

    python datasets/teacher/prepare.py      # or: python -m implementations prepare teacher

writes results/data/teacher/summary.json: 100,000 train unless a point asks for another data size, 10,000
valid, 10,000 test. Chunks are computed from their seeds when they are asked for.
"""

import sys
from pathlib import Path


def prepare(raw, out, card):
    """Nothing to store; returns the summary's facts, with a hash of the first chunk."""
    from implementations.data.teacher import describe_teacher

    return describe_teacher(card)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
