"""Published numbers against blind projections, all papers: each value is what a claim's evaluation found.

A projection stands here if a claim holds it against a printed number: a claim about published values, or a bound on a
speedup. Nothing is worked out a second time; what is added is the error, what the projection was given of the paper's
own numbers, and what it had to assume where the paper says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.claims import Claim, load_claims
from implementations.reporting.grouping import command_for
from implementations.reporting.html import brief, number
from implementations.reporting.papers import paper_of
from implementations.reporting.plans import layers_of
from implementations.reporting.rows import join_timings
from implementations.reporting.suite.context import PAPER, Context
from implementations.reporting.utterances import Utterances, as_utterances
from implementations.reporting.verdicts import Results, judge

TITLES = {
    "projected": (
        "Published against projected",
        "Blind: datasheets, the papers' sizes, and the published inputs that a row names; nothing was fitted to the "
        "published numbers. Error: (projected - published) / published; factor: the larger of the two over the "
        "smaller. Assumed: what the paper does not state and the projection had to choose. Bytes are counted, all else "
        "is modelled. Speedup, efficiency and minutes of an epoch of model averaging are one time told three ways.",
    ),
}
SPEED, COMMUNICATION, BYTES, PLANS = "speed", "communication", "bytes", "plans"
QUANTITIES = (SPEED, COMMUNICATION, BYTES, PLANS)
COLUMNS = [
    "paper", "evidence", "from_paper", "source", "metric", "quantity", "condition", "workers", "strategy", "unit",
    "published", "projected", "error", "factor", "cluster", "inputs", "assumed", "note", "published_id", "claim_id",
    "command",
]  # fmt: skip
_NUMBERS = ("workers", "published", "projected", "error", "factor")
_MODELLED = ("timings", "plans", "layers", "projections")  # what a projection can be a row of
_BYTE_UNITS = ("B", "kB", "MB", "GB", "MiB", "GiB")
_ONE_DEVICE = ("epoch_time", "samples_per_s")  # published inputs that set how fast one device is
_SETTINGS = {
    "workers": "workers",
    "data_size": "samples",
    "sync_period": "",
    "model": "",
    "strategy": "",
    "reduce": "",
}
NEVER = "no number: in most seeds of the runs whose steps it takes, a method missed its target"


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """``projected``: a row for each published number and projection that answers it."""
    return {"projected": projected_table(context)}


def projected_table(context: Context) -> pd.DataFrame:
    """One row per published number and projection, with ``COLUMNS``.

    ``error``: a share; ``factor``: at least 1, the larger of published and projected over the smaller. Both are NaN,
    and ``note`` says why, where a projection came to no number. ``quantity``: of ``QUANTITIES``.
    """
    published, none = context.published, context.runs[:0]
    # projections have no records, so that those of runs are left out
    timings, plans, projections = map(_projected, (context.timings, context.plans, context.projections))
    results = Results(
        {
            "records": none,
            "timings": join_timings(timings, none),
            "plans": plans,
            "layers": layers_of(plans),
            "projections": projections,
        },
        Utterances(as_utterances(None)),
    )
    rows = [
        _row(claim, published.loc[key], key, found, published, context.tier)
        for claim in load_claims(context.config_dir)
        if _answers(claim)
        for key, found in _found(claim, published, results)
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.astype({name: float if name in _NUMBERS else "string" for name in COLUMNS})


def _projected(frame: pd.DataFrame) -> pd.DataFrame:
    """The projected rows of a frame."""
    return frame[(frame["evidence"] == "projected").fillna(False).astype(bool)] if len(frame) else frame


def _answers(claim: Claim) -> bool:
    """Whether a claim holds one value against printed ones, and is over what projections are rows of."""
    how = claim.body["evaluate"]
    if how["over"] not in _MODELLED or not claim.published_ids:
        return False
    ratio = "against" not in how or how.get("contrast") == "ratio"
    return how["kind"] == "published_value" or (how["kind"] == "bound" and ratio)


def _found(claim: Claim, published: pd.DataFrame, results: Results) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the claim's evaluation found by projection, with the published number that it stands against.

    A bound is about its first printed number: the others repeat it, read elsewhere.
    """
    for found in judge(claim, published, results):
        key = found["claim_id"].partition("/")[2] or claim.published_ids[0]
        if found["evidence"] != "projected" or pd.isna(found["ours"]) or key not in published.index:
            continue
        if claim.body["evaluate"]["kind"] == "published_value" or published.loc[key, "unit"] == "x":
            yield key, found


