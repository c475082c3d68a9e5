"""What a worker keeps between the jobs of a step, in files of the executor that runs it.

Activations and gradients of a step in progress are of no use to anyone else and are gone when it ends. They lie in
the executor's folder for temporary files, which any of its Python processes can map into memory: a tensor is written
once and then neither copied nor read until it is used. Like the files of a shuffle they die with the executor, and what
is lost is computed again from the state that the step began with and from what was received (``tasks``).

A phase's files become valid by one change of a name, so that a task that was cut off leaves nothing half done.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from implementations.spark.frames import pack, unpack


@dataclass
class Held:
    """What a worker holds in the middle of a step.

    done: phases that are behind it.
    saved, grads: as in ``program.State``, of gradients those that are there already.
    loss: once it is known.
    after: the frame of the state after the step, at its end.
    """

    done: int = 0
    saved: dict[str, torch.Tensor] = field(default_factory=dict)
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: float | None = None
    after: bytearray | None = None
    # tensors as they are on disk, by their name there: the object, its version and its file
    stored: dict[str, tuple[torch.Tensor, int, str]] = field(default_factory=dict)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, by their names on disk."""
        return {
            f"{kind}/{name}": tensor
            for kind in ("saved", "grads")
            for name, tensor in getattr(self, kind).items()
        }


class Scratch:
    """The files of one worker's steps, on this executor."""

    def __init__(self, token: str, worker: int) -> None:
        local = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
        self._folder = Path(local) / f"paratrain-{token}" / f"worker{worker}"

    def load(self, step: int) -> Held:
        """What is held of the step; of a step that has left nothing here, nothing."""
        folder = self._folder / f"step{step}"
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            mapped = {name: unpack(_map(folder / name)) for name in set(manifest["files"].values())}
        except FileNotFoundError:
            return Held()
        held = Held(manifest["done"], loss=manifest["loss"])
        for name, file in manifest["files"].items():
            kind, _, own = name.partition("/")
            tensor = mapped[file][name]
            getattr(held, kind)[own] = tensor
            held.stored[name] = (tensor, tensor._version, file)
        if manifest["after"]:
            held.after = _read(folder / manifest["after"])
        return held

    def save(self, step: int, held: Held) -> None:
        """Keep what is held after a phase; only tensors that are new or were written to go to disk."""
        folder = self._folder / f"step{step}"
        if not folder.exists():
            self._forget_before(step)
            folder.mkdir(parents=True)
        files, fresh = {}, {}
        name_of_new = f"{held.done}-{uuid.uuid4().hex}"
        for name, tensor in held.tensors().items():
            known = held.stored.get(name)
            if known is not None and known[0] is tensor and known[1] == tensor._version:
                files[name] = known[2]
            else:
                files[name], fresh[name] = name_of_new, tensor
        if fresh:
            (folder / name_of_new).write_bytes(pack(fresh))
        after = None
        if held.after is not None:
            after = f"{name_of_new}-after"
            (folder / after).write_bytes(held.after)
        manifest = {"done": held.done, "loss": held.loss, "files": files, "after": after}
        partial = folder / f"{name_of_new}.partial"
        partial.write_text(json.dumps(manifest))
        partial.replace(folder / "manifest.json")
        self._drop_unused(folder, manifest)

    def _forget_before(self, step: int) -> None:
        for old in self._folder.glob("step*"):
            if int(old.name.removeprefix("step")) < step:
                shutil.rmtree(old, ignore_errors=True)

    @staticmethod
    def _drop_unused(folder: Path, manifest: Mapping[str, object]) -> None:
        used = {"manifest.json", manifest["after"], *manifest["files"].values()}
        for path in folder.iterdir():
            if path.name not in used:
                path.unlink(missing_ok=True)


def _map(path: Path) -> np.ndarray:
    """A file as memory; what is written there stays in this process."""
    return np.memmap(path, np.uint8, mode="c")


def _read(path: Path) -> bytearray:
    frame = bytearray(path.stat().st_size)
    with path.open("rb") as file:
        file.readinto(frame)
    return frame
