"""A tiny corpus whose answer is known: each phone is a place in feature space, each speaker adds an offset."""

import numpy as np
import pytest

from implementations.speech import corpus, lexicon

DICTIONARY = """
ON    A B
NO    B A
NO(2) B C
GO    C C A
AB    A D
"""
VALUES = 4


@pytest.fixture(scope="session")
def tiny_lexicon():
    return lexicon.parse(DICTIONARY.splitlines(), "tiny.dic")


@pytest.fixture(scope="session")
def speak(tiny_lexicon):
    """speak(speakers, utterances, seed, noise): a corpus of random words, its true classes unknown to nobody."""
    centres = np.random.default_rng(7).normal(size=(len(tiny_lexicon.phones), 3, VALUES)) * 3

    def make(speakers: list[str], utterances: int, seed: int, noise: float = 0.7) -> corpus.Corpus:
        rng = np.random.default_rng(seed)
        made = []
        for speaker in speakers:
            shift, spread = rng.normal(size=VALUES), rng.uniform(0.7, 1.4)
            for number in range(utterances):
                words = rng.choice(tiny_lexicon.words, rng.integers(1, 5)).tolist()
                frames = [tiny_lexicon.silence]
                for word in words:
                    spoken = tiny_lexicon.pronunciations[tiny_lexicon.word_ids[word]]
                    frames += spoken[rng.integers(len(spoken))]
                    frames += [tiny_lexicon.silence] * int(rng.integers(2))
                means = [
                    centres[phone, state]
                    for phone in [*frames, tiny_lexicon.silence]
                    for state in range(3)
                    for _ in range(rng.integers(1, 5))
                ]
                values = spread * (np.array(means) + rng.normal(size=(len(means), VALUES)) * noise) + shift
                made.append(
                    corpus.Utterance(f"{speaker}-{number}", speaker, tuple(words), values.astype(np.float32))
                )
        return corpus.build(made, tiny_lexicon)

    return make
