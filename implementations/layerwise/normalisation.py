"""Batch normalisation of a block: alone, or with statistics over all devices that have a channel's values.

Shared statistics take two sums over the group forward, of the values and then of the squares of their distances from
the mean (the difference of two large sums would lose digits), and one backward: of the derivatives and their products
with the normalised values. These are also the gradients of bias and weight, which therefore need no sum of their own.

Shapes: c channel; x, y, g a block (n, c) or (n, c, h, w).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

Weights = Mapping[str, torch.Tensor]


def forward_alone(x: torch.Tensor, weights: Weights, eps: float) -> tuple[torch.Tensor, Any]:
    """The normalised block of a device that shares its channels with none, and what its backward needs."""
    x = x.detach().requires_grad_()
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    with torch.enable_grad():
        y = F.batch_norm(x, None, None, leaves.get("weight"), leaves.get("bias"), training=True, eps=eps)
    return y.detach(), (x, leaves, y)


def backward_alone(saved: Any, grad: torch.Tensor, into: Weights) -> torch.Tensor:
    """Gradient of the input; those of the parameters go to ``into``."""
    x, leaves, y = saved
    found, *rest = torch.autograd.grad(y, [x, *leaves.values()], grad)
    for name, values in zip(leaves, rest):
        into[name].copy_(values)
    return found


def sums(x: torch.Tensor) -> torch.Tensor:
    """A device's part of the sums of values: (c,)."""
    return x.sum(_others(x))


def squares(x: torch.Tensor, mean_c: torch.Tensor) -> torch.Tensor:
    """A device's part of the sums of squared distances from the mean: (c,)."""
    return (x - _along(mean_c, x)).square().sum(_others(x))


def forward_shared(
    x: torch.Tensor, mean_c: torch.Tensor, variance_c: torch.Tensor, weights: Weights, eps: float
) -> tuple[torch.Tensor, Any]:
    """The same with the group's statistics."""
    rstd_c = (variance_c + eps).rsqrt()
    normal = (x - _along(mean_c, x)) * _along(rstd_c, x)
    y = normal * _along(weights["weight"], x) if "weight" in weights else normal
    return (y + _along(weights["bias"], x) if "bias" in weights else y), (normal, rstd_c)


def back_sums(saved: Any, grad: torch.Tensor) -> torch.Tensor:
    """A device's part of the sums that backward needs: (2, c)."""
    return torch.stack([grad.sum(_others(grad)), (grad * saved[0]).sum(_others(grad))])


def backward_shared(
    saved: Any, grad: torch.Tensor, sums_2c: torch.Tensor, count: int, weights: Weights, into: Weights
) -> torch.Tensor:
    """Gradient of the input, given the group's ``back_sums``; those of the parameters go to ``into``."""
    normal, scale_c = saved
    for name, values_c in zip(("bias", "weight"), sums_2c):
        if name in into:
            into[name].copy_(values_c)
    if "weight" in weights:
        scale_c = scale_c * weights["weight"]
    mean_c, product_c = sums_2c / count
    return _along(scale_c, grad) * (grad - _along(mean_c, grad) - normal * _along(product_c, grad))


def _others(x: torch.Tensor) -> list[int]:
    """All dimensions but the channel."""
    return [dim for dim in range(x.dim()) if dim != 1]


def _along(values_c: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One value a channel, to be combined with ``x``."""
    return values_c.view(1, -1, *[1] * (x.dim() - 2))
