"""Fully connected layers cut by output units, as parts of a program (algorithm derived in the README, "Exchanges").

Forward, layer l = 1 .. L, on worker j: ``Z_l^j = A_{l-1} (W_l^j)' + b_l^j``, then all-gather of ``f(Z_l^j)``, of Z_L
itself at the end. Backward, l = L .. 1: ``dW_l^j = (D_l^j)' A_{l-1}`` stays where it is; ``S_j = D_l^j W_l^j`` is
reduce-scattered, so that worker j gets its block of the derivative by A_{l-1}.

Shapes: b sample, i input unit, u unit of a worker's block, o class.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from implementations.spark.program import (
    GATHER,
    SCATTER_SUM,
    Block,
    Exchange,
    State,
    loss_and_slope,
    shares,
    start_of,
    through,
)

FUNCTIONS = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}


class DenseLayers:
    """The last layers of a network, with the loss on top.

    widths: inputs first, classes last.
    names: of each layer's weight and bias, in the whole network.
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: str,
        names: Sequence[tuple[str, str]],
        workers: int,
        batch: int,
    ) -> None:
        self.widths, self.layers = tuple(widths), len(widths) - 1
        self._function, self._names, self._batch = FUNCTIONS[activation], tuple(names), batch
        self._sizes = [shares(units, workers) for units in self.widths[1:]]

    def _parts(self) -> list[tuple[tuple[int, int], int, tuple[int, ...]]]:
        return [
            ((self._batch, units), 1, sizes)
            for units, sizes in zip(self.widths[1:], self._sizes, strict=True)
        ]

    @property
    def forward_exchanges(self) -> tuple[Exchange, ...]:
        """An all-gather behind each layer."""
        return tuple(Exchange(GATHER, *part) for part in self._parts())

    @property
    def backward_exchanges(self) -> tuple[Exchange, ...]:
        """A reduce-scatter behind each layer but the first, in backward order; what follows that is the caller's."""
        return tuple(Exchange(SCATTER_SUM, *part) for part in reversed(self._parts()[:-1]))

    def blocks(self, worker: int) -> dict[str, Block]:
        """Rows of each matrix, and the biases that belong to them."""
        found = {}
        for layer, ((weight, bias), sizes) in enumerate(zip(self._names, self._sizes, strict=True)):
            start = start_of(sizes, worker)
            outputs, inputs = self.widths[layer + 1], self.widths[layer]
            found[weight] = Block((outputs, inputs), 0, start, start + sizes[worker])
            found[bias] = Block((outputs,), 0, start, start + sizes[worker])
        return found

    def flops_per_sample(self, worker: int, inputs_gradient: bool) -> int:
        """The worker's share of the matrix products, without that of the input's gradient where nobody wants it."""
        own = [self.widths[layer] * sizes[worker] for layer, sizes in enumerate(self._sizes)]
        return 6 * sum(own) - (0 if inputs_gradient else 2 * own[0])

    def forward(self, layer: int, state: State, a_bi: torch.Tensor) -> torch.Tensor:
        """The worker's units of the layer, (b, u), to be gathered: activations, scores of the last one."""
        weight, bias = self._names[layer]
        z_bu = torch.addmm(state.weights[bias], a_bi, state.weights[weight].t())
        if a_bi is not state.x_bi:
            state.saved[f"a_{weight}"] = a_bi
        if layer == self.layers - 1:
            return z_bu
        state.saved[f"z_{weight}"] = z_bu
        return self._function(z_bu)

    def backward(
        self, layer: int, worker: int, state: State, received: torch.Tensor, inputs_gradient: bool
    ) -> torch.Tensor | None:
        """Write the gradients of the worker's block; the summand S_j of its input's derivative (b, i), where wanted.

        ``received``: all scores (b, o) for the last layer, else the derivative by the worker's activations (b, u).
        """
        weight, bias = self._names[layer]
        if layer == self.layers - 1:
            state.loss, slope_bo = loss_and_slope(received, state.y_b)
            start, size = start_of(self._sizes[layer], worker), self._sizes[layer][worker]
            d_bu = slope_bo[:, start : start + size]
        else:
            d_bu = through(self._function, state.saved.pop(f"z_{weight}"), received)
        a_bi = state.saved.pop(f"a_{weight}", state.x_bi)
        torch.mm(d_bu.t(), a_bi, out=state.grads[weight])
        torch.sum(d_bu, 0, out=state.grads[bias])
        return torch.mm(d_bu, state.weights[weight]) if inputs_gradient else None
