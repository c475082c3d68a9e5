"""Tables of layer-wise parallelism: plans, searches, predictions against measurement, one plan, equal training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting import plans as planning
from implementations.reporting.grouping import cell_value, command_for, ended_runs, groups_of, typed
from implementations.reporting.statistics import median_and_spread

METHOD = "layerwise"
# Printed numbers by metric -> the column of a plan that they stand beside.
PRINTED = {"samples_per_s": "samples_per_s", "paper_bytes": "paper_bytes"}
SHOWN_PLAN = ("vgg16", 4)  # network and devices of the plan that the paper prints
PREDICTION_COLUMNS = [
    "paper", "experiments", "evidence", "status", "cluster", "dataset", "model", "strategy", "workers", "minibatch",
    "global_batch", "oversubscribed", "n", "measured_s", "measured_low_s", "measured_high_s", "predicted_s", "error",
    "compute_s", "additive_s", "additive_error", "compute_source",
]  # fmt: skip
PLANS_COLUMNS = [
    "paper", "evidence", "experiments", "cluster", "model", "params", "dataset", "image", "strategy", "objective",
    "sync", "degrees", "workers", "minibatch", "global_batch", "memory_limit_bytes", "compute_source", "status",
    "reason", "samples_per_s", "published_samples_per_s", "samples_error", "speedup", "step_s", "compute_s",
    "transfer_s", "sync_s", "overlap_s", "additive_s", "objective_s", "network_bytes", "paper_bytes",
    "published_paper_bytes", "bytes_error", "state_bytes_max", "remaining", "search_s", "tables_s", "command",
]  # fmt: skip
SEARCH_COLUMNS = [
    "paper", "evidence", "model", "workers", "layers", "nodes", "edges", "configurations", "algorithm", "finished",
    "time_limit_s", "n", "search_s", "search_low_s", "search_high_s", "published_s", "tables_s", "cost_s",
    "node_eliminations", "edge_eliminations", "remaining", "command",
]  # fmt: skip
PLAN_COLUMNS = [
    "paper", "evidence", "cluster", "model", "workers", "minibatch", "objective", "sync", "degrees", "layer", "kind",
    "out", "layer_params", "configuration", "devices", "printed", "command",
]  # fmt: skip
BEST_DEGREE_COLUMNS = [
    "paper", "evidence", "model", "layer", "workers", "compute_s", "sync_s", "layer_s", "best_workers",
    "published_s", "published_best_workers", "command",
]  # fmt: skip
EQUIVALENCE_COLUMNS = [
    "paper", "evidence", "dataset", "model", "strategy", "workers", "minibatch", "global_batch", "epochs", "n",
    "valid_loss", "base_valid_loss", "worst_deviation", "accuracy", "base_accuracy", "sent_bytes_total",
    "matches_closed_form", "command",
]  # fmt: skip
# Table 5 as printed: (kind, stage or number) -> degrees.
TABLE_5 = {
    "conv": {1: "n=4", 2: "n=4", 3: "n=4", 4: "n=4", 5: "h=2 w=2"},
    "linear": {1: "c=4", 2: "c=4", 3: "c=2"},
    "loss": {1: "1 device"},
}
# Layers of Figure 3: the published ids' key -> kind and number in the network.
FIGURE_3 = {"conv3": ("conv", 3, "third convolution"), "fc": ("linear", 1, "fully connected layer")}


def plans_table(
    plans: pd.DataFrame, published: pd.DataFrame | None = None, tier: str | None = None
) -> pd.DataFrame:
    """A row for each plan: projected throughput, bytes and memory, beside the digitised bars of the paper.

    ``speedup``: throughput over that of one device. ``samples_error``, ``bytes_error``: (ours - published) /
    published, on the paper's own cluster only. ``plans``: ``plans.described``.
    """
    if not len(plans):
        return typed(pd.DataFrame(columns=PLANS_COLUMNS))
    printed = _printed(published)
    rows = []
    for row in plans.to_dict("records"):
        own: dict[str, Any] = {name: cell_value(row[name]) for name in PLANS_COLUMNS if name in row}
        own["experiments"] = ", ".join(row["experiments"]) if row["experiments"] is not None else None
        own["speedup"] = row["samples_per_s"] / row["single_samples_per_s"]
        if row["cluster"] == PUBLISHED_CLUSTER:
            place = (row["model"], row["strategy"], row["workers"])
            for metric, error, size in (
                ("samples_per_s", "samples_error", 1.0),
                ("paper_bytes", "bytes_error", planning.GIB),
            ):
                target = printed.get((metric, *place))
                if target is not None and row["minibatch"] == 32:
                    own[f"published_{metric}"] = target * size
                    own[error] = row[metric] / (target * size) - 1
        rows.append(own | {"command": command_for(row["paper"], tier)})
    order = {name: place for place, name in enumerate(planning.STRATEGIES)}
    table = typed(pd.DataFrame(rows, columns=PLANS_COLUMNS))
    place = table["strategy"].map(order).astype(float)
    keys = ["cluster", "model", "image", "minibatch", "workers", "_place", "objective"]
    return table.assign(_place=place).sort_values(keys, ignore_index=True).drop(columns="_place")


PUBLISHED_CLUSTER = "p100-nvlink"


def _printed(published: pd.DataFrame | None) -> dict[tuple[str, str, str, int], float]:
    """(metric, model, strategy, workers) -> the printed number."""
    if published is None or not len(published) or "strategy" not in published:
        return {}
    own = published[published["metric"].isin(list(PRINTED)) & published["model"].notna()]
    return {
        (row["metric"], row["model"], row["strategy"], int(row["workers"])): float(row["value"])
        for row in own.to_dict("records")
    }


def search_table(
    searches: pd.DataFrame, published: pd.DataFrame | None = None, tier: str | None = None
) -> pd.DataFrame:
    """A row for each network, number of devices and algorithm: seconds (median and quartiles of repeats) and counts.

    A search that was cut off at its limit took at least that long.
    """
    printed: dict[tuple[str, str, int], float] = {}
    if published is not None and len(published) and "strategy" in published:
        own = published[published["metric"].isin(["search_s", "depth_first_s"])]
        printed = {
            (row["model"], row["strategy"], int(row["workers"])): float(row["value"])
            for row in own.to_dict("records")
        }
    rows = []
    for keys, group in groups_of(searches, ["paper", "evidence", "model", "workers", "algorithm"]):
        spent = median_and_spread(group["search_s"].astype(float))
        finished = group["finished"]
        row = {name: cell_value(group[name].iloc[0]) for name in SEARCH_COLUMNS if name in group}
        row |= keys | {"n": spent.n, "search_s": spent.centre, "search_low_s": spent.low}
        row |= {
            "search_high_s": spent.high,
            "tables_s": median_and_spread(group["tables_s"].astype(float)).centre,
        }
        row |= {"finished": bool(finished.all()) if finished.notna().all() else None}
        row |= {"published_s": printed.get((keys["model"], keys["algorithm"], keys["workers"]))}
        rows.append(row | {"command": command_for(keys["paper"], tier)})
    return typed(pd.DataFrame(rows, columns=SEARCH_COLUMNS))


def predictions(runs: pd.DataFrame, plans: pd.DataFrame) -> pd.DataFrame:
    """A row for each measured configuration that was planned for this host: seconds of a step, predicted and measured.

    ``predicted_s``: the plan's step with overlap; ``additive_s``: the paper's sum. Errors are (predicted - measured) /
    measured. Measured: global batch over samples per second, median of the repeats with quartiles.
    """
    ended = ended_runs(runs)
    own = ended[
        (ended["method"] == METHOD).fillna(False).astype(bool)
        & (ended["evidence"] == "measured").fillna(False).astype(bool)
        & ended["samples_per_s"].notna()
    ]
    planned = plans[(plans["status"] == "ok").fillna(False).astype(bool)]
    rows = []
    keys = [
        "paper", "dataset", "model", "variant", "workers", "minibatch", "global_batch", "oversubscribed", "network",
    ]  # fmt: skip
    for found, group in groups_of(own, keys):
        cluster = planning.cluster_of(found["network"])
        plan = _planned(found, group, planned[(planned["cluster"] == cluster).fillna(False).astype(bool)])
        if plan is None:
            continue
        seconds = median_and_spread(found["global_batch"] / group["samples_per_s"].astype(float))
        asked = sorted({name for names in group["experiments"] if names is not None for name in names})
        rows.append(
            {name: found[name] for name in keys if name not in ("variant", "network")}
            | {"strategy": found["variant"], "evidence": "measured", "status": "ok", "experiments": asked}
            | {"cluster": cluster, "compute_source": cell_value(plan["compute_source"])}
            | {"n": seconds.n, "measured_s": seconds.centre}
            | {"measured_low_s": seconds.low, "measured_high_s": seconds.high}
            | {"predicted_s": plan["step_s"], "error": plan["step_s"] / seconds.centre - 1}
            | {"compute_s": plan["compute_s"]}
            | {"additive_s": plan["additive_s"], "additive_error": plan["additive_s"] / seconds.centre - 1}
        )
    table = pd.DataFrame(rows, columns=PREDICTION_COLUMNS)
    return typed(table.drop(columns="experiments")).assign(experiments=table["experiments"])[
        PREDICTION_COLUMNS
    ]


def _planned(found: dict[str, Any], runs: pd.DataFrame, plans: pd.DataFrame) -> pd.Series | None:
    """The plan of a measured configuration: that of the same point where it has one, else of the same setting."""
    same = plans[plans["run_id"].isin(runs["run_id"])]
    if not len(same):
        same = plans[
            (plans["model"] == found["model"]).fillna(False).astype(bool)
            & (plans["strategy"] == found["variant"]).fillna(False).astype(bool)
            & (plans["workers"] == found["workers"]).fillna(False).astype(bool)
            & (plans["minibatch"] == found["minibatch"]).fillna(False).astype(bool)
            & (plans["dataset"].isna() | (plans["dataset"] == found["dataset"])).fillna(False).astype(bool)
        ].sort_values("objective")
    ran = set(runs["strategy_hash"].dropna()) if "strategy_hash" in runs else set()
    if ran:  # a plan that was made anew, of a machine calibrated anew, may be another one
        same = same[same["strategy_hash"].isna() | same["strategy_hash"].isin(ran)]
    return same.iloc[0] if len(same) else None


def prediction_table(predicted: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """The rows of ``predictions`` as a table, with the command that makes them."""
    names = [", ".join(one) if one is not None else None for one in predicted["experiments"]]
    commands = [command_for(cell_value(paper), tier) for paper in predicted["paper"]]
    return typed(predicted.assign(experiments=names, command=commands))


def shown_plans(layers: pd.DataFrame) -> pd.DataFrame:
    """The layers of the found plan that stands for all: of the network and devices that the paper prints one of.

    Without it the first of any network. ``layers``: of ``plans.layers_of``.
    """
    own = found_plan(layers, *SHOWN_PLAN)
    return own if len(own) else found_plan(layers[layers["workers"] > 1])


def found_plan(layers: pd.DataFrame, model: str | None = None, workers: int | None = None) -> pd.DataFrame:
    """The layers of one found plan: that on the paper's terms, where there are several.

    ``model``, ``workers``: of what network and on how many devices; any by default.
    """
    own = layers[
        (layers["strategy"] == planning.FOUND).fillna(False).astype(bool)
        & (layers["status"] == "ok").fillna(False).astype(bool)
    ]
    for name, asked in (("model", model), ("workers", workers)):
        own = own if asked is None else own[(own[name] == asked).fillna(False).astype(bool)]
    for name, wanted in (("cluster", PUBLISHED_CLUSTER), ("objective", "additive"), ("sync", "server"),
                         ("minibatch", 32), ("degrees", "powers")):  # fmt: skip
        kept = own[(own[name] == wanted).fillna(False).astype(bool)]
        own = kept if len(kept) else own
    if not len(own):
        return own
    keys = [name for name in planning.IDENTITY if name != "experiments"]
    code = own.groupby(keys, dropna=False, sort=False).ngroup()
    return own[code == code.iloc[0]]


def plan_table(layers: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """The plan of ``shown_plans`` layer by layer, beside the paper's where it is of the same network and devices."""
    rows = []
    for row in shown_plans(layers).to_dict("records"):
        own = {name: cell_value(row[name]) for name in PLAN_COLUMNS if name in row}
        own |= {"configuration": row["degrees_text"], "command": command_for(row["paper"], tier)}
        if (row["model"], row["workers"]) == SHOWN_PLAN:
            own["printed"] = printed_degrees(row)
        rows.append(own)
    return typed(pd.DataFrame(rows, columns=PLAN_COLUMNS))


