"""Tables of the report as frames (pure functions), and their files: CSV and parquet in ``reports/tables``.

Every row names its kind of evidence; numbers of different kinds are never summarised together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from implementations.reporting import suite
from implementations.reporting.claims import CONFIG, load_published
from implementations.reporting.columns import CONFIGURATION, as_runs, is_speech
from implementations.reporting.files import write_table
from implementations.reporting.grouping import (
    cell_value,
    command_for,
    ended_runs,
    first_value,
    groups_of,
    typed,
)
from implementations.reporting.layerwise import METHOD as LAYERWISE
from implementations.reporting.layerwise import (
    degrees_table,
    equivalence_table,
    plan_table,
    plans_table,
    prediction_table,
    predictions,
    search_table,
)
from implementations.reporting.losses import fitted_table, loss_table
from implementations.reporting.memory import RANKS, memory_table
from implementations.reporting.plans import as_exactness, as_plans, as_searches, described, layers_of, links
from implementations.reporting.rows import BROKEN, ENDED, as_timings, join_timings
from implementations.reporting.spark import PAPER as SPARK
from implementations.reporting.spark import as_projections, exactness_rows
from implementations.reporting.spark_speedups import speedup_table as spark_speedup_table
from implementations.reporting.spark_tables import executions_table, late_table
from implementations.reporting.spark_tables import memory_table as spark_memory_table
from implementations.reporting.statistics import median_and_spread, range_or_interval
from implementations.reporting.targets import (
    aimed,
    bandwidths,
    crossings_table,
    seed_times,
    targets_table,
    times_table,
)
from implementations.reporting.utterances import as_utterances
from implementations.reporting.widths import width_table
from implementations.reporting.wordtable import wer_table

SAME_CODE, BEST_SEQUENTIAL = "same code, one worker", "best sequential"
PARTS = ("data_s", "compute_s", "comm_s", "eval_s", "other_s", "uncovered_s")
TUNING = "tuning"
NOT_A_RESULT = (*BROKEN, "diverged")

# What a run and its base share: the work that is done.
_WORK = ["dataset", "data_size", "model", "epochs", "passes", "scaling", "device", "optimizer"]

TITLES = {
    "speedup": (
        "Speedup",
        "Measured rows: median of the repeats' training seconds with quartiles. Simulated and projected rows: the time "
        "model on the named cluster, against runs on the same cluster. Each row names what it is compared with; a dash "
        "stands where no such run was part of the experiment. The best sequential run is the fastest with any number "
        "of threads in measured rows, and with the row's threads per worker in the others.",
    ),
    "time_split": (
        "Where the time went",
        "Measured only. Parts are means over the ranks of the repeat with the median wall time, so that they add up.",
    ),
    "accuracy": (
        "Quality",
        "Mean over seeds with their range; with six seeds or more, the 95 % interval of the mean. Diverged runs are "
        "counted beside it.",
    ),
    "wer": (
        "Word and frame errors",
        "Errors on the test speakers in %, means over seeds. Intervals (95 %) are drawn over speakers, utterances and "
        "seeds; where a run left no utterances, low and high are the range over seeds. Diverged runs are counted, and "
        "left out. Against one worker: the difference in points to one worker of the same condition, over the same "
        "utterances and seeds, at the rate named beside it (the same, or else the best on validation data). SWB and "
        "CallHome: what the paper printed for that condition on Switchboard; our main minibatch stands for its own.",
    ),
    "volume": (
        "Bytes",
        "Bytes on the wire as counted, by closed form, and as the paper counts (GB = 1e9 bytes).",
    ),
    "targets": (
        "What the target costs",
        "Until validation accuracy first reaches the target: steps of a worker and bytes of all workers, as counted; "
        "median over seeds with their range, or from six seeds on the median's 95 % interval. A seed that misses the "
        "target counts as infinite. The last columns are the bytes of data parallelism and of local SGD with the same "
        "J over those of the row, seed by seed.",
    ),
    "times": (
        "Time to the target by cluster",
        "Simulated: the time model's seconds until the target, on every cluster; median over seeds with their range. "
        "Bandwidths are payload between two workers. Best (on the page a star): no other J of the method is faster "
        "there.",
    ),
    "crossings": (
        "Where methods change places",
        "Simulated: the bandwidth at which two methods take equally long to the target, each at its fastest J, "
        "interpolated in logarithms between clusters a factor of ten apart; low and high are the range over the seeds "
        "that cross once. Without a bandwidth, one of the two is faster on all of these networks.",
    ),
    "width": (
        "How wide a subnet must be",
        "Points of test accuracy lost against one worker of the same full width, seed by seed. Threshold: the smallest "
        "number of units per worker from which on the mean loss stays below 1 point (never: at no width here), its low "
        "and high those of single seeds; the last row of a setting is of all numbers of workers.",
    ),
    "memory": (
        "What fits in memory",
        "Held: a worker's state and what it stores for others, against the limit. What does not fit was not trained. "
        "Precision on the test set: mean over seeds with their range. Published rows are the paper's own table: other "
        "data, 16 GB a worker.",
    ),
    "validation": (
        "Time model against measurement",
        "Seconds of a training step of points that were fixed beforehand: measured (median, least and greatest of the "
        "repeats), and predicted by the time model on the calibrated cluster of the point's own network; layer-wise "
        "training by its own cost model. Error: (predicted - measured) / measured.",
    ),
    "fitted": (
        "The authors' timing file, as five constants read it",
        "Published minutes of an epoch beside those of constants that were fitted to these very rows, so they agree by "
        "construction and get no verdict; a row with a note was not fitted. Lost: minutes above 1/m of one GPU's on m "
        "GPUs, in three parts.",
    ),
    "loss": (
        "Lost efficiency by the time model",
        "The time model alone, from datasheets, at the paper's sizes. One GPU's time is an input (the authors' own "
        "epoch), so lost minutes are only what the model adds: communication that nothing hides, waiting for the "
        "slowest, slower steps, and steps more or fewer than 1/m of one GPU's.",
    ),
    "plans": (
        "Strategies: throughput, bytes and memory",
        "Projected by the cost model, from datasheets or from layers timed on this host (computation from). Published: "
        "the paper's bars, read off; error: (ours - published) / published. A step lets transfers overlap with "
        "computation; added up: the paper's objective. Sent: really put on the network in a step; paper's count: 8 "
        "bytes for each replicated weight and each moved activation there and back. State: parameters, gradients, "
        "momentum and activations of the fullest device. Speedup: images/s over those of one device.",
    ),
    "search": (
        "Search for the best plan",
        "Seconds on this host, given the tables of costs: median of the repeats with quartiles. A search that did not "
        "end was cut off at its limit. Left: nodes of the graph when nothing more could be eliminated. Published: on "
        "the authors' machine, for 4 devices; 86,400 s stand for more than a day.",
    ),
    "prediction": (
        "Step time, predicted and measured",
        "Measured on this host: global batch over samples per second, median of the repeats with quartiles. Predicted "
        "before: the plan's step with overlap; added up: the paper's objective. Errors are (predicted - measured) / "
        "measured.",
    ),
    "plan": (
        "The plan that was found, layer by layer",
        "Degrees of the split by samples (n), channels (c), height (h) and width (w); normalisation and activations "
        "stay where their input is. Printed: the paper's plan of the same network and number of devices.",
    ),
    "degrees": (
        "Best number of devices for one layer",
        "A layer of Inception-v3 under data parallelism, of a batch that is shared out. Fitted: the laws of the "
        "published bars, computation / N and communication x N, with constants read off these very bars. Best: of the "
        "numbers of devices in the table.",
    ),
    "equivalence": (
        "The same training under every strategy",
        "Validation loss and test accuracy, means over seeds, beside those of one device; largest deviation: of the "
        "loss of any seed, as a share.",
    ),
    "exactness": (
        "Strategies against one device",
        "One training step of small networks, by torch alone and under strategies: every configuration for all layers "
        "at once (LeNet-5), and mixtures drawn at random. Configurations: of single layers, in all of them. Worst "
        "error: of loss, gradients and weights after the step, relative; torch's: of its own step in single precision "
        "against double. Bytes: whether what was sent is what the plan said.",
    ),
    "spark_exactness": (
        "Cut networks against one device",
        "Twenty steps of small networks by plain torch on one device, and by programs that are cut over k workers. "
        "Exchanges go among workers (barrier) or through the driver (a job an exchange). Worst error: largest "
        "difference of a weight; torch's: of one device in single precision from itself in double. Bytes of a step in "
        "single precision, counted and by closed form. RNN and LSTM with sequences of several lengths, masked.",
    ),
    "spark_speedup": (
        "Speedup on Spark",
        "Measured rows: median of the repeats' training seconds with quartiles; cluster: where Spark ran. Simulated "
        "rows: the time model on the named cluster. Projected rows: seconds of an epoch by the cost model of this "
        "method, at sizes that nobody trained. Each row names what it is compared with; a dash stands where no such "
        "run was part of the experiment. Strong scaling compares seconds, weak scaling samples per second.",
    ),
    "spark_executions": (
        "A job an exchange against a barrier stage",
        "Measured: the same steps by both. Seconds of an exchange are those of a step's communication over the jobs of "
        "a step; scheduling and packing are shares of a step by jobs.",
    ),
    "spark_memory": (
        "Memory by size of network",
        "Measured: parameters, gradients and optimiser state of a worker, and the growth of resident memory. "
        "Projected: and its activations, beside the machine's memory and what one worker alone would need.",
    ),
    "spark_async": (
        "Late updates",
        "The asynchronous variant by bound on staleness and rate: mean test accuracy over seeds with their range. "
        "Points lost: against staleness 0 at the same rate, which is the synchronous run.",
    ),
    "tuning": (
        "Trials for the learning rate",
        "On validation data, with other seeds than the reported runs.",
    ),
    "runs": ("Runs", "How the runs ended, by method and evidence."),
    "failures": (
        "Runs without a result",
        "Reason, log and command of each; the next start tries the failed ones again.",
    ),
    **suite.TITLES,
}


def make_tables(
    runs: pd.DataFrame | str | Path | None,
    timings: pd.DataFrame | str | Path | None,
    validation: pd.DataFrame | None = None,
    out_dir: str | Path = "reports/tables",
    tier: str | None = None,
    utterances: pd.DataFrame | str | Path | None = None,
    config_dir: str | Path = CONFIG,
    losses: pd.DataFrame | None = None,
    results_dir: str | Path = "results",
    plans: pd.DataFrame | str | Path | None = None,
    searches: pd.DataFrame | str | Path | None = None,
    exactness: pd.DataFrame | str | Path | None = None,
    projections: pd.DataFrame | str | Path | None = None,
) -> dict[str, pd.DataFrame]:
    """Make every table and write ``<name>.csv`` and ``<name>.parquet``; tables without rows are written too.

    ``utterances``: ``utterances.parquet``, or its rows; without it word error rates have no interval over speakers.
    ``losses``: the time model's split of the lost efficiency, see ``losses.loss_table``. ``results_dir``: where the
    runs' curves are. ``plans``, ``searches``, ``exactness``: the files of these names (``search.parquet``),
    or their rows; ``projections``: ``spark.parquet``, or its rows.
    """
    tables = make_tables_in_memory(
        as_runs(runs),
        as_timings(timings),
        validation,
        tier,
        as_utterances(utterances),
        load_published(config_dir),
        losses,
        results_dir,
        bandwidths(config_dir),
        described(as_plans(plans), links(config_dir)),
        as_searches(searches),
        exactness,
        projections,
        config_dir,
    )
    for name, table in tables.items():
        write_table(table, Path(out_dir) / f"{name}.csv")
    return tables


def make_tables_in_memory(
    runs: pd.DataFrame,
    timings: pd.DataFrame | None,
    validation: pd.DataFrame | None = None,
    tier: str | None = None,
    utterances: pd.DataFrame | None = None,
    published: pd.DataFrame | None = None,
    losses: pd.DataFrame | None = None,
    results_dir: str | Path = "results",
    networks: Mapping[str, float] | None = None,
    plans: pd.DataFrame | None = None,
    searches: pd.DataFrame | None = None,
    exactness: pd.DataFrame | str | Path | None = None,
    projections: pd.DataFrame | str | Path | None = None,
    config_dir: str | Path = CONFIG,
) -> dict[str, pd.DataFrame]:
    """Every table by its name. ``networks``: of ``targets.bandwidths``; ``plans``: of ``plans.described``."""
    results = reported(runs)
    plans = described(as_plans(None)) if plans is None else plans
    layers = layers_of(plans)
    # methods that share no paper are compared by tables of their own
    of_papers = results[(results["paper"] != suite.PAPER).fillna(True).astype(bool)]
    seconds = seed_times(aimed(of_papers), timings, networks or {})
    # what Spark's executions and cuts are held against is told by tables of their own
    others = results[(results["paper"] != SPARK).fillna(True).astype(bool)]
    return {
        "speedup": speedup_table(others, timings, tier),
        "time_split": time_split_table(others),
        "accuracy": accuracy_table(results[~is_speech(results)], tier),
        "wer": wer_table(results, utterances, published, tier),
        "volume": volume_table(results, tier),
        "targets": targets_table(of_papers, results_dir, tier),
        "times": times_table(seconds, tier),
        "crossings": crossings_table(seconds, tier),
        "width": width_table(results, tier),
        "memory": memory_table(results, published, tier),
        "plans": plans_table(plans, published, tier),
        "search": search_table(as_searches(searches), published, tier),
        "prediction": prediction_table(predictions(results, plans), tier),
        "plan": plan_table(layers, tier),
        "degrees": degrees_table(layers, published, tier),
        "equivalence": equivalence_table(results, tier),
        "exactness": as_exactness(exactness),
        "spark_exactness": exactness_rows(exactness),
        "spark_speedup": spark_speedup_table(results, timings, projections, tier),
        "spark_executions": executions_table(results, tier),
        "spark_memory": spark_memory_table(results, projections, tier),
        "spark_async": late_table(results, tier),
        "tuning": tuning_table(runs, tier),
        "validation": validation_table(validation),
        "fitted": fitted_table(published),
        "loss": loss_table(losses),
        "runs": runs_table(runs),
        "failures": failures_table(runs, tier),
        **suite.tables(
            suite.Context(
                results,
                as_timings(timings),
                plans,
                as_projections(projections),
                pd.DataFrame() if validation is None else validation,
                load_published(CONFIG) if published is None else published,
                Path(results_dir),
                Path(config_dir),
                tier,
            )
        ),
    }


def reported(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs that are results: tuning trials have other seeds, and stay out of what the tables summarise."""
    trial = runs["experiments"].map(
        lambda names: names is not None and len(names) > 0 and all(map(_is_trial, names))
    )
    return runs[~trial.astype(bool)]


