"""Online natural-gradient SGD: each affine layer's gradient between two inverse Fisher matrices.

Povey, Zhang and Khudanpur 2015, in the form that Su and Chen 2015 used (Kaldi nnet2). A layer whose inputs are x
(with a 1 behind them for the bias) and whose outputs have the derivatives g gets, instead of ``sum_n g_n x_n'``,

    eta * gamma_in * gamma_out * s * sum_n Pout_n Pin_n'

where Pin and Pout are x and g multiplied by the inverse of their own smoothed Fisher matrix (``OnlineFisher``), the
gammas give them their old norms back, and s limits the change.

Shapes: w worker, b sample of a minibatch, i input unit, o output unit, p parameter.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from implementations.models.linear import weight_gradient
from implementations.models.worker_model import WorkerModel
from implementations.optimizers.fisher import OnlineFisher, update

MAX_CHANGE_RULES = ("standard", "author")
REDUCTIONS = ("mean", "sum")


class NaturalGradientSGD:
    """The optimiser of all workers' weights; used like torch's.

    During ``loss_and_grad`` the affine layers call it and ``grad_wp`` receives the preconditioned gradient of the
    minibatch's mean, so that what is done to gradients (an all-reduce) works as before; ``step`` then adds it.
    Parameters outside affine layers keep their plain gradient.
    """

    def __init__(
        self,
        net: WorkerModel,
        lr: float,
        *,
        alpha: float = 4.0,
        rank_in: int = 40,
        rank_out: int = 40,
        history: float = 2000.0,
        update_period: int = 4,
        max_change: float = 0.075,
        max_change_rule: str = "standard",
        reduction: str = "mean",
        fresh_each_epoch: bool = True,
    ) -> None:
        """Take over the gradients of ``net``'s affine layers.

        Args:
            net: the network; hold one optimiser of this kind per network.
            lr: learning rate; ``param_groups[0]["lr"]`` changes it. ``reduction`` says what it multiplies.
            alpha: smoothing of both Fisher matrices; the larger, the closer to plain SGD.
            rank_in: directions kept of the inputs.
            rank_out: directions kept of the output derivatives.
            history: samples that the estimates remember.
            update_period: batches between two updates of the estimates, after the first ten.
            max_change: largest change of a layer per sample (Frobenius norms summed over the batch); 0: no limit.
            max_change_rule: 'standard' limits the change with the rate in it; 'author', as Su and Chen's code did,
                limits it as if the rate were 1 and multiplies by the rate afterwards.
            reduction: 'mean' as torch's SGD on a mean loss, or 'sum' as Kaldi: the rate is one of summed gradients.
            fresh_each_epoch: whether ``new_epoch`` forgets the estimates.
        """
        if max_change_rule not in MAX_CHANGE_RULES:
            raise ValueError(
                f"max_change_rule: got {max_change_rule!r}; allowed: {', '.join(MAX_CHANGE_RULES)}"
            )
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction: got {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
        if not net.affine_layers:
            raise ValueError(
                f"{type(net).__name__} has no affine layers; natural gradient would be plain SGD"
            )
        self.param_groups: list[dict[str, Any]] = [{"lr": lr}]
        self._net, self._minibatch = net, 1
        self._max_change, self._rule = max_change, max_change_rule
        self._reduction, self._fresh = reduction, fresh_each_epoch
        self._scratch: dict[tuple[int, ...], torch.Tensor] = {}
        self._layers = {
            name: _Layer(
                self,
                OnlineFisher(rank_in, alpha, history, update_period),
                OnlineFisher(rank_out, alpha, history, update_period),
            )
            for name in net.affine_layers
        }
        self._fishers = [side for layer in self._layers.values() for side in (layer.inputs, layer.outputs)]
        net.affine_gradients = dict(self._layers)

    @property
    def state(self) -> dict[str, dict[str, Any]]:
        """The estimates' tensors, by layer and side; each has a leading axis of workers."""
        return {
            f"{name}.{side}": fisher.state()
            for name, layer in self._layers.items()
            for side, fisher in (("in", layer.inputs), ("out", layer.outputs))
        }

    @torch.no_grad()
    def step(self) -> None:
        """Move the weights against the gradients in ``grad_wp``."""
        lr = self.param_groups[0]["lr"]
        if self._reduction == "sum":
            lr *= self._minibatch
        self._net.theta_wp.add_(self._net.grad_wp, alpha=-lr)
        update(self._fishers)

    def new_epoch(self) -> None:
        """Forget the estimates, where they are to start afresh at each epoch."""
        if self._fresh:
            for fisher in self._fishers:
                fisher.reset()

    def state_dict(self) -> dict[str, Any]:
        """Rate and estimates: tensors and plain values only."""
        return {"param_groups": [dict(group) for group in self.param_groups], "state": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""
        self.param_groups = [dict(group) for group in state["param_groups"]]
        for name, layer in self._layers.items():
            layer.inputs.restore(state["state"][f"{name}.in"], self._net.theta_wp.device)
            layer.outputs.restore(state["state"][f"{name}.out"], self._net.theta_wp.device)

    def limit(self, gamma_w: torch.Tensor, total_w: torch.Tensor, minibatch: int) -> torch.Tensor:
        """``gamma_in * gamma_out``, or less where the layer's change would be too large.

        ``total_w`` is ``sum_n |Pin_n||Pout_n|`` of the mean loss's derivatives, ``minibatch`` times less than that of
        each sample's own.
        """
        if not self._max_change:
            return gamma_w
        allowed = self._max_change
        if self._rule == "standard":
            lr = self.param_groups[0]["lr"]
            allowed = allowed / (lr if self._reduction == "sum" else lr / minibatch) if lr else math.inf
        return torch.minimum(gamma_w, allowed / total_w)  # at no change: inf, hence gamma

    def scratch(self, like: torch.Tensor, use: int) -> torch.Tensor:
        """A buffer of a tensor's shape, kept: fresh memory of this size costs as much as the work done on it."""
        key = (use, *like.shape)
        if key not in self._scratch:
            self._scratch[key] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return self._scratch[key]


class _Layer:
    """The gradient of one affine layer (an ``AffineGradient``)."""

    def __init__(self, optimizer: NaturalGradientSGD, inputs: OnlineFisher, outputs: OnlineFisher) -> None:
        self._optimizer, self.inputs, self.outputs = optimizer, inputs, outputs

    def __call__(
        self, x_wbi: torch.Tensor, gy_wbo: torch.Tensor, gw_woi: torch.Tensor, gb_wo: torch.Tensor
    ) -> None:
        """Write the preconditioned gradient of the minibatch's mean; ``gy_wbo`` comes from a mean loss."""
        optimizer, minibatch = self._optimizer, x_wbi.shape[1]
        optimizer._minibatch = minibatch
        pin_wbi, pout_wbo = optimizer.scratch(x_wbi, 0), optimizer.scratch(gy_wbo, 1)
        one_wb, in_wb, gin_w = self.inputs.precondition(x_wbi, pin_wbi, constant=True)
        # The estimate sees each sample's own derivative: its floors are absolute.
        _, out_wb, gout_w = self.outputs.precondition(gy_wbo, pout_wbo, scale=minibatch)
        factor_w = optimizer.limit(gin_w * gout_w, torch.linalg.vecdot(in_wb, out_wb), minibatch)
        pout_wbo *= factor_w.view(-1, 1, 1)
        weight_gradient(pout_wbo, pin_wbi, gw_woi)
        torch.bmm(one_wb.unsqueeze(1), pout_wbo, out=gb_wo.unsqueeze(1))
