"""Records of single runs into one table, none left out: a failed or damaged one becomes a row that says so.

Beside it a table of the test utterances of all runs that recognised speech.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pyarrow as pa

from implementations.errors import UserError
from implementations.record import identity
from implementations.reporting.columns import record_schema, to_frame, to_table
from implementations.reporting.files import DamagedTable, first_line, read_table, write_parquet
from implementations.reporting.utterances import SCHEMA

# Words that a run id is made of (implementations/point.py), so that a run whose record is unreadable still has a place.
_RUN_ID = re.compile(r"_w(?P<workers>\d+)_(?P<evidence>measured|simulated|projected|fitted)_s(?P<seed>\d+)")


def collect(
    run_ids: Iterable[str] | Iterable[Any],
    results_dir: str | Path = "results",
    out: str | Path | None = None,
) -> pd.DataFrame:
    """Read ``results_dir/runs/<run_id>/record.json`` of each run id and write ``out`` (default: runs.parquet there).

    run_ids: points (anything with ``run_id`` and ``to_json``), or only their ids, which tell less of a run without a
    readable record. A missing record gives a row of status ``skipped``, a damaged one a row of status ``failed`` that
    names the file.

    The runs' ``utterances.parquet`` become one of that name beside ``out``, with ``run_id`` in front. A damaged file,
    or none beside a record with a word error rate, is named on stderr and left out; the run keeps its row.
    """
    results_dir = Path(results_dir)
    out = Path(out) if out is not None else results_dir / "runs.parquet"
    wanted = {item if isinstance(item, str) else item.run_id: item for item in run_ids}
    records = [_read(item, results_dir) for item in wanted.values()]
    table = to_table(records)
    write_parquet(table, out)
    write_parquet(pa.concat_tables(_utterances(records, results_dir)), out.with_name("utterances.parquet"))
    return to_frame(table)


def _read(item: Any, results_dir: Path) -> dict[str, Any]:
    """One run's record, or what stands for it."""
    run_id = item if isinstance(item, str) else item.run_id
    path = results_dir / "runs" / run_id / "record.json"
    if not path.is_file():
        return _stand_in(item, results_dir, "skipped", f"no record: {path} does not exist")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        return _stand_in(item, results_dir, "failed", f"damaged record {path}: {error}")
    problem = _problem(record, run_id)
    if problem:
        return _stand_in(item, results_dir, "failed", f"damaged record {path}: {problem}")
    return record


def _utterances(records: Iterable[dict[str, Any]], results_dir: Path) -> list[pa.Table]:
    """The test utterances of each run that has them, after an empty table of the same columns."""
    found = [SCHEMA.empty_table()]
    remedy = "delete the run's folder and run again"
    for record in records:
        path = results_dir / "runs" / record["run_id"] / "utterances.parquet"
        if record.get("wer") is None and not path.is_file():
            continue
        try:
            rows = read_table(path, remedy).assign(run_id=record["run_id"])
            found.append(pa.Table.from_pandas(rows[SCHEMA.names], SCHEMA, preserve_index=False))
        except DamagedTable as error:
            problem = str(error)
        except UserError:
            problem = f"{path} does not exist; {remedy}"
        except (KeyError, pa.ArrowException) as error:
            problem = f"{path} has other columns ({first_line(error)}); {remedy}"
        else:
            continue
        print(f"warning: the utterances of a run are left out: {problem}", file=sys.stderr)
    return found


def _problem(record: Any, run_id: str) -> str | None:
    fault = jsonschema.exceptions.best_match(_validator().iter_errors(record))
    if fault is not None:
        return f"{'.'.join(map(str, fault.absolute_path)) or 'record'}: {fault.message[:200]}"
    return None if record["run_id"] == run_id else f"run_id is {record['run_id']!r}"


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(record_schema())


def _stand_in(item: Any, results_dir: Path, status: str, reason: str) -> dict[str, Any]:
    """A row for a run without a readable record, with all that its point or its name tells."""
    run_id = item if isinstance(item, str) else item.run_id
    log = results_dir / "logs" / f"{run_id}.log"
    row: dict[str, Any] = {"run_id": run_id, "status": status, "reason": reason}
    row["log_path"] = str(log) if log.is_file() else None
    if isinstance(item, str):
        found = _RUN_ID.search(run_id)
        return row | (found.groupdict() if found else {})
    return identity(item) | row
