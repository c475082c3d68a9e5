"""Tiny Shakespeare: 1,115,394 characters of 65 kinds, as windows of 32 and the character that follows (1.1 MB).

    python datasets/shakespeare/prepare.py      # or: python -m implementations prepare shakespeare

writes results/data/shakespeare: the text as a byte a character, and where its windows begin. Samples are made
from it as they are taken.
"""

import sys
from pathlib import Path


def prepare(raw, out, card):
    """Turn the text in ``raw`` into codes in ``out``; returns the summary's facts."""
    from implementations.data.text import write_text

    text = (raw / card.files[0].name).read_text(encoding="ascii")
    return write_text(out, text, *card.sizes["input_shape"], held_out_stride=8)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
