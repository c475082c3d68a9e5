"""A convolutional network whose layers are cut by filters and units (algorithm derived in the README, "Exchanges").

Worker j owns filters of each convolution. Forward: convolution of all maps below by its filters, pooled, then
all-gather along the channels. Backward: the gradients of its filters stay where they are; the derivatives by all maps
below, which are sums over filters, are reduce-scattered along the channels. With the fully connected layers that
makes 2 L - 1 exchanges for L layers.
"""

from __future__ import annotations

from typing import Any

import torch

from implementations.models import cnn
from implementations.spark.convolution import ConvolutionalProgram, convolve, gradients, products
from implementations.spark.program import GATHER, SCATTER_SUM, Block, Exchange, State, shares, start_of


class FilterProgram(ConvolutionalProgram):
    """``models.cnn`` cut by filters and units."""

    def __init__(self, model: dict[str, Any], features: int, classes: int, workers: int, batch: int) -> None:
        super().__init__(model, features, classes, workers, batch)
        self._sizes = [shares(filters, workers) for filters, _, _ in self.net.maps[1:]]

    def after_forward(self, layer: int) -> Exchange:
        """The pooled maps to everybody."""
        return Exchange(GATHER, self.map_shape(layer + 1), 1, self._sizes[layer])

    def before_backward(self, layer: int) -> Exchange:
        """The derivatives by the pooled maps, to who made them."""
        return Exchange(SCATTER_SUM, self.map_shape(layer + 1), 1, self._sizes[layer])

    def blocks(self, worker: int) -> dict[str, Block]:
        """Filters of each convolution, units of each fully connected layer."""
        found, side = {}, self.net.kernel
        for layer, sizes in enumerate(self._sizes):
            weight, bias = cnn.parameter_names("conv", layer)
            channels, filters = self.net.maps[layer][0], self.net.maps[layer + 1][0]
            start = start_of(sizes, worker)
            stop = start + sizes[worker]
            found[weight] = Block((filters, channels, side, side), 0, start, stop)
            found[bias] = Block((filters,), 0, start, stop)
        return found | self.dense.blocks(worker)

    def flops_per_sample(self, worker: int) -> int:
        """The worker's share of the products; images need no derivative."""
        own = self.dense.flops_per_sample(worker, inputs_gradient=True)
        for layer, sizes in enumerate(self._sizes):
            height = self.net.maps[layer][1]
            own += (6 if layer else 4) * products(self.net, layer, sizes[worker], height)
        return own

    def convolve(self, layer: int, worker: int, state: State, received: torch.Tensor | None) -> torch.Tensor:
        """The worker's pooled maps."""
        weight, bias = (state.weights[name] for name in cnn.parameter_names("conv", layer))
        x_bchw = received.contiguous() if layer else self.images(state)
        pooled, places = convolve(x_bchw, weight, bias, self._padding)
        if layer:
            state.saved[f"x{layer}"] = x_bchw
        state.saved[f"pooled{layer}"], state.saved[f"places{layer}"] = pooled, places
        return pooled

    def convolve_backward(
        self, layer: int, worker: int, state: State, received: torch.Tensor
    ) -> torch.Tensor | None:
        """The summand of the derivative by all maps below."""
        weight, bias = cnn.parameter_names("conv", layer)
        return gradients(
            received,
            state.saved.pop(f"pooled{layer}"),
            state.saved.pop(f"places{layer}"),
            state.saved.pop(f"x{layer}") if layer else self.images(state),
            state.weights[weight],
            self._padding,
            (state.grads[weight], state.grads[bias]),
            inputs_gradient=layer > 0,
        )

    @property
    def _padding(self) -> tuple[int, int]:
        return self.net.padding, self.net.padding
