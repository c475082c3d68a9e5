import numpy as np
import pytest

from implementations.reporting.suite import lead

BANDWIDTH = np.array([10.0, 100.0, 1000.0, 10_000.0])


def talks(seconds_at_one):
    """Bytes alone: time falls as bandwidth rises."""
    return seconds_at_one / BANDWIDTH


def flat(seconds):
    """Computation alone."""
    return np.full(len(BANDWIDTH), float(seconds))


def test_two_methods_change_places_where_their_times_are_equal():
    # 3000 / x = 4 at 750, between two of the bandwidths
    found = lead.stretches(BANDWIDTH, {"talker": talks(3000), "thinker": flat(4)})
    assert [part.name for part in found] == ["thinker", "talker"]
    assert [part.least for part in found] == pytest.approx([10, 750])
    assert [part.most for part in found] == pytest.approx([750, 10_000])


def test_a_third_method_may_lead_between_two_bandwidths():
    # 1000/x, 10, and 40 x^-1/2, which is below both from 16 to 625 alone
    middle = 40 * BANDWIDTH**-0.5
    found = lead.stretches(BANDWIDTH, {"talker": talks(1000), "thinker": flat(10), "middle": middle})
    assert [part.name for part in found] == ["thinker", "middle", "talker"]
    assert [part.least for part in found[1:]] == pytest.approx([16, 625])


def test_the_envelope_is_the_least_of_all_curves():
    draw = np.random.default_rng(1)
    curves = {name: np.exp(draw.normal(size=4)) for name in "abcdef"}
    found = lead.stretches(BANDWIDTH, curves)
    for where in np.geomspace(10.01, 9999, 500):
        leader = next(part.name for part in found if part.least <= where <= part.most)
        values = {
            name: np.exp(np.interp(np.log(where), np.log(BANDWIDTH), np.log(each)))
            for name, each in curves.items()
        }
        assert values[leader] == pytest.approx(min(values.values()))


def test_who_misses_the_target_does_not_lead():
    assert lead.stretches(BANDWIDTH, {"never": flat(np.inf)}) == []
    found = lead.stretches(BANDWIDTH, {"never": flat(np.inf), "slow": flat(1e6)})
    assert found == [lead.Stretch("slow", 10, 10_000)]


def test_equally_fast_ones_are_ordered_by_name():
    assert lead.stretches(BANDWIDTH, {"b": flat(1), "a": flat(1)}) == [lead.Stretch("a", 10, 10_000)]


def test_seeds_give_the_range_of_a_crossing():
    # a / x = b at a / b
    below = {0: flat(4), 1: flat(5), 2: flat(4)}
    above = {0: talks(2000), 1: talks(2000), 2: talks(4000)}
    found, inside, seeds = lead.over_seeds(BANDWIDTH, below, above, 500)
    assert (found.low, found.high) == pytest.approx((400, 1000))
    assert (inside, seeds) == (3, 3)


def test_a_seed_without_the_crossing_opens_the_range():
    below = {0: flat(4), 1: flat(4), 2: flat(4)}
    above = {0: talks(2000), 1: talks(4e6), 2: flat(np.inf)}  # at 500; beyond the networks; never arrives
    found, inside, seeds = lead.over_seeds(BANDWIDTH, below, above, 500)
    assert (found.low, found.high) == (pytest.approx(500), np.inf)
    assert (inside, seeds) == (1, 3)
    found, inside, _ = lead.over_seeds(BANDWIDTH, {0: flat(1000)}, {0: talks(2000)}, 500)
    assert (found.low, found.high, inside) == (0, 0, 0)
    assert lead.over_seeds(BANDWIDTH, {0: flat(np.inf)}, {0: flat(np.inf)}, 500) == (None, 0, 0)


def test_errors_of_the_model_move_a_crossing_by_their_product():
    # a (1 + e) / x = b / (1 + f) at (a / b)(1 + e)(1 + f)
    found = lead.under_errors(BANDWIDTH, flat(4), talks(2000), 500, (flat(0.1), flat(0.2)))
    assert (found.low, found.high) == pytest.approx((500 / 1.32, 500 * 1.32))
    exact = lead.under_errors(BANDWIDTH, flat(4), talks(2000), 500, (flat(0), flat(0)))
    assert (exact.low, exact.high) == pytest.approx((500, 500))


def test_flat_curves_that_err_cross_anywhere():
    assert lead.under_errors(BANDWIDTH, flat(4), flat(3.9), 500, (flat(0.1), flat(0.1))) == lead.Range(
        0, np.inf
    )


def test_a_crossing_is_followed_in_its_direction():
    # "below" is overtaken between the first two, ahead again between the next, overtaken between the last
    below, above = np.array([1.0, 4, 1, 4]), np.array([2.0, 2, 2, 2])
    for near in (3000, 200):
        wanted = 10**3.5 if near == 3000 else 10**1.5
        assert lead.crossing_near(BANDWIDTH, below, above, near) == pytest.approx(wanted)
    # ahead at both ends, behind in the middle: it falls behind once, and that it gets ahead again is another crossing
    assert lead.crossing_near(BANDWIDTH, np.array([1.0, 4, 4, 1]), above, 10_000) == pytest.approx(10**1.5)
    # behind from the slowest network on, ahead on the fastest: never overtaken again
    assert lead.crossing_near(BANDWIDTH, np.array([4.0, 4, 4, 1]), above, 500) == np.inf