def trials(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs that tried a learning rate, results among them too."""
    asked = runs["experiments"].map(lambda names: names is not None and any(map(_is_trial, names)))
    return runs[asked.astype(bool)]


def _is_trial(name: str) -> bool:
    """Whether an experiment is for tuning: ``tuning``, or one that ends so, as ``speech_tuning``."""
    return name.split("/")[0].endswith(TUNING)


# -- speedup -----------------------------------------------------------------------------------------------------------

SPEEDUP_COLUMNS = [
    "paper", "evidence", "cluster", "method", "variant", "server", "dataset", "data_size", "model", "model_params",
    "scaling", "workers", "threads_per_worker", "oversubscribed", "minibatch", "global_batch", "epochs", "sync_period",
    "algorithm", "mixing", "optimizer", "lr_scaling", "n", "seconds", "seconds_low", "seconds_high", "spread",
    "samples_per_s", "time_to_target_s", "base", "base_seconds", "base_threads", "speedup", "speedup_low",
    "speedup_high", "command",
]  # fmt: skip


def speedup_table(
    runs: pd.DataFrame, timings: pd.DataFrame | None = None, tier: str | None = None
) -> pd.DataFrame:
    """A row for each configuration, kind of evidence, cluster and base; seconds are those of training."""
    rows = [*_measured_speedups(runs), *_modelled_speedups(runs, timings)]
    table = pd.DataFrame(
        [row | {"command": command_for(row["paper"], tier)} for row in rows], columns=SPEEDUP_COLUMNS
    )
    return typed(table)


def _measured_speedups(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    ended = ended_runs(runs)
    measured = ended[(ended["evidence"] == "measured").fillna(False).astype(bool) & ended["train_s"].notna()]
    groups = [
        (keys, rows, median_and_spread(rows["train_s"])) for keys, rows in groups_of(measured, CONFIGURATION)
    ]
    for keys, rows, seconds in groups:
        # the repeats' rates, as weak scaling compares samples per second: its work grows with the workers
        rate = median_and_spread(rows["samples_per_s"]).centre
        described = {
            **{name: keys.get(name) for name in SPEEDUP_COLUMNS if name in keys},
            "model_params": first_value(rows, "model_params"),
            "global_batch": first_value(rows, "global_batch"),
            "n": seconds.n,
            "seconds": seconds.centre,
            "seconds_low": seconds.low,
            "seconds_high": seconds.high,
            "spread": seconds.kind,
            "samples_per_s": rate,
            "time_to_target_s": median_and_spread(_time_to_target(rows)).centre,
        }
        for base, found in (
            (SAME_CODE, _same_code_base(keys, groups)),
            (BEST_SEQUENTIAL, _sequential_base(keys, groups)),
        ):
            row = described | {"base": base}
            if found is not None:
                base_keys, base_rows, base_seconds = found
                if keys["scaling"] == "weak":
                    scale = seconds.centre * rate / median_and_spread(base_rows["samples_per_s"]).centre
                else:
                    scale = base_seconds.centre
                row |= {
                    "base_seconds": base_seconds.centre,
                    "base_threads": base_keys["threads_per_worker"],
                    "speedup": scale / seconds.centre,
                    "speedup_low": scale / seconds.high,
                    "speedup_high": scale / seconds.low,
                }
            yield row


def _time_to_target(rows: pd.DataFrame) -> pd.Series:
    """Seconds to the target; infinite where it was set and missed, NaN where none was set."""
    missed = (rows["target_reached"] == False).fillna(False).astype(bool)  # noqa: E712
    return rows["time_to_target_s"].astype(float).mask(missed, np.inf)


def _same_code_base(keys: dict[str, Any], groups: list[Any]) -> Any:
    """The group of the same method with one worker; the nearest in algorithm and period, which do nothing there."""
    # one device is a strategy of its own
    alone = "single" if keys["method"] == LAYERWISE else keys["variant"]
    shared = [
        "paper",
        "method",
        "server",
        "partition",
        "threads_per_worker",
        "minibatch",
        *_work(keys),
    ]

    def nearness(group: Any) -> tuple[bool, int]:
        settings = ("sync_period", "algorithm", "lr", "lr_scaling")
        return _same_share(group[0], keys), sum(group[0][name] == keys[name] for name in settings)

    found = [
        group
        for group in groups
        if group[0]["workers"] == 1
        and group[0]["variant"] == alone
        and all(group[0][name] == keys[name] for name in shared)
    ]
    return max(found, key=nearness, default=None)


def _sequential_base(keys: dict[str, Any], groups: list[Any]) -> Any:
    """The fastest sequential group that does the same work, whatever its threads."""
    found = [
        group
        for group in groups
        if group[0]["method"] == "sequential"
        and all(group[0][name] == keys[name] for name in ["paper", *_work(keys)])
    ]

    def speed(group: Any) -> tuple[bool, float]:
        if keys["scaling"] == "weak":
            return _same_share(group[0], keys), median_and_spread(group[1]["samples_per_s"]).centre
        return True, -group[2].centre

    return max(found, key=speed, default=None)


def _work(keys: dict[str, Any]) -> list[str]:
    """Names of what a row and its base share. The samples of weak scaling, counted in total, grow with the workers."""
    return [name for name in _WORK if name != "data_size" or keys["scaling"] != "weak"]


def _same_share(base: dict[str, Any], keys: dict[str, Any]) -> bool:
    """Whether a worker of both has as many samples, which several weak sweeps of different sizes tell apart."""
    if base["data_size"] is None or keys["data_size"] is None:
        return False
    return base["data_size"] * keys["workers"] == keys["data_size"] * base["workers"]


def _modelled_speedups(runs: pd.DataFrame, timings: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    joined = join_timings(timings, runs)
    if not len(joined):
        return
    # a measured run's trace is timed for the validation only; its workers were counted by the clock
    joined = joined[
        (joined["run_evidence"] != "measured").fillna(True).astype(bool) & joined["status"].isin(ENDED)
    ]
    keys = [name for name in [*CONFIGURATION, "cluster"] if name in joined.columns]
    for found, rows in groups_of(joined, keys):
        seconds = range_or_interval(rows["train_s"]) if "train_s" in rows else range_or_interval([])
        described = {
            **{name: found.get(name) for name in SPEEDUP_COLUMNS if name in found},
            "model_params": first_value(rows, "model_params"),
            "global_batch": first_value(rows, "global_batch"),
            "n": len(rows),
            "seconds": seconds.centre,
            "seconds_low": seconds.low,
            "seconds_high": seconds.high,
            "spread": seconds.kind,
            "samples_per_s": range_or_interval(rows["samples_per_s"]).centre
            if "samples_per_s" in rows
            else np.nan,
            "time_to_target_s": _modelled_time_to_target(rows),
        }
        for base, column, threads in (
            (SAME_CODE, "speedup_same_code", "threads_per_worker"),
            (BEST_SEQUENTIAL, "speedup_best_sequential", "best_sequential_threads"),
        ):
            speedup = range_or_interval(rows[column]) if column in rows else range_or_interval([])
            yield described | {
                "base": base,
                "base_seconds": seconds.centre * speedup.centre,
                "base_threads": first_value(rows, threads) if speedup.n else None,
                "speedup": speedup.centre,
                "speedup_low": speedup.low,
                "speedup_high": speedup.high,
            }


def _modelled_time_to_target(rows: pd.DataFrame) -> float:
    if "time_to_target_s" not in rows:
        return np.nan
    times = rows["time_to_target_s"].astype(float)
    if "target_reached" in rows:
        times = times.mask((rows["target_reached"] == False).fillna(False).astype(bool), np.inf)  # noqa: E712
    return median_and_spread(times).centre


# -- the others --------------------------------------------------------------------------------------------------------


def time_split_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each measured configuration: the parts of the repeat with the (lower) median wall time."""
    names = ["paper", "evidence", "method", "variant", "dataset", "data_size", "model", "workers",
             "threads_per_worker", "oversubscribed", "minibatch", "sync_period", "algorithm", "mixing",
             "server"]  # fmt: skip
    ended = ended_runs(runs)
    measured = ended[(ended["evidence"] == "measured").fillna(False).astype(bool) & ended["wall_s"].notna()]
    rows = []
    for keys, group in groups_of(measured, CONFIGURATION):
        middle = group.sort_values(["wall_s", "run_id"]).iloc[(len(group) - 1) // 2]
        row = {name: keys[name] for name in names} | {"n": len(group), "wall_s": float(middle["wall_s"])}
        parts = {name: cell_value(middle[name]) for name in PARTS}
        row |= parts | {"comm_share": (parts["comm_s"] or 0.0) / _training_s(middle)}
        rows.append(row | {"run_id": middle["run_id"]})
    return typed(pd.DataFrame(rows, columns=[*names, "n", "wall_s", *PARTS, "comm_share", "run_id"]))


def _training_s(run: pd.Series) -> float:
    found = cell_value(run["train_s"])
    return float(found) if found else float(run["wall_s"])


QUALITY = ("wer", "frame_error", "p_at_1", "accuracy", "valid_accuracy")
# How a network is split, what its workers' data and memory are: of a row beside method and sizes.
_SPLIT = ["variant", "server", "partition", "redraw", "overlap", "lost_steps", "sharding", "skew",
          "memory_limit_bytes", "passes", "eval_size"]  # fmt: skip


def accuracy_table(runs: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each configuration and kind of evidence: its main quality metric over seeds, and what diverged.

    The repeats of one seed are one value. Configurations whose runs all diverged are kept, without a value.
    """
    names = ["paper", "evidence", "method", "dataset", "data_size", "model", "model_params", "workers", "minibatch",
             "epochs", "sync_period", "algorithm", "mixing", "optimizer", "init", "schedule", "lr",
             "lr_scaling", *_SPLIT]  # fmt: skip
    keys = [
        name for name in CONFIGURATION if name not in ("processes", "threads_per_worker", "oversubscribed")
    ]
    finished = runs[runs["status"].isin([*ENDED, "diverged"]).fillna(False).astype(bool)]
    rows = []
    for found, group in groups_of(finished, keys):
        ended = ended_runs(group)
        metric = next((name for name in QUALITY if ended[name].notna().any()), "accuracy")
        seeds = ended.groupby("seed")[[*dict.fromkeys([metric, "train_loss", "steps", *RANKS])]].mean()
        value = range_or_interval(seeds[metric].astype(float))
        rows.append(
            {name: found.get(name, first_value(group, name)) for name in names}
            | {
                "metric": metric,
                "mean": value.centre,
                "low": value.low,
                "high": value.high,
                "spread": value.kind,
                "n": value.n,
                "diverged": int((group["status"] == "diverged").sum()),
                "train_loss": float(seeds["train_loss"].astype(float).mean()),
                "steps": float(seeds["steps"].astype(float).mean()),
                **{name: float(seeds[name].astype(float).mean()) for name in RANKS},
                "command": command_for(found["paper"], tier),
            }
        )
    columns = [
        *names,
        "metric",
        "mean",
        "low",
        "high",
        "spread",
        "n",
        "diverged",
        "train_loss",
        "steps",
        *RANKS,
        "command",
    ]
    return typed(pd.DataFrame(rows, columns=columns))


def tuning_table(runs: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each trial of a learning rate: validation accuracy over its seeds, and what diverged."""
    names = ["paper", "evidence", "method", "dataset", "data_size", "model", "optimizer", "max_change_rule", "init",
             "schedule", "minibatch", "epochs", "workers", "sync_period", "lr_scaling", "lr"]  # fmt: skip
    tried = trials(runs)
    tried = tried[tried["status"].isin([*ENDED, "diverged"]).fillna(False).astype(bool)]
    rows = []
    for found, group in groups_of(tried, names):
        value = range_or_interval(ended_runs(group)["valid_accuracy"].astype(float))
        rows.append(
            found
            | {"metric": "valid_accuracy", "mean": value.centre, "low": value.low, "high": value.high}
            | {"spread": value.kind, "n": value.n, "diverged": int((group["status"] == "diverged").sum())}
            | {"command": command_for(found["paper"], tier)}
        )
    columns = [*names, "metric", "mean", "low", "high", "spread", "n", "diverged", "command"]
    return typed(pd.DataFrame(rows, columns=columns))


VOLUME_COLUMNS = [
    "paper", "evidence", "method", "dataset", "data_size", "model", "model_params", "workers", "epochs", "minibatch",
    "sync_period", "algorithm", "n", "steps", "payload_bytes", "sent_bytes_total", "sent_bytes_predicted",
    "matches_closed_form", "sent_bytes_per_worker", "sent_bytes_max_worker", "paper_bytes", "messages",
    "worker_params", "worker_share", "state_bytes_per_worker", "server_bytes", "resident_bytes", *_SPLIT, "command",
]  # fmt: skip


def volume_table(runs: pd.DataFrame, tier: str | None = None) -> pd.DataFrame:
    """A row for each configuration and kind of evidence: counted bytes, the closed form, the paper's own count."""
    counted = ["steps", "payload_bytes", "sent_bytes_total", "sent_bytes_predicted", "sent_bytes_max_worker",
               "paper_bytes", "messages", "worker_params", "state_bytes_per_worker", "server_bytes",
               "resident_bytes"]  # fmt: skip
    keys = [
        name
        for name in CONFIGURATION
        if name not in ("lr", "lr_scaling", "threads_per_worker", "oversubscribed")
    ]
    ended = ended_runs(runs)
    rows = []
    for found, group in groups_of(ended[ended["sent_bytes_total"].notna()], keys):
        both = group["sent_bytes_predicted"].notna()
        equal = (
            (group["sent_bytes_total"] == group["sent_bytes_predicted"])[both].all() if both.any() else None
        )
        row = {
            name: found.get(name, first_value(group, name)) for name in VOLUME_COLUMNS if name not in counted
        }
        # equal over seeds for every method here; where one is random, the median stands for them
        row |= {name: median_and_spread(group[name].astype(float)).centre for name in counted}
        row |= {
            "n": len(group),
            "matches_closed_form": None if equal is None else bool(equal),
            "sent_bytes_per_worker": row["sent_bytes_total"] / found["workers"],
            "worker_share": row["worker_params"] / (row["model_params"] or np.nan),
            "command": command_for(found["paper"], tier),
        }
        rows.append(row)
    return typed(pd.DataFrame(rows, columns=VOLUME_COLUMNS))


def validation_table(validation: pd.DataFrame | None) -> pd.DataFrame:
    """The frame that the time model's validation gives, as it is; empty where there is none."""
    return pd.DataFrame() if validation is None else validation.reset_index(drop=True)


def runs_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Number of runs by paper, method, evidence and status."""
    keys = ["paper", "method", "evidence", "status"]
    if not len(runs):
        return pd.DataFrame(columns=[*keys, "runs"])
    return typed(runs.groupby(keys, dropna=False, sort=True).size().rename("runs").reset_index())


def failures_table(runs: pd.DataFrame, tier: str | None = None, tail_lines: int = 20) -> pd.DataFrame:
    """A row for each run without a result, with its reason and the last lines of its log."""
    names = ["run_id", "paper", "method", "workers", "evidence", "status", "reason", "log_path", "attempts"]
    broken = runs[runs["status"].isin(NOT_A_RESULT).fillna(False).astype(bool)].sort_values(
        ["status", "run_id"]
    )
    table = broken[names].reset_index(drop=True)
    table["log_tail"] = [log_tail(path, tail_lines) for path in table["log_path"]]
    table["command"] = [command_for(cell_value(paper), tier) for paper in table["paper"]]
    return table


def log_tail(path: Any, lines: int = 20) -> str:
    """The last lines of a log, or what is wrong with it."""
    if cell_value(path) is None:
        return "no log"
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65536))
            text = file.read().decode("utf-8", errors="replace")
    except OSError as error:
        return f"no log: {error.strerror}"
    return "\n".join(text.splitlines()[-lines:]) or "the log is empty"
