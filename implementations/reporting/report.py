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

from implementations.errors import UserError
from implementations.point import EVIDENCE
from implementations.reporting import (
    benchrows,
    layerwise_findings,
    spark,
    spark_findings,
    subnets,
    suite,
    validation,
)
from implementations.reporting import plans as planning
from implementations.reporting.claims import CONFIG, load_published
from implementations.reporting.columns import as_runs
from implementations.reporting.files import DamagedTable, read_table, write_whole
from implementations.reporting.findings import findings
from implementations.reporting.html import brief, inline_svg, number, percent, table_of, text
from implementations.reporting.losses import sentence
from implementations.reporting.pagetables import ON_PAGE, in_words
from implementations.reporting.papers import paper_of
from implementations.reporting.tables import TITLES, command_for
from implementations.reporting.verdicts import COLUMNS, VERDICTS
from implementations.reporting.wordtable import corpus_name

# Tables in the order of the page; the others have sections of their own.
PAPER_TABLES = ("plans", "search", "plan", "prediction", "degrees", "equivalence", "exactness", "targets", "times",
                "crossings", "width", "memory", "speedup", "time_split", "spark_exactness", "spark_speedup",
                "spark_executions", "spark_memory", "spark_async", "accuracy", "volume", "tuning",
                *suite.TITLES)  # fmt: skip
# Parts of a paper's section for figures beside its main ones, and their headings.
SECTIONS = {
    "images": "The same on images",
    "elsewhere": "The same on other networks and data, and as published",
    "time": "Real ranks: samples per second and where the time went",
    "scale": "Many workers: what simulating them costs, and how far the time model has them scale",
}
# The paper's own tables stand under ours.
KINDS = (*EVIDENCE, "published")
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
# Columns of published numbers that tell them apart beside workers and period.
CONDITIONS = ("model", "strategy", "test_set", "optimizer", "init", "schedule", "minibatch", "reduce")
# Of the table of word and frame errors, on the page.
WORD_COLUMNS = [
    "optimizer", "init", "schedule", "workers", "sync_period", "lr", "word_errors", "lost", "printed", "frame_errors",
    "n", "diverged", "settings", "minibatch", "max_change_rule", "mixing", "content", "lr_scaling", "momentum",
    "method", "model", "data_size", "epochs", "base_lr", "edits", "own_of_worker_0", "drift", "reduction",
    "ng_update_period", "spread", "command",
]  # fmt: skip
SHORT_UNITS = ("x", "%", "min", "s", "MB", "GB", "GiB", "images/s")
BENCHMARK_COLUMNS = ["benchmark", "name", "ranks", "ours_s", "reference_s", "ratio", "ratio_low", "ratio_high", "goal",
                     "at_most"]  # fmt: skip
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
    runs = as_runs(_read(results_dir / "runs.parquet", missing))
    claims = _read(reports_dir / "tables" / "claims.parquet", missing, COLUMNS)
    tables = {name: _read(reports_dir / "tables" / f"{name}.parquet", missing) for name in TITLES}
    figures = _figures(reports_dir / "figures" / "figures.json", missing)
    papers = {*runs["paper"].dropna(), *claims["paper"].dropna(), *(figure["paper"] for figure in figures)}
    papers = [suite.PAPER] * bool(papers) + sorted(papers - {suite.PAPER})
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
        claims=_claims(claims[_is_shown(claims)], _published(configfile)),
        waiting=_waiting(claims[~_is_shown(claims)]),
        verdicts=_verdict_counts(claims),
        papers=[_paper(key, tables, figures, tier) for key in papers],
        validation=_validation(tables["validation"]),
        benchmarks=_benchmarks(results_dir / benchrows.FILE, missing),
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
        return read_table(path)
    except DamagedTable as error:
        missing.append(str(error))
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
        shown = table_of(in_words(data, entry["paper"]), most_rows=60)
        drawn.append(entry | {"svg": svg, "anchor": prefix, "data": shown})
    return drawn


