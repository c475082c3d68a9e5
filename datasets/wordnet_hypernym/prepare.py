"""WordNet 3.0, from gloss to hypernym: 74,389 noun synsets, 16,693 classes, as sparse arrays (9 MB).

    python datasets/wordnet_hypernym/prepare.py      # or: python -m implementations prepare wordnet_hypernym

writes results/data/wordnet_hypernym: 59,511 train, 7,439 valid, 7,439 test, tf-idf of the definition's words;
the label is the first direct hypernym. Fetches 6.5 MB once (the Debian package wordnet-base), no root needed.
"""

import sys
from pathlib import Path

LEAST_HYPONYMS = 1  # of a synset, to be a class
LEMMAS = False  # whether the synset's own words stand in its text


def prepare(raw, out, card):
    """Turn ``data.noun`` in ``raw`` into arrays in ``out``; returns the summary's facts."""
    from implementations.data import wordnet

    return wordnet.prepare(raw / card.files[0].name, out, card.name, LEAST_HYPONYMS, LEMMAS)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
