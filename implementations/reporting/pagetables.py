"""Tables as the page shows them where that is not as their files: a value and its interval in one cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting.html import MB, brief, milliseconds, number, percent, scaled
from implementations.reporting.papers import paper_of
from implementations.reporting.suite import hosts

_SETTING = ["dataset", "data_size", "model", "target_value", "name", "workers"]


def spread(row: dict[str, Any], name: str, write: Callable[[Any], str] = brief) -> str | None:
    """A value with its low and high in brackets where they differ; None where it is absent."""
    if pd.isna(row[name]):
        return None
    low, high = write(row[f"{name}_low"]), write(row[f"{name}_high"])
    return write(row[name]) + (f" ({low} to {high})" if low != high else "")


def in_words(rows: pd.DataFrame, paper: str) -> pd.DataFrame:
    """Rows whose methods and period are called as the paper calls them."""
    own = paper_of(paper)
    if "method" in rows and own.methods:
        rows = rows.assign(method=[own.methods.get(name, name) for name in rows["method"]])
    return rows.rename(columns={"sync_period": "local_steps"}) if own.period == "J" else rows


def targets(table: pd.DataFrame) -> pd.DataFrame:
    """What a target costs: one cell for steps, for bytes, and for the ratio of bytes."""
    rows = table.to_dict("records")
    shown = table.assign(
        reached_of=[f"{row['reached']} of {row['n']}" for row in rows],
        steps_spent=[spread(row, "steps", number) for row in rows],
        bytes_spent=[spread(row, "bytes", scaled(MB)) for row in rows],
        byte_ratios=[byte_ratios(row) for row in rows],
    )
    return shown[[*_SETTING, "sharding", "skew", "reached_of", "steps_spent", "bytes_spent", "byte_ratios", "minibatch",
                  "epochs", "passes", "lr", "experiments", "command"]]  # fmt: skip


def byte_ratios(row: dict[str, Any]) -> str | None:
    """Bytes of data parallelism and of local SGD over a row's own, which is 1; None where there is neither.

    ``row``: of the table of targets.
    """
    parts = [spread(row, name) for name in ("data_parallel_ratio", "local_sgd_ratio")]
    if not any(parts):
        return None
    return "never reached" if np.isinf(row["bytes"]) else " : ".join([*(part or "-" for part in parts), "1"])


def times(table: pd.DataFrame) -> pd.DataFrame:
    """Seconds to the target: a column for each cluster, the slowest network first; a star marks the fastest period."""
    order = table.drop_duplicates("cluster").sort_values(["mbit_s", "cluster"])["cluster"]
    keys = [*_SETTING, "sharding", "skew", "minibatch", "epochs", "passes", "lr", "command"]
    found: list[dict[str, Any]] = []
    for _, rows in table.groupby(["paper", "variant", *keys], dropna=False, sort=False):
        first = rows.iloc[0]
        row = {name: first[name] for name in keys} | {"reached_of": f"{first['reached']} of {first['n']}"}
        for each in rows.rename(columns={"time_s": "time"}).to_dict("records"):
            star = "*" if each["best"] and pd.notna(first["sync_period"]) else ""
            row[f"on {each['cluster']} (s)"] = f"{spread(each, 'time')}{star}"
        found.append(row)
    columns = [f"on {cluster} (s)" for cluster in order]
    return pd.DataFrame(found).reindex(columns=[*_SETTING, "reached_of", *columns, *keys[len(_SETTING) :]])


def crossings(table: pd.DataFrame) -> pd.DataFrame:
    """Where methods change places: one cell for the bandwidth and the seeds' range."""
    rows = table.rename(columns={"crossing_mbit_s": "crossing"}).to_dict("records")
    between = [f"{brief(row['least_mbit_s'])} to {brief(row['most_mbit_s'])} Mbit/s" for row in rows]
    return table.assign(
        crossing=[_crossing(row) for row in rows], network=pd.array(between, dtype="string")
    )[["dataset", "data_size", "plain_model", "target_value", "skew", "workers", "first", "second", "crossing",
       "faster_below", "faster_above", "network", "command"]]  # fmt: skip


