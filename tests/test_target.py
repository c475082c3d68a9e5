"""When a target is reached, between evaluations."""

import pytest

from implementations.target import at_target, crossing


@pytest.mark.parametrize(
    ("values", "target", "place"),
    [
        ([0.1, 0.5, 0.9], 0.5, 1.0),
        ([0.1, 0.5, 0.9], 0.7, 1.5),
        ([0.1, 0.5, 0.9], 0.2, 0.25),
        ([0.1, 0.6, 0.4, 0.9], 0.5, 0.8),  # the first time
        ([0.5, 0.6], 0.5, 0.0),
        ([0.1, 0.5], 0.6, None),
        ([float("nan"), 0.5], 0.6, None),
        ([], 0.6, None),
    ],
)
def test_the_target_is_crossed_on_the_line_between_two_evaluations(values, target, place):
    assert crossing(values, target) == (None if place is None else pytest.approx(place))


def test_bytes_and_seconds_are_told_where_the_target_is_crossed():
    assert at_target([0.1, 0.5, 0.9], 0.7, [0, 100, 300]) == pytest.approx(200)
    assert at_target([0.1, 0.5, 0.9], 0.9, [0, 100, 300]) == 300
    assert at_target([0.1, 0.5], 0.6, [0, 100]) == float("inf")
