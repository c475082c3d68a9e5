"""Verdicts: each claim held against the results, by the rules that config/schemas/claims.schema.yaml states.

Kinds of evidence are never mixed: a claim that leaves the kind open is judged once for each kind. A projection is at
best ``consistent (projected)``; a fitted number gets no verdict of agreement at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from implementations.point import EVIDENCE
from implementations.reporting.claims import CONFIG, Claim, load_claims, load_published
from implementations.reporting.columns import as_runs, types
from implementations.reporting.files import write_table
from implementations.reporting.rows import BROKEN, ENDED, as_timings, join_timings, matches, values_of
from implementations.reporting.statistics import (
    FEWEST_FOR_INTERVAL,
    Summary,
    bootstrap_interval,
    range_or_interval,
)

COLUMNS = [
    "claim_id", "paper", "source", "statement", "published", "unit", "ours", "ci_low", "ci_high", "evidence",
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
class Outcome:
    """What an evaluation found: our number, its interval and whether it lies in the allowed region."""

    ours: float
    low: float
    high: float
    holds: bool | None  # None: the interval covers both
    note: str
    unit: str = ""


class NothingToJudge(Exception):
    """The results have no rows for the claim; the message says why."""


def make_claims(
    runs: pd.DataFrame | str | Path | None,
    timings: pd.DataFrame | str | Path | None,
    out: str | Path = "reports/tables/claims.csv",
    config_dir: str | Path = CONFIG,
) -> pd.DataFrame:
    """Judge every claim of ``config_dir`` and write ``out`` and a parquet beside it."""
    runs, timings = as_runs(runs), as_timings(timings)
    table = judge_all(load_claims(config_dir), load_published(config_dir), runs, timings)
    write_table(table, Path(out))
    return table


def judge_all(
    claims: Iterable[Claim], published: pd.DataFrame, runs: pd.DataFrame, timings: pd.DataFrame | None
) -> pd.DataFrame:
    """One row for each claim (each published number of a ``published_value`` claim) and kind of evidence."""
    joined = join_timings(timings, runs)
    rows = [row for claim in claims for row in judge(claim, published, runs, joined)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    numbers = ["ours", "ci_low", "ci_high"]
    return table.astype({name: float if name in numbers else "string" for name in COLUMNS})


def judge(
    claim: Claim, published: pd.DataFrame, runs: pd.DataFrame, joined: pd.DataFrame
) -> list[dict[str, Any]]:
    """The rows of one claim. ``joined``: timings with their records' columns."""
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
        rows += [base | row for row in _judge_each_evidence(claim, number, runs, joined)]
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
        "command": claim.body["command"],
    }


def _place(row: pd.Series) -> str:
    """Where in the paper a published number stands."""
    parts = [row.get("version"), row.get("table_or_figure")]
    return " ".join(str(part) for part in parts if isinstance(part, str) and part)


def _judge_each_evidence(
    claim: Claim, number: pd.Series | None, runs: pd.DataFrame, joined: pd.DataFrame
) -> list[dict[str, Any]]:
    body = claim.body
    if body["needs"].get("unavailable"):
        return [{"verdict": "not comparable here", "reason": body["needs"]["unavailable"]}]
    task = _Task(claim, number, runs if body["evaluate"]["over"] == "records" else joined)
    try:
        groups = task.groups()
    except NothingToJudge as lack:
        return [{"verdict": "not run", "reason": _why_not_run(claim, task, runs, str(lack))}]
    kinds = [kind for kind in EVIDENCE if any((group["evidence"] == kind).any() for group in groups)]
    together = body["evaluate"]["kind"] == "exact" and _compares_kinds(body["evaluate"])
    rows, lacks = [], []
    for kind in [None] if together else kinds:
        label = " and ".join(kinds) if kind is None else kind
        if kind == "fitted":
            why = "constants were fitted to the numbers beside it: shown, never judged"
            rows.append({"evidence": kind, "verdict": "not comparable here", "reason": why})
            continue
        try:
            outcome = task.only(kind).evaluate()
        except NothingToJudge as lack:
            lacks.append(str(lack))
            continue
        rows.append(_row(claim, outcome, label, _broken_note(task, runs, kind)))
    if rows:
        return rows
    if _compares_kinds(body["evaluate"]):
        why = "would set one kind of evidence against another, which never mix"
        return [{"verdict": "not comparable here", "reason": why}]
    return [
        {"verdict": "not run", "reason": _why_not_run(claim, task, runs, "; ".join(dict.fromkeys(lacks)))}
    ]


