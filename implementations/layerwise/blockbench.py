"""Times blocks of layers in this process, or in several at once: what ``blocktimes`` starts.

python -m implementations.layerwise.blockbench ORDER.json ANSWER.json

Each process computes the same blocks at the same time, with the executor's own functions on random values. A repetition
counts as long as the slowest process takes; of several the median is kept.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from implementations import lifeline
from implementations.layerwise import algebra, kernels, normalisation
from implementations.layerwise.graph import ADD, INPUT, LOSS, NORM, POINTWISE, Graph, Layer, Window

SPENT_S, LEAST, MOST = 0.2, 3, 30  # repetitions: until so long was spent, but at least and at most so many
LONG_S, FEW = 1.0, 2  # of blocks that take longer, only so many
ROUND_BYTES = 256e6  # of blocks that are timed in turns
UPDATE, HANDLING = (
    "update",
    "handling",
)  # not layers: the optimiser's step; what the executor does around a layer
_LR = 1e-9  # the weights must not change into something else


class Alone:
    """One process that measures by itself."""

    rank = 0

    def barrier(self) -> None:
        """Nobody to wait for."""

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The longest of all processes' times."""
        return list(seconds)


class Together:
    """The processes of an MPI world."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size

    def barrier(self) -> None:
        """Wait for all."""
        self._world.Barrier()

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The longest of all processes' times, one by one."""
        return [max(column) for column in zip(*self._world.allgather(list(seconds)))]


Pair = tuple[Callable[[], Any], Callable[[Any], Any]]  # forward, and backward of what it gives


@dataclass(frozen=True)
class Timed:
    """What is timed: two passes, and the values that other layers have just written before each of them."""

    forward: Callable[[], Any]
    backward: Callable[[Any], Any]
    inputs: Sequence[torch.Tensor] = ()
    grads: Sequence[torch.Tensor] = ()


def measure(blocks: Sequence[Mapping[str, Any]], group: Alone | Together) -> list[dict[str, Any]]:
    """Median seconds, forward and backward, of blocks as ``blocktimes.described`` has them, and how many repeats.

    Blocks are timed in rounds, as in a step of a network: all of them forward, then all backward in reverse. One that
    is repeated by itself finds its weights and its code in the caches; blocks of tens of microseconds then take two
    thirds of what they take in a step. What the layer before has just computed is in the caches in a step, too, and is
    written before each pass. A round has as many blocks as ``ROUND_BYTES`` hold.
    """
    found: list[dict[str, Any]] = []
    part: list[Mapping[str, Any]] = []
    for block in blocks:
        if part and sum(map(_nbytes, [*part, block])) > ROUND_BYTES:
            found += _rounds([_timed(one) for one in part], group)
            part = []
        part.append(block)
    return found + (_rounds([_timed(one) for one in part], group) if part else [])


def _rounds(blocks: Sequence[Timed], group: Alone | Together) -> list[dict[str, Any]]:
    def seconds(run: Callable[[], Any], written: Sequence[torch.Tensor]) -> tuple[float, Any]:
        for values in written:
            values.mul_(1.0)
        group.barrier()
        began = perf_counter()
        found = run()
        return perf_counter() - began, found

    def once() -> list[list[float]]:
        forward = [seconds(block.forward, block.inputs) for block in blocks]
        kept = [found for _, found in forward]
        backward = []
        for block in reversed(blocks):
            backward.append(seconds(partial(block.backward, kept.pop()), block.grads)[0])
        return [group.slowest([spent for spent, _ in forward]), group.slowest(backward[::-1])]

    def mean_s(times: list[list[float]]) -> float:
        return sum(map(sum, times)) / len(blocks)

    first = mean_s(once())  # also sets up what a first call sets up
    typical = first if first > LONG_S else mean_s(once())
    wanted = FEW if typical > LONG_S else max(LEAST, min(MOST, math.ceil(SPENT_S / typical)))
    medians = [
        [statistics.median(one) for one in zip(*pass_)] for pass_ in zip(*[once() for _ in range(wanted)])
    ]
    return [
        {"forward_s": forward_s, "backward_s": backward_s, "repeats": wanted}
        for forward_s, backward_s in zip(*medians)
    ]


