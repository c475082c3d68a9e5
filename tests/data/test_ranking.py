"""Precision at k against sorting by hand and scikit-learn's top-k accuracy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import top_k_accuracy_score

from implementations.data.ranking import hits_at, precision_at


def by_hand(scores, labels, k):
    shares = []
    for row, own in zip(scores.tolist(), labels.tolist()):
        best = sorted(range(len(row)), key=lambda at: -row[at])[:k]
        shares.append(sum(at in own for at in best if at >= 0) / k)
    return sum(shares) / len(shares)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(5, 12), st.integers(1, 7))
def test_against_sorting(seed, samples, classes, most):
    draws = np.random.default_rng(seed)
    scores = torch.from_numpy(draws.permuted(np.tile(np.arange(classes), (samples, 1)), axis=1)).float()
    labels = torch.full((samples, most), -1)
    for row in range(samples):
        count = draws.integers(0, min(most, classes) + 1)
        labels[row, :count] = torch.from_numpy(draws.permutation(classes)[:count])
    found = precision_at(scores, labels, (1, 3, 5))
    assert found == pytest.approx({k: by_hand(scores, labels, k) for k in (1, 3, 5)}, abs=1e-12)


def test_one_label_each_is_top_k_accuracy_over_k():
    draws = np.random.default_rng(0)
    scores, labels = torch.from_numpy(draws.normal(size=(40, 8))), torch.from_numpy(draws.integers(0, 8, 40))
    found = precision_at(scores, labels)
    for k in (1, 3, 5):
        wanted = top_k_accuracy_score(labels.numpy(), scores.numpy(), k=k, labels=range(8))
        assert found[k] * k == pytest.approx(wanted, abs=1e-12)


def test_sums_of_pieces_add_up():
    draws = np.random.default_rng(0)
    scores, labels = (
        torch.from_numpy(draws.normal(size=(10, 6))),
        torch.from_numpy(draws.integers(0, 6, (10, 2))),
    )
    whole, pieces = (
        hits_at(scores, labels),
        sum(hits_at(scores[at : at + 4], labels[at : at + 4]) for at in (0, 4, 8)),
    )
    torch.testing.assert_close(whole, pieces, rtol=0, atol=1e-12)


def test_more_than_there_are():
    with pytest.raises(ValueError, match="precision at 5 of 4 classes"):
        hits_at(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))
