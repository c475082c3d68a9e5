"""Convolutional networks of the literature as plain torch modules, and smaller ones of their form.

The last map goes into the classifier as it is, or its mean does: none is resized first. Submodules are called as in
torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from implementations.errors import UserError
from implementations.models.convnets.alexnet import alexnet, alexnet_small
from implementations.models.convnets.inception import inception_v3
from implementations.models.convnets.lenet import lenet5
from implementations.models.convnets.parts import Image
from implementations.models.convnets.resnet50 import resnet50
from implementations.models.convnets.vgg import vgg16, vgg_small
from implementations.models.module_net import ModuleNet, image_of, without_memory

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": lenet5,
    "alexnet": alexnet,
    "alexnet_small": alexnet_small,
    "vgg16": vgg16,
    "vgg_small": vgg_small,
    "inception_v3": inception_v3,
    "resnet50": resnet50,
}

# The others are too deep for torch's own first weights, which leave a sixth of the signal's power in each layer.
SHALLOW = ("lenet5",)


def module(model: dict[str, Any], image: Image, classes: int) -> nn.Module:
    """The network that a point's ``model`` describes, for images (channels, height, width), on the default device.

    Its parameters are torch's first ones, of the global generator; on the meta device they take no memory. UserError
    for images that are not square, that are too small, or of another side than ``model`` says.
    """
    arguments = {key: value for key, value in model.items() if key not in ("name", "image")}
    height, width = image[1:]
    if height != width or height != model.get("image", height):
        wanted = f"{model['image']}x{model['image']}" if "image" in model else "square ones"
        raise UserError(f"model {model['name']}: got images of {height}x{width}; needed: {wanted}")
    try:
        net = NETWORKS[model["name"]](image, classes, **arguments)
    except UserError as error:
        raise UserError(f"model {model['name']}: {error}") from None
    try:
        without_memory(net).eval()(torch.empty(1, *image, device="meta"))
    except RuntimeError:
        raise UserError(f"model {model['name']}: images of {height}x{width} are too small for it") from None
    return net


def build(
    *, name: str, features: int, classes: int, workers: int, generator: torch.Generator, **arguments: Any
) -> ModuleNet:
    """An initialised network for ``workers`` workers, for square images of ``features`` values.

    UserError for samples that are no square images, or that the network does not take.
    """
    image = image_of(name, features)
    with torch.device("meta"):
        skeleton = module({"name": name, **arguments}, image, classes)
    net = ModuleNet(skeleton, image, workers)
    net.initialise(generator, he=name not in SHALLOW)
    return net
