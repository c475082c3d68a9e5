"""Word and frame errors: against workers, the period and the settings of a recipe, and how far workers drift apart.

All read the table of word and frame errors of one corpus and are None where it has no rows for them.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from implementations.reporting.figures import style
from implementations.reporting.figures.conditions import (
    AVERAGING,
    at_best_rate,
    at_own_rate,
    corpus,
    intervals_told,
    main_condition,
    most_workers_with,
    quality_rows,
    told,
)
from implementations.reporting.figures.lines import (
    DIVERGED,
    LINE,
    SECTION,
    ceiling,
    draw_beyond,
    draw_diverged,
    line_keys,
    lines_of,
    look_of,
    mark,
    name_of,
)
from implementations.reporting.grouping import command_for, most_frequent
from implementations.reporting.wordtable import TEST_SETS, printed_rates

ERROR_LABELS = {"wer": "word error (%)", "frame_error": "frame error (%)"}
BEST_RATE = "best rate there, where another"


def workers_figure(
    words: pd.DataFrame, published: pd.DataFrame, paper: str, tier: str | None = None, suffix: str = ""
) -> style.Drawn | None:
    """Word and frame error against workers, and the loss of word error against one worker beside the paper's."""
    rows = main_condition(quality_rows(words))
    if rows["workers"].nunique() < 2:
        return None
    own = at_own_rate(rows).assign(series="own rate")
    best = _differing(at_best_rate(rows), own).assign(series=BEST_RATE)
    data = pd.concat([own, best], ignore_index=True)
    printed = published_losses(published, paper)
    with matplotlib.rc_context(style.RC):
        figure = matplotlib.figure.Figure(figsize=(style.WIDE, 7.6), layout="constrained")
        axes = figure.subplot_mosaic([["wer", "frame_error"], ["loss", "loss"]], height_ratios=[1.1, 1.0])
        for metric in ("wer", "frame_error"):
            _draw_lines(axes[metric], data, metric)
            axes[metric].set_ylabel(ERROR_LABELS[metric])
            style.worker_axis(axes[metric], _workers(data))
            if data[metric].isna().all():
                style.say_empty(axes[metric], f"no {ERROR_LABELS[metric].partition(' (')[0]}s here")
        # one worker loses nothing to itself
        _draw_lines(axes["loss"], data[data["workers"] > 1], "wer_minus_one_worker")
        _draw_printed(axes["loss"], printed)
        axes["loss"].axhline(0, color="#888888", linewidth=1.0)
        # the paper's points and no loss at all are to be seen, wherever ours are
        low, high = axes["loss"].get_ylim()
        high = max(high, 1.1 * float(printed["value"].max()) if len(printed) else high)
        axes["loss"].set_ylim(min(low, -0.05 * high), high)
        axes["loss"].set_ylabel("word error lost (points)")
        axes["loss"].set_title("loss against one worker, ours and the paper's", fontsize=11)
        counts = sorted({*_workers(data), *printed["workers"].astype(int)} - {1})
        style.worker_axis(axes["loss"], counts)
        # room for the words beside the paper's points; set when the axis is logarithmic, which moves its other end
        axes["loss"].set_xlim(0.8 * min(counts), 1.7 * max(counts))
    keys = _keys(data)
    if len(printed):
        keys.append(mark("published loss (SWB)", marker="*", markersize=12, markerfacecolor="white"))
    style.key_above(figure, "Word and frame errors against workers", keys, 3, 2.6)
    return _drawn(
        "speech_workers", f"Word and frame errors against workers, {corpus(data)}", figure, data, paper, tier, suffix,
        told(data)
        + "Rate: that of one worker on validation data, scaled with the workers"
        + ("; diamonds: the best rate at a number of workers, where it is another. " if len(best) else ". ")
        + intervals_told(data)
        + "Lines are set apart a little. "
        + ("Published losses: the paper's SWB test set of Switchboard, another corpus. " if len(printed) else ""),
        "workers",
    )  # fmt: skip