def _paper(
    key: str, tables: dict[str, pd.DataFrame], figures: list[dict[str, Any]], tier: str
) -> dict[str, Any]:
    paper = paper_of(key)
    shown = []
    for name in PAPER_TABLES:
        table = tables[name]
        own = _of_paper(table, key)
        # a table for each kind of evidence: they share no column on the page
        for evidence in [kind for kind in KINDS if len(own) and (own["evidence"] == kind).any()]:
            rows = own[own["evidence"] == evidence]
            rows = in_words(ON_PAGE[name](rows) if name in ON_PAGE else rows, key)
            shown.append(_shown(rows, name, evidence))
    own_figures = [figure for figure in figures if figure["paper"] == key]
    return {
        "key": key,
        "title": paper.title,
        "address": paper.address,
        "sentences": _findings(key, {name: _of_paper(table, key) for name, table in tables.items()}),
        "figures": [figure for figure in own_figures if not figure.get("section")],
        "tables": shown,
        "sections": [
            {"key": name, "title": title, "figures": figures}
            for name, title in SECTIONS.items()
            if (figures := [figure for figure in own_figures if figure.get("section") == name])
        ],
        "speech": _speech(_of_paper(tables["wer"], key), own_figures),
        "lost": _lost(*(_of_paper(tables[name], key) for name in ("fitted", "loss")), own_figures),
        "command": command_for(key, tier),
    }


def _findings(key: str, tables: dict[str, pd.DataFrame]) -> list[str]:
    """What a paper's tables say, in sentences."""
    if key == subnets.PAPER:
        return findings(*(tables[name] for name in ("targets", "width", "crossings")))
    if key == suite.PAPER:
        return suite.sentences(tables)
    if key == spark.PAPER:
        return spark_findings.findings(tables)
    return layerwise_findings.findings(tables) if key == planning.PAPER else []


def _of_paper(table: pd.DataFrame, key: str) -> pd.DataFrame:
    return table[table["paper"] == key] if "paper" in table else table


