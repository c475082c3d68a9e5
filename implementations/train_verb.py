"""The verb ``train``: one point given on the command line, of the suite's networks and data or of one's own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from implementations import config, record
from implementations.errors import UserError
from implementations.yamlfile import load_yaml


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("--method", required=True)
    parser.add_argument("--dataset", help="a data set of the suite; fashion_mnist unless given")
    help = "your own: a folder FOLDER/CLASS/*.png, or a file .npz, .pt, .csv or .parquet"
    parser.add_argument("--data", type=Path, metavar="PATH", help=help)
    parser.add_argument("--label", metavar="COLUMN", help="of a table: the column with the classes")
    parser.add_argument(
        "--image-size", type=int, metavar="SIDE", help="resize images to squares of this side"
    )
    help = "draws what is held out for validation and test, where the data have no parts of their own"
    parser.add_argument("--split-seed", type=int, default=0, help=help)
    parser.add_argument("--model", default="fc", help="a network of the suite, or MODULE:CLASS of yours")
    add_model_args(parser)
    parser.add_argument(
        "--hidden", default="256,256", help="units of the hidden layers, of one of the suite's"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--evidence", choices=["measured", "simulated"], default="measured")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other key")


def add_model_args(parser: argparse.ArgumentParser) -> None:
    """The option for arguments of a user's network."""
    help = "what your class or function is called with"
    parser.add_argument("--model-args", nargs="+", default=[], metavar="KEY=VALUE", help=help)


def run(args: argparse.Namespace, job_of: Any, settings: config.Settings) -> int:
    """Train the point, and print its record; ``job_of(args, settings)`` gives what all points of a call share."""
    from implementations import data
    from implementations.progress import Bar
    from implementations.run import run_points

    point = point_of(args, settings)
    if args.data is None:
        data.prepare(point.dataset, args.results)
    bar = Bar()
    try:
        run_points([point], job_of(args, settings), bar)
    finally:
        bar.stop()
    values = record.read(record.record_path(args.results, point.run_id))
    shown = {key: value for key, value in values.items() if value is not None}
    print(json.dumps(shown, indent=1))
    return 0 if values["status"] in record.FINISHED else 1


def point_of(args: argparse.Namespace, settings: config.Settings) -> Any:
    """The point that the arguments ask for; a user's own data are prepared on the way."""
    if args.data is not None and args.dataset is not None:
        raise UserError("--data and --dataset: give one of them")
    values = {"method": args.method, "workers": args.workers, "evidence": args.evidence}
    values |= key_values(args.set, "--set", "sync_period=5")
    catalog = config.Catalog.installed()
    if args.data is not None:
        values["dataset"], catalog = _own_data(args, catalog)
    else:
        values["dataset"] = args.dataset or "fashion_mnist"
    if ":" in args.model:
        values["model"] = _own_model(args, values)
    elif args.model_args:
        raise UserError("--model-args: for a network of yours, --model MODULE:CLASS")
    else:
        # a name with sizes, as config has it, or a name and --hidden
        named = {"name": args.model, "hidden": widths(args.hidden)}
        values["model"] = args.model if "-" in args.model else named
    return config.point_from_arguments(settings, values, catalog)


def _own_data(args: argparse.Namespace, catalog: config.Catalog) -> tuple[str, config.Catalog]:
    from implementations.data import own
    from implementations.data.preparation import counts_of
    from implementations.data.summary import read_summary

    name = own.prepare(own.Source(args.data, args.label, args.image_size, args.split_seed), args.results)
    summary = read_summary(args.results / "data" / name)
    for note in summary["sources"]["notes"]:
        print(f"{args.data}: {note}", file=sys.stderr)
    print(f"{args.data}: {name}: {counts_of(summary)}", file=sys.stderr)
    sizes = {**catalog.datasets, name: summary["splits"]["train"]["samples"]}
    return name, replace(catalog, datasets=sizes)


def _own_model(args: argparse.Namespace, values: Mapping[str, Any]) -> dict[str, Any] | str:
    """The model of the point; says where the network is trained as another one, or given other shapes."""
    from implementations import data
    from implementations.data.summary import read_summary
    from implementations.own import nets

    reach(Path.cwd())
    if args.data is None:
        data.prepare(values["dataset"], args.results)
    summary = read_summary(args.results / "data" / values["dataset"])
    given = key_values(args.model_args, "--model-args", "width=32")
    shape, classes = tuple(summary["input_shape"]), summary["classes"]
    net = nets.fitted(args.model, given, shape, classes)
    if net.sample != shape:
        sizes = [" x ".join(map(str, one)) for one in (shape, net.sample)]
        print(f"{args.model}: samples of {sizes[0]} are given to it as {sizes[1]}", file=sys.stderr)
    model = nets.model_for(net, values["method"], values.get("variant"))
    if model["name"] != nets.NAME:
        told = f"{args.model}: trained as the suite's own network {json.dumps(model)}, whose first weights are torch's"
        print(told, file=sys.stderr)
    return model


def reach(folder: Path) -> None:
    """Let this process and all that it starts import what lies in ``folder``."""
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(folder) not in before:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *before])
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def key_values(items: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """``KEY=VALUE`` texts as values; UserError for others."""
    values: dict[str, Any] = {}
    for item in items:
        key, _, value = item.partition("=")
        if not key or not value:
            raise UserError(f"{option} {item}: write KEY=VALUE, as in {option} {example}")
        try:
            values[key] = load_yaml(value)
        except yaml.YAMLError as error:
            raise UserError(f"{option} {item}: the value is not YAML ({error.problem})") from error
    return values


def widths(text: str) -> list[int]:
    """``256,256`` as numbers."""
    try:
        return [int(width) for width in text.split(",") if width]
    except ValueError as error:
        raise UserError(f"--hidden {text}: write whole numbers with commas between, as in 256,256") from error