def errors_figure(
    words: pd.DataFrame, paper: str, tier: str | None = None, suffix: str = ""
) -> style.Drawn | None:
    """Word and frame error against the averaging period K, at the number of workers with the most periods."""
    rows = main_condition(quality_rows(words), ["sync_period"])
    workers = most_workers_with(rows, "sync_period")
    if workers is None:
        return None
    data = _with_period(most_frequent(rows[rows["workers"] == workers], ["lr"], LINE))
    data = _several(data, "period").reset_index(drop=True)
    title = "Errors against the averaging period"
    figure, grid = style.new_figure(style.WIDE, 4.4, 1, 2)
    with matplotlib.rc_context(style.RC):
        for axes, metric in zip(grid[0], ("frame_error", "wer"), strict=True):
            _draw_lines(axes, data, metric, along="period")
            axes.set_ylabel(ERROR_LABELS[metric])
            _period_axis(axes, data)
    style.key_above(figure, title, _keys(data), 3, 2.6)
    return _drawn(
        "speech_period", f"{title}, {corpus(data)}", figure, data, paper, tier, suffix,
        told(data) + f"{workers} workers. " + intervals_told(data) + "Lines are set apart a little. ",
        "period",
    )  # fmt: skip


def drift_figure(
    words: pd.DataFrame, paper: str, tier: str | None = None, suffix: str = ""
) -> style.Drawn | None:
    """How far workers are from their mean before an average, against workers and against the period."""
    rows = quality_rows(words)
    across = at_own_rate(main_condition(rows))
    across = across[across["drift"] > 0].assign(panel="workers")
    along = main_condition(rows, ["sync_period"])
    workers = most_workers_with(along, "sync_period")
    along = most_frequent(along[(along["workers"] == workers) & (along["drift"] > 0)], ["lr"], LINE)
    across, along = _several(_with_period(across), "workers"), _several(_with_period(along), "period")
    data = pd.concat([across, along.assign(panel="period")], ignore_index=True)
    panels = [
        (name, part) for name, part in (("workers", across), ("period", along)) if part[name].nunique() > 1
    ]
    if not panels:
        return None
    data = data[data["panel"].isin([name for name, _ in panels])]
    figure, grid = style.new_figure(style.WIDE if len(panels) > 1 else 5.2, 4.2, 1, len(panels), sharey=True)
    with matplotlib.rc_context(style.RC):
        for axes, (name, part) in zip(grid[0], panels, strict=True):
            for place, (line, points) in enumerate(lines_of(part)):
                points = points.sort_values(name)
                x = points[name].astype(float)
                axes.plot(x * style.apart(place, 4), 100 * points["drift"].astype(float), **look_of(line))
            if name == "workers":
                style.worker_axis(axes, _workers(part))
                axes.set_title(f"K={int(part['sync_period'].mode().iloc[0])}", fontsize=11)
            else:
                _period_axis(axes, part)
                axes.set_title(f"{workers} workers", fontsize=11)
        grid[0, 0].set_yscale("log")
        style.plain_log_axis(grid[0, 0].yaxis, (1, 2, 5))
        grid[0, 0].set_ylabel("drift (% of the mean's norm)")
    style.key_above(figure, "How far workers drift apart", _keys(data), 3, 2.6)
    return _drawn(
        "speech_drift", f"How far workers drift apart, {corpus(data)}", figure, data, paper, tier, suffix,
        told(data)
        + "Root mean square distance of the workers' weights from their mean just before the last average, as a share "
        f"of the mean's norm; mean of {int(data['n'].max())} seeds. ",
        "panel",
    )  # fmt: skip


# -- settings, a line of dots each -------------------------------------------------------------------------------------

