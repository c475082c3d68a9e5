"""Whose a thing outside the results is: names that bear the process which made it, and temporary folders so named.

What is named so can be told, by any later process, from what a living one still uses: a killed process' folders and
emulated hosts are removed at the next start.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Of this machine's: process ids of another, whose folders may lie in the same place, say nothing here.
FOLDER_PREFIX = f"paratrain-{zlib.crc32(socket.gethostname().encode()):08x}-"
_NAME = re.compile(r"pt(\d+)-([0-9a-f]+)-\d+-\w+")
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Owner:
    """A process, by its id and the clock tick at which it started: ids are used again, both together are not."""

    pid: int
    ticks: int

    @classmethod
    def of(cls, name: str) -> Owner | None:
        """Whose a thing is, by its name; None for one that is none of ours."""
        found = _NAME.fullmatch(name)
        return Owner(int(found[1]), int(found[2], 16)) if found else None

    def prefix(self, number: int) -> str:
        """What the name of its ``number``-th thing begins with."""
        return f"pt{self.pid}-{self.ticks:x}-{number}"

    @property
    def lives(self) -> bool:
        """Whether the process is there yet."""
        return _ticks(self.pid) == self.ticks


def own() -> Owner:
    """This process, as an owner."""
    return Owner(os.getpid(), _ticks(os.getpid()) or 0)


def new_prefix() -> str:
    """What the name of this process' next thing begins with."""
    return own().prefix(next(_NUMBERS))


def folder_name(prefix: str, what: str) -> str:
    """Of a temporary folder, or of a mark in one, that ``sweep_folders`` finds."""
    return f"{FOLDER_PREFIX}{prefix}-{what}"


def make_folder(prefix: str, what: str) -> Path:
    """A new temporary folder; whoever made it removes it.

    ``what``: a word, for whoever looks at it.
    """
    path = Path(tempfile.gettempdir(), folder_name(prefix, what))
    path.mkdir(mode=0o700)
    return path


@contextlib.contextmanager
def folder(what: str) -> Iterator[Path]:
    """A temporary folder for the time of the block.

    ``what``: a word, for whoever looks at it.
    """
    path = make_folder(new_prefix(), what)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep_folders(marks: dict[Path, Path] | None = None) -> list[Path]:
    """Remove the temporary folders whose owner is gone; returns them.

    ``marks``: more of them, each under a path whose name tells the owner.
    """
    found = {path: path for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*")} | (marks or {})
    owners = {path: Owner.of(mark.name.removeprefix(FOLDER_PREFIX)) for mark, path in found.items()}
    stale = [path for path, owner in owners.items() if owner is not None and not owner.lives]
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return stale


def _ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None for one that has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(rest[18])  # the 22nd field
