"""Runs a plan: forward, backward and the sums of gradients, each device on its own blocks, over a communicator.

The workers of the communicator are the plan's devices; those that this process hosts are computed here, one after the
other, and what they read of others comes by messages. The order of all calls is the same on every process.

What overlaps: a block is sent to all who read it as soon as it is there, and waited for where it is read (branches of
a net go on meanwhile); backward, the gradient of what was read is on its way while the gradients of the parameters are
computed, and the sums of these run in the background until the pass is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from implementations.cluster.communicator import Communicator, Handle
from implementations.cluster.exchange import Exchange, Received
from implementations.layerwise import algebra, kernels, normalisation
from implementations.layerwise.algebra import Box
from implementations.layerwise.graph import ADD, FLATTEN, NORM, POINTWISE, Layer
from implementations.layerwise.plan import Edge, Plan, Stage
from implementations.seeds import torch_stream

Wait = Callable[[], Received]


class Transfer:
    """An edge of the plan between the devices hosted here and all others: blocks to readers, and gradients back."""

    def __init__(
        self,
        edge: Edge,
        owned: Sequence[Box],
        comm: Communicator,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.edge = edge
        self._owned, self._hosted = owned, comm.hosted
        self._here = frozenset(comm.hosted)
        self._kind = {"dtype": dtype, "device": device}
        far = edge.far()
        there = {pair: algebra.shape(box) for pair, box in far.items()}
        self._forward = Exchange(comm, there, dtype, device) if far else None
        self._boxes = {(move.source, move.target): move.box for move in edge.moves}
        self._parts: dict[int, dict[int, Box]] = {}  # what a device reads, by whose it is
        for move in edge.moves:
            self._parts.setdefault(move.target, {})[move.source] = move.box
        self._backward = None
        if far and edge.gradient:
            back = {(target, source): sizes for (source, target), sizes in there.items()}
            self._backward = Exchange(comm, back, dtype, device)

    def send(self, blocks: Mapping[int, torch.Tensor]) -> Callable[[], dict[int, torch.Tensor]]:
        """Send what hosted devices own; the function returned gives what they read, by device."""
        wait = None
        if self._forward is not None:
            wait = self._forward.start(
                {
                    (source, target): blocks[source][
                        algebra.relative(self._boxes[source, target], self._owned[source])
                    ].contiguous()
                    for source, target in self._forward.sends
                }
            )

        def finish() -> dict[int, torch.Tensor]:
            received = wait() if wait is not None else {}
            read = self.edge.read
            return {
                device: self._assembled(device, read[device], received, blocks)
                for device in self._hosted
                if device < len(read)
            }

        return finish

    def _assembled(
        self, device: int, box: Box, received: Received, blocks: Mapping[int, torch.Tensor]
    ) -> torch.Tensor:
        pieces = {
            source: blocks[device][algebra.relative(part, self._owned[device])]
            if source == device
            else received[source, device]
            for source, part in self._parts.get(device, {}).items()
        }
        if len(pieces) == 1:
            return next(iter(pieces.values()))
        whole = torch.empty(algebra.shape(box), **self._kind)
        for source, piece in pieces.items():
            whole[algebra.relative(self._boxes[source, device], box)] = piece
        return whole

    def send_back(self, grads: Mapping[int, torch.Tensor]) -> Callable[[Grads], None]:
        """Send the gradients of what hosted devices read; the function returned adds them up where blocks are."""
        read = self.edge.read
        wait = None
        if self._backward is not None:
            wait = self._backward.start(
                {
                    (target, source): grads[target][
                        algebra.relative(self._boxes[source, target], read[target])
                    ].contiguous()
                    for target, source in self._backward.sends
                }
            )

        def finish(totals: Grads) -> None:
            received = wait() if wait is not None else {}
            for (source, target), box in self._boxes.items():
                if source in self._here:
                    piece = (
                        grads[target][algebra.relative(box, read[target])]
                        if target == source
                        else received[target, source]
                    )
                    totals.add(source, box, piece)

        return finish


class Grads:
    """Gradients of the hosted blocks of one layer, added up from what their readers send."""

    def __init__(self, owned: Sequence[Box], dtype: torch.dtype, device: torch.device) -> None:
        self._owned, self._kind = owned, {"dtype": dtype, "device": device}
        self._parts: dict[int, list[tuple[Box, torch.Tensor]]] = {}

    def add(self, device: int, box: Box, piece: torch.Tensor) -> None:
        """One reader's part; kept as it is as long as it is the only one and covers the block."""
        self._parts.setdefault(device, []).append((box, piece))

    def total(self, device: int) -> torch.Tensor:
        """The gradient of a device's block."""
        owned, parts = self._owned[device], self._parts.get(device, [])
        if len(parts) == 1 and parts[0][0] == owned:
            return parts[0][1]
        if parts and all(box == owned for box, _ in parts):
            whole = parts[0][1] + parts[1][1]
            for _, piece in parts[2:]:
                whole += piece
            return whole
        whole = torch.zeros(algebra.shape(owned), **self._kind)
        for box, piece in parts:
            whole[algebra.relative(box, owned)] += piece
        return whole


