"""Batch normalisation of a block: alone, or with statistics over all devices that have a channel's values.

Shared statistics take two sums over the group forward: of the means of the devices' parts, weighted, and then of their
squared distances from the mean (the difference of two large sums would lose digits). Backward takes one, of the
derivatives and their products with the normalised values, which are also the gradients of bias and weight; these need
no sum of their own. All passes over a block are torch's fused ones.

Shapes: c channel; x, y, grad a block (n, c) or (n, c, h, w).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

Weights = Mapping[str, torch.Tensor]
_backward = torch.ops.aten.native_batch_norm_backward


def forward_alone(x: torch.Tensor, weights: Weights, eps: float) -> tuple[torch.Tensor, Any]:
    """The normalised block of a device that shares its channels with none, and what its backward needs."""
    y, mean_c, rstd_c = torch.native_batch_norm(
        x, weights.get("weight"), weights.get("bias"), None, None, True, 0.0, eps
    )
    return y, (x, mean_c, rstd_c, eps)


def backward_alone(saved: Any, grad: torch.Tensor, weights: Weights, into: Weights) -> torch.Tensor:
    """Gradient of the input; those of the parameters go to ``into``."""
    x, mean_c, rstd_c, eps = saved
    found, *rest = _backward(
        grad, x, weights.get("weight"), None, None, mean_c, rstd_c, True, eps, [True, bool(into), bool(into)]
    )
    for name, values_c in zip(("weight", "bias"), rest):
        if name in into:
            into[name].copy_(values_c)
    return found


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of a device's values: (c,) each."""
    return torch.batch_norm_update_stats(x, None, None, 0.0)


def mean_part(x: torch.Tensor, mean_c: torch.Tensor, count: int) -> torch.Tensor:
    """What a device adds to the mean of ``count`` values a channel: (c,)."""
    return mean_c * (_values(x) / count)


def variance_part(
    x: torch.Tensor, own: tuple[torch.Tensor, torch.Tensor], mean_c: torch.Tensor, count: int
) -> torch.Tensor:
    """What a device adds to the variance, given its ``own`` statistics and the group's mean: (c,)."""
    return (own[1] + (own[0] - mean_c).square()) * (_values(x) / count)


def forward_shared(
    x: torch.Tensor, mean_c: torch.Tensor, variance_c: torch.Tensor, weights: Weights, eps: float
) -> tuple[torch.Tensor, Any]:
    """The normalised block with the group's statistics, and what its backward needs."""
    y = torch.native_batch_norm(
        x, weights.get("weight"), weights.get("bias"), mean_c, variance_c, False, 0.0, eps
    )[0]
    return y, (x, mean_c, variance_c, eps)


def back_sums(saved: Any, grad: torch.Tensor, weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the input as if the statistics were constants, and a device's part of the sums (2, c)."""
    x, mean_c, variance_c, eps = saved
    found, product_c, sum_c = _backward(
        grad, x, weights.get("weight"), mean_c, variance_c, None, None, False, eps, [True, True, True]
    )
    return found, torch.stack([sum_c, product_c])


def backward_shared(
    saved: Any, found: torch.Tensor, sums_2c: torch.Tensor, count: int, weights: Weights, into: Weights
) -> torch.Tensor:
    """Gradient of the input, in the memory of ``found``, given the group's sums; the parameters' go to ``into``."""
    x, mean_c, variance_c, eps = saved
    for name, values_c in zip(("bias", "weight"), sums_2c):
        if name in into:
            into[name].copy_(values_c)
    rstd_c = (variance_c + eps).rsqrt()
    scale_c = rstd_c * weights["weight"] if "weight" in weights else rstd_c
    # scale (sum + normal product) / count, as a line in x
    slope_c = scale_c * rstd_c * sums_2c[1] / count
    level_c = scale_c * sums_2c[0] / count - mean_c * slope_c
    return found.addcmul_(x, _along(slope_c, x), value=-1).sub_(_along(level_c, x))


def _values(x: torch.Tensor) -> int:
    """Values of a channel in a block."""
    return x.numel() // x.shape[1]


def _along(values_c: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One value a channel, to be combined with ``x``."""
    return values_c.view(1, -1, *[1] * (x.dim() - 2))