def _row(
    claim: Claim,
    printed: pd.Series,
    key: str,
    found: Mapping[str, Any],
    published: pd.DataFrame,
    tier: str | None,
) -> dict[str, Any]:
    select, value = claim.body["evaluate"]["select"], claim.body["evaluate"]["value"]
    target, ours = float(printed["value"]), float(found["ours"])
    known = bool(np.isfinite(ours)) and ours > 0 and target > 0
    quantity = _quantity(printed)
    return {
        "paper": PAPER,
        "evidence": "projected",
        "from_paper": claim.paper,
        "source": " ".join(part for name in ("version", "table_or_figure") if (part := _cell(printed, name))),
        "metric": str(printed["metric"]).replace("_", " "),
        "quantity": quantity,
        "condition": ", ".join(
            _setting(name, printed[name], claim.paper) for name in _SETTINGS if _cell(printed, name)
        ),
        "workers": printed.get("workers"),
        "strategy": _cell(printed, "strategy") or None,
        "unit": printed["unit"],
        "published": target,
        "projected": ours if known else np.nan,
        "error": ours / target - 1 if known else np.nan,
        "factor": max(ours / target, target / ours) if known else np.nan,
        "cluster": select.get("cluster"),
        "inputs": "; ".join(_inputs(claim.paper, printed, quantity, value, published)) or "none",
        "assumed": ", ".join(
            _setting(name, select[name], claim.paper)
            for name in _SETTINGS
            if select.get(name) is not None and str(select[name]) != _cell(printed, name).removesuffix(".0")
        ) or "nothing",
        "note": claim.body["needs"].get("elsewhere") if known else NEVER,
        "published_id": key,
        "claim_id": claim.id,
        "command": command_for(claim.paper, tier),
    }  # fmt: skip


def _quantity(printed: pd.Series) -> str:
    """What kind of number was printed."""
    if printed["unit"] in _BYTE_UNITS:
        return BYTES
    if str(printed["metric"]).startswith("mpi_"):
        return COMMUNICATION
    return PLANS if printed["unit"] in ("devices", "parts") else SPEED


def _cell(printed: pd.Series, name: str) -> str:
    """A cell of the published table as text, empty where it is absent or has no value."""
    value = printed.get(name)
    return "" if value is None or pd.isna(value) else str(value)


def _setting(name: str, value: Any, paper: str) -> str:
    """One setting in words: 16 workers, K=10, vgg16."""
    told = "/".join(number(one) if not isinstance(one, str) else one for one in np.atleast_1d(value).tolist())
    if name == "sync_period":
        return f"{paper_of(paper).period}={told}"
    return f"{told} {_SETTINGS[name]}".strip()


def _inputs(
    paper: str, printed: pd.Series, quantity: str, value: str, published: pd.DataFrame
) -> Iterator[str]:
    """The published numbers that a projection of times starts from, sizes aside, and what it takes of runs here."""
    if quantity == BYTES:
        return
    given = published[(published["paper"] == paper) & published["metric"].isin(_ONE_DEVICE)]
    given = given[given["role"] == "input"] if "role" in given else given[:0]
    if "model" in given:
        given = given[given["model"].isna() | (given["model"].map(str) == _cell(printed, "model"))]
    for _, row in given.iterrows():
        what = f"{str(row['metric']).replace('_', ' ')} on {number(row['workers'])}"
        yield f"{what}: {number(row['value'])} {row['unit']}"
    if "own" in value.split("_"):
        yield "steps to the target of runs here"


# -- what the table says -----------------------------------------------------------------------------------------------


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """A paragraph on all numbers, then one for each paper: median and worst error, and which numbers fail most."""
    table = tables["projected"]
    known = table[table["factor"].notna()] if len(table) else table
    if not len(known):
        return []
    told = [_overall(known)]
    for paper, rows in known.groupby("from_paper", sort=True):
        parts = [_spread(group, quantity) for quantity, group in _by_quantity(rows)]
        missing = table[(table["from_paper"] == paper) & table["factor"].isna()]
        reasons = [
            _communication_told(rows),
            _strategies_told(rows),
            _steps_told(rows),
            _assumed_told(rows),
            f"{len(missing)} more came to no number: a run that they take steps from missed its target."
            if len(missing)
            else "",
        ]
        told.append(" ".join([f"{authors(str(paper))}: {'; '.join(parts)}.", *filter(None, reasons)]))
    return told


def authors(paper: str) -> str:
    """Whose paper it is, and its year; of several authors the first."""
    names = paper_of(paper).title.partition(":")[0]
    return f"{names.partition(',')[0]} et al. {names.split()[-1]}" if "," in names else names


def _by_quantity(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(name, group) for name in QUANTITIES if len(group := rows[rows["quantity"] == name])]