def _crossing(row: dict[str, Any]) -> str | None:
    if pd.isna(row["crossing"]):
        return None
    return spread(row, "crossing") if pd.notna(row["crossing_low"]) else brief(row["crossing"])


def width(table: pd.DataFrame) -> pd.DataFrame:
    """Points lost by width, and the thresholds, each with its range in one cell."""
    rows = table.to_dict("records")
    return table.assign(
        points_lost=[spread(row, "loss", lambda value: f"{value:.2f}") for row in rows],
        threshold_units=[_threshold(row) for row in rows],
        workers=["all" if pd.isna(row["workers"]) else number(row["workers"]) for row in rows],
    )[["dataset", "data_size", "hidden_layers", "name", "workers", "width", "units_per_worker", "accuracy",
       "one_worker_accuracy", "points_lost", "n", "threshold_units", "command"]]  # fmt: skip


def _threshold(row: dict[str, Any]) -> str | None:
    """Never where no width is enough."""
    return spread(row, "threshold", lambda value: "never" if np.isinf(value) else number(value))


def memory(table: pd.DataFrame) -> pd.DataFrame:
    """What fits: the precisions in one cell, ``Fail`` where there is no network."""
    rows = table.to_dict("records")
    return table.assign(precisions=[_precisions(row) for row in rows])[
        ["dataset", "data_size", "name", "workers", "width", "model_params", "worker_params",
         "state_bytes_per_worker", "server_bytes", "held_bytes", "memory_limit_bytes", "precisions", "n", "source",
         "command"]
    ]  # fmt: skip


def _precisions(row: dict[str, Any]) -> str:
    return " / ".join(percent(row[f"p_at_{k}"]) for k in (1, 3, 5)) if row["fits"] else "Fail"


def plans(table: pd.DataFrame) -> pd.DataFrame:
    """Plans by what tells them apart, without the parts of a step."""
    return table[["cluster", "model", "image", "strategy", "workers", "minibatch", "samples_per_s", "speedup",
                  "published_samples_per_s", "samples_error", "step_s", "additive_s", "network_bytes", "paper_bytes",
                  "published_paper_bytes", "bytes_error", "state_bytes_max", "status", "reason", "objective", "sync",
                  "degrees", "memory_limit_bytes", "compute_source", "command"]]  # fmt: skip


def search(table: pd.DataFrame) -> pd.DataFrame:
    """Searches with the spread of their seconds in one cell."""
    rows = table.assign(search_s_low=table["search_low_s"], search_s_high=table["search_high_s"])
    told = [spread(row, "search_s") for row in rows.to_dict("records")]
    return table.assign(search_seconds=told)[
        ["model", "workers", "nodes", "edges", "configurations", "algorithm", "finished", "search_seconds",
         "published_s", "tables_s", "cost_s", "node_eliminations", "edge_eliminations", "remaining", "n",
         "time_limit_s", "command"]
    ]  # fmt: skip


def spark_speedup(table: pd.DataFrame) -> pd.DataFrame:
    """Speedups with their spreads in one cell; a row without a base stands once, where no other has one."""
    keys = [name for name in table.columns if name not in _BASE]
    known = table.assign(_known=table["speedup"].notna()).sort_values(
        "_known", ascending=False, kind="stable"
    )
    first = ~known.duplicated(keys)
    rows = known[known["_known"] | first].sort_index()
    told = rows.to_dict("records")
    return rows.assign(
        seconds_told=[spread(row, "seconds") for row in told], speedup_told=[spread(row, "speedup") for row in told]
    )[["cluster", "kind", "model", "model_params", "dataset", "data_size", "variant", "execution", "workers",
       "oversubscribed", "speedup_told", "base", "seconds_told", "base_seconds", "scaling", "global_batch",
       "base_global_batch", "threads_per_worker", "base_threads", "sync_period", "cut", "group_size", "optimizer",
       "epochs", "n", "command"]]  # fmt: skip


_BASE = (
    "base",
    "base_seconds",
    "base_global_batch",
    "base_threads",
    "speedup",
    "speedup_low",
    "speedup_high",
)


