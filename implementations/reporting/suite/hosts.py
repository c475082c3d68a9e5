"""Emulated hosts: what the kernel counted there against the ledger, and what each method gains on a limited network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from implementations.reporting.columns import in_experiment
from implementations.reporting.grouping import cell_value, command_for, ended_runs, groups_of
from implementations.reporting.html import brief
from implementations.reporting.statistics import median_and_spread
from implementations.reporting.suite.context import PAPER, Context

EXPERIMENT = "emulated"
TOLERANCE = 0.02  # by which the counters, less headers, may differ from the ledger
BY_JOBS = "job_per_exchange"

TITLES = {
    "counters": (
        "Counted by the kernel against the ledger",
        "Measured on emulated hosts: bytes at their network interfaces while the method trained (evaluation aside), as "
        "the kernel counted them, less 66 bytes of headers a packet, against the bytes of the suite's own ledger. "
        "Difference: of what arrived; it is the transport's: headers of messages, the suite's pulse once a second, "
        "connections. Resent: what was sent beyond that, as a full queue had dropped it, as a share of the ledger. "
        "Median of the repeats; `largest`: the largest difference of them. Of Spark's tasks that stay alive, "
        "their executors' interfaces; of training by Spark jobs, those of all hosts, driver and master too, so that "
        "Spark's own traffic (tasks, results, the first weights) is in it.",
    ),
    "emulated": (
        "Methods on a limited network",
        "Measured on emulated hosts, real TCP over links of the named rate in each direction: median of the repeats "
        "with quartiles. `speed over base` and `bytes of base`: against data parallelism (an all-reduce of gradients a "
        "step; of Spark, its data parallelism) of the same net, data, minibatch and network; bytes a sample. The "
        "paper's claim is for its own machines, net and number of workers, and no row is held against it.",
    ),
}
_SETTING = ["network", "workers", "dataset", "data_size", "model", "minibatch"]
_METHOD = ["method", "variant", "execution", "mixing", "sync_period", "transport"]
_KEYS = ["evidence", "oversubscribed", *_SETTING, *_METHOD]
_TEXT = ["paper", "evidence", "network", "dataset", "model", *_METHOD[:4], "transport", "base", "claim",
         "command"]  # fmt: skip
_WHOLE = ["workers", "data_size", "minibatch", "sync_period", "n", "ledger_bytes", "counter_bytes", "packets",
          "arrived_bytes"]  # fmt: skip
COLUMNS = {
    "counters": ["paper", *_KEYS, "n", "ledger_bytes", "counter_bytes", "packets", "arrived_bytes",
                 "difference", "resent", "largest", "within", "command"],
    "emulated": ["paper", "mbit_s", *_KEYS, "n", "samples_per_s", "samples_per_s_low", "samples_per_s_high",
                 "bytes_per_sample", "base", "speed_over_base", "bytes_of_base", "claim", "command"],
}  # fmt: skip
# What papers say, by the row of the published numbers: whose, and in words.
_CLAIMS = {
    ("layerwise", "layerwise"): (
        "lw-gain-alexnet-w16",
        "up to {value} x the best of data, model parallelism and OWT (AlexNet, 16 GPUs)",
    ),
    ("ist", None): (
        "ist-speedup-speech2-dp",
        "{value} x faster to 77 % accuracy than data parallelism (2-layer net, speech)",
    ),
    ("averaging", None): (
        "avg-speedup-w16-k10",
        "{value} x one GPU on 16, averaging every 10 minibatches (acoustic net)",
    ),
    ("spark", "model"): ("spark-speedup-cnn", "up to {value} x (CNN; workers not said)"),
}


def mbit_of(network: str) -> float:
    """Mbit/s of an emulated network by its name; NaN where it is not limited."""
    found = re.fullmatch(r"emulated-(\d+)mbit", network)
    return float(found[1]) if found else float("nan")


def on_hosts(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs on emulated hosts that trained to their end and were counted."""
    counted = runs["interface_arrived_bytes_total"].notna() & (runs["workers"] > 1).fillna(False)
    measured = (runs["evidence"] == "measured").fillna(False)
    return ended_runs(runs[(counted & measured).astype(bool)])


