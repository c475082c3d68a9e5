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
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from implementations import lifeline
from implementations.layerwise import algebra, kernels, normalisation
from implementations.layerwise.graph import ADD, INPUT, LOSS, NORM, POINTWISE, Graph, Layer, Window

SPENT_S, LEAST, MOST = 0.2, 3, 30  # repetitions: until so long was spent, but at least and at most so many
LONG_S, FEW = 1.0, 2  # of blocks that take longer, only so many
WARM, MOVES = 3, 16  # passes that are not counted, and layers, of a chain between which values are moved
ROUND_BYTES = 256e6  # of blocks that are timed in turns
# Not layers: the optimiser's step; what the executor does around a layer, and around an exchange between two.
UPDATE, HANDLING, MOVING = "update", "handling", "moving"
NO_LAYERS = frozenset({UPDATE, HANDLING, MOVING})
if TYPE_CHECKING:
    from implementations.cluster.communicator import Communicator

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

    def communicator(self) -> Communicator:
        """The processes as the devices of an executor."""
        from implementations.cluster.ledger import Ledger
        from implementations.cluster.mpi import MpiCommunicator

        return MpiCommunicator(Ledger(), self._world)


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
    written before each pass. A round has as many blocks as ``ROUND_BYTES`` hold; what is no layer has one of its own,
    as it would leave nothing of the layers in the caches.
    """
    parts: list[list[Mapping[str, Any]]] = []
    for block in blocks:
        alone = NO_LAYERS & {block["kind"], parts[-1][-1]["kind"]} if parts else True
        if alone or sum(map(_nbytes, [*parts[-1], block])) > ROUND_BYTES:
            parts.append([])
        parts[-1].append(block)
    found: list[dict[str, Any]] = []
    for part in parts:
        if part[0]["kind"] == MOVING:
            found.append(_moving(part[0]["block"][0], group))
        else:
            found += _rounds([_timed(one) for one in part], group)
    return found


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
    inputs = [_values(shape) for shape in block["sources"] if math.prod(shape)]
    grad = None if block["kind"] == LOSS else torch.randn(block["block"])
    return Timed(*_layer(block, inputs, grad), inputs, () if grad is None else (grad,))


def _values(shape: Sequence[int]) -> torch.Tensor:
    """What a layer may read: pixels of a map are like their neighbours, channels have levels, and none is negative.

    Of values without any order the processor guesses more comparisons wrong, and a maximum takes half as long again.
    """
    values = torch.randn(tuple(shape))
    if len(shape) == 4:
        values = F.avg_pool2d(values, 3, 1, 1).mul_(3) + torch.linspace(-1, 1, shape[1])[:, None, None]
    return values.relu_()


def _handling(count: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A chain of ``count`` layers of one value each as the executor runs it, and the same computed without it."""
    from implementations.cluster.ledger import Ledger
    from implementations.cluster.simulated import SimulatedCommunicator

    chain = _chain(count, 1, SimulatedCommunicator(1, Ledger()), cut=False)
    x = [torch.ones(1, 1)]
    forward, backward = _by_autograd(x, lambda xs: torch.relu(xs[0]), torch.ones(1, 1))
    return chain, lambda: [backward(forward()) for _ in range(count)]


def _moving(values: int, group: Together) -> dict[str, Any]:
    """What an exchange between two layers takes beyond its messages, of one value for each pair and of ``values``.

    Of a chain whose layers are cut by samples and by channels in turn against one that is cut by samples throughout,
    and of the same messages sent in a row: blocks are cut out, and put together again.
    """
    count, comm = MOVES, group.communicator()

    def median_s(run: Callable[[], Any]) -> float:
        times = []
        for _ in range(WARM + MOST):
            group.barrier()
            began = perf_counter()
            run()
            times += group.slowest([perf_counter() - began])
        return statistics.median(times[WARM:])

    def beyond_s(of_pair: int) -> float:
        cut, whole = (_chain(count, of_pair, comm, cut) for cut in (True, False))
        peers = [rank for rank in range(group.size) if rank != group.rank]
        blocks = [(rank, comm.message(torch.zeros(of_pair))) for rank in peers]
        places = [(rank, comm.message(torch.zeros(of_pair))) for rank in peers]
        sent_s = median_s(lambda: [comm.links.iexchange(blocks, places)() for _ in range(count)]) / count
        # forward between all layers, back but to the input
        return max(0.0, (median_s(cut) - median_s(whole)) / (2 * count - 1) - sent_s)

    return {"forward_s": beyond_s(1), "backward_s": beyond_s(values), "repeats": MOST}


def _chain(count: int, of_pair: int, comm: Communicator, cut: bool) -> Callable[[], Any]:
    """A pass through ``count`` rectifiers over as many devices as ``comm`` has workers, a sample for each of them.

    ``cut``: every other layer by its channels, so that each device sends ``of_pair`` values to every other; else all
    layers are cut by their samples, and nothing is sent.
    """
    from implementations.layerwise.executor import Executor
    from implementations.layerwise.plan import Plan

    devices = comm.size
    width = devices * of_pair
    layers = [Layer("0", INPUT, (), (width,))]
    layers += [
        Layer(str(k), POINTWISE, (str(k - 1),), (width,), settings={"function": "relu"})
        for k in range(1, count + 1)
    ]
    graph = Graph("chain", [*layers, Layer("loss", LOSS, (str(count),), ())])
    strategy = {layer.name: (devices, *[1] * (layer.rank - 1)) for layer in graph}
    if cut:
        strategy |= {str(k): (1, devices) for k in range(1, count + 1, 2)}
    nothing = [torch.zeros(1) for _ in comm.hosted]
    executor = Executor(Plan(graph, strategy, devices, devices), comm, nothing, nothing)
    x = [torch.ones(1, width) for _ in comm.hosted]
    label = [torch.zeros(1, dtype=torch.int64) for _ in comm.hosted]
    return lambda: executor.gradients(x, label, 0)


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
