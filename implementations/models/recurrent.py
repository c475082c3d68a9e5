"""Recurrent networks for sequences, of unequal length with masks: a tanh RNN or an LSTM, and a linear layer on its end.

A sample's features are its steps one behind the other, with ``masked`` each followed by its mask: 1 where the step is
real, 0 where it is padding. A step of padding leaves all states as they were: ``h_t = m_t h_new + (1 - m_t) h_{t-1}``,
and the memory of an LSTM alike. That is a sequence from which the step is left out, and is computed as such: real
steps are moved to the front, and the state behind the last of them is read, so that torch's own layers do the work.

Parameters are torch's, by name, order and the order of gates (input, forget, cell, output).

Shapes: b sample, t step, f value of a step, h hidden unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from implementations.errors import UserError
from implementations.models.linear import uniform_
from implementations.models.module_net import ModuleNet

GATES = {"rnn": 1, "lstm": 4}


def step_values(name: str, features: int, steps: int, masked: bool) -> int:
    """Values of a step, its mask aside; UserError, in the name of the model, where samples are no such sequences."""
    values = features // steps - masked
    if features % steps or values < 1:
        each = "a value and a mask each" if masked else "equally many values each"
        raise UserError(
            f"model {name}: got samples of {features} values; needed: {steps} steps of {each} "
            f"(take a divisor of {features} for steps)"
        )
    return values


def sequence(x_bi: torch.Tensor, steps: int, masked: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Steps of samples (b, features): values (b, t, f), with padding set to 0, and which are real (b, t) or None.

    Whatever stood in the padding is gone, even what is not finite and would outlive a product with 0.
    """
    x_btf = x_bi.reshape(len(x_bi), steps, -1)
    if not masked:
        return x_btf, None
    real_bt = real_steps(x_bi, steps)
    return x_btf[..., :-1].where(real_bt.unsqueeze(-1), 0.0), real_bt


def real_steps(x_bi: torch.Tensor, steps: int) -> torch.Tensor:
    """Which steps of masked samples (b, features) are real, (b, t)."""
    return x_bi.reshape(len(x_bi), steps, -1)[..., -1] > 0


def training_flops(steps: int, gates: int, widths: Sequence[int], units: Sequence[int], classes: int) -> int:
    """Operations in the products of a training sample, of a worker with so many of each layer's units and classes.

    ``widths``: values of a step, then all hidden units by layer. Two a weight and step, forward and for each
    gradient. The sample has no gradient, and the first step no state before it.
    """
    total = 6 * widths[-1] * classes
    for layer, ((inputs, hidden), own) in enumerate(zip(itertools.pairwise(widths), units, strict=True)):
        total += gates * own * ((6 if layer else 4) * steps * inputs + 6 * (steps - 1) * hidden)
    return total


class RecurrentModule(nn.Module):
    """The network for samples (b, steps, values of a step with its mask); scores (b, classes).

    Parameters are called as those of a stack of ``nn.RNN`` or ``nn.LSTM``, and those of ``output``, a ``nn.Linear``.
    """

    def __init__(self, name: str, values: int, hidden: Sequence[int], classes: int, masked: bool) -> None:
        super().__init__()
        self.name, self.hidden, self.masked = name, tuple(hidden), masked
        for layer, (inputs, units) in enumerate(itertools.pairwise((values, *hidden))):
            rows = GATES[name] * units
            shapes = {
                "weight_ih": (rows, inputs),
                "weight_hh": (rows, units),
                "bias_ih": (rows,),
                "bias_hh": (rows,),
            }
            for kind, shape in shapes.items():
                self.register_parameter(f"{kind}_l{layer}", nn.Parameter(torch.empty(shape)))
        self.output = nn.Linear(hidden[-1], classes)

    def forward(self, x_btf: torch.Tensor) -> torch.Tensor:
        """Scores of the state behind the last real step, which is 0 where there is none."""
        steps = x_btf.shape[1]
        h_bth, real_bt = sequence(x_btf, steps, self.masked)
        if real_bt is not None:
            order_bt = real_bt.logical_not().to(torch.uint8).argsort(stable=True, dim=1)
            h_bth = h_bth.take_along_dim(order_bt.unsqueeze(-1), 1)
        for layer in range(len(self.hidden)):
            h_bth = self._layer(layer, h_bth)
        if real_bt is None:
            return self.output(h_bth[:, -1])
        lengths_b = real_bt.sum(1)
        last_b11 = (lengths_b - 1).clamp(min=0).view(-1, 1, 1)
        h_bh = h_bth.take_along_dim(last_b11, 1).squeeze(1)
        return self.output(h_bh.where(lengths_b.unsqueeze(1) > 0, 0.0))

    def _layer(self, layer: int, x_bti: torch.Tensor) -> torch.Tensor:
        """States of a layer at all steps, (b, t, h)."""
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        parameters = [getattr(self, f"{kind}_l{layer}") for kind in kinds]
        start = x_bti.new_zeros(1, len(x_bti), self.hidden[layer])
        # one layer with biases, no dropout, forward in time, samples first
        how = (True, 1, 0.0, self.training, False, True)
        if self.name == "lstm":
            return torch.lstm(x_bti, (start, start), parameters, *how)[0]
        return torch.rnn_tanh(x_bti, start, parameters, *how)[0]


class RecurrentNet(ModuleNet):
    """A recurrent network of many workers; ``steps`` a sample, each of ``values`` values, masks aside."""

    def __init__(
        self,
        name: str,
        steps: int,
        values: int,
        hidden: Sequence[int],
        classes: int,
        masked: bool,
        workers: int,
    ) -> None:
        with torch.device("meta"):
            module = RecurrentModule(name, values, hidden, classes, masked)
        super().__init__(module, (steps, values + masked), workers)
        self._flops = training_flops(steps, GATES[name], (values, *hidden), hidden, classes)
        self.name, self.hidden = name, tuple(hidden)

    def initialise(self, generator: torch.Generator) -> None:
        """Torch's own rule: uniform in +-1/sqrt(hidden units), also of the output; every worker gets the same."""
        for name, weight in self.weights.items():
            layer = -1 if name.startswith("output") else int(name.rpartition("_l")[2])
            uniform_(weight[0], self.hidden[layer], generator)
        self.theta_wp[1:] = self.theta_wp[0]

    @property
    def flops_per_sample(self) -> int:
        """Those of the products of all steps."""
        return self._flops


def build(
    *,
    name: str,
    features: int,
    classes: int,
    workers: int,
    generator: torch.Generator,
    steps: int,
    hidden: Sequence[int],
    masked: bool = False,
) -> RecurrentNet:
    """An initialised ``rnn`` or ``lstm`` of layers of ``hidden`` units; UserError for samples that are no sequences."""
    values = step_values(name, features, steps, masked)
    net = RecurrentNet(name, steps, values, hidden, classes, masked, workers)
    net.initialise(generator)
    return net
