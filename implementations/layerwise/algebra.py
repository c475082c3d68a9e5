"""Partition algebra: which block of a tensor a device computes, what it reads for that, and what must move. Exact.

A *box* is a half-open range of indices for each dimension of a tensor. A configuration cuts a layer's output into a
grid of blocks of ``numpy.array_split``'s sizes, in row-major order of (sample, channel, height, width); block k is on
device k, so that a layer of fewer blocks than there are devices leaves the last ones idle. The paper leaves both open
(its code of that time takes ceil(size / degree) and needs exact division).

Devices compute disjoint blocks of the output; the boxes that they read may overlap: a halo for height and width, all
channels of the input for a convolution's or a linear layer's channels (section 4 of the paper).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from implementations.cluster.volume import bounds, chunk_sizes
from implementations.errors import UserError
from implementations.layerwise.graph import (
    CONCAT,
    CONV,
    FLATTEN,
    LETTERS,
    LINEAR,
    LOSS,
    POOL,
    Config,
    Graph,
    Layer,
)

Range = tuple[int, int]
Box = tuple[Range, ...]
_MANY_PAIRS = 4096  # of devices; a search asks for few, over and over


def volume(box: Box) -> int:
    """Elements of a box; 0 if it is empty."""
    return math.prod(max(0, high - low) for low, high in box)


def overlap(first: Box, second: Box) -> Box:
    """What two boxes of one tensor share; a box of volume 0 where they share nothing."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))


def relative(box: Box, origin: Box) -> tuple[slice, ...]:
    """Where ``box`` lies in a tensor that holds ``origin``."""
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(box, origin))


def shape(box: Box) -> tuple[int, ...]:
    """Sizes of a box."""
    return tuple(high - low for low, high in box)


def sizes(layer: Layer, batch: int) -> tuple[int, ...]:
    """Sizes of the layer's output for ``batch`` samples."""
    return (batch, *layer.out)


def whole(layer: Layer, batch: int) -> Box:
    """The box of the layer's whole output."""
    return tuple((0, size) for size in sizes(layer, batch))


def problems(layer: Layer, config: Config, batch: int, devices: int) -> list[str]:
    """What forbids the configuration, in words; none if it is allowed."""
    found = []
    if len(config) != layer.rank:
        return [f"layer {layer.name}: configuration {config}; needs {layer.rank} degrees"]
    for letter, degree, most in zip(LETTERS, config, (batch, *layer.splittable)):
        if degree < 1:
            found.append(f"layer {layer.name}: {letter}={degree}; a degree is at least 1")
        elif degree > most:
            why = f"has only {most} there" if most > 1 else "cannot be split there"
            found.append(f"layer {layer.name}: {letter}={degree}, but it {why}")
    if math.prod(config) > devices:
        found.append(f"layer {layer.name}: {config} takes {math.prod(config)} devices of {devices}")
    return found


def check(graph: Graph, strategy: dict[str, Config], batch: int, devices: int) -> None:
    """Raise UserError unless the strategy has an allowed configuration for each layer."""
    found = [f"layer {name}: the network has no such layer" for name in strategy if name not in graph.layers]
    for layer in graph:
        if layer.name not in strategy:
            found.append(f"layer {layer.name}: the strategy does not say how to split it")
        else:
            found += problems(layer, strategy[layer.name], batch, devices)
    if found:
        raise UserError("\n".join(found))


def configurations(
    layer: Layer, batch: int, devices: int, degrees: str = "powers", idle: bool = True
) -> list[Config]:
    """All allowed configurations of a layer for ``batch`` samples on up to ``devices`` devices, in lexical order.

    ``degrees`` is "powers" (of two; the paper does not say) or "all" (any number). Without ``idle`` only those count
    that use as many devices as any does.
    """
    allowed = [d for d in range(1, devices + 1) if degrees == "all" or d & (d - 1) == 0]
    choices = [[d for d in allowed if d <= most] for most in (batch, *layer.splittable)]
    found = [config for config in itertools.product(*choices) if math.prod(config) <= devices]
    if not idle:
        most_used = max(map(math.prod, found))
        found = [config for config in found if math.prod(config) == most_used]
    return found


