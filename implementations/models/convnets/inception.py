"""Inception-v3 (Szegedy, Vanhoucke, Ioffe, Shlens and Wojna 2016) without its auxiliary head, as torchvision has it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from implementations.models.convnets.parts import Image, scaled


class BasicConv2d(nn.Module):
    """A convolution, normalised and rectified."""

    def __init__(self, inputs: int, outputs: int, kernel: Any, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **options)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images."""
        return F.relu(self.bn(self.conv(x)), inplace=True)


class InceptionA(nn.Module):
    """1x1, 5x5, two 3x3 and pooled branches, on the map of 35x35."""

    def __init__(self, inputs: int, pooled: int, width: float) -> None:
        super().__init__()
        c48, c64, c96, pooled = scaled(width, 48, 64, 96, pooled)
        self.branch1x1 = BasicConv2d(inputs, c64, 1)
        self.branch5x5_1 = BasicConv2d(inputs, c48, 1)
        self.branch5x5_2 = BasicConv2d(c48, c64, 5, padding=2)
        self.branch3x3dbl_1 = BasicConv2d(inputs, c64, 1)
        self.branch3x3dbl_2 = BasicConv2d(c64, c96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(c96, c96, 3, padding=1)
        self.branch_pool = BasicConv2d(inputs, pooled, 1)
        self.outputs = 2 * c64 + c96 + pooled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The branches' channels side by side."""
        branch5x5 = self.branch5x5_2(self.branch5x5_1(x))
        branch3x3dbl = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        pooled = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        return torch.cat([self.branch1x1(x), branch5x5, branch3x3dbl, pooled], 1)


class InceptionB(nn.Module):
    """Strided branches from the map of 35x35 to that of 17x17."""

    def __init__(self, inputs: int, width: float) -> None:
        super().__init__()
        c64, c96, c384 = scaled(width, 64, 96, 384)
        self.branch3x3 = BasicConv2d(inputs, c384, 3, stride=2)
        self.branch3x3dbl_1 = BasicConv2d(inputs, c64, 1)
        self.branch3x3dbl_2 = BasicConv2d(c64, c96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(c96, c96, 3, stride=2)
        self.outputs = c384 + c96 + inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The branches' channels side by side."""
        branch3x3dbl = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), branch3x3dbl, F.max_pool2d(x, kernel_size=3, stride=2)], 1)


class InceptionC(nn.Module):
    """1x1, one and two factorised 7x7, and pooled branches, on the map of 17x17."""

    def __init__(self, inputs: int, c7: int, width: float) -> None:
        super().__init__()
        c192, c7 = scaled(width, 192, c7)
        flat, tall = {"kernel": (1, 7), "padding": (0, 3)}, {"kernel": (7, 1), "padding": (3, 0)}
        self.branch1x1 = BasicConv2d(inputs, c192, 1)
        self.branch7x7_1 = BasicConv2d(inputs, c7, 1)
        self.branch7x7_2 = BasicConv2d(c7, c7, **flat)
        self.branch7x7_3 = BasicConv2d(c7, c192, **tall)
        self.branch7x7dbl_1 = BasicConv2d(inputs, c7, 1)
        self.branch7x7dbl_2 = BasicConv2d(c7, c7, **tall)
        self.branch7x7dbl_3 = BasicConv2d(c7, c7, **flat)
        self.branch7x7dbl_4 = BasicConv2d(c7, c7, **tall)
        self.branch7x7dbl_5 = BasicConv2d(c7, c192, **flat)
        self.branch_pool = BasicConv2d(inputs, c192, 1)
        self.outputs = 4 * c192

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The branches' channels side by side."""
        branch7x7 = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        branch7x7dbl = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        branch7x7dbl = self.branch7x7dbl_5(self.branch7x7dbl_4(branch7x7dbl))
        pooled = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        return torch.cat([self.branch1x1(x), branch7x7, branch7x7dbl, pooled], 1)


