"""Constants of Spark's jobs out of seconds that are made up by them."""

import pytest

from implementations.cluster import shapes, sparktimes
from implementations.errors import UserError
from implementations.point import Point


def test_constants_come_back_out_of_seconds():
    job_s, task_s, up, down = 0.12, 0.015, 8e7, 3e8
    tasks = {str(count): job_s + count * task_s for count in sparktimes.TASKS}
    times = [
        {str(size): 0.2 + sparktimes.SLOTS * size / rate for size in sparktimes.SIZES} for rate in (up, down)
    ]
    found = sparktimes.figures(tasks, *times)
    assert found == pytest.approx(
        {"job_s": job_s, "task_s": task_s, "up_bytes_per_s": up, "down_bytes_per_s": down}
    )


def test_a_machine_too_busy_to_show_slopes_still_gives_numbers_that_a_file_may_have():
    falling = {"1": 0.5, "2": 0.4, "4": 0.3}
    flat = {"0": 0.3, "1000000": 0.2, "4000000": 0.25}
    found = sparktimes.figures(falling, flat, flat)
    assert (found["job_s"], found["task_s"]) == (0.4, 0.0)
    assert found["up_bytes_per_s"] == pytest.approx(2 * 4e6 / 0.25)


def test_what_keeps_a_session_from_starting_is_told(monkeypatch):
    monkeypatch.setattr(sparktimes.launcher, "_run", lambda *_: ("", "first\nUserError: no Java", 1))
    with pytest.raises(UserError, match="not timed: UserError: no Java"):
        sparktimes.section(quick=True)


def test_points_that_show_convergence_are_not_timed():
    point = Point(
        "spark", "spark", "digits", {"name": "fc", "hidden": [8]}, 1, "simulated", 1, variant="model"
    )
    assert shapes.timed(point)
    assert len(shapes.of_points([point])) == 1
    from dataclasses import replace

    shown = replace(point, gradient_norms=True)
    assert not shapes.timed(shown) and not shapes.of_points([shown])
    assert not shapes.timed(replace(point, method="layerwise", variant="data"))
