"""When a target is reached, between evaluations."""

import pytest

from implementations.target import crossing


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
