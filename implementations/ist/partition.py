"""Who holds which units in a round: pure arithmetic over seeds, the same on every rank, so that no index is sent.

Yuan et al. 2022, section 3: the units of every hidden layer are dealt out to the workers without replacement, layers
independently of each other; inputs and outputs are never split. Labels name what can be split (``h1``, a hidden
layer); a tensor's axes carry the label of the units along them, or None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from implementations.cluster.volume import bounds, chunk_sizes
from implementations.seeds import numpy_stream

Axes = tuple[str | None, ...]
Units = Mapping[str, np.ndarray]  # of one worker: sorted indices by label


@dataclass(frozen=True)
class Layout:
    """A full net's tensors: shapes and axes by name, units by label, and how few a group may have."""

    shapes: Mapping[str, tuple[int, ...]]
    axes: Mapping[str, Axes]
    units: Mapping[str, int]
    min_units: Mapping[str, int]


@dataclass(frozen=True)
class Draw:
    """One round's groups: ``units[worker][label]`` are sorted indices, int64."""

    units: tuple[dict[str, np.ndarray], ...]


def draw(
    units: Mapping[str, int],
    workers: int,
    seed: int,
    round: int,
    *,
    partition: str = "uniform",
    redraw: bool = True,
    overlap: float = 0.0,
    min_units: Mapping[str, int] | None = None,
) -> Draw:
    """The groups of round ``round`` (0, 1, ...): disjoint, covering, and as equal in size as can be.

    Args:
        units: how many units each label has.
        workers: how many groups.
        seed: the point's.
        round: counted over the whole run.
        partition: "uniform": one permutation of all units, cut into ``workers`` slices; "stratified": each worker's
            shard of the units (``shard``) is permuted and cut, and everybody gets a slice of each shard (the authors'
            partitioned server).
        redraw: False keeps the groups of round 0 for ever.
        overlap: further units of each group, drawn from the others, as a share of its own.
        min_units: least size of a group by label; smaller ones are filled up from the others.
    """
    if not redraw:
        round = 0
    groups: list[dict[str, np.ndarray]] = [{} for _ in range(workers)]
    for label, count in units.items():
        stream = numpy_stream(seed, "ist", label, round)
        if partition == "stratified":
            shards = [stream.permutation(np.arange(low, high)) for low, high in _shards(count, workers)]
        else:
            shards = [stream.permutation(count)]
        wanted = group_sizes(
            count, workers, partition=partition, overlap=overlap, least=(min_units or {}).get(label, 0)
        )
        for worker, group in enumerate(groups):
            own = np.concatenate(
                [_slice(shard, workers, worker, place) for place, shard in enumerate(shards)]
            )
            if wanted[worker] > len(own):
                others = stream.permutation(np.setdiff1d(np.arange(count), own))
                own = np.concatenate([own, others[: wanted[worker] - len(own)]])
            group[label] = np.sort(own).astype(np.int64)
    return Draw(tuple(groups))


def group_sizes(
    count: int, workers: int, *, partition: str = "uniform", overlap: float = 0.0, least: int = 0
) -> list[int]:
    """Units of each worker's group in every round; arguments as for ``draw``."""
    if partition == "stratified":
        shards = [high - low for low, high in _shards(count, workers)]
        own = [
            sum(len(_slice(np.arange(shard), workers, worker, place)) for place, shard in enumerate(shards))
            for worker in range(workers)
        ]
    else:
        own = chunk_sizes(count, workers)
    return [min(count, max(least, math.ceil(size * (1 + overlap) - 1e-9))) for size in own]


def sizes_by_label(
    units: Mapping[str, int], workers: int, least: Mapping[str, int], *, partition: str, overlap: float
) -> dict[str, list[int]]:
    """``group_sizes`` of every label; ``least`` is the least size of a group."""
    return {
        label: group_sizes(count, workers, partition=partition, overlap=overlap, least=least.get(label, 0))
        for label, count in units.items()
    }


