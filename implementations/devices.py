"""Where a process computes, on the CPU or on a GPU of its host, and what a run does differently there.

On the device lie weights, gradients, what the optimiser keeps, activations and the minibatch at work. Data sets,
orders of samples and what processes agree on stay in host memory. First weights are drawn on the CPU (``seeds``), so
that a run starts from the same bits wherever it computes.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import psutil
import torch

if TYPE_CHECKING:
    from implementations.data.dataset import Samples

# Where launchers tell a process its number among those of its host, and what says that this is told to it: a process
# inherits the variables of a batch script too. Open MPI, MPICH and Intel MPI, Slurm, torchrun.
_LOCAL_RANKS = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK"),
    ("MPI_LOCALRANKID", "PMI_RANK"),
    ("SLURM_LOCALID", "SLURM_PROCID"),
    ("LOCAL_RANK", "RANK"),
)


class Device:
    """The device that this process computes on; ``take_up`` has chosen which GPU."""

    def __init__(self, name: str = "cpu") -> None:
        """``name``: a point's ``device``."""
        self._gpus: Any = None if name == "cpu" else torch.get_device_module(name)
        self.torch = (
            torch.device(name) if self._gpus is None else torch.device(name, self._gpus.current_device())
        )

    def building(self) -> AbstractContextManager[Any]:
        """A block in which torch makes new tensors on the device."""
        return contextlib.nullcontext() if self._gpus is None else self.torch

    def take(self, samples: Samples, rows: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Inputs and labels of these rows, on the device."""
        inputs, labels = samples.take(rows)
        return (inputs, labels) if self._gpus is None else (inputs.to(self.torch), labels.to(self.torch))

    @property
    def synchronise(self) -> Callable[[], None] | None:
        """Waits until all that was started on the device has ended; None where nothing goes on by itself."""
        return None if self._gpus is None else self._gpus.synchronize

    def begin(self) -> None:
        """Forget the peak of the memory of what ran before."""
        if self._gpus is not None:
            self._gpus.reset_peak_memory_stats()

    def used_bytes(self) -> int:
        """Resident memory of the process; on a GPU the most that was allocated there since ``begin``."""
        return psutil.Process().memory_info().rss if self._gpus is None else self._gpus.max_memory_allocated()

    def columns(self) -> dict[str, Any]:
        """What the record says of a GPU: its name, and the most that was allocated; nothing of a CPU."""
        if self._gpus is None:
            return {}
        return {"gpu": self._gpus.get_device_name(), "peak_device_bytes": self._gpus.max_memory_allocated()}

    def undisturbed(self) -> AbstractContextManager[None]:
        """A block that leaves torch's global random numbers as they were, on CPU and device."""
        if self._gpus is None:
            return torch.random.fork_rng(devices=[])
        return torch.random.fork_rng(devices=[self.torch.index], device_type=self.torch.type)

    def random_state(self) -> torch.Tensor | None:
        """That of the device's global generator, from which dropout draws; None for a CPU."""
        return None if self._gpus is None else self._gpus.get_rng_state()

    def restore_random(self, state: torch.Tensor | None) -> None:
        """Take up what ``random_state`` gave."""
        if self._gpus is not None and state is not None:
            self._gpus.set_rng_state(state)


def local_rank(rank: int, on_host: Callable[[], int], environment: Mapping[str, str] = os.environ) -> int:
    """The number of a rank among those of its host: as the launcher says, else ``on_host()``."""
    for local, whole in _LOCAL_RANKS:
        if environment.get(whole) == str(rank) and environment.get(local, "").isdigit():
            return int(environment[local])
    return on_host()


def take_up(name: str, rank: int, local: int, gather: Callable[[str], list[str]]) -> str | None:
    """Choose this rank's GPU; the reason, the same on all ranks, why device ``name`` cannot be had here, or None.

    A launcher may show each rank a GPU of its own, or all of its host's; the rank of number ``local`` there takes that
    one of several. ``gather`` gives what each rank passes. NCCL joins no two ranks on one GPU.
    """
    if name == "cpu":
        return None
    gpus = torch.get_device_module(name)
    count = gpus.device_count() if gpus.is_available() else 0
    if not count:
        told = f"!device {name}: torch sees no GPU here"
    elif 1 < count <= local:
        told = f"!device {name}: rank {rank} is number {local + 1} on its host, where torch sees {count} GPUs"
    else:
        index = local if local < count else 0
        gpus.set_device(index)
        told = f"{socket.gethostname()} {getattr(gpus.get_device_properties(index), 'uuid', local)}"
    everyones = gather(told)
    missing = [words[1:] for words in everyones if words.startswith("!")]
    if missing:
        return missing[0]
    most = Counter(everyones).most_common(1)[0][1]
    return f"device {name}: {most} ranks share a GPU; each needs one of its own" if most > 1 else None
