"""Networks in the form of AlexNet: convolutions of shrinking kernels, then three fully connected layers.

Krizhevsky's "one weird trick" (arXiv:1404.5997) has one tower of 64, 192, 384, 256 and 256 channels, as torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from implementations.models.convnets.parts import Chain, Image, scaled, side_after

FC_INPUTS = (9216, 12544)


def alexnet(
    image: Image, classes: int, *, width: float = 1, dropout: float = 0.5, fc_input: int = 9216
) -> nn.Module:
    """AlexNet; at 3x224x224, 1000 classes and width 1 it has 61,100,840 parameters.

    ``fc_input`` picks the paddings by the classifier's inputs at 224x224: 9216 (256x6x6) are torchvision's. 12544
    (256x7x7, maps of 56, 28, 14 and 7) are those that the traffic published for layer-wise parallelism (Jia, Lin, Qi
    and Aiken 2018, figure 8) implies: 74,732,328 parameters.
    """
    padded = fc_input == FC_INPUTS[1]
    channels = scaled(width, 64, 192, 384, 256, 256)
    (hidden,) = scaled(width, 4096)
    first = nn.Conv2d(image[0], channels[0], 11, stride=4, padding=4 if padded else 2)
    features = _features(first, channels, int(padded))
    return Chain(
        features, _classifier(channels[-1] * side_after(features, image) ** 2, hidden, classes, dropout)
    )


def alexnet_small(image: Image, classes: int, *, width: float = 1, dropout: float = 0) -> nn.Module:
    """AlexNet for images of 28x28 or 32x32: half its channels, a quarter of its hidden units, no stride at first.

    About a tenth of AlexNet's operations. Pooling halves the map three times: 32, 16, 8, 4 (28, 14, 7, 4).
    """
    channels = scaled(width, 32, 96, 192, 128, 128)
    (hidden,) = scaled(width, 1024)
    features = _features(nn.Conv2d(image[0], channels[0], 5, padding=2), channels, 1)
    return Chain(
        features, _classifier(channels[-1] * side_after(features, image) ** 2, hidden, classes, dropout)
    )


def _features(first: nn.Conv2d, channels: Sequence[int], pool_padding: int) -> nn.Sequential:
    """The convolutions behind ``first``, of so many ``channels`` each, with their rectifiers and poolings."""
    pool = {"kernel_size": 3, "stride": 2, "padding": pool_padding}
    c1, c2, c3, c4, c5 = channels
    return nn.Sequential(
        first,
        nn.ReLU(inplace=True),
        nn.MaxPool2d(**pool),
        nn.Conv2d(c1, c2, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(**pool),
        nn.Conv2d(c2, c3, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(c3, c4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(c4, c5, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(**pool),
    )


def _classifier(inputs: int, hidden: int, classes: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Dropout(dropout),
        nn.Linear(inputs, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    )
