import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.errors import UserError
from implementations.speech import wer

WORDS = st.lists(st.sampled_from("abc"), max_size=9)


@given(
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6).filter(lambda pairs: any(r for r, _ in pairs))
)
def test_it_is_jiwers(pairs):
    """The rate, and each kind of error, over the corpus."""
    references, hypotheses = zip(*pairs, strict=True)
    got = wer.word_errors(references, hypotheses)
    said = jiwer.process_words([" ".join(one) for one in references], [" ".join(one) for one in hypotheses])
    assert got.rate == pytest.approx(said.wer)
    kinds = [int(one.sum()) for one in (got.substitutions, got.deletions, got.insertions)]
    assert kinds == [said.substitutions, said.deletions, said.insertions]


@given(WORDS, WORDS)
def test_properties_of_an_edit(reference, hypothesis):
    substitutions, deletions, insertions = wer.edits(reference, hypothesis)
    assert min(substitutions, deletions, insertions) >= 0
    assert len(reference) - deletions + insertions == len(hypothesis)
    assert max(len(reference), len(hypothesis)) >= substitutions + deletions + insertions
    assert sum(wer.edits(hypothesis, reference)) == substitutions + deletions + insertions
    assert wer.edits(reference, reference) == (0, 0, 0)


@given(WORDS, WORDS, WORDS)
def test_an_edit_is_never_longer_than_one_by_way_of_a_third(a, b, c):
    assert sum(wer.edits(a, c)) <= sum(wer.edits(a, b)) + sum(wer.edits(b, c))


def test_an_empty_reference():
    got = wer.word_errors([(), ("a", "b")], [("x", "y"), ("a", "b")])
    assert got.insertions.tolist() == [2, 0] and got.rate == 1.0
    with pytest.raises(UserError, match="the references hold no words"):
        _ = wer.word_errors([()], [("x",)]).rate
    with pytest.raises(UserError, match="the references hold no words"):
        wer.interval(wer.word_errors([()], [()]), np.array([0]))


def errors_at(rate, rng, utterances=400, words=10):
    wrong = rng.binomial(words, rate, utterances)
    nothing = np.zeros_like(wrong)
    return wer.WordErrors(wrong, nothing, nothing, np.full(utterances, words))


def test_interval_without_speaker_effect_is_the_binomials():
    """4000 words at 10 %: standard error sqrt(0.1 * 0.9 / 4000); one speaker, so that utterances alone are drawn."""
    errors = errors_at(0.1, np.random.default_rng(0))
    got = wer.interval(errors, np.zeros(400, int), resamples=4000)
    spread = np.sqrt(0.1 * 0.9 / 4000)
    assert got.low <= got.value <= got.high
    assert (got.high - got.low) / (2 * 1.96 * spread) == pytest.approx(1, abs=0.12)


def test_a_speaker_effect_widens_the_interval():
    rng = np.random.default_rng(0)
    rates = np.repeat([0.0, 0.02, 0.05, 0.1, 0.33], 80)
    errors = errors_at(rates, rng)
    alone = wer.interval(errors, np.zeros(400, int))
    grouped = wer.interval(errors, np.repeat(np.arange(5), 80))
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)


def test_intervals_repeat():
    errors = errors_at(0.1, np.random.default_rng(0))
    speakers = np.repeat(np.arange(10), 40)
    assert wer.interval(errors, speakers) == wer.interval(errors, speakers)
    assert wer.interval(errors, speakers) != wer.interval(errors, speakers, seed=1)


def test_no_errors():
    errors = errors_at(0.0, np.random.default_rng(0))
    assert wer.interval(errors, np.repeat([0, 1], 200)) == wer.Interval(0.0, 0.0, 0.0)


def test_a_system_does_not_differ_from_itself():
    errors = [errors_at(0.1, np.random.default_rng(seed)) for seed in range(3)]
    assert wer.compare(errors, errors, np.repeat(np.arange(10), 40)) == wer.Interval(0.0, 0.0, 0.0)


@pytest.mark.parametrize("seeds", [(3, 3), (2, 4)])
def test_comparison_sees_a_real_difference_and_no_other(seeds):
    """What is hard for both systems cancels: pairs tell more than two intervals."""
    rng = np.random.default_rng(1)
    hard = rng.beta(1, 9, 400)
    speakers = np.repeat(np.arange(20), 20)
    first = [errors_at(hard, rng) for _ in range(seeds[0])]
    same = [errors_at(hard, rng) for _ in range(seeds[1])]
    worse = [errors_at(hard + 0.04, rng) for _ in range(seeds[1])]
    equal, differ = wer.compare(first, same, speakers), wer.compare(first, worse, speakers)
    assert equal.low < 0 < equal.high
    assert 0 < differ.low < 0.04 < differ.high
    assert differ.value == pytest.approx(np.mean([w.rate for w in worse]) - np.mean([f.rate for f in first]))


def test_comparison_wants_the_same_utterances():
    a, b = errors_at(0.1, np.random.default_rng(0)), errors_at(0.1, np.random.default_rng(0), words=9)
    with pytest.raises(UserError, match="same utterances"):
        wer.compare([a], [b], np.zeros(400, int))
