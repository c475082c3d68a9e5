"""What works on this machine, how fast, and how to mend what does not: a few seconds before anything long.

python -m implementations doctor            the checks
python -m implementations doctor --spark    starts a Spark session as well (ten seconds)
python -m implementations doctor --json     the same for a program
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

from implementations.cluster import launcher
from implementations.cluster.spark import java
from implementations.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
NEEDED_DISK_BYTES = 2e9  # data, runs and reports of the default tier, with room
NEEDED_SHARED_MEMORY_BYTES = 100e6  # MPI's ranks exchange through it; containers start with 64 MB
SPARK_LIMIT_S = 180.0
_SPARK = """
from implementations.cluster.spark import session
with session.start(2, "local") as running:
    assert running.context.parallelize(range(100), 2).map(lambda x: x * x).sum() == 328350
"""
_SETUP = "run `make doctor`, which installs what requirements.lock names"


@dataclass(frozen=True)
class Check:
    """One line of the answer. ``needed``: the default run does not work without it."""

    name: str
    ok: bool
    detail: str
    mend: str = ""
    needed: bool = True
    seconds: float = 0.0


def check_python() -> Check:
    """This Python, and whether the installed packages are those of requirements.lock."""
    where = f"Python {sys.version.split()[0]} at {sys.executable}"
    wrong = []
    wanted = lock_versions(ROOT / "requirements.lock")
    for name, version in wanted.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} missing")
            continue
        if found.split("+")[0] != version:  # 2.13.0+cpu is a build of 2.13.0
            wrong.append(f"{name} {found} (lock: {version})")
    if wrong:
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        return Check("python", False, f"{where}; {', '.join(wrong[:4])}{more}", _SETUP)
    return Check("python", True, f"{where}; {len(wanted)} packages as in requirements.lock")


def lock_versions(path: Path) -> dict[str, str]:
    """Package names and versions of a requirements file of exact pins."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def check_machine() -> Check:
    """Cores that this process may use, and memory."""
    import psutil

    usable = (
        len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count()
    )
    memory = psutil.virtual_memory()
    detail = (
        f"{usable} of {os.cpu_count()} logical cores ({psutil.cpu_count(logical=False) or '?'} physical), load "
        f"{os.getloadavg()[0]:.1f}, {memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB memory free"
    )
    ok = memory.available > 2e9
    return Check("machine", ok, detail, "" if ok else "the default run needs about 2 GB: end other programs")


def check_disk(folder: Path) -> Check:
    """Space where the results go, and of the shared memory that MPI's ranks use."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1e9:.1f} GB free for results"
    shared = Path("/dev/shm")
    if free < NEEDED_DISK_BYTES:
        return Check(
            "disk", False, detail, f"free {NEEDED_DISK_BYTES / 1e9:.0f} GB, or start in another folder"
        )
    if shared.is_dir():
        left = shutil.disk_usage(shared).free
        detail += f", {left / 1e9:.1f} GB shared memory"
        if left < NEEDED_SHARED_MEMORY_BYTES:
            return Check(
                "disk", False, detail, "MPI needs more: give the container --shm-size=1g", needed=False
            )
    return Check("disk", True, detail)


def check_mpi() -> Check:
    """Two ranks: do they find each other, does a ring come round, how fast is it."""
    try:
        report = launcher.check_mpi()
    except UserError as error:
        return Check("mpi", False, str(error), f"see above; then {_SETUP}")
    detail = (
        f"{report.library} by {report.launcher}; ring of {report.ranks} ranks {'ok' if report.ring_ok else 'WRONG'}, "
        f"4 B in {report.latency_s * 1e6:.1f} us, 16 MB at {report.bandwidth_bytes_per_s / 1e9:.2f} GB/s"
    )
    return Check("mpi", report.ring_ok, detail, "" if report.ring_ok else f"messages come wrong; {_SETUP}")


def check_threads() -> Check:
    """Torch's threads and BLAS, and the speed of a matrix product."""
    import threadpoolctl
    import torch

    pools = {f"{pool['internal_api']} {pool['num_threads']}" for pool in threadpoolctl.threadpool_info()}
    size = 1024
    a = torch.rand(size, size)
    torch.mm(a, a)
    best = min(_seconds(lambda: torch.mm(a, a)) for _ in range(5))
    backends = [name for name in ("mkl", "mkldnn", "openmp") if getattr(torch.backends, name).is_available()]
    detail = (
        f"torch {torch.__version__} with {', '.join(backends)}, {torch.get_num_threads()} threads; pools: "
        f"{', '.join(sorted(pools))}; {size}x{size} float32 product {2 * size**3 / best / 1e9:.0f} GFLOP/s"
    )
    return Check("threads", True, detail)


