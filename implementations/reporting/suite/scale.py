"""How runs of many workers are simulated, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from implementations.reporting.suite.context import Context

TITLES = {
    "scale": ("Cost of simulating many workers", "Seconds and memory of this host per simulated step."),
}
COLUMNS = ["paper", "evidence"]


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """The tables of this part."""
    return {name: pd.DataFrame(columns=COLUMNS) for name in TITLES}


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What they say."""
    return []
