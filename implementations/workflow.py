"""What the Snakefile asks: which config a start is for, which jobs it has, and when a job must run again.

Snakemake tells the targets only after it has read the Snakefile, so that everything here is worked out when the
first input function asks. A mistake ends the start with its message alone (SystemExit passes through Snakemake).
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from implementations import config, host, lifeline, record, registry
from implementations.cluster import calibrate, leftovers, shapes
from implementations.cluster.hosts import network
from implementations.codehash import closure, normalised, point_code_hash
from implementations.errors import UserError
from implementations.point import Point

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ("spark", "ist", "averaging", "layerwise", "suite")  # the last one: what belongs to none of them
LOCAL_CLUSTER = "results/calibration/this-host.yaml"
CALIBRATION_NOTE = "results/calibration/covers.json"
CALIBRATION_OUTCOME = "results/calibration/outcome.json"


class Pipeline:
    """One start of Snakemake. ``workflow`` is Snakemake's own object."""

    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow
        self._attempts: dict[str, str] = {}
        os.environ["PYTHONUNBUFFERED"] = "1"  # jobs are shown line by line as they go
        _put_first("PYTHONPATH", str(ROOT))
        _put_first("PATH", str(Path(sys.executable).parent))
        for owner, name in ((workflow, "_snakemake_tmp_dir"), (workflow.sourcecache, "runtime_cache")):
            if folder := getattr(owner, name, None):  # which a Snakemake that is killed leaves
                leftovers.claim(Path(folder.name))
        if workflow.is_main_process:
            os.environ.update(lifeline.mark())
            if ended := leftovers.end_orphans(Path.cwd()):
                print(f"ended {ended} processes of a start that was killed", file=sys.stderr)
            drop_stale_lock(Path.cwd())
            _sweep()

    @cached_property
    def targets(self) -> frozenset[str]:
        """The rules and files asked for; empty for all, and in the processes of single jobs."""
        return frozenset(map(str, self._workflow.dag_settings.targets))

    @cached_property
    def configfile(self) -> str:
        """The tier's file: config/smoke.yaml for the target smoke, else --configfile, else config/config.yaml."""
        given = [str(path) for path in self._workflow.config_settings.configfiles]
        if self._workflow.config_settings.config:
            sys.exit(
                "--config is not used here: put the value into a copy of config/config.yaml, and give --configfile"
            )
        if len(given) > 1:
            sys.exit(f"--configfile: one file is wanted, got {', '.join(given)}")
        if "smoke" in self.targets:
            if given or len(self.targets) > 1:
                other = ", ".join(sorted(self.targets - {"smoke"}) + given)
                sys.exit(
                    f"smoke has points of its own (config/smoke.yaml): ask for it alone, without {other}"
                )
            return repo("config/smoke.yaml")
        return given[0] if given else repo("config/config.yaml")

    @cached_property
    def paper(self) -> str | None:
        """The paper that is asked for by target; None for all of them."""
        papers = sorted(self.targets.intersection(PAPERS))
        if not papers:
            return None
        if len(self.targets) > 1:
            sys.exit(f"{' '.join(sorted(self.targets))}: ask for one paper, or for all")
        return papers[0]

    @cached_property
    def settings(self) -> config.Settings:
        """The tier's settings, restricted to the paper asked for; told on stderr, once."""
        if self._workflow.is_main_process:
            _decide_stand_ins(again="data" in self.targets)
        settings = _load(self.configfile)
        if self.paper:
            settings = config.select(settings, self.paper)
            if not settings.points:
                sys.exit(f"{self.configfile} has no points of the paper {self.paper}")
        if self._workflow.is_main_process:
            print(config.describe(settings), file=sys.stderr, flush=True)
        return settings

    @property
    def points_arguments(self) -> str:
        """The points of this start, as arguments of the commands that want to know them."""
        return f"--configfile {shlex.quote(self.configfile)}" + (
            f" --paper {self.paper}" if self.paper else ""
        )

    # The jobs

    def batch(self, batch_id: str) -> tuple[str, config.Batch, list[Point]]:
        """A job's config file, batch and points. A process of a single job knows no target: it may be smoke's."""
        tiers = [self.configfile]
        if not self._workflow.is_main_process:
            tiers.append(repo("config/smoke.yaml"))
        for file in tiers:
            settings = self.settings if file == self.configfile else _load(file)
            if found := settings.batch_by_id.get(batch_id):
                return file, found, settings.points_of(found)
        sys.exit(f"results/batches/{batch_id}.json: no such batch in {' or '.join(tiers)}")

    def prepared(self, batch_id: str) -> str:
        """How the preparation of the batch's data ended."""
        return prepared(self.batch(batch_id)[1].dataset)

    def threads(self, batch_id: str) -> int:
        """Cores to hold: all of them when timings are taken, so that nothing else runs beside it."""
        _, batch, _ = self.batch(batch_id)
        cores = self._workflow.cores
        return cores if batch.machine_alone else min(batch.processes * batch.threads_per_worker, cores)

    def code(self, batch_id: str) -> str:
        """Hash of the code that the batch's points run."""
        return "code " + " ".join(sorted(set(map(point_code_hash, self.batch(batch_id)[2]))))

    def attempt(self, batch_id: str) -> str:
        """Changes while a point of the batch must be tried again, and not once all have finished.

        It is the sum of the numbers of the attempts that the points are at. Worked out once: what the jobs of this
        start leave behind counts for the next start.
        """
        if batch_id not in self._attempts:
            points = self.batch(batch_id)[2]
            numbers = [record.next_attempt(Path("results"), point.run_id) for point in points]
            lost = numbers.count(None) if Path(f"results/batches/{batch_id}.json").exists() else 0
            total = sum(number or 1 for number in numbers)
            self._attempts[batch_id] = f"attempt {total}" + (f", {lost} lost" if lost else "")
        return self._attempts[batch_id]

    def step_attempt(self, outcome: str, product: str) -> str:
        """Changes while a preparation or calibration failed, or what it made is lost; else it stays."""
        if outcome not in self._attempts:
            self._attempts[outcome] = f"attempt {next_step_attempt(outcome, product)}"
        return self._attempts[outcome]

    # What follows the runs

    def manifests(self) -> list[str]:
        """What must be there before records are collected. For the target report: the records that there are."""
        settings = self.settings
        if self.targets == {"report"}:
            records = [str(record.record_path(Path("results"), point.run_id)) for point in settings.points]
            return [path for path in records if Path(path).exists()]
        return [f"results/batches/{batch.id}.json" for batch in settings.batches]

    def clusters(self) -> list[str]:
        """The machine files of the time model, but for the one that is calibrated here."""
        found = []
        for name in self.settings.clusters:
            beside = Path(self.configfile).parent / "clusters" / f"{name}.yaml"
            found.append(str(beside) if beside.exists() else repo(f"config/clusters/{name}.yaml"))
        return [file for file in found if Path(file).name != Path(LOCAL_CLUSTER).name]

    def cards(self) -> list[str]:
        """The cards of the data sets whose sizes plans are made for."""
        return _cards(self._planned)

    @property
    def planned(self) -> str:
        """The points that plans are made of, by a hash: plans are made again when these are others."""
        return _digest(self._planned)

    def spark_cards(self) -> list[str]:
        """The same of the projections of Spark."""
        return _cards(self._projected_on_spark)

    @property
    def projected(self) -> str:
        """The points that those are made of, by a hash."""
        return _digest(self._projected_on_spark)

    @property
    def _projected_on_spark(self) -> list[Point]:
        return [point for point in self.settings.projected if registry.get(point.method).runs_on == "spark"]

    @property
    def _planned(self) -> list[Point]:
        points = (*self.settings.projected, *self.settings.points)
        return [point for point in points if point.method == "layerwise" and point.evidence != "simulated"]

    @cached_property
    def calibration(self) -> str:
        """What the calibration of this machine covers, as JSON: the one that is there if it will do, else a new one.

        Smoke makes do with any of this machine by this code that has its networks; the other tiers want a full one of
        all their shapes, and of Spark where they have points of it.
        """
        wanted_shapes = {
            json.dumps([p.model, p.step_label, p.dataset, p.minibatch, p.threads_per_worker], sort_keys=True)
            for p in map(_worker_point, self.settings.points)
            if shapes.timed(p)
        }
        networks = [] if network.why_not() else calibrate.networks_of(self.settings.points)
        wanted = {
            "quick": "smoke" in self.targets,
            "host": f"{host.cpu_model()}, {host.cores()} cores",
            "code": _hash_of("cluster.calibrate"),
            "spark": runs_on_spark(self.settings),
            "shapes": sorted(wanted_shapes),
            "networks": networks,
        }
        try:
            there = json.loads(Path(CALIBRATION_NOTE).read_text(encoding="utf-8"))
            same = all(there[key] == wanted[key] for key in ("host", "code"))
            same = same and read_outcome(CALIBRATION_OUTCOME)["ok"] and Path(LOCAL_CLUSTER).exists()
            whole = (
                not there["quick"]
                and wanted_shapes <= set(there["shapes"])
                and there["spark"] >= wanted["spark"]
            )
            same = same and set(networks) <= set(there["networks"])
            if same and (wanted["quick"] or whole):
                wanted = there
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return json.dumps(wanted)

    def preparations(self) -> list[str]:
        """How the preparations ended that this start's points need."""
        return [prepared(name) for name in sorted({point.dataset for point in self.settings.points})]

    @property
    def quick(self) -> str:
        """The argument that makes a calibration quick, if that will do."""
        return "--quick" if json.loads(self.calibration)["quick"] else ""

    def ending(self, well: bool) -> str:
        """The last words of a start, and the end of what killed processes of it have left."""
        _sweep()
        report = Path("reports/report.html").resolve()
        if well and self.targets == {"data"}:
            return "data: results/prepared tells how each preparation ended"
        if well:
            return f"report: {report}"
        if self._reported:
            return f"report, made although something failed (see above): {report}"
        return "no report was made by this start; what failed is told above, and in results/logs"

    @property
    def _reported(self) -> bool:
        """Whether this start came as far as telling how the points ended."""
        began = psutil.Process().create_time()
        return any(log.stat().st_mtime >= began for log in Path("results/logs").glob("status_*.log"))


