"""ImageNet (ILSVRC 2012) as images of 299 x 299 (357 GB); nothing is fetched, as its terms are to be accepted.

    python datasets/imagenet_299/prepare.py      # or: python -m implementations prepare imagenet_299

reads the folder imagenet below PARATRAIN_DATA (train/CLASS/*.JPEG and val/CLASS/*.JPEG) and writes
results/data/imagenet_299: images of (3, 299, 299) uint8, a twenty-fifth of the training images, by a fixed seed, as
valid, and those of val as test. Fewer classes or images will do.
"""

import sys
from pathlib import Path

RECIPE = 1  # raise it when the modules called here change what is written: data is then prepared anew


def prepare(raw, out, card):
    """Read the user's folder into arrays in ``out``; returns the summary's facts."""
    from implementations.data import imagefolder, sources

    return imagefolder.write(out, sources.in_place(card), side=card.sizes["input_shape"][-1])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
