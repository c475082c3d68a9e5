"""A strategy worked out: who computes, reads, sends and holds what in a step. Pure arithmetic; the executor runs it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from implementations.cluster.volume import traffic
from implementations.layerwise import algebra
from implementations.layerwise.algebra import Box, Move, Range
from implementations.layerwise.graph import (
    FLATTEN,
    INPUT,
    NORM,
    Config,
    Graph,
    Layer,
    Strategy,
)

LABEL_BYTES = 8  # int64
STATES = 3  # values held for each parameter: itself, its gradient, its momentum
# Values a channel in a normalisation's sums, one after the other: mean and variance forward, two sums at once backward.
STATISTICS = ((1, 1), (2,))


@dataclass(frozen=True)
class Edge:
    """One input of a layer: what each device reads of it, and whence it comes. Device k reads ``read[k]``."""

    source: str
    reader: str
    place: int
    read: tuple[Box, ...]
    moves: tuple[Move, ...]
    gradient: bool  # whether the gradient goes the same way back

    def far(self) -> dict[tuple[int, int], Box]:
        """What goes from one device to another, by (source, target)."""
        return {(move.source, move.target): move.box for move in self.moves if move.source != move.target}


@dataclass(frozen=True)
class Stage:
    """One layer under its configuration. Lists have an entry for each device that computes a block.

    ``groups``: devices of equal channels; ``pads``: of convolution and pooling; ``features``: which of the flattened
    values of what it reads a block of a flatten layer has.
    """

    layer: Layer
    config: Config
    blocks: tuple[Box, ...]
    edges: tuple[Edge, ...]
    groups: tuple[tuple[int, ...], ...]
    pads: tuple[tuple[tuple[int, int], ...], ...]
    features: tuple[Range, ...]

    @property
    def devices(self) -> int:
        """Devices that compute a block; the others are idle."""
        return len(self.blocks)


@dataclass(frozen=True)
class Slot:
    """Where a device holds its part of a parameter: values ``start`` to ``start + size`` of its flat weights."""

    layer: str
    weight: str
    channels: Range
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Values of the part."""
        return math.prod(self.shape)


