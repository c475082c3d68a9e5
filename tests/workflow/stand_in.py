"""Stands in for ``python -m implementations`` in a copy of the repository: each verb leaves its files, at once.

The file ``fail`` holds words; a point whose run id has one of them fails, and so do ``prepare`` and ``calibrate``.
While the file ``slow`` is there, the second point of a batch takes a minute. ``journal`` gets a line for
each point that is trained.
"""

import argparse
import sys
import time
from pathlib import Path

from implementations import config, record
from implementations.codehash import code_hash
from implementations.errors import UserError
from implementations.workflow import leave_outcome

TABLES = (
    "speedup", "time_split", "accuracy", "wer", "volume", "targets", "times", "crossings", "width", "memory",
    "plans", "search", "prediction", "plan", "degrees", "equivalence", "exactness",
    "spark_exactness", "spark_speedup", "spark_executions", "spark_memory", "spark_async",
    "tuning", "validation", "fitted", "loss", "runs", "failures",
    "shootout", "winners", "changes", "counters", "emulated", "scale", "projected", "advice",
)  # fmt: skip
RESULTS = Path("results")


def words_of(name: str) -> list[str]:
    return Path(name).read_text().split() if Path(name).exists() else []


def write(path: str | Path, text: str = "{}") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    partial = Path(f"{path}.partial")
    partial.write_text(text)
    partial.replace(path)


def table(path: str) -> None:
    write(path, "a,b\n1,2\n")
    write(Path(path).with_suffix(".parquet"), "columns")


def statuses() -> dict[str, str]:
    return {path.parent.name: record.read(path)["status"] for path in RESULTS.glob("runs/*/record.json")}


def run(args: argparse.Namespace) -> None:
    settings = config.load(args.configfile)
    for number, point in enumerate(settings.points_of(settings.batch_by_id[args.batch])):
        code = code_hash(point.method, point.evidence, point.model["name"])
        path = record.record_path(RESULTS, point.run_id)
        before = record.read(path) if path.exists() else {"status": "none", "code_hash": None}
        if before["status"] in record.FINISHED and before["code_hash"] == code:
            continue
        if number and Path("slow").exists():
            time.sleep(60)
        with Path("journal").open("a") as journal:
            journal.write(f"{point.run_id}\n")
        failed = any(word in point.run_id for word in words_of("fail"))
        failed = failed or not (RESULTS / "data" / point.dataset / "summary.json").exists()
        values = {
            **record.identity(point),
            "status": "failed" if failed else "ok",
            "attempts": record.next_attempt(RESULTS, point.run_id) or 1,
            "code_hash": code,
        }
        record.write(RESULTS, values)
    write(args.manifest)


def make(verb: str, path: str, text: str = "{}") -> None:
    Path(path).unlink(missing_ok=True)
    if verb in words_of("fail"):
        raise UserError(f"{verb} was told to fail")
    write(path, text)


def status() -> int:
    failed = [name for name, status in statuses().items() if status not in record.FINISHED]
    print("failed:", *failed)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("name", nargs="?")
    for option in ("configfile", "batch", "manifest", "out", "runs", "timings", "plans", "paper", "outcome"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--examples", action="store_true")
    parser.add_argument("--partial", action="store_true")
    args = parser.parse_args()
    if args.verb == "prepare":
        summary = f"results/data/{args.name}/summary.json"
        return leave_outcome(args.outcome, summary, lambda: make("prepare", summary))
    elif args.verb == "calibrate":
        return leave_outcome(args.outcome, args.out, lambda: make("calibrate", args.out))
    elif args.verb == "run":
        run(args)
    elif args.verb == "status":
        return status()
    elif args.verb == "figures":
        write(f"{args.out}/one.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>")
    elif args.verb == "tables":
        for name in TABLES:
            table(f"{args.out}/{name}.csv")
    elif args.verb == "claims":
        table(args.out)
    else:
        write(args.out)
        if args.verb == "collect":
            write(Path(args.out).with_name("utterances.parquet"))
        if args.verb == "plans":
            write(Path(args.out).with_name("search.parquet"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