def _overall(known: pd.DataFrame) -> str:
    """How many numbers a projection comes near to, times and bytes apart."""
    parts = []
    for words, rows in (
        ("projections of speeds, times and shares", known[known["quantity"].isin([SPEED, COMMUNICATION])]),
        ("projections of bytes", known[known["quantity"] == BYTES]),
    ):
        if len(rows):
            parts.append(
                f"of {len(rows)} {words}, {(rows['error'].abs() <= 0.1).sum()} are met within 10 % and "
                f"{(rows['factor'] <= 2).sum()} within a factor of two"
            )
    papers = known["from_paper"].nunique()
    return (
        f"Published against projected, {known['published_id'].nunique()} numbers of {papers} papers, none of which any "
        f"constant was fitted to: {'; '.join(parts)}."
    )


def _spread(rows: pd.DataFrame, quantity: str) -> str:
    """Median and worst error of one kind of number, and on which side projections lie."""
    if quantity == PLANS:
        return f"plans, {(rows['factor'] == 1).sum()} of {len(rows)} best numbers of devices are met"
    worst = rows.loc[rows["factor"].idxmax()]
    above = rows["error"] > 0
    words = ("too high", "too low")
    if quantity == SPEED:
        # a time that is too short is a speed that is too high
        above, words = above != rows["unit"].isin(["min", "s"]), ("too fast", "too slow")
    counts = [f"{n} {word}" for word, n in zip(words, (above.sum(), (~above).sum()), strict=True) if n]
    side = f"all {words[int(not above.any())]}" if len(counts) == 1 else ", ".join(counts)
    where = f", {worst['condition']}" if worst["condition"] else ""
    return (
        f"{quantity}, {len(rows)} numbers: median error {100 * rows['error'].abs().median():.0f} %, worst a factor of "
        f"{brief(worst['factor'])} ({worst['metric']}{where}: {brief(worst['published'])} {worst['unit']} published, "
        f"{brief(worst['projected'])} projected); {side}"
    )


def _communication_told(rows: pd.DataFrame) -> str:
    """How much of an epoch that is projected too short is communication, where a paper printed both."""
    wide = [
        rows[rows["metric"] == metric].drop_duplicates("condition").set_index("condition")
        for metric in ("epoch time", "mpi time")
    ]
    both = wide[0].join(wide[1], rsuffix="_mpi", how="inner")
    if not len(both):
        return ""
    last = both.loc[both["workers"].idxmax()]  # the first of those with most
    lacking = last["published"] - last["projected"]
    sent = last["published_mpi"] - last["projected_mpi"]
    if lacking <= 0:
        return ""
    return (
        f"Of the {brief(lacking)} minutes that the projected epoch on {number(last['workers'])} workers is too short, "
        f"{brief(sent)} are missing in communication; the other {brief(lacking - sent)} the paper's own figures put "
        f"outside it, where the model has steps as long as on one worker."
    )


def _strategies_told(rows: pd.DataFrame) -> str:
    """Which strategies are projected worst, of speeds and bytes, and on how many devices."""
    told = []
    for metric, words in (("samples per s", "images per second"), ("paper bytes", "bytes")):
        own = rows[(rows["metric"] == metric) & rows["strategy"].notna() & (rows["workers"] > 1)]
        if own["strategy"].nunique() < 2:
            continue
        middle = own.groupby("strategy")["factor"].median().sort_values(ascending=False, kind="stable")
        worst = own[own["strategy"] == middle.index[0]].groupby("workers")["factor"].median()
        told.append(
            f"By strategy, median factor of {words}: {', '.join(f'{k} {brief(v)}' for k, v in middle.items())}; "
            f"{middle.index[0]} goes from {brief(worst.iloc[0])} on {number(worst.index[0])} devices to "
            f"{brief(worst.iloc[-1])} on {number(worst.index[-1])}."
        )
    return " ".join(told)


def _steps_told(rows: pd.DataFrame) -> str:
    """What it means that seconds of a step alone promise more than was printed of whole trainings."""
    alone = rows[rows["note"].notna() & (rows["quantity"] == SPEED)]
    if not len(alone) or not (alone["error"] > 0).all():
        return ""
    return (
        f"Seconds of a step alone put {len(alone)} of these gains {brief(alone['factor'].min())} to "
        f"{brief(alone['factor'].max())} times above the printed ones: the faster method needs more steps, or its "
        f"exchanges take longer than bytes over bandwidth; printed numbers do not tell which."
    )


def _assumed_told(rows: pd.DataFrame) -> str:
    """How many numbers had to be given a number of workers."""
    free = rows[rows["workers"].isna() & (rows["quantity"] != PLANS)]
    if not len(free):
        return ""
    part = "all" if len(free) == len(rows) else str(len(free))
    return (
        f"For {part} of these {len(rows)} projections the paper does not say on how many workers: what was assumed "
        f"for them is part of the error."
    )