class InceptionD(nn.Module):
    """Strided branches from the map of 17x17 to that of 8x8."""

    def __init__(self, inputs: int, width: float) -> None:
        super().__init__()
        c192, c320 = scaled(width, 192, 320)
        self.branch3x3_1 = BasicConv2d(inputs, c192, 1)
        self.branch3x3_2 = BasicConv2d(c192, c320, 3, stride=2)
        self.branch7x7x3_1 = BasicConv2d(inputs, c192, 1)
        self.branch7x7x3_2 = BasicConv2d(c192, c192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = BasicConv2d(c192, c192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = BasicConv2d(c192, c192, 3, stride=2)
        self.outputs = c320 + c192 + inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The branches' channels side by side."""
        branch3x3 = self.branch3x3_2(self.branch3x3_1(x))
        branch7x7x3 = self.branch7x7x3_2(self.branch7x7x3_1(x))
        branch7x7x3 = self.branch7x7x3_4(self.branch7x7x3_3(branch7x7x3))
        return torch.cat([branch3x3, branch7x7x3, F.max_pool2d(x, kernel_size=3, stride=2)], 1)


class InceptionE(nn.Module):
    """1x1, split 3x3 and pooled branches, on the map of 8x8."""

    def __init__(self, inputs: int, width: float) -> None:
        super().__init__()
        c192, c320, c384, c448 = scaled(width, 192, 320, 384, 448)
        flat, tall = {"kernel": (1, 3), "padding": (0, 1)}, {"kernel": (3, 1), "padding": (1, 0)}
        self.branch1x1 = BasicConv2d(inputs, c320, 1)
        self.branch3x3_1 = BasicConv2d(inputs, c384, 1)
        self.branch3x3_2a = BasicConv2d(c384, c384, **flat)
        self.branch3x3_2b = BasicConv2d(c384, c384, **tall)
        self.branch3x3dbl_1 = BasicConv2d(inputs, c448, 1)
        self.branch3x3dbl_2 = BasicConv2d(c448, c384, 3, padding=1)
        self.branch3x3dbl_3a = BasicConv2d(c384, c384, **flat)
        self.branch3x3dbl_3b = BasicConv2d(c384, c384, **tall)
        self.branch_pool = BasicConv2d(inputs, c192, 1)
        self.outputs = c320 + 4 * c384 + c192

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The branches' channels side by side."""
        branch3x3 = self.branch3x3_1(x)
        branch3x3 = torch.cat([self.branch3x3_2a(branch3x3), self.branch3x3_2b(branch3x3)], 1)
        branch3x3dbl = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        branch3x3dbl = torch.cat([self.branch3x3dbl_3a(branch3x3dbl), self.branch3x3dbl_3b(branch3x3dbl)], 1)
        pooled = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        return torch.cat([self.branch1x1(x), branch3x3, branch3x3dbl, pooled], 1)


class InceptionV3(nn.Module):
    """Five convolutions and eleven modules of branches; the mean over the map is classified."""

    def __init__(self, image: Image, classes: int, width: float, dropout: float) -> None:
        super().__init__()
        c32, c64, c80, c192 = scaled(width, 32, 64, 80, 192)
        self.Conv2d_1a_3x3 = BasicConv2d(image[0], c32, 3, stride=2)
        self.Conv2d_2a_3x3 = BasicConv2d(c32, c32, 3)
        self.Conv2d_2b_3x3 = BasicConv2d(c32, c64, 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = BasicConv2d(c64, c80, 1)
        self.Conv2d_4a_3x3 = BasicConv2d(c80, c192, 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        self.Mixed_5b = InceptionA(c192, 32, width)
        self.Mixed_5c = InceptionA(self.Mixed_5b.outputs, 64, width)
        self.Mixed_5d = InceptionA(self.Mixed_5c.outputs, 64, width)
        self.Mixed_6a = InceptionB(self.Mixed_5d.outputs, width)
        self.Mixed_6b = InceptionC(self.Mixed_6a.outputs, 128, width)
        self.Mixed_6c = InceptionC(self.Mixed_6b.outputs, 160, width)
        self.Mixed_6d = InceptionC(self.Mixed_6c.outputs, 160, width)
        self.Mixed_6e = InceptionC(self.Mixed_6d.outputs, 192, width)
        self.Mixed_7a = InceptionD(self.Mixed_6e.outputs, width)
        self.Mixed_7b = InceptionE(self.Mixed_7a.outputs, width)
        self.Mixed_7c = InceptionE(self.Mixed_7b.outputs, width)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(self.Mixed_7c.outputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (b, classes) of images (b, channels, height, width)."""
        x = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return self.fc(torch.flatten(self.dropout(self.avgpool(x)), 1))


def inception_v3(image: Image, classes: int, *, width: float = 1, dropout: float = 0.5) -> nn.Module:
    """Inception-v3; at 3x299x299, 1000 classes and width 1 it has 23,834,568 parameters."""
    return InceptionV3(image, classes, width, dropout)
