"""Claims and published numbers as they stand in config: read and checked, not judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import yaml

from implementations.errors import UserError
from implementations.yamlfile import load_yaml

CONFIG = Path(__file__).parents[2] / "config"


@dataclass(frozen=True)
class Claim:
    """One claim of one paper; ``body`` is its entry in config/claims (see config/schemas/claims.schema.yaml)."""

    paper: str
    body: dict[str, Any]

    @property
    def id(self) -> str:
        """The claim's name, unique over all papers."""
        return self.body["id"]

    @property
    def published_ids(self) -> list[str]:
        """Ids of the published numbers that the claim is about."""
        return list(self.body["source"].get("published", []))


def load_claims(config_dir: str | Path = CONFIG) -> list[Claim]:
    """All claims of ``config_dir/claims/*.yaml``; every fault of every file in one UserError."""
    config_dir = Path(config_dir)
    schema_path = config_dir / "schemas" / "claims.schema.yaml"
    schema = load_yaml(schema_path) if schema_path.is_file() else {}
    validator = jsonschema.Draft202012Validator(schema)
    claims: list[Claim] = []
    problems: list[str] = []
    for path in sorted((config_dir / "claims").glob("*.yaml")):
        try:
            content = load_yaml(path)
        except yaml.YAMLError as error:
            problems.append(f"{path}: not YAML: {error}")
            continue
        faults = sorted(validator.iter_errors(content), key=lambda fault: list(map(str, fault.absolute_path)))
        problems += [f"{path}: {'.'.join(map(str, f.absolute_path)) or 'file'}: {f.message}" for f in faults]
        if not faults:
            claims += [Claim(content["paper"], body) for body in content["claims"]]
    ids = [claim.id for claim in claims]
    problems += [
        f"claim id {name!r} is used twice; give each its own"
        for name in sorted({i for i in ids if ids.count(i) > 1})
    ]
    if problems:
        raise UserError("\n".join(problems))
    return claims


def load_published(config_dir: str | Path = CONFIG) -> pd.DataFrame:
    """All rows of ``config_dir/published/*.csv``, indexed by ``id``; ids are unique."""
    frames = [pd.read_csv(path) for path in sorted((Path(config_dir) / "published").glob("*.csv"))]
    return join_published(frames)


def join_published(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Published tables as one, indexed by ``id``."""
    frames = [frame.dropna(axis=1, how="all") for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({"id": [], "paper": [], "value": [], "unit": []}).set_index("id")
    published = pd.concat(frames, ignore_index=True)
    twice = sorted(published.loc[published["id"].duplicated(), "id"].unique())
    if twice:
        raise UserError(f"config/published: id used twice: {', '.join(twice)}; give each row its own")
    return published.set_index("id")
