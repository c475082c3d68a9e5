"""One claim over one table of results: which rows it speaks of, and what they say by the claim's kind.

The kinds stand in config/schemas/claims.schema.yaml; what a finding is called is for ``verdicts`` to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from implementations.errors import UserError
from implementations.reporting.claims import Claim
from implementations.reporting.columns import types
from implementations.reporting.plans import COUNTS, GIVEN
from implementations.reporting.rows import ENDED, OVER_MEMORY, matches, values_of
from implementations.reporting.statistics import (
    FEWEST_FOR_INTERVAL,
    Summary,
    bootstrap_interval,
    range_or_interval,
)
from implementations.reporting.utterances import METRICS, NotComparable, Redrawn, Utterances

# What a claim may be over that has no runs or plans of its own which could have failed.
PLANNED = ("layers", "searches", "predictions", "projections", "exactness")


@dataclass(frozen=True)
class Outcome:
    """What an evaluation found: our number, its interval and whether it lies in the allowed region."""

    ours: float
    low: float
    high: float
    holds: bool | None  # None: the interval covers both
    note: str
    unit: str = ""
    rule: str = ""  # the allowed region, in words


class NothingToJudge(Exception):
    """The results have no rows for the claim; the message says why."""


def is_in(frame: pd.DataFrame, part: dict[str, list[Any]]) -> pd.Series:
    """Which rows are of a part."""
    keep = pd.Series(True, index=frame.index)
    for name, wanted in part.items():
        if name in frame:
            column = frame[name].astype(object)
            keep &= column.where(column.notna(), None).isin(wanted)
    return keep


@dataclass(frozen=True)
class Task:
    """One claim over one table of results."""

    claim: Claim
    number: pd.Series | None
    frame: pd.DataFrame
    utterances: Utterances

    @property
    def how(self) -> dict[str, Any]:
        """How the claim is evaluated."""
        return self.claim.body["evaluate"]

    @property
    def where(self) -> str:
        """Where the claim stands, for a message."""
        return f"config/claims, claim {self.claim.id}"

    @property
    def resamples(self) -> bool:
        """Whether the interval is drawn over speakers, utterances and seeds."""
        return self.how.get("resample") == "speakers"

    @property
    def counts_only(self) -> bool:
        """Whether a claim over plans needs no model of time: it names counts alone, of strategies that are given.

        Which layers the found plan splits how is decided by modelled times, so its counts are no better than those.
        """
        if self.how["over"] != "plans":
            return False
        words = " ".join([self.how["value"], self.how.get("equals", ""), self.how.get("along", "")])
        asked = [group.get("strategy") for group in self.filters()]
        strategies = {name for one in asked for name in (one if isinstance(one, list) else [one])}
        return set(re.findall(r"[A-Za-z_]\w*", words)) <= COUNTS and strategies <= set(GIVEN)

    def only(self, part: dict[str, list[Any]]) -> Task:
        """The same over rows of one part."""
        return replace(self, frame=self.frame[is_in(self.frame, part)])

    def filters(self) -> list[dict[str, Any]]:
        """The filters of each group of rows: ``select``; with ``against`` or the cases, those too."""
        select = dict(self.how["select"])
        if self.how["kind"] == "published_value" and self.number is not None:
            # one worker averages with nobody: no period of it is printed, and ours may have any
            alone = ("sync_period",) if self.number.get("workers") == 1 else ()
            names = [name for name in self.how["match"] if name not in alone]
            select |= {name: _plain(self.number.get(name)) for name in names}
        if "cases" in self.how:
            return [select | case["select"] for case in self.how["cases"]]
        return [select] + ([select | self.how["against"]] if self.how.get("against") else [])

    def asked(self, runs: pd.DataFrame) -> pd.DataFrame:
        """All runs, or plans, that the claim asks for, however they ended."""
        if self.how["over"] == "plans":
            runs = self.frame.assign(log_path=None)
        keep = pd.Series(False, index=runs.index)
        if self.how["over"] in PLANNED:
            return runs[keep]
        for filters in self.filters():
            columns = runs.columns if self.how["over"] == "plans" else types()
            known = {name: wanted for name, wanted in filters.items() if name in columns and name != "status"}
            keep |= matches(runs, known, self.where)
        return runs[keep]

    def groups(self) -> list[pd.DataFrame]:
        """The rows of each group with their ``value``; a group without any is NothingToJudge."""
        statuses = ENDED + (("diverged",) if self.how.get("diverged_as") is not None else ())
        if re.search(rf"\b{OVER_MEMORY}\b", self.how["value"]):
            statuses += (OVER_MEMORY,)
        found = []
        for filters in self.filters():
            rows = self.frame[matches(self.frame, filters, self.where)]
            rows = rows[rows["status"].isin(statuses)] if len(rows) else rows
            if not len(rows):
                raise NothingToJudge("no run of " + ", ".join(f"{k}={v}" for k, v in filters.items()))
            rows = _with_ends(rows)
            value = values_of(rows, self.how["value"], self.how.get("diverged_as"), self.where)
            rows = rows.assign(value=value)[value.notna()]
            if self.resamples:
                diverged = (rows["status"] == "diverged").fillna(False).astype(bool)
                rows = rows.assign(rate=(rows["value"] / self.metric[0]).where(diverged))
                rows = rows[diverged | rows["run_id"].map(lambda name: name in self.utterances)]
            if not len(rows):
                raise NothingToJudge(
                    f"no run gave {self.how['value']}" + (" with its utterances" if self.resamples else "")
                )
            found.append(rows)
        return found

    @property
    def metric(self) -> tuple[float, str]:
        """Of a claim that resamples: the factor and the column of its value."""
        found = re.fullmatch(r"(?:([\d.]+) \* )?(\w+)", self.how["value"])
        if not found or found[2] not in METRICS:
            raise UserError(
                f"{self.where}: value: got {self.how['value']!r}; allowed with resample: "
                + ", ".join(f"{name} or 100 * {name}" for name in METRICS)
            )
        return float(found[1] or 1), found[2]

    @property
    def tolerance(self) -> dict[str, Any]:
        """The allowed deviation."""
        return self.claim.body["tolerance"]

    def evaluate(self) -> Outcome:
        """Judge by the claim's kind."""
        return getattr(self, f"_{self.how['kind']}")(self.groups())

    # -- kinds -----------------------------------------------------------------------------------------------------

    def _published_value(self, groups: list[pd.DataFrame]) -> Outcome:
        target = float(self.number["value"])
        allowed = max(self.tolerance.get("absolute", 0.0), self.tolerance.get("relative", 0.0) * abs(target))
        ours = self._level(groups[0])
        return _judged(
            ours, target - allowed, target + allowed, f"allowed {_span(target - allowed, target + allowed)}"
        )

    def _bound(self, groups: list[pd.DataFrame]) -> Outcome:
        ours = self._level(groups[0]) if len(groups) == 1 else self._contrast(*groups)
        low, high = self.tolerance.get("low", -np.inf), self.tolerance.get("high", np.inf)
        return _judged(ours, low, high, f"allowed {_span(low, high)}", self._contrast_unit(len(groups) > 1))

    def _interaction(self, groups: list[pd.DataFrame]) -> Outcome:
        weights = (1.0, -1.0, -1.0, 1.0)
        if self.resamples:
            ours = self._interval(groups, weights)
        else:
            pair = self.how["pair"]
            sides = [
                group[[*pair, "value"]].rename(columns={"value": f"value_{place}"})
                for place, group in enumerate(groups)
            ]
            merged = reduce(lambda left, right: left.merge(right, on=pair), sides)
            if not len(merged):
                raise NothingToJudge(f"no four rows that share {', '.join(pair)}")
            ours = self._summary(merged.filter(like="value_") @ np.array(weights))
        low, high = self.tolerance.get("low", -np.inf), self.tolerance.get("high", np.inf)
        outcome = _judged(
            ours,
            low,
            high,
            f"allowed {_span(low, high)}",
            f"difference of differences of {_in_words(self.how['value'])}",
        )
        return replace(outcome, note=f"{outcome.note}; {self._levels(groups)}")

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
        note = f"smallest step {self.how['direction']} ({_described(weakest)}); {self._levels(groups)}"
        return Outcome(
            weakest.centre, weakest.low, weakest.high, holds, note, f"step of {_in_words(self.how['value'])}"
        )

    def _levels(self, groups: list[pd.DataFrame]) -> str:
        """The cases with their means, of what all have where the claim compares pairs."""
        if pair := self.how.get("pair"):
            shared = reduce(set.intersection, (set(map(tuple, rows[pair].to_numpy())) for rows in groups))
            groups = [rows[[one in shared for one in map(tuple, rows[pair].to_numpy())]] for rows in groups]
        cases = zip(self.how["cases"], groups, strict=True)
        return ", ".join(
            f"{case['label']}: {self._summary(rows['value']).centre:.4g}" for case, rows in cases
        )

    def _trend(self, groups: list[pd.DataFrame]) -> Outcome:
        along, sign = self.how["along"], 1.0 if self.how["direction"] == "increasing" else -1.0
        wanted = self.tolerance.get("spearman", 1.0)
        each = self.how.get("each") or []
        curves = groups[0].groupby(each, dropna=False) if each else [((), groups[0])]
        found, over = [], ""
        for _, rows in curves:
            if rows[along].nunique() < 3:
                continue
            if self.resamples:
                levels = [level for _, level in rows.groupby(along)]
                redrawn = self._redraw(levels)
                over = f", 95 % interval over {redrawn.over}"
                drawn = np.column_stack(
                    [redrawn.values, redrawn.drawn[~np.isnan(redrawn.drawn).any(axis=1)].T]
                )
            else:
                drawn = rows.groupby(along)["value"].mean().to_numpy(dtype=float)[:, None]
            correlations = sign * _rank_correlations(drawn)
            low, high = np.quantile(correlations[1:] if self.resamples else correlations, [0.025, 0.975])
            found.append(Summary(correlations[0], low, high, len(rows), "rank correlation"))
        if not found:
            raise NothingToJudge(f"a trend needs three values of {along}")
        good = [_inside(summary, wanted - 1e-12, np.inf) for summary in found]
        if self.resamples:
            holds = True if all(good) else False if all(one is False for one in good) else None
        else:
            holds = True if all(good) else None if any(good) else False
        note = f"rank correlation on {len(found)} curves{over}, at least {wanted:g} wanted"
        ours = float(np.mean([one.centre for one in found]))
        low, high = float(min(one.low for one in found)), float(max(one.high for one in found))
        return Outcome(ours, low, high, holds, note, "rank correlation")

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

    def _level(self, group: pd.DataFrame) -> Summary:
        """The value of one group."""
        return self._interval([group], (1.0,)) if self.resamples else self._summary(group["value"])

    def _redraw(self, groups: list[pd.DataFrame]) -> Redrawn:
        try:
            return self.utterances.redraw(groups, self.metric[1], paired=bool(self.how.get("pair")))
        except NotComparable as problem:
            raise NothingToJudge(str(problem)) from problem

    def _interval(self, groups: list[pd.DataFrame], weights: Sequence[float], ratio: bool = False) -> Summary:
        """A weighted sum of the groups' rates, or a ratio, with its interval over speakers, utterances and seeds."""
        redrawn = self._redraw(groups)
        factor = 1.0 if ratio else self.metric[0]
        found = redrawn.interval(weights, ratio)
        return Summary(
            factor * found.value,
            factor * found.low,
            factor * found.high,
            redrawn.seeds,
            "95 % interval",
            redrawn.over,
        )

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
        if self.resamples:
            return self._interval([first, second], (sign, -sign), ratio)
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
        return f"{self.how.get('contrast', 'difference')} of {_in_words(self.how['value'])}"


