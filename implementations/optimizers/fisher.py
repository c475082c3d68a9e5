"""Online estimate of a Fisher matrix, low rank plus a multiple of the identity, and products with its inverse.

Povey, Zhang and Khudanpur 2015, "Parallel training of DNNs with natural gradient and parameter averaging", in the
form that Su and Chen 2015 used (Kaldi nnet2): ``F = Q' diag(d) Q + rho I``, kept as ``factor = diag(sqrt e) Q``.

Shapes: w worker, b sample of a minibatch, d dimension of the vectors, r rank, s rank (the other index of a square).
"""

from __future__ import annotations

import math
from typing import Any

import torch

FIRST_UPDATES = 10  # batches that always update the estimate
_EPSILON = 1e-10  # floor of rho and d
_DELTA = 1e-5  # floor of rho relative to the largest eigenvalue


class OnlineFisher:
    """The estimate of one set of vectors of W workers, each worker's apart from the others'."""

    def __init__(self, rank: int, alpha: float, history: float, period: int) -> None:
        """Keep ``rank`` directions (fewer where the vectors have no more dimensions than that).

        ``alpha`` smooths the inverse with a multiple of the identity, ``history`` is the number of samples that
        the estimate remembers, ``period`` the batches from one update to the next after the first ones.
        """
        self.rank, self.alpha, self.history, self.period = rank, alpha, history, period
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next batch starts a new estimate."""
        self.batches = 0
        self.factor_wrd: torch.Tensor | None = None  # W in the paper
        self.d_wr: torch.Tensor | None = None  # float64
        self.rho_w: torch.Tensor | None = None  # float64
        self._left_wrd: torch.Tensor | None = None  # the factor without the constant's column

    def state(self) -> dict[str, Any]:
        """The estimate as tensors with a leading axis of workers, and plain values."""
        return {
            "batches": self.batches,
            "factor_wrd": self.factor_wrd,
            "d_wr": self.d_wr,
            "rho_w": self.rho_w,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self.reset()
        self.batches = state["batches"]
        for name in ("factor_wrd", "d_wr", "rho_w"):
            value = state[name]
            setattr(self, name, None if value is None else value.clone())

    def e_wr(self) -> torch.Tensor:
        """``e = 1 / (beta/d + 1)``: the part of a kept direction that preconditioning removes; float64."""
        return self._e_wr(self.factor_wrd.shape[2])

    def _e_wr(self, dimensions: int) -> torch.Tensor:
        beta_w = self.rho_w * (1 + self.alpha) + self.alpha * self.d_wr.sum(1) / dimensions
        return self.d_wr / (beta_w.unsqueeze(1) + self.d_wr)

    def precondition(
        self, x_wbd: torch.Tensor, out_wbd: torch.Tensor, constant: bool = False, scale: float = 1.0
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """Multiply the rows by the inverse of the smoothed estimate, up to a factor, and update the estimate.

        ``constant`` says that every row has a 1 behind it that ``x_wbd`` leaves out; the estimate sees
        ``scale * x_wbd``, the result does not. ``out_wbd`` receives P; returned are the constant's column of P
        (W, B) or None, the row norms of P (W, B), and gamma (W,) that gives P the Frobenius norm of the input.
        """
        if self.factor_wrd is None and self._dimensions(x_wbd, constant) > 1:
            self._start(x_wbd, constant, scale)
        if self.factor_wrd is None:  # one dimension, or a batch that is not finite: nothing to whiten
            out_wbd.copy_(x_wbd)
            one_wb = torch.ones_like(x_wbd[:, :, 0]) if constant else None
            return one_wb, self._norms(out_wbd, one_wb), x_wbd.new_ones(len(x_wbd))
        if self._left_wrd is None:
            self._left_wrd = self.factor_wrd[:, :, : x_wbd.shape[2]].contiguous()

        h_wbr = torch.bmm(x_wbd, self._left_wrd.transpose(1, 2))
        one_wb = None
        if constant:
            constant_wr = self.factor_wrd[:, :, -1]
            h_wbr += constant_wr.unsqueeze(1)
            one_wb = 1 - torch.bmm(h_wbr, constant_wr.unsqueeze(2)).squeeze(2)
        torch.baddbmm(x_wbd, h_wbr, self._left_wrd, alpha=-1, out=out_wbd)
        norms_wb = self._norms(out_wbd, one_wb)

        # tr XX' = tr PP' + sum (2 - e_r) |column r of H|^2, as the factor's rows are orthogonal: no pass over X
        after_w = norms_wb.double().square().sum(1)
        columns_wr = torch.linalg.vector_norm(h_wbr, dim=1).double().square()
        before_w = after_w + (columns_wr * (2 - self.e_wr())).sum(1)
        gamma_w = torch.where(after_w > 0, before_w / after_w, 1.0).sqrt().to(x_wbd.dtype)

        if self.batches < FIRST_UPDATES or (self.batches + 1 - FIRST_UPDATES) % self.period == 0:
            self._update(x_wbd, h_wbr, before_w * scale**2, constant, scale)
        self.batches += 1
        return one_wb, norms_wb, gamma_w

    @staticmethod
    def _dimensions(x_wbd: torch.Tensor, constant: bool) -> int:
        return x_wbd.shape[2] + constant

    @staticmethod
    def _norms(p_wbd: torch.Tensor, one_wb: torch.Tensor | None) -> torch.Tensor:
        norms_wb = torch.linalg.vector_norm(p_wbd, dim=2)
        return norms_wb if one_wb is None else torch.hypot(norms_wb, one_wb)

    def _start(self, x_wbd: torch.Tensor, constant: bool, scale: float) -> None:
        """Take d and Q from the largest eigenpairs of ``X'X/B``, by the smaller of the two Gram matrices."""
        x_wbd = x_wbd * scale
        if constant:
            x_wbd = torch.cat([x_wbd, torch.ones_like(x_wbd[:, :, :1])], 2)
        workers, batch, dimensions = x_wbd.shape
        rank = min(self.rank, dimensions - 1)
        small = dimensions <= batch
        t_wdb = x_wbd.transpose(1, 2)
        gram_wxx = torch.bmm(t_wdb, x_wbd) if small else torch.bmm(x_wbd, t_wdb)
        trace_w = gram_wxx.diagonal(dim1=1, dim2=2).double().sum(1) / batch
        if not bool(trace_w.isfinite().all()):
            return
        eigen_wx, vectors_wxx = torch.linalg.eigh(gram_wxx)
        kept = min(rank, eigen_wx.shape[1])
        rows_wrx = vectors_wxx[:, :, -kept:].flip(2).transpose(1, 2)
        top_wr = x_wbd.new_zeros(workers, rank, dtype=torch.float64)
        top_wr[:, :kept] = eigen_wx[:, -kept:].flip(1).double().clamp(min=0) / batch
        q_wrd = x_wbd.new_zeros(workers, rank, dimensions)
        q_wrd[:, :kept] = rows_wrx if small else torch.bmm(rows_wrx, x_wbd)
        self._settle(q_wrd, top_wr, trace_w)

    def _update(
        self,
        x_wbd: torch.Tensor,
        h_wbr: torch.Tensor,
        trace_w: torch.Tensor,
        constant: bool,
        scale: float,
    ) -> None:
        """One step towards the Fisher matrix of this batch (``trace_w`` is tr XX'), by one subspace iteration."""
        batch, dimensions = x_wbd.shape[1], self._dimensions(x_wbd, constant)
        share = -math.expm1(-batch / self.history)  # eta_f in the paper
        weight = share / batch * scale**2
        t_wrb = h_wbr.transpose(1, 2)
        j_wrd = torch.bmm(t_wrb, x_wbd)
        if constant:
            j_wrd = torch.cat([j_wrd, h_wbr.sum(1).unsqueeze(2)], 2)
        l_wrs = torch.bmm(t_wrb, h_wbr).double()
        k_wrs = torch.bmm(j_wrd, j_wrd.transpose(1, 2)).double()

        root_wr = self.e_wr().rsqrt()
        old_wr = self.d_wr + self.rho_w.unsqueeze(1)
        z_wrs = weight**2 * k_wrs
        z_wrs += weight * (1 - share) * l_wrs * (old_wr.unsqueeze(1) + old_wr.unsqueeze(2))
        z_wrs *= root_wr.unsqueeze(1) * root_wr.unsqueeze(2)
        z_wrs.diagonal(dim1=1, dim2=2).add_(((1 - share) * old_wr).square())
        if not bool(z_wrs.isfinite().all()):
            return  # the run has diverged; the loss will say so
        c_wr, u_wrs = torch.linalg.eigh(z_wrs)
        c_wr, u_wrs = c_wr.flip(1), u_wrs.flip(2)
        top_wr = torch.maximum(c_wr.clamp(min=0).sqrt(), ((1 - share) * self.rho_w).unsqueeze(1))

        j_wrd *= weight
        j_wrd += ((1 - share) * old_wr).unsqueeze(2).to(j_wrd.dtype) * self.factor_wrd
        mix_wrs = u_wrs.transpose(1, 2) * root_wr.unsqueeze(1) / top_wr.unsqueeze(2)
        q_wrd = torch.bmm(mix_wrs.to(j_wrd.dtype), j_wrd)
        held_w = dimensions * self.rho_w + self.d_wr.sum(1)
        self._settle(q_wrd, top_wr, share / batch * trace_w + (1 - share) * held_w)

    def _settle(self, q_wrd: torch.Tensor, top_wr: torch.Tensor, trace_w: torch.Tensor) -> None:
        """Keep these directions, the eigenvalues in them and the trace of the whole."""
        dimensions, rank = q_wrd.shape[2], q_wrd.shape[1]
        rho_w = (trace_w - top_wr.sum(1)) / (dimensions - rank)
        self.d_wr = (top_wr - rho_w.unsqueeze(1)).clamp(min=_EPSILON)
        self.rho_w = torch.maximum(rho_w, (_DELTA * top_wr.amax(1)).clamp(min=_EPSILON))
        # Orthonormal but for rounding, which grows with the spread of the eigenvalues; Householder mends any of it.
        q_wdr, _ = torch.linalg.qr(q_wrd.transpose(1, 2))
        root_wr = self._e_wr(dimensions).sqrt().to(q_wdr.dtype)
        self.factor_wrd = (q_wdr * root_wr.unsqueeze(1)).transpose(1, 2).contiguous()
        self._left_wrd = None
