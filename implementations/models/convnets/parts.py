"""What the convolutional networks share."""

from __future__ import annotations

import torch
from torch import nn

from implementations.errors import UserError

Image = tuple[int, int, int]  # channels, height, width


def scaled(width: float, *channels: int) -> list[int]:
    """Channels times the width, rounded, one at least."""
    return [max(1, round(width * count)) for count in channels]


def side_after(features: nn.Sequential, image: Image) -> int:
    """Side of the square map that convolutions and poolings in a row leave of a square image.

    UserError where nothing is left of it.
    """
    side = image[1]
    for layer in features:
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride, padding = (
                value if isinstance(value, int) else value[0]
                for value in (layer.kernel_size, layer.stride, layer.padding)
            )
            side = (side + 2 * padding - kernel) // stride + 1
            if side < 1:
                raise UserError(f"images of {image[1]}x{image[2]} are too small for it")
    return side


class Chain(nn.Module):
    """``features``, whose last map goes flat into ``classifier``, as torchvision names them."""

    def __init__(self, features: nn.Sequential, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (b, classes) of images (b, channels, height, width)."""
        return self.classifier(torch.flatten(self.features(x), 1))
