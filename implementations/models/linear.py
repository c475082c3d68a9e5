"""The affine layer of many workers at once, whose gradients land in a buffer given beforehand."""

from __future__ import annotations

from typing import Any, Protocol

import torch


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
        b_wo: torch.Tensor,
        gw_woi: torch.Tensor,
        gb_wo: torch.Tensor,
        gradient: AffineGradient | None = None,
    ) -> torch.Tensor:
        """Scores of the layer, (W, B, O); ``gradient``, where given, writes the gradients in place of backward."""
        ctx.save_for_backward(x_wbi, w_woi)
        ctx.grads, ctx.gradient = (gw_woi, gb_wo), gradient
        if len(x_wbi) == 1:
            return torch.addmm(b_wo[0], x_wbi[0], w_woi[0].t()).unsqueeze(0)
        return torch.baddbmm(b_wo.unsqueeze(1), x_wbi, w_woi.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gy_wbo: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the input, where one is wanted; those of the weights go to their buffers."""
        x_wbi, w_woi = ctx.saved_tensors
        gw_woi, gb_wo = ctx.grads
        if ctx.gradient is not None:
            ctx.gradient(x_wbi, gy_wbo, gw_woi, gb_wo)
        else:
            weight_gradient(gy_wbo, x_wbi, gw_woi)
            torch.sum(gy_wbo, 1, out=gb_wo)
        gx_wbi = None
        if ctx.needs_input_grad[0]:
            one = len(x_wbi) == 1
            gx_wbi = torch.mm(gy_wbo[0], w_woi[0]).unsqueeze(0) if one else torch.bmm(gy_wbo, w_woi)
        return gx_wbi, None, None, None, None, None


def weight_gradient(gy_wbo: torch.Tensor, x_wbi: torch.Tensor, gw_woi: torch.Tensor) -> None:
    """``gw_woi = gy_wbo' x_wbi``, the product over the minibatch, of every worker."""
    if len(x_wbi) == 1:
        torch.mm(gy_wbo[0].t(), x_wbi[0], out=gw_woi[0])
    else:
        torch.bmm(gy_wbo.transpose(1, 2), x_wbi, out=gw_woi)
