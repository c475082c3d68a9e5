import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from implementations.speech.bigram import back_off, witten_bell


def test_by_hand():
    """Words 0, 1, 2; said: "0 1", "0". Tokens after all: 0 0 1 end end."""
    got = np.exp(witten_bell([(0, 1), (0,)], 3))
    # P(w): counts 2 1 0 2 of 5, 3 kinds of 5 + 3 go to equal shares of a quarter.
    single = (np.array([2, 1, 0, 2]) + 3 / 4) / 8
    np.testing.assert_allclose(got[2], single)  # 2 was never said: no successors known
    np.testing.assert_allclose(got[0], (np.array([0, 1, 0, 1]) + 2 * single) / 4)
    np.testing.assert_allclose(got[1], (np.array([0, 0, 0, 1]) + single) / 2)
    np.testing.assert_allclose(got[3], (np.array([2, 0, 0, 0]) + single) / 3)


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=6))
def test_rows_are_distributions(transcripts):
    got = np.exp(witten_bell(transcripts, 5))
    np.testing.assert_allclose(got.sum(axis=1), 1)
    assert (got > 0).all()


def test_pairs_never_seen_back_off():
    rng = np.random.default_rng(5)
    said = [tuple(rng.choice(12, rng.integers(1, 6), p=rng.dirichlet(np.ones(12)))) for _ in range(15)]
    logs = witten_bell(said, 12)
    rows, columns, higher = back_off(logs)
    seen = {pair for one in said for pair in itertools.pairwise((12, *one, 12))}
    assert set(zip(*np.nonzero(higher))) == seen
    np.testing.assert_allclose((rows[:, None] + columns)[~higher], logs[~higher], atol=1e-8)


def test_any_matrix_has_weights_from_below():
    logs = np.log(np.random.default_rng(0).dirichlet(np.ones(7), 7))
    rows, columns, higher = back_off(logs)
    assert (rows[:, None] + columns <= logs + 1e-9).all()
    np.testing.assert_allclose((rows[:, None] + columns)[~higher], logs[~higher], atol=1e-8)
