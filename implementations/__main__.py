"""Command line of paratrain.

    python -m implementations doctor                 what works on this machine, and how to mend what does not
    python -m implementations prepare fashion_mnist  fetch and prepare a data set
    python -m implementations train --method averaging --dataset digits --workers 2 --set sync_period=5
    python -m implementations points --configfile config/config.yaml
    python -m implementations VERB --help

The remaining verbs are the steps of the Snakefile, each a command of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

from implementations.errors import UserError
from implementations.layerwise.options import OBJECTIVES, SYNCS

ROOT = Path(__file__).parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; a user's mistake ends in one message and exit code 2."""
    args = _parser().parse_args(arguments)
    for option, file in getattr(args, "in_results", {}).items():
        if getattr(args, option) is None:
            setattr(args, option, args.results / file)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return args.verb(args) or 0
    except UserError as error:
        print(f"paratrain: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("paratrain: interrupted; the next start goes on from here", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"paratrain: error: {where}{os.strerror(error.errno or 0)}", file=sys.stderr)
        return 2


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _doctor(args: argparse.Namespace) -> int:
    from implementations.doctor import doctor

    return doctor(as_json=args.json, spark=args.spark)


def _prepare(args: argparse.Namespace) -> int:
    from implementations import data

    if args.outcome is None:
        return max(data.command(name, args.results) for name in args.dataset)
    from implementations.workflow import leave_outcome

    if len(args.dataset) > 1:
        raise UserError(f"--outcome {args.outcome}: give one data set, got {', '.join(args.dataset)}")
    name = args.dataset[0]

    def step() -> None:
        data.prepare(name, args.results)
        data.command(name, args.results)  # tells what is there now

    return leave_outcome(args.outcome, args.results / "data" / name / "summary.json", step)


def _points(args: argparse.Namespace) -> None:
    from implementations import config

    print(config.describe(_settings(args)))


def _calibrate(args: argparse.Namespace) -> int:
    """Measure this machine; with ``--outcome`` failures stand there, and the exit code is 0."""
    from implementations.cluster.calibrate import calibrate, shapes_of
    from implementations.workflow import runs_on_spark

    settings = _settings(args)

    def step() -> None:
        if args.outcome is not None:
            args.out.unlink(missing_ok=True)  # what an earlier calibration found does not pass for this one's
        shapes = shapes_of(settings.points)
        spark = runs_on_spark(settings)
        print(calibrate(args.out, quick=args.quick, shapes=shapes, settings=settings.launcher, spark=spark))

    if args.outcome is None:
        step()
        return 0
    from implementations.workflow import leave_outcome

    return leave_outcome(args.outcome, args.out, step)


def _run(args: argparse.Namespace) -> None:
    """Run a batch; failures stand in the records and in the manifest, the exit code is 0 all the same."""
    from implementations import lifeline, record
    from implementations.progress import Bar
    from implementations.run import run_points

    lifeline.hold_on()
    settings = _settings(args)
    batch = next((batch for batch in settings.batches if batch.id == args.batch), None)
    if batch is None:
        some = ", ".join(batch.id for batch in settings.batches[:3])
        raise UserError(
            f"{args.configfile} has no batch {args.batch!r}; it has {len(settings.batches)}: {some}, ..."
        )
    wanted = set(batch.run_ids)
    points = [point for point in settings.points if point.run_id in wanted]
    bar = Bar()
    try:
        statuses = run_points(points, _job(args, settings), bar)
    finally:
        bar.stop()
    record.write_text(args.manifest, json.dumps({"batch": batch.id, "statuses": statuses}, indent=1))


def _train(args: argparse.Namespace) -> int:
    """Run one point given on the command line."""
    from implementations import config, record
    from implementations.progress import Bar
    from implementations.run import run_points

    settings = _settings(args)
    point = config.point_from_arguments(settings, _train_values(args))
    from implementations import data

    data.prepare(point.dataset, args.results)
    bar = Bar()
    try:
        run_points([point], _job(args, settings), bar)
    finally:
        bar.stop()
    values = record.read(record.record_path(args.results, point.run_id))
    shown = {key: value for key, value in values.items() if value is not None}
    print(json.dumps(shown, indent=1))
    return 0 if values["status"] in record.FINISHED else 1


def _train_values(args: argparse.Namespace) -> dict[str, Any]:
    import yaml

    from implementations.yamlfile import load_yaml

    values: dict[str, Any] = {
        "method": args.method,
        "dataset": args.dataset,
        "workers": args.workers,
        "evidence": args.evidence,
        # a name with sizes, as config has it, or a name and --hidden
        "model": args.model if "-" in args.model else {"name": args.model, "hidden": _widths(args.hidden)},
    }
    for item in args.set:
        key, _, value = item.partition("=")
        if not key or not value:
            raise UserError(f"--set {item}: write KEY=VALUE, as in --set sync_period=5")
        try:
            values[key] = load_yaml(value)
        except yaml.YAMLError as error:
            raise UserError(f"--set {item}: the value is not YAML ({error.problem})") from error
    return values


def _widths(text: str) -> list[int]:
    try:
        return [int(width) for width in text.split(",") if width]
    except ValueError as error:
        raise UserError(f"--hidden {text}: write whole numbers with commas between, as in 256,256") from error


def _layerwise(args: argparse.Namespace) -> None:
    """Tell how to split a network over the devices of a machine."""
    from implementations.cluster import machine
    from implementations.layerwise import advice

    for option in ("devices", "classes", "memory_limit_mb"):
        value = getattr(args, option)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{option.replace('_', '-')} {value}: write a number more than 0")
    minibatch, *sample = advice.sizes(args.input)
    cluster = machine.load(args.cluster, args.results)
    question = advice.Question(
        advice.graph_of(args.model, tuple(sample), args.classes),
        minibatch,
        args.devices or cluster.capacity,
        cluster,
        {"objective": args.objective, "plan_sync": args.sync, "degrees": args.degrees},
        args.memory_limit_mb * 1e6 if args.memory_limit_mb else None,
        args.results,
    )
    if args.measure:
        advice.measure(question)
    print(advice.text(question, args.markdown))


def _plans(args: argparse.Namespace) -> None:
    """Plan every layer-wise point; blocks of layers that this host's plans need are measured first."""
    from implementations import plans
    from implementations.reporting.files import write_parquet

    settings = _settings(args)
    folder = args.configfile.parent / "clusters"
    made = plans.make(
        [*settings.projected, *settings.points],
        args.results,
        folder if folder.is_dir() else None,
        settings.launcher,
    )
    for frame, path in zip(made, (args.out, args.out.with_name("search.parquet"))):
        write_parquet(frame, path)


def _spark(args: argparse.Namespace) -> None:
    """Project every point of Spark's method that is not trained, by the cost model."""
    from implementations import sparkprojections
    from implementations.reporting.files import write_parquet

    settings = _settings(args)
    folder = args.configfile.parent / "clusters"
    made = sparkprojections.make(settings.projected, args.results, folder if folder.is_dir() else None)
    write_parquet(made, args.out)


def _exactness(args: argparse.Namespace) -> None:
    """Check training that is split against one device, as much as the tier says, where it has such points."""
    from implementations import exactness
    from implementations.reporting.files import write_parquet

    settings = _settings(args)
    methods = {point.method for point in (*settings.points, *settings.projected)}
    write_parquet(exactness.table(settings.tier, methods), args.out)


def _collect(args: argparse.Namespace) -> None:
    from implementations.reporting.collect import collect

    settings = _settings(args)
    collect(settings.points, args.results, args.out)


def _timings(args: argparse.Namespace) -> None:
    from implementations.reporting.files import read_table
    from implementations.timings import write_timings

    settings, runs = _settings(args), read_table(args.runs)
    folder = args.configfile.parent / "clusters"  # a user's own clusters lie beside the config file
    clusters_dir = folder if folder.is_dir() else None
    clusters = _calibrated(settings.clusters, args.results, clusters_dir)
    write_timings(runs, args.results, clusters, args.out, clusters_dir, settings.projected)


def _calibrated(names: Any, results: Path, clusters_dir: Path | None) -> list[str]:
    """The clusters without those that are, or are like, this machine where it is not calibrated: a warning each."""
    from implementations.cluster import machine

    kept = []
    for name in names:
        try:
            machine.load(name, results, clusters_dir)
        except machine.NotCalibrated as error:
            print(f"paratrain: warning: no times on cluster {name}: {error}", file=sys.stderr)
        else:
            kept.append(name)
    return kept


def _utterances(args: argparse.Namespace) -> Path:
    """The word errors of each test utterance, which are collected beside the runs."""
    return args.runs.with_name("utterances.parquet")


def _planned(args: argparse.Namespace) -> dict[str, Path]:
    """The tables of plans and of searches, which lie side by side."""
    return {"plans": args.plans, "searches": args.plans.with_name("search.parquet")}


def _projections(args: argparse.Namespace) -> Path:
    """What the cost model of training on Spark says, which lies beside them."""
    return args.plans.with_name("spark.parquet")


def _losses(timings: Any) -> Any:
    """The time model's split of the efficiency that projections of the averaging paper lose."""
    from implementations.timings import loss_split

    return loss_split(timings[(timings["evidence"] == "projected") & (timings["paper"] == "averaging")])


def _claims(args: argparse.Namespace) -> None:
    from implementations.reporting import make_claims

    tier = _settings(args).tier
    make_claims(
        args.runs,
        args.timings,
        args.out,
        utterances=_utterances(args),
        tier=tier,
        projections=_projections(args),
        exactness=args.plans.with_name("exactness.parquet"),
        **_planned(args),
    )


def _tables(args: argparse.Namespace) -> None:
    from implementations.reporting import make_tables
    from implementations.reporting.files import read_table
    from implementations.timings import validation

    runs, timings = read_table(args.runs), read_table(args.timings)
    tier, errors = _settings(args).tier, _utterances(args)
    checked, losses = validation(runs, timings), _losses(timings)
    make_tables(
        runs,
        timings,
        checked,
        args.out,
        tier,
        utterances=errors,
        losses=losses,
        results_dir=args.results,
        exactness=args.plans.with_name("exactness.parquet"),
        projections=_projections(args),
        **_planned(args),
    )


def _figures(args: argparse.Namespace) -> None:
    from implementations.reporting import make_figures, make_headline
    from implementations.reporting.files import read_table
    from implementations.timings import validation

    runs, timings = read_table(args.runs), read_table(args.timings)
    tier, errors = _settings(args).tier, _utterances(args)
    checked, losses = validation(runs, timings), _losses(timings)
    make_figures(
        runs,
        timings,
        checked,
        args.results,
        args.out,
        tier=tier,
        utterances=errors,
        losses=losses,
        projections=_projections(args),
        **_planned(args),
    )
    if args.headline:
        make_headline(figures_dir=args.out, out_dir=args.headline)


def _report(args: argparse.Namespace) -> None:
    from implementations.reporting import make_report

    make_report(args.results, args.reports, args.configfile, args.out)


def _status(args: argparse.Namespace) -> int:
    from implementations.reporting import summarise

    return summarise(args.results, args.reports, partial=args.partial)


def _settings(args: argparse.Namespace) -> Any:
    from implementations import config

    settings = config.load(args.configfile)
    if not getattr(args, "paper", None):
        return settings
    settings = config.select(settings, args.paper)
    if not settings.points and not settings.projected:
        raise UserError(f"--paper {args.paper}: {args.configfile} has no points of it")
    return settings


def _job(args: argparse.Namespace, settings: Any) -> Any:
    from implementations.run import Job

    return Job(args.results, settings.launcher, settings.grace_s, settings.spark)


def _lies_in_results(parser: argparse.ArgumentParser, **files: str) -> None:
    """Options whose files lie in the folder of ``--results`` unless they are given."""
    for option, file in files.items():
        parser.add_argument(f"--{option}", type=Path, help=f"{file} in the folder of results, unless given")
    parser.set_defaults(in_results=files)


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("paratrain", description=__doc__, formatter_class=formatter)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, function: Any, help: str, config: bool = True) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=help, description=help)
        added.set_defaults(verb=function)
        added.add_argument("--results", type=Path, default=Path("results"), help="folder of all results")
        if config:
            default = ROOT / "config/config.yaml"
            added.add_argument("--configfile", type=Path, default=default, help="tier to use")
            added.add_argument("--paper", help="only the points of one paper")
        return added

    doctor = verb("doctor", _doctor, "tell what works on this machine, and how to mend what does not", False)
    doctor.add_argument("--json", action="store_true", help="for programs")
    doctor.add_argument("--spark", action="store_true", help="start a real Spark session (8 s)")

    prepare = verb("prepare", _prepare, "fetch, verify and prepare data sets", False)
    prepare.add_argument("dataset", nargs="+")
    outcome = "file for how it ended; the exit code is then 0 also when it failed"
    prepare.add_argument("--outcome", type=Path, help=outcome)

    verb("points", _points, "print the points of a tier by method and evidence")

    calibrate = verb("calibrate", _calibrate, "measure this machine: step time, collectives; takes it alone")
    _lies_in_results(calibrate, out="calibration/this-host.yaml")
    calibrate.add_argument("--quick", action="store_true", help="fewer sizes and repeats, about 10 s")
    calibrate.add_argument("--outcome", type=Path, help=outcome)

    run = verb("run", _run, "run the points of a batch that have no valid record")
    run.add_argument("--batch", required=True)
    run.add_argument("--manifest", type=Path, required=True, help="file to write when all have a record")

    train = verb("train", _train, "run one point given here, and print its record")
    train.add_argument("--method", required=True)
    train.add_argument("--dataset", default="fashion_mnist")
    train.add_argument("--model", default="fc")
    train.add_argument("--hidden", default="256,256", help="units of the hidden layers")
    train.add_argument("--workers", type=int, default=1)
    train.add_argument("--evidence", choices=["measured", "simulated"], default="measured")
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other key")

    layerwise = verb(
        "layerwise", _layerwise, "tell how to split a network, layer by layer, on a machine", False
    )
    layerwise.add_argument("--model", required=True, help="MODULE:CLASS of yours, or a network of the suite")
    layerwise.add_argument("--input", required=True, help="samples of a device and their sizes: 32,3,224,224")
    layerwise.add_argument("--cluster", default="this-host", help="cluster file, or the name of one")
    layerwise.add_argument("--devices", type=int, help="how many of its devices; all unless given")
    layerwise.add_argument("--classes", type=int, default=1000, help="of a network of the suite")
    layerwise.add_argument("--objective", choices=OBJECTIVES, default=OBJECTIVES[0], help="what is minimised")
    layerwise.add_argument("--sync", choices=SYNCS, default="allreduce", help="how gradients are summed")
    layerwise.add_argument("--degrees", choices=["powers", "all"], default="powers", help="of two, or any")
    layerwise.add_argument("--memory-limit-mb", type=float, help="what a device may need, in 1e6 bytes")
    layerwise.add_argument("--measure", action="store_true", help="time the blocks on this host first")
    layerwise.add_argument("--markdown", action="store_true", help="tables in Markdown")

    plans = verb(
        "plans", _plans, "plan every layer-wise point; measures blocks of layers, takes the machine alone"
    )
    _lies_in_results(plans, out="plans.parquet")

    spark = verb("spark", _spark, "project training on Spark to other machines and sizes, by a cost model")
    _lies_in_results(spark, out="spark.parquet")

    exactness = verb(
        "exactness", _exactness, "check layer-wise strategies and Spark's programs against one device"
    )
    _lies_in_results(exactness, out="exactness.parquet")

    collect = verb("collect", _collect, "gather records into one table")
    _lies_in_results(collect, out="runs.parquet")

    timings = verb("timings", _timings, "predict the time of every trace on every cluster file")
    _lies_in_results(timings, runs="runs.parquet", out="timings.parquet")

    for name, function, out, help in (
        ("claims", _claims, "reports/tables/claims.csv", "compare with the published numbers"),
        ("tables", _tables, "reports/tables", "write the tables"),
        ("figures", _figures, "reports/figures", "draw the figures"),
    ):
        step = verb(name, function, help)
        _lies_in_results(step, runs="runs.parquet", timings="timings.parquet", plans="plans.parquet")
        step.add_argument("--out", type=Path, default=Path(out))
        if name == "figures":
            help = "also copy the project's headline figure into this folder"
            step.add_argument("--headline", type=Path, metavar="FOLDER", help=help)

    report = verb("report", _report, "write the report from tables and figures")
    report.add_argument("--reports", type=Path, default=Path("reports"))
    report.add_argument("--out", type=Path, default=Path("reports/report.html"))

    status = verb(
        "status", _status, "say how the last run ended; exit code 1 when a point has no result", False
    )
    status.add_argument("--partial", action="store_true", help="points without a record are no failure")
    status.add_argument("--reports", type=Path, default=Path("reports"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
