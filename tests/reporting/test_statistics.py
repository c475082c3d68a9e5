import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from implementations.reporting import statistics

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(VALUES)
def test_median_and_quartiles_are_numpys(values):
    found = statistics.median_and_spread(values)
    assert found.centre == pytest.approx(np.median(values), rel=1e-12)
    assert found.n == len(values)
    if len(values) > 1:
        assert (found.low, found.high) == tuple(np.quantile(values, [0.25, 0.75]))


@given(VALUES)
def test_a_median_lies_within_its_range_or_interval(values):
    found = statistics.median_and_range(values)
    assert found.centre == pytest.approx(np.median(values), rel=1e-12) and found.n == len(values)
    assert found.low <= found.high and min(values) <= found.low and found.high <= max(values)
    kinds = {1: "single value"} | dict.fromkeys(range(2, 6), "range")
    assert found.kind == kinds.get(len(values), "95 % interval")


@pytest.mark.parametrize("reached, centre", [(5, 3.0), (3, 3.0), (2, np.inf), (0, np.inf)])
def test_a_median_is_finite_while_most_reach_the_target(reached, centre):
    values = [1.0, 2.0, 3.0, 4.0, 5.0][:reached] + [np.inf] * (5 - reached)
    found = statistics.median_and_range(values)
    assert found.centre == centre and found.high == values[-1] and found.low == values[0]
    many = statistics.median_and_range(values + [np.inf] * 3)
    assert many.kind == "95 % interval" and not np.isnan([many.low, many.high]).any()


def test_a_missed_target_is_infinite_and_stays_so():
    found = statistics.median_and_spread([1.0, 2.0, np.inf, np.inf, np.inf])
    assert found.centre == np.inf and found.low == 2.0


def test_absent_values_are_left_out():
    assert statistics.median_and_spread([1.0, np.nan, None, 3.0]).centre == 2.0
    assert statistics.median_and_spread([]).kind == "no value"
    assert np.isnan(statistics.range_or_interval([np.nan]).centre)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=5))
def test_fewer_than_six_values_show_their_range_and_say_so(values):
    found = statistics.range_or_interval(values)
    assert (found.kind, found.low, found.high) == ("range", min(values), max(values))


def test_six_values_get_students_interval():
    values = [3.1, 2.9, 3.4, 3.0, 3.3, 2.8, 3.2]
    found = statistics.range_or_interval(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert found.kind == "95 % interval"
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_equal_values_have_an_interval_without_width():
    found = statistics.range_or_interval([0.5] * 8)
    assert (found.low, found.high) == (0.5, 0.5)


def test_bootstrap_agrees_with_scipys():
    values = np.random.default_rng(3).normal(10, 2, 60)
    ours = statistics.bootstrap_interval(values, np.mean, resamples=4000)
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=4000, rng=1
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.1)
    assert ours == statistics.bootstrap_interval(values, np.mean, resamples=4000)


def test_bootstrap_covers_the_mean_about_as_often_as_it_says():
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = statistics.bootstrap_interval(draw.normal(0, 1, 30), resamples=400)
        hits += low <= 0 <= high
    assert 0.88 <= hits / 200 <= 0.99
