"""The archive of a run: it opens again, and each file is what it says."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest
import yaml
from rocrate.rocrate import ROCrate

from implementations import config, crate
from implementations.__main__ import main
from implementations.errors import UserError
from tests.reporting import synthetic

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "0123456789abcdef" * 2 + "01234567"
NOT_DESCRIBED = {"ro-crate-metadata.json"}  # describes the others


@pytest.fixture
def run(tmp_path):
    """A results and a reports folder of a few made-up runs."""
    import pyarrow.parquet as pq

    from implementations.reporting.columns import to_table

    results, reports = tmp_path / "results", tmp_path / "reports"
    records = [record | {"code_commit": COMMIT} for record in synthetic.records()[:6]]
    frame = synthetic.runs(records)
    synthetic.curves(frame, results)
    for record in records:
        folder = results / "runs" / record["run_id"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "record.json").write_text(json.dumps(record, default=str))
        (folder / "trace.parquet").write_bytes(b"not wanted")
    pq.write_table(to_table(records), results / "runs.parquet")
    (results / "logs").mkdir()
    (results / "logs/a.json").write_text("{}")
    (reports / "tables").mkdir(parents=True)
    (reports / "figures/averaging").mkdir(parents=True)
    (reports / "report.html").write_text("<html></html>")
    (reports / "tables/claims.csv").write_text("claim_id\n")
    (reports / "figures/averaging/speedup.svg").write_text("<svg/>")
    return results, reports, [record["run_id"] for record in records]


def test_it_opens_again_and_lists_every_file_with_its_hash(run, tmp_path):
    results, reports, run_ids = run
    out = tmp_path / "crate.zip"
    arguments = ["--results", str(results), "--reports", str(reports), "--out", str(out)]
    assert main(["crate", *arguments, "--configfile", str(ROOT / "config/smoke.yaml")]) == 0

    opened = ROCrate(out)
    listed = {entity.id: entity for entity in opened.get_entities() if "File" in entity.type}
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist()) - NOT_DESCRIBED
        assert set(listed) == names
        for name in names:
            content = archive.read(name)
            assert listed[name]["sha256"] == hashlib.sha256(content).hexdigest(), name
            assert int(listed[name]["contentSize"]) == len(content)
        for name in ("Snakefile", "requirements.lock", "config/smoke.yaml", "config/experiments/smoke.yaml"):
            assert archive.read(name) == (ROOT / name).read_bytes()
    for run_id in run_ids:
        assert f"results/runs/{run_id}/record.json" in names
    assert any(name.endswith("curve.parquet") for name in names)
    assert not any("trace" in name or "logs" in name for name in names)
    assert {
        "reports/report.html",
        "reports/tables/claims.csv",
        "reports/figures/averaging/speedup.svg",
    } <= names


def test_it_says_what_was_run_by_whom_under_which_licence(run, tmp_path):
    results, reports, _ = run
    settings = config.load(ROOT / "config/smoke.yaml")
    opened = ROCrate(crate.write(results, reports, settings, tmp_path / "deep/crate.zip"))
    workflow, action = opened.mainEntity, opened.dereference("#run")
    assert workflow.id == "Snakefile"
    assert "ComputationalWorkflow" in workflow.type
    assert action["instrument"] is workflow
    assert action["startTime"] <= action["endTime"]
    assert {entity.id for entity in action["result"]} >= {"results/runs.parquet", "reports/report.html"}
    assert "config/smoke.yaml" in {entity.id for entity in action["object"]}
    assert action in opened.root_dataset["mentions"]
    profiles = {entity.id for entity in opened.root_dataset["conformsTo"]}
    assert {"https://w3id.org/ro/wfrun/process/0.6", "https://w3id.org/ro/wfrun/workflow/0.6"} <= profiles
    assert any("workflow-ro-crate" in name for name in profiles)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert opened.license.id.endswith(f"/{citation['license']}")
    assert "MIT License" in (ROOT / "LICENSE").read_text()
    assert [author["name"] for author in opened.creator] == [author["name"] for author in citation["authors"]]
    with zipfile.ZipFile(tmp_path / "deep/crate.zip") as archive:
        told = json.loads(archive.read("environment.json"))
    assert f"torch=={told['packages']['torch']}\n" in (ROOT / "requirements.lock").read_text()
    assert told["code_commits"] == [COMMIT]


def test_without_a_run_or_its_report_it_says_what_to_do(run, tmp_path):
    results, reports, _ = run
    settings = config.load(ROOT / "config/smoke.yaml")
    (reports / "report.html").unlink()
    with pytest.raises(UserError, match=r"report\.html does not exist; run snakemake"):
        crate.write(results, reports, settings, tmp_path / "crate.zip")
    shutil.rmtree(results)
    with pytest.raises(UserError, match=r"runs\.parquet does not exist; run snakemake"):
        crate.write(results, reports, settings, tmp_path / "crate.zip")
    assert not (tmp_path / "crate.zip").exists()


def test_citation_and_licence_agree():
    """Keys that the Citation File Format 1.2.0 asks for, and the same licence everywhere."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    for work in (citation, *citation["references"]):
        assert {"type", "title", "authors"} <= set(work)
        for author in work["authors"]:
            assert "family-names" in author or "name" in author
    assert f'license = {{ text = "{citation["license"]}" }}' in (ROOT / "pyproject.toml").read_text()
    assert f'version = "{citation["version"]}"' in (ROOT / "pyproject.toml").read_text()
