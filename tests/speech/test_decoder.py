import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.errors import UserError
from implementations.speech import hmm, lexicon
from implementations.speech.bigram import witten_bell
from implementations.speech.decoder import Decoder, DecoderSettings

# Two pronunciations, a phone shared by words, words of one and two phones.
WORDS = lexicon.parse(["X A", "X(2) B", "Y B", "Z A B"], "two.dic")
CLASSES = 3 * len(WORDS.phones)


def by_brute_force(scores, bigram_logs, loop_logs, setting):
    """Every sequence of words that fits: its best path, plus its language score."""
    best, said = -np.inf, ()
    for count in range(len(scores) // 3 + 1):
        for words in itertools.product(range(len(WORDS.words)), repeat=count):
            graph = hmm.transcript_graph(words, WORDS)
            _, (acoustic,) = hmm.viterbi([graph], [scores], loop_logs)
            edge = len(WORDS.words)
            pairs = itertools.pairwise((edge, *words, edge))
            language = sum(bigram_logs[before, after] for before, after in pairs)
            total = acoustic + setting.lm_weight * language + setting.word_penalty * count
            if total > best:
                best, said = total, words
    return said, best


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(3, 10), min_size=1, max_size=3))
def test_it_is_brute_force(seed, lengths):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(sum(lengths), CLASSES)) * 3
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    loop_logs = np.log(rng.uniform(0.05, 0.95, CLASSES))
    bigram_logs = np.log(rng.dirichlet(np.ones(4), 4))
    setting = DecoderSettings(rng.uniform(0, 3), rng.uniform(-4, 4))
    got = Decoder(WORDS, bigram_logs, loop_logs).decode(scores, offsets, setting)
    for one, words in enumerate(got):
        own = scores[offsets[one] : offsets[one + 1]]
        assert words == by_brute_force(own, bigram_logs, loop_logs, setting)[0]


@pytest.fixture
def decoder():
    return Decoder(WORDS, witten_bell([(0, 1), (2,)], 3), np.full(CLASSES, np.log(0.5)))


@pytest.mark.parametrize("quiet", [True, False])
def test_clear_speech(tiny_lexicon, quiet):
    """No two sequences of these words have the same phones. Silence is there or not, also inside."""
    said = [("ON", "NO", "GO"), ("AB",), ("ON", "ON", "AB", "GO", "NO")]
    classes = 3 * len(tiny_lexicon.phones)
    parts = []
    for words in said:
        silence = [tiny_lexicon.silence] * quiet
        phones = list(silence)
        for word in words:
            phones += [*tiny_lexicon.pronunciations[tiny_lexicon.word_ids[word]][-1], *silence]
        path = np.repeat(hmm.phone_classes(phones), 2)
        parts.append(np.full((len(path), classes), -30.0))
        parts[-1][np.arange(len(path)), path] = 0
    decoder = Decoder(tiny_lexicon, witten_bell([], 4), np.full(classes, np.log(0.5)))
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    got = decoder.decode(np.concatenate(parts), offsets, DecoderSettings(1.0, 0.0))
    assert [tuple(tiny_lexicon.words[word] for word in one) for one in got] == said


def test_a_penalty_drives_words_out(decoder):
    scores = np.random.default_rng(0).normal(size=(60, CLASSES))
    counts = [
        len(decoder.decode(scores, np.array([0, 60]), DecoderSettings(1.0, penalty))[0])
        for penalty in (20.0, 0.0, -20.0, -1000.0)
    ]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_a_batch_is_its_utterances_one_by_one(decoder):
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 40, 70)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    scores = rng.normal(size=(offsets[-1], CLASSES)).astype(np.float32)
    together = decoder.decode(scores, offsets, DecoderSettings(1.0, 1.0))
    for one, words in enumerate(together):
        part = scores[offsets[one] : offsets[one + 1]]
        assert decoder.decode(part, np.array([0, len(part)]), DecoderSettings(1.0, 1.0)) == [words]


def test_a_constant_at_every_frame_changes_nothing(decoder):
    """As the probability of the frame itself, which a network's posteriors leave out."""
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(50, CLASSES))
    shifted = scores + rng.normal(size=(50, 1)) * 10
    offsets, setting = np.array([0, 50]), DecoderSettings(1.0, 0.0)
    assert decoder.decode(scores, offsets, setting) == decoder.decode(shifted, offsets, setting)


def test_too_short_for_any_word_says_nothing(decoder):
    assert decoder.decode(np.zeros((2, CLASSES)), np.array([0, 2, 2]), DecoderSettings()) == [(), ()]


def test_scores_that_are_not_finite_are_named(decoder):
    scores = np.zeros((9, CLASSES))
    scores[6, 1] = np.nan
    with pytest.raises(UserError, match="utterance u2: state scores are not finite"):
        decoder.decode(scores, np.array([0, 5, 9]), DecoderSettings(), ["u1", "u2"])
