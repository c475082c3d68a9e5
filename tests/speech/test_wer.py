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


def test_a_resample_has_as_many_utterances_as_its_speakers_have():
    speakers = np.array(["a"] * 3 + ["b"] * 3 + ["c"] * 3)
    times = wer.draw_utterances(speakers, 500)
    assert times.shape == (500, 9) and (times.sum(axis=1) == 9).all()
    of_speaker = times.reshape(500, 3, 3).sum(axis=2)
    assert (of_speaker % 3 == 0).all()  # a speaker is drawn whole: with all its utterances, or again
    assert times.mean() == pytest.approx(1, abs=0.05)


def test_mean_rates_are_the_means_of_the_rates_of_each_resample():
    """Against sums over utterances repeated as often as they are drawn."""
    rng = np.random.default_rng(0)
    units, errors = rng.integers(1, 9, 12), rng.integers(0, 4, (1, 12))
    times = wer.draw_utterances(np.repeat([0, 1, 2, 3], 3), 50)
    values, drawn = wer.mean_rates([errors], units, times)
    assert values == pytest.approx(errors.sum() / units.sum())
    for counts, rate in zip(times.astype(int), drawn[:, 0], strict=True):
        rows = np.repeat(np.arange(12), counts)
        assert rate == pytest.approx(errors[0, rows].sum() / units[rows].sum())


def test_seeds_are_redrawn_together_where_they_are_paired():
    """Seed i has rate i in one system and i + 1 in the other: a paired difference never varies."""
    errors = np.repeat(np.arange(4.0)[:, None], 10, axis=1)
    times, units = wer.draw_utterances(np.arange(10), 300), np.ones(10)
    _, paired = wer.mean_rates([errors, errors + 1], units, times, paired=True)
    assert np.allclose(paired[:, 1] - paired[:, 0], 1)
    _, apart = wer.mean_rates([errors, errors + 1], units, times)
    assert np.std(apart[:, 1] - apart[:, 0]) == pytest.approx(
        np.sqrt(2 * np.var(np.arange(4.0)) / 4), rel=0.15
    )


def test_a_resample_of_nothing_but_empty_references_has_no_rate():
    times, units = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([0, 4])
    _, drawn = wer.mean_rates([np.array([[1, 1]])], units, times)
    assert np.isnan(drawn[0, 0]) and drawn[1, 0] == pytest.approx(2 / 4)
    assert wer.percentiles(0.5, drawn[:, 0]) == wer.Interval(0.5, 0.5, 0.5)