class Executor:
    """Runs ``plan`` on the workers of ``comm``; parameters and gradients are flat buffers of the hosted devices."""

    def __init__(
        self,
        plan: Plan,
        comm: Communicator,
        theta: Sequence[torch.Tensor],
        grad: Sequence[torch.Tensor],
        seed: int = 0,
    ) -> None:
        """``theta`` and ``grad``: of each hosted device, (parameters,) or longer; ``seed``: of dropout."""
        self.plan, self._comm, self._seed = plan, comm, seed
        self._hosted, self._dtype, self._device = comm.hosted, theta[0].dtype, theta[0].device
        self._weights = [self._views(*one) for one in zip(comm.hosted, theta)]
        self._gradients = [self._views(*one) for one in zip(comm.hosted, grad)]
        self._flat_grad = grad
        owned = {stage.layer.name: stage.blocks for stage in plan.stages}
        self._transfers = {
            (edge.reader, edge.place): Transfer(edge, owned[edge.source], comm, self._dtype, self._device)
            for stage in plan.stages
            for edge in stage.edges
        }
        samples = [block[:1] for block in plan.stages[0].blocks]
        self._label_transfer = Transfer(plan.labels, samples, comm, torch.int64, self._device)
        self._readers = {
            name: [self._transfers[reader] for reader in readers]
            for name, readers in plan.graph.readers.items()
        }
        self._overwritable = {
            (edge.reader, edge.place)
            for stage in plan.stages
            for edge in stage.edges
            if plan.graph[edge.source].kind in kernels.FORGETFUL
            and len(plan.graph.readers[edge.source]) == 1
            and edge.read == owned[edge.source]
        }
        self._groups = {stage.layer.name: self._split(stage) for stage in plan.stages}
        self._slices = [self._layer_slices(device) for device in comm.hosted]

    def _views(self, device: int, flat: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
        views: dict[str, dict[str, torch.Tensor]] = {}
        for slot in self.plan.slots[device]:
            part = flat[slot.start : slot.start + slot.size].view(slot.shape)
            views.setdefault(slot.layer, {})[slot.weight] = part
        return views

    def _layer_slices(self, device: int) -> dict[str, slice]:
        """Where a layer's parameters lie in the device's flat buffer, one behind the other."""
        found: dict[str, slice] = {}
        for slot in self.plan.slots[device]:
            start = found[slot.layer].start if slot.layer in found else slot.start
            found[slot.layer] = slice(start, slot.start + slot.size)
        return found

    def _split(self, stage: Stage) -> dict[int, Communicator]:
        """Communicators of the groups that share a layer's channels and have members here; of two and more."""
        if all(len(group) < 2 for group in stage.groups) or not (
            stage.layer.weights or stage.layer.kind == NORM
        ):
            return {}
        colors = [-1] * self.plan.devices
        for part, group in enumerate(stage.groups):
            for device in group:
                colors[device] = part
        return self._comm.split(colors)

    def overwritable(self, stage: Stage, place: int) -> bool:
        """Whether a layer may write over its ``place``-th input: on each device the very block, read by it alone."""
        return (stage.layer.name, place) in self._overwritable

    # A pass

    def gradients(
        self, inputs: Sequence[torch.Tensor], labels: Sequence[torch.Tensor], step: int
    ) -> torch.Tensor:
        """Fill the gradient buffers with those of the mean loss over the whole batch.

        Args:
            inputs: the samples of each hosted device, (samples, ...), as many as its block of the input layer has.
            labels: of these samples, int64 (samples,).
            step: names the masks of dropout, which do not depend on the strategy.

        Returns the sum over hosted devices of their parts of the mean loss (0-d).
        """
        run = _Pass(self, step)
        loss = run.forward(inputs, labels)
        run.backward()
        return loss

    @torch.no_grad()
    def scores(self, inputs: Sequence[torch.Tensor], step: int = 0) -> dict[int, torch.Tensor]:
        """What the loss reads on each hosted device, after a forward pass as in training."""
        return _Pass(self, step).scores(inputs)


class _Pass:
    """One forward and backward pass."""

    def __init__(self, executor: Executor, step: int) -> None:
        self._of, self._step = executor, step
        self._plan, self._hosted = executor.plan, executor._hosted
        self._row = {device: row for row, device in enumerate(self._hosted)}
        self._sent: dict[tuple[str, int], Callable[[], dict[int, torch.Tensor]]] = {}
        self._back: dict[str, list[Callable[[Grads], None]]] = {}
        self._kept: dict[str, dict[int, tuple]] = {}  # what a layer's backward needs, by device
        self._handles: list[Handle] = []

    def _here(self, stage: Stage) -> list[int]:
        return [device for device in self._hosted if device < stage.devices]

    def _publish(self, stage: Stage, blocks: dict[int, torch.Tensor]) -> None:
        for transfer in self._of._readers[stage.layer.name]:
            edge = transfer.edge
            self._sent[edge.reader, edge.place] = transfer.send(blocks)

    def _inputs(self, stage: Stage) -> dict[int, list[torch.Tensor]]:
        """What each hosted device reads, input by input."""
        reads = [self._sent.pop((edge.reader, edge.place))() for edge in stage.edges]
        return {device: [read[device] for read in reads] for device in self._here(stage)}

    def scores(self, inputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Forward up to what the loss reads."""
        first, *stages, last = self._plan.stages
        blocks = {
            device: x.view(algebra.shape(first.blocks[device]))
            for device, x in zip(self._here(first), inputs)
        }
        self._publish(first, blocks)
        for stage in stages:
            read = self._inputs(stage)
            self._publish(stage, self._forward(stage, read))
        return {device: read[0] for device, read in self._inputs(last).items()}

    def forward(self, inputs: Sequence[torch.Tensor], labels: Sequence[torch.Tensor]) -> torch.Tensor:
        """Forward; the loss of the hosted devices' samples."""
        first, last = self._plan.stages[0], self._plan.stages[-1]
        labels_read = self._of._label_transfer.send(dict(zip(self._here(first), labels)))
        scores, labels_of = self.scores(inputs), labels_read()
        total = torch.zeros((), dtype=self._of._dtype, device=self._of._device)
        kept = self._kept[last.layer.name] = {}
        for device, x in scores.items():
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                part = kernels.loss_sum(x, labels_of[device]) / self._plan.batch
            kept[device] = ([x], part)
            total += part.detach()
        return total

    def _forward(self, stage: Stage, read: dict[int, list[torch.Tensor]]) -> dict[int, torch.Tensor]:
        layer = stage.layer
        kept = self._kept[layer.name] = {}
        if layer.kind == NORM:
            return self._normalise(stage, read)
        outputs = {}
        for device, inputs in read.items():
            if layer.kind in kernels.BY_HAND:
                weights = self._parameters(stage, device)
                pads = stage.pads[device] if stage.pads else ()
                outputs[device] = kernels.forward(layer, inputs, weights, pads)
                kept[device] = (inputs, pads)
            elif _is_relu(layer):
                over = self._of.overwritable(stage, 0)
                outputs[device] = kept[device] = torch.relu_(inputs[0]) if over else torch.relu(inputs[0])
            elif layer.kind == ADD:
                outputs[device], kept[device] = self._added(stage, inputs), None
            else:
                outputs[device] = self._by_autograd(stage, device, inputs)
        return outputs

    def _added(self, stage: Stage, inputs: list[torch.Tensor]) -> torch.Tensor:
        """The sum, in the memory of an input that nobody else needs."""
        places = range(len(inputs))
        first = next((place for place in places if self._of.overwritable(stage, place)), None)
        rest = [inputs[place] for place in places if place != (first or 0)]
        total = inputs[first].add_(rest[0]) if first is not None else inputs[0] + rest[0]
        for other in rest[1:]:
            total += other
        return total

    def _by_autograd(self, stage: Stage, device: int, inputs: list[torch.Tensor]) -> torch.Tensor:
        layer = stage.layer
        inputs = [x.detach().requires_grad_() for x in inputs]
        with torch.enable_grad():
            if layer.kind == POINTWISE and layer.settings["function"] == "dropout":
                y = inputs[0] * self._mask(stage, device)
            else:
                y = kernels.forward(layer, inputs, {}, stage.pads[device] if stage.pads else ())
            if layer.kind == FLATTEN:
                y = y[:, slice(*stage.features[device])]
        self._kept[layer.name][device] = (inputs, y)
        return y.detach()

    def _mask(self, stage: Stage, device: int) -> torch.Tensor:
        """A block of the layer's dropout mask, which is drawn for the whole output and so fits any strategy."""
        drop, plan = stage.layer.settings["p"], self._plan
        stream = torch_stream(self._of._seed, "dropout", stage.layer.name, self._step)
        full = torch.rand(algebra.sizes(stage.layer, plan.batch), generator=stream, device="cpu")
        block = tuple(slice(low, high) for low, high in stage.blocks[device])
        return (full[block] >= drop).to(self._of._device, self._of._dtype) / (1 - drop)

    # Normalisation: statistics over all devices that have a channel's values

    def _normalise(self, stage: Stage, read: dict[int, list[torch.Tensor]]) -> dict[int, torch.Tensor]:
        eps, outputs = stage.layer.settings["eps"], {}
        kept = self._kept[stage.layer.name]
        weights = {device: self._parameters(stage, device) for device in read}
        if not self._of._groups[stage.layer.name]:
            for device, (x,) in read.items():
                outputs[device], kept[device] = normalisation.forward_alone(x, weights[device], eps)
            return outputs
        count = self._count(stage)
        own = {device: normalisation.statistics(x) for device, (x,) in read.items()}
        means = {device: normalisation.mean_part(x, own[device][0], count) for device, (x,) in read.items()}
        self._sum_in_groups(stage, means)
        variances = {
            device: normalisation.variance_part(x, own[device], means[device], count)
            for device, (x,) in read.items()
        }
        self._sum_in_groups(stage, variances)
        for device, (x,) in read.items():
            outputs[device], kept[device] = normalisation.forward_shared(
                x, means[device], variances[device], weights[device], eps
            )
        return outputs

    def _normalise_back(self, stage: Stage, grads: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        kept = self._kept.pop(stage.layer.name)
        into = {device: self._gradients(stage, device) for device in grads}
        if not self._of._groups[stage.layer.name]:
            return {
                device: normalisation.backward_alone(
                    kept[device], grad, self._parameters(stage, device), into[device]
                )
                for device, grad in grads.items()
            }
        found, sums = {}, {}
        for device, grad in grads.items():
            weights = self._parameters(stage, device)
            found[device], sums[device] = normalisation.back_sums(kept[device], grad, weights)
        self._sum_in_groups(stage, sums)
        return {
            device: normalisation.backward_shared(
                kept[device],
                part,
                sums[device],
                self._count(stage),
                self._parameters(stage, device),
                into[device],
            )
            for device, part in found.items()
        }

    def _parameters(self, stage: Stage, device: int) -> Mapping[str, torch.Tensor]:
        return self._of._weights[self._row[device]].get(stage.layer.name, {})

    def _gradients(self, stage: Stage, device: int) -> Mapping[str, torch.Tensor]:
        return self._of._gradients[self._row[device]].get(stage.layer.name, {})

    def _count(self, stage: Stage) -> int:
        """Values of a channel over all devices."""
        return algebra.volume(algebra.whole(stage.layer, self._plan.batch)) // stage.layer.out[0]

    def _sum_in_groups(self, stage: Stage, values: dict[int, torch.Tensor]) -> None:
        """Replace each device's tensor by the sum over its group."""
        for group in self._of._groups[stage.layer.name].values():
            group.allreduce_([values[self._hosted[row]] for row in group.rows], "sum")

    # Backward

    def backward(self) -> None:
        """Gradients of all parameters, summed over the devices that share them."""
        last, *stages = self._plan.stages[:0:-1]
        back = {
            device: torch.autograd.grad(part, xs)[0]
            for device, (xs, part) in self._kept.pop(last.layer.name).items()
        }
        self._return(last, [back])
        for stage in stages:
            totals = Grads(stage.blocks, self._of._dtype, self._of._device)
            for add in self._back.pop(stage.layer.name, []):
                add(totals)
            self._backward(stage, totals)
        for handle in self._handles:
            handle.wait()

    def _return(self, stage: Stage, grads: list[dict[int, torch.Tensor]]) -> None:
        """Send the gradients of what was read, input by input."""
        for edge, grad in zip(stage.edges, grads, strict=True):
            if edge.gradient:
                sent = self._of._transfers[edge.reader, edge.place].send_back(grad)
                self._back.setdefault(edge.source, []).append(sent)

    def _backward(self, stage: Stage, totals: Grads) -> None:
        grads = {device: totals.total(device) for device in self._here(stage)}
        if stage.layer.kind == NORM:
            self._return(stage, [self._normalise_back(stage, grads)])
        elif stage.layer.kind in kernels.BY_HAND:
            self._backward_by_hand(stage, grads)
        elif _is_relu(stage.layer):
            outputs = self._kept.pop(stage.layer.name)
            self._return(
                stage, [{device: kernels.relu_gradient(grads[device], y) for device, y in outputs.items()}]
            )
        elif stage.layer.kind == ADD:
            self._kept.pop(stage.layer.name)
            self._return(stage, [grads] * len(stage.edges))
        else:
            found = {
                device: torch.autograd.grad(y, xs, grads[device], materialize_grads=True)
                for device, (xs, y) in self._kept.pop(stage.layer.name).items()
            }
            places = range(len(stage.edges))
            self._return(stage, [{device: of[place] for device, of in found.items()} for place in places])

    def _backward_by_hand(self, stage: Stage, grads: dict[int, torch.Tensor]) -> None:
        layer, kept = stage.layer, self._kept.pop(stage.layer.name)
        (edge,) = stage.edges
        together = edge.gradient and not edge.far()  # nothing to send: the kernel of both is faster
        if edge.gradient and not together:
            back = {
                device: kernels.input_gradient(
                    layer, grads[device], xs[0], self._parameters(stage, device), pads
                )
                for device, (xs, pads) in kept.items()
            }
            self._return(stage, [back])
        compute = kernels.gradients if together else kernels.weight_gradients
        found = {
            device: compute(
                layer,
                grads[device],
                xs[0],
                self._parameters(stage, device),
                pads,
                self._gradients(stage, device),
            )
            for device, (xs, pads) in kept.items()
        }
        if together:
            self._return(stage, [found])
        for group in self._of._groups[layer.name].values():
            parts = [self._of._flat_grad[row][self._of._slices[row][layer.name]] for row in group.rows]
            self._handles.append(group.iallreduce_(parts, "sum"))


def _is_relu(layer: Layer) -> bool:
    return layer.kind == POINTWISE and layer.settings["function"] == "relu"
