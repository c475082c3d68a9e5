"""Starting MPI ranks: which launcher, with which words and environment, and whether it fits the MPI that mpi4py loads.

python -m implementations.cluster.launcher      what each rank of a probe prints (start it under mpiexec)
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implementations import lifeline
from implementations.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PROBE_LIMIT_S = 30.0

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# How each launcher is told to put more ranks than cores on a machine, and to leave ranks unbound: Open MPI would pin
# a rank, with all its threads, to one core. Config's `launcher.args` can bind them: `[-bind-to, core]`.
_OVERSUBSCRIBE = {"openmpi": ["--oversubscribe"], "srun": ["--overcommit"]}
_PLACING = ("--host", "-host", "-H", "--hostfile", "--machinefile", "--map-by", "--nodes", "--nodelist", "-w")
# Open MPI alone does not hand the environment on to ranks on other machines, unless told name by name.
_EXPORT = {"openmpi": [word for name in (*_THREADS, "PATH", "PYTHONPATH") for word in ("-x", name)]}
_UNBOUND = {"mpich": ["-bind-to", "none"], "openmpi": ["--bind-to", "none"], "srun": ["--cpu-bind=none"]}
# Set, one or another, in processes that an MPI launcher has started.
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_LIBRARY_OF = {"mpich": ("mpich",), "intel": ("intel", "mpich"), "openmpi": ("open mpi",)}
_WAY_OUT = (
    "run `make reproduce` or `make doctor`, which install the MPI of requirements.lock into .venv; "
    "or install a system MPI and name its launcher in config under `launcher`"
)


@dataclass(frozen=True)
class MpiReport:
    """What a probe of two or more ranks found. Latency is that of a 4-byte ring step, bandwidth of 16 MB sends."""

    launcher: str
    kind: str
    library: str
    ranks: int
    ring_ok: bool
    latency_s: float
    bandwidth_bytes_per_s: float


def find_launcher(settings: Mapping[str, Any] | None = None) -> str:
    """Path of the launcher: `settings["command"]`, or for ``auto`` mpiexec beside this Python, else on the PATH.

    Raises UserError when there is none.
    """
    command = str((settings or {}).get("command") or "auto")
    if command != "auto":
        found = shutil.which(command)
        if found is None:
            raise UserError(f"MPI launcher {command!r} (config: launcher.command) was not found; {_WAY_OUT}")
        return found
    beside = Path(sys.executable).with_name("mpiexec")  # the MPI wheel puts it into the environment's bin
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise UserError(f"no MPI: mpiexec is neither beside {sys.executable} nor on the PATH; {_WAY_OUT}")
    return found


@functools.cache
def launcher_kind(path: str) -> str:
    """Whose launcher this is: srun or torchrun by name, mpich, openmpi, intel or other by what ``--version`` says."""
    for name in ("srun", "torchrun"):
        if Path(path).name.startswith(name):
            return name
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"MPI launcher {path} does not start ({error}); {_WAY_OUT}") from error
    text = (answer.stdout + answer.stderr).lower()
    for kind, words in {
        "intel": ("intel(r) mpi",),
        "openmpi": ("open mpi", "openrte", "open-mpi", "prrte"),
        "mpich": ("hydra", "mpich"),
        "srun": ("slurm",),
    }.items():
        if any(word in text for word in words):
            return kind
    return "other"


def mpi_command(ranks: int, settings: Mapping[str, Any] | None = None, spread: bool = False) -> list[str]:
    """The words before the program that start ``ranks`` processes of it.

    settings: config's ``launcher``: ``command`` (auto, or a launcher's name or path) and ``args`` (further words).
    spread: over hosts that the environment names (``hosts.ranks``), one on each.
    Raises UserError when the launcher is missing.
    """
    if ranks < 1:
        raise ValueError(f"ranks: got {ranks}; allowed: 1 or more")
    path = find_launcher(settings)
    kind = launcher_kind(path)
    args = [str(word) for word in (settings or {}).get("args") or []]
    if kind == "torchrun":  # of one machine, for ranks that torch joins
        return [path, "--nproc-per-node", str(ranks), "--no-python", *args]
    binding = [] if any("bind" in word for word in args) else _UNBOUND.get(kind, [])
    # With --oversubscribe Open MPI fills the first of several hosts with all ranks.
    placed = any(word.startswith(_PLACING) for word in args)
    oversubscribe = [] if placed or spread else _OVERSUBSCRIBE.get(kind, [])
    return [path, "-n", str(ranks), *oversubscribe, *_EXPORT.get(kind, []), *binding, *args]


def rank_environment(threads: int) -> dict[str, str]:
    """The environment for ranks of ``threads`` threads each: thread counts set, Python and the package in reach."""
    environment = dict(os.environ)
    for name in _THREADS:
        environment[name] = str(threads)
    # Buffers of a minibatch are given back and asked for again each step; glibc would return their pages to the system
    # and fetch zeroed ones, a tenth of a step of a 512-wide net. Both are needed: one alone makes it worse.
    environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 30))
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 25))
    # Open MPI refuses to start as root, which a container's user is, unless told twice.
    environment["OMPI_ALLOW_RUN_AS_ROOT"] = environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    bin_folder = str(Path(sys.executable).parent)
    if bin_folder not in environment.get("PATH", "").split(os.pathsep):
        environment["PATH"] = os.pathsep.join(filter(None, [bin_folder, environment.get("PATH")]))
    packages = environment.get("PYTHONPATH", "").split(os.pathsep)
    if str(ROOT) not in packages:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), *packages]))
    return environment


def check_mpi(settings: Mapping[str, Any] | None = None, ranks: int = 2) -> MpiReport:
    """Start ``ranks`` probe processes and report; UserError when they do not start or do not find each other."""
    path = find_launcher(settings)
    kind = launcher_kind(path)
    command = [*mpi_command(ranks, settings), sys.executable, "-m", "implementations.cluster.launcher"]
    output, errors, code = _run(command, rank_environment(1), PROBE_LIMIT_S)
    answers = [
        json.loads(text) for text in re.findall(r'\{"rank".*?\}', output)
    ]  # lines of ranks may run together
    if code != 0 or not answers:
        last = "\n".join((errors or output).strip().splitlines()[-5:]) or f"exit code {code}"
        raise UserError(f"MPI does not work: `{' '.join(command)}` failed:\n{last}\n{_WAY_OUT}")
    require_world(answers[0]["size"], ranks, kind, answers[0]["library"])
    return MpiReport(
        launcher=path,
        kind=kind,
        library=answers[0]["library"],
        ranks=ranks,
        ring_ok=all(answer["ring_ok"] for answer in answers),
        latency_s=max(answer["latency_s"] for answer in answers),
        bandwidth_bytes_per_s=min(answer["bandwidth_bytes_per_s"] for answer in answers),
    )


def require_world(found: int, wanted: int, kind: str = "other", library: str = "") -> None:
    """Raise UserError unless MPI's world has as many ranks as the launcher was asked for.

    When launcher and library come from different MPIs, each process takes itself for the only one ("0 of 1"), and
    would quietly train alone.
    """
    if found == wanted:
        return
    library = library or "unknown"
    words = _LIBRARY_OF.get(kind)
    mixed = words is not None and not any(word in library.lower() for word in words)
    why = (
        f"the launcher is of kind {kind}, but mpi4py loaded {library}"
        if mixed
        else f"mpi4py loaded {library}"
    )
    raise UserError(
        f"MPI started {wanted} processes, but each finds {found} in its world: {why}. Launcher and library must come "
        f"from one MPI: set `launcher.command` in config to the launcher of the loaded library, or remove the other "
        f"MPI from the environment (pip uninstall) or from LD_LIBRARY_PATH"
    )


def library_name(mpi: Any) -> str:
    """What the library behind mpi4py's ``MPI`` calls itself, with its version."""
    return " ".join(mpi.Get_library_version().splitlines()[0].split(",")[0].replace("\x00", "").split())


