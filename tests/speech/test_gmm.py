import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from implementations.speech import gmm


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    states = rng.integers(0, 3, 3000)
    x = rng.normal(size=(3000, 2)) * [1.0, 2.0] + states[:, None] * [4.0, -3.0]
    x[states == 1] += rng.choice([-2.5, 2.5], ((states == 1).sum(), 1))
    return x.astype(np.float32), states


def densities(mixtures, x):
    """By scipy, in double precision."""
    columns = []
    for logs, means, variances in zip(mixtures.log_weights, mixtures.means, mixtures.variances, strict=True):
        parts = [
            log + multivariate_normal(mean, np.diag(variance)).logpdf(x)
            for log, mean, variance in zip(logs, means, variances, strict=True)
            if np.isfinite(log)
        ]
        columns.append(logsumexp(parts, axis=0))
    return np.stack(columns, axis=1)


def test_one_gaussian_is_the_sample_mean_and_variance(data):
    x, states = data
    fitted = gmm.single(x, states, 3)
    for state in range(3):
        np.testing.assert_allclose(fitted.means[state, 0], x[states == state].mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(fitted.variances[state, 0], x[states == state].var(axis=0), rtol=1e-4)
    np.testing.assert_allclose(fitted.log_likelihoods(x), densities(fitted, x), atol=2e-3)


def test_likelihoods_are_scipys_with_several_components(data):
    x, states = data
    fitted = gmm.reestimate(gmm.split(gmm.single(x, states, 3), states), x, states)
    fitted = gmm.reestimate(gmm.split(fitted, states), x, states)
    fitted.log_weights[2, 1:] = -np.inf  # states need not have equally many
    fitted.log_weights[2, 0] = 0
    np.testing.assert_allclose(fitted.log_likelihoods(x), densities(fitted, x), atol=2e-3)
    assert fitted.log_likelihoods(x).dtype == np.float32


def test_likelihood_never_falls_between_splits(data):
    x, states = data
    fitted = gmm.single(x, states, 3)
    for _ in range(3):
        fitted = gmm.split(fitted, states)
        held = -np.inf
        for _ in range(6):
            fitted = gmm.reestimate(fitted, x, states)
            now = densities(fitted, x)[np.arange(len(x)), states].sum()
            assert now >= held - 1e-6 * abs(held)
            held = now
        np.testing.assert_allclose(np.exp(fitted.log_weights).sum(axis=1), 1)


def test_two_humps_are_found(data):
    x, states = data
    fitted = gmm.split(gmm.single(x, states, 3), states)
    for _ in range(30):
        fitted = gmm.reestimate(fitted, x, states)
    np.testing.assert_allclose(sorted(fitted.means[1, :, 0]), [1.5, 6.5], atol=0.2)


def test_poor_states():
    """A state without frames is like all frames; a poor component is not split; a constant value has the floor."""
    x = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    x[:10, 1] = 5
    states = np.repeat([0, 2], [10, 20])
    fitted = gmm.single(x, states, 3)
    np.testing.assert_allclose(fitted.means[1, 0], x.mean(axis=0), rtol=1e-5)
    assert fitted.variances[0, 0, 1] == pytest.approx(gmm.VARIANCE_FLOOR * x[:, 1].var(), rel=1e-4)
    assert gmm.split(fitted, states).log_weights.shape == (3, 1)
    assert np.isfinite(fitted.log_likelihoods(x)).all()
