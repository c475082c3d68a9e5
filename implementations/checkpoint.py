"""Checkpoints of a run: one file a process, made whole by a marker that names the step all of them reached."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from implementations.record import write_text


class Checkpoints:
    """The checkpoint folder of one run, seen by one of its processes."""

    def __init__(self, folder: Path, rank: int, barrier: Callable[[], None], tag: str = "") -> None:
        """``barrier`` waits for all processes of the run; ``tag`` names code and data: another tag's state is void."""
        self._folder, self._rank, self._barrier, self._tag = folder, rank, barrier, tag
        self.written_bytes = 0  # by this process

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Collective. Write ``state`` (tensors and plain values); an older checkpoint stays valid until all wrote."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._file(step)
        temporary = path.with_suffix(".partial")
        torch.save(state, temporary)
        self.written_bytes += temporary.stat().st_size
        temporary.replace(path)
        self._barrier()
        if self._rank == 0:
            write_text(self._folder / "latest.json", json.dumps({"step": step, "tag": self._tag}))
            for old in self._folder.glob("step*.pt"):
                if not old.name.startswith(f"step{step}."):
                    old.unlink()

    def load(self) -> dict[str, Any] | None:
        """The state last saved by this process, in CPU memory; None where there is no whole one. Unpickles no code."""
        marker = self._folder / "latest.json"
        if not marker.exists():
            return None
        latest = json.loads(marker.read_text())
        if latest["tag"] != self._tag:
            return None
        path = self._file(latest["step"])
        return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None

    def clear(self) -> None:
        """Remove the folder: the run has ended."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, step: int) -> Path:
        return self._folder / f"step{step}.rank{self._rank}.pt"
