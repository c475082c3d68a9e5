"""Seconds of a block on a device known by its datasheet: arithmetic against memory traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from implementations.cluster.machine import Device
from implementations.layerwise.graph import CONV, FLATTEN, INPUT, LINEAR, NORM, Layer

Shape = Sequence[int]
ITEMSIZE = 4
_UPDATE_PASSES = 5  # SGD with momentum reads weight, gradient and momentum, and writes weight and momentum


@dataclass(frozen=True)
class Roofline:
    """Times of blocks on ``device``: the longer of arithmetic and memory traffic, and each operation's start.

    Inputs, outputs and parameters are read or written once. The gradients of a convolution or a linear layer are two
    operations as long as the forward one (that of the input is not needed behind the network's input); those of other
    layers move as much memory as forward, and the input or output once more.

    ``scale`` multiplies all times: 1 / (what a network reaches of the rates of the device). Of ``workers`` workers that
    compute at once on ``capacity`` devices, those that share one take turns.
    """

    device: Device
    scale: float = 1.0
    workers: int = 1
    capacity: int = 1

    @property
    def moving(self) -> tuple[float, float]:
        """Nothing: of a device by its datasheet the links alone are known."""
        return 0.0, 0.0

    def seconds(
        self,
        layer: Layer,
        source_shapes: Sequence[Shape],
        block_shape: Shape,
        *,
        active: int = 1,
        input_gradient: bool = True,
        shared: bool = False,
    ) -> tuple[float, float]:
        """(forward, backward) seconds of a block; shapes with the sample first.

        ``active``: workers that compute blocks like it; ``shared`` makes no difference.
        """
        scale = self.scale * self._crowding(active)
        if layer.kind in (INPUT, FLATTEN) or not math.prod(block_shape):
            return 0.0, 0.0
        flops = layer.flops * math.prod(block_shape) / max(1, layer.elements)
        read, written = sum(map(math.prod, source_shapes)), math.prod(block_shape)
        if layer.kind in (CONV, LINEAR):
            weights = layer.params * block_shape[1] / layer.out[0]
            work = self._flops_s(layer, flops, source_shapes[0], block_shape)
            one = max(work, self._memory_s(read + written + weights)) + self.device.kernel_overhead_s
            return scale * one, scale * one * (1 + input_gradient)
        passes = 2 if layer.kind == NORM else 1  # statistics need the input before it is normalised
        forward = self._memory_s(passes * read + written)
        backward = self._memory_s(passes * (read + written) + read)
        overhead = self.device.kernel_overhead_s
        return scale * (forward + overhead), scale * (backward + overhead)

    def update_s(self, params: int) -> float:
        """Seconds of a step of SGD with momentum on ``params`` parameters, of all workers at once."""
        return self.scale * self._crowding(self.workers) * self._memory_s(_UPDATE_PASSES * params)

    def arithmetic_bound(self, layer: Layer, source_shapes: Sequence[Shape], block_shape: Shape) -> bool:
        """Whether arithmetic, rather than memory traffic, takes a convolution's or a linear layer's time."""
        flops = layer.flops * math.prod(block_shape) / max(1, layer.elements)
        weights = layer.params * block_shape[1] / layer.out[0]
        nbytes = math.prod(source_shapes[0]) + math.prod(block_shape) + weights
        return self._flops_s(layer, flops, source_shapes[0], block_shape) >= self._memory_s(nbytes)

    def _crowding(self, active: int) -> float:
        """Workers that share a device."""
        return max(1.0, active / max(self.capacity, 1)) if self.workers > self.capacity else 1.0

    def _memory_s(self, values: float) -> float:
        return ITEMSIZE * values / self.device.memory_bandwidth_bytes_per_s

    def _flops_s(self, layer: Layer, flops: float, source: Shape, block: Shape) -> float:
        """Seconds of the arithmetic of one operation.

        A table of rates by shape is entered by the matrix product that a convolution amounts to: a row for each place
        of the output; its step is three such products.
        """
        share = self.device.efficiency_by_kind.get(layer.kind)
        if share is not None:
            return flops / (self.device.peak_flops * share)
        rows = math.prod([block[0], *block[2:]])
        return flops / self.device.flops_per_s(rows, 3 * flops)
