"""Verdicts: each claim held against the results, by the rules that config/schemas/claims.schema.yaml states.

Kinds of evidence are never mixed, nor are data sets (identities aside): a claim that leaves them open is judged once
for each. A projection is at best ``consistent (projected)``, unless it only counts bytes; generated speech at best
``shape holds``; a fitted number gets no verdict of agreement at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations.point import EVIDENCE
from implementations.reporting.claims import CONFIG, Claim, load_claims, load_published
from implementations.reporting.columns import as_runs, is_speech
from implementations.reporting.evaluation import NothingToJudge, Outcome, Task, is_in
from implementations.reporting.files import write_table
from implementations.reporting.grouping import command_for
from implementations.reporting.layerwise import predictions
from implementations.reporting.plans import as_plans, as_searches, described, layers_of, links
from implementations.reporting.rows import BROKEN, ENDED, as_timings, join_timings
from implementations.reporting.spark import as_projections, exactness_rows
from implementations.reporting.utterances import Utterances, as_utterances

COLUMNS = [
    "claim_id", "paper", "source", "statement", "published", "unit", "ours", "ci_low", "ci_high", "evidence", "dataset",
    "verdict", "reason", "command",
]  # fmt: skip
VERDICTS = (
    "reproduced", "shape holds", "consistent (projected)", "inconclusive", "not reproduced", "not comparable here",
    "not run",
)  # fmt: skip


# why a projection that fails says less about the paper than about itself
BLIND = (
    "a blind projection from datasheets: the disagreement speaks of the model, "
    "or of losses that are not communication"
)


@dataclass(frozen=True)
class Results:
    """All that claims are judged over, by what a claim's ``over`` calls it, and the utterances of the runs."""

    tables: Mapping[str, pd.DataFrame]
    utterances: Utterances

    @property
    def runs(self) -> pd.DataFrame:
        """The records."""
        return self.tables["records"]


def results_of(
    runs: pd.DataFrame,
    timings: pd.DataFrame | None = None,
    utterances: pd.DataFrame | None = None,
    plans: pd.DataFrame | None = None,
    searches: pd.DataFrame | None = None,
    networks: Mapping[str, float] | None = None,
    projections: pd.DataFrame | str | Path | None = None,
    exactness: pd.DataFrame | str | Path | None = None,
) -> Results:
    """The tables that claims are judged over. Timings get their records' columns. ``networks``: of ``plans.links``.

    ``projections`` and ``exactness``: ``spark.parquet`` and ``exactness.parquet``, or their rows.
    """
    plans = described(as_plans(plans), networks)
    tables = {
        "records": runs,
        "timings": join_timings(timings, runs),
        "plans": plans,
        "layers": layers_of(plans),
        "searches": as_searches(searches),
        "predictions": predictions(runs, plans),
        "projections": as_projections(projections),
        "exactness": exactness_rows(exactness).assign(status="ok"),
    }
    return Results(tables, Utterances(as_utterances(utterances)))


def make_claims(
    runs: pd.DataFrame | str | Path | None,
    timings: pd.DataFrame | str | Path | None,
    out: str | Path = "reports/tables/claims.csv",
    config_dir: str | Path = CONFIG,
    utterances: pd.DataFrame | str | Path | None = None,
    tier: str | None = None,
    plans: pd.DataFrame | str | Path | None = None,
    searches: pd.DataFrame | str | Path | None = None,
    projections: pd.DataFrame | str | Path | None = None,
    exactness: pd.DataFrame | str | Path | None = None,
) -> pd.DataFrame:
    """Judge every claim of ``config_dir`` and write ``out`` and a parquet beside it.

    ``utterances``: ``utterances.parquet``, or its rows; without it no claim can be judged over speakers. ``tier``: of
    the runs; what was judged names the command of that tier, as another would give other numbers. ``plans``,
    ``searches``: ``plans.parquet`` and ``search.parquet``, or their rows, and so ``projections`` and ``exactness``.
    """
    runs, timings = as_runs(runs), as_timings(timings)
    claims, published = load_claims(config_dir), load_published(config_dir)
    table = judge_all(
        claims,
        published,
        runs,
        timings,
        as_utterances(utterances),
        plans,
        searches,
        links(config_dir),
        projections,
        exactness,
    )
    if tier:
        with_it = {claim.id for claim in claims if tier in claim.body["needs"]["tiers"]}
        own = table["claim_id"].str.partition("/")[0].isin(with_it) | table["ours"].notna()
        table.loc[own, "command"] = [command_for(paper, tier) for paper in table.loc[own, "paper"]]
    write_table(table, Path(out))
    return table


