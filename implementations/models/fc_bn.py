"""Fully connected network with batch normalisation, as Yuan et al. train it independent subnet by subnet.

Layers without bias; a hidden one is normalised, scaled, shifted and rectified. The scores are normalised too, without
scale and shift (``output: norm``), or left as they are (``mean``). Softmax cross-entropy on top.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from implementations.errors import UserError
from implementations.models.linear import Linear, chain_flops, layer_labels, uniform_
from implementations.models.normalised import EPS, Affine, NormalisedModel, Passage, Pause


class NormalisedFullyConnected(NormalisedModel):
    """Layers of ``widths`` units, input first and classes last. The units of hidden layer l have the label ``hl``."""

    def __init__(
        self, widths: Sequence[int], workers: int, output: str, statistics: str, dropout: float
    ) -> None:
        shapes: dict[str, tuple[int, ...]] = {}
        axes: dict[str, tuple[str | None, ...]] = {}
        last = len(widths) - 2
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            shapes[f"w{layer}"] = (outputs, inputs)
            labels = axes[f"w{layer}"] = layer_labels(layer, last + 1)
            if layer < last:
                for name in (f"g{layer}", f"s{layer}"):
                    shapes[name], axes[name] = (outputs,), labels[:1]
        channels = {f"n{layer}": width for layer, width in enumerate(widths[1:])}
        self._normal_output = output == "norm"
        if not self._normal_output:
            del channels[f"n{last}"]
        super().__init__(shapes, workers, axes, statistics, channels)
        self.widths, self.dropout = tuple(widths), dropout

    def initialise(self, generator: torch.Generator) -> None:
        """Torch's own rules: weights uniform in +-1/sqrt(fan-in), scales 1, shifts 0; the same for every worker."""
        for layer, inputs in enumerate(self.widths[:-1]):
            uniform_(self.weights[f"w{layer}"][0], inputs, generator)
            if layer < len(self.widths) - 2:
                self.weights[f"g{layer}"][0].fill_(1.0)
        self.theta_wp[1:] = self.theta_wp[0]

    @property
    def flops_per_sample(self) -> int:
        """Those of the matrix products."""
        return chain_flops(self.widths)

    def _passage(self, h_wbi: torch.Tensor) -> Passage:
        last, training = len(self.widths) - 2, torch.is_grad_enabled()
        for layer in range(last + 1):
            normalised = layer < last or self._normal_output
            if self.shares and layer and not training and not normalised:
                h_wbi = h_wbi * self.shares[f"h{layer}"]
            h_wbi = Linear.apply(
                h_wbi,
                self.weights[f"w{layer}"].detach().requires_grad_(training),
                None,
                self.grads[f"w{layer}"],
                None,
                None,
                normalised,
            )
            if normalised:
                h_wbi = yield Pause(f"n{layer}", h_wbi, self._affine(layer) if layer < last else None)
            if layer < last and self.dropout and training:
                h_wbi = F.dropout(h_wbi, self.dropout)
        return h_wbi

    def _affine(self, layer: int) -> Affine:
        scale, shift = f"g{layer}", f"s{layer}"
        return Affine(self.weights[scale], self.weights[shift], self.grads[scale], self.grads[shift])

    def to_module(self, worker: int = 0) -> torch.nn.Module:
        """``nn.Sequential`` of torch's layers with a copy of one worker's weights and statistics."""
        layers: list[torch.nn.Module] = []
        last = len(self.widths) - 2
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(self.widths)):
            linear = torch.nn.Linear(inputs, outputs, bias=False)
            linear.weight.data.copy_(self.weights[f"w{layer}"][worker])
            layers.append(linear)
            if layer == last and not self._normal_output:
                break
            affine = self._affine(layer) if layer < last else None
            norm = torch.nn.BatchNorm1d(outputs, EPS, None, layer < last, self.needs_samples)
            layers.append(self._filled(norm, f"n{layer}", worker, affine))
            if affine:
                layers += [torch.nn.ReLU(), torch.nn.Dropout(self.dropout)]
        return torch.nn.Sequential(*layers)


def build(
    *,
    features: int,
    classes: int,
    workers: int,
    generator: torch.Generator,
    hidden: Sequence[int],
    output: str = "norm",
    statistics: str = "population",
    dropout: float = 0.0,
) -> NormalisedFullyConnected:
    """An initialised network ``features - hidden - classes`` for ``workers`` workers.

    UserError for dropout with several workers, whose masks would depend on who hosts whom.
    """
    if dropout and workers > 1:
        raise UserError(f"model fc_bn with dropout {dropout}: got {workers} workers; it is for one worker")
    net = NormalisedFullyConnected([features, *hidden, classes], workers, output, statistics, dropout)
    net.initialise(generator)
    return net
