"""The rows that ``python -m benchmarks`` leaves: a list of tables' rows, each with the name of its ``benchmark``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from implementations.errors import UserError

FILE = "bench.json"
Row = Mapping[str, Any]


def read(path: Path) -> list[Row]:
    """The rows of a file, none where there is no file; UserError where it cannot be read."""
    if not path.is_file():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
            raise ValueError("not a list of rows")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; remove it, and run make bench again") from None
    return content


def joined(before: Sequence[Row], now: Sequence[Row]) -> list[Row]:
    """Rows of ``now`` in the place of the old ones of the same benchmark; those of other benchmarks stay."""
    anew = {row["benchmark"] for row in now}
    return [
        row
        for name in dict.fromkeys(row["benchmark"] for row in [*before, *now])
        for row in (now if name in anew else before)
        if row["benchmark"] == name
    ]


def text(rows: Sequence[Row]) -> str:
    """What the file holds."""
    return json.dumps(rows, indent=1)
