"""How many epochs a method took to a target, of networks that were trained here. Pure, from a frame of timings.

A user's network has not been trained: what is told is that of the trained network most like it, and whose it is. Rows
are those of timings.parquet: a run on a machine. Steps to the target do not depend on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_CONVOLUTIONAL = ("cnn", "resnet", "lenet5", "alexnet", "vgg", "inception")
_RECURRENT = ("rnn", "lstm")
KINDS = CONVOLUTIONAL, RECURRENT, CONNECTED = ("convolutional", "recurrent", "fully connected")


@dataclass(frozen=True)
class Known:
    """Epochs to the target of a run's task, by runs of ``seeds`` seeds; ``alone``: those of one worker.

    ``whose``: data set and network of the runs.
    """

    epochs: float
    low: float
    high: float
    seeds: int
    alone: float | None
    whose: str

    @property
    def efficiency(self) -> float | None:
        """Samples that one worker needs, over those that all need together."""
        return None if self.alone is None else self.alone / self.epochs


def kind_of(model: str) -> str:
    """The kind of a network of the suite, by its name or label."""
    name = model.split("-")[0]
    if name.startswith(_CONVOLUTIONAL):
        return CONVOLUTIONAL
    return RECURRENT if name.startswith(_RECURRENT) else CONNECTED


def reached(timings: pd.DataFrame) -> pd.DataFrame:
    """Runs that reached their target, once each, with ``target_epochs``."""
    if timings.empty or "target_reached" not in timings:
        return timings.head(0).assign(target_epochs=[])
    rows = timings[timings["target_reached"].fillna(False).astype(bool)].drop_duplicates("run_id")
    rows = rows[np.isfinite(rows["time_to_target_s"].astype(float)) & (rows["step_s"].astype(float) > 0)]
    steps = rows["time_to_target_s"].astype(float) / rows["step_s"].astype(float)
    samples = steps * rows["global_batch"].astype(float)
    return rows.assign(target_epochs=samples / rows["data_size"].astype(float))


def known(
    runs: pd.DataFrame,
    method: str,
    variant: str,
    workers: int,
    kind: str,
    params: int,
    settings: Mapping[str, Any],
) -> Known | None:
    """What ``reached`` runs say of a method on so many workers, for a network of this kind and size; None: nothing.

    Of several networks of the kind the one of the nearest size, in logarithms.
    """
    if runs.empty:
        return None
    here = runs[(runs["method"] == method) & (runs["workers"] == workers)]
    here = here[here["model"].map(kind_of) == kind]
    if method not in ("sequential", "data_parallel", "averaging"):
        here = here[here["variant"] == variant]
    if settings.get("sync_period") is not None:
        here = here[here["sync_period"] == settings["sync_period"]]
    if here.empty:
        return None
    distances = (np.log(here["model_params"].astype(float)) - math.log(max(params, 1))).abs()
    nearest = here.loc[distances.idxmin()]
    same = here[(here["dataset"] == nearest["dataset"]) & (here["model"] == nearest["model"])]
    epochs = same["target_epochs"].astype(float)
    one = runs[
        (runs["dataset"] == nearest["dataset"]) & (runs["model"] == nearest["model"]) & (runs["workers"] == 1)
        & (runs["method"] == "sequential")
    ]  # fmt: skip
    return Known(
        epochs=float(epochs.median()),
        low=float(epochs.min()),
        high=float(epochs.max()),
        seeds=int(same["seed"].nunique()),
        alone=float(one["target_epochs"].astype(float).median()) if len(one) else None,
        whose=f"{nearest['dataset']} {nearest['model']}",
    )
