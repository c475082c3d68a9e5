"""A small data set in a repository of its own: two raw files, prepared into 12 samples of 2 values, 2 classes."""

import hashlib
from pathlib import Path

import pytest
import yaml

PREPARE = """
import numpy as np

def prepare(raw, out, card):
    from implementations.data.arrays import write_splits
    x = np.frombuffer((raw / "x.bin").read_bytes(), np.uint8).reshape(12, 2)
    y = np.frombuffer((raw / "y.bin").read_bytes(), np.uint8)
    parts = {"train": slice(0, 8), "valid": slice(8, 10), "test": slice(10, 12)}
    return write_splits(out, {part: (x[rows], y[rows]) for part, rows in parts.items()}, classes=2)
"""


class Toy:
    """The repository with the data set, its raw files' right content, and its card."""

    def __init__(self, folder: Path) -> None:
        self.datasets_dir = folder / "repository" / "datasets"
        self.folder = self.datasets_dir / "toy"
        self.folder.mkdir(parents=True)
        self.results_dir = folder / "results"
        self.content = {"x.bin": bytes(range(24)), "y.bin": bytes([0, 1] * 6)}
        self.card = {
            "name": "toy",
            "title": "Toy",
            "kind": "vectors",
            "licence": "CC0-1.0",
            "citation": "none",
            "description": "twelve samples",
            "sizes": {"train": 8, "valid": 2, "test": 2, "input_shape": [2], "classes": 2},
            "files": [
                {"name": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
                for name, raw in self.content.items()
            ],
        }
        (self.folder / "prepare.py").write_text(PREPARE)
        self.write([{"local": "../mirror"}])

    def write(self, sources: list[dict[str, str]]) -> None:
        """Write the card with these sources."""
        self.card["sources"] = sources
        (self.folder / "card.yaml").write_text(yaml.safe_dump(self.card))

    def mirror(self, name: str = "mirror", **changed: bytes | None) -> Path:
        """A folder beside the repository with the raw files; ``x=b"..."`` changes x.bin, ``x=None`` omits it."""
        folder = self.datasets_dir.parents[1] / name
        folder.mkdir()
        for file, right in self.content.items():
            raw = changed.get(file.removesuffix(".bin"), right)
            if raw is not None:
                (folder / file).write_bytes(raw)
        return folder

    @property
    def where(self) -> dict[str, Path]:
        """Arguments of ``prepare`` and ``status``."""
        return {"results_dir": self.results_dir, "datasets_dir": self.datasets_dir}


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)
