"""Fully connected network: affine layers with an activation between them, softmax cross-entropy on top."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from implementations.models.linear import Linear, chain_flops, layer_labels, uniform_
from implementations.models.worker_model import WorkerModel

_ACTIVATIONS = {
    "relu": (torch.relu, torch.nn.ReLU),
    "sigmoid": (torch.sigmoid, torch.nn.Sigmoid),
    "tanh": (torch.tanh, torch.nn.Tanh),
}


class FullyConnected(WorkerModel):
    """Layers of ``widths`` units, input first and classes last. The units of hidden layer l have the label ``hl``."""

    sliceable = True

    def __init__(self, widths: Sequence[int], workers: int, activation: str) -> None:
        shapes: dict[str, tuple[int, ...]] = {}
        axes: dict[str, tuple[str | None, ...]] = {}
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            shapes[f"w{layer}"] = (outputs, inputs)
            shapes[f"b{layer}"] = (outputs,)
            labels = layer_labels(layer, len(widths) - 1)
            axes[f"w{layer}"], axes[f"b{layer}"] = labels, labels[:1]
        super().__init__(shapes, workers, axes)
        self.widths = tuple(widths)
        self._activation, self._activation_module = _ACTIVATIONS[activation]
        self.zero_units_stay = activation != "sigmoid"  # sigmoid(0) is not 0

    def initialise(self, generator: torch.Generator) -> None:
        """Uniform in +-1/sqrt(fan-in), torch's own rule for linear layers; every worker gets the same weights."""
        for layer, inputs in enumerate(self.widths[:-1]):
            for name in (f"w{layer}", f"b{layer}"):
                uniform_(self.weights[name][0], inputs, generator)
        self.theta_wp[1:] = self.theta_wp[0]

    @property
    def affine_layers(self) -> tuple[str, ...]:
        """All layers."""
        return tuple(f"w{layer}" for layer in range(len(self.widths) - 1))

    @property
    def flops_per_sample(self) -> int:
        """Those of the matrix products."""
        return chain_flops(self.widths)

    def logits(self, x_wbi: torch.Tensor) -> torch.Tensor:
        """Scores (W, B, classes) of inputs (W, B, features)."""
        h_wbi, last, training = x_wbi, len(self.widths) - 2, torch.is_grad_enabled()
        for layer in range(last + 1):
            if self.shares and layer and not training:
                h_wbi = h_wbi * self.shares[f"h{layer}"]
            h_wbi = Linear.apply(
                h_wbi,
                # autograd calls backward only where some input wants a gradient
                self.weights[f"w{layer}"].detach().requires_grad_(training),
                self.weights[f"b{layer}"],
                self.grads[f"w{layer}"],
                self.grads[f"b{layer}"],
                self.affine_gradients.get(f"w{layer}"),
            )
            if layer < last:
                h_wbi = self._activation(h_wbi)
        return h_wbi

    def to_module(self, worker: int = 0) -> torch.nn.Module:
        """``nn.Sequential`` of ``nn.Linear`` and activations with a copy of one worker's weights."""
        layers: list[torch.nn.Module] = []
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(self.widths)):
            linear = torch.nn.Linear(inputs, outputs)
            with torch.no_grad():
                linear.weight.copy_(self.weights[f"w{layer}"][worker])
                linear.bias.copy_(self.weights[f"b{layer}"][worker])
            layers += [linear, self._activation_module()]
        return torch.nn.Sequential(*layers[:-1])


def build(
    *,
    features: int,
    classes: int,
    workers: int,
    generator: torch.Generator,
    hidden: Sequence[int],
    activation: str = "relu",
) -> FullyConnected:
    """An initialised network ``features - hidden - classes`` for ``workers`` workers."""
    net = FullyConnected([features, *hidden, classes], workers, activation)
    net.initialise(generator)
    return net