def _compares_kinds(evaluate: dict[str, Any]) -> bool:
    """Whether the claim's groups ask for different kinds of evidence by name."""
    others = [evaluate.get("against", {}), *(case["select"] for case in evaluate.get("cases", []))]
    asked = {str(group.get("evidence", evaluate["select"].get("evidence"))) for group in others}
    return len(asked | {str(evaluate["select"].get("evidence"))} if evaluate.get("against") else asked) > 1


def _row(claim: Claim, outcome: Outcome, evidence: str, note: str) -> dict[str, Any]:
    if outcome.holds is None:
        verdict = "inconclusive"
    elif outcome.holds:
        verdict = "consistent (projected)" if "projected" in evidence else claim.body["holds_as"]
        # only a projection is called so: a claim meant for one that other evidence answers shows a shape
        if verdict == "consistent (projected)" and "projected" not in evidence:
            verdict = "shape holds"
    else:
        verdict = "not reproduced"
        if "projected" in evidence:
            note = "; ".join(part for part in (note, BLIND) if part)
    row = {
        "ours": outcome.ours,
        "ci_low": outcome.low,
        "ci_high": outcome.high,
        "evidence": evidence,
        "verdict": verdict,
        "reason": "; ".join(part for part in (outcome.note, note) if part),
    }
    return row | ({"unit": outcome.unit} if outcome.unit else {})


def _why_not_run(claim: Claim, task: _Task, runs: pd.DataFrame, lack: str) -> str:
    """Why a claim has nothing to judge: its runs failed, or were not part of what ran."""
    broken = _broken_note(task, runs)
    if broken:
        return broken
    if claim.body["needs"].get("speech"):
        return "needs the speech task, which these results do not have"
    return f"{lack or 'no results'}; tiers that have it: {', '.join(claim.body['needs']['tiers'])}"


def _broken_note(task: _Task, runs: pd.DataFrame, kind: str | None = None) -> str:
    """What failed among the runs that the claim asks for (of one kind of evidence), or an empty string."""
    asked = task.asked(runs)
    if kind is not None:
        asked = asked[(asked["evidence"] == kind).fillna(False).astype(bool)]
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
    return "; ".join(parts)