def printed_degrees(layer: dict[str, Any]) -> str | None:
    """What Table 5 has for a layer of VGG-16 on 4 devices."""
    kind = "conv" if layer["kind"] == "pool" else layer["kind"]
    return TABLE_5.get(kind, {}).get(int(layer["stage"] if kind == "conv" else layer["number"]))


def degrees_table(
    layers: pd.DataFrame, published: pd.DataFrame | None = None, tier: str | None = None
) -> pd.DataFrame:
    """Figure 3: one layer's computation and synchronisation under data parallelism against the number of devices.

    Rows of evidence ``projected`` are of our cost model at a fixed global batch, those of ``fitted`` the laws that the
    published bars follow, computation / N and communication x N, whose constants were read off the same bars.
    """
    rows: list[dict[str, Any]] = []
    for key, (kind, number, words) in FIGURE_3.items():
        # only where a layer was planned at several numbers of devices of equal global batch is there a best one
        own = layers[
            (layers["model"] == "inception_v3")
            & (layers["strategy"] == "data")
            & (layers["kind"] == kind)
            & (layers["number"] == number)
            & layers["best_workers"].notna()
        ]
        for row in own.sort_values("workers").drop_duplicates("workers").to_dict("records"):
            rows.append(
                {"paper": row["paper"], "evidence": "projected", "model": row["model"], "layer": words}
                | {"workers": row["workers"], "compute_s": row["layer_compute_s"]}
                | {"sync_s": row["layer_sync_s"], "layer_s": row["layer_s"], "best_workers": row["best_workers"]}
            )  # fmt: skip
        rows += _laws(key, words, published)
    table = pd.DataFrame(rows, columns=BEST_DEGREE_COLUMNS)
    return typed(table.assign(command=[command_for(paper, tier) for paper in table["paper"]]))


