"""The averaging paper's own timing table, read with five constants: where its efficiency went. Pure arithmetic.

Su and Chen 2015 left the minutes of an epoch on m GPUs, and those of them that MPI took. With T(1) as measured,

    T(m) = a/m + b + (c + d log2 m)/m        for m >= 2

where a is the parallel program's computation, b what does not shrink with m, and the rest communication: at a
period of K minibatches each rank averages 1/m as often, and an average costs more the more ranks take part. a and b
come from the minutes without MPI, c and d from MPI's own, both by least squares of relative errors.

These numbers are ``fitted``: constants fitted to the numbers that stand beside them. They get no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

EVIDENCE = "fitted"
COMMUNICATION = "communication"

# What the parts of a lost efficiency have in a table of any evidence (``timings.loss_split`` gives the time model's).
LOSS_COLUMNS = [
    "evidence", "cluster", "method", "workers", "sync_period", "part", "minutes", "share_of_lost", "lost_min",
    "epoch_min",
]  # fmt: skip
READING_COLUMNS = [
    "evidence", "workers", "sync_period", "published_epoch_min", "fitted_epoch_min", "published_speedup",
    "fitted_speedup", "error", "published_mpi_min", "fitted_mpi_min", "lost_min", "slower_program_min",
    "serial_part_min", "communication_min", "slower_program_pct", "serial_part_pct", "communication_pct", "note",
]  # fmt: skip
_PARTS = ["slower program", "serial part", COMMUNICATION]


@dataclass(frozen=True)
class Constants:
    """The five constants, in minutes; ``sync_period`` is the one that the table was measured at."""

    one_gpu_min: float  # T(1), of the serial program
    compute_min: float  # a
    serial_min: float  # b
    average_min: float  # c
    doubling_min: float  # d
    sync_period: int

    def formula(self) -> str:
        """The reading as one line of text."""
        return (
            f"T(m) = {self.compute_min:.1f}/m + {self.serial_min:.2f} + ({self.average_min:.1f} + "
            f"{self.doubling_min:.1f} log2 m)/m minutes, T(1) = {self.one_gpu_min:.1f}"
        )

    def mpi_min(self, workers: int, sync_period: int | None = None) -> float:
        """Minutes of communication in an epoch on ``workers`` >= 2 GPUs; half of them at twice the period."""
        often = self.sync_period / (sync_period or self.sync_period)
        return often * (self.average_min + self.doubling_min * np.log2(workers)) / workers

    def epoch_min(self, workers: int, sync_period: int | None = None) -> float:
        """T(m) for m = ``workers`` >= 2, T(1) for one."""
        if workers == 1:
            return self.one_gpu_min
        return self.compute_min / workers + self.serial_min + self.mpi_min(workers, sync_period)

    def lost_min(self, workers: int, sync_period: int | None = None) -> dict[str, float]:
        """Minutes by which T(m) exceeds T(1)/m, by part.

        The parallel program takes longer a frame than the serial one, some of its work is not divided, and it
        communicates.
        """
        slower = (self.compute_min - self.one_gpu_min) / workers
        return dict(zip(_PARTS, (slower, self.serial_min, self.mpi_min(workers, sync_period))))


def scaling_table(published: pd.DataFrame) -> pd.DataFrame:
    """Rows (workers, sync_period, epoch_min, mpi_min) of the paper's timing table, by workers.

    ``published``: rows of ``config/published``; all-reduce only, as the paper's final text has it.
    """
    final = published[(published["paper"] == "averaging") & (published["version"] != "draft")]
    times = final[final["metric"].isin(["epoch_time", "mpi_time"])]
    times = times[(times["reduce"] == "allreduce") | (times["workers"] == 1)]
    wide = times.assign(value=pd.to_numeric(times["value"])).pivot_table(
        index="workers", columns="metric", values="value"
    )
    wide = wide.reindex(columns=["epoch_time", "mpi_time"]).dropna()
    period = times.groupby("workers")["sync_period"].first()
    return pd.DataFrame(
        {
            "workers": wide.index.astype(int),
            "sync_period": period.reindex(wide.index).astype("Int64").to_numpy(),
            "epoch_min": wide["epoch_time"].to_numpy(),
            "mpi_min": wide["mpi_time"].to_numpy(),
        }
    )


def fit(table: pd.DataFrame) -> Constants | None:
    """The constants that a ``scaling_table`` suggests; None where it has too few rows, or none for one GPU."""
    many = table[table["workers"] > 1]
    alone = table.loc[table["workers"] == 1, "epoch_min"]
    if alone.empty or len(many) < 2:
        return None
    m, mpi = many["workers"].to_numpy(dtype=float), many["mpi_min"].to_numpy(dtype=float)
    rest = many["epoch_min"].to_numpy(dtype=float) - mpi
    compute, serial = _relative_fit([1 / m, np.ones_like(m)], rest)
    average, doubling = _relative_fit([1 / m, np.log2(m) / m], mpi)
    return Constants(
        float(alone.iloc[0]), compute, serial, average, doubling, int(many["sync_period"].iloc[0])
    )


def reading(published: pd.DataFrame) -> pd.DataFrame:
    """A row per published number of GPUs: published and fitted times, and what the efficiency was lost to.

    Besides the rows that were fitted, one for each speedup that was published at another period, from the same
    constants and as much less communication. ``error`` is fitted over published minutes, minus one; ``_pct`` columns
    are per cent of ``lost_min``, the minutes above T(1)/m. No rows where the timing table is not there.
    """
    table = scaling_table(published)
    constants = fit(table)
    if constants is None:
        return pd.DataFrame(columns=READING_COLUMNS)
    rows = []
    for row in table.itertuples(index=False):
        if row.workers > 1:
            rows.append(
                _reading_row(constants, row.workers, None, constants.one_gpu_min / row.epoch_min)
                | {"published_epoch_min": row.epoch_min, "published_mpi_min": row.mpi_min}
            )
    for workers, period, speedup in _other_periods(published, constants):
        note = (
            f"not fitted: communication at K={constants.sync_period} times {constants.sync_period}/{period}"
        )
        rows.append(_reading_row(constants, workers, period, speedup) | {"note": note})
    frame = pd.DataFrame(rows).reindex(columns=READING_COLUMNS)
    return frame.astype({"workers": "Int64", "sync_period": "Int64"})


def loss_split(published: pd.DataFrame) -> pd.DataFrame:
    """The parts of ``reading``, a row each, in ``LOSS_COLUMNS``."""
    constants = fit(scaling_table(published))
    rows = [
        {
            "evidence": EVIDENCE,
            "cluster": "the authors' runs",
            "method": "averaging",
            "workers": row.workers,
            "sync_period": row.sync_period,
            "part": part,
            "minutes": minutes,
            "share_of_lost": minutes / row.lost_min,
            "lost_min": row.lost_min,
            "epoch_min": row.fitted_epoch_min,
        }
        for row in reading(published).itertuples(index=False)
        for part, minutes in constants.lost_min(row.workers, row.sync_period).items()
    ]
    return pd.DataFrame(rows, columns=LOSS_COLUMNS).astype({"workers": "Int64", "sync_period": "Int64"})


def _relative_fit(columns: list[np.ndarray], values: np.ndarray) -> list[float]:
    """Coefficients, none negative, with the least sum of squared relative errors."""
    return nnls(np.stack(columns, 1) / values[:, None], np.ones_like(values))[0].tolist()


def _reading_row(constants: Constants, workers: int, sync_period: int | None, speedup: float) -> dict:
    epoch_min = constants.epoch_min(workers, sync_period)
    parts = constants.lost_min(workers, sync_period)
    lost_min = sum(parts.values())
    row = {
        "evidence": EVIDENCE,
        "workers": workers,
        "sync_period": sync_period or constants.sync_period,
        "fitted_epoch_min": epoch_min,
        "published_speedup": speedup,
        "fitted_speedup": constants.one_gpu_min / epoch_min,
        "error": epoch_min / (constants.one_gpu_min / speedup) - 1,
        "fitted_mpi_min": constants.mpi_min(workers, sync_period),
        "lost_min": lost_min,
        "note": "",
    }
    for part, minutes in parts.items():
        name = part.replace(" ", "_")
        row |= {f"{name}_min": minutes, f"{name}_pct": 100 * minutes / lost_min}
    return row


def _other_periods(published: pd.DataFrame, constants: Constants) -> list[tuple[int, int, float]]:
    """(workers, period, speedup) of the published speedups that another period than the table's was used for."""
    rows = published[
        (published["paper"] == "averaging")
        & (published["version"] != "draft")
        & (published["metric"] == "speedup")
        & (published["method"] == "averaging")
        & published["sync_period"].notna()
    ]
    rows = rows[rows["sync_period"] != constants.sync_period]
    return [
        (int(row.workers), int(row.sync_period), float(row.value)) for row in rows.itertuples(index=False)
    ]
