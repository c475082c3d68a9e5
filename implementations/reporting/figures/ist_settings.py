"""What skewed labels and each choice of the method do to the accuracy of subnets."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

from implementations.reporting import subnets
from implementations.reporting.columns import in_experiment
from implementations.reporting.figures import style
from implementations.reporting.figures.conditions import quality_rows
from implementations.reporting.figures.ist_lines import (
    SECTION,
    in_order,
    look_of,
    main_period_of,
    method_keys,
    seeds_told,
    spread_out,
    told,
)
from implementations.reporting.grouping import cell_value, command_for, ended_runs, groups_of, most_frequent
from implementations.reporting.statistics import range_or_interval

SKEW, ABLATIONS, PUBLISHED = "ist_skew", "ist_ablations", "ist_faithful"
TITLES = {
    ABLATIONS: "What each choice of the method does",
    PUBLISHED: "The published code and its slips",
}
SHARDINGS = {
    "independent": "each worker shuffles all data",
    "static": "fixed shards",
    "reshuffled": "shards dealt anew",
    "skewed": "skewed shards",
}


def skew_data(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each line and strength of skew (absent: equal shares of labels): test accuracy over seeds."""
    found = []
    for name, line in in_order(main_period_of(rows), "line"):
        for _, group in groups_of(line, ["skew"]):
            accuracy, first = range_or_interval(subnets.by_seed(group, "accuracy")), group.iloc[0]
            names = ("evidence", "dataset", "name", "method", "model", "sync_period", "workers", "variant")
            found.append(
                {key: first[key] for key in names}
                | {"line": name, "skew": cell_value(first["skew"]), "accuracy": accuracy.centre}
                | {"low": accuracy.low, "high": accuracy.high, "spread": accuracy.kind, "n": accuracy.n}
            )
    return pd.DataFrame(found)


def skew_figure(runs: pd.DataFrame, paper: str, tier: str | None = None) -> style.Drawn | None:
    """Test accuracy against the skew of the shards' labels, a line a method; None without several strengths."""
    rows = quality_rows(subnets.described(ended_runs(runs[in_experiment(runs, SKEW)])))
    for names in (["dataset", "data_size"], ["plain_model"], ["workers"]):
        rows = most_frequent(rows, names)
    rows = most_frequent(rows, subnets.KEYS, ["name", "skew"])
    data = skew_data(rows)
    if not len(data) or data["skew"].nunique(dropna=False) < 2:
        return None
    strengths = sorted(set(data["skew"].dropna()))
    labels = [f"{strength:g}" for strength in strengths]
    if data["skew"].isna().any():
        labels.append("equal\nshares")
    figure, grid = style.new_figure(5.2, 4.4)
    axes = grid[0, 0]
    lines = in_order(data, "line")
    with matplotlib.rc_context(style.RC):
        for place, (_, line) in enumerate(lines):
            look = look_of(line.iloc[0].to_dict())
            where = [strengths.index(value) if pd.notna(value) else len(strengths) for value in line["skew"]]
            order = np.argsort(where)
            x = spread_out(np.array(where)[order], place, len(lines))
            line = line.iloc[order]
            kind = style.EVIDENCE_MARKERS[line["evidence"].iloc[0]]
            axes.plot(x, line["accuracy"].astype(float), **look, marker=kind)
            axes.vlines(x, line["low"].astype(float), line["high"].astype(float), color=look["color"])
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlabel("concentration of labels (smaller: more skewed)")
        axes.set_ylabel("test accuracy")
    workers = int(data["workers"].iloc[0])
    style.key_above(figure, f"Shards with skewed labels, {workers} workers", method_keys(data))
    periods = {int(period) for period in data["sync_period"].dropna()}
    return style.Drawn(
        name="ist_skew",
        title=f"Accuracy where each worker keeps its own, skewed data, {data['dataset'].iloc[0]}",
        caption=(
            told(rows, workers=workers)
            + (f"J={periods.pop()}. " if len(periods) == 1 else "")
            + "Each worker keeps its samples; the shares of its labels are drawn from a Dirichlet distribution of the "
            "concentration below. " + seeds_told(data["n"]) + _lost_told(data)
        ),
        alt="; ".join(
            f"{row['line']}, {'equal shares' if pd.isna(row['skew']) else row['skew']}: {row['accuracy']:.4g}"
            for row in data.to_dict("records")
        ),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
    )


def _lost_told(data: pd.DataFrame) -> str:
    """What the strongest skew costs each line, in words."""
    words = []
    for name, line in in_order(data, "line"):
        even, skewed = line[line["skew"].isna()], line[line["skew"].notna()]
        if len(even) and len(skewed):
            worst = skewed.loc[skewed["skew"].idxmin()]
            words.append(f"{name} {100 * (worst['accuracy'] - even['accuracy'].iloc[0]):+.1f}")
    strongest = data["skew"].min()
    return f"At {strongest:g} against equal shares: {', '.join(words)} points (of means)." if words else ""