def _laws(key: str, words: str, published: pd.DataFrame | None) -> list[dict[str, Any]]:
    if published is None or f"lw-figure3-{key}-compute" not in published.index:
        return []
    compute, comm = (
        1e-3 * float(published.loc[f"lw-figure3-{key}-{what}", "value"]) for what in ("compute", "comm")
    )
    counts = (2, 4, 8, 16)
    totals = [compute / workers + comm * workers for workers in counts]
    best = counts[int(np.argmin(totals))]
    return [
        {"paper": planning.PAPER, "evidence": "fitted", "model": "inception_v3", "layer": words, "workers": workers}
        | {"compute_s": compute / workers, "sync_s": comm * workers, "layer_s": total, "best_workers": best}
        | {"published_s": 1e-3 * float(published.loc[f"lw-figure3-{key}-w{workers}", "value"])}
        | {"published_best_workers": float(published.loc[f"lw-best-degree-{key}", "value"])}
        for workers, total in zip(counts, totals, strict=True)
    ]  # fmt: skip


def equivalence_table(runs: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each strategy, network and data set that was trained: its losses against one device's, seed by seed.

    ``worst_deviation``: the largest |loss - that of one device| / that of one device over the seeds.
    """
    ended = ended_runs(runs)
    own = ended[(ended["method"] == METHOD).fillna(False).astype(bool) & ended["valid_loss"].notna()]
    same = ["paper", "evidence", "dataset", "model", "data_size", "global_batch", "epochs", "lr", "seed"]
    base = own[(own["variant"] == "single").fillna(False).astype(bool)].drop_duplicates(same)
    rows = []
    others = own[(own["variant"] != "single").fillna(False).astype(bool)]
    both = others.merge(base[[*same, "valid_loss", "accuracy"]], on=same, suffixes=("", "_base"))
    keys = [
        "paper",
        "evidence",
        "dataset",
        "model",
        "variant",
        "workers",
        "minibatch",
        "global_batch",
        "epochs",
    ]
    for found, group in groups_of(both, keys):
        loss, alone = group["valid_loss"].astype(float), group["valid_loss_base"].astype(float)
        equal = (group["sent_bytes_total"] == group["sent_bytes_predicted"]).fillna(False).all()
        rows.append(
            {name: found[name] for name in keys if name != "variant"}
            | {"strategy": found["variant"], "n": len(group), "valid_loss": loss.mean()}
            | {
                "base_valid_loss": alone.mean(),
                "worst_deviation": float(((loss - alone).abs() / alone).max()),
            }
            | {"accuracy": group["accuracy"].astype(float).mean()}
            | {"base_accuracy": group["accuracy_base"].astype(float).mean()}
            | {"sent_bytes_total": float(group["sent_bytes_total"].astype(float).mean())}
            | {"matches_closed_form": bool(equal), "command": command_for(found["paper"], tier)}
        )
    return typed(pd.DataFrame(rows, columns=EQUIVALENCE_COLUMNS))
