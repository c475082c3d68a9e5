"""Schedules worked out by hand."""

import numpy as np
import pytest

from implementations.cluster import machine
from implementations.layerwise import costs, strategies
from implementations.layerwise.roofline import Roofline
from implementations.layerwise.timeline import Transfer, Work, simulate
from tests.cluster.toys import described
from tests.layerwise.networks import branched, chain

NONE = np.zeros(2)
BOTH = np.ones(2)
TO_1 = np.array([[False, True], [False, False]])


def work(name, forward=NONE, back=NONE, weights=NONE, **other):
    return Work(name, np.array(forward), np.array(back), np.array(weights), **other)


def test_one_device_adds_everything_up():
    works = [work("a", [1.0], [2.0], [3.0]), work("b", [4.0], [5.0], [6.0])]
    for background in (False, True):
        found = simulate(works, np.array([7.0]), background)
        assert (found.forward_s, found.backward_s, found.synced_s, found.step_s) == (5, 21, 21, 28)


def test_a_reader_waits_for_what_is_sent_and_the_sender_goes_on():
    move = Transfer("a", TO_1, np.array([3.0, 3.0]), gradient=False)
    works = [work("a", [1, 0]), work("other", [10, 0]), work("b", [0, 1], transfers=[move])]
    assert simulate(works, NONE, True).forward_s == 11
    # the reader has its block at 4 and is through at 5; without background both meet when the sender has time
    assert simulate([*works[:1], works[2]], NONE, True).forward_s == 5
    assert simulate(works, NONE, False).forward_s == 15


def test_gradients_go_back_while_those_of_the_parameters_are_computed():
    move = Transfer("a", TO_1, np.array([3.0, 3.0]), gradient=True)
    works = [work("a", back=[1, 0]), work("b", back=[0, 2], weights=[0, 4], transfers=[move])]
    # forward ends at 3; b's gradient arrives at 3 + 2 + 3, so that a's backward ends at 9, as b's parameters do
    assert simulate(works, NONE, True).backward_s == 9
    # b's parameters first, then the two meet
    assert simulate(works, NONE, False).backward_s == 3 + 2 + 4 + 3 + 1


def test_sums_of_gradients_hide_behind_the_backward_pass():
    late = work("late", back=BOTH, weights=BOTH, groups=[(0, 1)], sync_s=5.0)
    early = work("early", back=4 * BOTH, weights=BOTH, groups=[(0, 1)], sync_s=2.0)
    found = simulate([early, late], BOTH, True)
    # late's run from 2 to 7, early's from 7 to 9; the pass ends at 7
    assert (found.backward_s, found.synced_s, found.step_s) == (7, 9, 10)
    assert simulate([early, late], BOTH, False).synced_s == 7 + 7


def test_transfers_go_before_sums():
    move = Transfer("a", TO_1, np.array([3.0, 3.0]), gradient=True)
    first = work("a", back=BOTH)
    middle = work("m", back=BOTH, transfers=[move])
    last = work("l", weights=BOTH, groups=[(0, 1)], sync_s=10.0)
    found = simulate([first, middle, last], NONE, True)
    forward_s = 3
    assert found.backward_s == pytest.approx(forward_s + 1 + 1 + 3 + 1)
    assert found.synced_s == pytest.approx(forward_s + 1 + 10 + 3)


def test_statistics_are_waited_for_both_ways():
    norm = work("n", [1, 2], [1, 2], groups=[(0, 1)], statistics=(3.0, 2.0))
    found = simulate([norm], NONE, True)
    assert found.forward_s == 5 and found.backward_s == 5 + 2 + 2


@pytest.mark.parametrize("strategy", ["single", "data", "model", "owt"])
def test_a_step_is_between_its_work_and_the_sum_of_everything(strategy):
    """Even splits, so that the blocks of a layer are equally long."""
    cluster = machine.build(described(nodes=2))
    for graph, devices in ((chain(), 4), (branched(), 2)):
        plan = strategies.fixed(strategy, graph, 8, devices)
        for background in (False, True):
            found = costs.predict(
                graph, plan, 8, devices, cluster, Roofline(cluster.device), background=background
            )
            assert found.step_s <= found.additive_s * (1 + 1e-12)
            if strategy in ("single", "data"):
                assert found.step_s >= found.compute_s * (1 - 1e-12)
            assert found.overlap_s == pytest.approx(found.additive_s - found.step_s, abs=1e-15)
    alone = costs.predict(
        chain(), strategies.fixed("single", chain(), 8, 1), 8, 1, cluster, Roofline(cluster.device)
    )
    assert alone.step_s == pytest.approx(alone.additive_s)
