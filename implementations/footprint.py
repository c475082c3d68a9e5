"""What simulating a point's workers takes of this host's memory: from sizes, before it is there; and measured.

Simulated workers share a process, and their weights, gradients and activations lie there side by side. What the method
holds is built on torch's meta device, where tensors have sizes alone, and a step of two workers is gone through there;
all of it grows with the number of workers. Counted are tensors, not the libraries: Python and torch take some 300 MB of
their own, which are there before.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from implementations import holding, host, models, registry
from implementations.cluster.booked import BookedCommunicator
from implementations.cluster.ledger import Ledger
from implementations.data.dataset import DataSet
from implementations.data.shards import Order
from implementations.errors import OverMemory, UserError
from implementations.point import Point
from implementations.seeds import torch_stream
from implementations.training import DRIFT_BLOCK

GB = 10**9
# Activations of a step beyond these are not held at once: workers take turns, some at a time.
STEP_BYTES = 1 << 28
_EVALUATED = 2000  # samples at once
_STACK = 2  # workers whose step is gone through: one alone takes another product


class LiveBytes(TorchDispatchMode):
    """Within the block, the bytes of the tensors that are alive, of those made in it; and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Carry out an operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given:  # else a view, or written in place
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or not size:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    """Where the tensors among some values lie."""
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True)
class Footprint:
    """Bytes in one process, by what takes them. ``at_once``: workers that take a step together; None: all of them."""

    held: int  # weights and gradients of the workers, and what the method keeps beside
    optimizer: int
    step: int  # minibatches, activations, what goes through an exchange; or evaluating one model, if that is more
    samples: int  # training and validation samples, and the order of an epoch
    at_once: int | None = None

    @property
    def total(self) -> int:
        """All together."""
        return self.held + self.optimizer + self.step + self.samples


def predict(
    point: Point, settings: dict[str, Any], dataset: DataSet, order: Order, hosted: int
) -> Footprint | None:
    """What a process takes that hosts ``hosted`` of the point's workers.

    None where the method does not stack its workers (its holding says so), or its network cannot be gone through
    without memory.
    """
    method = registry.get(point.method)
    if method.own_cost_model:
        return None
    sizes = (dataset.features, dataset.classes)
    comm = BookedCommunicator(point.workers, Ledger(), hosted)
    try:
        with torch.device("meta"), LiveBytes() as live:
            held = holding.hold(point, settings, *sizes, comm)
        if not held.stacked:
            return None
        activations = _step_bytes(held.model, dataset, point.minibatch)
        evaluation = _evaluation_bytes(point.model, dataset) + held.assembled_bytes
    except Exception:  # a user's own network may do anything with what has no memory: then nothing is known
        return None
    each = held.net.params_per_worker * held.net.theta_wp.itemsize
    minibatch = hosted * point.minibatch * dataset.batch_bytes
    at_once = None
    if held.net.sliceable and activations * hosted > STEP_BYTES and point.optimizer != "ng_sgd":
        at_once = max(_STACK, STEP_BYTES // activations)
    working = activations * min(hosted, at_once or hosted)
    kept = hosted * order.per_worker if order.private else order.samples
    exchanged = hosted * each if held.exchanges else 0
    # RMSprop makes a copy of the weights on its way; how far workers are apart is found in double precision
    updating = hosted * each if point.optimizer == "rmsprop" else 0
    apart = 8 * min(hosted * held.net.params_per_worker, DRIFT_BLOCK) if "mixing" in settings else 0
    # a minibatch is taken while the one before is still there
    step = max(
        minibatch + max(working, minibatch, exchanged, updating, apart), evaluation, live.peak - live.now
    )
    return Footprint(
        held=live.now,
        optimizer=hosted * each * _slots(point),
        step=step,
        samples=(kept + dataset.sizes["valid"]) * dataset.sample_bytes
        # as many orders as workers, and all of them in one
        + 2 * hosted * order.steps_per_epoch * point.minibatch * 8,
        at_once=at_once,
    )


def require(found: Footprint, point: Point, processes: int, sizes: dict[str, int]) -> None:
    """Raise OverMemory where this host could never simulate the point, UserError where it cannot now."""
    needed = found.total * processes
    total, available = host.memory()
    fewer = f"take fewer workers than {point.workers}, a smaller network or a smaller minibatch"
    told = f"simulating {point.workers} workers takes {needed / GB:.3g} GB ({_parts(found, processes)})"
    if needed > total:
        raise OverMemory(f"{told}, this machine has {total / GB:.3g} GB; {fewer}", sizes)
    if needed > available:
        raise UserError(f"{told}, {available / GB:.3g} GB are free now; end other programs, or {fewer}")


class Peak:
    """How much the memory of this process has grown at most since this was made; for one at a time."""

    def __init__(self) -> None:
        gc.collect()  # what a point before left
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        self._before = psutil.Process().memory_info().rss
        self._kept = host.restart_peak()

    @property
    def grown_bytes(self) -> int | None:
        """Bytes; None where the system does not tell."""
        peak = host.peak_resident_bytes() if self._kept else None
        return None if peak is None else max(0, peak - self._before)


def _step_bytes(model: dict[str, Any], dataset: DataSet, minibatch: int) -> int:
    """Activations of one worker's step, with what goes on between them, at their most."""
    if _is_sparse(dataset):
        return _sparse_bytes(model, dataset, minibatch)
    with torch.device("meta"):
        net = models.build(model, dataset.features, dataset.classes, _STACK, torch_stream(0, "footprint"))
        x_wbi, y_wb = torch.empty(_STACK, minibatch, dataset.features), torch.empty(_STACK, minibatch).long()
        with LiveBytes() as live:
            net.loss_and_grad(x_wbi, y_wb)
    return live.peak // _STACK


def _evaluation_bytes(model: dict[str, Any], dataset: DataSet) -> int:
    """What evaluating one model takes at a time, its inputs included."""
    samples = min(_EVALUATED, max(dataset.sizes["valid"], dataset.sizes["test"]))
    inputs = samples * dataset.batch_bytes
    if _is_sparse(dataset):
        return inputs + _sparse_bytes(model, dataset, samples)
    with torch.device("meta"):
        net = models.build(model, dataset.features, dataset.classes, 1, torch_stream(0, "footprint"))
        x_wbi = torch.empty(1, samples, dataset.features)
        # statistics that evaluation takes are not there: a pass of training, which keeps more
        with torch.set_grad_enabled(net.needs_samples), LiveBytes() as live:
            net.logits(x_wbi)
    return inputs + live.peak


def _is_sparse(dataset: DataSet) -> bool:
    return dataset.summary["kind"] == "sparse"


def _sparse_bytes(model: dict[str, Any], dataset: DataSet, samples: int) -> int:
    """Of hidden layers and scores, for so many samples: values, what activations make of them, and gradients."""
    return 3 * 4 * samples * (sum(model.get("hidden", [])) + dataset.classes)


def _slots(point: Point) -> int:
    """Further copies of the weights that the optimiser, or undoing an epoch, keeps."""
    kept = bool(point.recipe.get("momentum")) + (point.optimizer == "rmsprop")
    return kept + bool(point.recipe.get("reject_worse"))


def _parts(found: Footprint, processes: int) -> str:
    names = [field.name for field in dataclasses.fields(found) if field.name != "at_once"]
    amounts: Iterator[tuple[str, float]] = ((name, getattr(found, name) * processes / GB) for name in names)
    return ", ".join(f"{name} {amount:.3g}" for name, amount in amounts)
