"""Amazon-670k: bags of 135,909 words, 670,091 labels; nothing is fetched, as its licence is not stated.

    python datasets/amazon670k/prepare.py      # or: python -m implementations prepare amazon670k

reads train.txt and test.txt (plain, .gz or .xz) of the folder amazon670k below PARATRAIN_DATA and writes
results/data/amazon670k: a tenth of the training points, by a fixed seed, is valid.
"""

import sys
from pathlib import Path

ENDINGS = ("", ".gz", ".xz")


def prepare(raw, out, card):
    """Read the user's folder into arrays in ``out``; returns the summary's facts."""
    from implementations.data import sources, xc

    folder = sources.in_place(card)
    return xc.prepare(_file(folder, "train.txt"), _file(folder, "test.txt"), out, card.name)


def _file(folder, name):
    from implementations.errors import UserError

    for ending in ENDINGS:
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    raise UserError(f"{folder}: no {name}; needed: {' or '.join(name + ending for ending in ENDINGS)}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