def stored(units: Mapping[str, int], workers: int, server: str) -> list[dict[str, tuple[int, int]]]:
    """The units, first to last (excluded), whose weights each worker stores between rounds, by label.

    "central": worker 0 stores all; "partitioned": each its share (the authors' two servers).
    """
    if server == "central":
        none = dict.fromkeys(units, (0, 0))
        return [{label: (0, count) for label, count in units.items()}, *[none] * (workers - 1)]
    shards = {label: _shards(count, workers) for label, count in units.items()}
    return [{label: shards[label][worker] for label in units} for worker in range(workers)]


@dataclass(frozen=True)
class Blocks:
    """Values that go from storing workers to subnets at the start of a round; pairs that share none are not there.

    Three int64 arrays of equal length, sorted by ``source``, then by ``worker``. Of a thousand workers few pairs meet.
    """

    source: np.ndarray
    worker: np.ndarray
    values: np.ndarray
    workers: int

    def of_sources(self) -> np.ndarray:
        """What each worker hands out, itself included: (workers,) int64."""
        return self._sums(self.source)

    def of_workers(self) -> np.ndarray:
        """What each worker's subnet gets: (workers,) int64."""
        return self._sums(self.worker)

    @property
    def sent(self) -> int:
        """Values that change workers."""
        return int(self.values[self.source != self.worker].sum())

    def _sums(self, places: np.ndarray) -> np.ndarray:
        sums = np.zeros(self.workers, dtype=np.int64)
        np.add.at(sums, places, self.values)
        return sums


def blocks_of(
    layout: Layout, groups: Sequence[Units], stores: Sequence[Mapping[str, tuple[int, int]]]
) -> Blocks:
    """How much of each worker's subnet is stored where.

    A tensor is spread over the workers by its ``storage_label``; one that is never split is worker 0's.
    """
    workers = len(groups)
    sizes = {label: np.array([len(group[label]) for group in groups]) for label in layout.units}
    keys, values = [], []  # a key: source * workers + worker
    for name, shape in layout.shapes.items():
        axes, by = layout.axes[name], storage_label(layout.axes[name])
        if by is None:
            key, part = np.arange(workers), np.full(workers, math.prod(shape), dtype=np.int64)
        else:
            key, part = _meets(by, groups, stores)
            for length, label in zip(shape, axes):
                if label is None:
                    part = part * length
                elif label != by:
                    part = part * sizes[label][key % workers]
        keys.append(key)
        values.append(part)
    found, place = np.unique(np.concatenate(keys), return_inverse=True)
    total = np.zeros(len(found), dtype=np.int64)
    np.add.at(total, place, np.concatenate(values))
    return Blocks(found // workers, found % workers, total, workers)


def _meets(
    label: str, groups: Sequence[Units], stores: Sequence[Mapping[str, tuple[int, int]]]
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a storing worker and a subnet that share units of a label, and how many: keys of ``blocks_of``."""
    ranges = np.array([store[label] for store in stores])
    owners = np.flatnonzero(ranges[:, 1] > ranges[:, 0])  # their ranges follow each other and cover all units
    units = np.concatenate([group[label] for group in groups])
    of_worker = np.repeat(np.arange(len(groups)), [len(group[label]) for group in groups])
    of_store = owners[np.searchsorted(ranges[owners, 1], units, side="right")]
    return np.unique(of_store * len(groups) + of_worker, return_counts=True)


def block_shape(shape: Sequence[int], axes: Axes, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Shape of a tensor's part that has ``sizes`` units of each label."""
    return tuple(length if label is None else sizes[label] for length, label in zip(shape, axes))


def storage_label(axes: Axes) -> str | None:
    """The label by which a tensor is spread over the workers that store it: its last one, as the authors' code has it.

    None for a tensor that is never split, which worker 0 stores.
    """
    labels = [label for label in axes if label is not None]
    return labels[-1] if labels else None


def _shards(count: int, workers: int) -> list[tuple[int, int]]:
    return bounds(chunk_sizes(count, workers))


def _slice(shard: np.ndarray, workers: int, worker: int, place: int) -> np.ndarray:
    """A worker's slice of a shard; the longer slices go round, so that no worker gets all of them."""
    index = (worker - place) % workers
    size, longer = divmod(len(shard), workers)  # of ``chunk_sizes``
    low = index * size + min(index, longer)
    return shard[low : low + size + (index < longer)]
