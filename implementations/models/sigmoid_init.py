"""Random weights of a deep sigmoid network by the speech recipe that Su and Chen 2015 started from (Kaldi nnet1)."""

from __future__ import annotations

import itertools
import math

import torch

from implementations.models.fc import FullyConnected
from implementations.seeds import normal_, uniform_


@torch.no_grad()
def initialise_sigmoid(net: FullyConnected, generator: torch.Generator) -> None:
    """Weights N(0, sd 3.5 sqrt(2 / (inputs + outputs))), hidden biases uniform in [-4, 0], output biases 0.

    Every worker gets the same; the last layer is drawn last, on its own.
    """
    last = len(net.widths) - 2
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(net.widths)):
        deviation = 0.1 * 35 * math.sqrt(2 / (inputs + outputs))
        normal_(net.weights[f"w{layer}"][0], deviation, generator)
        bias_o = net.weights[f"b{layer}"][0]
        if layer < last:
            uniform_(bias_o, -4, 0, generator)
        else:
            bias_o.zero_()
    net.theta_wp[1:] = net.theta_wp[0]
