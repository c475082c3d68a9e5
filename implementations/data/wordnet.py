"""WordNet's nouns as a classification task: from the words of a gloss, tell the synset's hypernym.

Format: wndb(5WN) of WordNet 3.0, file ``data.noun``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implementations.data import sparse
from implementations.errors import UserError
from implementations.seeds import numpy_stream

HELD_OUT = 0.1  # of all samples: valid, and as many test

_MASTER = 0  # splits belong to the data set
_WORD = r"[a-z]+"
_LEAST_GLOSSES = 2  # a word of one training gloss alone cannot tell of another


class Synset(NamedTuple):
    """A set of synonyms; ``number`` is its place in the file, by which others point to it."""

    number: int
    lemmas: tuple[str, ...]
    hypernyms: tuple[int, ...]  # direct ones, in the file's order; those of instances do not count
    gloss: str


class Task(NamedTuple):
    """Samples of the task: ``texts`` and ``labels`` (n,), places in ``classes``, the numbers of synsets."""

    texts: list[str]
    labels: np.ndarray
    classes: np.ndarray


def read_nouns(path: str | Path) -> list[Synset]:
    """All synsets of a ``data.noun``; UserError names the line that is damaged."""
    synsets = []
    with open(path, encoding="latin-1") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("  "):  # the licence
                continue
            try:
                synsets.append(_parse(line))
            except (ValueError, IndexError) as error:
                raise UserError(f"{path}: line {number}: not a synset of WordNet: {line[:60]!r}") from error
    if not synsets:
        raise UserError(f"{path}: holds no synsets")
    return synsets


def _parse(line: str) -> Synset:
    head, bar, gloss = line.partition(" | ")
    fields = head.split(" ")
    words = int(fields[3], 16)
    first = 4 + 2 * words  # the number of pointers; each is symbol, synset, part of speech, words
    pointers = fields[first + 1 :]
    if not bar or fields[2] != "n" or len(pointers) != 4 * int(fields[first]):
        raise ValueError
    hypernyms = [int(at) for symbol, at in zip(pointers[::4], pointers[1::4]) if symbol == "@"]
    return Synset(int(fields[0]), tuple(fields[4:first:2]), tuple(hypernyms), gloss.strip())


def definition(gloss: str) -> str:
    """The part of a gloss before its first example, which stands in quotation marks."""
    return gloss.partition('; "')[0]


def task(synsets: Sequence[Synset], least: int = 1, lemmas: bool = False) -> Task:
    """A sample for each synset whose first direct hypernym has ``least`` direct hyponyms or more; that is its label.

    Hyponyms count through any of their hypernyms, so that a few classes have fewer samples. Texts are definitions,
    with ``lemmas`` the synset's own words too.
    """
    hyponyms = Counter(number for one in synsets for number in one.hypernyms)
    classes = np.array(sorted(number for number, count in hyponyms.items() if count >= least), dtype=np.int64)
    known = set(classes.tolist())
    chosen = [one for one in synsets if one.hypernyms and one.hypernyms[0] in known]
    texts = [
        " ".join([definition(one.gloss), *(one.lemmas if lemmas else ())]).replace("_", " ") for one in chosen
    ]
    labels = np.searchsorted(classes, [one.hypernyms[0] for one in chosen])
    return Task(texts, labels, classes)


def split(labels: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Indices of train, valid and test, 80 : 10 : 10 and in random order; every label stands in train.

    One sample of each label, drawn by a fixed seed, is kept for train; valid and test are drawn from the others, so
    that labels with one sample are in neither. UserError where the others do not suffice.
    """
    order = numpy_stream(_MASTER, "data", name, "split").permutation(len(labels))
    _, first = np.unique(labels[order], return_index=True)
    others = np.delete(order, first)
    held_out = round(HELD_OUT * len(labels))
    if not 0 < 2 * held_out <= len(others):
        raise UserError(
            f"{name}: {len(labels)} samples of {len(first)} labels; needed: so many of a label that "
            f"{held_out} can be valid and as many test"
        )
    parts = {"test": others[:held_out], "valid": others[held_out : 2 * held_out]}
    held = np.isin(order, np.concatenate(list(parts.values())))
    return {"train": order[~held], **parts}


def prepare(path: Path, out: Path, name: str, least: int = 1, lemmas: bool = False) -> dict[str, Any]:
    """Write the task of a ``data.noun`` below ``out``; returns the summary's facts.

    Inputs are tf-idf of lower-case words, rows of length 1; vocabulary (words of two training texts or more) and
    document frequencies are those of train. Beside the arrays: ``vocabulary.npy`` and ``classes.npy``, the word of
    each feature and the synset of each class.
    """
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, labels, classes = task(read_nouns(path), least, lemmas)
    parts = split(labels, name)
    vectoriser = TfidfVectorizer(token_pattern=_WORD, min_df=_LEAST_GLOSSES, dtype=np.float32)
    vectoriser.fit(texts[index] for index in parts["train"])
    splits = {}
    for part in sparse.SPLITS:
        index = parts[part]
        places = (np.arange(len(index)), labels[index])
        marks = csr_array((np.ones(len(index), np.float32), places), shape=(len(index), len(classes)))
        splits[part] = (csr_array(vectoriser.transform(texts[one] for one in index)), marks)
    np.save(out / "vocabulary.npy", vectoriser.get_feature_names_out().astype(str), allow_pickle=False)
    np.save(out / "classes.npy", classes, allow_pickle=False)
    return sparse.write_splits(out, splits)