def ranges(size: int, degree: int, step: int = 1) -> list[Range]:
    """``degree`` consecutive ranges of ``size`` indices, cut at multiples of ``step``."""
    return [(low * step, high * step) for low, high in bounds(chunk_sizes(size // step, degree))]


def blocks(layer: Layer, config: Config, batch: int) -> list[Box]:
    """The box of each block of the output, device by device."""
    steps = [1, layer.channel_step, *[1] * len(layer.out[1:])]
    cuts = [ranges(*one) for one in zip(sizes(layer, batch), config, steps)]
    return list(itertools.product(*cuts))


def input_box(graph: Graph, layer: Layer, place: int, block: Box) -> Box:
    """What the layer reads of its ``place``-th input for ``block``: the box that its windows span, cut at the edges.

    That is the smallest one, but where padding meets gaps between or in windows. Empty (volume 0) where nothing is
    read, as a block of a concatenation may.
    """
    source = graph[layer.inputs[place]]
    return read_box(layer, source.out, block, _offset(graph, layer, place))


def read_box(layer: Layer, source: tuple[int, ...], block: Box, offset: int = 0) -> Box:
    """The same, given a sample's sizes of the input; ``offset``: the input's first channel in a concatenation."""
    samples = block[0]
    all_of = tuple((0, size) for size in source)
    if any(high <= low for low, high in block):
        return tuple((0, 0) for _ in range(1 + len(source)))
    match layer.kind:
        case _ if layer.kind == CONV:
            return (samples, _group_channels(layer, source[0], block[1]), *_seen(layer, source, block))
        case _ if layer.kind == POOL:
            return (samples, block[1], *(all_of[1:] if layer.whole_map else _seen(layer, source, block)))
        case _ if layer.kind in (LINEAR, LOSS):
            return (samples, *all_of)
        case _ if layer.kind == FLATTEN:
            return (samples, *_unflattened(source, block[1]))
        case _ if layer.kind == CONCAT:
            low, high = (min(max(0, edge - offset), source[0]) for edge in block[1])
            return (samples, (low, high), *block[2:]) if low < high else tuple((0, 0) for _ in block)
    return block


def _offset(graph: Graph, layer: Layer, place: int) -> int:
    """First channel of the ``place``-th input in a concatenation; 0 for other kinds."""
    if layer.kind != CONCAT:
        return 0
    return sum(source.out[0] for source in graph.inputs(layer)[:place])


def _group_channels(layer: Layer, channels: int, block: Range) -> Range:
    per_group = channels // layer.groups
    return (
        (block[0] // layer.channel_step * per_group, -(-block[1] // layer.channel_step) * per_group)
        if (layer.groups > 1)
        else (0, channels)
    )


def _seen(layer: Layer, source: tuple[int, ...], block: Box) -> Iterator[Range]:
    """Height and width of the input under the windows of a block, without the padding."""
    window = layer.window
    for axis, size in enumerate(source[1:]):
        low, high = block[2 + axis]
        start = low * window.stride[axis] - window.padding[axis]
        stop = (high - 1) * window.stride[axis] - window.padding[axis] + reach(layer, axis)
        yield (min(max(0, start), size), min(max(0, stop), size))


def reach(layer: Layer, axis: int) -> int:
    """Input values that one window spans along height (0) or width (1)."""
    return layer.window.dilation[axis] * (layer.window.kernel[axis] - 1) + 1


def fits(layer: Layer, size: Sequence[int], block: Sequence[int]) -> bool:
    """Whether the layer's own padding around a map of ``size`` gives a block of these (height, width)."""
    window = layer.window
    return all(
        (size[axis] + 2 * window.padding[axis] - reach(layer, axis)) // window.stride[axis] + 1 == block[axis]
        for axis in range(2)
    )


def padding(layer: Layer, source: tuple[int, ...], block: Box) -> list[tuple[int, int]]:
    """Values to add before and behind the box that a block reads, in height and width, for its windows to be full."""
    pads = []
    for axis, (low, high) in enumerate(_seen(layer, source, block)):
        first = block[2 + axis][0] * layer.window.stride[axis] - layer.window.padding[axis]
        last = (block[2 + axis][1] - 1) * layer.window.stride[axis] - layer.window.padding[axis]
        pads.append((low - first, last + reach(layer, axis) - high))
    return pads


def _unflattened(source: tuple[int, ...], features: Range) -> Iterator[Range]:
    """The smallest box of (channel, height, width) with a range of flattened features."""
    low, last = features[0], features[1] - 1
    inner = math.prod(source)
    alike = True  # whether the outer indices of both ends are equal, so that the inner ones are a range
    for size in source:
        inner //= size
        first, final = low // inner, last // inner
        low, last = low - first * inner, last - final * inner
        yield (first, final + 1) if alike else (0, size)
        alike = alike and first == final


@dataclass(frozen=True)
class Move:
    """Part of a tensor that one device computes and another reads."""

    source: int
    target: int
    box: Box


def reads(graph: Graph, layer: Layer, place: int, config: Config, batch: int) -> list[Box]:
    """What each device reads of the layer's ``place``-th input."""
    return [input_box(graph, layer, place, block) for block in blocks(layer, config, batch)]


def moves(owned: Sequence[Box], read: Sequence[Box]) -> list[Move]:
    """What each device gets from each, its own part included: device k owns ``owned[k]`` and reads ``read[k]``."""
    found = []
    for target, source in _likely(owned, read):
        shared = overlap(owned[source], read[target])
        if volume(shared):
            found.append(Move(source, target, shared))
    return found


def _likely(owned: Sequence[Box], read: Sequence[Box]) -> Iterable[tuple[int, int]]:
    """(target, source) of all pairs; of many, of those that meet in every dimension, found all at once."""
    if len(owned) * len(read) < _MANY_PAIRS:
        return itertools.product(range(len(read)), range(len(owned)))
    have, want = np.array(owned), np.array(read)
    meet = np.ones((len(read), len(owned)), dtype=bool)
    for axis in range(have.shape[1]):
        meet &= have[None, :, axis, 0] < want[:, None, axis, 1]
        meet &= want[:, None, axis, 0] < have[None, :, axis, 1]
    return ((target, source) for target, source in np.argwhere(meet).tolist())


def moved_elements(found: Iterable[Move], devices: int) -> list[list[int]]:
    """Elements that go from device to device, [source][target]; what stays where it is counts nothing."""
    table = [[0] * devices for _ in range(devices)]
    for move in found:
        if move.source != move.target:
            table[move.source][move.target] += volume(move.box)
    return table


def shard(layer: Layer, config: Config, batch: int, device: int) -> Range | None:
    """The output channels whose parameters a device holds; None if it holds none of them."""
    if not layer.weights or device >= math.prod(config):
        return None
    return blocks(layer, config, batch)[device][1]


def replicas(config: Config) -> list[tuple[int, ...]]:
    """The groups of devices that have the same channels of a layer, one for each part of the channel dimension.

    They hold the same parameters, whose gradients are summed over them, and share the statistics of normalisation.
    """
    places = list(itertools.product(*map(range, config)))
    parts = config[1] if len(config) > 1 else 1
    return [
        tuple(device for device, place in enumerate(places) if len(place) < 2 or place[1] == part)
        for part in range(parts)
    ]


def shard_shapes(layer: Layer, channels: Range) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of some output channels."""
    return {name: (channels[1] - channels[0], *full[1:]) for name, full in layer.weights.items()}