def counters_table(runs: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each method, setting and network; of all experiments on emulated hosts."""
    rows = []
    for keys, group in groups_of(on_hosts(runs), _KEYS):
        sent = group["sent_bytes_total"].astype(float)
        arrived = group["interface_arrived_bytes_total"].astype(float)
        if not (sent > 0).all():
            continue
        difference = (arrived - sent) / sent
        middle = difference.sort_values().index[
            (len(group) - 1) // 2
        ]  # a repeat, so that its columns fit together
        one = group.loc[middle]
        largest = float(difference[difference.abs().idxmax()])
        rows.append(
            keys
            | {
                "paper": PAPER,
                "n": len(group),
                "ledger_bytes": one["sent_bytes_total"],
                "counter_bytes": one["interface_sent_bytes_total"],
                "packets": one["interface_sent_packets_total"],
                "arrived_bytes": one["interface_arrived_bytes_total"],
                "difference": float(difference[middle]),
                "resent": (one["interface_data_bytes_total"] - arrived[middle]) / sent[middle],
                "largest": largest,
                "within": abs(largest) <= TOLERANCE,
                "command": command_for(PAPER, tier),
            }
        )
    return _table(rows, "counters")


def emulated_table(runs: pd.DataFrame, published: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each method, setting and network of the experiment, beside data parallelism of the same setting."""
    rows = []
    own = on_hosts(runs)
    for keys, group in groups_of(own[in_experiment(own, EXPERIMENT)] if len(own) else own, _KEYS):
        speed = median_and_spread(group["samples_per_s"].astype(float))
        sent = median_and_spread(group["sent_bytes_total"].astype(float) / group["samples"].astype(float))
        rows.append(
            keys
            | {
                "paper": PAPER,
                "mbit_s": mbit_of(keys["network"]),
                "n": len(group),
                "samples_per_s": speed.centre,
                "samples_per_s_low": speed.low,
                "samples_per_s_high": speed.high,
                "bytes_per_sample": sent.centre,
                "claim": _claim(keys, published),
                "command": command_for(PAPER, tier),
            }
        )
    for row in rows:
        base = next((other for other in rows if _is_base(other, row)), None)
        row["base"] = base and _base_name(base)
        row["speed_over_base"] = base and row["samples_per_s"] / base["samples_per_s"]
        row["bytes_of_base"] = base and row["bytes_per_sample"] / base["bytes_per_sample"]
    return _table(rows, "emulated")


def _is_base(other: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether ``other`` is the data parallelism that ``row`` is compared with."""
    if any(other[name] != row[name] for name in _SETTING):
        return False
    if row["method"] == "spark":
        same = other["execution"] == row["execution"]
        return other["method"] == "spark" and other["variant"] == "data" and same
    return other["method"] == "data_parallel" and other["transport"] == row["transport"]


def _base_name(base: dict[str, Any]) -> str:
    return "Spark's data parallelism" if base["method"] == "spark" else "data parallelism"


def _claim(keys: Mapping[str, Any], published: pd.DataFrame) -> str | None:
    """What the method's paper says it gains."""
    for (method, variant), (number, words) in _CLAIMS.items():
        if keys["method"] == method and variant in (None, keys["variant"]) and number in published.index:
            return words.format(value=f"{published.loc[number, 'value']:g}")
    return None


def _table(rows: list[dict[str, Any]], name: str) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=COLUMNS[name])
    kinds: dict[str, Any] = {}
    for column in table.columns:
        kinds[column] = "string" if column in _TEXT else "Int64" if column in _WHOLE else float
    kinds |= {column: "boolean" for column in ("oversubscribed", "within") if column in table}
    return table.astype(object).where(table.notna(), None).astype(kinds)


def tables(context: Context) -> dict[str, pd.DataFrame]:
    """The tables of this part."""
    return {
        "counters": counters_table(context.runs, context.tier),
        "emulated": emulated_table(context.runs, context.published, context.tier),
    }


def sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What they say."""
    return [*_counted(tables["counters"]), *_gained(tables["emulated"])]


def _counted(table: pd.DataFrame) -> list[str]:
    if not len(table):
        return []
    by_jobs = (table["execution"] == BY_JOBS).fillna(False).astype(bool)
    found = []
    rows = table[~by_jobs]
    if len(rows):
        least, most = 100 * rows["largest"].min(), 100 * rows["largest"].max()
        resent = 100 * max(rows["resent"].max(), 0)
        within, methods = int(rows["within"].sum()), ", ".join(sorted(set(rows["method"])))
        found.append(
            f"On emulated hosts the kernel's counters, less headers, differ from the ledger by {least:+.2f} to "
            f"{most:+.2f} % over {len(rows)} settings (methods: {methods}); {within} of them stay within "
            f"{100 * TOLERANCE:g} % in every repeat."
            + (f" Up to {resent:.1f} % was sent again, as queues were full." if resent >= 0.05 else "")
        )
    rows = table[by_jobs]
    if len(rows):
        least, most = 100 * rows["difference"].min(), 100 * rows["difference"].max()
        found.append(
            f"Training by Spark jobs sends {least:+.1f} to {most:+.1f} % beside what is exchanged: tasks, their "
            f"results, and weights handed out and gathered."
        )
    return found


def _gained(table: pd.DataFrame) -> list[str]:
    """A sentence for each method on two hosts at 100 Mbit/s."""
    if not len(table):
        return []
    found = []
    rows = table[
        (table["network"] == "emulated-100mbit").fillna(False) & (table["workers"] == 2).fillna(False)
    ]
    for row in rows.to_dict("records"):
        if cell_value(row["base"]) is None or is_own_base(row):
            continue
        found.append(
            f"At 100 Mbit/s on 2 hosts {name_of(row)} trains {brief(row['speed_over_base'])} times as many samples a "
            f"second as {row['base']} of {row['model']}, and sends {brief(100 * row['bytes_of_base'])} % of its bytes."
        )
    return found


def is_own_base(row: Mapping[str, Any]) -> bool:
    """Whether a row is what others are compared with."""
    return row["method"] == "data_parallel" or (row["method"] == "spark" and row["variant"] == "data")


def name_of(row: Mapping[str, Any]) -> str:
    """A method in words: its strategy, mixing or execution where it has several."""
    method, variant = row["method"], cell_value(row["variant"])
    if method == "layerwise":
        names = {
            "layerwise": "the found layer-wise plan",
            "owt": "OWT",
            "data": "layer-wise data parallelism",
        }
        return names.get(variant, f"{variant} parallelism, layer by layer")
    if method == "spark":
        by = "by jobs" if row["execution"] == BY_JOBS else "in a barrier stage"
        return f"Spark's {variant} parallelism {by}"
    mixing = cell_value(row["mixing"])
    if method == "averaging":
        return "model averaging" if mixing in (None, "allreduce") else f"averaging in a {mixing}"
    if method == "ist":
        return "independent subnet training"
    joined = cell_value(row["transport"]) == "torch"
    return "data parallelism" + (" by gloo" if joined else "")
