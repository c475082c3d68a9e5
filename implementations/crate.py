"""A finished run in one archive that says what lies in it: a Workflow Run RO-Crate.

Records, curves, tables, figures and report; the config files that were used; the environment and the host; the
Snakefile as the workflow; for each file its SHA-256. A link to the profile: https://w3id.org/ro/wfrun/workflow/0.6
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from implementations import host
from implementations.config import Settings
from implementations.data.summary import sha256
from implementations.errors import UserError
from implementations.record import outcome_files

ROOT = Path(__file__).resolve().parents[1]
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.6": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.6": "Workflow Run Crate",
}
HOST_COLUMNS = ["cpu", "cores", "memory_bytes", "platform", "python", "torch_version", "blas", "mpi"]
ENVIRONMENT = "environment.json"
# Of results/, beside the runs: what is large or can be fetched again, and what is no outcome.
_LEFT_OUT = ("batches", "data", "logs", "pretrained", "reference", "runs")
_OF_A_RUN = ("record.json", "curve.parquet", "utterances.parquet", "pretraining.parquet")
_KINDS = (".parquet", ".json", ".yaml", ".csv", ".svg", ".png", ".html")
_TYPES = {
    ".parquet": "application/vnd.apache.parquet",
    ".yaml": "application/yaml",
    ".cff": "application/yaml",
}
_ABOUT = {
    "results/runs.parquet": "A row for each run: what was asked, how it ended, and its numbers",
    "results/timings.parquet": "A row for each run and machine: time by the time model",
    "reports/report.html": "Claims, figures and tables on one page",
    "reports/tables/claims.csv": "Every published number and claim with its verdict",
    "requirements.lock": "Every package of the environment, exactly",
    ENVIRONMENT: "Machines and software that the runs' records name, and the commits of the code",
}


def write(results: Path, reports: Path, settings: Settings, out: Path) -> Path:
    """Put the run in ``results`` and its ``reports`` into the archive ``out``; returns its path.

    UserError where there is no run to put there, or no report of it.
    """
    from rocrate.rocrate import ROCrate

    runs = _runs(results)
    if not (reports / "report.html").is_file():
        raise UserError(f"{reports / 'report.html'} does not exist; run snakemake, which makes it")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    crate = ROCrate()
    began, ended = _times(runs)
    crate.name = f"{citation['title']}: a run of the tier {settings.tier}"
    crate.description = (
        f"{len(runs)} runs with their records, tables, figures and report. Evidence is told in every row: measured, "
        "simulated, projected or fitted."
    )
    crate.datePublished = ended
    licence = _add(
        crate, f"https://spdx.org/licenses/{citation['license']}", "CreativeWork", citation["license"]
    )
    authors = [
        _add(crate, f"#author-{number}", "Person" if "family-names" in one else "Organization", _name(one))
        for number, one in enumerate(citation["authors"], 1)
    ]
    crate.license, crate.creator = licence, authors
    for address, name in PROFILES.items():
        profile = _add(crate, address, ["CreativeWork", "Profile"], name, version=address.rpartition("/")[2])
        crate.root_dataset.append_to("conformsTo", profile)

    versions = _versions()
    workflow = crate.add_workflow(
        ROOT / "Snakefile",
        "Snakefile",
        main=True,
        lang="snakemake",
        lang_version=versions["snakemake"],
        properties=_facts("Snakefile", ROOT / "Snakefile")
        | {"name": citation["title"], "version": host.code_commit()},
    )
    workflow["license"], workflow["author"] = licence, authors
    used = [crate.add_file(path, name, properties=_facts(name, path)) for name, path in _used(settings)]
    environment = (json.dumps(_environment(runs), indent=1) + "\n").encode()
    used.append(_add_text(crate, ENVIRONMENT, environment))
    made = [
        crate.add_file(path, name, properties=_facts(name, path))
        for name, path in _made(results, reports, runs)
    ]
    engine = _add(
        crate,
        "https://snakemake.github.io",
        "SoftwareApplication",
        "Snakemake",
        softwareVersion=versions["snakemake"],
    )
    action = crate.add_action(
        workflow,
        "#run",
        object=used,
        result=made,
        properties={
            "name": f"Run of the tier {settings.tier}",
            "startTime": began,
            "endTime": ended,
            "actionStatus": {"@id": "http://schema.org/CompletedActionStatus"},
        },
    )
    action["agent"] = authors[0]
    _add(crate, "#engine", "OrganizeAction", "Run of Snakemake", instrument=engine, object=action)
    crate.root_dataset["mentions"] = [action]
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    crate.write_zip(partial)
    partial.replace(out)
    return out


def _runs(results: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(results / "runs.parquet")
    except FileNotFoundError:
        raise UserError(f"{results / 'runs.parquet'} does not exist; run snakemake, which makes it") from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{results / 'runs.parquet'} is damaged ({error}); delete it and run again"
        ) from error


def _times(runs: pd.DataFrame) -> tuple[str, str]:
    """When the first run began and the last ended, as ISO 8601 has it."""
    began = pd.to_datetime(runs["started_at"], utc=True)
    seconds = pd.to_numeric(runs["host_wall_s"]).fillna(0.0)
    ended = began + pd.to_timedelta(seconds, unit="s")
    if began.isna().all():
        raise UserError("no run in runs.parquet says when it began: none has run yet")
    return began.min().isoformat(timespec="seconds"), ended.max().isoformat(timespec="seconds")


def _used(settings: Settings) -> Iterator[tuple[str, Path]]:
    """The files that the run was made from, by their name in the crate."""
    for name in ("README.md", "LICENSE", "CITATION.cff", "requirements.lock"):
        yield name, ROOT / name
    yield f"config/{settings.configfile.name}", settings.configfile
    beside = settings.configfile.parent  # a user's own experiments and clusters lie beside the tier's file
    for kind, names in (
        ("experiments", [one.name for one in settings.experiments]),
        ("clusters", settings.clusters),
    ):
        for name in names:
            for path in (beside / kind / f"{name}.yaml", ROOT / "config" / kind / f"{name}.yaml"):
                if path.is_file():
                    yield f"config/{kind}/{name}.yaml", path
                    break
    for path in sorted([*ROOT.glob("config/claims/*.yaml"), *ROOT.glob("config/published/*.csv")]):
        yield str(path.relative_to(ROOT)), path


def _made(results: Path, reports: Path, runs: pd.DataFrame) -> Iterator[tuple[str, Path]]:
    """The files that the run left, by their name in the crate."""
    for path in outcome_files(results, _KINDS, _LEFT_OUT):
        yield f"results/{path.relative_to(results)}", path
    for run_id in sorted(runs["run_id"]):
        for name in _OF_A_RUN:
            path = results / "runs" / run_id / name
            if path.is_file():
                yield f"results/runs/{run_id}/{name}", path
    drawn = [path for name in ("tables", "figures") for path in outcome_files(reports / name, _KINDS)]
    for path in (reports / "report.html", *drawn):
        yield f"reports/{path.relative_to(reports)}", path


def _facts(name: str, path: Path) -> dict[str, Any]:
    """What the crate says of a file."""
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(name)[0] or "text/plain"
    facts = {"name": name, "encodingFormat": kind, "sha256": sha256(path)}
    facts["contentSize"] = str(path.stat().st_size)
    return facts | ({"description": _ABOUT[name]} if name in _ABOUT else {})


def _environment(runs: pd.DataFrame) -> dict[str, Any]:
    """Machines, software and code of the runs, as their records tell."""
    known = runs[runs["cpu"].notna()][HOST_COLUMNS].drop_duplicates()
    machines = json.loads(known.to_json(orient="records"))
    machines = [{key: value for key, value in one.items() if value is not None} for one in machines]
    return {
        # a process alone loads no MPI, and so knows less of the same machine
        "machines": [one for one in machines if not any(one.items() < other.items() for other in machines)],
        "code_commits": sorted(runs["code_commit"].dropna().unique()),
        "data_hashes": dict(
            sorted(runs.dropna(subset="data_hash").groupby("dataset")["data_hash"].first().items())
        ),
        "packages": _versions(),
    }


def _versions() -> dict[str, str]:
    """Packages of the lock, by name."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def _name(author: dict[str, str]) -> str:
    return author.get("name") or f"{author.get('given-names', '')} {author['family-names']}".strip()


def _add(crate: Any, address: str, kind: str | list[str], name: str, **properties: Any) -> Any:
    from rocrate.model.contextentity import ContextEntity

    entity = crate.add(ContextEntity(crate, address, properties={"@type": kind, "name": name}))
    for key, value in properties.items():
        entity[key] = value
    return entity


def _add_text(crate: Any, name: str, content: bytes) -> Any:
    """A file of the crate that lies nowhere else."""
    from io import BytesIO

    facts = {
        "name": name,
        "encodingFormat": "application/json",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    facts |= {"contentSize": str(len(content)), "description": _ABOUT[name]}
    return crate.add_file(BytesIO(content), name, properties=facts)
