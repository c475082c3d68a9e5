"""What this machine is: the host columns of a record. No names of machines or people."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import psutil

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def code_commit() -> str | None:
    """The commit of the code, with ``+`` when files differ from it; None outside a git checkout."""
    root = Path(__file__).parents[1]
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout else "")


def memory() -> tuple[int, int]:
    """Bytes of memory that this process may use in all, and that are free now, by the limits of a container too."""
    known = psutil.virtual_memory()
    total, available = known.total, known.available
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
            most = int((_CONTROL_GROUP / limit).read_text())
            total = min(total, most)
            available = min(available, max(0, most - int((_CONTROL_GROUP / used).read_text())))
    return total, available


def restart_peak() -> bool:
    """Have ``peak_resident_bytes`` begin at what is resident now; False where the system does not offer it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_resident_bytes() -> int | None:
    """The most of this process that was resident since ``restart_peak``; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    return None


def describe() -> dict[str, Any]:
    """The host columns of a record, without the MPI library's (only a rank knows it)."""
    import torch

    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "blas": "MKL" if torch.backends.mkl.is_available() else "torch default",
        "python": platform.python_version(),
        "torch_version": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
    }