def _cards(points: Iterable[Point]) -> list[str]:
    return [repo(f"datasets/{name}/card.yaml") for name in sorted({point.dataset for point in points})]


def _digest(points: Iterable[Point]) -> str:
    ids = sorted(point.run_id for point in points)
    return hashlib.sha256(" ".join(ids).encode()).hexdigest()[:16]


def runs_on_spark(settings: config.Settings) -> bool:
    """Whether Spark's jobs must be timed here: points run by them, or are projected to this host or one like it."""
    return any(
        registry.get(point.method).runs_on == "spark" for point in (*settings.points, *settings.projected)
    )


def prepared(dataset: str) -> str:
    """The file that says how the preparation of a data set ended."""
    return f"results/prepared/{dataset}.json"


def next_step_attempt(outcome: str | Path, product: str | Path) -> int:
    """The number of the attempt that a step is at: unchanged while it ended well and what it made is there."""
    values = read_outcome(outcome)
    return values["attempts"] + (Path(outcome).exists() and not (values["ok"] and Path(product).exists()))


def leave_outcome(path: str | Path, product: str | Path, step: Callable[[], str | None]) -> int:
    """Carry out a step that makes ``product``, and leave in ``path`` whether it ended well; returns 0 either way.

    A step fails by an exception, or returns what it could not do. Keys: ``ok``, ``reason``, ``attempts``.
    """
    attempts = next_step_attempt(path, product)
    try:
        reason = step()
    except UserError as error:
        reason = str(error)
    except Exception as error:  # a defect in one step stops no other step either
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
    if reason:
        print(f"paratrain: error: {reason}", file=sys.stderr, flush=True)
    values = {"ok": not reason, "reason": reason or None, "attempts": attempts}
    record.write_text(Path(path), json.dumps(values, indent=1))
    return 0


