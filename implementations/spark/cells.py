"""Recurrent cells on a worker's hidden units: one step forward, and its derivative by hand.

All that is pointwise; products with weights are the program's. Units come first, so that the gates of all units are
blocks of rows and an exchange of states needs no copy to another order.

Shapes: g gates times units, gate by gate as torch has them; u unit; b sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

_sigmoid_backward, _tanh_backward = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward


class Cell(ABC):
    """A kind of cell. ``memory``: whether it has one (c of an LSTM) beside its state h."""

    memory: bool

    @abstractmethod
    def forward(
        self, z_gb: torch.Tensor, c_ub: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """State h_t and memory c_t, given the gates' sums and c_{t-1} (None: 0); ``z_gb`` becomes the gates."""

    @abstractmethod
    def backward(
        self,
        gates_gb: torch.Tensor,
        c_ub: torch.Tensor | None,
        before_ub: torch.Tensor | None,
        dh_ub: torch.Tensor,
        dc_ub: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Derivatives by the gates' sums and by c_{t-1}, given those by h_t and by c_t (None: 0).

        ``c_ub`` is c_t and ``before_ub`` c_{t-1} (None: 0).
        """


class Rnn(Cell):
    """``h = tanh(z)``; its one gate is the state."""

    memory = False

    def forward(self, z_gb: torch.Tensor, c_ub: torch.Tensor | None) -> tuple[torch.Tensor, None]:
        """See ``Cell.forward``."""
        return z_gb.tanh_(), None

    def backward(
        self,
        gates_gb: torch.Tensor,
        c_ub: torch.Tensor | None,
        before_ub: torch.Tensor | None,
        dh_ub: torch.Tensor,
        dc_ub: torch.Tensor | None,
    ) -> tuple[torch.Tensor, None]:
        """``dz = (1 - h^2) dh``."""
        return _tanh_backward(dh_ub, gates_gb), None


class Lstm(Cell):
    """``c_t = f c_{t-1} + i g`` and ``h_t = o tanh(c_t)`` (Hochreiter and Schmidhuber 1997, with a forget gate)."""

    memory = True

    def forward(self, z_gb: torch.Tensor, c_ub: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Cell.forward``."""
        i_ub, f_ub, g_ub, o_ub = _by_gate(z_gb)
        z_gb[: 2 * len(i_ub)].sigmoid_()  # i and f
        g_ub.tanh_()
        o_ub.sigmoid_()
        now_ub = i_ub * g_ub
        if c_ub is not None:
            now_ub.addcmul_(f_ub, c_ub)
        return o_ub * now_ub.tanh(), now_ub

    def backward(
        self,
        gates_gb: torch.Tensor,
        c_ub: torch.Tensor | None,
        before_ub: torch.Tensor | None,
        dh_ub: torch.Tensor,
        dc_ub: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """With ``dc = dc_t + o (1 - tanh^2 c_t) dh``: slopes of the four gates, and ``dc_{t-1} = f dc``."""
        i_ub, f_ub, g_ub, o_ub = _by_gate(gates_gb)
        tanh_ub = c_ub.tanh()
        all_ub = _tanh_backward(dh_ub * o_ub, tanh_ub)
        if dc_ub is not None:
            all_ub += dc_ub
        before_ub = torch.zeros_like(c_ub) if before_ub is None else before_ub
        slopes = (
            _sigmoid_backward(all_ub * g_ub, i_ub),
            _sigmoid_backward(all_ub * before_ub, f_ub),
            _tanh_backward(all_ub * i_ub, g_ub),
            _sigmoid_backward(dh_ub * tanh_ub, o_ub),
        )
        return torch.cat(slopes), all_ub * f_ub


def _by_gate(rows_gb: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows of the gates i, f, g, o, as views."""
    return rows_gb.view(4, len(rows_gb) // 4, -1).unbind()


CELLS: dict[str, Cell] = {"rnn": Rnn(), "lstm": Lstm()}
