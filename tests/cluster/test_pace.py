"""The step that measured runs time beside themselves is one that calibration times."""

import torch

from implementations.cluster import pace, shapes, steptimes
from implementations.cluster.peers import Ranks


def test_calibration_times_the_same_step():
    assert shapes.PACE in shapes.FIXED and shapes.PACE in shapes.QUICK
    (row,) = steptimes.rows([shapes.PACE], threads=1, quick=True, group=Ranks())
    assert 0.2 < pace.step_s() / row["step_s"] < 5  # the same work, on a machine that others share


def test_random_numbers_of_the_run_stay_as_they_are():
    before = torch.get_rng_state()
    pace.step_s()
    assert torch.equal(torch.get_rng_state(), before)
