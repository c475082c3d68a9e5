"""Convolutions cut over workers, however they are cut: the order of segments, and the arithmetic of a block.

A layer is convolution, rectifier and max-pooling; the pooled maps are what is exchanged, a quarter of the
convolution's output. Pooling works in a map and a window of it alone, so it commutes with any cut that keeps its
windows whole. The rectifier comes after it here: it is monotone, so the values are the same, and so are the
derivatives, for whichever of a window's places the maximum takes has the slope of the maximum.

Shapes: b sample, c input channel, f filter of a worker's block, h row, w column.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import torch

from implementations.models import cnn
from implementations.spark.dense import DenseLayers
from implementations.spark.program import Exchange, Handed, Program, State

POOL = [2, 2]


class ConvolutionalProgram(Program):
    """``models.cnn``: C convolutions, whose cut subclasses say, and D fully connected layers cut by output units.

    Segments are the layers forward, C + D of them, then backward, last one first. ``model`` is a point's description.
    """

    def __init__(self, model: dict[str, Any], features: int, classes: int, workers: int, batch: int) -> None:
        super().__init__(workers, batch)
        arguments = {key: value for key, value in model.items() if key != "name"}
        self.net = cnn.sizes(features, classes, **arguments)
        names = [cnn.parameter_names("fc", layer) for layer in range(len(self.net.widths) - 1)]
        self.dense = DenseLayers(self.net.widths, "relu", names, workers, batch)

    def map_shape(self, layer: int) -> tuple[int, int, int, int]:
        """Of what convolution ``layer`` reads, (b, c, h, w); of the last layer's output for the number of layers."""
        return (self.batch, *self.net.maps[layer])

    @abstractmethod
    def after_forward(self, layer: int) -> Exchange | None:
        """What follows convolution ``layer``; behind the last one everybody must receive all maps."""

    @abstractmethod
    def before_backward(self, layer: int) -> Exchange | None:
        """What brings each worker the derivative by its part of the layer's pooled maps."""

    def at_the_end(self) -> tuple[Exchange | None, ...]:
        """What follows the last layer's backward, in order."""
        return (None,)

    @abstractmethod
    def convolve(self, layer: int, worker: int, state: State, received: Any) -> Handed:
        """Forward of the worker's part, given what the exchange before brought (first layer: None)."""

    @abstractmethod
    def convolve_backward(self, layer: int, worker: int, state: State, received: Any) -> Handed:
        """Backward of the worker's part; returns what goes before the backward of the layer below, or to the end."""

    def finish(self, state: State, received: Any) -> None:
        """The segment behind an exchange at the end."""
        raise NotImplementedError

    @cached_property
    def exchanges(self) -> tuple[Exchange | None, ...]:
        """Maps, activations and scores forward; derivatives backward; what is left to do."""
        count = self.net.convolutions
        return (
            *(self.after_forward(layer) for layer in range(count)),
            *self.dense.forward_exchanges,
            *self.dense.backward_exchanges,
            *(self.before_backward(layer) for layer in reversed(range(count))),
            *self.at_the_end(),
        )

    def run(self, segment: int, worker: int, state: State, received: Any) -> Handed:
        """See ``Program.run``."""
        convolutions, dense = self.net.convolutions, self.dense.layers
        if segment < convolutions:
            return self.convolve(segment, worker, state, received)
        layer = segment - convolutions
        if layer < dense:
            return self.dense.forward(layer, state, received if layer else received.flatten(1))
        layer = 2 * dense - 1 - layer
        if layer >= 0:
            summand = self.dense.backward(layer, worker, state, received, inputs_gradient=True)
            return summand if layer else summand.view(self.map_shape(convolutions))
        layer += convolutions
        if layer >= 0:
            return self.convolve_backward(layer, worker, state, received)
        self.finish(state, received)
        return None

    def images(self, state: State) -> torch.Tensor:
        """The minibatch as images."""
        return state.x_bi.view(self.map_shape(0))


def convolve(
    x_bchw: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, padding: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled maps of some filters, (b, f, h, w), and the place in its map that each maximum was taken from."""
    if not len(weight) or not x_bchw.shape[2]:
        nothing = x_bchw.new_zeros(_pooled_shape(x_bchw, weight, padding))
        return nothing, torch.zeros_like(nothing, dtype=torch.int64)
    z_bfhw = torch.conv2d(x_bchw, weight, bias, padding=padding)
    pooled_bfhw, places_bfhw = torch.ops.aten.max_pool2d_with_indices(z_bfhw, POOL)
    return pooled_bfhw.relu_(), places_bfhw


def gradients(
    slope_bfhw: torch.Tensor,
    pooled_bfhw: torch.Tensor,
    places_bfhw: torch.Tensor,
    x_bchw: torch.Tensor,
    weight: torch.Tensor,
    padding: tuple[int, int],
    into: tuple[torch.Tensor, torch.Tensor],
    inputs_gradient: bool,
) -> torch.Tensor | None:
    """Write the gradients of weight and bias into ``into``; the derivative by the inputs, where it is wanted.

    ``slope_bfhw`` is the derivative by the pooled maps; the rest is what ``convolve`` had and gave.
    """
    if not pooled_bfhw.numel():
        for gradient in into:
            gradient.zero_()
        return torch.zeros_like(x_bchw) if inputs_gradient else None
    slope_bfhw = torch.ops.aten.threshold_backward(slope_bfhw, pooled_bfhw, 0)
    z_bfhw = slope_bfhw.new_empty(_full_shape(x_bchw, weight, padding))  # its sizes are what counts
    d_bfhw = torch.ops.aten.max_pool2d_with_indices_backward(
        slope_bfhw, z_bfhw, POOL, POOL, [0, 0], [1, 1], False, places_bfhw
    )
    below_bchw, *found = torch.ops.aten.convolution_backward(
        d_bfhw, x_bchw, weight, [len(weight)], [1, 1], padding, [1, 1], False, [0, 0], 1,
        (inputs_gradient, True, True),
    )  # fmt: skip
    for gradient, value in zip(into, found, strict=True):
        gradient.copy_(value)
    return below_bchw


def products(sizes: cnn.Sizes, layer: int, filters: int, rows: int) -> int:
    """Multiplications of a convolution for one sample: so many of its filters, and rows of their output."""
    channels, _, width = sizes.maps[layer]
    return channels * sizes.kernel**2 * filters * rows * width


def _full_shape(
    x_bchw: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int]
) -> tuple[int, int, int, int]:
    batch, _, *image = x_bchw.shape
    height, width = (
        side + 2 * pad - kernel + 1
        for side, pad, kernel in zip(image, padding, weight.shape[2:], strict=True)
    )
    return batch, len(weight), max(height, 0), width


def _pooled_shape(
    x_bchw: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int]
) -> tuple[int, int, int, int]:
    batch, filters, height, width = _full_shape(x_bchw, weight, padding)
    return batch, filters, (height if x_bchw.shape[2] else 0) // 2, width // 2
