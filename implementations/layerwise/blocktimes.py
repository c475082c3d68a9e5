"""t_C as the paper has it: blocks of layers, measured on this machine, and kept in a file.

A block is timed in as many processes at once as compute blocks like it (they share memory bandwidth, or cores), each
with one thread, by ``blockbench``. The file has one row a block: what it is in readable columns, seconds, repeats, the
machine (processor and cores, no name), torch's version and the day. A block that the file has for this machine and
torch is not measured again.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from implementations import host
from implementations.cluster import launcher, ownership
from implementations.errors import UserError
from implementations.layerwise.costmodel import ITEMSIZE, BlockSpec
from implementations.layerwise.graph import FLATTEN, INPUT, NORM, Layer

HANDLED = 32  # layers in the chain that tells what the executor does around one
UPDATE_PARAMS = 8_000_000  # beyond caches, as the parameters of the networks are
MOVED = 25_000  # values of a message by which the rate of cutting and joining blocks is told
_KEYS = (
    "kind",
    "sources",
    "block",
    "details",
    "input_gradient",
    "shared",
    "busy",
    "threads",
    "host",
    "torch",
    "code",
)
_LIMIT_S = 3600.0


def described(
    layer: Layer,
    source_shapes: Sequence[Sequence[int]],
    block_shape: Sequence[int],
    busy: int,
    input_gradient: bool = True,
    shared: bool = False,
) -> dict[str, Any]:
    """A block as plain values: all that its time depends on."""
    window = layer.window
    channels = block_shape[1] if layer.weights else 0
    settings = {name: value for name, value in layer.settings.items() if name != "momentum"}
    return {
        "kind": layer.kind,
        "sources": [list(shape) for shape in source_shapes],
        "block": list(block_shape),
        "window": {name: list(getattr(window, name)) for name in window.__dataclass_fields__}
        if window
        else None,
        "whole_map": layer.whole_map,
        "weights": {name: [channels, *shape[1:]] for name, shape in layer.weights.items()},
        "settings": settings,
        "input_gradient": bool(input_gradient) or not layer.weights,
        "shared": bool(shared) and layer.kind == NORM,
        "busy": busy,
    }


def _no_layer(kind: str, values: int, busy: int) -> dict[str, Any]:
    """The optimiser's step on parameters ("update"), layers of one value each ("handling"), or exchanges ("moving").

    Of layers the two times are those of the executor's run, and computed without it; of exchanges, those of one value
    for each pair of devices, and of so many ``values``, both beyond the time of the messages.
    """
    return {
        "kind": kind,
        "sources": [],
        "block": [values],
        "window": None,
        "whole_map": False,
        "weights": {},
        "settings": {},
        "input_gradient": True,
        "shared": False,
        "busy": busy,
    }


@functools.cache
def _here() -> dict[str, Any]:
    """The columns of a row that name the machine."""
    return {
        "threads": 1,
        "host": f"{host.cpu_model()}, {host.cores()} cores",
        "torch": version("torch").split("+")[0],
        "code": _code(),
    }


def _code() -> str:
    """Hash of the functions that are timed, and of how."""
    sources = [Path(__file__).with_name(f"{name}.py") for name in ("blockbench", "kernels", "normalisation")]
    return hashlib.sha256("".join(path.read_text(encoding="utf-8") for path in sources).encode()).hexdigest()[
        :12
    ]


def _row(block: Mapping[str, Any]) -> dict[str, Any]:
    """The key columns of a block."""
    details = {name: block[name] for name in ("window", "weights", "settings") if block[name]}
    return {
        "kind": block["kind"],
        "sources": " ".join("x".join(map(str, shape)) for shape in block["sources"]),
        "block": "x".join(map(str, block["block"])),
        "details": json.dumps(details, sort_keys=True),
        "input_gradient": block["input_gradient"],
        "shared": block["shared"],
        "busy": block["busy"],
        **_here(),
    }


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEYS)


class MeasuredBlocks:
    """Times of blocks from the file at ``path``, on this machine, with at most ``busy`` processes at once.

    A block is looked up by the processes that compute blocks like it (``active``), or by ``busy`` if these are fewer.
    Its time has in it what the executor does around a layer, measured on layers that compute next to nothing.
    """

    def __init__(self, path: str | Path, busy: int) -> None:
        self.path, self.busy, self._cores = Path(path), busy, host.cores()
        self._rows = {_key(row): row for row in _read(self.path)}

    def seconds(
        self,
        layer: Layer,
        source_shapes: Sequence[Sequence[int]],
        block_shape: Sequence[int],
        *,
        active: int | None = None,
        input_gradient: bool = True,
        shared: bool = False,
    ) -> tuple[float, float]:
        """(forward, backward) median seconds; UserError for a block that was not measured."""
        if layer.kind == INPUT or not math.prod(block_shape):
            return 0.0, 0.0
        busy, turns = self._at_once(active or self.busy)
        chain = self._find(_no_layer("handling", HANDLED, busy))
        around = turns * max(0.0, chain["forward_s"] - chain["backward_s"]) / HANDLED / 2
        if layer.kind == FLATTEN:  # a view
            return around, around
        row = self._find(described(layer, source_shapes, block_shape, busy, input_gradient, shared))
        return around + turns * row["forward_s"], around + turns * row["backward_s"]

    def update_s(self, params: int) -> float:
        """The optimiser's step while all processes make theirs."""
        busy, turns = self._at_once(self.busy)
        row = self._find(_no_layer("update", UPDATE_PARAMS, busy))
        return turns * row["forward_s"] * params / UPDATE_PARAMS

    @property
    def moving(self) -> tuple[float, float]:
        """Of an exchange between layers, beyond its messages: seconds, and seconds for each byte through a device."""
        busy, turns = self._at_once(self.busy)
        if busy == 1:
            return 0.0, 0.0
        row = self._find(_no_layer("moving", MOVED, busy))
        through = 2 * ITEMSIZE * (busy - 1) * MOVED  # out and in
        rate = max(0.0, row["backward_s"] - row["forward_s"]) / through
        return turns * row["forward_s"], turns * rate

    def _at_once(self, active: int) -> tuple[int, float]:
        """How many of the processes that compute blocks compute at the same time, and how often they take turns.

        More processes than cores share these; timed so, each would seem to have a core while it has one.
        """
        active = min(active, self.busy)
        return min(active, self._cores), max(1.0, active / self._cores)

    def missing(self, specs: Iterable[BlockSpec]) -> list[dict[str, Any]]:
        """What has to be measured for ``specs`` (``costmodel.specs``), each block once, and what is no layer."""
        specs = list(specs)
        together = self._at_once(self.busy)[0]
        wanted = [_no_layer("update", UPDATE_PARAMS, together)]
        wanted += [_no_layer("moving", MOVED, together)] if together > 1 else []
        wanted += [
            _no_layer("handling", HANDLED, busy)
            for busy in sorted({self._at_once(spec.active)[0] for spec in specs})
        ]
        wanted += [
            described(
                spec.layer,
                spec.source_shapes,
                spec.block_shape,
                self._at_once(spec.active)[0],
                spec.input_gradient,
                spec.shared,
            )
            for spec in specs
            if spec.layer.kind not in (INPUT, FLATTEN) and math.prod(spec.block_shape)
        ]
        distinct = {_key(_row(block)): block for block in wanted}
        return [block for key, block in distinct.items() if key not in self._rows]

    def measure(
        self,
        specs: Iterable[BlockSpec],
        settings: Mapping[str, Any] | None = None,
        report: Callable[[str], None] = lambda line: print(line, flush=True),
    ) -> int:
        """Measure what is missing for ``specs`` into the file; how many blocks that were.

        ``settings``: config's ``launcher``. Raises UserError when MPI is missing or a measuring process fails.
        """
        return measure_all([(self, specs)], settings, report)

    def write(self) -> None:
        """Put what is known into the file, beside what another process may have put there meanwhile."""
        rows = {_key(row): row for row in _read(self.path)} | self._rows
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(self.path.name + ".part")
        pd.DataFrame(list(rows.values())).to_parquet(part, index=False)
        os.replace(part, self.path)

    def _find(self, block: Mapping[str, Any]) -> dict[str, Any]:
        row = _row(block)
        found = self._rows.get(_key(row))
        if found is None:
            raise UserError(
                f"block {row['kind']} {row['sources']} -> {row['block']} with {row['busy']} processes: {self.path} has "
                "no time of it on this machine; measure the blocks of the network first"
            )
        return found