def check_java() -> Check:
    """Java and pyspark, without starting them."""
    try:
        spark = f"pyspark {importlib.metadata.version('pyspark')}"
    except importlib.metadata.PackageNotFoundError:
        return Check("spark", False, "pyspark is missing", _SETUP, needed=False)
    try:
        found = java.find()
    except UserError as error:
        return Check("spark", False, f"{spark}; {error}", _SETUP, needed=False)
    detail = f"{spark}, Java {found.version} at {found.command} (not started; --spark does)"
    return Check("spark", True, detail, needed=False)


def check_spark() -> Check:
    """A real local session with two threads, one job; in a process of its own."""
    found = check_java()
    if not found.ok:
        return found
    start = perf_counter()
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _SPARK],
            env=launcher.rank_environment(1),
            capture_output=True,
            text=True,
            timeout=SPARK_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"no Spark session within {SPARK_LIMIT_S:g} s"
        return replace(found, ok=False, detail=detail, mend="look for other load")
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        return replace(found, ok=False, detail=f"Spark does not start: {last}", mend=f"check Java; {_SETUP}")
    took = perf_counter() - start
    detail = found.detail.replace("not started; --spark does", f"local[2] session and a job in {took:.1f} s")
    return replace(found, detail=detail)


def check_device() -> Check:
    """GPUs, if any, and what joins ranks on them: nothing needs one."""
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        detail = f"none (none is needed; points with device cuda are skipped); torch is built {built}"
        return Check("gpu", True, detail, needed=False)
    names = Counter(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    found = ", ".join(f"{count} x {name}" for name, count in names.items())
    if not dist.is_nccl_available():
        mend = "install a torch that has NCCL: ranks with device cuda are joined by it"
        return Check("gpu", False, f"{found}; no NCCL", mend, needed=False)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return Check("gpu", True, f"{found}; CUDA {torch.version.cuda}, NCCL {nccl}; a rank each", needed=False)


def check_data(results: Path) -> list[Check]:
    """Each data set: prepared, can be had from where, or what is missing."""
    from implementations import config, data

    try:
        needed = set(config.load(ROOT / "config/config.yaml").datasets)
    except UserError:  # told by `snakemake -n`, and no reason to say nothing about the data
        needed = set(data.names())
    checks = []
    for name in data.names():
        found = data.status(name, results)
        ok = found["state"] != "missing"
        detail = f"{found['state']}: {found['detail']}"
        mend = f"`python -m implementations prepare {name}` tries each source, and tells how to put it in by hand"
        checks.append(Check(f"data {name}", ok, detail, "" if ok else mend, needed=name in needed))
    return checks


def examine(results: Path = Path("results"), spark: bool = False) -> list[Check]:
    """All checks, in order; one that breaks is a failed check, not an end."""
    checks: list[Check] = []
    plan: dict[str, Callable[[], Check | list[Check]]] = {
        "python": check_python,
        "machine": check_machine,
        "disk": lambda: check_disk(results.resolve()),
        "mpi": check_mpi,
        "threads": check_threads,
        "spark": check_spark if spark else check_java,
        "gpu": check_device,
        "data": lambda: check_data(results),
    }
    for name, run in plan.items():
        start = perf_counter()
        try:
            found = run()
        except Exception as error:  # whatever is broken here is what the doctor is asked about
            found = Check(
                name, False, f"{type(error).__name__}: {error}", _SETUP, needed=name not in ("spark", "gpu")
            )
        found = found if isinstance(found, list) else [found]
        seconds = (perf_counter() - start) / max(len(found), 1)
        checks += [replace(check, seconds=round(seconds, 3)) for check in found]
    return checks


def doctor(results: Path = Path("results"), spark: bool = False, as_json: bool = False) -> int:
    """Print the checks; exit code 0 when all that is needed works, else 1."""
    checks = examine(results, spark)
    ok = all(check.ok for check in checks if check.needed)
    if as_json:
        print(json.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}, indent=1))
    else:
        _show(checks)
        print("all that is needed works" if ok else "something that is needed does not work: see above")
    return 0 if ok else 1


def _word(check: Check) -> str:
    return "ok" if check.ok else "FAILED" if check.needed else "missing"


def _show(checks: list[Check]) -> None:
    """A table on a terminal, plain lines elsewhere."""
    if not sys.stdout.isatty():
        for check in checks:
            print(f"{_word(check):8}{check.name}: {check.detail}")
            if check.mend and not check.ok:
                print(f"        mend: {check.mend}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "what", "found")
    for check in checks:
        colour = "green" if check.ok else "red" if check.needed else "yellow"
        text = Text(check.detail)
        if check.mend and not check.ok:
            text.append(f"\nmend: {check.mend}", style="bold")
        table.add_row(Text(_word(check), style=colour), check.name, text)
    Console().print(table)


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
