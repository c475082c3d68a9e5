"""Files that are seen whole or not at all."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pandas as pd


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path`` first and then put it in its place; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    os.replace(partial, path)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """``table`` as CSV at ``path`` and as parquet beside it."""
    parquet = io.BytesIO()
    table.to_parquet(parquet, index=False)
    write_whole(path, table.to_csv(index=False).encode("utf-8"))
    write_whole(path.with_suffix(".parquet"), parquet.getvalue())