@dataclass(frozen=True)
class _Task:
    """One claim over one table of results."""

    claim: Claim
    number: pd.Series | None
    frame: pd.DataFrame

    @property
    def how(self) -> dict[str, Any]:
        return self.claim.body["evaluate"]

    @property
    def where(self) -> str:
        return f"config/claims, claim {self.claim.id}"

    def only(self, kind: str | None) -> _Task:
        """The same over rows of one kind of evidence; None leaves them as they are."""
        return (
            self
            if kind is None
            else replace(self, frame=self.frame[(self.frame["evidence"] == kind).fillna(False)])
        )

    def filters(self) -> list[dict[str, Any]]:
        """The filters of each group of rows: ``select``; with ``against`` or the cases, those too."""
        select = dict(self.how["select"])
        if self.how["kind"] == "published_value" and self.number is not None:
            select |= {name: _plain(self.number.get(name)) for name in self.how["match"]}
        if self.how["kind"] == "order":
            return [select | case["select"] for case in self.how["cases"]]
        return [select] + ([select | self.how["against"]] if self.how.get("against") else [])

    def asked(self, runs: pd.DataFrame) -> pd.DataFrame:
        """All runs that the claim asks for, however they ended."""
        keep = pd.Series(False, index=runs.index)
        for filters in self.filters():
            known = {name: wanted for name, wanted in filters.items() if name in types() and name != "status"}
            keep |= matches(runs, known, self.where)
        return runs[keep]

    def groups(self) -> list[pd.DataFrame]:
        """The rows of each group with their ``value``; a group without any is NothingToJudge."""
        statuses = ENDED + (("diverged",) if self.how.get("diverged_as") is not None else ())
        found = []
        for filters in self.filters():
            rows = self.frame[matches(self.frame, filters, self.where)]
            rows = rows[rows["status"].isin(statuses)] if len(rows) else rows
            if not len(rows):
                raise NothingToJudge("no run of " + ", ".join(f"{k}={v}" for k, v in filters.items()))
            value = values_of(rows, self.how["value"], self.how.get("diverged_as"), self.where)
            rows = rows.assign(value=value)[value.notna()]
            if not len(rows):
                raise NothingToJudge(f"no run gave {self.how['value']}")
            found.append(rows)
        return found

    @property
    def tolerance(self) -> dict[str, Any]:
        return self.claim.body["tolerance"]

    def evaluate(self) -> Outcome:
        """Judge by the claim's kind."""
        return getattr(self, f"_{self.how['kind']}")(self.groups())

    # -- kinds -----------------------------------------------------------------------------------------------------

    def _published_value(self, groups: list[pd.DataFrame]) -> Outcome:
        target = float(self.number["value"])
        allowed = max(self.tolerance.get("absolute", 0.0), self.tolerance.get("relative", 0.0) * abs(target))
        ours = self._summary(groups[0]["value"])
        return _judged(
            ours, target - allowed, target + allowed, f"allowed {_span(target - allowed, target + allowed)}"
        )

    def _bound(self, groups: list[pd.DataFrame]) -> Outcome:
        ours = self._summary(groups[0]["value"]) if len(groups) == 1 else self._contrast(*groups)
        low, high = self.tolerance.get("low", -np.inf), self.tolerance.get("high", np.inf)
        return _judged(ours, low, high, f"allowed {_span(low, high)}", self._contrast_unit(len(groups) > 1))

    def _equality(self, groups: list[pd.DataFrame]) -> Outcome:
        middle = 1.0 if self.how.get("contrast") == "ratio" else 0.0
        allowed = self.tolerance.get("relative" if middle else "absolute", 0.0)
        low, high = middle - allowed, middle + allowed
        return _judged(
            self._contrast(*groups), low, high, f"allowed {_span(low, high)}", self._contrast_unit(True)
        )

    def _order(self, groups: list[pd.DataFrame]) -> Outcome:
        sign = 1.0 if self.how["direction"] == "increasing" else -1.0
        allowed = self.tolerance.get("absolute", 0.0)
        steps = []
        for before, after in pairwise(groups):
            step = self._contrast(after, before, sign)
            # strictly more than -allowed, so the bound itself does not hold
            steps.append((step, _inside(step, np.nextafter(-allowed, np.inf), np.inf)))
        verdicts = [holds for _, holds in steps]
        weakest = min((step for step, _ in steps), key=lambda step: step.low)
        holds = True if all(verdicts) else False if any(v is False for v in verdicts) else None
        levels = [
            f"{case['label']}: {self._summary(group['value']).centre:.4g}"
            for case, group in zip(self.how["cases"], groups, strict=True)
        ]
        note = f"smallest step {self.how['direction']} ({_described(weakest)}); {', '.join(levels)}"
        return Outcome(weakest.centre, weakest.low, weakest.high, holds, note, f"step of {self.how['value']}")

    def _trend(self, groups: list[pd.DataFrame]) -> Outcome:
        along, sign = self.how["along"], 1.0 if self.how["direction"] == "increasing" else -1.0
        wanted = self.tolerance.get("spearman", 1.0)
        each = self.how.get("each") or []
        curves = groups[0].groupby(each, dropna=False) if each else [((), groups[0])]
        found = []
        for _, rows in curves:
            curve = rows.groupby(along)["value"].mean()
            if len(curve) >= 3:
                flat = curve.nunique() == 1
                found.append(
                    0.0 if flat else sign * float(stats.spearmanr(curve.index.astype(float), curve).statistic)
                )
        if not found:
            raise NothingToJudge(f"a trend needs three values of {along}")
        good = [value >= wanted - 1e-12 for value in found]
        holds = True if all(good) else None if any(good) else False
        note = f"rank correlation on {len(found)} curves, at least {wanted:g} wanted"
        return Outcome(float(np.mean(found)), min(found), max(found), holds, note, "rank correlation")

    def _crossing(self, groups: list[pd.DataFrame]) -> Outcome:
        along = self.how["along"]
        first, second = (group.groupby(along)["value"].mean() for group in groups)
        gap = (first - second).dropna().sort_index()
        if len(gap) < 2:
            raise NothingToJudge(f"a crossing needs two values of {along} that both sides have")
        places = gap.index.to_numpy(dtype=float)
        above = gap.to_numpy() >= 0
        changes = np.flatnonzero(above[1:] != above[:-1])
        if len(changes) != 1 or not above[-1]:
            note = f"the difference changes sign {len(changes)} times" + (
                ", downwards" if len(changes) == 1 else ""
            )
            return Outcome(np.nan, np.nan, np.nan, False, note, along)
        at = changes[0]
        low, high = places[at], places[at + 1]
        ours = float(np.interp(0.0, gap.to_numpy()[at : at + 2], [low, high]))
        allowed = self.tolerance.get("low", -np.inf), self.tolerance.get("high", np.inf)
        summary = Summary(ours, float(low), float(high), len(gap), "neighbouring points")
        return _judged(summary, *allowed, f"allowed {_span(*allowed)}", along)

    def _exact(self, groups: list[pd.DataFrame]) -> Outcome:
        rows = groups[0]
        if "equals" in self.how:
            wanted = values_of(rows, self.how["equals"], None, self.where)
            both = wanted.notna()
            ours, wanted = rows["value"][both], wanted[both]
        else:
            pairs = rows.merge(groups[1], on=self.how["pair"], suffixes=("", "_against"))
            ours, wanted = pairs["value"], pairs["value_against"]
        if not len(ours):
            raise NothingToJudge("no row has both sides of the equality")
        gap = (ours - wanted).abs().to_numpy()
        allowed = np.maximum(
            self.tolerance.get("absolute", 0.0), self.tolerance.get("relative", 0.0) * wanted.abs().to_numpy()
        )
        holds = bool((gap <= allowed).all())
        note = (
            f"largest deviation over {len(gap)} comparisons; {int((gap > allowed).sum())} beyond the allowed"
        )
        return Outcome(float(gap.max()), float(gap.min()), float(gap.max()), holds, note, "largest deviation")

    # -- summaries -------------------------------------------------------------------------------------------------

    def _summary(self, values: pd.Series) -> Summary:
        found = range_or_interval(values.to_numpy())
        if self.how.get("aggregate", "mean") == "mean":
            return found
        median = float(np.median(values))
        if found.n < FEWEST_FOR_INTERVAL:
            return replace(found, centre=median)
        low, high = bootstrap_interval(values.to_numpy(), np.median)
        return replace(found, centre=median, low=low, high=high)

    def _contrast(self, first: pd.DataFrame, second: pd.DataFrame, sign: float = 1.0) -> Summary:
        """First minus second (times sign), or first over second: by pairs where the claim names them."""
        ratio = self.how.get("contrast") == "ratio"
        pair = self.how.get("pair")
        if pair:
            merged = first.merge(second, on=pair, suffixes=("", "_against"))
            if not len(merged):
                raise NothingToJudge(f"no pairs that share {', '.join(pair)}")
            a, b = merged["value"], merged["value_against"]
            return self._summary((a / b) if ratio else sign * (a - b))
        a, b = first["value"].to_numpy(), second["value"].to_numpy()
        x, y = self._summary(first["value"]), self._summary(second["value"])
        centre = x.centre / y.centre if ratio else sign * (x.centre - y.centre)
        if min(x.n, y.n) >= FEWEST_FOR_INTERVAL:
            low, high = _bootstrap_of_two(
                a, b, ratio, np.mean if self.how.get("aggregate", "mean") == "mean" else np.median
            )
            ends, kind = [low, high], "95 % interval"
        elif ratio:
            ends, kind = [p / q for p in (a.min(), a.max()) for q in (b.min(), b.max())], "range"
        else:
            ends, kind = [a.min() - b.max(), a.max() - b.min()], "range"
        ends = ends if ratio else [sign * end for end in ends]
        return Summary(float(centre), float(min(ends)), float(max(ends)), min(x.n, y.n), kind)

    def _contrast_unit(self, contrasted: bool) -> str:
        if not contrasted:
            return ""
        return f"{self.how.get('contrast', 'difference')} of {self.how['value']}"