def _with_ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with what their ends say in numbers.

    ``over_memory``: 1 where a worker's state did not fit, else 0; ``bytes_to_target``: infinite where it was missed.
    """
    over = (rows["status"] == OVER_MEMORY).fillna(False).astype(float)
    if "bytes_to_target" not in rows:
        return rows.assign(**{OVER_MEMORY: over})
    missed = (rows["status"] == "target_missed").fillna(False).astype(bool)
    spent = pd.to_numeric(rows["bytes_to_target"], errors="coerce").astype(float)
    return rows.assign(**{OVER_MEMORY: over, "bytes_to_target": spent.mask(missed, np.inf)})


def _bootstrap_of_two(a: np.ndarray, b: np.ndarray, ratio: bool, centre: Any) -> tuple[float, float]:
    """95 % bootstrap interval of the contrast of two independent groups."""

    def contrast(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        first, second = centre(x, axis=axis), centre(y, axis=axis)
        return first / second if ratio else first - second

    found = stats.bootstrap((a, b), contrast, vectorized=True, method="percentile", n_resamples=2000, rng=0)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _rank_correlations(drawn: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each column's values with their places; 0 where all values are equal."""
    ranks = stats.rankdata(drawn, axis=0)
    ranks -= ranks.mean(axis=0)
    places = np.arange(len(drawn)) - (len(drawn) - 1) / 2
    spread = np.sqrt((ranks**2).sum(axis=0) * (places**2).sum())
    return np.divide(places @ ranks, spread, out=np.zeros(drawn.shape[1]), where=spread > 0)


def _in_words(value: str) -> str:
    """A claim's value as the name of a difference: 100 times a share is told in points."""
    factor, _, name = value.partition(" * ")
    return f"{name.replace('_', ' ')} in points" if factor == "100" and name in METRICS else value


def _inside(found: Summary, low: float, high: float) -> bool | None:
    if found.low >= low and found.high <= high:
        return True
    if found.high < low or found.low > high:
        return False
    return None


def _judged(found: Summary, low: float, high: float, rule: str, unit: str = "") -> Outcome:
    inside = _inside(found, low, high)
    return Outcome(found.centre, found.low, found.high, inside, _described(found), unit, rule)


def _described(found: Summary) -> str:
    if found.over:
        return f"{found.kind} over {found.over}"
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
