"""All methods on the same task: who wins where."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from implementations.reporting.suite.context import Context

TITLES = {
    "shootout": ("All methods on one task", "To be told."),
    "winners": ("Who is fastest where", "To be told."),
    "changes": ("Where the lead changes", "To be told."),
}
COLUMNS = ["paper", "evidence"]


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """The tables of this part."""
    return {name: pd.DataFrame(columns=COLUMNS) for name in TITLES}


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What they say."""
    return []
