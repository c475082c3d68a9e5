"""Runs every benchmark and prints a table: ours, the reference, their ratio measured in one run, and the goal.

    python -m benchmarks [NAME ...]      names: averaging_operation end_to_end speech_end_to_end simulated harness
                                                speedup natural_gradient matmul_peak decoding subnet_step
                                                subnet_ranks subnet_memory layerwise_alexnet
                                                layerwise_resnet50 layerwise_vgg16 layerwise_inception_v3
                                                spark_exchange spark_against_mpi spark_against_distributor
                                                spark_speedup spark_start_up

About eight minutes in all on two cores, and forty more for the layer-wise ones, which are of the networks at their
real size and time their layers first; leave the machine alone meanwhile. Rows also go to results/bench.json, where
those of benchmarks that are not named stay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from implementations.cluster.launcher import mpi_command, rank_environment
from implementations.errors import UserError
from implementations.record import write_text
from implementations.reporting import benchrows

LIMIT_S, LONG_LIMIT_S = 600, 3600


def on_ranks(name: str, ranks: int) -> list[dict[str, Any]]:
    """Rows of a benchmark of ``benchmarks.ranks``."""
    command = [*mpi_command(ranks, {}), sys.executable, "-m", "benchmarks.ranks", name]
    return _rows(command, rank_environment(1))


def alone(name: str, threads: int) -> list[dict[str, Any]]:
    """Rows of a benchmark of ``benchmarks.alone`` on so many threads."""
    command = [sys.executable, "-m", "benchmarks.alone", name, str(threads)]
    return _rows(command, rank_environment(threads))


def speech(name: str) -> list[dict[str, Any]]:
    """Rows of a benchmark of ``benchmarks.speech``, on one thread."""
    return _rows([sys.executable, "-m", "benchmarks.speech", name], rank_environment(1))


def subnet(name: str) -> list[dict[str, Any]]:
    """Rows of a benchmark of ``benchmarks.subnets``, on one thread."""
    return _rows([sys.executable, "-m", "benchmarks.subnets", name], rank_environment(1))


def layerwise(net: str) -> list[dict[str, Any]]:
    """Rows of a network under layer-wise strategies on one rank and on two, after its layers were timed here."""
    rows = []
    for ranks in (1, 2):
        program = [sys.executable, "-m", "benchmarks.layerwise"]
        environment = os.environ | rank_environment(1)
        subprocess.run(
            [*program, "measure", net, str(ranks)], env=environment, timeout=LONG_LIMIT_S, check=True
        )
        command = [*(mpi_command(ranks, {}) if ranks > 1 else []), *program, "steps", net]
        rows += _rows(command, rank_environment(1), LONG_LIMIT_S)
    return rows


def spark(name: str) -> list[dict[str, Any]]:
    """Rows of a benchmark of ``benchmarks.spark``, whose session runs two tasks."""
    return _rows([sys.executable, "-m", "benchmarks.spark", name], rank_environment(1), LONG_LIMIT_S)


def _rows(command: list[str], environment: dict[str, str], limit_s: float = LIMIT_S) -> list[dict[str, Any]]:
    done = subprocess.run(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


BENCHMARKS = {
    "averaging_operation": lambda: on_ranks("averaging_operation", 2) + on_ranks("averaging_operation", 4),
    "end_to_end": lambda: on_ranks("end_to_end", 2),
    "speech_end_to_end": lambda: on_ranks("speech_end_to_end", 2),
    "simulated": lambda: alone("simulated", 1) + alone("simulated", 2),
    "harness": lambda: alone("harness", 1),
    "speedup": lambda: on_ranks("speedup", 2),
    "natural_gradient": lambda: speech("natural_gradient"),
    "matmul_peak": lambda: speech("matmul_peak"),
    "decoding": lambda: speech("decoding"),
    "subnet_step": lambda: subnet("subnet_step"),
    "subnet_ranks": lambda: on_ranks("subnet_ranks", 2),
    "subnet_memory": lambda: [
        row
        for ranks in (2, 4)
        for server in ("central", "partitioned")
        for row in on_ranks(f"subnet_memory_{server}", ranks)
    ],
    **{
        f"layerwise_{net}": partial(layerwise, net)
        for net in ("alexnet", "resnet50", "vgg16", "inception_v3")
    },
    **{
        f"spark_{name}": partial(spark, name)
        for name in ("exchange", "against_mpi", "against_distributor", "speedup", "start_up")
    },
}


def main(names: list[str]) -> int:
    """Run the named benchmarks, all when none is named; exit code 1 when a goal was missed."""
    path = Path("results") / benchrows.FILE
    try:
        before = benchrows.read(path)  # a damaged file is told of before anything has run
    except UserError as error:
        sys.exit(f"benchmarks: {error}")
    rows = []
    for name in names or BENCHMARKS:
        for row in BENCHMARKS[name]():
            rows.append({"benchmark": name, **row})
            print(_line(rows[-1]), flush=True)
    write_text(path, benchrows.text(benchrows.joined(before, rows)))
    missed = [row for row in rows if row.get("goal") is not None and not _met(row)]
    print(f"{len(rows)} rows, {len(missed)} short of their goal; {path}")
    return 1 if missed else 0


def _met(row: dict[str, Any]) -> bool:
    if row.get("within"):  # of a ratio that should be 1
        return 1 / row["goal"] <= row["ratio"] <= row["goal"]
    return row["ratio"] <= row["goal"] if row.get("at_most") else row["ratio"] >= row["goal"]


def _line(row: dict[str, Any]) -> str:
    sign = "within" if row.get("within") else "<=" if row.get("at_most") else ">="
    goal = "" if row.get("goal") is None else f"goal {sign} {row['goal']}"
    verdict = "" if row.get("goal") is None else ("ok" if _met(row) else "SHORT")
    return (
        f"{row['benchmark']:20} {row['name']:46} ranks {row.get('ranks', 1)}  ours {_amount(row, 'ours')}  "
        f"reference {_amount(row, 'reference')}  ratio {row['ratio']:6.3g} "
        f"[{row['ratio_low']:.3g}, {row['ratio_high']:.3g}]  {goal} {verdict}"
    )


def _amount(row: dict[str, Any], side: str) -> str:
    """Milliseconds, or megabytes of a row that has bytes."""
    if f"{side}_s" in row:
        return f"{row[f'{side}_s'] * 1e3:10.3f} ms"
    return f"{row[f'{side}_bytes'] / 1e6:10.3f} MB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
