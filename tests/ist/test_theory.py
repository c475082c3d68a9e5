"""What is known exactly about independent subnets, with the suite's own draws.

Quadratics after Shulgin and Richtarik 2023 (arXiv 2306.16484): worker i has ``f_i(x) = x' L_i x / 2 - b_i' x``, its
subnet is the sketch ``C_i = n sum_{j in its group} e_j e_j'``, and one round of one local step is
``x+ = (1/n) sum_i [C_i x - gamma C_i grad f_i(C_i x)]`` (their equation 6).

As the groups are drawn independently of x, the mean iterate follows a linear recursion. Two of d = q n units share a
group with chance rho = (q-1)/(d-1), so that its limit is ``x_inf = (1/n) (D + rho (L - D))^-1 b``, L and b the means of
the L_i and b_i and D = diag(L): not ``x* = L^-1 b``. With their scaled sketches (equation 23) of one unit each the
limit is ``n^-1/2`` times the mean of ``D_i^-1/2 b_i`` (section 4.1).
"""

import numpy as np
import pytest

from implementations.ist.partition import draw


def groups(d, n, seed, round, **options):
    """Each worker's coordinates in a round."""
    return [held["x"] for held in draw({"x": d}, n, seed, round, **options).units]


def step(x, gamma, L, b, held):
    """Equation 6."""
    n, after = len(held), np.zeros_like(x)
    for i, own in enumerate(held):
        subnet = n * x[own]
        gradient = L[i][np.ix_(own, own)] @ subnet - b[i][own]
        after[own] += (subnet - gamma * n * gradient) / n
    return after


def scaled_step(x, gamma, L, b, held):
    """``x - gamma (1/n) sum_i C_i grad f_i(C_i x)`` with the sketches of equation 23, of one unit each."""
    n, after = len(held), x.copy()
    for i, own in enumerate(held):
        scale = np.sqrt(n) / np.sqrt(np.diag(L[i])[own])
        gradient = L[i][np.ix_(own, own)] @ (scale * x[own]) - b[i][own]
        after[own] -= gamma * scale * gradient / n
    return after


def quadratics(d, n, seed):
    """Positive definite ``L_i`` and ``b_i`` of mean 1, different for each worker."""
    stream = np.random.default_rng(seed)
    roots = stream.standard_normal((n, d, 2 * d))
    return roots @ roots.transpose(0, 2, 1) / (2 * d) + 0.5 * np.eye(d), 1 + 0.3 * stream.standard_normal(
        (n, d)
    )


@pytest.mark.parametrize("d, n", [(6, 2), (12, 4), (8, 8), (10, 4)])
def test_without_linear_terms_it_converges_to_the_minimum(d, n):
    """Each round shrinks x by 1 - gamma n mu: a group's block of L_i is a principal submatrix."""
    L, _ = quadratics(d, n, seed=1)
    spectrum = np.linalg.eigvalsh(L)
    gamma, mu = 1 / (n * spectrum.max()), spectrum.min()
    x, rounds = np.ones(d), 60
    for round in range(rounds):
        before = np.linalg.norm(x)
        x = step(x, gamma, L, np.zeros((n, d)), groups(d, n, 0, round))
        assert np.linalg.norm(x) <= (1 - gamma * n * mu) * before * (1 + 1e-12)
    assert np.linalg.norm(x) < 1e-3


