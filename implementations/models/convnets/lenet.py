"""LeNet-5 (LeCun, Bottou, Bengio and Haffner 1998)."""

from __future__ import annotations

from torch import nn

from implementations.models.convnets.parts import Chain, Image, side_after

MNIST_SIDE = 28


def lenet5(image: Image, classes: int) -> nn.Module:
    """LeNet-5 with ReLU, max pooling, and a second convolution that reads all channels; images of 28x28 are padded.

    The original has tanh-like activations, trainable average pooling, a second convolution that reads some channels
    only and a layer of radial basis functions. 1x32x32 and 10 classes: 61,706 parameters.
    """
    features = nn.Sequential(
        nn.Conv2d(image[0], 6, 5, padding=2 if image[1] == MNIST_SIDE else 0),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
    classifier = nn.Sequential(
        nn.Linear(16 * side_after(features, image) ** 2, 120),
        nn.ReLU(inplace=True),
        nn.Linear(120, 84),
        nn.ReLU(inplace=True),
        nn.Linear(84, classes),
    )
    return Chain(features, classifier)
