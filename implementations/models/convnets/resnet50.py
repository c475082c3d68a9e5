"""ResNet-50 (He, Zhang, Ren and Sun 2016) in torchvision's form: a block's stride is in its 3x3 convolution."""

from __future__ import annotations

import torch
from torch import nn

from implementations.models.convnets.parts import Image, scaled

_SECTIONS = ((64, 3), (128, 4), (256, 6), (512, 3))  # planes and blocks
_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution, each normalised, beside a shortcut."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = _EXPANSION * planes
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of the next block."""
        shortcut = x if self.downsample is None else self.downsample(x)
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.relu(self.bn2(self.conv2(h)))
        return self.relu(self.bn3(self.conv3(h)) + shortcut)


class ResNet50(nn.Module):
    """Four sections of bottlenecks behind a strided convolution and a pooling; the mean over the map is classified."""

    def __init__(self, image: Image, classes: int, width: float) -> None:
        super().__init__()
        (channels,) = scaled(width, 64)
        self.conv1 = nn.Conv2d(image[0], channels, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for section, (base, count) in enumerate(_SECTIONS, start=1):
            blocks = []
            for block in range(count):
                (planes,) = scaled(width, base)
                blocks.append(Bottleneck(channels, planes, 2 if section > 1 and block == 0 else 1))
                channels = _EXPANSION * planes
            self.add_module(f"layer{section}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (b, classes) of images (b, channels, height, width)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet50(image: Image, classes: int, *, width: float = 1) -> nn.Module:
    """ResNet-50; at 3x224x224, 1000 classes and width 1 it has 25,557,032 parameters."""
    return ResNet50(image, classes, width)