def read_outcome(path: str | Path) -> dict[str, Any]:
    """What ``leave_outcome`` left; where there is nothing to read, the first attempt is yet to come."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        return {"ok": bool(values["ok"]), "reason": values["reason"], "attempts": int(values["attempts"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"ok": True, "reason": None, "attempts": 1}


def failed_steps(outcomes: Iterable[str]) -> list[str]:
    """A line for each preparation or calibration that failed: which, why, and its log."""
    lines = []
    for path in outcomes:
        values = read_outcome(path)
        if not values["ok"]:
            name = Path(path).stem
            what, log = (f"preparation of {name}", f"prepare_{name}")
            if path == CALIBRATION_OUTCOME:
                what, log = "calibration of this machine", "calibrate"
            reason = str(values["reason"]).replace("\n", " ")
            lines.append(f"  failed: {what}: {reason} (log: results/logs/{log}.log)")
    return lines


def repo(path: str) -> str:
    """A file of the repository, as seen from the working directory."""
    return path if Path.cwd() == ROOT else str(ROOT / path)


def files(*patterns: str) -> list[str]:
    """Files of the repository by pattern, in order."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return [repo(str(path.relative_to(ROOT))) for path in sorted(found) if "__pycache__" not in path.parts]


def code(*modules: str) -> list[str]:
    """The files of modules and of all that they import: inputs of the steps that are cheap to do again."""
    reached = closure([f"implementations.{module}" for module in modules])
    return files(*(f"{name.replace('.', '/')}{end}" for name in reached for end in (".py", "/__init__.py")))


