"""A fully connected network whose layers are cut by output units: L + (L - 1) exchanges a step for L layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from implementations.spark.dense import DenseLayers
from implementations.spark.program import Block, Exchange, Handed, Program, State


class FullyConnectedProgram(Program):
    """Layers of ``widths`` units, inputs first and classes last, as ``models.fc`` has them."""

    def __init__(self, widths: Sequence[int], activation: str, workers: int, batch: int) -> None:
        super().__init__(workers, batch)
        names = [(f"w{layer}", f"b{layer}") for layer in range(len(widths) - 1)]
        self._dense = DenseLayers(widths, activation, names, workers, batch)
        self.layers = self._dense.layers

    @cached_property
    def exchanges(self) -> tuple[Exchange | None, ...]:
        """An all-gather a layer, then a reduce-scatter for each but the first, last layer first."""
        return (*self._dense.forward_exchanges, *self._dense.backward_exchanges, None)

    def blocks(self, worker: int) -> dict[str, Block]:
        """Rows of each matrix, and the biases that belong to them."""
        return self._dense.blocks(worker)

    def flops_per_sample(self, worker: int) -> int:
        """The worker's share of the matrix products."""
        return self._dense.flops_per_sample(worker, inputs_gradient=False)

    def run(self, segment: int, worker: int, state: State, received: torch.Tensor | None) -> Handed:
        """Segments 0 .. L-1 are the layers forward, L .. 2L-1 the layers backward, last one first."""
        if segment < self.layers:
            return self._dense.forward(segment, state, state.x_bi if received is None else received)
        layer = 2 * self.layers - 1 - segment
        return self._dense.backward(layer, worker, state, received, inputs_gradient=layer > 0)
