"""Switchboard cannot be fetched: its recordings are licensed. Projections need only the sizes in the card.

python datasets/switchboard/prepare.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from implementations.errors import UserError


def prepare(raw: Path, out: Path, card: Any) -> dict[str, Any]:
    """Say why there is nothing to prepare."""
    raise UserError(
        "switchboard: the recordings (LDC97S62) are licensed and cannot be fetched; points on it can be projected "
        "(evidence: projected) but not trained"
    )
