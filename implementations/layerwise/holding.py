"""What a process holds under a layer-wise strategy: its devices' parts of the parameters, and the executor of the plan.

Shapes: w worker hosted by this process, p parameter, b sample of a minibatch, i input feature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from implementations import models
from implementations.cluster.communicator import Communicator
from implementations.errors import OverMemory, UserError
from implementations.holding import Holding
from implementations.layerwise import planner, tracing
from implementations.layerwise.executor import Executor
from implementations.layerwise.graph import Config
from implementations.layerwise.plan import Plan, Slot
from implementations.layerwise.search import NoPlan
from implementations.models.module_net import ModuleNet, without_memory
from implementations.models.worker_model import WorkerModel
from implementations.point import Point
from implementations.seeds import torch_stream


class ShardedNet(WorkerModel):
    """The hosted devices' parts of a network, one behind the other in their rows of ``theta_wp``.

    Devices hold unequal numbers of parameters; rows are as long as the longest, and zero behind their own.
    """

    def __init__(
        self, plan: Plan, comm: Communicator, sample: tuple[int, ...], flops: int, seed: int
    ) -> None:
        """``flops``: operations that the whole network takes for a training sample."""
        super().__init__({"shard": (plan.most_params,)}, len(comm.hosted))
        self._plan, self._comm, self._sample, self._seed = plan, comm, sample, seed
        self._flops = round(flops * plan.busiest_share * plan.devices)
        self._executor: Executor | None = None

    @property
    def flops_per_sample(self) -> int:
        """Operations of the device that computes most, divided by the samples that a device draws."""
        return self._flops

    def logits(self, x_wbi: torch.Tensor) -> torch.Tensor:
        """NotImplementedError: no worker has the network; ``Sharded.whole`` has."""
        raise NotImplementedError("a worker of a layer-wise strategy has no whole network")

    def to_module(self, worker: int = 0) -> torch.nn.Module:
        """NotImplementedError, as ``logits``."""
        raise NotImplementedError("a worker of a layer-wise strategy has no whole network")

    def loss_and_grad(self, x_wbi: torch.Tensor, y_wb: torch.Tensor, step: int = 0) -> torch.Tensor:
        """Gradients of the mean loss over all workers' samples, of the parameters held here; communicates.

        Returns what, averaged over all workers of the run, is the mean loss (0-d). ``step`` draws the dropout.
        """
        if self._executor is None:
            self._executor = Executor(self._plan, self._comm, self.theta_wp, self.grad_wp, self._seed)
        inputs = [x_bi.view(len(x_bi), *self._sample) for x_bi in x_wbi]
        loss = self._executor.gradients(inputs, list(y_wb), step)
        return loss * self._comm.size / self.workers


class Sharded(Holding):
    """A network split layer by layer over the workers; put together on worker 0's process to be evaluated."""

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
        full = models.build(point.model, features, classes, 1, torch_stream(point.seed, "init"))
        module = full.to_module()
        self._sample = getattr(full, "sample", (features,))
        traced = tracing.trace(module, self._sample, point.model["name"])
        strategy = _agreed(
            comm,
            lambda: planner.strategy(
                point.variant,
                settings,
                traced.graph,
                point.global_batch,
                comm.size,
                point.memory_limit_bytes,
                results,
            ),
            {"model_params": full.params_per_worker},
        )
        self.layout = Plan(traced.graph, strategy, point.global_batch, comm.size)
        self.net = ShardedNet(self.layout, comm, self._sample, full.flops_per_sample, point.seed)
        self.model, self.full_params = point.model, full.params_per_worker
        self._comm, self._names = comm, traced.parameters
        parameters = dict(module.named_parameters())
        for row, device in enumerate(comm.hosted):
            scatter(self.layout.slots[device], self._names, parameters, self.net.theta_wp[row])
        self._skeleton = without_memory(module)

    @property
    def tag(self) -> str:
        """The strategy: weights that were saved under another one are other weights."""
        return self.layout.hash

    def state_bytes(self, point: Point) -> int:
        """Of the fullest device, as the search counts: ``Plan.state_bytes``, activations among them."""
        return max(self.layout.state_bytes())

    @contextmanager
    def whole(self) -> Iterator[WorkerModel | None]:
        """The network on the process of worker 0, each part from the first device that holds it."""
        owned = [self._owned(device) for device in range(self._comm.size)]
        sizes = [sum(slot.size for slot in slots) for slots in owned]
        mine = [_joined(theta_p, owned[r]) for theta_p, r in zip(self.net.theta_wp, self._comm.hosted)]
        parts = self._comm.control_collect(mine, sizes)
        if parts is None:
            yield None
            return
        with self.net.theta_wp.device:
            net = ModuleNet(self._skeleton, self._sample, 1)
        net.drop_gradients()
        target = {name: weight[0] for name, weight in net.weights.items()}
        for slots, part in zip(owned, parts):
            gather(slots, self._names, part, target)
        yield net

    def _owned(self, device: int) -> list[Slot]:
        """Those parts on a device that no device before it has."""
        owners = self.layout.owners
        return [slot for slot in self.layout.slots[device] if device in owners[slot.layer]]

    def warm_up(self, x_wbi: torch.Tensor, y_wb: torch.Tensor) -> None:
        """A pass whose communication is not booked."""
        with self._comm.ledger.muted():
            self.net.loss_and_grad(x_wbi, y_wb)


