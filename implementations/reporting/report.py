"""``reports/report.html``: one self-contained page of claims, figures, tables and failures.

It is made from what is there: a missing input is named on the page and stops nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from implementations.point import EVIDENCE
from implementations.reporting.columns import as_runs
from implementations.reporting.files import write_whole
from implementations.reporting.html import inline_svg, number, table_of, text
from implementations.reporting.papers import paper_of
from implementations.reporting.tables import TITLES, command_for
from implementations.reporting.verdicts import COLUMNS, VERDICTS

# Tables in the order of the page; the others have sections of their own.
PAPER_TABLES = ("speedup", "time_split", "accuracy", "volume", "tuning")
VERDICT_MARKS = {
    "reproduced": ("good", "\N{CHECK MARK}"),
    "shape holds": ("good", "\N{TILDE OPERATOR}"),
    "consistent (projected)": ("fair", "\N{WHITE DIAMOND}"),
    "inconclusive": ("open", "?"),
    "not reproduced": ("bad", "\N{MULTIPLICATION SIGN}"),
    "not comparable here": ("idle", "\N{EN DASH}"),
    "not run": ("idle", "\N{HORIZONTAL ELLIPSIS}"),
}
NOT_JUDGED = ("not run", "not comparable here")
MACHINE = {
    "cpu": "CPU", "cores": "cores used", "memory_bytes": "memory (GB)", "platform": "system", "python": "Python",
    "torch_version": "torch", "blas": "BLAS", "mpi": "MPI", "code_commit": "code commit",
}  # fmt: skip


def make_report(
    results_dir: str | Path = "results",
    reports_dir: str | Path = "reports",
    configfile: str | Path | None = None,
    out: str | Path | None = None,
) -> Path:
    """Write the report from ``results_dir/runs.parquet``, ``reports_dir/tables`` and ``reports_dir/figures``.

    Returns its path (default: ``reports_dir/report.html``).
    """
    results_dir, reports_dir = Path(results_dir), Path(reports_dir)
    out = Path(out) if out is not None else reports_dir / "report.html"
    page = _page(results_dir, reports_dir, Path(configfile) if configfile else None)
    write_whole(out, page.encode("utf-8"))
    return out


def _page(results_dir: Path, reports_dir: Path, configfile: Path | None) -> str:
    missing: list[str] = []
    config = _config(configfile, missing)
    tier = config["tier"]
    runs = as_runs(_there(results_dir / "runs.parquet", missing))
    claims = _read(reports_dir / "tables" / "claims.parquet", missing, COLUMNS)
    tables = {name: _read(reports_dir / "tables" / f"{name}.parquet", missing) for name in TITLES}
    figures = _figures(reports_dir / "figures" / "figures.json", missing)
    papers = sorted(
        {*runs["paper"].dropna(), *claims["paper"].dropna(), *(figure["paper"] for figure in figures)}
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": number, "text": text}
    return environment.get_template("report.html.j2").render(
        tier=tier,
        dates=_dates(runs),
        missing=missing,
        machines=_machines(runs),
        calibration=_calibration(results_dir),
        counts=table_of(tables["runs"], leave_out=()),
        statuses=_statuses(runs),
        claims=_claims(claims[~claims["verdict"].isin(NOT_JUDGED)]),
        waiting=_claims(_merged(claims[claims["verdict"].isin(NOT_JUDGED)])),
        verdicts=_verdict_counts(claims),
        papers=[_paper(key, tables, figures, tier) for key in papers],
        validation=_shown(tables["validation"], "validation"),
        failures=tables["failures"].to_dict("records"),
        config=config["files"],
        command=command_for(None, tier),
    )


def _there(path: Path, missing: list[str]) -> Path | None:
    if path.is_file():
        return path
    missing.append(f"{path} does not exist")
    return None


def _read(path: Path, missing: list[str], columns: list[str] | None = None) -> pd.DataFrame:
    """A table's file; an empty frame when it is missing or unreadable, which is then said."""
    empty = pd.DataFrame(columns=columns or [])
    if _there(path, missing) is None:
        return empty
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        missing.append(f"{path} cannot be read: {error}")
        return empty


def _figures(index: Path, missing: list[str]) -> list[dict[str, Any]]:
    """The figures of the index with their SVG and data."""
    if _there(index, missing) is None:
        return []
    drawn = []
    for entry in json.loads(index.read_text(encoding="utf-8")):
        prefix = f"{entry['paper']}-{entry['name']}"
        try:
            svg = inline_svg(Path(entry["files"]["svg"]), entry["alt"], prefix)
            data = pd.read_csv(entry["files"]["csv"])
        except (OSError, ValueError) as error:
            missing.append(f"figure {prefix}: {error}")
            continue
        drawn.append(entry | {"svg": svg, "anchor": prefix, "data": table_of(data, most_rows=60)})
    return drawn