def _lost(reading: pd.DataFrame, split: pd.DataFrame, figures: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The part of a paper on its lost efficiency: one sentence, a figure, and a table for each kind of evidence."""
    if not len(reading):
        return None
    shown = [_shown(reading, "fitted", "fitted")]
    for evidence, rows in split.groupby("evidence", sort=False) if len(split) else ():
        shown.append(_shown(rows, "loss", str(evidence)))
    return {
        "sentence": sentence(reading, split),
        "figures": [figure for figure in figures if figure.get("section") == "loss"],
        "tables": shown,
    }


def _speech(words: pd.DataFrame, figures: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The part of a paper on speech: its corpora in words, figures, and a table for each corpus and evidence."""
    figures = [figure for figure in figures if figure.get("section") == "speech"]
    if not len(words) and not figures:
        return None
    parts = []
    words = words.sort_values("data_kind", ascending=False, kind="stable")  # real recordings first
    for keys, rows in words.groupby(["data_kind", "dataset", "evidence"], sort=False):
        part = _shown(_on_page(rows), "wer")
        parts.append(part | {"title": f"{part['title']}, {corpus_name(keys[1], keys[0])}, {keys[2]}"})
    corpora = words[["data_kind", "dataset"]].drop_duplicates().to_dict("records")
    return {
        "corpora": [corpus_name(row["dataset"], row["data_kind"]) for row in corpora],
        "generated": [row["dataset"] for row in corpora if row["data_kind"] == "generated"],
        "figures": figures,
        "tables": parts,
    }


def _on_page(words: pd.DataFrame) -> pd.DataFrame:
    """The table of word and frame errors with each rate and its interval in one cell, in %."""

    def rate(row: dict[str, Any], name: str) -> str | None:
        if pd.isna(row[name]):
            return None
        low, high = percent(row[f"{name}_low"]), percent(row[f"{name}_high"])
        return percent(row[name]) + (f" ({low} to {high})" if low != high else "")

    def several(row: dict[str, Any], *names: str) -> str | None:
        return (
            " / ".join(percent(row[name]) for name in names) if any(pd.notna(row[n]) for n in names) else None
        )

    rows = words.to_dict("records")
    kinds = ("substitutions", "deletions", "insertions")
    return words.assign(
        word_errors=[rate(row, "wer") for row in rows],
        frame_errors=[rate(row, "frame_error") for row in rows],
        lost=[rate(row, "wer_minus_one_worker") for row in rows],
        edits=[
            " / ".join(number(round(row[n], 1)) for n in kinds) if pd.notna(row["wer"]) else None
            for row in rows
        ],
        own_of_worker_0=[several(row, "rank0_wer", "rank0_frame_error") for row in rows],
        printed=[several(row, "published_swb", "published_callhome") for row in rows],
    )[WORD_COLUMNS]


def _shown(table: pd.DataFrame, name: str, evidence: str = "") -> dict[str, Any]:
    title, note = TITLES[name]
    title += f", {evidence}" if evidence else ""
    return {"name": name, "title": title, "note": note, "table": table_of(table), "rows": len(table)}


def _validation(table: pd.DataFrame) -> dict[str, Any]:
    """The time model against measurement: in words, over all points and parts of them, and point by point."""
    if not len(table):
        return _shown(table, "validation") | {"said": [], "summary": None}
    return _shown(ON_PAGE["validation"](table), "validation") | {
        "said": validation.sentences(table),
        "summary": table_of(validation.summary(table)),
    }


def _is_shown(claims: pd.DataFrame) -> pd.Series:
    """Which lines have a number of ours: those that were judged, and those that stand beside another condition's."""
    return ~claims["verdict"].isin(NOT_JUDGED) | claims["ours"].notna()


def _claims(claims: pd.DataFrame, published: pd.DataFrame) -> list[dict[str, Any]]:
    """Judged claims, each once, with a line for each of its published numbers, kinds of evidence and data sets.

    What all lines of a claim give as their reason is said once.
    """
    found = []
    for claim_id, rows in claims.groupby(_claim_ids(claims), sort=False):
        reasons = [text(reason).split("; ") for reason in rows["reason"]]
        shared = (
            [part for part in reasons[0] if all(part in other for other in reasons)] if len(rows) > 1 else []
        )
        keys = [name.partition("/")[2] for name in rows["claim_id"]]
        conditions = _conditions(
            published.loc[[key for key in dict.fromkeys(keys) if key in published.index]]
        )
        lines = []
        for row, parts, key in zip(rows.to_dict("records"), reasons, keys, strict=True):
            kind, mark = VERDICT_MARKS.get(row["verdict"], ("idle", ""))
            lines.append(
                {name: text(row[name]) for name in ("evidence", "verdict")}
                | {"condition": conditions.get(key, key or "as stated"), "kind": kind, "mark": mark}
                | {"dataset": "" if pd.isna(row["dataset"]) else row["dataset"]}
                | _values(row)
                | {"reason": "; ".join(part for part in parts if part not in shared)}
            )
        found.append(
            {name: text(rows.iloc[0][name]) for name in ("paper", "statement", "command")}
            | {"claim_id": claim_id, "lines": lines, "note": "; ".join(shared)}
            | {"source": "; ".join(dict.fromkeys(rows["source"].dropna())).rstrip(".")}
        )
    return found


def _values(row: dict[str, Any]) -> dict[str, str]:
    """Published number, ours and its interval as text, with their unit."""
    unit = text(row["unit"])
    # a difference, a ratio or a correlation has a unit of its own, which the published numbers do not share
    short = unit if unit in SHORT_UNITS else ""
    published = "; ".join(_with_unit(value, short) for value in text(row["published"]).split("; "))
    interval = ""
    if pd.notna(row["ci_low"]) and row["ci_low"] != row["ci_high"]:
        interval = f"{brief(row['ci_low'])} to {brief(row['ci_high'])}"
    return {
        "published": published,
        "ours": _with_unit(brief(row["ours"]), short),
        "quantity": "" if short or unit == "-" else unit,
        "interval": interval or "-",
    }


def _with_unit(value: str, unit: str) -> str:
    return f"{value}\N{NO-BREAK SPACE}{unit}" if unit and value != "-" else value


def _published(configfile: Path | None) -> pd.DataFrame:
    """The published numbers by id; none where they cannot be read."""
    folder = configfile.parent if configfile and (configfile.parent / "published").is_dir() else CONFIG
    try:
        return load_published(folder)
    except (OSError, ValueError, UserError):
        return pd.DataFrame()


def _conditions(published: pd.DataFrame) -> dict[str, str]:
    """Published number's id -> what it was obtained with, in words: workers and period, and what else differs."""
    differ = [name for name in CONDITIONS if name in published and published[name].dropna().nunique() > 1]
    found = {}
    for key, row in published.iterrows():
        workers, period = row.get("workers"), row.get("sync_period")
        parts = [f"{int(workers)} worker{'s' if workers > 1 else ''}"] if pd.notna(workers) else []
        parts += [f"{paper_of(str(row.get('paper'))).period}={int(period)}"] if pd.notna(period) else []
        for name in differ:
            if pd.notna(row[name]):
                parts.append(
                    f"minibatch {int(row[name])}" if name == "minibatch" else str(row[name]).replace("_", "-")
                )
        if parts:
            found[str(key)] = ", ".join(parts)
    return found


def _waiting(claims: pd.DataFrame) -> list[dict[str, Any]]:
    """Claims that were not judged, a line each with the number of published values that wait, by what they wait for."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for (claim_id, verdict), rows in claims.groupby([_claim_ids(claims), "verdict"], sort=False):
        reasons = list(dict.fromkeys(map(text, rows["reason"])))
        reason = reasons[0] + (f" (and {len(reasons) - 1} like it)" if len(reasons) > 1 else "")
        first = {name: text(rows.iloc[0][name]) for name in ("paper", "statement")}
        place = groups.setdefault((verdict, reason, text(rows.iloc[0]["command"])), [])
        place.append(first | {"claim_id": claim_id, "count": len(rows)})
    return [
        dict(zip(("verdict", "reason", "command"), key, strict=True))
        | dict(zip(("kind", "mark"), VERDICT_MARKS.get(key[0], ("idle", "")), strict=True))
        | {"lines": lines}
        for key, lines in groups.items()
    ]


def _claim_ids(claims: pd.DataFrame) -> pd.Series:
    """The claim of each row: its id without that of the published number."""
    return claims["claim_id"].astype("string").str.split("/").str[0]


def _benchmarks(path: Path, missing: list[str]) -> dict[str, Any] | None:
    """The table of benchmarks, where they were run: against what each was held, and whether its goal was met."""
    if not path.is_file():
        return None
    try:
        rows = pd.DataFrame(benchrows.read(path)).reindex(columns=BENCHMARK_COLUMNS)
        rows = rows.astype(
            {name: float for name in BENCHMARK_COLUMNS if name.endswith("_s") or "ratio" in name}
        )
    except UserError as error:
        missing.append(str(error))
        return None
    except (ValueError, TypeError) as error:
        missing.append(f"{path} cannot be read: {error}")
        return None
    most = rows.pop("at_most").map(lambda flag: flag is True)
    goals = [float(goal) if pd.notna(goal) else None for goal in rows["goal"]]
    rows["goal"] = [
        None if goal is None else f"{'at most' if upper else 'at least'} {goal:g}"
        for goal, upper in zip(goals, most, strict=True)
    ]
    rows["met"] = [
        None if goal is None else ratio <= goal if upper else ratio >= goal
        for goal, upper, ratio in zip(goals, most, rows["ratio"], strict=True)
    ]
    rows["ranks"] = rows["ranks"].astype("Int64")
    rows["benchmark"] = [text(name).replace("_", " ") for name in rows["benchmark"]]
    return {"table": table_of(rows), "rows": len(rows)}


def _verdict_counts(claims: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    """Each verdict that occurs, its look, and how many lines have it; how many of them are projections."""
    counts = Counter(claims["verdict"].dropna())
    projected = Counter(claims.loc[(claims["evidence"] == "projected").fillna(False), "verdict"])
    return [
        (
            name,
            *VERDICT_MARKS[name],
            f"{counts[name]}" + (f" ({projected[name]} projected)" if projected[name] else ""),
        )
        for name in VERDICTS
        if counts[name]
    ]


def _statuses(runs: pd.DataFrame) -> list[tuple[str, int]]:
    return sorted(Counter(runs["status"].dropna()).items())


def _dates(runs: pd.DataFrame) -> str:
    days = sorted({str(start)[:10] for start in runs["started_at"].dropna()})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""


def _machines(runs: pd.DataFrame) -> list[list[tuple[str, str]]]:
    """What the runs ran on: one list of facts for each distinct machine and software.

    Runs that know less (one process loads no MPI) are not another machine.
    """
    known = runs[runs["cpu"].notna()]
    found = []
    for row in known[list(MACHINE)].drop_duplicates().to_dict("records"):
        if pd.notna(row["memory_bytes"]):
            row["memory_bytes"] = row["memory_bytes"] / 1e9
        found.append([(label, text(row[name])) for name, label in MACHINE.items() if pd.notna(row[name])])
    return [facts for facts in found if not any(set(facts) < set(other) for other in found)]


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
