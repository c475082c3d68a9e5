"""Cards: what a data set is, where it can be had, and what its files must hash to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from implementations.errors import UserError
from implementations.yamlfile import load_yaml

ROOT = Path(__file__).resolve().parents[2]  # of the repository
DATASETS = ROOT / "datasets"
SCHEMA = ROOT / "config" / "schemas" / "card.schema.yaml"


@dataclass(frozen=True)
class RawFile:
    """A file that a source must deliver; of an archive with ``contents``, only what it holds must be right."""

    name: str
    bytes: int
    sha256: str
    contents: str | None = None  # archives.contents_hash


@dataclass(frozen=True)
class Card:
    """A data set's card; ``values`` holds everything in the file, checked against the schema."""

    folder: Path
    values: dict[str, Any]

    @property
    def name(self) -> str:
        """The data set's name, which is also its folder's."""
        return self.values["name"]

    @property
    def sizes(self) -> dict[str, Any]:
        """Samples of each split, ``input_shape``, ``classes`` and, for some sets, ``class_names``."""
        return self.values["sizes"]

    @property
    def files(self) -> tuple[RawFile, ...]:
        """The raw files; none for data that is computed, nor for data that is licensed and has sources by hand only."""
        return tuple(RawFile(**entry) for entry in self.values["files"])

    @property
    def stand_in(self) -> str | None:
        """The data set to use where this one cannot be had."""
        return self.values.get("stand_in")

    @property
    def sources(self) -> list[dict[str, str]]:
        """Where the files can be had, in the order to try."""
        return self.values["sources"]


def names(datasets_dir: str | Path = DATASETS) -> list[str]:
    """Names of all data sets, sorted."""
    return sorted(path.parent.name for path in Path(datasets_dir).glob("*/card.yaml"))


def load_card(name: str, datasets_dir: str | Path = DATASETS) -> Card:
    """Read and check ``datasets/<name>/card.yaml``; UserError lists everything that is wrong with it."""
    folder = Path(datasets_dir) / name
    path = folder / "card.yaml"
    if name not in names(datasets_dir):
        raise UserError(f"no data set {name!r}; there are: {', '.join(names(datasets_dir)) or 'none'}")
    try:
        values = load_yaml(path)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not YAML: {error}") from error
    problems = [
        f"{path}: {'.'.join(map(str, error.absolute_path)) or 'card'}: {error.message}"
        for error in sorted(_validator().iter_errors(values), key=lambda error: str(error.absolute_path))
    ]
    if not problems and values["name"] != name:
        problems.append(f"{path}: name: got {values['name']!r}; allowed: the folder's name, {name!r}")
    if problems:
        raise UserError("\n".join(problems))
    return Card(folder, values)


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(load_yaml(SCHEMA))
