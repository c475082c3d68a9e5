"""Whether training cut inside layers does what one device does: weights after some steps, against plain torch.

The reference is ``torch.nn`` under autograd and torch's own optimiser, built here and not by the models of this
package, so that nothing of the cut is checked against itself. So are the bytes: their closed forms are written out
below from the README's table, not taken from the exchanges that were booked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from implementations.cluster.communicator import Communicator
from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.spark import nets
from implementations.spark.program import Program
from implementations.spark.spmd import Spmd

STEPS, BATCH, CLASSES = 20, 16, 10
SAMPLES = 4 * BATCH  # taken in turn
OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=1e-3, alpha=0.9, eps=1e-8),
}


@dataclass(frozen=True)
class Net:
    """A small network and how its layers are cut; ``features``: values of a sample."""

    model: dict[str, Any] = field(hash=False)
    features: int
    cut: str = "auto"

    @property
    def kind(self) -> str:
        """The kind of the network."""
        return self.model["name"]

    def program(self, workers: int) -> Program:
        """Its step on so many workers."""
        return nets.program(self.model, self.features, CLASSES, workers, BATCH, self.cut)


_CNN = {"name": "cnn", "filters": [8, 12], "kernel": 3, "hidden": [24]}
_SIDE, _TIMES, _INPUTS = 16, 6, 5
NETS = (
    Net({"name": "fc", "hidden": [24, 16]}, 20),
    Net(_CNN, _SIDE**2, "filters"),
    Net(_CNN, _SIDE**2, "rows"),
    Net({"name": "rnn", "steps": _TIMES, "hidden": [16], "masked": True}, _TIMES * (_INPUTS + 1)),
    Net({"name": "lstm", "steps": _TIMES, "hidden": [16], "masked": True}, _TIMES * (_INPUTS + 1)),
)


# -- one device, by torch alone ----------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """torch's RNN or LSTM over padded sequences, packed to their lengths, and a linear layer on the last state."""

    def __init__(self, kind: str, steps: int, inputs: int, hidden: list[int], masked: bool) -> None:
        super().__init__()
        cell = nn.LSTM if kind == "lstm" else nn.RNN
        self.steps, self.masked = steps, masked
        self.cell = cell(inputs, hidden[0], num_layers=len(hidden), batch_first=True)
        self.output = nn.Linear(hidden[-1], CLASSES)

    def forward(self, x_bi: torch.Tensor) -> torch.Tensor:
        """Scores; masked, the last value of each step of a sample says whether the step is real."""
        x_bti = x_bi.view(len(x_bi), self.steps, -1)
        if self.masked:
            lengths = x_bti[..., -1].sum(1).long()
            x_bti = nn.utils.rnn.pack_padded_sequence(
                x_bti[..., :-1], lengths, batch_first=True, enforce_sorted=False
            )
        _, last = self.cell(x_bti)
        h_lbu = last[0] if isinstance(last, tuple) else last
        return self.output(h_lbu[-1])


class Image(nn.Module):
    """Samples as square images of one channel."""

    def forward(self, x_bi: torch.Tensor) -> torch.Tensor:
        """(b, 1, side, side)."""
        side = round(x_bi.shape[1] ** 0.5)
        return x_bi.view(len(x_bi), 1, side, side)