def _paper(
    key: str, tables: dict[str, pd.DataFrame], figures: list[dict[str, Any]], tier: str
) -> dict[str, Any]:
    paper = paper_of(key)
    shown = []
    for name in PAPER_TABLES:
        table = tables[name]
        own = table[table["paper"] == key] if "paper" in table else table
        # a table for each kind of evidence: they share no column on the page
        for evidence in [kind for kind in EVIDENCE if len(own) and (own["evidence"] == kind).any()]:
            shown.append(_shown(own[own["evidence"] == evidence], name, evidence))
    return {
        "key": key,
        "title": paper.title,
        "address": paper.address,
        "figures": [figure for figure in figures if figure["paper"] == key],
        "tables": shown,
        "command": command_for(key, tier),
    }


def _shown(table: pd.DataFrame, name: str, evidence: str = "") -> dict[str, Any]:
    title, note = TITLES[name]
    title += f", {evidence}" if evidence else ""
    return {"name": name, "title": title, "note": note, "table": table_of(table), "rows": len(table)}


def _claims(claims: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for row in claims.to_dict("records"):
        kind, mark = VERDICT_MARKS.get(row["verdict"], ("idle", ""))
        ours = number(row["ours"])
        if pd.notna(row["ci_low"]) and row["ci_low"] != row["ci_high"]:
            ours += f" ({number(row['ci_low'])} to {number(row['ci_high'])})"
        rows.append(
            {name: text(row[name]) for name in COLUMNS}
            | {"kind": kind, "mark": mark, "ours": ours, "key": row["paper"]}
        )
    return rows


def _merged(claims: pd.DataFrame) -> pd.DataFrame:
    """Claims that wait for the same thing, as one row for all their published numbers."""
    keys = ["paper", "statement", "verdict", "reason", "command"]
    rows = []
    for _, group in claims.groupby(keys, sort=False, dropna=False):
        first = group.iloc[0].to_dict()
        if len(group) > 1:
            first["claim_id"] = str(first["claim_id"]).split("/")[0]
            for name in ("published", "source"):
                first[name] = "; ".join(dict.fromkeys(group[name].dropna())) or None
        rows.append(first)
    return pd.DataFrame(rows, columns=COLUMNS)


def _verdict_counts(claims: pd.DataFrame) -> list[tuple[str, str, str, int]]:
    counts = Counter(claims["verdict"].dropna())
    return [(name, *VERDICT_MARKS[name], counts[name]) for name in VERDICTS if counts[name]]


def _statuses(runs: pd.DataFrame) -> list[tuple[str, int]]:
    return sorted(Counter(runs["status"].dropna()).items())


def _dates(runs: pd.DataFrame) -> str:
    days = sorted({str(start)[:10] for start in runs["started_at"].dropna()})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""


def _machines(runs: pd.DataFrame) -> list[list[tuple[str, str]]]:
    """What the runs ran on: one list of facts for each distinct machine and software."""
    known = runs[runs["cpu"].notna()]
    found = []
    for row in known[list(MACHINE)].drop_duplicates().to_dict("records"):
        if pd.notna(row["memory_bytes"]):
            row["memory_bytes"] = row["memory_bytes"] / 1e9
        found.append([(label, text(row[name])) for name, label in MACHINE.items() if pd.notna(row[name])])
    return found


def _calibration(results_dir: Path) -> str:
    """When and on what the time model was calibrated, or an empty string."""
    path = results_dir / "calibration" / "this-host.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return f"{content.get('date', 'no date')}: {content.get('hardware', 'no hardware named')}"
    except (OSError, yaml.YAMLError, AttributeError):
        return ""


def _config(configfile: Path | None, missing: list[str]) -> dict[str, Any]:
    """The tier's name, and the text of its file and of the experiments that it names."""
    if configfile is None or _there(configfile, missing) is None:
        return {"tier": "default", "files": []}
    source = configfile.read_text(encoding="utf-8")
    try:
        content = yaml.safe_load(source)
    except yaml.YAMLError as error:
        missing.append(f"{configfile} is not YAML: {error}")
        content = None
    content = content if isinstance(content, dict) else {}
    files = [(configfile.name, source)]
    for name in content.get("experiments") or []:
        path = configfile.parent / "experiments" / f"{name}.yaml"
        if path.is_file():
            files.append((f"experiments/{path.name}", path.read_text(encoding="utf-8")))
    return {"tier": str(content.get("tier", "default")), "files": files}
