"""What a device computes of a layer: forward of a block, and its gradients, from the box that it reads.

Shapes: n sample, c channel, h height, w width, f feature; x is what a block reads, y the block. Convolutions and linear
layers have their gradients by hand, so that the input's can be sent while the weights' are computed, and the
weights' land where they are wanted; the others leave theirs to autograd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from implementations.layerwise import algebra
from implementations.layerwise.graph import (
    ADD,
    CONCAT,
    CONV,
    FLATTEN,
    LINEAR,
    MULTIPLY,
    NORM,
    POINTWISE,
    POOL,
    Layer,
)

Weights = Mapping[str, torch.Tensor]
Pads = Sequence[tuple[int, int]]  # (before, behind) in height and width

_FUNCTIONS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "identity": lambda x: x,
}


def forward(layer: Layer, inputs: Sequence[torch.Tensor], weights: Weights, pads: Pads = ()) -> torch.Tensor:
    """A block of the layer's output; under autograd differentiable.

    Args:
        layer: of any kind but input, loss, normalisation and dropout, which need more than their block.
        inputs: what the block reads of each input, without padding; nothing of some of a concatenation's.
        weights: the parameters of the block's channels.
        pads: what ``algebra.padding`` says of a convolution's or pooling's block.
    """
    match layer.kind:
        case _ if layer.kind == CONV:
            x_nchw, padding = padded(layer, inputs[0], pads)
            window = layer.window
            groups = conv_groups(layer, x_nchw, weights["weight"])
            return F.conv2d(
                x_nchw,
                weights["weight"],
                weights.get("bias"),
                window.stride,
                padding,
                window.dilation,
                groups,
            )
        case _ if layer.kind == POOL:
            return _pool(layer, inputs[0], pads)
        case _ if layer.kind == LINEAR:
            return F.linear(inputs[0], weights["weight"], weights.get("bias"))
        case _ if layer.kind == POINTWISE:
            return pointwise(layer)(inputs[0])
        case _ if layer.kind == FLATTEN:
            return inputs[0].flatten(1)
        case _ if layer.kind == ADD:
            return sum(inputs[1:], start=inputs[0])
        case _ if layer.kind == MULTIPLY:
            return inputs[0] * inputs[1]
        case _ if layer.kind == CONCAT:
            return torch.cat([x for x in inputs if x.numel()], dim=1)
    raise ValueError(f"layer {layer.name}: a {layer.kind} layer has no forward of its own")


def pointwise(layer: Layer):
    """The function of a pointwise layer other than dropout."""
    name = layer.settings["function"]
    if name == "leaky_relu":
        slope = layer.settings.get("slope", 0.01)
        return lambda x: F.leaky_relu(x, slope)
    return _FUNCTIONS[name]


def conv_groups(layer: Layer, x_nchw: torch.Tensor, weight: torch.Tensor) -> int:
    """Groups of a convolution that a block of its channels has."""
    return x_nchw.shape[1] // weight.shape[1]


def padded(
    layer: Layer, x_nchw: torch.Tensor, pads: Pads, value: float = 0.0
) -> tuple[torch.Tensor, tuple[int, int]]:
    """The input with what padding must be added by hand, and what the operation itself adds on both sides."""
    if not pads or not any(any(pad) for pad in pads):
        return x_nchw, (0, 0)
    window = layer.window
    block = [
        (size + sum(pad) - algebra.reach(layer, axis)) // window.stride[axis] + 1
        for axis, (size, pad) in enumerate(zip(x_nchw.shape[2:], pads))
    ]
    own = all(pad[0] == window.padding[axis] and pad[1] <= pad[0] for axis, pad in enumerate(pads))
    if own and algebra.fits(layer, x_nchw.shape[2:], block):
        return x_nchw, window.padding
    (top, bottom), (left, right) = pads
    return F.pad(x_nchw, (left, right, top, bottom), value=value), (0, 0)


def unpadded(grad_nchw: torch.Tensor, x_nchw: torch.Tensor, pads: Pads) -> torch.Tensor:
    """The gradient of an input out of that of the input padded by hand."""
    if grad_nchw.shape == x_nchw.shape:
        return grad_nchw
    (top, _), (left, _) = pads
    height, width = x_nchw.shape[2:]
    return grad_nchw[:, :, top : top + height, left : left + width]


def _pool(layer: Layer, x_nchw: torch.Tensor, pads: Pads) -> torch.Tensor:
    mode = layer.settings["mode"]
    if mode == "adaptive_avg":
        return F.adaptive_avg_pool2d(x_nchw, layer.settings["output"])
    window = layer.window
    if mode == "max":
        x_nchw, padding = padded(layer, x_nchw, pads, value=float("-inf"))
        return F.max_pool2d(x_nchw, window.kernel, window.stride, padding, window.dilation)
    full_nchw, padding = padded(layer, x_nchw, pads)
    y_nchw = F.avg_pool2d(full_nchw, window.kernel, window.stride, padding)
    if layer.settings.get("count_include_pad", True) or not any(any(pad) for pad in pads):
        return y_nchw
    # the mean over real values alone: as large a share of the window as these are
    ones, padding = padded(layer, torch.ones_like(x_nchw[:1, :1]), pads)
    return y_nchw / F.avg_pool2d(ones, window.kernel, window.stride, padding)


def input_gradient(
    layer: Layer, grad: torch.Tensor, x: torch.Tensor, weights: Weights, pads: Pads
) -> torch.Tensor:
    """Gradient of what a convolution's or linear layer's block reads, given that of the block."""
    if layer.kind == LINEAR:
        return grad @ weights["weight"]
    full, padding = padded(layer, x, pads)
    found, _, _ = _conv_gradients(layer, grad, full, weights, padding, (True, False, False))
    return unpadded(found, x, pads)


def weight_gradients(
    layer: Layer, grad: torch.Tensor, x: torch.Tensor, weights: Weights, pads: Pads, into: Weights
) -> None:
    """Write the gradients of a convolution's or linear layer's parameters into the tensors of ``into``."""
    if layer.kind == LINEAR:
        torch.mm(grad.t(), x, out=into["weight"])
        if "bias" in into:
            torch.sum(grad, 0, out=into["bias"])
        return
    full, padding = padded(layer, x, pads)
    _, weight, bias = _conv_gradients(layer, grad, full, weights, padding, (False, True, "bias" in into))
    into["weight"].copy_(weight)
    if "bias" in into:
        into["bias"].copy_(bias)


def gradients(
    layer: Layer, grad: torch.Tensor, x: torch.Tensor, weights: Weights, pads: Pads, into: Weights
) -> torch.Tensor:
    """Both: the input's, returned, and the parameters', written into ``into``; faster where nothing is to be sent."""
    if layer.kind == LINEAR:
        weight_gradients(layer, grad, x, weights, pads, into)
        return input_gradient(layer, grad, x, weights, pads)
    full, padding = padded(layer, x, pads)
    found, weight, bias = _conv_gradients(layer, grad, full, weights, padding, (True, True, "bias" in into))
    into["weight"].copy_(weight)
    if "bias" in into:
        into["bias"].copy_(bias)
    return unpadded(found, x, pads)


def relu_gradient(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Gradient of what a rectifier read, given what it gave."""
    return torch.ops.aten.threshold_backward(grad, y, 0)


def _conv_gradients(
    layer: Layer,
    grad: torch.Tensor,
    x_nchw: torch.Tensor,
    weights: Weights,
    padding: tuple[int, int],
    wanted: tuple[bool, bool, bool],
) -> tuple[torch.Tensor | None, ...]:
    window, weight = layer.window, weights["weight"]
    return torch.ops.aten.convolution_backward(
        grad, x_nchw, weight, [weight.shape[0]], window.stride, padding, window.dilation, False, [0, 0],
        conv_groups(layer, x_nchw, weight), wanted,
    )  # fmt: skip


def loss_sum(scores_nf: torch.Tensor, labels_n: torch.Tensor) -> torch.Tensor:
    """Cross-entropy summed over the samples of a block of the loss (0-d)."""
    return F.cross_entropy(scores_nf, labels_n, reduction="sum")


BY_HAND = (CONV, LINEAR)
# Layers that do not need what they gave for their backward: who alone reads it may write over it.
FORGETFUL = (CONV, LINEAR, NORM, ADD)
