"""Emulated networks: what the kernel counted, and what each method gains there."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from implementations.reporting.suite.context import Context

TITLES = {
    "counters": ("Counted by the kernel against the ledger", "Measured on emulated hosts."),
    "emulated": ("Methods on a limited network", "Measured on emulated hosts."),
}
COLUMNS = ["paper", "evidence"]


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """The tables of this part."""
    return {name: pd.DataFrame(columns=COLUMNS) for name in TITLES}


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What they say."""
    return []