def spark_async(table: pd.DataFrame) -> pd.DataFrame:
    """Late updates with the spread of accuracies in one cell."""
    rows = table.to_dict("records")
    return table.assign(
        accuracy_told=[spread(row, "accuracy", percent) for row in rows],
        points_lost=[None if pd.isna(row["points_lost"]) else f"{row['points_lost']:.2f}" for row in rows],
    )[["kind", "model", "dataset", "data_size", "workers", "optimizer", "minibatch", "epochs", "staleness", "lr",
       "accuracy_told", "synchronous_accuracy", "points_lost", "train_loss", "staleness_mean", "staleness_max", "n",
       "diverged", "command"]]  # fmt: skip


def projected(table: pd.DataFrame) -> pd.DataFrame:
    """Published numbers beside their projections, without what only their file needs."""
    return table.rename(columns={"claim_id": "claim"})[
        ["from_paper", "source", "metric", "condition", "unit", "published", "projected", "error", "factor", "cluster",
         "inputs", "assumed", "note", "claim", "command"]
    ]  # fmt: skip


def validation(table: pd.DataFrame) -> pd.DataFrame:
    """The time model's points by what tells them apart, measured seconds with their range in one cell."""
    told = table.rename(columns={f"measured{end}_s": f"step{end}" for end in ("", "_low", "_high")})
    rows = [spread(row, "step", milliseconds) for row in told.to_dict("records")]
    return table.assign(measured_ms=rows)[
        ["group", "network", "workers", "oversubscribed", "measured_ms", "predicted_s", "error", "pace",
         "error_at_pace", "repeats", "compute_source", "command"]
    ]  # fmt: skip


def shootout(table: pd.DataFrame) -> pd.DataFrame:
    """What each method takes to the target: seconds in a column for each network, the slowest first."""
    order = table.dropna(subset=["mbit_s"]).drop_duplicates("cluster").sort_values("mbit_s")["cluster"]
    found: list[dict[str, Any]] = []
    keys = ["dataset", "net", "model", "name", "workers"]
    for _, rows in table.groupby([*keys, "lr"], dropna=False, sort=False):
        first = rows.iloc[0]
        row = {
            name: first[name] for name in [*keys, "target_value", "state_bytes_per_worker", "lr", "command"]
        }
        row |= {
            "reached_of": f"{first['reached']} of {first['n']}",
            "steps_spent": spread(first, "steps", number),
        }
        row |= {
            "bytes_spent": spread(first, "bytes", scaled(MB)),
            "accuracy_told": spread(first, "accuracy", percent),
        }
        for each in rows.to_dict("records"):
            if pd.notna(each["cluster"]):
                row[f"on {each['cluster']} (s)"] = spread(each, "time")
        found.append(row)
    shown = [*keys, "target_value", "reached_of", "steps_spent", *(f"on {cluster} (s)" for cluster in order)]
    return pd.DataFrame(found).reindex(
        columns=[*shown, "bytes_spent", "state_bytes_per_worker", "accuracy_told", "lr", "command"]
    )


def winners(table: pd.DataFrame) -> pd.DataFrame:
    """Who is fastest where, with the seeds' range in one cell."""
    rows = table.to_dict("records")
    return table.assign(
        time_told=[spread(row, "time") for row in rows],
        won=[f"{row['seeds_won']} of {row['n']}" for row in rows],
    )[["dataset", "net", "target_value", "workers", "mbit_s", "first", "sync_period", "time_told", "second",
       "second_time", "won", "margin", "band", "sure", "command"]]  # fmt: skip


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """Where the lead changes: the range over seeds and that under the model's errors in a cell each."""
    rows = table.to_dict("records")
    between = [f"{brief(row['least_mbit_s'])} to {brief(row['most_mbit_s'])} Mbit/s" for row in rows]
    return table.assign(
        over_seeds=[_ends(row, "crossing") for row in rows],
        under_errors=[_ends(row, "model") for row in rows],
        network=pd.array(between, dtype="string"),
    )[["dataset", "net", "target_value", "workers", "first", "second", "crossing_mbit_s", "over_seeds",
       "seeds_crossing", "n", "under_errors", "first_error", "second_error", "network", "command"]]  # fmt: skip