def _bootstrap_of_two(a: np.ndarray, b: np.ndarray, ratio: bool, centre: Any) -> tuple[float, float]:
    """95 % bootstrap interval of the contrast of two independent groups."""

    def contrast(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        first, second = centre(x, axis=axis), centre(y, axis=axis)
        return first / second if ratio else first - second

    found = stats.bootstrap((a, b), contrast, vectorized=True, method="percentile", n_resamples=2000, rng=0)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _inside(found: Summary, low: float, high: float) -> bool | None:
    if found.low >= low and found.high <= high:
        return True
    if found.high < low or found.low > high:
        return False
    return None


def _judged(found: Summary, low: float, high: float, rule: str, unit: str = "") -> Outcome:
    note = f"{_described(found)}; {rule}"
    return Outcome(found.centre, found.low, found.high, _inside(found, low, high), note, unit)


def _described(found: Summary) -> str:
    return f"{found.kind} of {found.n}" if found.n > 1 else found.kind


def _span(low: float, high: float) -> str:
    if np.isinf(low):
        return f"at most {high:.4g}"
    if np.isinf(high):
        return f"at least {low:.4g}"
    # three digits of the larger end, more where the ends would look alike
    scale = max(abs(low), abs(high)) or 1.0
    digits = 2 - int(np.floor(np.log10(scale)))
    if high > low:
        digits = max(digits, 1 - int(np.floor(np.log10(high - low))))
    return f"{low:.{max(0, digits)}f} to {high:.{max(0, digits)}f}"


def _plain(value: Any) -> Any:
    """A cell of a published table as a filter's value."""
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return None
    return value.item() if hasattr(value, "item") else value
