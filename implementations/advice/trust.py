"""How sure a prediction is: how far the time model was off where it was checked, and whence a step comes. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Errors:
    """Predicted over measured seconds of a step, minus one, in size: of ``points`` points, of the method or of all."""

    median: float
    worst: float
    points: int
    of: str

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.median:.0%} (median) to {self.worst:.0%} (worst) on {self.points} measured points of {self.of}"


def errors(validation: pd.DataFrame, method: str) -> Errors | None:
    """Those of the method's own points, of all where it has none; None where nothing was checked.

    Points with more workers than cores are left out, where the table tells of them.
    """
    if validation.empty:
        return None
    rows = validation[validation["error"].notna()]
    if "oversubscribed" in rows:
        rows = rows[~rows["oversubscribed"].fillna(False).astype(bool)]
    own = rows[rows["method"] == method]
    rows, of = (own, method) if len(own) else (rows, "all methods")
    sizes = rows["error"].astype(float).abs()
    if sizes.empty:
        return None
    return Errors(float(sizes.median()), float(sizes.max()), len(sizes), of)


def told(found: Errors | None, source: str, is_here: bool) -> str:
    """A sentence: what the step rests on, and what is known of the model's error."""
    step = f"step from {source}"
    if found is None or math.isnan(found.median):
        return f"{step}; the time model was not checked here"
    where = "" if is_here else " of this host, none of that machine"
    return f"{step}; model off by {found.text}{where}"
