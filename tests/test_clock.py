import time

import pytest

from implementations.clock import Clock


def test_nested_blocks_are_not_counted_twice():
    clock = Clock()
    with clock("compute"):
        time.sleep(0.02)
        with clock("comm"):
            time.sleep(0.03)
        time.sleep(0.01)
    assert clock.seconds["comm"] == pytest.approx(0.03, abs=0.02)
    assert clock.seconds["compute"] == pytest.approx(0.03, abs=0.02)
    assert sum(clock.seconds.values()) <= clock.wall_s
    assert clock.uncovered_s < 0.005


def test_time_outside_every_block_is_uncovered():
    clock = Clock()
    time.sleep(0.03)
    with clock("other"):
        pass
    assert clock.uncovered_s >= 0.03


def test_evaluation_is_off_the_training_clock_while_it_runs_and_after():
    clock = Clock()
    with clock("eval"):
        time.sleep(0.05)
        during = clock.training_s
    assert during < 0.04
    assert clock.training_s < 0.04 < clock.wall_s


def test_a_restored_clock_goes_on_from_its_snapshot():
    clock = Clock()
    with clock("compute"):
        time.sleep(0.02)
    snapshot = clock.snapshot()
    time.sleep(0.05)
    later = Clock()
    later.restore(snapshot)
    assert later.seconds == {key: value for key, value in snapshot.items() if key != "wall"}
    assert snapshot["wall"] <= later.wall_s < snapshot["wall"] + 0.04


def test_a_block_that_raises_is_closed():
    clock = Clock()
    with pytest.raises(ValueError), clock("compute"):
        raise ValueError
    with clock("comm"):
        pass
    assert clock._open == []


def test_an_unknown_label_is_refused():
    with pytest.raises(KeyError), Clock()("sleep"):
        pass