def judge_all(
    claims: Iterable[Claim],
    published: pd.DataFrame,
    runs: pd.DataFrame,
    timings: pd.DataFrame | None,
    utterances: pd.DataFrame | None = None,
    plans: pd.DataFrame | str | Path | None = None,
    searches: pd.DataFrame | str | Path | None = None,
    networks: Mapping[str, float] | None = None,
    projections: pd.DataFrame | str | Path | None = None,
    exactness: pd.DataFrame | str | Path | None = None,
) -> pd.DataFrame:
    """One row for each claim (each published number of a ``published_value`` claim), kind of evidence and data set."""
    results = results_of(
        runs, timings, utterances, as_plans(plans), as_searches(searches), networks, projections, exactness
    )
    rows = [row for claim in claims for row in judge(claim, published, results)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    numbers = ["ours", "ci_low", "ci_high"]
    return table.astype({name: float if name in numbers else "string" for name in COLUMNS})


def judge(claim: Claim, published: pd.DataFrame, results: Results) -> list[dict[str, Any]]:
    """The rows of one claim."""
    ids = claim.published_ids
    per_number = claim.body["evaluate"]["kind"] == "published_value"
    rows = []
    for key in (ids or [None]) if per_number else [None]:
        base = _base_row(
            claim, published, [key] if key else ids, alone=len(ids) < 2 or not per_number, key=key
        )
        number = published.loc[key] if key in published.index else None
        if per_number and number is None:
            rows.append(base | {"verdict": "not run", "reason": f"no published number with id {key!r}"})
            continue
        if per_number and number.get("role") == "input":
            why = "the published number is an input to the projection"
            rows.append(base | {"verdict": "not comparable here", "reason": why})
            continue
        rows += [base | row for row in _judge_each_part(claim, number, results)]
    return rows


def _base_row(
    claim: Claim, published: pd.DataFrame, ids: list[str], alone: bool, key: str | None
) -> dict[str, Any]:
    known = published.loc[[name for name in ids if name in published.index]]
    units = list(dict.fromkeys(known["unit"].dropna())) if "unit" in known else []
    places = [_place(row) for _, row in known.iterrows()]
    text = claim.body["source"].get("text")
    return {
        "claim_id": claim.id if alone else f"{claim.id}/{key}",
        "paper": claim.paper,
        "source": "; ".join(dict.fromkeys([place for place in places if place] + ([text] if text else []))),
        "statement": claim.body["statement"],
        "published": "; ".join(f"{value:.6g}" for value in known.get("value", [])) or None,
        "unit": units[0] if len(units) == 1 else None,
        "ours": np.nan,
        "ci_low": np.nan,
        "ci_high": np.nan,
        "evidence": None,
        "dataset": None,
        "command": claim.body["command"],
    }


def _place(row: pd.Series) -> str:
    """Where in the paper a published number stands."""
    parts = [row.get("version"), row.get("table_or_figure")]
    return " ".join(str(part) for part in parts if isinstance(part, str) and part)


def _judge_each_part(claim: Claim, number: pd.Series | None, results: Results) -> list[dict[str, Any]]:
    """A row for each kind of evidence and data set that the claim has rows of."""
    body, runs = claim.body, results.runs
    if body["needs"].get("unavailable"):
        return [{"verdict": "not comparable here", "reason": body["needs"]["unavailable"]}]
    task = Task(claim, number, results.tables[body["evaluate"]["over"]], results.utterances)
    rows, lacks = [], []
    try:
        parts = _parts(task)
    except NothingToJudge as lack:
        parts, lacks = [], [str(lack)]
    for part in parts:
        if part["evidence"] == ["fitted"]:
            why = "constants were fitted to the numbers beside it: shown, never judged"
            rows.append(_told(part) | {"verdict": "not comparable here", "reason": why})
            continue
        try:
            outcome = task.only(part).evaluate()
        except NothingToJudge as lack:
            lacks.append(str(lack))
            continue
        rows.append(_row(task, outcome, part, _broken_note(task, runs, part), _is_generated(runs, part)))
    if rows:
        return rows
    for name, what in (("evidence", "kind of evidence"), ("dataset", "data set")):
        if parts and _compares(body["evaluate"], name):
            why = f"would set one {what} against another, which never mix"
            return [{"verdict": "not comparable here", "reason": why}]
    if body["needs"].get("elsewhere"):
        return [{"verdict": "not comparable here", "reason": body["needs"]["elsewhere"]}]
    why = _why_not_run(claim, task, runs, "; ".join(dict.fromkeys(lacks)))
    return [{"verdict": "not run", "reason": why}]


def _parts(task: Task) -> list[dict[str, list[Any]]]:
    """What is judged apart: the kinds of evidence and the data sets of each part, mostly one of each.

    An identity holds for all data at once, and where its sides are of different kinds of evidence by name, for those.
    """
    groups = task.groups()
    found = pd.concat([group.reindex(columns=["evidence", "dataset"]) for group in groups]).astype(object)
    found = found.where(found.notna(), None).drop_duplicates()
    kinds = [kind for kind in EVIDENCE if (found["evidence"] == kind).any()]
    if task.how["kind"] == "exact":
        together = [kinds] if _compares(task.how, "evidence") else [[kind] for kind in kinds]
        pairs = [(some, found.loc[found["evidence"].isin(some), "dataset"]) for some in together]
        return [{"evidence": some, "dataset": list(dict.fromkeys(names))} for some, names in pairs]
    return [
        {"evidence": [kind], "dataset": [name]}
        for kind in kinds
        for name in sorted(set(found.loc[found["evidence"] == kind, "dataset"]), key=str)
    ]


def _told(part: dict[str, list[Any]]) -> dict[str, Any]:
    """The cells that say which part a row is about."""
    names = [str(name) for name in part["dataset"] if name is not None]
    return {"evidence": " and ".join(part["evidence"]), "dataset": ", ".join(names) or None}


def _compares(evaluate: dict[str, Any], column: str) -> bool:
    """Whether the claim's groups ask for different values of a column by name."""
    others = [evaluate.get("against", {}), *(case["select"] for case in evaluate.get("cases", []))]
    own = evaluate["select"].get(column)
    asked = {str(group.get(column, own)) for group in others}
    return len(asked | {str(own)} if evaluate.get("against") else asked) > 1


def _is_generated(runs: pd.DataFrame, part: dict[str, list[Any]]) -> bool:
    """Whether a part is of generated speech; what an identity covers beside it does not count."""
    own = runs[is_in(runs, part)]
    return bool(len(own)) and bool((own["data_kind"] == "generated").fillna(False).all())


def _row(
    task: Task, outcome: Outcome, part: dict[str, list[Any]], note: str, generated: bool
) -> dict[str, Any]:
    claim, evidence = task.claim, part["evidence"]
    needs, modelled = claim.body["needs"], "projected" in evidence and not task.counts_only
    notes = [outcome.note, outcome.rule, "on generated speech" if generated else "", note]
    if needs.get("elsewhere"):
        verdict, notes = "not comparable here", [needs["elsewhere"], outcome.note, *notes[2:]]
    elif outcome.holds is None:
        verdict = "inconclusive"
    elif outcome.holds:
        verdict = "consistent (projected)" if modelled else claim.body["holds_as"]
        # only a projection is called so: a claim meant for one that other evidence answers shows a shape
        if verdict == "consistent (projected)" and "projected" not in evidence:
            verdict = "shape holds"
        # a stand-in is never the paper's own quantity; an identity does not care
        if generated and verdict == "reproduced" and claim.body["evaluate"]["kind"] != "exact":
            verdict = "shape holds"
    else:
        verdict = "not reproduced"
        if modelled:
            notes.append(BLIND)
    row = _told(part) | {
        "ours": outcome.ours,
        "ci_low": outcome.low,
        "ci_high": outcome.high,
        "verdict": verdict,
        "reason": "; ".join(part for part in notes if part),
    }
    return row | ({"unit": outcome.unit} if outcome.unit else {})


def _why_not_run(claim: Claim, task: Task, runs: pd.DataFrame, lack: str) -> str:
    """Why a claim has nothing to judge: its runs failed, or were not part of what ran."""
    broken = _broken_note(task, runs)
    if broken:
        return broken
    if claim.body["needs"].get("speech") and not is_speech(runs).any():
        return "needs the speech task, which these results do not have"
    return f"{lack or 'no results'}; tiers that have it: {', '.join(claim.body['needs']['tiers'])}"


def _broken_note(task: Task, runs: pd.DataFrame, part: dict[str, list[Any]] | None = None) -> str:
    """What failed among the runs that the claim asks for (of one part), or an empty string."""
    asked = task.asked(runs)
    if part is not None:
        asked = asked[is_in(asked, part)]
    asked = asked.drop_duplicates("run_id")
    broken = asked[asked["status"].isin(BROKEN)]
    diverged = asked[(asked["status"] == "diverged").fillna(False).astype(bool)]
    parts = []
    if len(broken):
        first = broken.iloc[0]
        log = f" (log: {first['log_path']})" if pd.notna(first["log_path"]) else ""
        reason = first["reason"] if pd.notna(first["reason"]) else "no reason given"
        parts.append(f"{len(broken)} of {len(asked)} runs {first['status']}: {reason}{log}")
    if len(diverged):
        value = task.how.get("diverged_as")
        parts.append(
            f"{len(diverged)} of {len(asked)} runs diverged, "
            + ("left out" if value is None else f"counted as {value:g}")
        )
    if task.resamples:
        ended = asked[asked["status"].isin(ENDED).fillna(False).astype(bool)]
        mute = sum(name not in task.utterances for name in ended["run_id"])
        parts += [f"{mute} of {len(asked)} runs without utterances, left out"] if mute else []
    return "; ".join(parts)