NET_AND_LENGTH = ["model", "epochs"]  # that settings are compared at
SETTINGS = {
    # figure -> what differs among its rows, its title, and how a row is called
    "speech_schedule": (["schedule", "settings"], "Errors by learning-rate schedule"),
    "speech_minibatch": (["minibatch"], "Errors by minibatch"),
    "speech_mixing": (["mixing"], "Errors by who averages with whom"),
    "speech_rule": (["max_change_rule"], "Errors by max-change rule"),
    "speech_content": (["content", "momentum"], "Errors by what is averaged"),
    "speech_scaling": (["lr_scaling"], "Errors by scaling of the rate"),
}


def settings_figures(
    words: pd.DataFrame, paper: str, tier: str | None = None, suffix: str = ""
) -> list[style.Drawn]:
    """A figure for each setting that was run with several values: word and frame error on one and on most workers."""
    rows = quality_rows(words)
    drawn = [
        _settings_figure(rows, name, free, title, paper, tier, suffix)
        for name, (free, title) in SETTINGS.items()
    ]
    return [figure for figure in drawn if figure is not None]


def _settings_figure(
    rows: pd.DataFrame, name: str, free: list[str], title: str, paper: str, tier: str | None, suffix: str
) -> style.Drawn | None:
    if free[0] == "schedule":
        rows = _of_one_pretraining(rows)
    rows = _of_one_training(main_condition(rows, [*free, *NET_AND_LENGTH]), free)
    several = rows[rows["workers"] > 1]
    varied = several.groupby([*LINE, "workers"], dropna=False)[free[0]].nunique(dropna=False)
    if free[0] == "schedule":  # the settings of one schedule are told apart too
        varied = several.groupby([*LINE, "workers"], dropna=False).apply(_schedules, include_groups=False)
    if not len(varied) or varied.max() < 2:
        return None
    optimizer, init, workers = max(varied[varied == varied.max()].index, key=lambda index: index[2])
    line = rows[(rows["optimizer"] == optimizer) & (rows["init"] == init)]
    averaged = free[0] in AVERAGING  # on one worker it makes no difference
    kept = line["workers"] == workers if averaged else line["workers"].isin([1, workers])
    data = line[kept.fillna(False).astype(bool)].copy()
    if free[0] != "schedule":  # how sensitive a schedule is to the rate is to be seen
        data = _at_one_rate(data, free, line)
    data["label"] = _setting_labels(data, free)
    counts = data.groupby("label")["workers"].max()
    data = data[data["label"].isin(counts[counts == workers].index)]
    data = data.sort_values([*free, "lr", "workers"], ignore_index=True)
    labels = list(dict.fromkeys(data["label"]))
    if len(labels) < 2:
        return None
    figure, grid = style.new_figure(style.WIDE, 1.9 + 0.5 * len(labels), 1, 2, sharey=True)
    own0 = name == "speech_mixing" and data["rank0_wer"].notna().any()
    tint = style.optimizer_colour(optimizer)
    with matplotlib.rc_context(style.RC):
        for axes, metric in zip(grid[0], ("wer", "frame_error"), strict=True):
            for row in data.to_dict("records"):
                alone = row["workers"] == 1
                y = -labels.index(row["label"]) + (0.0 if averaged else 0.14 if alone else -0.14)
                face = "white" if alone else tint
                if not row["n"]:
                    axes.plot(1.0, y, "x", color=tint, transform=axes.get_yaxis_transform(), clip_on=False)
                    continue
                axes.hlines(
                    y, 100 * row[f"{metric}_low"], 100 * row[f"{metric}_high"], color=tint, linewidth=1.2
                )
                axes.plot(
                    100 * row[metric],
                    y,
                    style.EVIDENCE_MARKERS[row["evidence"]],
                    color=tint,
                    markerfacecolor=face,
                )
                if own0 and pd.notna(row[f"rank0_{metric}"]):
                    axes.plot(
                        100 * row[f"rank0_{metric}"], y - 0.28, "v", color=tint, markerfacecolor="white"
                    )
            axes.set_xlabel(ERROR_LABELS[metric])
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.grid(axis="y", visible=False)
            axes.set_ylim(-len(labels) + 0.4, 0.6)
        grid[0, 0].set_yticks([-place for place in range(len(labels))], labels)
    keys = [] if averaged else [mark("1 worker", marker="s", color=tint, markerfacecolor="white")]
    keys.append(mark(f"{workers} workers", marker="s", color=tint))
    if own0:
        keys.append(
            mark("worker 0 before the final average", marker="v", color=tint, markerfacecolor="white")
        )
    keys += [mark(DIVERGED, marker="x", markeredgewidth=2)] if (data["n"] == 0).any() else []
    style.key_above(figure, title, keys, 3)
    return _drawn(
        name, f"{title}, {corpus(data)}", figure, data, paper, tier, suffix,
        told(data)
        + f"{name_of(optimizer, init)}. "
        + intervals_told(data),
        "label",
    )  # fmt: skip


