"""Training on Spark as reporting reads it: runs, projections, how exact the cut is, and what was published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.files import read_table
from implementations.reporting.grouping import typed

PAPER = METHOD = "spark"
KINDS = ("fc", "cnn", "rnn", "lstm")  # in the order of figures and tables
VARIANTS = ("model", "data", "hybrid", "async")
BARRIER, JOBS = "barrier", "job_per_exchange"

EXACTNESS_COLUMNS = [
    "paper", "evidence", "model", "cut", "execution", "optimizer", "precision", "devices", "steps", "worst_error",
    "torch_error", "step_bytes", "expected_bytes", "bytes_as_predicted",
]  # fmt: skip
# Columns of results/spark.parquet that reporting reads; ``kind`` stands there as ``model_kind``.
PROJECTION_COLUMNS = [
    "paper", "evidence", "experiments", "what", "kind", "model", "params", "dataset", "data_size", "minibatch",
    "global_batch", "workers", "group_size", "cluster", "mbit_s", "execution", "variant", "optimizer", "steps_per_job",
    "least_steps_per_job", "step_s", "epoch_s", "alone_epoch_s", "samples_per_s", "speedup", "capped_by", "compute_s",
    "schedule_s", "transfer_s", "up_bytes", "down_bytes", "sent_bytes", "state_bytes", "alone_bytes", "memory_bytes",
    "status", "reason", "constants",
]  # fmt: skip
MAP = "map"  # what rows over bandwidths are called


def kind_of(model: Any) -> str | None:
    """The kind of network that a model's label names: ``cnn`` of ``cnn-512_filters32-64``."""
    return re.split(r"[-_]", model)[0] if isinstance(model, str) else None


def of_paper(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of this paper, Spark's and those that they are held against, with the ``kind`` of their network."""
    own = runs[(runs["paper"] == PAPER).fillna(False).astype(bool)]
    return own.assign(kind=own["model"].map(kind_of).astype("string"))


def as_projections(source: pd.DataFrame | str | Path | None) -> pd.DataFrame:
    """The rows of ``spark.parquet``, or of a frame, with every column; no rows where there is no such file.

    ``experiments`` stays a list of names, as in records.
    """
    if source is None or (not isinstance(source, pd.DataFrame) and not Path(source).is_file()):
        frame = pd.DataFrame(columns=PROJECTION_COLUMNS)
    else:
        frame = source if isinstance(source, pd.DataFrame) else read_table(source)
        frame = frame.rename(columns={"model_kind": "kind"}).reset_index(drop=True)
        frame = frame.reindex(columns=list(dict.fromkeys([*PROJECTION_COLUMNS, *frame.columns])))
    for name, value in {"paper": PAPER, "evidence": "projected", "status": "ok"}.items():
        frame[name] = frame[name].astype(object).where(frame[name].notna(), value)
    asked = frame["experiments"].astype(object)
    return typed(frame.drop(columns="experiments")).assign(experiments=asked)


def names_of(experiments: Any) -> str | None:
    """The experiments of a row in one cell."""
    known = not (experiments is None or isinstance(experiments, float))
    return ", ".join(sorted(experiments)) if known else None


def exactness_rows(source: pd.DataFrame | str | Path | None) -> pd.DataFrame:
    """This paper's rows of ``exactness.parquet``, or of a frame; no rows where there is no such file."""
    if source is None or (not isinstance(source, pd.DataFrame) and not Path(source).is_file()):
        return typed(pd.DataFrame(columns=EXACTNESS_COLUMNS))
    frame = source if isinstance(source, pd.DataFrame) else read_table(source)
    frame = frame.reindex(columns=EXACTNESS_COLUMNS)
    return typed(frame[frame["paper"] == PAPER].reset_index(drop=True))


ABSTRACT, REVIEW = "abstract", "review (unverified)"


def published_speedups(published: pd.DataFrame) -> pd.DataFrame:
    """Speedups that are printed, with the kind of network, what is known of sizes, and who says so (``said_by``).

    Columns kind, workers, data_size, params, value, said_by; NaN where nothing is known.
    """
    columns = ["kind", "workers", "data_size", "params", "value", "said_by"]
    if not len(published) or "metric" not in published:
        return pd.DataFrame(columns=columns)
    own = published[(published["paper"] == PAPER) & (published["metric"] == "speedup")]
    found = own.reindex(columns=["model", "workers", "data_size", "params", "value", "read_as"])
    named = [
        kind_of(model) if isinstance(model, str) else next((k for k in KINDS if k in name.split("-")), None)
        for model, name in zip(found["model"], own.index.astype(str), strict=True)
    ]
    said = np.where(found["read_as"] == "review", REVIEW, ABSTRACT)
    return found.assign(kind=named, said_by=said)[columns].reset_index(drop=True)