@pytest.mark.parametrize("d, n", [(4, 4), (8, 4), (12, 3)])
def test_with_linear_terms_the_mean_tends_to_another_point(d, n):
    L, b = quadratics(d, n, seed=2)
    mean, diagonal = L.mean(axis=0), np.diag(np.diag(L.mean(axis=0)))
    rho = (d // n - 1) / (d - 1)
    limit = np.linalg.solve(diagonal + rho * (mean - diagonal), b.mean(axis=0)) / n
    minimum = np.linalg.solve(mean, b.mean(axis=0))
    gamma, rounds, chains = 0.5 / (n * np.linalg.eigvalsh(L).max()), 25, 150
    ends = np.zeros((chains, d))
    for seed in range(chains):
        x = limit + 1.0
        for round in range(rounds):
            x = step(x, gamma, L, b, groups(d, n, seed, round))
        ends[seed] = x
    # what is left of the start: the mean contracts by its own matrix
    contraction = np.eye(d) - gamma * n * (diagonal + rho * (mean - diagonal))
    predicted = limit + np.linalg.matrix_power(contraction, rounds) @ np.ones(d)
    error = ends.std(axis=0, ddof=1) / np.sqrt(chains)
    assert (np.abs(ends.mean(axis=0) - predicted) <= 4 * error).all()
    assert np.abs(predicted - limit).max() < 0.02
    assert (np.abs(ends.mean(axis=0) - minimum) > 10 * error).all()


def test_the_scaled_sketches_tend_to_the_published_point():
    n = 6
    L, b = quadratics(n, n, seed=3)
    limit = np.mean([b[i] / np.sqrt(np.diag(L[i])) for i in range(n)], axis=0) / np.sqrt(n)
    gamma, rounds, chains = 0.3, 15, 150
    ends = np.zeros((chains, n))
    for seed in range(chains):
        x = np.zeros(n)
        for round in range(rounds):
            x = scaled_step(x, gamma, L, b, groups(n, n, seed, round))
        ends[seed] = x
    error = ends.std(axis=0, ddof=1) / np.sqrt(chains)
    predicted = limit * (1 - (1 - gamma) ** rounds)
    assert (np.abs(ends.mean(axis=0) - predicted) <= 4 * error).all()
    minimum = np.linalg.solve(L.mean(axis=0), b.mean(axis=0))
    assert (np.abs(ends.mean(axis=0) - minimum) > 10 * error).all()


def scaled_limit(n, off_diagonal):
    """Where equal workers end with ones on L's diagonal and b = 1: the same for all draws, n^-1/2 in every place."""
    L = np.full((n, n), off_diagonal) + (1 - off_diagonal) * np.eye(n)
    x = np.zeros(n)
    for round in range(45):
        x = scaled_step(x, 0.5, [L] * n, np.ones((n, n)), groups(n, n, 0, round))
    return x, np.linalg.solve(L, np.ones(n))


def test_the_bias_falls_with_n_as_published_where_the_minimum_does():
    """With a fixed correlation c, x* = 1 / (1 + c (n-1)) in every place: the bias goes as n^-1/2."""
    biases = []
    for n in (16, 64, 256):
        limit, minimum = scaled_limit(n, 0.5)
        bias = 1 / np.sqrt(n) - 1 / (1 + 0.5 * (n - 1))
        assert limit - minimum == pytest.approx(bias)
        biases.append(bias)
    assert biases[0] > biases[1] > biases[2]
    # not so where the minimum stays: without correlation x* = 1, and the bias grows towards it
    for n in (16, 64):
        limit, minimum = scaled_limit(n, 0.0)
        assert minimum - limit == pytest.approx(1 - 1 / np.sqrt(n))


@pytest.mark.parametrize("n", [4, 9, 25])
def test_there_is_no_bias_where_b_is_an_eigenvector_to_the_root_of_n(n):
    """Their remark on the homogeneous case: 1 + c (n-1) = n^1/2."""
    limit, minimum = scaled_limit(n, 1 / (np.sqrt(n) + 1))
    assert limit == pytest.approx(minimum)
    assert limit == pytest.approx(np.full(n, 1 / np.sqrt(n)))


@pytest.mark.parametrize("partition", ["uniform", "stratified"])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_coverage_of_hidden_to_hidden_weights(partition, workers):
    """A weight between hidden layers is trained in a round with chance 1/n, and after R rounds with 1-(1-1/n)^R."""
    units, seeds, rounds = {"h1": 64, "h2": 128}, 60, (1, 3, 8)
    covered = np.zeros((seeds, len(rounds)))
    for seed in range(seeds):
        touched = np.zeros((units["h1"], units["h2"]), dtype=bool)
        for round in range(rounds[-1]):
            for held in draw(units, workers, seed, round, partition=partition).units:
                touched[np.ix_(held["h1"], held["h2"])] = True
            if round + 1 in rounds:
                covered[seed, rounds.index(round + 1)] = touched.mean()
    assert (covered[:, 0] == 1 / workers).all()
    error = covered[:, 1:].std(axis=0, ddof=1) / np.sqrt(seeds)
    expected = 1 - (1 - 1 / workers) ** np.array(rounds[1:])
    assert (np.abs(covered[:, 1:].mean(axis=0) - expected) <= 4 * error).all()


def test_coverage_stays_without_new_draws():
    touched = np.zeros((12, 8), dtype=bool)
    for round in range(5):
        for held in draw({"h1": 12, "h2": 8}, 4, 0, round, redraw=False).units:
            touched[np.ix_(held["h1"], held["h2"])] = True
    assert touched.mean() == 1 / 4
