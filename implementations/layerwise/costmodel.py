"""The cost model: seconds and bytes of each layer under each configuration, and of each pair of configurations.

Equation 1 of the paper (section 5.1) adds up, for a strategy,

* t_C, forward and backward of a layer: of its largest block, as ``Times`` has it; here with the optimiser's update of
  the parameters that a device holds, which the paper does not speak of;
* t_S, the synchronisation of a layer's parameters: the gradients of a replica go to a parameter server and parameters
  come back (``server``, the paper's), or the replicas all-reduce them (``allreduce``, what is really run here).
  Normalisation exchanges sums over its group, forward and backward, and has its gradients from these;
* t_X, what moves between two layers: the activations forward and their gradients backward, except to the input.

That is the objective ``additive``. The objective ``hidden`` is ours: a layer's synchronisation goes on while the
layer's backward pass does, and counts only as far as it takes longer. Both are sums over layers and edges, so that the
same search finds their optimum.

Nodes are leaders (``Graph.leaders``): a normalisation or activation is counted with the layer whose configuration it
takes. All tables are made for all configurations at once, and layers of equal sizes share theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from implementations.cluster.machine import Cluster
from implementations.errors import UserError
from implementations.layerwise import algebra
from implementations.layerwise.graph import CONCAT, FLATTEN, INPUT, NORM, Config, Graph, Layer
from implementations.layerwise.options import SYNCS
from implementations.layerwise.plan import STATES, STATISTICS
from implementations.layerwise.transfers import Fabric, box_array, moved

ITEMSIZE = 4


class Times(Protocol):
    """Where t_C comes from: ``roofline.Roofline`` or ``blocktimes.MeasuredBlocks``."""

    @property
    def moving(self) -> tuple[float, float]:
        """Seconds of an exchange between layers beyond its messages, and for each byte that a device gives or gets.

        Blocks are cut out of tensors, and put together to others.
        """

    def seconds(
        self,
        layer: Layer,
        source_shapes: Sequence[Sequence[int]],
        block_shape: Sequence[int],
        *,
        active: int = 1,
        input_gradient: bool = True,
        shared: bool = False,
    ) -> tuple[float, float]:
        """(forward, backward) of a block, while ``active`` devices compute blocks like it.

        ``shared``: several devices have values of the block's channels (which a normalisation sums over them).
        """

    def update_s(self, params: int) -> float:
        """The optimiser's step on ``params`` parameters."""


@dataclass(frozen=True)
class BlockSpec:
    """The largest block of a layer under a configuration: what the time of a device depends on."""

    layer: Layer
    source_shapes: tuple[tuple[int, ...], ...]
    block_shape: tuple[int, ...]
    active: int
    input_gradient: bool
    shared: bool


@dataclass(frozen=True)
class LayerCost:
    """Seconds of one layer under one configuration. ``statistics``: what a normalisation exchanges in each pass."""

    forward_s: float
    backward_s: float
    update_s: float
    sync_s: float
    statistics_forward_s: float = 0.0
    statistics_backward_s: float = 0.0

    @property
    def statistics_s(self) -> float:
        """Both passes' exchanges."""
        return self.statistics_forward_s + self.statistics_backward_s

    def value(self, objective: str) -> float:
        """What the layer adds to an objective."""
        join = sum if objective == "additive" else max
        busy = join((self.backward_s, self.sync_s))
        return self.forward_s + busy + self.update_s + self.statistics_s


