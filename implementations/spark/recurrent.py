"""Recurrent networks cut by hidden units: a worker has all gates of its units, and the output rows of its classes.

Forward, layer by layer and step by step, on worker j, whose units are block j of h: ``z_t^j = W_ih^j x_t + b^j +
W_hh^j h_{t-1}``, the cell, then all-gather of ``h_t``; memories c never leave their owner. The part of ``x`` is one
product for all steps. A layer above reads the ``h_t`` that are gathered already. Then all-gather of the scores.

Backward, last layer and last step first: ``dz_t^j`` of the cell, then ``S_j = (W_hh^j)' dz_t^j + (W_ih^j of the layer
above)' dz_{t-1}^j of it``, what worker j knows of the derivative by ``h_{t-1}``, is reduce-scattered along units. As
the layer above is done by then, both parts are one exchange. Weight gradients are one product over all steps.

That makes L T + 1 exchanges forward and L T backward, for L layers and T steps: none brings the derivative by the
sample, or by the state before the first step.

A step of padding carries h and c of its sample forward, and their derivatives backward, unchanged and in place.

Shapes: g gates times units of a worker, u its units, h all hidden units of a layer, i input of a layer, o class;
b sample, s step and sample, step by step. Units come first (``cells``).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from implementations.models.recurrent import GATES, real_steps, sequence, step_values, training_flops
from implementations.spark.cells import CELLS
from implementations.spark.program import (
    GATHER,
    SCATTER_SUM,
    Block,
    Exchange,
    Handed,
    Program,
    State,
    loss_and_slope,
    shares,
    start_of,
)


class RecurrentProgram(Program):
    """The step of ``models.recurrent``'s ``rnn`` or ``lstm``, as a point's ``model`` describes it."""

    def __init__(self, model: dict[str, Any], features: int, classes: int, workers: int, batch: int) -> None:
        """UserError for samples that are no sequences of the model's steps."""
        super().__init__(workers, batch)
        self._cell, self._gates = CELLS[model["name"]], GATES[model["name"]]
        self.steps, self._masked = model["steps"], model.get("masked", False)
        values = step_values(model["name"], features, self.steps, self._masked)
        self.widths, self.classes = (values, *model["hidden"]), classes
        self.layers = len(model["hidden"])
        self._sizes = [shares(units, workers) for units in model["hidden"]]
        self._class_sizes = shares(classes, workers)

    @cached_property
    def exchanges(self) -> tuple[Exchange | None, ...]:
        """All-gathers of each layer's states, one of the scores, and a reduce-scatter for each state."""
        parts = [
            ((units, self.batch), 0, sizes) for units, sizes in zip(self.widths[1:], self._sizes, strict=True)
        ]
        forward = [Exchange(GATHER, *part) for part in parts for _ in range(self.steps)]
        scores = Exchange(GATHER, (self.classes, self.batch), 0, self._class_sizes)
        backward = [Exchange(SCATTER_SUM, *part) for part in reversed(parts) for _ in range(self.steps)]
        return (*forward, scores, *backward, None)

    def blocks(self, worker: int) -> dict[str, Block]:
        """Units of each layer in all its gates, and rows of the output."""
        found = {}
        for layer, sizes in enumerate(self._sizes):
            inputs, hidden = self.widths[layer : layer + 2]
            start = start_of(sizes, worker)
            stop = start + sizes[worker]
            for kind, columns in (("weight_ih", inputs), ("weight_hh", hidden)):
                found[f"{kind}_l{layer}"] = Block((self._gates, hidden, columns), 1, start, stop)
            for kind in ("bias_ih", "bias_hh"):
                found[f"{kind}_l{layer}"] = Block((self._gates, hidden), 1, start, stop)
        start = start_of(self._class_sizes, worker)
        stop = start + self._class_sizes[worker]
        found["output.weight"] = Block((self.classes, self.widths[-1]), 0, start, stop)
        found["output.bias"] = Block((self.classes,), 0, start, stop)
        return found

    def flops_per_sample(self, worker: int) -> int:
        """The worker's share of the products."""
        units = [sizes[worker] for sizes in self._sizes]
        return training_flops(self.steps, self._gates, self.widths, units, self._class_sizes[worker])

    def run(self, segment: int, worker: int, state: State, received: torch.Tensor | None) -> Handed:
        """L T steps forward, the scores, the loss with the output's derivatives, L T steps backward."""
        states = self.layers * self.steps
        if 0 < segment <= states:
            layer, step = divmod(segment - 1, self.steps)
            state.saved[f"h{layer}.{step}"] = received
        if segment < states:
            return self._forward(*divmod(segment, self.steps), worker, state)
        if segment == states:
            bias_o1 = state.weights["output.bias"].unsqueeze(1)
            return torch.addmm(bias_o1, state.weights["output.weight"], self._last(state))
        if segment == states + 1:
            return self._output_backward(worker, state, received)
        return self._backward(*divmod(2 * states + 1 - segment, self.steps), worker, state, received)

    def _last(self, state: State) -> torch.Tensor:
        return state.saved[f"h{self.layers - 1}.{self.steps - 1}"]

    def _at(self, step: int) -> slice:
        """The samples of a step among those of all steps."""
        return slice(step * self.batch, (step + 1) * self.batch)

    def _own(self, layer: int, worker: int) -> slice:
        """The worker's units among a layer's."""
        start = start_of(self._sizes[layer], worker)
        return slice(start, start + self._sizes[layer][worker])

    def _matrix(self, of: Any, kind: str, layer: int) -> torch.Tensor:
        """The worker's rows of a weight, or of its gradient, gate by gate (g, i) or (g, h)."""
        rows = of[f"{kind}_l{layer}"]
        return rows.view(-1, rows.shape[-1])

    def _states(self, layer: int, state: State) -> torch.Tensor:
        """States of a layer at all steps, (h, s)."""
        return torch.cat([state.saved[f"h{layer}.{step}"] for step in range(self.steps)], 1)

    def _inputs(self, layer: int, state: State) -> torch.Tensor:
        """What a layer reads at all steps, (i, s)."""
        if layer:
            return self._states(layer - 1, state)
        x_btf, _ = sequence(state.x_bi, self.steps, self._masked)
        return x_btf.permute(2, 1, 0).reshape(self.widths[0], -1)

    def _real(self, step: int, state: State) -> torch.Tensor | None:
        """Which samples' step is none of padding, (b,); None: all."""
        if not self._masked:
            return None
        return real_steps(state.x_bi, self.steps)[:, step]

    def _forward(self, layer: int, step: int, worker: int, state: State) -> torch.Tensor:
        saved = state.saved
        if step == 0:
            sums_gu = state.weights[f"bias_ih_l{layer}"] + state.weights[f"bias_hh_l{layer}"]
            w_gi = self._matrix(state.weights, "weight_ih", layer)
            saved["a"] = torch.addmm(sums_gu.view(-1, 1), w_gi, self._inputs(layer, state))
        h_hb, c_ub = saved.get(f"h{layer}.{step - 1}"), saved.get(f"c{layer}.{step - 1}")
        z_gb = saved["a"][:, self._at(step)]
        if h_hb is None:
            z_gb = z_gb.clone()
        else:
            z_gb = torch.addmm(z_gb, self._matrix(state.weights, "weight_hh", layer), h_hb)
        if step == self.steps - 1:
            del saved["a"]
        new_ub, memory_ub = self._cell.forward(z_gb, c_ub)
        real_b = self._real(step, state)
        if real_b is not None:
            before_ub = 0.0 if h_hb is None else h_hb[self._own(layer, worker)]
            new_ub = new_ub.where(real_b, before_ub)
            if memory_ub is not None:
                memory_ub = memory_ub.where(real_b, 0.0 if c_ub is None else c_ub)
        saved[f"gates{layer}.{step}"] = z_gb
        if memory_ub is not None:
            saved[f"c{layer}.{step}"] = memory_ub
        return new_ub

    def _output_backward(self, worker: int, state: State, scores_ob: torch.Tensor) -> torch.Tensor:
        state.loss, slope_bo = loss_and_slope(scores_ob.t(), state.y_b)
        start = start_of(self._class_sizes, worker)
        d_ob = slope_bo.t()[start : start + self._class_sizes[worker]]
        torch.mm(d_ob, self._last(state).t(), out=state.grads["output.weight"])
        torch.sum(d_ob, 1, out=state.grads["output.bias"])
        return torch.mm(state.weights["output.weight"].t(), d_ob)

    def _backward(
        self, layer: int, step: int, worker: int, state: State, received_ub: torch.Tensor
    ) -> torch.Tensor | None:
        saved = state.saved
        dh_ub, dc_ub = received_ub, saved.pop("dc", None)
        carried_ub = saved.pop("dh", None)
        if carried_ub is not None:
            dh_ub = dh_ub + carried_ub
        gates_gb, c_ub = saved.pop(f"gates{layer}.{step}"), saved.pop(f"c{layer}.{step}", None)
        before_ub = saved.get(f"c{layer}.{step - 1}")
        dz_gb, dc_before_ub = self._cell.backward(gates_gb, c_ub, before_ub, dh_ub, dc_ub)
        real_b = self._real(step, state)
        if real_b is not None:
            dz_gb = dz_gb.where(real_b, 0.0)
            if dc_before_ub is not None:
                dc_before_ub = dc_before_ub.where(real_b, 0.0 if dc_ub is None else dc_ub)
            if step:
                saved["dh"] = dh_ub.where(~real_b, 0.0)
        saved[f"dz{layer}.{step}"] = dz_gb
        if step == 0:
            return self._weight_gradients(layer, state)
        if dc_before_ub is not None:
            saved["dc"] = dc_before_ub
        w_hg = self._matrix(state.weights, "weight_hh", layer).t()
        above_hs = saved.get(f"dx{layer}")
        if above_hs is None:
            return torch.mm(w_hg, dz_gb)
        return torch.addmm(above_hs[:, self._at(step - 1)], w_hg, dz_gb)

    def _weight_gradients(self, layer: int, state: State) -> torch.Tensor | None:
        """A layer's gradients; what this worker knows of the derivative by the last state of the layer below."""
        saved, grads, weights = state.saved, state.grads, state.weights
        dz_gs = torch.cat([saved.pop(f"dz{layer}.{step}") for step in range(self.steps)], 1)
        torch.mm(dz_gs, self._inputs(layer, state).t(), out=self._matrix(grads, "weight_ih", layer))
        # the state before a step; the first step has none
        before_hs = self._states(layer, state)[:, : -self.batch]
        torch.mm(dz_gs[:, self.batch :], before_hs.t(), out=self._matrix(grads, "weight_hh", layer))
        torch.sum(dz_gs, 1, out=grads[f"bias_ih_l{layer}"].view(-1))
        grads[f"bias_hh_l{layer}"].copy_(grads[f"bias_ih_l{layer}"])
        for step in range(self.steps):
            del saved[f"h{layer}.{step}"]
        saved.pop(f"dx{layer}", None)
        if not layer:
            return None
        dx_hs = torch.mm(self._matrix(weights, "weight_ih", layer).t(), dz_gs)
        saved[f"dx{layer - 1}"] = dx_hs
        return dx_hs[:, self._at(self.steps - 1)]
