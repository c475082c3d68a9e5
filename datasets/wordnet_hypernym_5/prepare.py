"""WordNet 3.0, from gloss to hypernym: 51,189 noun synsets, 3,982 classes, as sparse arrays (6 MB).

    python datasets/wordnet_hypernym_5/prepare.py      # or: python -m implementations prepare wordnet_hypernym_5

writes results/data/wordnet_hypernym_5: 40,951 train, 5,119 valid, 5,119 test, tf-idf of the definition's words;
the label is the first direct hypernym. Fetches 6.5 MB once (the Debian package wordnet-base), no root needed.
"""

import sys
from pathlib import Path

LEAST_HYPONYMS = 5  # of a synset, to be a class
LEMMAS = False  # whether the synset's own words stand in its text


def prepare(raw, out, card):
    """Turn ``data.noun`` in ``raw`` into arrays in ``out``; returns the summary's facts."""
    from implementations.data import wordnet

    return wordnet.prepare(raw / card.files[0].name, out, card.name, LEAST_HYPONYMS, LEMMAS)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
