"""Which samples of an evaluation set are scored."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_runs import point_of, trained

from implementations.harness import evenly


@given(st.integers(0, 10**6), st.one_of(st.none(), st.integers(1, 10**4)))
def test_rows_are_spread_over_the_set(size, wanted):
    rows = evenly(size, wanted)
    assert len(rows) == (size if wanted is None else min(size, wanted))
    if len(rows):
        gaps = np.diff([*rows, size])
        assert rows[0] == 0 and gaps.min() >= 1 and gaps.max() - gaps.min() <= 1


@pytest.mark.data
@pytest.mark.parametrize("method", ["sequential", "layerwise"])
def test_accuracy_is_over_the_samples_asked_for(method, results):
    part = trained(point_of(method, eval_size=50), results)
    tested = part.test()
    dataset, weights = part.dataset, part.net.theta_wp[0].clone()
    samples = dataset.samples("test", np.arange(50) * dataset.sizes["test"] // 50)
    with part.holding.whole() as net:
        correct, loss = net.evaluate(*part.device.take(samples, torch.arange(50)))
    assert (tested["accuracy"], tested["loss"]) == pytest.approx((correct / 50, loss / 50))
    assert torch.equal(part.net.theta_wp[0], weights)

    whole = trained(point_of(method), results)
    assert torch.equal(whole.net.theta_wp[0], weights), "what is scored changes nothing of the training"
    correct = whole.test()["accuracy"] * dataset.sizes["test"]
    assert correct == pytest.approx(round(correct))
