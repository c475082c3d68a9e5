"""The affine layer of many workers at once, whose gradients land in a buffer given beforehand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from implementations import seeds


class AffineGradient(Protocol):
    """What may take the place of the plain weight gradient of one affine layer (natural gradient, say)."""

    def __call__(
        self, x_wbi: torch.Tensor, gy_wbo: torch.Tensor, gw_woi: torch.Tensor, gb_wo: torch.Tensor
    ) -> None:
        """Overwrite ``gw_woi`` and ``gb_wo``, given the layer's inputs and the derivatives of its outputs.

        The layer has a bias, so its inputs have a constant 1 behind them that ``x_wbi`` leaves out. Neither
        ``x_wbi`` nor ``gy_wbo`` may be changed.
        """


class Linear(torch.autograd.Function):
    """``y_wbo = x_wbi w_woi' + b_wo`` for every worker; backward overwrites ``gw_woi`` and ``gb_wo``.

    Writing the gradients straight into the flat buffer saves an allocation and two passes over memory a step. One
    worker takes the two-dimensional product, which skips the batching of bmm.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_wbi: torch.Tensor,
        w_woi: torch.Tensor,
        b_wo: torch.Tensor | None,
        gw_woi: torch.Tensor,
        gb_wo: torch.Tensor | None,
        gradient: AffineGradient | None = None,
        batch_major: bool = False,
    ) -> torch.Tensor:
        """Scores of the layer, (W, B, O); ``gradient``, where given, writes the gradients in place of backward.

        A layer without bias has None for ``b_wo`` and ``gb_wo``. Its scores lie in memory as (B, W, O) where
        ``batch_major`` asks for it, so that the workers' outputs are columns side by side for what comes next.
        """
        ctx.save_for_backward(x_wbi, w_woi)
        ctx.grads, ctx.gradient = (gw_woi, gb_wo), gradient
        if len(x_wbi) == 1:
            x_bi, w_io = x_wbi[0], w_woi[0].t()
            y_bo = torch.mm(x_bi, w_io) if b_wo is None else torch.addmm(b_wo[0], x_bi, w_io)
            return y_bo.unsqueeze(0)
        w_wio = w_woi.transpose(1, 2)
        if b_wo is not None:
            return torch.baddbmm(b_wo.unsqueeze(1), x_wbi, w_wio)
        if not batch_major:
            return torch.bmm(x_wbi, w_wio)
        workers, batch, outputs = *x_wbi.shape[:2], w_woi.shape[1]
        y_wbo = x_wbi.new_empty(batch, workers, outputs).transpose(0, 1)
        return torch.bmm(x_wbi, w_wio, out=y_wbo)

    @staticmethod
    def backward(ctx: Any, gy_wbo: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the input, where one is wanted; those of the weights go to their buffers."""
        x_wbi, w_woi = ctx.saved_tensors
        gw_woi, gb_wo = ctx.grads
        if ctx.gradient is not None:
            ctx.gradient(x_wbi, gy_wbo, gw_woi, gb_wo)
        else:
            weight_gradient(gy_wbo, x_wbi, gw_woi)
            if gb_wo is not None:
                torch.sum(gy_wbo, 1, out=gb_wo)
        gx_wbi = None
        if ctx.needs_input_grad[0]:
            if len(x_wbi) == 1:
                gx_wbi = torch.mm(gy_wbo[0], w_woi[0]).unsqueeze(0)
            else:
                gx_wbi = torch.bmm(gy_wbo, w_woi, out=torch.empty_like(x_wbi))  # laid out as the input was
        return gx_wbi, *[None] * 6


def weight_gradient(gy_wbo: torch.Tensor, x_wbi: torch.Tensor, gw_woi: torch.Tensor) -> None:
    """``gw_woi = gy_wbo' x_wbi``, the product over the minibatch, of every worker."""
    if len(x_wbi) == 1:
        torch.mm(gy_wbo[0].t(), x_wbi[0], out=gw_woi[0])
    else:
        torch.bmm(gy_wbo.transpose(1, 2), x_wbi, out=gw_woi)


def layer_labels(layer: int, layers: int) -> tuple[str | None, str | None]:
    """Labels of a layer's outputs and inputs in a chain of ``layers``: ``h1``, ``h2``, ... and None at both ends."""
    return (f"h{layer + 1}" if layer + 1 < layers else None), (f"h{layer}" if layer else None)


def chain_flops(widths: Sequence[int]) -> int:
    """Operations of one training sample in the products of a chain of layers.

    Two per weight forward, two for the weight gradient, two for the input gradient (not in layer one).
    """
    products = [inputs * outputs for inputs, outputs in itertools.pairwise(widths)]
    return 6 * sum(products) - 2 * products[0]


def uniform_(weights: torch.Tensor, inputs: int, generator: torch.Generator) -> None:
    """Uniform in +-1/sqrt(inputs), torch's own rule for a linear layer of so many inputs."""
    bound = 1 / math.sqrt(inputs)
    seeds.uniform_(weights, -bound, bound, generator)
