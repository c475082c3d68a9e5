"""What plans, searches and runs of layer-wise parallelism say, in sentences computed from the tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from implementations.reporting.html import brief, percent
from implementations.reporting.layerwise import PUBLISHED_CLUSTER
from implementations.reporting.plans import FOUND, GIVEN

_BAND = 0.10


def findings(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """A paragraph each on speeds, bytes, the search, predictions and equal training; none where nothing is known.

    ``tables``: of ``tables.make_tables``, the paper's rows.
    """
    told = (
        speeds_told(tables["plans"]),
        bytes_told(tables["plans"]),
        search_told(tables["search"]),
        prediction_told(tables["prediction"]),
        equivalence_told(tables["equivalence"]),
    )
    return [words for words in told if words]


def speeds_told(plans: pd.DataFrame) -> str:
    """The found plan on the paper's cluster: speedup, and gain over the best other strategy, on the most devices."""
    found = _published(plans)
    if not len(found):
        return ""
    most = found["workers"].max()
    parts = []
    for model, rows in found[found["workers"] == most].groupby("model", sort=True):
        others = rows[rows["strategy"].isin([*GIVEN[1:]])]
        own = rows[rows["strategy"] == FOUND]
        if not len(own) or not len(others):
            continue
        mine, best = own.iloc[0], others.loc[others["samples_per_s"].idxmax()]
        parts.append(
            f"{model} {brief(mine['speedup'])} times one device, "
            f"{brief(mine['samples_per_s'] / best['samples_per_s'])} times the best other ({best['strategy']})"
        )
    known = found[found["samples_error"].notna() & (found["workers"] > 1)]
    within = int((known["samples_error"].abs() <= 0.25).sum())
    blind = (
        f" {within} of {len(known)} published bars are met within 25 %, projected blind."
        if len(known)
        else ""
    )
    return (
        f"Projected on {most} devices of {PUBLISHED_CLUSTER}, the found plan: {'; '.join(parts)}.{blind}"
        if parts
        else ""
    )


def bytes_told(plans: pd.DataFrame) -> str:
    """How far counted bytes are from the published bars, by strategy."""
    known = _published(plans)
    known = known[known["bytes_error"].notna() & (known["workers"] > 1)]
    parts = [
        f"{name} {percent(rows['bytes_error'].min())} to {percent(rows['bytes_error'].max())} %"
        for name in (*GIVEN[1:], FOUND)
        if len(rows := known[known["strategy"] == name])
    ]
    return (
        f"Bytes of a step, counted as the paper counts, against its bars: {'; '.join(parts)}."
        if parts
        else ""
    )


def _published(plans: pd.DataFrame) -> pd.DataFrame:
    """The plans that stand beside the paper's bars, of its objective."""
    if not len(plans):
        return plans
    own = plans[
        (plans["cluster"] == PUBLISHED_CLUSTER).fillna(False).astype(bool) & (plans["status"] == "ok")
    ]
    own = own[own["published_samples_per_s"].notna() | own["published_paper_bytes"].notna()]
    # the paper's objective and parameter server come first
    own = own.sort_values(["objective", "sync"], ascending=[True, False], kind="stable")
    return own.drop_duplicates(["model", "strategy", "workers"])


def search_told(search: pd.DataFrame) -> str:
    """Nodes that are left, the slowest search, and where an exhaustive one ended."""
    own = search[search["algorithm"] == "elimination"] if len(search) else search
    if not len(own):
        return ""
    slowest = own.loc[own["search_s"].idxmax()]
    left = sorted({int(count) for count in own["remaining"].dropna()})
    words = (
        f"Search: eliminations leave {' or '.join(map(str, left))} nodes of each of {own['model'].nunique()} networks; "
        f"the slowest takes {brief(slowest['search_s'])} s ({slowest['model']} on {slowest['workers']} devices)"
    )
    other = search[search["algorithm"] == "depth_first"]
    ended = sorted(set(other.loc[other["finished"].fillna(False).astype(bool), "model"]))
    cut = sorted(set(other.loc[~other["finished"].fillna(True).astype(bool), "model"]))
    if len(other):
        words += f"; depth first ends on {', '.join(ended) or 'none'}" + (
            f" and is cut off on {', '.join(cut)}" if cut else ""
        )
    return words + "."


def prediction_told(prediction: pd.DataFrame) -> str:
    """How many measured configurations the cost model meets within 10 %, and its errors."""
    if not len(prediction):
        return ""
    fits = prediction[~prediction["oversubscribed"].fillna(False).astype(bool)]
    rows = fits if len(fits) else prediction
    within = int((rows["error"].abs() <= _BAND).sum())
    return (
        f"Step time on this host: {within} of {len(rows)} measured configurations are predicted within 10 % (errors "
        f"{percent(rows['error'].min())} to {percent(rows['error'].max())} %), on as many cores as ranks."
    )


def equivalence_told(equivalence: pd.DataFrame) -> str:
    """The largest deviation of a strategy's loss from one device's."""
    if not len(equivalence):
        return ""
    worst = equivalence.loc[equivalence["worst_deviation"].idxmax()]
    return (
        f"Accuracy: {len(equivalence)} trainings under other strategies end with one device's validation loss to "
        f"{worst['worst_deviation']:.2g} of it at worst ({worst['strategy']}, {worst['model']}, {worst['dataset']})."
    )
