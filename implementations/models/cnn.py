"""Convolutions with max pooling behind each, then fully connected layers: the plain convolutional network.

Convolutions have stride 1 and keep the image's size; pooling halves it, and drops a last odd row and column.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from implementations.errors import UserError
from implementations.models.module_net import ModuleNet, image_of


@dataclass(frozen=True)
class Sizes:
    """Sizes of the layers.

    maps: (channels, height, width) of what each convolution reads, the images first; the last is what the fully
        connected layers read, flat.
    kernel: side of all kernels, odd.
    widths: of the fully connected layers, their inputs first and the classes last.
    """

    maps: tuple[tuple[int, int, int], ...]
    kernel: int
    widths: tuple[int, ...]

    @property
    def convolutions(self) -> int:
        """How many there are."""
        return len(self.maps) - 1

    @property
    def padding(self) -> int:
        """Zeros on each side of an image that keep its size."""
        return self.kernel // 2


def sizes(
    features: int, classes: int, filters: Sequence[int], hidden: Sequence[int], kernel: int = 5
) -> Sizes:
    """Sizes of a network for square images of ``features`` values.

    UserError for samples that are no square images, or that pooling leaves nothing of.
    """
    maps = [image_of("cnn", features)]
    for count in filters:
        _, height, width = maps[-1]
        if min(height, width) < 2:
            side = maps[0][1]
            raise UserError(
                f"model cnn: images of {side}x{side} are too small for {len(filters)} poolings that halve them; "
                f"allowed: at most {side.bit_length() - 1} filters"
            )
        maps.append((count, height // 2, width // 2))
    return Sizes(tuple(maps), kernel, (math.prod(maps[-1]), *hidden, classes))


def parameter_names(kind: str, layer: int) -> tuple[str, str]:
    """Names of weight and bias of a layer, counted from 0; ``kind`` is "conv" or "fc"."""
    return f"{kind}{layer + 1}.weight", f"{kind}{layer + 1}.bias"


def module(net: Sizes) -> nn.Sequential:
    """The network as a torch module, of images (b, channels, height, width), on the default device."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for layer, (source, target) in enumerate(itertools.pairwise(net.maps), start=1):
        parts[f"conv{layer}"] = nn.Conv2d(source[0], target[0], net.kernel, padding=net.padding)
        parts[f"conv{layer}_relu"] = nn.ReLU(inplace=True)
        parts[f"conv{layer}_pool"] = nn.MaxPool2d(2)
    parts["flatten"] = nn.Flatten()
    last = len(net.widths) - 1
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(net.widths), start=1):
        parts[f"fc{layer}"] = nn.Linear(inputs, outputs)
        if layer < last:
            parts[f"fc{layer}_relu"] = nn.ReLU(inplace=True)
    return nn.Sequential(parts)


def build(
    *,
    features: int,
    classes: int,
    workers: int,
    generator: torch.Generator,
    filters: Sequence[int],
    hidden: Sequence[int],
    kernel: int = 5,
) -> ModuleNet:
    """An initialised network; ``filters`` and ``hidden`` are the sizes of its layers. UserError as ``sizes``."""
    net = sizes(features, classes, filters, hidden, kernel)
    with torch.device("meta"):
        skeleton = module(net)
    made = ModuleNet(skeleton, net.maps[0], workers)
    made.initialise(generator)
    return made
