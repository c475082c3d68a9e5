"""The five-constant reading of the published timing table: known constants come back, the published table fits."""

import numpy as np
import pandas as pd
import pytest

from implementations import fitted
from implementations.reporting.claims import load_published

TRUE = fitted.Constants(100.0, 130.0, 1.5, 20.0, 4.0, 10)


def published_of(constants, workers=(2, 4, 8, 16), noise=None, **more):
    """Rows as config/published has them, of a table that the constants make."""
    rows = [("epoch_time", 1, constants.one_gpu_min), ("mpi_time", 1, 0.0)]
    for m in workers:
        mpi = (constants.average_min + constants.doubling_min * np.log2(m)) / m
        rows.append(("epoch_time", m, constants.compute_min / m + constants.serial_min + mpi))
        rows.append(("mpi_time", m, mpi))
    frame = pd.DataFrame(rows, columns=["metric", "workers", "value"])
    frame["sync_period"] = frame["workers"].map(lambda m: constants.sync_period if m > 1 else None)
    frame["reduce"] = frame["workers"].map(lambda m: "allreduce" if m > 1 else None)
    return frame.assign(paper="averaging", version="v2", method="averaging", **more)


def test_known_constants_come_back():
    found = fitted.fit(fitted.scaling_table(published_of(TRUE)))
    for name in ("one_gpu_min", "compute_min", "serial_min", "average_min", "doubling_min", "sync_period"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-9)
    table = fitted.reading(published_of(TRUE))
    assert table["error"].abs().max() < 1e-9
    # 130/4 + 1.5 + (20 + 4 x 2)/4, against 100/4
    row = table.set_index("workers").loc[4]
    assert row["fitted_epoch_min"] == pytest.approx(32.5 + 1.5 + 7)
    assert (row["slower_program_min"], row["serial_part_min"], row["communication_min"]) == pytest.approx(
        (7.5, 1.5, 7)
    )
    assert row["lost_min"] == pytest.approx(16)
    assert row["communication_pct"] == pytest.approx(100 * 7 / 16)


def test_no_constant_becomes_negative():
    """Communication that falls faster than 1/m: the doubling term stays at zero."""
    published = published_of(TRUE)
    mpi = (published["metric"] == "mpi_time") & (published["workers"] > 1)
    published.loc[mpi, "value"] = 20 / published["workers"] ** 1.5
    found = fitted.fit(fitted.scaling_table(published))
    assert found.doubling_min == 0
    assert found.average_min > 0


def test_the_published_table_is_read_as_its_constants_say():
    table = fitted.scaling_table(load_published())
    assert table["workers"].tolist() == [1, 2, 4, 8, 16, 32]
    assert table["epoch_min"].tolist() == [254.5, 183.4, 96.0, 51.0, 27.3, 15.24]
    found = fitted.fit(table)
    assert found.one_gpu_min == 254.5
    assert found.compute_min == pytest.approx(321.8, abs=0.1)
    assert found.serial_min == pytest.approx(2.89, abs=0.01)
    assert found.average_min == pytest.approx(32.0, abs=0.1)
    assert found.doubling_min == pytest.approx(9.0, abs=0.1)
    assert found.formula().startswith("T(m) = 321.8/m + 2.89 + (32.0 + 9.0 log2 m)/m minutes")


def test_the_published_totals_are_met_and_half_the_communication_predicts_k_20():
    reading = fitted.reading(load_published())
    assert list(reading.columns) == fitted.READING_COLUMNS
    assert set(reading["evidence"]) == {"fitted"}
    at_10, at_20 = reading[reading["sync_period"] == 10], reading[reading["sync_period"] == 20]
    assert at_10["workers"].tolist() == [2, 4, 8, 16, 32]
    assert at_10["error"].abs().max() < 0.015
    assert at_20["workers"].tolist() == [16]
    row = at_20.iloc[0]
    assert row["published_speedup"] == 10.07
    assert row["fitted_speedup"] == pytest.approx(10.12, abs=0.02)
    assert abs(row["error"]) < 0.01
    assert row["communication_min"] == pytest.approx(
        at_10.set_index("workers").loc[16, "communication_min"] / 2
    )
    assert "not fitted" in row["note"]
    # most of the loss is not communication, at any number of GPUs
    assert (reading["communication_pct"] < 40).all()


def test_the_parts_add_up_to_the_lost_minutes():
    published = load_published()
    split, reading = fitted.loss_split(published), fitted.reading(published)
    assert list(split.columns) == fitted.LOSS_COLUMNS
    keys = ["workers", "sync_period"]
    sums = split.groupby(keys)[["minutes", "share_of_lost"]].sum()
    lost = reading.set_index(keys)
    assert sums["share_of_lost"].to_numpy() == pytest.approx(1.0)
    assert sums["minutes"].to_dict() == pytest.approx(lost["lost_min"].to_dict())
    ideal = lost["fitted_epoch_min"] - 254.5 / lost.index.get_level_values("workers").to_numpy(dtype=float)
    assert lost["lost_min"].to_numpy(dtype=float) == pytest.approx(ideal.to_numpy(dtype=float))


@pytest.mark.parametrize(
    "drop",
    [
        lambda frame: frame.iloc[:0],
        lambda frame: frame[frame["workers"] > 1],
        lambda frame: frame[frame["workers"] < 4],
        lambda frame: frame[frame["metric"] != "mpi_time"],
        lambda frame: frame.assign(paper="other"),
        lambda frame: frame.assign(version="draft"),
    ],
)
def test_without_the_table_there_is_no_reading(drop):
    published = drop(published_of(TRUE))
    assert fitted.reading(published).empty
    assert fitted.loss_split(published).empty
    assert list(fitted.loss_split(published).columns) == fitted.LOSS_COLUMNS
