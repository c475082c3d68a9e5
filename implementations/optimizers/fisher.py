"""Online estimate of a Fisher matrix, low rank plus a multiple of the identity, and products with its inverse.

Povey, Zhang and Khudanpur 2015, "Parallel training of DNNs with natural gradient and parameter averaging", in the
form that Su and Chen 2015 used (Kaldi nnet2): ``F = Q' diag(d) Q + rho I``, kept as ``factor = diag(sqrt e) Q``.

A network has two estimates a layer. ``precondition`` does what needs the whole batch, four products with one side
as short as the rank; ``update`` then moves many estimates at once, since its many steps on rank x rank matrices cost
calls, not arithmetic.

Shapes: w worker, b sample of a minibatch, d dimension of the vectors, r rank, s rank (the other index of a square),
f one of the estimates that are updated together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

FIRST_UPDATES = 10  # batches that always update the estimate
_EPSILON = 1e-10  # floor of rho and d
_DELTA = 1e-5  # floor of rho relative to the largest eigenvalue
_TIGHT = 100  # norm of QQ' - I, in units of rounding, below which Q is left as it is
_LOOSE = 0.1  # the same, from which on Cholesky's factor is not trusted to mend Q


@dataclass(frozen=True)
class _Batch:
    """What an update needs of a batch X and of H = X factor'."""

    j_wrd: torch.Tensor  # H'X
    l_wrs: torch.Tensor  # H'H
    square_w: torch.Tensor  # tr XX', float64
    share: float  # of the batch in the new estimate, eta_f in the paper
    weight: float  # of each of its vectors


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
        self._e_wr: torch.Tensor | None = None  # float64; follows from d and rho
        self._seen: _Batch | None = None  # not yet taken in

    def state(self) -> dict[str, Any]:
        """The estimate as tensors with a leading axis of workers, and plain values."""
        update([self])
        return {
            "batches": self.batches,
            "factor_wrd": self.factor_wrd,
            "d_wr": self.d_wr,
            "rho_w": self.rho_w,
        }

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        """Take up what ``state`` returned, wherever that lies now."""
        self.reset()
        self.batches = state["batches"]
        if state["factor_wrd"] is not None:
            self._hold(*(state[name].to(device, copy=True) for name in ("factor_wrd", "d_wr", "rho_w")))

    def e_wr(self) -> torch.Tensor:
        """``e = 1 / (beta/d + 1)``: the part of a kept direction that preconditioning removes; float64."""
        update([self])
        return self._e_wr

    def precondition(
        self, x_wbd: torch.Tensor, out_wbd: torch.Tensor, constant: bool = False, scale: float = 1.0
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """Multiply the rows by the inverse of the smoothed estimate, up to a factor; ``update`` then takes them in.

        ``constant`` says that every row has a 1 behind it that ``x_wbd`` leaves out; the estimate sees
        ``scale * x_wbd``, the result does not. ``out_wbd`` receives P; returned are the constant's column of P
        (W, B) or None, the row norms of P (W, B), and gamma (W,) that gives P the Frobenius norm of the input.
        """
        update([self])
        batch, dimensions = x_wbd.shape[1], x_wbd.shape[2] + constant
        if self.factor_wrd is None and dimensions > 1:
            self._start(x_wbd, constant, scale)
        if self.factor_wrd is None:  # one dimension, or a batch that is not finite: nothing to whiten
            out_wbd.copy_(x_wbd)
            one_wb = torch.ones_like(x_wbd[:, :, 0]) if constant else None
            return one_wb, _norms(out_wbd, one_wb), x_wbd.new_ones(len(x_wbd))

        one_wb, factor_wrd = None, self.factor_wrd
        if constant:
            factor_wrd, constant_wr1 = factor_wrd[:, :, :-1], factor_wrd[:, :, -1:]
        h_wrb = torch.bmm(factor_wrd, x_wbd.transpose(1, 2))
        if constant:
            h_wrb += constant_wr1
            one_wb = 1 - torch.bmm(constant_wr1.transpose(1, 2), h_wrb).squeeze(1)
        h_wbr = h_wrb.transpose(1, 2)
        torch.baddbmm(x_wbd, h_wbr, factor_wrd, alpha=-1, out=out_wbd)
        norms_wb = _norms(out_wbd, one_wb)

        due = self.batches < FIRST_UPDATES or (self.batches + 1 - FIRST_UPDATES) % self.period == 0
        if due:
            j_wrd = torch.bmm(h_wrb, x_wbd)
            if constant:
                j_wrd = torch.cat([j_wrd, h_wrb.sum(2, keepdim=True)], 2)
        if due and dimensions < batch:  # H'H, by the shorter product
            l_wrs = torch.bmm(j_wrd, self.factor_wrd.transpose(1, 2))
        else:
            l_wrs = torch.bmm(h_wrb, h_wbr)

        # tr XX' = tr PP' + sum (2 - e_r) |column r of H|^2, as the factor's rows are orthogonal: no pass over X
        after_w = torch.linalg.vector_norm(norms_wb, dim=1, dtype=torch.float64).square_()
        before_w = after_w + ((2 - self._e_wr) * l_wrs.diagonal(dim1=1, dim2=2)).sum(1)
        gamma_w = (before_w / after_w.clamp(min=1e-300)).sqrt_().to(x_wbd.dtype)  # P is 0 only where X is
        if due:
            share = -math.expm1(-batch / self.history)
            self._seen = _Batch(j_wrd, l_wrs, before_w, share, share / batch * scale**2)
        self.batches += 1
        return one_wb, norms_wb, gamma_w

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
        d_wr, rho_w = _split(top_wr, trace_w, dimensions)
        root_wr = _e(d_wr, rho_w, self.alpha, dimensions).sqrt().to(q_wrd.dtype)
        self._hold(root_wr.unsqueeze(2) * _orthonormal(q_wrd), d_wr, rho_w)

    def _hold(
        self,
        factor_wrd: torch.Tensor,
        d_wr: torch.Tensor,
        rho_w: torch.Tensor,
        e_wr: torch.Tensor | None = None,
    ) -> None:
        self.factor_wrd, self.d_wr, self.rho_w = factor_wrd, d_wr, rho_w
        self._e_wr = _e(d_wr, rho_w, self.alpha, factor_wrd.shape[2]) if e_wr is None else e_wr


@torch.no_grad()
def update(fishers: Iterable[OnlineFisher]) -> None:
    """Move each estimate by one subspace iteration towards the batch it last saw, where one is due."""
    alike: dict[tuple[Any, ...], list[OnlineFisher]] = {}
    for fisher in fishers:
        if fisher._seen is not None:
            l_wrs = fisher._seen.l_wrs
            alike.setdefault((l_wrs.shape, l_wrs.dtype), []).append(fisher)
    for group in alike.values():
        _update(group)


def _update(fishers: Sequence[OnlineFisher]) -> None:
    """Estimates of equal workers and rank; 1 stands for an axis to be spread."""
    seen = [fisher._seen for fisher in fishers]
    for fisher in fishers:
        fisher._seen = None
    weight_f11, share_f11, dimensions_f1, alpha_f1 = _settings(
        tuple(
            (batch.weight, batch.share, fisher.factor_wrd.shape[2], fisher.alpha)
            for fisher, batch in zip(fishers, seen)
        ),
        seen[0].l_wrs.device,
    )
    keep_f11 = 1 - share_f11
    d_fwr = torch.stack([fisher.d_wr for fisher in fishers])
    rho_fw = torch.stack([fisher.rho_w for fisher in fishers])
    root_fwr = torch.stack([fisher._e_wr for fisher in fishers]).rsqrt_()
    old_fwr = keep_f11 * (d_fwr + rho_fw.unsqueeze(2))

    l_fwrs = torch.stack([batch.l_wrs for batch in seen]).double()
    k_fwrs = torch.stack([torch.bmm(batch.j_wrd, batch.j_wrd.transpose(1, 2)) for batch in seen]).double()
    l_fwrs *= old_fwr.unsqueeze(2) + old_fwr.unsqueeze(3)
    z_fwrs = k_fwrs.mul_(weight_f11.unsqueeze(3)).add_(l_fwrs).mul_(weight_f11.unsqueeze(3))
    z_fwrs *= root_fwr.unsqueeze(2) * root_fwr.unsqueeze(3)
    z_fwrs.diagonal(dim1=2, dim2=3).add_(old_fwr.square())
    finite = z_fwrs.sum((1, 2, 3)).isfinite().tolist()
    if not all(finite):  # a run has diverged, and the loss will say so
        for fisher, batch, good in zip(fishers, seen, finite):
            fisher._seen = batch if good else None
        return update(fishers)
    c_fwr, u_fwrs = torch.linalg.eigh(z_fwrs)
    c_fwr, u_fwrs = c_fwr.flip(2), u_fwrs.flip(3)
    top_fwr = torch.maximum(c_fwr.clamp_(min=0).sqrt_(), keep_f11 * rho_fw.unsqueeze(2))

    square_fw = torch.stack([batch.square_w for batch in seen])
    held_fw = dimensions_f1 * rho_fw + d_fwr.sum(2)
    trace_fw = weight_f11.squeeze(2) * square_fw + keep_f11.squeeze(2) * held_fw
    d_fwr, rho_fw = _split(top_fwr, trace_fw, dimensions_f1)
    e_fwr = _e(d_fwr, rho_fw, alpha_f1, dimensions_f1)

    # rows of the factor: those of weight J + old W, turned, divided by their norms and times sqrt e
    dtype = seen[0].j_wrd.dtype
    root_e_fwr1 = e_fwr.sqrt().unsqueeze(3)
    turn_fwrs = (
        (weight_f11 * root_fwr).unsqueeze(2) * u_fwrs.transpose(2, 3) * (root_e_fwr1 / top_fwr.unsqueeze(3))
    )
    turn_fwrs, old_fwr1 = turn_fwrs.to(dtype), (old_fwr / weight_f11).to(dtype).unsqueeze(3)
    root_e_fwr1 = root_e_fwr1.to(dtype)
    factor_fwrd = [
        torch.bmm(turn_wrs, torch.addcmul(batch.j_wrd, old_wr1, fisher.factor_wrd))
        for turn_wrs, old_wr1, batch, fisher in zip(turn_fwrs, old_fwr1, seen, fishers)
    ]
    _mend(factor_fwrd, root_e_fwr1)
    for n, fisher in enumerate(fishers):
        fisher._hold(factor_fwrd[n], d_fwr[n], rho_fw[n], e_fwr[n])


def _mend(factor_fwrd: list[torch.Tensor], root_fwr1: torch.Tensor) -> None:
    """Make the rows of each factor orthogonal again, with the norms ``root_fwr1``, where they are off too far.

    By construction they are orthogonal but for rounding, which grows with the spread of the eigenvalues and adds up
    over updates, and but for floors that were applied.
    """
    gram_fwrs = torch.stack([torch.bmm(factor_wrd, factor_wrd.transpose(1, 2)) for factor_wrd in factor_fwrd])
    one_rs = torch.eye(gram_fwrs.shape[2], dtype=gram_fwrs.dtype, device=gram_fwrs.device)
    off_fwrs = gram_fwrs / (root_fwr1 * root_fwr1.transpose(2, 3)) - one_rs
    off = torch.linalg.vector_norm(off_fwrs, dim=(1, 2, 3)).tolist()
    tight = _TIGHT * torch.finfo(gram_fwrs.dtype).eps
    if all(norm < tight for norm in off):
        return
    lower_fwrs, _ = torch.linalg.cholesky_ex(gram_fwrs)
    mend_fwrs = root_fwr1 * torch.linalg.solve_triangular(lower_fwrs, one_rs, upper=False)
    for n, norm in enumerate(off):
        if norm < _LOOSE:  # Cholesky's factor does it at a fifth of Householder's cost
            factor_fwrd[n] = torch.bmm(mend_fwrs[n], factor_fwrd[n])
        else:
            factor_fwrd[n] = root_fwr1[n] * _orthonormal(factor_fwrd[n])


@functools.lru_cache
def _settings(
    rows: tuple[tuple[float, float, int, float], ...], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Weight and share (F, 1, 1), dimensions and alpha (F, 1), from a row of each estimate; float64.

    Kept, since they stay the same from batch to batch.
    """
    columns = torch.tensor(rows, dtype=torch.float64, device=device).split(1, dim=1)
    weight_f1, share_f1, dimensions_f1, alpha_f1 = columns
    return weight_f1.unsqueeze(2), share_f1.unsqueeze(2), dimensions_f1, alpha_f1


def _split(
    top_wr: torch.Tensor, trace_w: torch.Tensor, dimensions: torch.Tensor | int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The d and rho of an estimate with these eigenvalues in the kept directions and this trace."""
    rho_w = (trace_w - top_wr.sum(-1)) / (dimensions - top_wr.shape[-1])
    d_wr = (top_wr - rho_w.unsqueeze(-1)).clamp_(min=_EPSILON)
    return d_wr, torch.maximum(rho_w, (_DELTA * top_wr.amax(-1)).clamp_(min=_EPSILON))


def _e(
    d_wr: torch.Tensor, rho_w: torch.Tensor, alpha: torch.Tensor | float, dimensions: torch.Tensor | int
) -> torch.Tensor:
    beta_w = rho_w * (1 + alpha) + alpha * d_wr.sum(-1) / dimensions
    return d_wr / (beta_w.unsqueeze(-1) + d_wr)


def _orthonormal(q_wrd: torch.Tensor) -> torch.Tensor:
    """Rows that span the same, whatever the rows given: Householder completes even rows of zeros."""
    q_wdr, _ = torch.linalg.qr(q_wrd.transpose(1, 2))
    return q_wdr.transpose(1, 2).contiguous()


def _norms(p_wbd: torch.Tensor, one_wb: torch.Tensor | None) -> torch.Tensor:
    norms_wb = torch.linalg.vector_norm(p_wbd, dim=2)
    return norms_wb if one_wb is None else torch.hypot(norms_wb, one_wb)
