"""Networks in the form of VGG (Simonyan and Zisserman 2015): blocks of 3x3 convolutions, each ended by a pooling."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from implementations.models.convnets.parts import Chain, Image, scaled, side_after

_VGG16 = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)
_SMALL = ((32,) * 2, (64,) * 2, (128,) * 2)


def vgg16(image: Image, classes: int, *, width: float = 1, dropout: float = 0.5) -> nn.Module:
    """VGG-16 (configuration D); at 3x224x224, 1000 classes and width 1 it has 138,357,544 parameters.

    The last map is 7x7 at 224x224, and a single place at 32x32, the smallest image.
    """
    return _vgg(image, classes, _VGG16, 4096, width, dropout)


def vgg_small(image: Image, classes: int, *, width: float = 1, dropout: float = 0) -> nn.Module:
    """Three blocks of two convolutions of 32, 64 and 128 channels, and 512 hidden units, for small images.

    About an eighth of the operations of VGG-16 at 32x32.
    """
    return _vgg(image, classes, _SMALL, 512, width, dropout)


def _vgg(
    image: Image, classes: int, blocks: Sequence[Sequence[int]], units: int, width: float, dropout: float
) -> nn.Module:
    layers: list[nn.Module] = []
    channels = image[0]
    for block in blocks:
        for outputs in scaled(width, *block):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    features = nn.Sequential(*layers)
    (hidden,) = scaled(width, units)
    classifier = nn.Sequential(
        nn.Linear(channels * side_after(features, image) ** 2, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )
    return Chain(features, classifier)
