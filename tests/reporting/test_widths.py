import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.reporting import widths
from implementations.reporting.findings import threshold_told
from tests.reporting import synthetic, synthetic_ist

LOSSES = st.lists(
    st.tuples(st.sampled_from([32, 64, 128, 256]), st.floats(-2, 4, allow_nan=False)), max_size=8
)


@pytest.mark.parametrize(
    "units, losses, expected",
    [
        ([64, 128, 256], [5.0, 0.9, 0.1], 128),
        ([64, 128, 256], [0.5, 2.0, 0.1], 256),  # narrower ones that lose little do not count
        ([64, 128, 256], [0.5, 0.2, 1.0], math.inf),  # one point is not below one point
        ([256, 64, 128], [-0.3, 0.4, 0.0], 64),  # in any order; better than one worker is no loss
        ([64, 64, 128], [0.5, 3.0, 0.5], 128),  # all numbers of workers must do
        ([64, 128], [float("nan"), 0.5], 128),
        ([], [], math.inf),
    ],
)
def test_threshold(units, losses, expected):
    assert widths.threshold(units, losses) == expected


@given(LOSSES)
def test_the_threshold_is_the_least_from_which_all_are_below(rows):
    units, losses = [row[0] for row in rows], [row[1] for row in rows]
    good = [u for u in set(units) if all(loss < 1.0 for v, loss in rows if v >= u)]
    assert widths.threshold(units, losses) == min(good, default=math.inf)


@pytest.fixture(scope="module")
def table():
    rows = [
        row for row in synthetic_ist.records(elsewhere=False) if row["experiments"][0].startswith("ist_width")
    ]
    return widths.width_table(synthetic.runs(rows))


def test_losses_are_those_of_the_records(table):
    rows = table[table["loss"].notna()]
    assert len(rows) == 12
    expected = [100 * (synthetic_ist.lost(units) + 20e-4) for units in rows["units_per_worker"]]
    # 0.1 points of noise a seed
    assert np.allclose(rows["loss"], expected, atol=0.35)
    assert np.allclose(rows["loss"], 100 * (rows["one_worker_accuracy"] - rows["accuracy"]))
    assert (rows["loss_low"] <= rows["loss"]).all() and (rows["n"] == 3).all()


def test_each_number_of_workers_and_all_of_them_have_a_threshold(table):
    ends = table[table["threshold"].notna()]
    assert list(ends["workers"].fillna(0)) == [2, 4, 8, 0]
    # 8 workers have at most 256 units each, which lose more than a point
    assert list(ends["threshold"]) == [512, 512, math.inf, 512]
    assert (ends["threshold_low"] <= ends["threshold"]).all()
    said = threshold_told(table)
    assert "below 1 point: 512" in said and "none with 8 workers" in said


def test_one_worker_may_be_of_another_experiment():
    rows = [synthetic_ist.record(seed=s, experiments=["ist_width/ist"]) for s in range(2)]
    alone = [
        synthetic_ist.record(
            method="sequential", workers=1, seed=s, experiments=["ist/one-worker"], target_value=t
        )
        for s, t in ((0, 0.5), (1, 0.5))
    ]
    other = synthetic_ist.record(method="sequential", workers=1, epochs=3, experiments=["ist_sizes/grid"])
    dropped = synthetic_ist.record(method="sequential", workers=1, suffix="_dropout0.75")
    losses = widths.seed_losses(synthetic.runs([*rows, *alone, other, dropped]))
    assert list(losses["seed"]) == [0, 1]
    assert np.allclose(
        losses["loss"], [100 * (b["accuracy"] - a["accuracy"]) for a, b in zip(rows, alone, strict=True)]
    )


def test_without_one_worker_there_is_nothing_to_lose():
    table = widths.width_table(synthetic.runs([synthetic_ist.record(experiments=["ist_width/ist"])]))
    assert not len(table) and list(table.columns) == widths.COLUMNS
