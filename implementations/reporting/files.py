"""Files that are seen whole or not at all, and tables read back from them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from implementations.errors import UserError


class DamagedTable(UserError):
    """A file that should hold a table and cannot be read as one."""


def read_table(path: str | Path, remedy: str = "delete it and run again") -> pd.DataFrame:
    """The table in a parquet file.

    Raises UserError when there is no such file, and DamagedTable, a UserError that ends in ``remedy``, when it cannot
    be read.
    """
    try:
        with pq.ParquetFile(path) as file:
            return file.read().to_pandas()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run snakemake, which makes it") from None
    except PermissionError:
        raise
    # what a broken footer or page raises depends on where the break is
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise DamagedTable(f"{path} is damaged ({first_line(error)}); {remedy}") from None


def first_line(error: Exception) -> str:
    """What an error says, cut to one line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path`` first and then put it in its place; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    os.replace(partial, path)


def write_parquet(table: pa.Table | pd.DataFrame, path: Path) -> None:
    """``table`` as parquet at ``path``, without the index of a frame."""
    if isinstance(table, pd.DataFrame):
        table = pa.Table.from_pandas(table, preserve_index=False)
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_whole(path, buffer.getvalue())


def write_table(table: pd.DataFrame, path: Path) -> None:
    """``table`` as CSV at ``path`` and as parquet beside it."""
    write_whole(path, table.to_csv(index=False).encode("utf-8"))
    write_parquet(table, path.with_suffix(".parquet"))