def _of_one_training(rows: pd.DataFrame, free: list[str]) -> pd.DataFrame:
    """The rows of the net and epochs that most settings were run for, the most frequent of several."""
    several = rows[rows["workers"] > 1].drop_duplicates([*NET_AND_LENGTH, *free, "lr"])
    if not len(several):
        return rows
    counts = pd.DataFrame(
        {
            "settings": several.groupby(NET_AND_LENGTH).apply(
                lambda part: len(part[free].drop_duplicates()), include_groups=False
            ),
            "rows": rows.groupby(NET_AND_LENGTH).size(),
        }
    )
    best = counts.dropna().sort_values(["settings", "rows"]).index[-1]
    return rows[(rows[NET_AND_LENGTH] == pd.Series(dict(zip(NET_AND_LENGTH, best)))).all(axis=1)]


def _of_one_pretraining(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the most frequent pretraining, whose epochs are then no part of ``settings``."""
    told = rows["settings"].fillna("").str.split(", ")
    rows = rows.assign(
        pretraining=told.map(lambda parts: ", ".join(part for part in parts if part.startswith("rbm_"))),
        settings=told.map(lambda parts: ", ".join(part for part in parts if not part.startswith("rbm_"))),
    )
    rows["settings"] = rows["settings"].replace("", pd.NA)
    return most_frequent(rows, ["pretraining"], [*LINE, "schedule"]).drop(columns="pretraining")


def _at_one_rate(data: pd.DataFrame, free: list[str], line: pd.DataFrame) -> pd.DataFrame:
    """Of each setting the rows at one rate: its own on one worker, else that of the line, else the best.

    With another momentum another rate is right: there it is the best of each setting.
    """
    parts = []
    own = [] if "momentum" in free else at_own_rate(line)["lr"]
    for _, rows in data.groupby(free, dropna=False):
        ranked = rows[rows["valid_frame_error"].notna()].sort_values(["workers", "valid_frame_error"])
        rates = [
            *ranked.loc[ranked["workers"] == 1, "lr"],
            *own,
            *ranked["lr"],
            *rows["lr"],
        ]
        rate = next(rate for rate in rates if (rows["lr"] == rate).any())
        parts.append(rows[rows["lr"] == rate])
    return pd.concat(parts)


def _schedules(rows: pd.DataFrame) -> int:
    return len(rows[["schedule", "settings", "lr"]].drop_duplicates())


def _setting_labels(data: pd.DataFrame, free: list[str]) -> list[str]:
    """Each row's setting in words, with its rate where they differ."""
    labels = []
    for row in data.to_dict("records"):
        parts = [_in_words(key, row[key], row) for key in free if pd.notna(row[key])]
        if data["lr"].nunique() > 1:
            parts.append(f"rate {row['lr']:g}")
        # a line is broken between settings, not within one
        told = ", ".join(part for part in parts if part)
        told = re.sub(r"(?<!,) ", "\N{NO-BREAK SPACE}", told)
        labels.append(textwrap.fill(told, 32).replace("\N{NO-BREAK SPACE}", " "))
    return labels


def _in_words(key: str, value: Any, row: dict[str, Any]) -> str:
    if key in ("minibatch", "momentum"):
        return f"{key} {value:g}"
    if key == "lr_scaling":
        return {"none": "rate not scaled", "linear": "rate x workers"}.get(value, str(value))
    if key == "settings":
        told = (_setting_in_words(part, row["schedule"]) for part in value.split(", "))
        return ", ".join(part for part in told if part)
    return {"allreduce": "all-reduce"}.get(value, str(value).replace("_", " "))


def _setting_in_words(setting: str, schedule: str) -> str:
    """One setting without the schedule's name before it; a flag that is off is not told."""
    name, _, value = setting.partition("=")
    name = name.removeprefix(f"{schedule}_").removeprefix("lr_").replace("_", " ")
    return {"True": name, "False": ""}.get(value, f"{name} {value}")


# -- the paper's -------------------------------------------------------------------------------------------------------


def published_losses(published: pd.DataFrame, paper: str) -> pd.DataFrame:
    """What the paper's word error on SWB loses against one worker of the same condition, in points (all-reduce)."""
    rates = printed_rates(published)
    rates = rates[(rates["paper"] == paper) & (rates["test_set"] == TEST_SETS["published_swb"])]
    columns = ["workers", "optimizer", "init", "value"]
    if not len(rates):
        return pd.DataFrame(columns=columns)
    rates = rates[(rates["role"] == "target").fillna(False)] if "role" in rates else rates
    rates = rates[rates["minibatch"] == rates["minibatch"].mode().iloc[0]]
    rates = rates[rates["schedule"] == rates["schedule"].mode().iloc[0]]
    base = rates[rates["workers"] == 1].drop_duplicates(LINE)[[*LINE, "value"]]
    several = rates[(rates["workers"] > 1) & (rates["reduce"] == "allreduce").fillna(False)]
    several = several[several["sync_period"] == several["sync_period"].mode().iloc[0]]
    both = several.merge(base, on=LINE, suffixes=("", "_base"))
    return both.assign(value=both["value"] - both["value_base"])[columns].reset_index(drop=True)


def _draw_printed(axes: Axes, printed: pd.DataFrame) -> None:
    for place, (line, points) in enumerate(lines_of(printed)):
        points = points.sort_values("workers")
        # to the right of ours
        x = points["workers"].astype(float) * 2 ** (0.17 + 0.07 * place)
        look = look_of(line) | {"linewidth": 0.8, "marker": "*", "markersize": 12, "markerfacecolor": "white"}
        look |= {"zorder": 5, "label": f"published {' '.join(line)}"}
        axes.plot(x, points["value"].astype(float), **look)
        if line[1] != "rbm":
            place = (x.iloc[-1], points["value"].iloc[-1])
            axes.annotate(line[1], place, (9, 3), textcoords="offset points", color=look["color"],
                          fontsize=style.SMALLEST_FONT)  # fmt: skip


# -- pieces ------------------------------------------------------------------------------------------------------------


def _draw_lines(axes: Axes, data: pd.DataFrame, metric: str, along: str = "workers") -> None:
    """A line for each optimiser and initialisation with its intervals, in %.

    What diverged is a cross at the top; what is far above the rest is told there.
    """
    slack = 15.0 if metric == "wer_minus_one_worker" else 5.0
    lines, top = lines_of(data), ceiling(100 * data[metric].astype(float), slack)
    if top is not None:
        seen = data[100 * data[metric].astype(float) <= top]
        ends = 100 * seen[[f"{metric}_low", f"{metric}_high"]].astype(float)
        # no interval of what is shown is cut, nor does it cross what is told at the top
        low_end, high_end = float(ends.min(axis=None)), float(ends.max(axis=None))
        top = max(top, high_end + 0.12 * (high_end - low_end))
    for place, (line, rows) in enumerate(lines):
        look = look_of(line, rows["evidence"].iloc[0])
        series = rows.groupby("series") if "series" in rows else [("own rate", rows)]
        for name, points in series:
            points = points.sort_values(along)
            x = points[along].astype(float) * style.apart(place, len(lines))
            y, low, high = (100 * points[f"{metric}{end}"].astype(float) for end in ("", "_low", "_high"))
            if name == BEST_RATE:
                x = x * 2**0.12
                axes.plot(x, y, **look | {"linestyle": "none", "marker": "d", "label": "_best"})
            else:
                axes.plot(x, y, **look)
            axes.vlines(x, low, high, color=look["color"], linewidth=1.0)
            draw_diverged(axes, x[(points["n"] == 0).to_numpy()], look["color"])
            if top is not None:
                draw_beyond(axes, x[y > top], y[y > top], look["color"])
    if top is not None:
        axes.set_ylim(low_end - 0.05 * (top - low_end), top)


def _differing(best: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """The best rows at another rate than the line's own."""
    keys = [*LINE, "workers", "lr"]
    known = set(map(tuple, own[keys].astype(object).to_numpy()))
    return best[[tuple(row) not in known for row in best[keys].astype(object).to_numpy()]]


def _workers(data: pd.DataFrame) -> list[int]:
    return sorted({int(count) for count in data["workers"]})


def _several(data: pd.DataFrame, along: str) -> pd.DataFrame:
    """Without lines of a single point."""
    return data[data.groupby(LINE, dropna=False)[along].transform("nunique") > 1]


def _with_period(data: pd.DataFrame) -> pd.DataFrame:
    """With the minibatches between two averages, the end of an epoch being one: ``period`` ends with the epoch."""
    whole = data["data_size"].astype(float) // (data["workers"] * data["minibatch"]).astype(float)
    period = data["sync_period"].astype(float)
    return data.assign(period=period.mask(period >= whole, whole), whole_epoch=(period >= whole).astype(bool))


def _period_axis(axes: Axes, data: pd.DataFrame) -> None:
    """A logarithmic axis of periods; one as long as an epoch is called so."""
    axes.set_xscale("log")
    names = {
        period: "epoch" if whole else f"{period:g}"
        for period, whole in zip(data["period"], data["whole_epoch"])
    }
    axes.xaxis.set_major_locator(FixedLocator(sorted(names)))
    axes.xaxis.set_major_formatter(
        matplotlib.ticker.FixedFormatter([names[period] for period in sorted(names)])
    )
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlabel("period K (minibatches)")


def _keys(data: pd.DataFrame) -> list[Line2D]:
    """A key's entries for the lines, and for rates of their own."""
    best = "series" in data and (data["series"] == BEST_RATE).any()
    return [*line_keys(data), *([mark(BEST_RATE, marker="d")] if best else [])]


def _drawn(
    name: str, title: str, figure: Any, data: pd.DataFrame, paper: str, tier: str | None, suffix: str, caption: str,
    along: str,
) -> style.Drawn:  # fmt: skip
    def point(row: dict[str, Any]) -> str:
        rate = f"frame error {100 * row['frame_error']:.3g} %" if row["n"] else DIVERGED
        rate += f", word error {100 * row['wer']:.3g} %" if pd.notna(row["wer"]) else ""
        count = f"{int(row['workers'])} worker{'s' if row['workers'] > 1 else ''}"
        more = f", {along.replace('_', ' ')} {row[along]}" if along != "workers" else ""
        return f"{name_of(row['optimizer'], row['init'])}, {count}{more}: {rate}".replace("\n", " ")

    return style.Drawn(
        name=f"{name}{suffix}",
        title=title,
        caption=caption.strip(),
        alt="; ".join(point(row) for row in data.to_dict("records")),
        figure=figure,
        data=data.drop(columns=["recipe", "command"]),
        command=command_for(paper, tier),
        paper=paper,
        section=SECTION,
    )
