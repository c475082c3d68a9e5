"""Which method for the example networks on the tier's clusters: what ``python -m implementations advise`` says of them.

The predictions are made beforehand (``results/advice.parquet``), as they need the methods' own code.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from implementations.reporting.files import read_table
from implementations.reporting.grouping import command_for
from implementations.reporting.suite.context import PAPER, Context

FILE = "advice.parquet"
TITLES = {
    "advice": (
        "Advice for the example clusters",
        "Predicted seconds of an epoch of three networks, each method with the number of workers (of 1, 2, 4 and 16) "
        "that is fastest for it, and, where runs here tell of a network like it, with the one that is soonest at the "
        "target; the page has the three fastest, the file all. "
        "Limited by: what takes the largest share of the time, with samples that one worker would not have needed as "
        "statistical efficiency. `python -m implementations advise` gives it for any network and cluster file.",
    ),
}
COLUMNS = [
    "paper", "evidence", "network", "cluster", "place", "method", "workers", "epoch_s", "speedup", "limit",
    "limit_share", "sent_bytes", "memory_bytes", "place_target", "time_to_target_s", "target_epochs", "target_of",
    "compute_source", "model_error_median", "model_error_worst", "model_error_points", "data_size", "minibatch",
    "command",
]  # fmt: skip


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """``advice``: a row for each network, cluster and method, the fastest first."""
    path = context.results_dir / FILE
    if not path.is_file():
        return {"advice": pd.DataFrame(columns=COLUMNS)}
    found = read_table(path)
    rows = found[found["best"].astype(bool) | found["place_target"].notna()]
    rows = rows.assign(command=command_for(PAPER, context.tier))
    rows = rows.sort_values(["network", "cluster", "place", "place_target"], kind="stable")
    return {"advice": rows.reindex(columns=COLUMNS).reset_index(drop=True)}


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Which method is fastest for each network, on how many clusters, and what limits it; and how sure that is."""
    rows = tables["advice"]
    if rows.empty:
        return []
    said = [
        _of_network(network, own) for network, own in rows[rows["place"] == 1].groupby("network", sort=True)
    ]
    return [*said, _grounds(rows)]


def _of_network(network: str, first: pd.DataFrame) -> str:
    """``first``: the fastest method of each cluster; of several that are as fast all."""
    clusters = first["cluster"].nunique()
    parts = []
    for method, own in sorted(first.groupby("method"), key=lambda pair: (-len(pair[1]), pair[0])):
        limits = own["limit"].value_counts()
        told = " or ".join(sorted(limits.index[limits == limits.max()]))
        parts.append(f"{method} on {own['cluster'].nunique()} (limited most often by {told})")
    return f"Fastest epoch of {network}, predicted on {clusters} clusters: {'; '.join(parts)}."


def _grounds(rows: pd.DataFrame) -> str:
    """Whence the seconds of a step come, and what is known of the model's error."""
    kinds = rows.drop_duplicates(["network", "cluster", "method", "workers"])["compute_source"].value_counts()
    sources = ", ".join(f"{count} from {source}" for source, count in kinds.items())
    checked = rows[rows["model_error_points"].notna()]
    if checked.empty:
        return f"Steps of these predictions: {sources}; this tier has no points that the time model is checked with."
    worst = checked.loc[checked["model_error_worst"].astype(float).idxmax()]
    return (
        f"Steps of these predictions: {sources}; on this host, where alone it is checked, the time model is off by "
        f"{100 * float(checked['model_error_median'].astype(float).max()):.1f} % in the median and "
        f"{100 * float(worst['model_error_worst']):.1f} % at worst ({worst['method']})."
    )
