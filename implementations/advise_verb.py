r"""The verb ``advise``: which method for a network, data of a size and a machine; or for the report's examples.

python -m implementations advise --model mymodule:Net --input 1,28,28 --classes 10 --data-size 50000 \
    --cluster config/clusters/mine.yaml --workers 1-32
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from implementations.errors import UserError
from implementations.train_verb import add_model_args, key_values, reach

if TYPE_CHECKING:
    from implementations.advice.answer import Grounds

# The report's examples: network, data set whose sizes it is for, and samples of a worker and step.
EXAMPLES = (
    ("fc-512-512", "fashion_mnist", 64),
    ('{"name": "cnn", "filters": [32, 64], "hidden": [512]}', "cifar10", 64),
    ('{"name": "alexnet", "dropout": 0}', "imagenet", 32),
)
EXAMPLE_WORKERS = (1, 2, 4, 16)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the verb takes, beside results and config."""
    parser.add_argument("--model", help="MODULE:CLASS of yours, or a network of the suite, as fc-512-512")
    add_model_args(parser)
    parser.add_argument("--dataset", help="take the sizes of a data set of the suite")
    parser.add_argument("--data-size", type=int, help="training samples")
    parser.add_argument("--input", help="sizes of a sample: 1,28,28 or 784")
    parser.add_argument("--classes", type=int)
    parser.add_argument("--cluster", default="this-host", help="cluster file, or the name of one")
    parser.add_argument("--workers", default="1-32", help="1-32 (powers of two) or 1,6,12")
    parser.add_argument("--minibatch", type=int, default=64, help="samples of a worker and step")
    parser.add_argument("--sync-period", type=int, default=10, help="local steps of model averaging")
    parser.add_argument("--subnet-period", type=int, default=20, help="local steps of subnet training")
    parser.add_argument("--memory-limit-mb", type=float, help="what a worker may hold, in 1e6 bytes")
    parser.add_argument("--reference", type=Path, help="folder of measurements, where --results has none")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument("--csv", type=Path, help="write every number of workers of every method")
    parser.add_argument(
        "--examples", action="store_true", help="the report's examples on the tier's clusters"
    )
    parser.add_argument("--out", type=Path, help="of --examples; advice.parquet in the folder of results")


def run(args: argparse.Namespace) -> None:
    """Print the answer, with ``--csv`` write it too."""
    from implementations.advice import answer, estimates, nets, parts, tell
    from implementations.cluster import machine
    from implementations.reporting.files import write_whole

    for option in ("data_size", "classes", "minibatch", "sync_period", "subnet_period", "memory_limit_mb"):
        value = getattr(args, option)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{option.replace('_', '-')} {value}: write a number more than 0")
    if args.model is None:
        raise UserError(
            "--model: name a network: MODULE:CLASS of yours, or one of the suite's, as fc-512-512"
        )
    try:
        workers = parts.worker_counts(args.workers)
    except ValueError:
        raise UserError(f"--workers {args.workers}: write 1-32, or numbers with commas between") from None
    shape, classes, samples = _sizes(args)
    cluster = machine.load(args.cluster, args.results)
    if ":" in args.model:
        reach(Path.cwd())
    given = key_values(args.model_args, "--model-args", "width=32")
    net = nets.subject(args.model, shape, classes, samples, given)
    limit = None if args.memory_limit_mb is None else args.memory_limit_mb * 1e6
    ways = estimates.ways(args.sync_period, args.subnet_period)
    table = answer.answer(
        net,
        cluster,
        workers,
        args.minibatch,
        ways,
        grounds(args.results, args.reference),
        args.results,
        limit,
    )
    head = (
        f"{net.label}: {net.kind}, {net.params:,} parameters, {tell.size(4 * net.params)}, "
        f"{net.flops / 1e6:,.3g} MFLOP a training sample\n"
        f"{samples:,} samples of {' x '.join(map(str, shape))}, {classes} classes; {args.minibatch} samples of a "
        f"worker and step; on {cluster.name}, which has places for {cluster.capacity} workers\n"
        "all seconds are projected: an epoch, without evaluation"
    )
    print(tell.text(table, head, args.markdown))
    if args.csv:
        write_whole(args.csv, table.to_csv(index=False).encode())


def _sizes(args: argparse.Namespace) -> tuple[tuple[int, ...], int, int]:
    """Sizes of a sample, classes and samples, as given or as a data set has them."""
    from implementations.data.cards import load_card

    sizes: dict[str, Any] = dict(load_card(args.dataset).sizes) if args.dataset else {}
    shape = tuple(sizes.get("input_shape", ()))
    if args.input is not None:
        try:
            shape = tuple(int(part) for part in args.input.split(","))
        except ValueError:
            shape = (0,)
        if min(shape) < 1:
            raise UserError(f"--input {args.input}: write the sizes of a sample, as in 1,28,28 or 784")
    classes, samples = args.classes or sizes.get("classes"), args.data_size or sizes.get("train")
    for option, value in (("--input", shape), ("--classes", classes), ("--data-size", samples)):
        if not value:
            raise UserError(f"{option}: needed, or --dataset to take the sizes of a data set of the suite")
    return shape, classes, samples


def grounds(results: Path, reference: Path | None = None) -> Grounds:
    """What was trained and checked: of ``results``, and of the reference where that has nothing of it."""
    from implementations.advice import answer, targets
    from implementations.reporting import plans, validation
    from implementations.reporting.files import read_table

    own = Path(__file__).parents[1] / "results/reference"
    folders = [results, reference or own]
    reached, checked = pd.DataFrame(), pd.DataFrame()
    for folder in folders:
        if not all((folder / f"{name}.parquet").is_file() for name in ("runs", "timings")):
            continue
        runs, timings = read_table(folder / "runs.parquet"), read_table(folder / "timings.parquet")
        if reached.empty:
            reached = targets.reached(timings)
        if checked.empty:
            checked = validation.validation(runs, timings, plans.as_plans(folder / "plans.parquet"))
    return answer.Grounds(reached, checked)


def examples(clusters: Iterable[str], results: Path, clusters_dir: Path | None = None) -> pd.DataFrame:
    """The answer for ``EXAMPLES`` on each cluster; one without known sizes, or not calibrated, gets no rows."""
    from implementations.advice import answer, estimates, nets
    from implementations.cluster import machine
    from implementations.data.cards import load_card

    known, ways = grounds(results), estimates.ways(10, 20)
    machines = []
    for name in clusters:
        try:
            machines.append(machine.load(name, results, clusters_dir))
        except machine.NotCalibrated as error:
            print(f"paratrain: warning: no advice for cluster {name}: {error}", file=sys.stderr)
    tables = [pd.DataFrame(columns=answer.COLUMNS)]
    for model, dataset, minibatch in EXAMPLES:
        sizes = load_card(dataset).sizes
        name = model.split('"')[3] if model.startswith("{") else model
        net = nets.subject(
            model, sizes["input_shape"], sizes["classes"], sizes["train"], label=f"{name}, {dataset}"
        )
        tables += [
            answer.answer(net, cluster, EXAMPLE_WORKERS, minibatch, ways, known, results)
            for cluster in machines
        ]
    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else tables[0]
