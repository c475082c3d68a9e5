"""A copy of the repository in which runs are started and killed, and what is left of them told."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pandas as pd
import psutil

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "PARATRAIN_KILLS"  # in the environment of all that a world starts
SHARED_MEMORY = Path("/dev/shm")
POLL_S = 0.05
END_S = 20.0  # for what watches its launcher to notice that it is gone, on a busy machine
LIBRARIES_OWN = ("torchinductor_", "hsperfdata_")  # folders that a library keeps for good
# Columns of a record that another run of the same point may have otherwise: times, and how it came about.
MAY_DIFFER = {
    *("started_at", "attempts", "resumed", "log_path", "samples_per_s", "code_commit", "stage_attempts"),
    *("peak_rss_bytes", "resident_bytes", "memory_bytes", "simulation_bytes"),
}


class World:
    """The copy. ``quick``: a tier of a few points in place of smoke, calibrated once for all its runs."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder, self.quick, self.token = folder, quick, uuid.uuid4().hex
        self.temporary, self.cache = folder / "tmp", folder / "cache"
        self._kept = ("data", "calibration") if quick else ("data",)
        skip = shutil.ignore_patterns("__pycache__", "results", "reports", ".*")
        for name in ("implementations", "config", "datasets", "profiles"):
            shutil.copytree(ROOT / name, folder / name, ignore=skip)
        for name in ("Snakefile", "CITATION.cff", "requirements.lock"):
            shutil.copy(ROOT / name, folder)
        if quick:
            here = Path(__file__).parent
            shutil.copy(here / "tier.yaml", folder / "config/smoke.yaml")
            shutil.copy(here / "experiment.yaml", folder / "config/experiments/kills.yaml")
        self._namespaces, self._shared = namespaces(), shared_memory()

    def fresh(self) -> None:
        """Forget every run; data that are prepared stay, and in a quick world the calibration."""
        for name in ("reports", ".snakemake"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        results = self.folder / "results"
        for path in results.iterdir() if results.is_dir() else ():
            if path.name not in self._kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the tier, with these words to Snakemake too; what it says goes to ``said``."""
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PARATRAIN"))
        }
        environment |= {TOKEN: self.token, "TMPDIR": str(self.temporary), "XDG_CACHE_HOME": str(self.cache)}
        environment.pop("PYTHONPATH", None)
        with self.said.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "snakemake", "--cores", "2", *words, "--", "smoke"],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def said(self) -> Path:
        """What all starts have said."""
        return self.folder / "said.log"

    def processes(self) -> list[psutil.Process]:
        """All that runs of this world: by its environment, else by folder or words, as Java is given others."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                own = process.environ().get(TOKEN) == self.token or process.cwd().startswith(str(self.folder))
                if own or any(str(self.folder) in word for word in process.cmdline()[:40]):
                    found.append(process)
        return found

    def left(self, wait_s: float = END_S) -> list[str]:
        """A line for each thing that runs or lies there now that should not; looks again until ``wait_s`` are over."""
        until = time.monotonic() + wait_s
        while (found := self._left()) and time.monotonic() < until:
            time.sleep(0.5)
        return found

    def _left(self) -> list[str]:
        lines = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                lines.append(f"process {process.pid}: {' '.join(process.cmdline())[:150]}")
        paths = [path.relative_to(self.temporary) for path in self.temporary.rglob("*")]
        paths = [path for path in paths if not path.parts[0].startswith(LIBRARIES_OWN)]
        lines += [f"temporary {path}" for path in paths if not self._is_unread(path)]
        caches = self.cache.glob("snakemake/**/snakemake-runtime-cache/*")  # with something in: see below
        lines += [f"temporary {path}" for path in caches if not _is_empty(path)]
        lines += [f"network namespace {name}" for name in sorted(namespaces() - self._namespaces)]
        lines += [f"shared memory {name}" for name in sorted(shared_memory() - self._shared)]
        results = self.folder / "results"
        lines += [
            f"partial file {path}" for path in results.rglob(".*") if path.is_file() and _is_partial(path)
        ]
        return lines

    def _is_unread(self, path: Path) -> bool:
        """A folder of a Snakemake that was killed before it had read the Snakefile: nobody could tell whose it is."""
        return path.name.startswith("snakemake") and _is_empty(self.temporary / path)

    def end(self) -> None:
        """Kill all that runs of this world."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def outcome(self) -> pd.DataFrame:
        """The records' numbers that are the same in every run, a row a run; curves among them, as text."""
        runs = pd.read_parquet(self.folder / "results/runs.parquet").set_index("run_id").sort_index()
        kept = [name for name in runs if name not in MAY_DIFFER and not name.endswith("_s")]
        frame = runs[kept].copy()
        frame["curve"] = [self._curve(str(run_id)) for run_id in frame.index]
        return frame

    def _curve(self, run_id: str) -> str:
        curve = pd.read_parquet(self.folder / "results/runs" / run_id / "curve.parquet")
        return curve[[name for name in curve if not name.endswith("_s")]].to_json()


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _is_partial(path: Path) -> bool:
    """A file that was being written, beside the one that it was to become."""
    return path.name.rpartition(".")[2].isdigit() or path.suffix == ".tmp"


def namespaces() -> set[str]:
    """Network namespaces that bear a name, but for those of emulated hosts whose owner lives (other runs of today)."""
    folder = Path("/run/netns")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    owners = {name: re.match(r"pt(\d+)-", name) for name in names}
    return {name for name, owner in owners.items() if not (owner and psutil.pid_exists(int(owner[1])))}


def shared_memory() -> set[str]:
    """Segments of shared memory that no process has mapped."""
    if not SHARED_MEMORY.is_dir():
        return set()
    names = {path.name for path in SHARED_MEMORY.iterdir()}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(errors="replace")
            names = {name for name in names if f"{SHARED_MEMORY}/{name}" not in text}
    return names


def differences(found: pd.DataFrame, wanted: pd.DataFrame) -> list[str]:
    """A line for each number of a run that is not what it was in the undisturbed run."""
    lines = [f"run {run_id} is there once only" for run_id in found.index.symmetric_difference(wanted.index)]
    for run_id in found.index.intersection(wanted.index):
        for name in wanted:
            one, other = (_text(frame.at[run_id, name]) for frame in (found, wanted))
            if one != other:
                lines.append(f"{run_id}: {name} is {one[:80]}, was {other[:80]}")
    return lines


def _text(value: object) -> str:
    return str(value.tolist() if hasattr(value, "tolist") else value)


def short(process: psutil.Process) -> str:
    """What a process is, in a few words."""
    with contextlib.suppress(psutil.Error):
        words = [Path(word).name for word in process.cmdline()]
        telling = [
            word for word in words if not word.startswith("-") and word not in ("python", "bash", "sh")
        ]
        return " ".join([words[0], *telling][:6])[:70] if words else process.name()
    return "gone"


def kill(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal, if it is still there."""
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
