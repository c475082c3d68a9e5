"""Partners of pairwise mixing: permutations, what they do to the mean and to the distance from it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.cluster.mixing import PAIRWISE, check_mixing, partners, pattern
from implementations.errors import UserError

rounds = st.integers(0, 100)
mixings = st.sampled_from(PAIRWISE)


def mixed(values, mixing, rounds):
    for round in rounds:
        values = (values + values[partners(mixing, len(values), round)]) / 2
    return values


def sizes(mixing):
    return [m for m in range(1, 33) if mixing != "butterfly" or m & (m - 1) == 0]


@given(data=st.data(), mixing=mixings, round=rounds)
def test_every_round_is_a_permutation_without_fixed_points_and_keeps_the_mean(data, mixing, round):
    m = data.draw(st.sampled_from(sizes(mixing)))
    sources = partners(mixing, m, round)
    assert sorted(sources) == list(range(m))
    assert m == 1 or all(source != r for r, source in enumerate(sources))
    matrix = mixed(np.eye(m), mixing, [round])
    assert (matrix.sum(0) == 1).all() and (matrix.sum(1) == 1).all()


@given(power=st.integers(0, 6), start=st.integers(0, 5))
def test_butterfly_rounds_end_at_the_mean_of_all(power, start):
    m = 2**power
    matrix = mixed(np.eye(m), "butterfly", range(start, start + power))
    assert (matrix == 1 / m).all()
    assert all(
        partners("butterfly", m, start)[source] == r
        for r, source in enumerate(partners("butterfly", m, start))
    )


@pytest.mark.parametrize("m", [2, 3, 6, 16])
def test_the_ring_contracts_at_the_rate_of_its_slowest_wave(m):
    """Eigenvalues of (I + shift) / 2 are (1 + e^(2 pi i k / m)) / 2, of modulus |cos(pi k / m)|."""
    matrix = mixed(np.eye(m), "ring", [0])
    moduli = np.sort(np.abs(np.linalg.eigvals(matrix)))
    assert moduli == pytest.approx(np.sort(np.abs(np.cos(np.pi * np.arange(m) / m))), abs=1e-7)


@pytest.mark.parametrize("mixing", PAIRWISE)
@pytest.mark.parametrize("m", [2, 4, 8, 16, 32])
def test_workers_come_closer_in_every_cycle(mixing, m):
    draws = np.random.default_rng(m).standard_normal((m, 50))
    drift = [np.square(v - v.mean(0)).sum() for v in (draws, mixed(draws, mixing, range(m.bit_length())))]
    assert drift[1] < drift[0]


@pytest.mark.parametrize("m", [2, 4, 8, 16, 32])
def test_hops_over_powers_of_two_are_as_quick_as_the_butterfly(m):
    assert np.allclose(mixed(np.eye(m), "hopping_ring", range(m.bit_length() - 1)), 1 / m)


def test_known_rounds():
    assert [partners("butterfly", 8, t)[0] for t in range(5)] == [1, 2, 4, 1, 2]
    assert partners("ring", 4, 7) == [3, 0, 1, 2]
    # five workers: hops 1, 2, 4
    assert [partners("hopping_ring", 5, t)[0] for t in range(4)] == [4, 3, 1, 4]


@given(power=st.integers(1, 5), data=st.data())
def test_patterns_name_the_distance(power, data):
    m = 2**power
    distance = data.draw(st.integers(1, m - 1))
    assert pattern([r ^ distance for r in range(m)]) == f"exchange-{distance}"
    n = data.draw(st.integers(3, 40))
    hop = data.draw(st.integers(1, n - 1))
    if 2 * hop != n or n & (n - 1):
        assert pattern([(r - hop) % n for r in range(n)]) == f"shift-{hop}"
    assert pattern(list(range(n))) == pattern([0]) == "direct"


def test_other_permutations_have_no_pattern():
    assert pattern([1, 0, 2]) == pattern([0, 2, 1]) == "direct"
    assert pattern([1, 0, 3, 2, 5, 4]) == "direct"


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"butterfly.*6 workers.*power of two"):
        partners("butterfly", 6, 0)
    with pytest.raises(UserError, match=r"gossip.*butterfly, ring, hopping_ring"):
        check_mixing("gossip", 4)
