"""Command line of paratrain.

    python -m implementations doctor                 what works on this machine, and how to mend what does not
    python -m implementations prepare fashion_mnist  fetch and prepare a data set
    python -m implementations train --method averaging --dataset digits --workers 2 --set sync_period=5
    python -m implementations points --configfile config/config.yaml
    python -m implementations hosts --hosts 2 --rate 100mbit -- mpiexec -n 2 python my.py
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

from implementations import advise_verb, lifeline, train_verb
from implementations.errors import UserError
from implementations.layerwise.options import OBJECTIVES, SYNCS

ROOT = Path(__file__).parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; a user's mistake ends in one message and exit code 2."""
    args = _parser().parse_args(arguments)
    for option, file in getattr(args, "in_results", {}).items():
        if getattr(args, option) is None:
            setattr(args, option, args.results / file)
    lifeline.hold_on()
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
    from implementations.cluster import calibrate, shapes
    from implementations.workflow import runs_on_spark

    settings = _settings(args)
    asked = {"quick": args.quick, "settings": settings.launcher}
    if args.network:
        out = args.out.with_name(f"{args.network}.yaml")
        print(calibrate.calibrate_network(args.network, out, **asked))
        return 0

    def step() -> None:
        if args.outcome is not None:
            args.out.unlink(missing_ok=True)  # what an earlier calibration found does not pass for this one's
        wanted, spark = shapes.of_points(settings.points), runs_on_spark(settings)
        print(calibrate.calibrate(args.out, wanted=wanted, spark=spark, **asked))
        networks = calibrate.networks_of(settings.points)
        calibrate.calibrate_networks(networks, args.out.parent, **asked)

    if args.outcome is None:
        step()
        return 0
    from implementations.workflow import leave_outcome

    return leave_outcome(args.outcome, args.out, step)


def _run(args: argparse.Namespace) -> None:
    """Run a batch; failures stand in the records and in the manifest, the exit code is 0 all the same."""
    from implementations import record
    from implementations.progress import Bar
    from implementations.run import run_points

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
    return train_verb.run(args, _job, _settings(args))


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


def _validation(args: argparse.Namespace, runs: Any, timings: Any) -> Any:
    """The time model against the points of experiment ``validation``."""
    from implementations.reporting import plans, validation

    return validation.validation(runs, timings, plans.as_plans(args.plans), _settings(args).tier)


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

    runs, timings = read_table(args.runs), read_table(args.timings)
    tier, errors = _settings(args).tier, _utterances(args)
    checked, losses = _validation(args, runs, timings), _losses(timings)
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

    runs, timings = read_table(args.runs), read_table(args.timings)
    tier, errors = _settings(args).tier, _utterances(args)
    checked, losses = _validation(args, runs, timings), _losses(timings)
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


def _reference(args: argparse.Namespace) -> None:
    """Draw the packed run again, or pack the one that there is."""
    from implementations.reporting import reference

    if args.pack:
        tier = _settings(args).tier
        print("\n".join(reference.pack(args.results, args.reference, args.reports, tier)))
        return
    reference.require(args.reference)
    files = {name: args.reference / f"{name}.parquet" for name in ("runs", "timings", "plans")}
    out = args.out or args.reports / "reference"
    for step, made in (
        (_claims, "tables/claims.csv"),
        (_tables, "tables"),
        (_figures, "figures"),
        (_report, "report.html"),
    ):
        given = vars(args) | files | {"results": args.reference, "reports": out, "out": out / made}
        step(argparse.Namespace(**given, headline=None))
    print(f"report: {(out / 'report.html').resolve()}")


def _hosts(args: argparse.Namespace) -> int:
    """Emulated hosts, for whatever command is run on them."""
    from implementations import hosts_verb

    if args.clean:
        return hosts_verb.clean()
    return hosts_verb.hosts(args.hosts, args.rate, args.command, args.each)


def _crate(args: argparse.Namespace) -> None:
    """Put a finished run into one archive that tells what lies in it."""
    from implementations import crate

    settings = _settings(args)
    print(crate.write(args.results, args.reports, settings, args.out))


def _compare(args: argparse.Namespace) -> None:
    """Hold the runs of a folder against those of another."""
    from implementations.reporting import compare
    from implementations.reporting.files import write_whole

    runs = compare.load(args.results)
    table = compare.compare(runs, compare.load(args.reference))
    print("\n".join(compare.summary(table, len(runs), str(args.reference))))
    if args.csv:
        write_whole(args.csv, table.to_csv(index=False).encode())


def _advise(args: argparse.Namespace) -> None:
    """Rank the methods for a network and a machine, or for the report's examples."""
    if not args.examples:
        advise_verb.run(args)
        return
    from implementations.reporting.files import write_parquet

    folder = args.configfile.parent / "clusters"
    made = advise_verb.examples(_settings(args).clusters, args.results, folder if folder.is_dir() else None)
    write_parquet(made, args.out or args.results / "advice.parquet")


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
    network = "instead of the machine, what joins emulated hosts: emulated-100mbit, say (root only)"
    calibrate.add_argument("--network", metavar="NAME", help=network)
    calibrate.add_argument("--outcome", type=Path, help=outcome)

    run = verb("run", _run, "run the points of a batch that have no valid record")
    run.add_argument("--batch", required=True)
    run.add_argument("--manifest", type=Path, required=True, help="file to write when all have a record")

    train = verb("train", _train, "run one point given here, and print its record")
    train_verb.arguments(train)

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

    reference = verb("reference", _reference, "draw the committed run again, or pack one to commit")
    reference.add_argument("--pack", action="store_true", help="put the run of --results into --reference")
    folder = ROOT / "results/reference"
    reference.add_argument("--reference", type=Path, default=folder, help="folder of the packed run")
    reference.add_argument("--reports", type=Path, default=Path("reports"), help="folder of the reports")
    reference.add_argument("--out", type=Path, help="where to draw, unless in --reports/reference")

    hosts = verb(
        "hosts", _hosts, "emulate hosts on a network of limited rate, and run a command there", False
    )
    hosts.add_argument("--hosts", type=int, default=2, help="how many; 2 unless given")
    hosts.add_argument("--rate", help="of each host's link, as 100mbit; no limit unless given")
    hosts.add_argument("--each", action="store_true", help="run the command on every host, not on the first")
    hosts.add_argument("--clean", action="store_true", help="only remove what killed runs have left")
    hosts.add_argument("command", nargs="*", help="after --: on host 0, where mpiexec reaches them all")

    crate = verb("crate", _crate, "put a finished run into one archive, an RO-Crate")
    crate.add_argument("--reports", type=Path, default=Path("reports"), help="folder of the reports")
    _lies_in_results(crate, out="crate.zip")

    compare = verb("compare", _compare, "hold runs of yours against the reference, point by point", False)
    help = "folder of the runs to hold them against"
    compare.add_argument("--reference", type=Path, default=ROOT / "results/reference", help=help)
    compare.add_argument("--csv", type=Path, help="write every point with its verdict")

    advise = verb("advise", _advise, "say which method is fastest for a network, data and a machine, and why")
    advise_verb.arguments(advise)

    status = verb(
        "status", _status, "say how the last run ended; exit code 1 when a point has no result", False
    )
    status.add_argument("--partial", action="store_true", help="points without a record are no failure")
    status.add_argument("--reports", type=Path, default=Path("reports"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
