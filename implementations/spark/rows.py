"""A convolutional network whose images are cut by rows; fully connected layers by units, as ever.

Every worker has all kernels. It owns rows of each layer's pooled maps, hence twice as many rows of the convolution,
so that no pooling window lies across two workers; a last odd row, which pooling drops, is not computed. A convolution
needs ``kernel // 2`` rows more on either side (its *halo*): before each but the first, whose images all workers have,
workers send each other what rows of the maps below the others need. Rows are shared out anew in each layer, so that
all are even; the rows that thereby change hands go the same way. Backward, the derivatives by rows of others go back
to them and are added up. Gradients of kernels are sums over rows: all are summed over the workers at once, at the end.

Shapes: b sample, c channel, h row of a block, w column, p parameter of a convolution.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from implementations.models import cnn
from implementations.spark.convolution import ConvolutionalProgram, convolve, gradients, products
from implementations.spark.program import (
    GATHER,
    PAIRS,
    SCATTER_SUM,
    SUM,
    Block,
    Exchange,
    Handed,
    State,
    shares,
    start_of,
)

Rows = tuple[int, int]  # half-open


class RowProgram(ConvolutionalProgram):
    """``models.cnn`` cut by rows of its maps, and by units."""

    def __init__(self, model: dict[str, Any], features: int, classes: int, workers: int, batch: int) -> None:
        super().__init__(model, features, classes, workers, batch)
        self._sizes = [shares(height, workers) for _, height, _ in self.net.maps[1:]]

    def owned(self, layer: int, worker: int) -> Rows:
        """The worker's rows of the layer's pooled maps."""
        start = start_of(self._sizes[layer], worker)
        return start, start + self._sizes[layer][worker]

    def needed(self, layer: int, worker: int) -> Rows:
        """The rows of the maps below that the worker's part of convolution ``layer`` reads."""
        start, stop = self.owned(layer, worker)
        if start == stop:
            return 0, 0
        padding, height = self.net.padding, self.net.maps[layer][1]
        return max(0, 2 * start - padding), min(height, 2 * stop + padding)

    def _sent(self, layer: int, source: int, target: int) -> Rows:
        """The rows of pooled maps ``layer`` that ``source`` owns and ``target`` needs for the next convolution."""
        own, needed = self.owned(layer, source), self.needed(layer + 1, target)
        start, stop = max(own[0], needed[0]), min(own[1], needed[1])
        return (start, stop) if start < stop else (0, 0)

    def _others(self, worker: int) -> list[int]:
        return [other for other in range(self.workers) if other != worker]

    def _halo(self, layer: int, backward: bool) -> Exchange | None:
        batch, channels, _, width = self.map_shape(layer + 1)
        pairs = {}
        for source in range(self.workers):
            for target in self._others(source):
                start, stop = self._sent(layer, source, target)
                if start < stop:
                    way = (target, source) if backward else (source, target)
                    pairs[way] = (batch, channels, stop - start, width)
        return Exchange(PAIRS, pairs=pairs) if pairs else None

    def _maps(self, kind: str) -> Exchange:
        """All rows of the last maps."""
        last = self.net.convolutions
        return Exchange(kind, self.map_shape(last), 2, self._sizes[last - 1])

    def after_forward(self, layer: int) -> Exchange | None:
        """Rows to who needs them; the last maps to everybody."""
        last = layer == self.net.convolutions - 1
        return self._maps(GATHER) if last else self._halo(layer, backward=False)

    def before_backward(self, layer: int) -> Exchange | None:
        """Derivatives back to who sent the rows."""
        last = layer == self.net.convolutions - 1
        return self._maps(SCATTER_SUM) if last else self._halo(layer, backward=True)

    def at_the_end(self) -> tuple[Exchange | None, ...]:
        """The sum of the kernels' gradients."""
        if self.workers == 1:
            return (None,)
        return Exchange(SUM, (sum(block.size for block in self._kernels.values()),)), None

    @cached_property
    def _kernels(self) -> dict[str, Block]:
        found, side = {}, self.net.kernel
        for layer in range(self.net.convolutions):
            weight, bias = cnn.parameter_names("conv", layer)
            channels, filters = self.net.maps[layer][0], self.net.maps[layer + 1][0]
            found[weight] = Block((filters, channels, side, side), 0, 0, filters)
            found[bias] = Block((filters,), 0, 0, filters)
        return found

    def blocks(self, worker: int) -> dict[str, Block]:
        """All filters of each convolution, units of each fully connected layer."""
        return self._kernels | self.dense.blocks(worker)

    def flops_per_sample(self, worker: int) -> int:
        """Products of the worker's rows and units; images need no derivative."""
        own = self.dense.flops_per_sample(worker, inputs_gradient=True)
        for layer, sizes in enumerate(self._sizes):
            filters = self.net.maps[layer + 1][0]
            own += (6 if layer else 4) * products(self.net, layer, filters, 2 * sizes[worker])
        return own

    def convolve(
        self, layer: int, worker: int, state: State, received: dict[int, torch.Tensor] | None
    ) -> Handed:
        """The worker's rows of pooled maps: parts of them for others, or all of them in the last layer."""
        x_bchw = (
            self._joined(layer, worker, state, received or {}) if layer else self._of_images(worker, state)
        )
        weight, bias = (state.weights[name] for name in cnn.parameter_names("conv", layer))
        padded, padding = self._padded(layer, worker, x_bchw)
        pooled, places = convolve(padded, weight, bias, padding)
        if layer:
            state.saved[f"x{layer}"] = x_bchw
        state.saved[f"pooled{layer}"], state.saved[f"places{layer}"] = pooled, places
        if layer == self.net.convolutions - 1:
            return pooled
        first = self.owned(layer, worker)[0]
        return _parts(
            pooled, first, {other: self._sent(layer, worker, other) for other in self._others(worker)}
        )

    def convolve_backward(
        self, layer: int, worker: int, state: State, received: torch.Tensor | dict[int, torch.Tensor] | None
    ) -> Handed:
        """Derivatives by rows of others, for them; all gradients of kernels in the first layer."""
        last = layer == self.net.convolutions - 1
        slope = received if last else self._added(layer, worker, state, received or {})
        x_bchw = state.saved.pop(f"x{layer}") if layer else self._of_images(worker, state)
        padded, padding = self._padded(layer, worker, x_bchw)
        weight, bias = cnn.parameter_names("conv", layer)
        below = gradients(
            slope,
            state.saved.pop(f"pooled{layer}"),
            state.saved.pop(f"places{layer}"),
            padded,
            state.weights[weight],
            padding,
            (state.grads[weight], state.grads[bias]),
            inputs_gradient=layer > 0,
        )
        if not layer:
            return torch.cat([state.grads[name].flatten() for name in self._kernels])
        top = self._edges(layer, worker)[0] if padding[0] == 0 else 0
        below = below[:, :, top : top + x_bchw.shape[2]]
        state.saved["below"] = below
        first = self.needed(layer, worker)[0]
        rows = {other: self._sent(layer - 1, other, worker) for other in self._others(worker)}
        return _parts(below, first, rows)

    def finish(self, state: State, received: torch.Tensor) -> None:
        """Gradients of kernels, summed over all rows."""
        parts = received.split([block.size for block in self._kernels.values()])
        for name, part in zip(self._kernels, parts, strict=True):
            state.grads[name].copy_(part.view_as(state.grads[name]))

    def _of_images(self, worker: int, state: State) -> torch.Tensor:
        start, stop = self.needed(0, worker)
        return self.images(state)[:, :, start:stop]

    def _joined(
        self, layer: int, worker: int, state: State, received: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        """The rows of maps that the convolution reads: its own and others', which follow each other as workers do."""
        pooled, first = state.saved[f"pooled{layer - 1}"], self.owned(layer - 1, worker)[0]
        parts = received | _parts(pooled, first, {worker: self._sent(layer - 1, worker, worker)})
        return torch.cat([parts[source] for source in sorted(parts)], 2) if parts else pooled[:, :, :0]

    def _added(
        self, layer: int, worker: int, state: State, received: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        """The derivative by the worker's rows of pooled maps: its own summand and what others send back."""
        total = torch.zeros_like(state.saved[f"pooled{layer}"])
        first = self.owned(layer, worker)[0]
        below, needed = state.saved.pop("below"), self.needed(layer + 1, worker)[0]
        parts = received | _parts(below, needed, {worker: self._sent(layer, worker, worker)})
        for other in sorted(parts):
            start, stop = self._sent(layer, worker, other)
            total[:, :, start - first : stop - first] += parts[other]
        return total

    def _edges(self, layer: int, worker: int) -> Rows:
        """Rows of zeros above and below what the worker reads: those beyond the image."""
        start, stop = self.owned(layer, worker)
        if start == stop:
            return 0, 0
        first, last = self.needed(layer, worker)
        return first - (2 * start - self.net.padding), 2 * stop + self.net.padding - last

    def _padded(self, layer: int, worker: int, x_bchw: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
        """Input and padding of the worker's convolution; zeros that differ above and below are put in by hand."""
        above, below = self._edges(layer, worker)
        if above == below:
            return x_bchw, (above, self.net.padding)
        return torch.nn.functional.pad(x_bchw, (0, 0, above, below)), (0, self.net.padding)


def _parts(maps_bchw: torch.Tensor, first: int, rows: dict[int, Rows]) -> dict[int, torch.Tensor]:
    """The rows of each that has any; ``first`` is the number of the maps' first row."""
    return {
        other: maps_bchw[:, :, start - first : stop - first]
        for other, (start, stop) in rows.items()
        if start < stop
    }