def measure_all(
    wanted: Sequence[tuple[MeasuredBlocks, Iterable[BlockSpec]]],
    settings: Mapping[str, Any] | None = None,
    report: Callable[[str], None] = lambda line: print(line, flush=True),
) -> int:
    """``MeasuredBlocks.measure`` for several networks, in the same processes: starting these takes seconds.

    Blocks of a network are still timed among its own. All are of one file.
    """
    parts: dict[int, list[list[dict[str, Any]]]] = {}
    ordered: set[tuple[Any, ...]] = set()
    for times, specs in wanted:
        blocks = {_key(_row(block)): block for block in times.missing(specs)}
        fresh = [block for key, block in blocks.items() if key not in ordered]
        ordered |= set(blocks)
        for busy in {block["busy"] for block in fresh}:
            parts.setdefault(busy, []).append([block for block in fresh if block["busy"] == busy])
    for busy, of_networks in sorted(parts.items()):
        blocks = [block for part in of_networks for block in part]
        report(f"blocks: {len(blocks)} to be timed in {busy} process{'es' if busy > 1 else ''} at once")
        found = _measured(of_networks, busy, settings)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        rows = [_row(block) | seconds | {"date": today} for block, seconds in zip(blocks, found, strict=True)]
        known = {_key(row): row for row in rows}
        for times, _ in wanted:
            times._rows |= known
        wanted[0][0].write()
    return len(ordered)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        return pd.read_parquet(path).to_dict("records")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); remove it, and the blocks are measured again"
        ) from None


def _measured(
    parts: list[list[dict[str, Any]]], busy: int, settings: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Medians of the blocks of all parts, in order, from ``busy`` fresh processes of one thread each."""
    with ownership.folder("blocks") as folder:
        asked, answer = folder / "order.json", folder / "answer.json"
        asked.write_text(json.dumps({"parts": parts, "together": busy > 1}))
        command = launcher.mpi_command(busy, settings) if busy > 1 else []
        command += [sys.executable, "-m", "implementations.layerwise.blockbench", str(asked), str(answer)]
        output, errors, code = launcher._run(command, launcher.rank_environment(1), _LIMIT_S)
        if code != 0 or not answer.is_file():
            last = "\n".join((errors or output).strip().splitlines()[-8:]) or f"exit code {code}"
            raise UserError(
                f"blocks: {busy} measuring process(es) failed:\n{last}\n"
                "run `python -m implementations doctor` to see whether MPI works here"
            )
        return json.loads(answer.read_text())["rows"]
