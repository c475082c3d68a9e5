"""Progress of a call: a bar with counts and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from implementations.point import Point


class Bar:
    """Shows how many points are done and how far the current one is."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._done = self._total = 0
        self._began = time.monotonic()
        self._failed = 0

    def start(self, total: int, kept: int) -> None:
        """``total`` points in all, ``kept`` of them finished before."""
        self._done, self._total = kept, total
        if kept:
            self._line(f"{kept} of {total} points stand from earlier runs")
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("points", total=total, completed=kept, note="")
            self._bar.start()

    def begin(self, point: Point) -> None:
        """A point's processes began to train it."""
        self._began = time.monotonic()
        if self._bar:
            self._bar.update(self._task, note=point.run_id)

    def update(self, point: Point, progress: dict[str, Any] | None) -> None:
        """Steps of the current point, as its process reported them."""
        if self._bar and progress:
            share = progress["done"] / progress["total"]
            self._bar.update(self._task, completed=self._done + share, note=f"{point.run_id} {share:.0%}")

    def end(self, point: Point, status: str, reason: str) -> None:
        """A point has its record."""
        self._done += 1
        self._failed += status in ("failed", "timeout")
        if self._bar:
            self._bar.update(self._task, completed=self._done)
        seconds = time.monotonic() - self._began
        tail = f": {reason}" if reason else ""
        self._line(f"[{self._done}/{self._total}] {status} {point.run_id} ({seconds:.1f} s){tail}")

    def stop(self) -> None:
        """Take the bar off the terminal."""
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _line(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)