class Plan:
    """A strategy for ``batch`` samples in all on ``devices`` devices.

    Attributes:
        stages: in the order of the layers, the input first and the loss last.
        slots: of each device, in the order of the layers.
        labels: how the labels get from those who drew the samples to those who compute the loss.
    """

    def __init__(self, graph: Graph, strategy: Strategy, batch: int, devices: int) -> None:
        """Raises UserError for a strategy that does not fit."""
        algebra.check(graph, dict(strategy), batch, devices)
        self.graph, self.strategy = graph, dict(strategy)
        self.batch, self.devices = batch, devices
        owned: dict[str, tuple[Box, ...]] = {}
        self.stages: list[Stage] = []
        for layer in graph:
            self.stages.append(self._stage(layer, owned))
            owned[layer.name] = self.stages[-1].blocks
        self.slots = [self._slots(device) for device in range(devices)]
        samples = tuple(block[:1] for block in self.stages[0].blocks)
        read = self.stages[-1].blocks
        self.labels = Edge("labels", "loss", 0, read, tuple(algebra.moves(samples, read)), gradient=False)

    def _stage(self, layer: Layer, owned: Mapping[str, tuple[Box, ...]]) -> Stage:
        config = self.strategy[layer.name]
        blocks = tuple(algebra.blocks(layer, config, self.batch))
        sources = self.graph.inputs(layer)
        pads, features, edges = [], [], []
        for place, source in enumerate(sources):
            has = owned[source.name]
            read = algebra.reads(self.graph, layer, place, config, self.batch)
            if layer.window is not None:
                pads = [algebra.padding(layer, source.out, block) for block in blocks]
                for device in range(min(len(blocks), len(has))):
                    if _takes_whole(layer, source, read[device], blocks[device], has[device]):
                        read[device] = has[device]
                        pads[device] = [(pad, pad) for pad in layer.window.padding]
            if layer.kind == FLATTEN:
                features = [_features(source, *one) for one in zip(blocks, read, strict=True)]
            moves = tuple(algebra.moves(has, read))
            edges.append(Edge(source.name, layer.name, place, tuple(read), moves, source.kind != INPUT))
        return Stage(
            layer,
            config,
            blocks,
            tuple(edges),
            tuple(algebra.replicas(config)),
            tuple(map(tuple, pads)),
            tuple(features),
        )

    def _slots(self, device: int) -> list[Slot]:
        found: list[Slot] = []
        for stage in self.stages:
            if device >= stage.devices or not stage.layer.weights:
                continue
            channels = stage.blocks[device][1]
            for name, shape in algebra.shard_shapes(stage.layer, channels).items():
                start = found[-1].start + found[-1].size if found else 0
                found.append(Slot(stage.layer.name, name, channels, shape, start))
        return found

    def params(self, device: int) -> int:
        """Parameters that a device holds."""
        return sum(slot.size for slot in self.slots[device])

    @property
    def most_params(self) -> int:
        """Parameters of the device that holds most."""
        return max(map(self.params, range(self.devices)))

    @property
    def owners(self) -> dict[str, set[int]]:
        """For each layer one device for each part of its channels: the first of those that hold it."""
        return {stage.layer.name: {group[0] for group in stage.groups} for stage in self.stages}

    def state_bytes(self, itemsize: int = 4, states: int = STATES) -> list[int]:
        """Bytes that each device holds in a step.

        ``states`` values of each parameter (itself, its gradient, its momentum), the outputs of its blocks, and what it
        reads of others'.
        """
        held = [itemsize * states * self.params(device) for device in range(self.devices)]
        for stage in self.stages:
            if stage.layer.kind != FLATTEN:  # which is another view of what is there
                for device, block in enumerate(stage.blocks):
                    held[device] += itemsize * algebra.volume(block)
            for edge in stage.edges:
                for (_, target), box in edge.far().items():
                    held[target] += itemsize * algebra.volume(box)
        return held

    @property
    def hash(self) -> str:
        """Names the strategy, the samples and the devices."""
        text = json.dumps([self.batch, self.devices, sorted(self.strategy.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def busiest_share(self) -> float:
        """The share of the operations that falls to the device that computes most: the first of each layer."""
        of_first = sum(
            stage.layer.flops
            * algebra.volume(stage.blocks[0])
            / algebra.volume(algebra.whole(stage.layer, self.batch))
            for stage in self.stages
        )
        return of_first / self.graph.flops

    @property
    def synced(self) -> list[tuple[Stage, int, tuple[int, ...], int]]:
        """All-reduces of gradients, in the order of the stages: (stage, part of the channels, group, parameters).

        Those of a normalisation need none: the sums over the group that its backward pass takes are its gradients.
        """
        found = []
        for stage in self.stages:
            if stage.layer.kind == NORM or not stage.layer.weights:
                continue
            for part, group in enumerate(stage.groups):
                if len(group) > 1:
                    shapes = algebra.shard_shapes(stage.layer, stage.blocks[group[0]][1])
                    found.append((stage, part, group, sum(map(math.prod, shapes.values()))))
        return found

    def sent_bytes(self, itemsize: int = 4) -> list[int]:
        """Bytes that each device sends in a step: moved activations, their gradients, all-reduces, and labels."""
        sent = [0] * self.devices

        def reduced(values: int, group: Sequence[int]) -> None:
            form = traffic("allreduce", "library", values * itemsize, len(group), itemsize=itemsize)
            for device, count in zip(group, form.sent_bytes):
                sent[device] += count

        for (source, _), box in self.labels.far().items():
            sent[source] += algebra.volume(box) * LABEL_BYTES
        for stage in self.stages:
            for edge in stage.edges:
                for (source, target), box in edge.far().items():
                    sent[source] += algebra.volume(box) * itemsize
                    if edge.gradient:
                        sent[target] += algebra.volume(box) * itemsize
            if stage.layer.kind == NORM:
                for group in stage.groups:
                    channels = stage.blocks[group[0]][1]
                    if len(group) > 1:
                        for values in itertools.chain(*STATISTICS):
                            reduced(values * (channels[1] - channels[0]), group)
        for _, _, group, params in self.synced:
            reduced(params, group)
        return sent


def _takes_whole(layer: Layer, source: Layer, read: Box, block: Box, owned: Box) -> bool:
    """Whether a device takes the map that it has as it lies, although its last rows may be under no window.

    That spares a copy, where the device has the whole map and computes the whole of the layer's.
    """
    maps = tuple((0, size) for size in source.out[1:])
    height_width = [high - low for low, high in block[2:]]
    return (
        owned[2:] == maps
        and read[:2] == owned[:2]
        and algebra.volume(block) > 0
        and algebra.fits(layer, source.out[1:], height_width)
    )


def _features(source: Layer, block: Box, read: Box) -> Range:
    """Which of the flattened values of what it reads make the block of a flatten layer."""
    start, inner = 0, 1  # the flat index of the first value that is read
    for size, (low, _) in zip(reversed(source.out), reversed(read[1:])):
        start += low * inner
        inner *= size
    return (block[1][0] - start, block[1][1] - start)
