"""Subnets: cut out and written back exactly, averaged where several hold an entry, and no larger than they say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_runs import point_of

from implementations import registry
from implementations.clock import Clock
from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.holding import hold
from implementations.ist import partition


def subnets_of(workers, hidden, features=5, classes=3, model="fc_bn", **params):
    point = point_of("ist", workers, model={"name": model, "hidden": hidden}, method_params=params)
    comm = SimulatedCommunicator(workers, Ledger(Clock()), None)
    return hold(point, registry.get("ist").settings(point), features, classes, comm)


def weights_of(held):
    with held.whole() as net:
        return {name: weight[0].clone() for name, weight in net.weights.items()}


CASES = st.fixed_dictionaries(
    {
        "hidden": st.lists(st.integers(9, 23), min_size=1, max_size=2),
        "workers": st.integers(1, 3),
        "server": st.sampled_from(["central", "partitioned"]),
        "partition": st.sampled_from(["uniform", "stratified"]),
        "overlap": st.sampled_from([0.0, 0.5]),
        "model": st.sampled_from(["fc_bn", "fc"]),
    }
)


@settings(max_examples=30)
@given(case=CASES)
def test_a_round_without_steps_is_the_identity(case):
    held = subnets_of(**case)
    before = weights_of(held)
    for round in (0, 1):
        held.scatter(round)
        held.gather(round)
    after = weights_of(held)
    assert all(torch.equal(before[name], after[name]) for name in before)


@settings(max_examples=30)
@given(case=CASES)
def test_subnets_hold_the_blocks_of_their_units(case):
    """By brute force: each subnet's tensor is the full one at its units (numpy.ix_), and zero beyond."""
    held = subnets_of(**case)
    full = weights_of(held)
    held.scatter(3)
    groups = partition.draw(
        held.layout.units,
        case["workers"],
        3,
        3,
        partition=case["partition"],
        overlap=case["overlap"],
    ).units
    for worker, group in enumerate(groups):
        for name, axes in held.layout.axes.items():
            index = [
                np.arange(n) if label is None else group[label] for label, n in zip(axes, full[name].shape)
            ]
            block = full[name].numpy()[np.ix_(*index)]
            have = held.net.weights[name][worker].numpy()
            inside = tuple(slice(n) for n in block.shape)
            assert np.array_equal(have[inside], block)
            assert np.count_nonzero(have) == np.count_nonzero(block)


@settings(max_examples=30)
@given(case=CASES)
def test_what_comes_back_is_the_mean_over_those_that_hold_it(case):
    held = subnets_of(**case)
    before = weights_of(held)
    held.scatter(0)
    for worker in range(case["workers"]):
        held.net.theta_wp[worker] += worker + 1.0
    held.gather(0)
    after = weights_of(held)
    groups = partition.draw(
        held.layout.units, case["workers"], 3, 0, partition=case["partition"], overlap=case["overlap"]
    ).units
    for name, axes in held.layout.axes.items():
        added, holders = np.zeros(before[name].shape), np.zeros(before[name].shape)
        for worker, group in enumerate(groups):
            index = np.ix_(
                *[np.arange(n) if label is None else group[label] for label, n in zip(axes, added.shape)]
            )
            added[index] += worker + 1.0
            holders[index] += 1
        expected = before[name].numpy() + added / np.maximum(holders, 1)
        np.testing.assert_allclose(after[name].numpy(), expected, rtol=0, atol=1e-6)
        untouched = holders == 0
        assert np.array_equal(after[name].numpy()[untouched], before[name].numpy()[untouched])


@pytest.mark.parametrize("server", ["central", "partitioned"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_worker_holds_no_more_than_its_subnet(workers, server):
    """P_sub = (P_in + P_out + P_bn) / n + P_hid / n^2, and the store P, or P / n where it is spread."""
    wide, deep, features, classes = 64, 32, 20, 8
    held = subnets_of(workers, [wide, deep], features, classes, server=server)
    ends = features * wide + deep * classes + 2 * (wide + deep)
    subnet = ends // workers + wide * deep // workers**2
    assert held.net.params_per_worker == subnet
    assert held.net.theta_wp.nbytes == held.net.grad_wp.nbytes == 4 * subnet * workers
    whole = ends + wide * deep
    assert held.full_params == whole
    assert held.server_bytes == 4 * (whole if server == "central" else whole // workers)
    storages = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes()
        for parts in held._weights
        for part in parts.values()
    }
    assert sum(storages.values()) == 4 * whole
    with held.whole() as net:
        assert net.grad_wp.untyped_storage().nbytes() <= 4  # what is only evaluated has no gradients


def test_hidden_to_hidden_weights_are_covered_as_by_chance():
    """After R rounds 1 - (1 - 1/n)^R of them have been in a subnet; the others are what they were."""
    workers, rounds = 4, 5
    held = subnets_of(workers, [64, 64])
    before = weights_of(held)["w1"]
    for round in range(rounds):
        held.scatter(round)
        held.net.theta_wp += 1.0
        held.gather(round)
    touched = float((weights_of(held)["w1"] != before).double().mean())
    assert touched == pytest.approx(1 - (1 - 1 / workers) ** rounds, abs=0.05)
