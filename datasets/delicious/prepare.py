"""Delicious: 16,091 web pages as bags of 500 words, with 983 tags, 19 a page, as sparse arrays (4 MB).

    python datasets/delicious/prepare.py      # or: python -m implementations prepare delicious

writes results/data/delicious: 11,616 train, 1,291 valid (a tenth of the official training points, by a fixed seed),
3,184 test (the official ones). Points without a label are left out.
"""

import sys
from pathlib import Path


def prepare(raw, out, card):
    """Turn the two files in ``raw`` into arrays in ``out``; returns the summary's facts."""
    from implementations.data import xc

    train, test = (raw / file.name for file in card.files)
    return xc.prepare(train, test, out, card.name)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