def _ends(row: dict[str, Any], name: str) -> str | None:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return None if pd.isna(low) or pd.isna(high) else f"{brief(low)} to {brief(high)}"


def advice(table: pd.DataFrame) -> pd.DataFrame:
    """The three fastest methods of each network and cluster, and the one that is soonest at a target."""
    shown = table[(table["place"] <= 3).fillna(False) | (table["place_target"] == 1).fillna(False)]
    rows = shown.to_dict("records")
    return pd.DataFrame(
        {
            "for": [row["network"] for row in rows],
            "cluster": [row["cluster"] for row in rows],
            "place": [number(row["place"]) for row in rows],
            "method": [row["method"] for row in rows],
            "workers": [number(row["workers"]) for row in rows],
            "epoch (s)": [brief(row["epoch_s"]) for row in rows],
            "speedup": [row["speedup"] for row in rows],
            "limited by": [f"{row['limit']} ({percent(row['limit_share'])} %)" for row in rows],
            "sent / epoch (MB)": [brief(row["sent_bytes"] / MB) for row in rows],
            "memory / worker (MB)": [brief(row["memory_bytes"] / MB) for row in rows],
            "to target (s)": [brief(row["time_to_target_s"]) for row in rows],
            "epochs as": [row["target_of"] for row in rows],
            "compute_source": [row["compute_source"] for row in rows],
            "command": [row["command"] for row in rows],
        }
    )


def counters(table: pd.DataFrame) -> pd.DataFrame:
    """Counters of emulated hosts against the ledger, in MB and per cent."""
    rows = table.to_dict("records")
    return pd.DataFrame(
        {
            "method": [hosts.name_of(row) for row in rows],
            "model": [row["model"] for row in rows],
            "network": [row["network"] for row in rows],
            "workers": [number(row["workers"]) for row in rows],
            "n": [number(row["n"]) for row in rows],
            "ledger (MB)": [brief(row["ledger_bytes"] / MB) for row in rows],
            "counted (MB)": [brief(row["counter_bytes"] / MB) for row in rows],
            "packets": [number(row["packets"]) for row in rows],
            "arrived, less headers (MB)": [brief(row["arrived_bytes"] / MB) for row in rows],
            "difference (%)": [f"{100 * row['difference']:+.2f}" for row in rows],
            "largest (%)": [f"{100 * row['largest']:+.2f}" for row in rows],
            "resent (%)": [f"{100 * row['resent']:.2f}" for row in rows],
            "command": [row["command"] for row in rows],
        }
    )


def emulated(table: pd.DataFrame) -> pd.DataFrame:
    """Methods on emulated hosts: speed with its quartiles in a cell, and both ratios to data parallelism."""
    rows = table.to_dict("records")
    return pd.DataFrame(
        {
            "network": [row["network"] for row in rows],
            "workers": [number(row["workers"]) for row in rows],
            "model": [row["model"] for row in rows],
            "method": [hosts.name_of(row) for row in rows],
            "n": [number(row["n"]) for row in rows],
            "samples/s": [spread(row, "samples_per_s") for row in rows],
            "bytes a sample": [brief(row["bytes_per_sample"]) for row in rows],
            "base": [row["base"] for row in rows],
            "speed over it (x)": [brief(row["speed_over_base"]) for row in rows],
            "bytes of it (%)": [percent(row["bytes_of_base"]) for row in rows],
            "the paper's claim": [row["claim"] for row in rows],
            "oversubscribed": [row["oversubscribed"] for row in rows],
            "command": [row["command"] for row in rows],
        }
    )


ON_PAGE: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "shootout": shootout,
    "winners": winners,
    "changes": changes,
    "targets": targets,
    "times": times,
    "crossings": crossings,
    "width": width,
    "memory": memory,
    "plans": plans,
    "search": search,
    "spark_speedup": spark_speedup,
    "spark_async": spark_async,
    "validation": validation,
    "projected": projected,
    "advice": advice,
    "counters": counters,
    "emulated": emulated,
}
