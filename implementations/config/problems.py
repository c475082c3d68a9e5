"""Mistakes in config files, collected so that they are all told at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from implementations.errors import UserError

Path = tuple[str | int, ...]  # keys and list positions from the top of a file


@dataclass(frozen=True)
class Place:
    """Where a value stands: a file, and the path of keys in it."""

    file: str
    path: Path = ()

    def at(self, *keys: str | int) -> Place:
        """The place below this one."""
        return Place(self.file, (*self.path, *keys))

    def __str__(self) -> str:
        text = ""
        for key in self.path:
            text += f"[{key}]" if isinstance(key, int) else f".{key}"
        return f"{self.file}: {text.removeprefix('.') or 'the file'}"


class Problems:
    """A list of mistakes without repetitions, in the order found."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    def add(self, place: Place, got: str, allowed: str) -> None:
        """Note that at ``place`` stands ``got`` where only ``allowed`` may."""
        self.say(place, f"got {got}; allowed: {allowed}")

    def say(self, place: Place, text: str) -> None:
        """Note a mistake in words."""
        self.lines[f"{place}: {text}"] = None

    def raise_if_any(self) -> None:
        """UserError with every mistake, one a line, if there is any."""
        if self.lines:
            count = "1 mistake" if len(self.lines) == 1 else f"{len(self.lines)} mistakes"
            raise UserError("\n".join([f"{count} in the configuration:", *self.lines]))


def show(value: Any) -> str:
    """A value as it would be written, shortened to one line."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def listing(names: Sequence[str]) -> str:
    """Names for a message, in the order given."""
    return ", ".join(names) if names else "none"