def _nbytes(block: Mapping[str, Any]) -> int:
    """About what a block holds while it is timed."""
    shapes = [*block["sources"], *block["weights"].values(), block["block"]]
    return 4 * 3 * sum(map(math.prod, shapes))


def _timed(block: Mapping[str, Any]) -> Timed:
    if block["kind"] == UPDATE:
        theta_p = torch.nn.Parameter(torch.randn(block["block"]))
        theta_p.grad = torch.randn(block["block"])
        return Timed(torch.optim.SGD([theta_p], lr=_LR, momentum=0.9).step, lambda _: None)
    if block["kind"] == HANDLING:
        chain, bare = _handling(block["block"][0])
        return Timed(chain, lambda _: bare())
    inputs = [torch.randn(shape) for shape in block["sources"] if math.prod(shape)]
    grad = None if block["kind"] == LOSS else torch.randn(block["block"])
    return Timed(*_layer(block, inputs, grad), inputs, () if grad is None else (grad,))


def _handling(count: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A chain of ``count`` layers of one value each as the executor runs it, and the same computed without it."""
    from implementations.cluster.ledger import Ledger
    from implementations.cluster.simulated import SimulatedCommunicator
    from implementations.layerwise.executor import Executor
    from implementations.layerwise.plan import Plan

    relu = {"function": "relu"}
    layers = [Layer("0", INPUT, (), (1,))]
    layers += [Layer(str(k), POINTWISE, (str(k - 1),), (1,), settings=relu) for k in range(1, count + 1)]
    graph = Graph("chain", [*layers, Layer("loss", LOSS, (str(count),), ())])
    plan = Plan(graph, {layer.name: (1,) * layer.rank for layer in graph}, 1, 1)
    nothing = [torch.zeros(1)]
    executor = Executor(plan, SimulatedCommunicator(1, Ledger()), nothing, nothing)
    x, label = [torch.ones(1, 1)], [torch.zeros(1, dtype=torch.int64)]
    forward, backward = _by_autograd(x, lambda xs: torch.relu(xs[0]), torch.ones(1, 1))
    return lambda: executor.gradients(x, label, 0), lambda: [backward(forward()) for _ in range(count)]


def _layer(block: Mapping[str, Any], inputs: list[torch.Tensor], grad: torch.Tensor | None) -> Pair:
    """The executor's steps for a layer of this kind."""
    layer = as_layer(block)
    weights = {
        name: torch.randn(shape) / math.prod(shape[1:]) ** 0.5 for name, shape in layer.weights.items()
    }
    pads = local_pads(layer, block["sources"][0], block["block"]) if layer.window is not None else ()
    if grad is None:
        labels = torch.randint(inputs[0].shape[1], (inputs[0].shape[0],))
        return _by_autograd(inputs, lambda xs: kernels.loss_sum(xs[0], labels), None)
    into = {name: torch.empty_like(weight) for name, weight in weights.items()}
    if layer.kind in kernels.BY_HAND:
        return _by_hand(layer, inputs, weights, pads, grad, into, block["input_gradient"])
    if layer.kind == NORM:
        return _norm(layer, inputs[0], weights, grad, into, block["shared"])
    if layer.kind == POINTWISE and layer.settings["function"] == "relu":  # nearly always over what it reads
        return lambda: torch.relu_(inputs[0]), lambda y: kernels.relu_gradient(grad, y)
    if layer.kind == ADD:
        return lambda: inputs[0].add_(inputs[1]), lambda _: None
    if layer.kind == POINTWISE and layer.settings["function"] == "dropout":
        return _by_autograd(inputs, lambda xs: _dropped(xs[0], layer.settings["p"], block["busy"]), grad)
    return _by_autograd(inputs, lambda xs: kernels.forward(layer, xs, weights, pads), grad)


def _by_hand(
    layer: Layer,
    inputs: list[torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    pads: Sequence[tuple[int, int]],
    grad: torch.Tensor,
    into: Mapping[str, torch.Tensor],
    input_gradient: bool,
) -> Pair:
    @torch.no_grad()
    def forward() -> None:
        kernels.forward(layer, inputs, weights, pads)

    def backward(_: None) -> None:
        compute = kernels.gradients if input_gradient else kernels.weight_gradients
        compute(layer, grad, inputs[0], weights, pads, into)

    return forward, backward


def _by_autograd(
    inputs: list[torch.Tensor],
    compute: Callable[[list[torch.Tensor]], torch.Tensor],
    grad: torch.Tensor | None,
) -> Pair:
    def forward() -> tuple[list[torch.Tensor], torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        with torch.enable_grad():
            return leaves, compute(leaves)

    return forward, lambda kept: torch.autograd.grad(kept[1], kept[0], grad)


def _norm(
    layer: Layer,
    x: torch.Tensor,
    weights: Mapping[str, torch.Tensor],
    grad: torch.Tensor,
    into: Mapping[str, torch.Tensor],
    shared: bool,
) -> Pair:
    eps, count = layer.settings["eps"], x.numel() // x.shape[1]
    if not shared:
        return (
            lambda: normalisation.forward_alone(x, weights, eps)[1],
            lambda saved: normalisation.backward_alone(saved, grad, weights, into),
        )

    def backward(saved: Any) -> None:
        found, sums = normalisation.back_sums(saved, grad, weights)
        normalisation.backward_shared(saved, found, sums, count, weights, into)

    def forward() -> Any:
        own = normalisation.statistics(x)
        mean_c = normalisation.mean_part(x, own[0], count)
        variance_c = normalisation.variance_part(x, own, mean_c, count)
        return normalisation.forward_shared(x, mean_c, variance_c, weights, eps)[1]

    return forward, backward


def _dropped(x: torch.Tensor, p: float, devices: int) -> torch.Tensor:
    """Dropout of a block, whose mask is drawn for the blocks of all devices."""
    mask = torch.rand(devices, *x.shape)[0] >= p
    return x * (mask.to(x.dtype) / (1 - p))


def as_layer(block: Mapping[str, Any]) -> Layer:
    """The layer of a block's description; its weights are those of the block."""
    window = block["window"]
    return Layer(
        name="block",
        kind=block["kind"],
        inputs=tuple(f"x{place}" for place in range(len(block["sources"]))),
        out=tuple(block["block"][1:]),
        weights={name: tuple(shape) for name, shape in block["weights"].items()},
        window=Window(**{name: tuple(sizes) for name, sizes in window.items()}) if window else None,
        whole_map=block["whole_map"],
        settings=block["settings"],
    )


def local_pads(layer: Layer, source: Sequence[int], block: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Padding of a block that reads ``source``, as at the upper left border if it needs any."""
    found = []
    for axis in range(2):
        reach = (block[2 + axis] - 1) * layer.window.stride[axis] + algebra.reach(layer, axis)
        total = max(0, reach - source[2 + axis])
        before = min(layer.window.padding[axis], total)
        found.append((before, total - before))
    return tuple(found)


def main(asked: Path, answer: Path) -> None:
    """Carry out an order; the first process writes the answer."""
    lifeline.hold_on()
    order = json.loads(asked.read_text())
    torch.set_num_threads(1)
    group = Together() if order["together"] else Alone()
    found = [row for part in order["parts"] for row in measure(part, group)]
    if group.rank == 0:
        answer.write_text(json.dumps({"rows": found, "torch": torch.__version__}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