class CostModel:
    """Costs of layers and edges of ``graph`` for ``batch`` samples in all on ``devices`` devices of ``cluster``."""

    def __init__(
        self,
        graph: Graph,
        batch: int,
        devices: int,
        cluster: Cluster,
        times: Times,
        sync: str = "server",
    ) -> None:
        if sync not in SYNCS:
            raise UserError(f"sync {sync!r}: allowed: {' | '.join(SYNCS)}")
        self.graph, self.batch, self.devices = graph, batch, devices
        self.times, self.sync = times, sync
        self.fabric = Fabric(cluster, devices)
        self._moving = times.moving
        self._known: dict[Hashable, Any] = {}
        self._signatures = {layer.name: self._signature(layer) for layer in graph}

    def layer(self, layer: Layer, config: Config) -> LayerCost:
        """Seconds of a layer."""
        return self._once(("layer", self._signatures[layer.name], config), lambda: self._layer(layer, config))

    def _layer(self, layer: Layer, config: Config) -> LayerCost:
        if layer.kind == INPUT:
            return LayerCost(0.0, 0.0, 0.0, 0.0)
        spec = block_spec(self.graph, layer, config, self.batch)
        forward, backward = self.times.seconds(
            layer,
            spec.source_shapes,
            spec.block_shape,
            active=spec.active,
            input_gradient=spec.input_gradient,
            shared=spec.shared,
        )
        parts = self._shards(layer, config)
        update = self.times.update_s(max(parts)) if layer.weights else 0.0
        sync, statistics = 0.0, (0.0, 0.0)
        if layer.kind == NORM and spec.shared:
            channels = [high - low for low, high in algebra.ranges(layer.out[0], config[1])]
            statistics = tuple(
                sum(
                    self._sum_s("allreduce", config, [values * count for count in channels]) for values in one
                )
                for one in STATISTICS
            )
        elif layer.weights and spec.shared:
            sync = self._sum_s(self.sync, config, parts)
        return LayerCost(forward, backward, update, sync, *statistics)

    def _sum_s(self, way: str, config: Config, values: list[int]) -> float:
        """Seconds in which each part of the channels sums its values over its devices."""
        nbytes = [ITEMSIZE * count for count in values]
        of = self.fabric.server_s if way == "server" else self.fabric.allreduce_s
        return self._once((way, config, tuple(values)), lambda: of(algebra.replicas(config), nbytes))

    def _shards(self, layer: Layer, config: Config) -> list[int]:
        """Parameters of each part of the channels."""
        if not layer.weights:
            return [0]
        per_channel = layer.params // layer.out[0]
        cuts = algebra.ranges(layer.out[0], config[1], layer.channel_step)
        return [per_channel * (high - low) for low, high in cuts]

    def elements(
        self, layer: Layer, place: int, producer: Sequence[Config], reader: Sequence[Config]
    ) -> np.ndarray:
        """(i, j, s, t) elements of the ``place``-th input that device t reads and s has; 0 for s = t."""
        source = self.graph.inputs(layer)[place]
        owned = self._once(
            ("blocks", source.out, source.channel_step, tuple(producer)),
            lambda: box_array([algebra.blocks(source, one, self.batch) for one in producer], self.devices),
        )
        read = [algebra.reads(self.graph, layer, place, one, self.batch) for one in reader]
        return moved(owned, box_array(read, self.devices))

    def edge(
        self, layer: Layer, place: int, producer: Sequence[Config], reader: Sequence[Config]
    ) -> tuple[np.ndarray, np.ndarray]:
        """(i, j) seconds of the ``place``-th input both ways, and bytes that the device that gets most receives."""
        source = self.graph.inputs(layer)[place]
        before = self.graph.inputs(layer)[:place] if layer.kind == CONCAT else []
        reads = (
            layer.kind,
            layer.out,
            layer.window,
            layer.groups,
            layer.whole_map,
            sum(one.out[0] for one in before),
        )
        cut = (source.out, source.channel_step, source.kind == INPUT)
        key = ("edge", reads, cut, tuple(producer), tuple(reader))

        def made() -> tuple[np.ndarray, np.ndarray]:
            nbytes = ITEMSIZE * self.elements(layer, place, producer, reader)
            ways = 1 if source.kind == INPUT else 2
            return ways * self.transfer_s(nbytes).max(axis=-1), nbytes.sum(axis=-2).max(axis=-1)

        return self._once(key, made)

    def transfer_s(self, nbytes: np.ndarray) -> np.ndarray:
        """(..., device) seconds for which an exchange of bytes (..., s, t) keeps each device busy: t_X."""
        seconds = self.fabric.device_s(nbytes)
        each_s, per_byte_s = self._moving
        through = nbytes.sum(axis=-1) + nbytes.sum(axis=-2)
        return seconds + (through > 0) * each_s + through * per_byte_s

    def held_bytes(self, layer: Layer, config: Config) -> int:
        """Bytes of a layer on device 0, which has the largest part of everything: parameters' state and output."""
        block = [cuts[0] for cuts in _cuts(layer, config, self.batch)]
        output = 0 if layer.kind == FLATTEN else math.prod(high - low for low, high in block)
        return ITEMSIZE * (STATES * max(self._shards(layer, config)) + output)

    def _signature(self, layer: Layer) -> Hashable:
        """What the costs of a layer depend on."""
        sources = self.graph.inputs(layer)
        return (
            *(layer.kind, layer.out, layer.window, layer.groups, layer.whole_map, layer.flops),
            tuple(layer.weights.items()),
            repr(sorted(layer.settings.items())),
            tuple((source.out, source.kind == INPUT) for source in sources),
        )

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def block_spec(graph: Graph, layer: Layer, config: Config, batch: int) -> BlockSpec:
    """The largest block of a layer; of several, one that reads most. It decides how long the layer takes."""
    sources = graph.inputs(layer)
    cuts = _cuts(layer, config, batch)
    block = [ranges[0] for ranges in cuts]  # ``array_split`` has its larger parts first
    if layer.window is not None and not layer.whole_map:
        for axis in (2, 3):  # blocks at the border read less, as there is padding

            def size(one: algebra.Range, axis: int = axis) -> tuple[int, int]:
                tried = (*block[:axis], one, *block[axis + 1 :])
                low, high = algebra.read_box(layer, sources[0].out, tried)[axis]
                return one[1] - one[0], high - low

            block[axis] = max(cuts[axis], key=size)
    box = tuple(block)
    return BlockSpec(
        layer=layer,
        source_shapes=tuple(
            algebra.shape(algebra.input_box(graph, layer, place, box)) for place in range(len(sources))
        ),
        block_shape=algebra.shape(box),
        active=math.prod(config),
        input_gradient=any(source.kind != INPUT for source in sources),
        shared=len(algebra.replicas(config)[0]) > 1,
    )


def specs(graph: Graph, strategies: Mapping[str, Sequence[Config]], batch: int) -> list[BlockSpec]:
    """The block of each layer, but the input, under each of its configurations: what is to be measured."""
    return [
        block_spec(graph, layer, config, batch)
        for layer in graph
        if layer.kind != INPUT
        for config in strategies[layer.name]
    ]


def choices(
    graph: Graph, batch: int, devices: int, degrees: str = "powers", idle: bool = True
) -> dict[str, list[Config]]:
    """Of each layer the configurations that it may have: those of its leader. Each device draws its own samples."""
    found: dict[str, list[Config]] = {}
    for name, leader in graph.leaders().items():
        layer = graph[leader]
        if name != leader:
            found[name] = found[leader]
        elif layer.kind == INPUT:
            found[name] = [(min(devices, batch), *[1] * len(layer.out))]
        else:
            found[name] = algebra.configurations(layer, batch, devices, degrees, idle)
    return found


def _cuts(layer: Layer, config: Config, batch: int) -> list[list[algebra.Range]]:
    """The ranges of each dimension of the output."""
    steps = [1, layer.channel_step, *[1] * len(layer.out[1:])]
    return [algebra.ranges(*one) for one in zip(algebra.sizes(layer, batch), config, steps)]