def module_of(net: Net) -> nn.Module:
    """The network in plain torch; its parameters come in the order of the blocks of its program."""
    model = net.model
    if net.kind in ("rnn", "lstm"):
        masked = model.get("masked", False)
        inputs = net.features // model["steps"] - masked
        return Recurrent(net.kind, model["steps"], inputs, model["hidden"], masked)
    layers: list[nn.Module] = []
    width = net.features
    if net.kind == "cnn":
        layers.append(Image())
        channels, side, kernel = 1, round(width**0.5), model["kernel"]
        for filters in model["filters"]:
            layers += [nn.Conv2d(channels, filters, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
            channels, side = filters, side // 2
        layers.append(nn.Flatten())
        width = channels * side**2
    for units in model["hidden"]:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


class Data:
    """What all trainings of a network start from and see, in double precision."""

    def __init__(
        self,
        net: Net,
        weights: list[torch.Tensor] | None = None,
        x_ni: torch.Tensor | None = None,
        y_n: torch.Tensor | None = None,
    ) -> None:
        """Drawn at random, unless first weights, as plain torch orders them, and samples are given."""
        self.net = net
        self._trained: dict[tuple[str, torch.dtype], list[torch.Tensor]] = {}
        drawn = _draw(net)
        names = list(drawn[0])
        self.weights = (
            drawn[0]
            if weights is None
            else {
                name: one.double().view_as(drawn[0][name]) for name, one in zip(names, weights, strict=True)
            }
        )
        self.x_ni, self.y_n = drawn[1:] if x_ni is None or y_n is None else (x_ni, y_n)

    def batches(self, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The minibatch of each step."""
        for step in range(STEPS):
            rows = torch.arange(BATCH) + step * BATCH % len(self.x_ni)
            yield self.x_ni[rows].to(dtype), self.y_n[rows]

    def one_device(self, optimizer: str, dtype: torch.dtype) -> list[torch.Tensor]:
        """Weights after all steps on one device."""
        if (optimizer, dtype) not in self._trained:
            module = module_of(self.net).to(dtype)
            module.load_state_dict(self.weights)
            step = OPTIMIZERS[optimizer](list(module.parameters()))
            for x_bi, y_b in self.batches(dtype):
                step.zero_grad()
                nn.functional.cross_entropy(module(x_bi), y_b).backward()
                step.step()
            self._trained[optimizer, dtype] = [one.detach() for one in module.parameters()]
        return self._trained[optimizer, dtype]

    def rounding(self, optimizer: str) -> float:
        """How far one device in single precision ends from one in double: what rounding alone does."""
        return furthest(self.one_device(optimizer, torch.float32), self.one_device(optimizer, torch.float64))


def _draw(net: Net) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Weights of the size of torch's own first ones, samples and labels."""
    stream = torch.Generator().manual_seed(1)
    draw: dict[str, Any] = {"generator": stream, "dtype": torch.float64}
    x_ni = torch.randn(SAMPLES, net.features, **draw)
    y_n = torch.randint(0, CLASSES, (SAMPLES,), generator=stream)
    if net.model.get("masked"):
        x_nti = x_ni.view(SAMPLES, net.model["steps"], -1)
        lengths_n = torch.randint(1, x_nti.shape[1] + 1, (SAMPLES, 1), generator=stream)
        x_nti[..., -1] = (torch.arange(x_nti.shape[1]) < lengths_n).double()
    weights = {}
    for name, parameter in module_of(net).named_parameters():
        size = 2 / max(parameter.shape[1:].numel(), 1) ** 0.5
        weights[name] = (torch.rand(*parameter.shape, **draw) - 0.5) * (size if parameter.dim() > 1 else 0.4)
    return weights, x_ni, y_n


def furthest(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Largest difference of a weight; infinite where one is no number."""
    errors = [float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True)]
    return max(error if error == error else float("inf") for error in errors)


# -- cut inside its layers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """Weights after all steps, as those of one device are ordered, and the bytes that a step put on the wire."""

    weights: list[torch.Tensor]
    step_bytes: float | None


class Cut:
    """The hosted workers of a training cut inside its layers, from the weights of ``data``."""

    def __init__(self, data: Data, comm: Communicator, optimizer: str, dtype: torch.dtype, driver: bool):
        self.program, self._data, self._dtype = data.net.program(comm.size), data, dtype
        most = max(self.program.params(worker) for worker in range(comm.size))
        self.theta_wp = torch.zeros(len(comm.hosted), most, dtype=dtype)
        grad_wp = torch.zeros_like(self.theta_wp)
        fill(self.program, data, dict(zip(comm.hosted, self.theta_wp, strict=True)))
        self._spmd = Spmd(self.program, comm, self.theta_wp, grad_wp, driver)
        self.theta_wp.grad = grad_wp
        self._optimizer = OPTIMIZERS[optimizer]([self.theta_wp])

    @torch.no_grad()
    def train(self) -> torch.Tensor:
        """All steps; the hosted workers' rows (w, p) after them."""
        for x_bi, y_b in self._data.batches(self._dtype):
            self._spmd.gradients(x_bi.unsqueeze(0), y_b.unsqueeze(0))
            self._optimizer.step()
        return self.theta_wp


def fill(program: Program, data: Data, rows: dict[int, torch.Tensor]) -> None:
    """Write the first weights into the rows of workers; ValueError where the parameters are not plain torch's."""
    for worker, row_p in rows.items():
        views = program.views(worker, row_p)
        for (name, block), parameter in zip(
            program.blocks(worker).items(), data.weights.values(), strict=True
        ):
            if torch.Size(block.shape).numel() != parameter.numel():
                raise ValueError(
                    f"{name} of {data.net.kind}: shape {block.shape}, not {tuple(parameter.shape)}"
                )
            views[name].copy_(block.of(parameter))


def whole(program: Program, data: Data, rows_wp: torch.Tensor) -> list[torch.Tensor]:
    """The network put together of all workers' rows."""
    made = [torch.full_like(one, float("nan")) for one in data.weights.values()]
    for worker in range(program.workers):
        views = program.views(worker, rows_wp[worker])
        for (name, block), parameter in zip(program.blocks(worker).items(), made, strict=True):
            block.of(parameter).copy_(views[name])
    return made


def simulated(data: Data, workers: int, optimizer: str, dtype: torch.dtype, driver: bool) -> Ended:
    """By workers that this process hosts all; ``driver``: with exchanges booked as Spark's driver carries them."""
    ledger = Ledger()
    with _precision(dtype):
        cut = Cut(data, SimulatedCommunicator(workers, ledger), optimizer, dtype, driver)
        rows_wp = cut.train()
    return Ended(whole(cut.program, data, rows_wp), ledger.sent_bytes_total / STEPS)


@contextmanager
def _precision(dtype: torch.dtype) -> Iterator[None]:
    """Tensors that are made without a precision get ``dtype``: training knows single precision alone."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# -- bytes by closed form ----------------------------------------------------------------------------------------------


def step_bytes(net: Net, workers: int, driver: bool) -> int:
    """Bytes of all workers in a step of single precision, by the README's table of exchanges.

    With k workers, B samples, of each sample f values gathered forward and g scattered back, r values of rows that a
    worker reads and another has, and P values whose gradients everybody has a part of: between workers
    ``(k-1) (B (f + g) + 2 P) + 2 B r``, through the driver ``(k+1) B (f + g) + 2 k P + 4 B r``.
    """
    k = workers
    if k == 1:
        return 0
    widths = layer_values(net)
    gathered = BATCH * (sum(widths) + sum(widths[:-1]))
    rows, kernels = (BATCH * rows_moved(net, k), kernel_values(net)) if net.cut == "rows" else (0, 0)
    if driver:
        return 4 * ((k + 1) * gathered + 2 * k * kernels + 4 * rows)
    return 4 * ((k - 1) * (gathered + 2 * kernels) + 2 * rows)


def layer_values(net: Net) -> list[int]:
    """Values of a sample that each layer hands to all workers, n_1 .. n_L; all but the last come back summed."""
    model = net.model
    widths = [*model["hidden"], CLASSES]
    if net.kind in ("rnn", "lstm"):
        return [units for units in model["hidden"] for _ in range(model["steps"])] + [CLASSES]
    if net.kind == "cnn":
        maps = [
            filters * (_side(net) >> place) ** 2 for place, filters in enumerate(model["filters"], start=1)
        ]
        # cut by rows, maps between convolutions stay where they are but for their borders
        widths = (maps[-1:] if net.cut == "rows" else maps) + widths
    return widths


def rows_moved(net: Net, workers: int) -> int:
    """Values of a sample in rows that a worker's convolutions read of maps whose rows another worker has.

    Of pooled maps of h rows each worker has as equal a part as can be; pooled rows s to t of the next convolution come
    from rows 2 s - p to 2 t + p below, p the padding.
    """
    padding, moved = net.model["kernel"] // 2, 0
    for place, filters in enumerate(net.model["filters"][:-1], start=1):
        height = _side(net) >> place
        owned = np.array_split(np.arange(height), workers)
        above = np.array_split(np.arange(height // 2), workers)
        for mine, next_ones in zip(owned, above, strict=True):
            if len(next_ones):
                reads = range(max(0, 2 * next_ones[0] - padding), 2 * next_ones[-1] + 2 + padding)
                moved += len({row for row in reads if row < height} - set(mine.tolist())) * height * filters
    return moved


def kernel_values(net: Net) -> int:
    """Weights and biases of all convolutions."""
    channels = [1, *net.model["filters"]]
    return sum(
        (inputs * net.model["kernel"] ** 2 + 1) * filters for inputs, filters in itertools.pairwise(channels)
    )


def _side(net: Net) -> int:
    return round(net.features**0.5)