def choices_data(runs: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """A row for each setting of the method: points of test accuracy more than the default's, seed by seed.

    The default has every choice as it is unless told otherwise; it is the first row, with no difference, for each
    period. Data, network and workers are the most frequent.
    """
    rows = quality_rows(subnets.described(ended_runs(runs[in_experiment(runs, experiment)])))
    rows = most_frequent(rows[subnets.split(rows)], ["dataset", "data_size", "workers"])
    plain = rows
    for name, value in subnets.DEFAULTS.items():
        plain = plain[(plain[name] == value).fillna(False).astype(bool)]
    usual = [not subnets.model_settings(str(model)) for model in plain["model"]]
    plain = plain[np.array(usual, dtype=bool)]
    own_shards = rows.loc[rows["variant"] == subnets.DEFAULTS["variant"], "sharding"].mode()
    plain = plain[plain["sharding"].isin(list(own_shards[:1]))]
    bases = {
        period: most_frequent(base, subnets.KEYS) for period, base in plain.groupby("sync_period", sort=True)
    }
    found = []
    for keys, group in groups_of(rows, subnets.KEYS):
        base = bases.get(keys["sync_period"])
        if base is None:
            continue
        first, gain = group.iloc[0], range_or_interval(100 * subnets.differences(group, base, "accuracy"))
        setting = setting_told(first, base.iloc[0])
        names = ("evidence", "dataset", "method", "model", "workers", "sync_period", "sharding",
                 *subnets.DEFAULTS)  # fmt: skip
        found.append(
            {"setting": setting, "is_default": setting == "default"}
            | {name: cell_value(first[name]) for name in names}
            | {"points": gain.centre, "low": gain.low, "high": gain.high, "spread": gain.kind, "n": gain.n}
        )
    data = pd.DataFrame(found)
    if not len(data):
        return data
    if data["sync_period"].nunique() > 1:
        data["setting"] += " (J=" + data["sync_period"].astype(int).astype(str) + ")"
    order = ["sync_period", "is_default", "points"]
    return data[data["n"] > 0].sort_values(order, ascending=[True, False, False], ignore_index=True)


def setting_told(run: pd.Series, default: pd.Series) -> str:
    """In what a run departs from the default, in words."""
    words = subnets.settings_of(run.to_dict())
    # the published variant shuffles so, and tests with batch statistics
    published = run["variant"] == "faithful"
    words += [] if published else subnets.model_settings(str(run["model"]))
    if run["sharding"] != default["sharding"] and not published:
        words.append(SHARDINGS.get(run["sharding"], str(run["sharding"])))
    if run["hidden_layers"] != default["hidden_layers"] or run["width"] != default["width"]:
        words.append(str(run["plain_model"]))
    words += [
        f"{name} {run[name]:g}"
        for name in ("lr", "minibatch", "epochs", "passes")
        if run[name] != default[name]
    ]
    return ", ".join(words) or "default"


def choices_figure(
    runs: pd.DataFrame, paper: str, experiment: str = ABLATIONS, tier: str | None = None
) -> style.Drawn | None:
    """Points of accuracy that each choice of the method gains or loses; None without the default or another."""
    data = choices_data(runs, experiment)
    if len(data) < 2:
        return None
    lines = sum(len(textwrap.wrap(name, 30)) for name in data["setting"])
    figure, grid = style.new_figure(style.WIDE, 1.3 + 0.21 * lines + 0.2 * len(data))
    axes = grid[0, 0]
    tint = style.colour("ist")
    places = -np.arange(len(data), dtype=float)
    with matplotlib.rc_context(style.RC):
        axes.axvline(0, color="#888888", linewidth=1.0)
        kind = style.EVIDENCE_MARKERS[data["evidence"].iloc[0]]
        axes.hlines(places, data["low"].astype(float), data["high"].astype(float), color=tint, linewidth=2)
        for place, row in zip(places, data.to_dict("records"), strict=True):
            face = "white" if row["is_default"] else tint
            axes.plot(row["points"], place, kind, color=tint, markerfacecolor=face)
            if not row["is_default"]:
                axes.annotate(
                    f"{row['points']:+.1f}", (row["points"], place), (0, 6), textcoords="offset points", ha="center",
                    fontsize=style.SMALLEST_FONT,
                )  # fmt: skip
        axes.set_yticks(places, [textwrap.fill(name, 30) for name in data["setting"]])
        axes.set_ylim(places[-1] - 0.6, 0.7)
        axes.margins(x=0.08)
        axes.set_xlabel("points of test accuracy")
        axes.grid(axis="y", visible=False)
        axes.set_title("Against the default", fontweight="bold", fontsize=13)
    rows = subnets.described(ended_runs(runs[in_experiment(runs, experiment)]))
    rows = rows[rows["dataset"] == data["dataset"].iloc[0]]
    first: dict[str, Any] = data.iloc[0].to_dict()
    periods = " and ".join(f"{int(period)}" for period in sorted(set(data["sync_period"])))
    return style.Drawn(
        name=experiment,
        title=f"{TITLES[experiment]}, {first['dataset']}",
        caption=(
            told(rows, network=False).partition("IST:")[0]
            + f"{first['model']}, {int(first['workers'])} workers, J={periods}. Default: variant {first['variant']}, "
            f"{first['server']} server, {first['partition']} groups, drawn anew each round, "
            f"{SHARDINGS.get(first['sharding'], first['sharding'])}. As published: variant faithful, where each worker "
            "shuffles all data and tests use each batch's statistics. Test accuracy minus the default's, seed by seed. "
            + seeds_told(data["n"])
            + _clear_told(data[~data["is_default"].astype(bool)])
        ),
        alt="; ".join(f"{row['setting']}: {row['points']:+.2f} points" for row in data.to_dict("records")),
        figure=figure,
        data=data,
        command=command_for(paper, tier),
        paper=paper,
        section=SECTION if experiment == PUBLISHED else "",
    )


def _clear_told(data: pd.DataFrame) -> str:
    """Which choices differ from the default with all of their range, in words."""
    worse = list(data.loc[data["high"] < 0, "setting"])
    better = list(data.loc[data["low"] > 0, "setting"])
    words = [f"worse: {'; '.join(worse)}"] if worse else []
    words += [f"better: {'; '.join(better)}"] if better else []
    return (
        f"With all of the range {', '.join(words)}." if words else "No choice differs with all of its range."
    )
