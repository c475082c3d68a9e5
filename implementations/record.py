"""The record of a run: what was asked, how it ended, and every number it left; one JSON file a run."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from implementations import recipe, registry
from implementations.errors import UserError
from implementations.point import Point

SCHEMA_VERSION = 4
FINISHED = (
    "ok",
    "diverged",
    "target_missed",
    "over_memory",
)  # an outcome that is a result; the rest is tried again
# Parameters of methods that are columns.
METHOD_COLUMNS = (
    "sync_period", "algorithm", "lr_scaling", "mixing", "content",
    "server", "partition", "redraw", "overlap", "lost_steps", "execution", "cluster", "group_size", "cut", "staleness",
)  # fmt: skip
_SCHEMA = Path(__file__).parents[1] / "config/schemas/record.schema.yaml"


@cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = yaml.safe_load(_SCHEMA.read_text())
    schema["required"] = list(schema["properties"])
    return jsonschema.Draft202012Validator(schema)


@cache
def columns() -> dict[str, dict[str, Any]]:
    """Every column of a record with its JSON schema, in order."""
    return _validator().schema["properties"]


def record_path(results: Path, run_id: str) -> Path:
    """Where the record of a run lies."""
    return results / "runs" / run_id / "record.json"


def log_path(results: Path, run_id: str) -> Path:
    """Where the log of a run lies."""
    return results / "logs" / f"{run_id}.log"


def identity(point: Point) -> dict[str, Any]:
    """The identity columns of a point's record that are known before it runs."""
    settings = registry.get(point.method).settings(point)
    recipe_settings = recipe.settings(point)
    values = {key: value for key, value in point.to_json().items() if key in columns()}
    return values | {
        "run_id": point.run_id,
        "schema_version": SCHEMA_VERSION,
        "model": point.model_label,
        "global_batch": point.global_batch,
        **{name: settings.get(name) for name in METHOD_COLUMNS},
        **{
            name: recipe_settings.get(name)
            for name in ("reduction", "momentum", "max_change_rule", "ng_update_period")
        },
        "recipe": json.dumps(recipe_settings, sort_keys=True),
        "transport": point.transport if registry.get(point.method).has_ranks(point) else None,
    }


def write(results: Path, values: dict[str, Any]) -> Path:
    """Write a record atomically; keys that are absent become null, numbers that are not finite too.

    Raises jsonschema.ValidationError when a value does not fit the schema: that is a defect of the code.
    """
    full = {name: _plain(values.get(name)) for name in columns()}
    unknown = set(values) - set(full)
    if unknown:
        raise KeyError(f"not columns of a record: {sorted(unknown)}")
    _validator().validate(full)
    path = record_path(results, full["run_id"])
    write_text(path, json.dumps(full, indent=1))
    return path


def read(path: Path) -> dict[str, Any]:
    """The record in a file; UserError when the file is damaged or of another schema version."""
    try:
        values = json.loads(path.read_text())
        _validator().validate(values)
    except (ValueError, jsonschema.ValidationError) as error:
        problem = str(error).splitlines()[0]
        raise UserError(f"{path} is not a valid record ({problem}); delete it and run again") from error
    return values


def next_attempt(results: Path, run_id: str) -> int | None:
    """The number of the attempt that a point is at: unchanged once it has finished. None without a valid record."""
    try:
        values = read(record_path(results, run_id))
    except (OSError, UserError):
        return None
    return values["attempts"] + (values["status"] not in FINISHED)


def outcome_files(top: Path, kinds: Collection[str], left_out: Collection[str] = ()) -> list[Path]:
    """The files below ``top`` with these endings, in order; hidden ones aside, and folders of ``top`` left out."""
    places = [place for place in top.iterdir() if place.name not in left_out] if top.is_dir() else []
    paths = [path for place in places for path in (place, *place.rglob("*"))]
    return sorted(
        path
        for path in paths
        if path.suffix in kinds
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(top).parts)
    )


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is seen whole or not at all. UserError names it when the disk does not take it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
