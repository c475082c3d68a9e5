"""Published numbers against blind projections, all papers."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from implementations.reporting.suite.context import Context

TITLES = {
    "projected": ("Published against projected", "To be told."),
}
COLUMNS = ["paper", "evidence"]


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """The tables of this part."""
    return {name: pd.DataFrame(columns=COLUMNS) for name in TITLES}


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What they say."""
    return []
