"""The removal of what crashed runs have left on this machine.

What is left by a process that was killed is removed by its guard (``lifeline``) or at the next start: temporary
folders, shared memory of MPI ranks, emulated hosts, and files that were being written.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from implementations import lifeline
from implementations.cluster import ownership
from implementations.cluster.hosts import network

SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = "mpich_shm_*"  # what MPI ranks of one machine share; MPICH leaves them where its ranks are killed
YOUNG_S = 5.0  # what is this young may be about to be used, by ranks that start or on another machine
GUARDS_S = 15.0  # for guards to end what they keep
_CLAIMED: set[Path] = set()  # where Snakemake makes its temporary folders
# Beside the file that it is to become, with the id of who writes it: `.record.json.123`.
_PARTIAL = re.compile(r"\..+\.(\d+)")


def claim(path: Path) -> None:
    """Have ``sweep`` remove a temporary folder that Snakemake made for this process, once the process is gone."""
    _CLAIMED.add(path.parent)
    (path / ownership.folder_name(ownership.new_prefix(), "claim")).touch()


def sweep(*written: Path) -> list[str]:
    """Remove what processes have left that are gone; returns a line for each thing.

    ``written``: folders to look for files in whose writing was cut short.
    """
    return [
        *(f"network namespace {name}" for name in network.sweep()),
        *(f"folder {path}" for path in _folders()),
        *(f"shared memory {path}" for path in _segments()),
        *(f"file {path}" for top in written for path in _partial_files(top)),
    ]


def end_orphans(work: Path) -> int:
    """End processes in the folder ``work`` whose launcher is gone; returns how many there were.

    They would notice by themselves, but the next start does not share its files with them until then. Guards have
    their own to clean up, and are waited for.
    """
    orphans, guards = [], []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            launcher = lifeline.launcher_in(process.environ())
            if launcher is None or psutil.pid_exists(launcher) or Path(process.cwd()) != work.resolve():
                continue
            (guards if lifeline.GUARD in process.cmdline() else orphans).append(process)
    for process in orphans:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([*orphans, *guards], GUARDS_S)
    return len(orphans)


def _folders() -> list[Path]:
    marks = f"*/{ownership.folder_name('*', 'claim')}"
    return ownership.sweep_folders({mark: mark.parent for top in _CLAIMED for mark in top.glob(marks)})


def _segments() -> Iterator[Path]:
    """Those of this user that no process has mapped. Only ranks that start look for them by name."""
    now = time.time()
    found = {}
    for path in SHARED_MEMORY.glob(SEGMENTS):
        with contextlib.suppress(OSError):
            facts = path.stat()
            if facts.st_uid == os.geteuid() and now - facts.st_mtime > YOUNG_S:
                found[path] = str(path)
    for maps in Path("/proc").glob("[0-9]*/maps") if found else ():
        with contextlib.suppress(OSError):
            text = maps.read_text(errors="replace")
            found = {path: name for path, name in found.items() if name not in text}
    for path in found:
        with contextlib.suppress(OSError):
            path.unlink()
            yield path


def _partial_files(top: Path) -> Iterator[Path]:
    for path in top.rglob(".*"):
        name = _PARTIAL.fullmatch(path.name)
        if name and not psutil.pid_exists(int(name[1])):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > YOUNG_S:
                    path.unlink()
                    yield path