def _run(command: list[str], environment: Mapping[str, str], limit_s: float) -> tuple[str, str, int]:
    """Output, errors and exit code; after ``limit_s`` the whole process group is ended (code 124)."""
    try:
        process = subprocess.Popen(
            command,
            env={**environment, **lifeline.mark()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        return "", str(error), 127
    try:
        output, errors = process.communicate(timeout=limit_s)
        return output, errors, process.returncode
    except subprocess.TimeoutExpired:
        return "", f"no answer within {limit_s:.0f} s", 124
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _probe() -> None:
    """One rank of the probe: who am I, does a ring come round, how fast are small and large messages."""
    from time import perf_counter

    import numpy as np
    from mpi4py import MPI

    lifeline.hold_on()
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    following, previous = (rank + 1) % size, (rank - 1) % size

    def ring_step(send: np.ndarray, receive: np.ndarray, times: int) -> float:
        world.Barrier()
        start = perf_counter()
        for _ in range(times):
            world.Sendrecv(send, following, recvbuf=receive, source=previous)
        return (perf_counter() - start) / times

    token, received, total = np.array([rank], np.int32), np.empty(1, np.int32), rank
    for _ in range(size - 1):
        ring_step(token, received, 1)
        token, total = received.copy(), total + int(received[0])
    small, small_in = np.zeros(1, np.float32), np.empty(1, np.float32)
    large, large_in = np.zeros(4_000_000, np.float32), np.empty(4_000_000, np.float32)
    ring_step(small, small_in, 20), ring_step(large, large_in, 1)  # the first messages set up the connection
    answer = {
        "rank": rank,
        "size": size,
        "library": library_name(MPI),
        "ring_ok": total == size * (size - 1) // 2,
        "latency_s": ring_step(small, small_in, 200),
        "bandwidth_bytes_per_s": large.nbytes / ring_step(large, large_in, 5),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _probe()