def _hash_of(module: str) -> str:
    """Hash of the code of a module and of all that it imports, comments and docstrings aside."""
    text = "\n".join(normalised(Path(file)) for file in code(module))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drop_stale_lock(folder: Path) -> bool:
    """Remove the lock that a killed Snakemake left in ``folder``; returns whether there was one to remove.

    A lock is stale when it was made on this host and no other Snakemake is at work in the folder.
    """
    locks, note = folder / ".snakemake/locks", folder / ".snakemake/locked-on"
    if not locks.is_dir() or not any(locks.iterdir()):
        note.parent.mkdir(exist_ok=True)
        note.write_text(socket.gethostname())
        return False
    if not note.exists() or note.read_text() != socket.gethostname() or _snakemakes(folder):
        return False
    shutil.rmtree(locks)
    locks.mkdir()
    print("removed the lock of a Snakemake that was killed", file=sys.stderr)
    return True


def _sweep() -> None:
    leftovers.sweep(Path("results"), Path("reports"))


def _snakemakes(folder: Path) -> list[int]:
    """Other Snakemake processes at work in ``folder``."""
    found = []
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["cmdline"]):
        words = [Path(word).name for word in (process.info["cmdline"] or [])[:3]]
        try:
            if "snakemake" in words and process.pid not in own and Path(process.cwd()) == folder.resolve():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _decide_stand_ins(again: bool) -> None:
    """Once a start, for all of its jobs; ``again``: the data themselves are to be tried again."""
    os.environ.pop(config.STAND_INS_VARIABLE, None)
    stand_ins = {} if again else config.Catalog.installed().stand_ins
    os.environ[config.STAND_INS_VARIABLE] = ",".join(stand_ins)
    for line in config.notices(stand_ins):
        print(line, file=sys.stderr)


def _load(configfile: str) -> config.Settings:
    try:
        return config.load(configfile)
    except UserError as error:
        sys.exit(str(error))


def _worker_point(point: Point) -> Point:
    return registry.get(point.method).worker_point(point)


def _put_first(variable: str, folder: str) -> None:
    folders = [part for part in os.environ.get(variable, "").split(os.pathsep) if part and part != folder]
    os.environ[variable] = os.pathsep.join([folder, *folders])


def main(outcomes: list[str]) -> int:
    """Tell which steps failed; exit code 1 if any did. The next start tries them again."""
    lines = failed_steps(outcomes)
    print("\n".join(lines), end="\n" if lines else "", flush=True)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
