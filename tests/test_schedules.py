"""Schedules against sequences computed by hand."""

import itertools
import json

import pytest

from implementations.schedules import Exponential, Newbob


def follow(schedule, metrics):
    """(rate of the epoch, accepted) of each epoch until the end."""
    seen = []
    for metric in metrics:
        if schedule.finished:
            break
        rate = schedule.rate
        seen.append((rate, schedule.observe(metric)))
    return seen


def rates(schedule, metrics):
    return [rate for rate, _ in follow(schedule, metrics)]


def test_exponential_ends_at_a_hundredth():
    schedule = Exponential(0.32, 5)
    assert rates(schedule, [0] * 9) == pytest.approx([0.32, 0.32 * 0.1**0.5, 0.032, 0.032 * 0.1**0.5, 0.0032])
    assert schedule.finished


def test_exponential_of_the_paper():
    seen = rates(Exponential(0.32, 15), [0] * 15)
    assert len(seen) == 15
    assert seen[0] == 0.32 and seen[-1] == pytest.approx(0.0032)
    assert seen[7] == pytest.approx(0.032)  # half way in the exponent
    assert all(
        later / sooner == pytest.approx(0.01 ** (1 / 14)) for sooner, later in itertools.pairwise(seen)
    )


def test_exponential_of_one_epoch_and_without_decay():
    assert rates(Exponential(0.1, 1), [0, 0]) == [0.1]
    assert rates(Exponential(0.1, 3, final=1.0), [0] * 3) == [0.1] * 3


def test_newbob_halves_once_it_gains_less_and_goes_on_halving():
    #          gains:  .30   .05  .006  .004  .020  .0008
    accuracies = [0.40, 0.45, 0.456, 0.460, 0.480, 0.4808, 0.9]
    schedule = Newbob(0.32, best=0.10)
    assert rates(schedule, accuracies) == pytest.approx([0.32, 0.32, 0.32, 0.32, 0.16, 0.08])
    assert schedule.finished


def test_newbob_does_not_stop_before_it_has_halved():
    schedule = Newbob(0.32, best=0.5)
    assert rates(schedule, [0.5001, 0.6, 0.6001, 0.9]) == pytest.approx([0.32, 0.16, 0.08])


def test_a_gain_at_a_threshold_is_enough():
    schedule = Newbob(0.32, start_below=0.25, stop_below=0.125, best=0.0)
    assert rates(schedule, [0.25, 0.375, 0.5, 0.5625, 0.9]) == pytest.approx([0.32, 0.32, 0.16, 0.08])


def test_without_a_metric_before_training_the_first_epoch_gains():
    schedule = Newbob(0.32)
    assert rates(schedule, [0.001, 0.002, 0.002, 0.9]) == pytest.approx([0.32, 0.32, 0.16])


def test_worse_epochs_pass_unless_rejected():
    accuracies = [0.5, 0.4, 0.402, 0.45, 0.4501]
    passing = Newbob(0.32, best=0.1)
    assert rates(passing, accuracies) == pytest.approx([0.32, 0.32, 0.16, 0.08, 0.04])
    assert passing.finished and passing.best == 0.4501
    # 0.4 is undone and starts the halving; 0.402 is still worse than 0.5: a gain of zero while halving stops it
    rejecting = Newbob(0.32, best=0.1, reject_worse=True)
    assert follow(rejecting, accuracies) == [(0.32, True), (0.32, False), (0.16, False)]
    assert rejecting.finished and rejecting.best == 0.5


def test_newbob_on_the_loss_is_relative():
    schedule = Newbob.of_loss(0.32, best=4.0)
    #        falls: 25 %   0.67 %  1.68 %  0.03 %
    losses = [3.0, 2.98, 2.93, 2.929, 1.0]
    assert follow(schedule, losses) == [(0.32, True), (0.32, True), (0.16, True), (0.08, True)]
    assert schedule.finished


def test_an_epoch_that_diverged_is_rejected_and_halves():
    schedule = Newbob.of_loss(0.32, best=4.0)
    assert follow(schedule, [3.0, float("nan"), 2.0, 1.0]) == [
        (0.32, True), (0.32, False), (0.16, True), (0.08, True)
    ]  # fmt: skip
    assert not schedule.finished


def test_newbob_ends_at_its_last_epoch():
    schedule = Newbob(1.0, max_epochs=3)
    assert rates(schedule, [0.1, 0.2, 0.3, 0.4]) == [1.0] * 3


def test_unknown_criteria_are_named():
    with pytest.raises(ValueError, match="criterion: got 'wer'; allowed: accuracy, loss"):
        Newbob(1.0, criterion="wer")


@pytest.mark.parametrize(
    "make", [lambda: Newbob(0.32, best=0.1, reject_worse=True), lambda: Exponential(0.32, 6)]
)
@pytest.mark.parametrize("stop", range(6))
def test_goes_on_from_a_saved_state(make, stop):
    metrics = [0.3, 0.4, 0.39, 0.42, 0.44, 0.4401]
    whole = follow(make(), metrics)
    first = make()
    begun = follow(first, metrics[:stop])
    second = type(first)(9.0, epochs=2) if isinstance(first, Exponential) else Newbob(9.0)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + follow(second, metrics[stop:]) == whole