def _agreed(
    comm: Communicator, find: Callable[[], dict[str, Config]], sizes: dict[str, int]
) -> dict[str, Config]:
    """The strategy that the process of worker 0 finds, on all processes: two searches might end differently.

    Raises its UserError, or OverMemory where no plan keeps the limit, on all of them.
    """
    told: dict[str, Any] = {}
    if 0 in comm.hosted:
        try:
            told["strategy"] = find()
        except NoPlan as error:
            told["over_memory"] = str(error)
        except UserError as error:
            told["error"] = str(error)
    with torch.device("cpu"):  # also where sizes alone are wanted
        text = json.dumps(told).encode()
        length = int(comm.control_max(np.array([len(text)]))[0])
        padded = torch.zeros(length, dtype=torch.uint8)
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        told = json.loads(bytes(comm.control_bcast(padded).tolist()).rstrip(b"\0"))
    if "over_memory" in told:
        raise OverMemory(told["over_memory"], sizes)
    if "error" in told:
        raise UserError(told["error"])
    return {name: tuple(config) for name, config in told["strategy"].items()}


def scatter(
    slots: Sequence[Slot],
    names: Mapping[str, Mapping[str, str]],
    parameters: Mapping[str, torch.Tensor],
    flat_p: torch.Tensor,
) -> None:
    """Copy a device's parts of the whole ``parameters`` into its flat weights."""
    for slot in slots:
        source = parameters[names[slot.layer][slot.weight]].detach()
        flat_p[slot.start : slot.start + slot.size].view(slot.shape).copy_(source[slice(*slot.channels)])


def gather(
    slots: Sequence[Slot],
    names: Mapping[str, Mapping[str, str]],
    packed_p: torch.Tensor,
    parameters: Mapping[str, torch.Tensor],
) -> None:
    """The reverse: copy parts that lie one behind the other in ``packed_p`` into the whole ``parameters``."""
    start = 0
    for slot in slots:
        target = parameters[names[slot.layer][slot.weight]]
        target[slice(*slot.channels)] = packed_p[start : start + slot.size].view(slot.shape)
        start += slot.size


def _joined(theta_p: torch.Tensor, slots: Sequence[Slot]) -> torch.Tensor:
    """The parts of ``slots`` one behind the other."""
    parts = [theta_p[slot.start : slot.start + slot.size] for slot in slots]
    return torch.cat(parts) if parts else theta_p[:0]
