"""The full net's weights, the subnets cut out of them, and the way between the two.

Yuan et al. 2022, section 3, and the two servers of the authors' code: ``central`` (worker 0 stores all weights and
trains a subnet too) and ``partitioned`` (each worker stores its share of the units). Blocks are copied back in place;
only what several workers hold (never split, or in overlapping groups) is averaged.

Subnets that share a process are trained together, so they are built at the largest width there, and the smaller ones
filled up with units whose weights are zero and stay so.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from implementations import models
from implementations.cluster.communicator import Communicator
from implementations.cluster.exchange import Exchange, Pair
from implementations.holding import Holding
from implementations.ist import partition
from implementations.ist.partition import Layout, storage_label
from implementations.models.worker_model import WorkerModel
from implementations.point import Point
from implementations.seeds import torch_stream


def layout_of(net: WorkerModel) -> Layout:
    """What ``partition`` needs to know of a full net."""
    shapes = {name: tuple(weight.shape[1:]) for name, weight in net.weights.items()}
    return Layout(shapes, net.axes, net.units, net.min_units)


class Subnets(Holding):
    """One subnet for each hosted worker, and the weights that those workers store."""

    stacked = exchanges = True
    everywhere = False

    def __init__(
        self,
        point: Point,
        settings: dict[str, Any],
        features: int,
        classes: int,
        comm: Communicator,
        results: Path,
    ) -> None:
        self._point, self._comm, self._sizes_of_net = point, comm, (features, classes)
        first = 0 in comm.hosted
        # Only where worker 0 is does the whole net take memory; elsewhere its sizes are enough.
        with contextlib.nullcontext() if first else torch.device("meta"):
            full = models.build(point.model, features, classes, 1, torch_stream(point.seed, "init"))
            full.drop_gradients()
        self.layout, self.full_params = layout_of(full), full.params_per_worker
        self._options = {name: settings[name] for name in ("partition", "redraw", "overlap")}
        self._stores = partition.stored(full.units, comm.size, settings["server"])
        self._central = settings["server"] == "central"
        self._full = full if self._central and first else None
        self.assembled_bytes = 0 if self._central else full.params_per_worker * full.theta_wp.itemsize
        sizes = partition.sizes_by_label(
            full.units,
            comm.size,
            full.min_units,
            partition=settings["partition"],
            overlap=settings["overlap"],
        )
        shared = any(sum(of_label) > full.units[label] for label, of_label in sizes.items())
        #: tensors that more than one worker may hold an entry of
        self._averaged = {
            name
            for name, axes in full.axes.items()
            if comm.size > 1 and (shared or storage_label(axes) is None)
        }
        self._weights = self._initial_parts(full if first else None)
        self.server_bytes = max(self._stored_counts) * full.theta_wp.itemsize
        self.shares = {
            label: sum(of_label) / comm.size / full.units[label] for label, of_label in sizes.items()
        }
        largest = {
            label: max(of_label[worker] for worker in comm.hosted) for label, of_label in sizes.items()
        }
        model = models.narrow(point.model, largest)
        self.net = models.build(
            model, features, classes, len(comm.hosted), torch_stream(point.seed, "ist", "fill")
        )
        self.model = model
        self._place = {worker: place for place, worker in enumerate(comm.hosted)}
        self._round, self._draw = -1, partition.Draw(())
        self._counts: dict[
            Pair, int
        ] = {}  # values of the round's blocks, by (where they are stored, whose subnet)

    # The rounds

    def scatter(self, round: int) -> None:
        """Cut the subnets of a round out of the stored weights and hand them out."""
        self._take(round)
        exchange = self._exchange(self._counts)
        if not self._comm.moves:
            exchange.start({})
            return
        received = exchange.start(
            {pair: self._packed(self._place[pair[0]], pair[1]) for pair in exchange.sends}
        )()
        self.net.theta_wp.zero_()
        for (source, worker), values in received.items():
            self._unpack(self._place[worker], source, values)

    def gather(self, round: int) -> None:
        """Write the subnets of a round back to where their weights are stored."""
        self._take(round)
        exchange = self._exchange({(worker, source): n for (source, worker), n in self._counts.items()})
        if not self._comm.moves:
            exchange.start({})
            return
        received = exchange.start(
            {pair: self._subnet_part(self._place[pair[0]], pair[1]) for pair in exchange.sends}
        )()
        parts: dict[int, dict[int, torch.Tensor]] = {}
        for (worker, source), values in received.items():
            parts.setdefault(source, {})[worker] = values
        for source, of_workers in parts.items():
            self._write_back(self._place[source], of_workers)

    def _take(self, round: int) -> None:
        if round != self._round:
            layout = self.layout
            self._draw = partition.draw(
                layout.units,
                self._comm.size,
                self._point.seed,
                round,
                min_units=layout.min_units,
                **self._options,
            )
            blocks = partition.blocks_of(layout, self._draw.units, self._stores)
            pairs = zip(blocks.source.tolist(), blocks.worker.tolist())
            self._counts = dict(zip(pairs, blocks.values.tolist()))
            self._round = round

    def _exchange(self, counts: dict[Pair, int]) -> Exchange:
        """Messages of so many values, from worker to worker."""
        shapes = {pair: (count,) for pair, count in counts.items()}
        return Exchange(self._comm, shapes, torch.float32, self.net.theta_wp.device)

    # Blocks: what worker `source` stores of the subnet of worker `worker`, tensor after tensor

    def _blocks(self, source: int, worker: int) -> Iterator[tuple[str, list[Any], list[Any]]]:
        """Each tensor's name, with the indices of the block in the stored part and in the subnet, by axis.

        An index is None for a whole axis; in the subnet it is a slice. Empty blocks are left out.
        """
        group, store = self._draw.units[worker], self._stores[source]
        for name, axes in self.layout.axes.items():
            by = storage_label(axes)
            if by is None:
                if source == 0:
                    yield name, [None] * len(axes), [slice(None)] * len(axes)
                continue
            low, high = store[by]
            first, last = np.searchsorted(group[by], [low, high])
            if first == last:
                continue
            there: list[Any] = []
            here: list[Any] = []
            for label in axes:
                if label is None:
                    there.append(None)
                    here.append(slice(None))
                elif label == by:
                    there.append(torch.from_numpy(group[by][first:last] - low))
                    here.append(slice(int(first), int(last)))
                else:
                    there.append(torch.from_numpy(group[label]))
                    here.append(slice(0, len(group[label])))
            yield name, there, here

    def _stored(
        self, place: int, worker: int, flat: torch.Tensor
    ) -> Iterator[tuple[str, list[Any], torch.Tensor]]:
        """What a hosted worker stores of ``worker``'s subnet: name, indices there, and place in ``flat``."""
        weights, start = self._weights[place], 0
        for name, there, _ in self._blocks(self._comm.hosted[place], worker):
            lengths = zip(weights[name].shape, there)
            shape = [length if index is None else len(index) for length, index in lengths]
            piece = flat[start : start + math.prod(shape)].view(shape)
            yield name, there, piece
            start += piece.numel()

    def _in_subnet(
        self, place: int, source: int, flat: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What ``source`` stores of a hosted worker's subnet: the view of it, and its place in ``flat``."""
        start = 0
        for name, _, here in self._blocks(source, self._comm.hosted[place]):
            part = self.net.weights[name][place][tuple(here)]
            yield part, flat[start : start + part.numel()].view(part.shape)
            start += part.numel()

    def _packed(self, place: int, worker: int) -> torch.Tensor:
        """The stored weights of a hosted worker that ``worker``'s subnet gets, flat."""
        flat = self.net.theta_wp.new_empty(self._counts[self._comm.hosted[place], worker])
        for name, there, piece in self._stored(place, worker, flat):
            part = self._weights[place][name]
            *first, last = [(axis, index) for axis, index in enumerate(there) if index is not None] or [None]
            for axis, index in first:
                part = part.index_select(axis, index.to(part.device))
            if last is None:
                piece.copy_(part)
            else:
                torch.index_select(part, last[0], last[1].to(part.device), out=piece)
        return flat

    def _subnet_part(self, place: int, source: int) -> torch.Tensor:
        """The part of a hosted worker's subnet that ``source`` stores, flat."""
        flat = self.net.theta_wp.new_empty(self._counts[source, self._comm.hosted[place]])
        for part, piece in self._in_subnet(place, source, flat):
            piece.copy_(part)
        return flat

    def _unpack(self, place: int, source: int, values: torch.Tensor) -> None:
        """Put in place what a hosted worker's subnet got from ``source``."""
        for part, piece in self._in_subnet(place, source, values):
            part.copy_(piece)

    def _write_back(self, place: int, parts: dict[int, torch.Tensor]) -> None:
        """Put what a hosted worker gets back of all subnets in its place among the weights it stores."""
        weights = self._weights[place]
        sums: dict[str, torch.Tensor] = {}
        counts: dict[str, torch.Tensor] = {}
        for worker, values in sorted(parts.items()):
            for name, there, block in self._stored(place, worker, values):
                if name in self._averaged:
                    if name not in sums:
                        # in double precision, the mean of equal values is that value
                        sums[name] = torch.zeros_like(weights[name], dtype=torch.float64)
                        counts[name] = torch.zeros_like(sums[name])
                    block = block.double()
                    _put(sums[name], there, block, accumulate=True)
                    _put(counts[name], there, torch.ones_like(block), accumulate=True)
                else:
                    _put(weights[name], there, block, accumulate=False)
        for name, total in sums.items():
            mean = (total / counts[name].clamp(min=1)).float()
            weights[name].copy_(torch.where(counts[name] > 0, mean, weights[name]))

    # What is stored

    def _initial_parts(self, full: WorkerModel | None) -> list[dict[str, torch.Tensor]]:
        """What the hosted workers store, at first; ``full`` is there where worker 0 is."""
        if self._central:
            whole = {name: weight[0] for name, weight in full.weights.items()} if full else {}
            return [whole if worker == 0 else {} for worker in self._comm.hosted]
        parts = None
        if full:
            parts = [full.theta_wp.new_empty(count) for count in self._stored_counts]
            for worker, values in enumerate(parts):
                for name, place, piece in self._pieces(worker, values):
                    piece.copy_(self._part(full, name, place))
        flat = self._comm.control_distribute(parts, self._stored_counts)
        return [
            {name: piece for name, _, piece in self._pieces(worker, values)}
            for worker, values in zip(self._comm.hosted, flat)
        ]

    def _parts_of(self, worker: int) -> list[tuple[str, tuple[int, int, int] | None, tuple[int, ...]]]:
        """Each tensor that a worker stores something of: name, (axis, first, last) or None for all of it, and shape."""
        parts: list[tuple[str, tuple[int, int, int] | None, tuple[int, ...]]] = []
        for name, shape in self.layout.shapes.items():
            axes, by = self.layout.axes[name], storage_label(self.layout.axes[name])
            if by is None:
                if worker == 0:
                    parts.append((name, None, shape))
                continue
            low, high = self._stores[worker][by]
            at = axes.index(by)
            if high > low:
                parts.append((name, (at, low, high), (*shape[:at], high - low, *shape[at + 1 :])))
        return parts

    def _pieces(
        self, worker: int, values: torch.Tensor
    ) -> Iterator[tuple[str, tuple[int, int, int] | None, torch.Tensor]]:
        """What a worker stores, out of one flat tensor: names, places and shaped views, as of ``_parts_of``."""
        parts = self._parts_of(worker)
        for piece, (name, place, shape) in zip(values.split([math.prod(part[2]) for part in parts]), parts):
            yield name, place, piece.view(shape)

    @property
    def _stored_counts(self) -> list[int]:
        """How many values each worker stores."""
        workers = range(self._comm.size)
        return [sum(math.prod(shape) for _, _, shape in self._parts_of(worker)) for worker in workers]

    @staticmethod
    def _part(net: WorkerModel, name: str, place: tuple[int, int, int] | None) -> torch.Tensor:
        """A view of that part of a whole net."""
        if place is None:
            return net.weights[name][0]
        axis, low, high = place
        return net.weights[name][0].narrow(axis, low, high - low)

    @contextmanager
    def whole(self) -> Iterator[WorkerModel | None]:
        """The full net, where worker 0 is; put together for the occasion where it is stored in parts."""
        full = self._full if self._central else self._assembled()
        if full is not None and self._comm.size > 1:
            full.shares = self.shares
        yield full

    def _assembled(self) -> WorkerModel | None:
        """The full net out of its parts, on the process of worker 0."""
        flat = [torch.cat([part.reshape(-1) for part in parts.values()]) for parts in self._weights]
        collected = self._comm.control_collect(flat, self._stored_counts)
        if collected is None:
            return None
        features, classes = self._sizes_of_net
        with self.net.theta_wp.device:
            full = models.build(
                self._point.model, features, classes, 1, torch_stream(self._point.seed, "ist", "fill")
            )
        full.drop_gradients()
        for worker, values in enumerate(collected):
            for name, place, piece in self._pieces(worker, values):
                self._part(full, name, place).copy_(piece)
        return full

    def state(self) -> dict[str, Any]:
        """The stored weights of the hosted workers."""
        return {"weights": self._weights}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up stored weights."""
        for own, saved in zip(self._weights, state["weights"]):
            for name, part in own.items():
                part.copy_(saved[name])


def _put(
    target: torch.Tensor, index: list[torch.Tensor | None], block: torch.Tensor, accumulate: bool
) -> None:
    """``target[index] = block`` (or ``+=``), the indices of several axes being combined."""
    chosen = [(axis, one) for axis, one in enumerate(index) if one is not None]
    if not chosen:
        if accumulate:
            target += block
        else:
            target.copy_(block)
    elif len(chosen) == 1:
        ((axis, one),) = chosen
        one = one.to(target.device)
        if accumulate:
            target.index_add_(axis, one, block)
        else:
            target.index_copy_(axis, one, block)
    else:
        grid = np.ix_(
            *(one.numpy() if one is not None else np.arange(n) for one, n in zip(index, target.shape))
        )
        target.index_put_(
            tuple(torch.from_numpy(part).to(target.device) for part in grid), block, accumulate=accumulate
        )
