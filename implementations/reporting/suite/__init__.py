"""Parts of the report that belong to no single paper.

Each part is a module with ``TITLES`` (of its tables), ``tables(context)`` (a frame for each of these names, with the
columns ``paper`` and ``evidence``), and ``sentences(tables)`` (what they say); its figures are in ``figures/suite.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import pandas as pd

from implementations.reporting.suite import advice, hosts, projected, scale, shootout
from implementations.reporting.suite.context import PAPER, Context

PARTS: tuple[ModuleType, ...] = (shootout, hosts, scale, projected, advice)
TITLES = {name: title for part in PARTS for name, title in part.TITLES.items()}


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """Every table of every part, by its name."""
    return {name: table for part in PARTS for name, table in part.tables(context).items()}


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What the tables say, part by part; of a part without rows, whose files may be missing, nothing."""
    told = [part for part in PARTS if any(len(tables[name]) for name in part.TITLES)]
    return [sentence for part in told for sentence in part.sentences(tables)]


__all__ = ["PAPER", "PARTS", "TITLES", "Context", "sentences", "tables"]
