"""What Spark's tasks do: a phase of a worker's step, a worker's state after a step, gradients of part of a minibatch.

A worker's state is a frame (``frames``) of its weights (``theta``) and the optimiser's slots (``slot/NAME``): the one
element of an RDD. ``hand_over`` and ``advance`` are functions of that element and of what the worker received, and of
nothing else: what is found in ``scratch`` only saves doing it again. So Spark can repeat any task anywhere.

Shapes: p parameter of a worker's block (or of the whole network), b sample, i input feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from implementations.errors import UserError
from implementations.seeds import derive
from implementations.spark import station
from implementations.spark.frames import pack, unpack
from implementations.spark.program import PAIRS, Exchange, Handed, State
from implementations.spark.scratch import Held, Scratch
from implementations.spark.spans import Span, Spans
from implementations.spark.spmd import combined
from implementations.spark.station import Station
from implementations.training import make_optimizer


@dataclass
class Report:
    """What a task tells beside what it hands over. ``problem``: a mistake that only the user can mend, in words."""

    loss: float | None = None
    spans: list[Span] = field(default_factory=list)
    problem: str | None = None


@dataclass
class Sums:
    """Sums over samples, or over workers' rows: ``values`` (p,) float32, ``rows`` and ``losses`` by step."""

    values: np.ndarray
    rows: np.ndarray
    losses: np.ndarray
    reports: list[Report]


def add(one: Sums, other: Sums) -> Sums:
    """Both together; ``one`` is used up."""
    if other.values.size and one.values.size:
        one.values += other.values
    elif other.values.size:
        one.values = other.values
    return Sums(one.values, one.rows + other.rows, one.losses + other.losses, one.reports + other.reports)


@dataclass(frozen=True)
class Step:
    """A step of one worker. ``received``: Spark broadcasts of what each phase begins with; None for nothing.

    Step ``index`` (from 0) of ``epoch`` (from 1) is number ``step`` of the run.
    """

    worker: int
    step: int
    epoch: int
    index: int
    lr: float
    received: tuple[Any, ...]

    def carry_on(self, here: Station, frame: bytearray, held: Held, last: int, spans: Spans) -> Handed:
        """Go on from ``held`` through phase ``last`` and return what that hands over."""
        state, handed = unpack(frame), None
        while held.done <= last:
            handed = self._phase(here, state, held, spans)
            held.done += 1
        return handed

    def _phase(self, here: Station, state: Mapping[str, torch.Tensor], held: Held, spans: Spans) -> Handed:
        phase, program, place = here.phases[held.done], here.program, self.worker % here.members
        before = here.phases[held.done - 1].exchange if held.done else None
        with spans("receive"):
            frame = None if before is None else self.received[held.done].value
        with spans("serialise"):
            got = None if before is None else of_frame(before, frame)
        handed = None
        if phase.segments:
            with spans("data"):
                first = self.worker - place
                x_bi, y_b = here.minibatches.take(range(first, first + here.members), self.epoch, self.index)
            with spans("compute"):
                loss = None if held.loss is None else torch.tensor(held.loss)
                weights, grads = program.views(place, state["theta"][0]), {}
                for name, block in program.blocks(place).items():
                    grads[name] = held.grads[name] if name in held.grads else torch.empty(block.own_shape)
                now = State(weights, grads, x_bi, y_b, held.saved, loss)
                for segment in phase.segments:
                    handed = program.run(segment, place, now, got)
                    exchange = program.exchanges[segment]
                    # one worker's exchange with itself
                    got = combined(exchange, [handed])[0] if exchange and program.workers == 1 else None
                # a gradient's version tells whether it was written to
                held.grads = {
                    name: grad for name, grad in grads.items() if name in held.grads or grad._version
                }
                held.loss = None if now.loss is None else float(now.loss)
        if phase.exchange is not None and not phase.across:
            return handed
        with spans("compute"):
            if phase.segments:
                size = phase.exchange.shape[0] if phase.across else state["theta"].shape[1]
                got = torch.zeros(size)
                for name, view in program.views(place, got).items():
                    if name in held.grads:
                        view.copy_(held.grads[name])
                held.grads = {}
            if phase.across:
                return got
            after = updated(here, state, got[: state["theta"].shape[1]], self.lr)
        with spans("serialise"):
            held.after = pack(after)
        return None


def updated(
    here: Station, state: Mapping[str, torch.Tensor], grad_p: torch.Tensor, lr: float
) -> dict[str, torch.Tensor]:
    """A worker's state after the optimiser's step; weights and slots are changed where they are."""
    holder = SimpleNamespace(theta_wp=state["theta"], grad_wp=grad_p.view(1, -1))
    optimizer = optimizer_of(here, holder, state, lr)
    optimizer.step()
    return {"theta": state["theta"], **slots_of(optimizer, state["theta"])}


def optimizer_of(
    here: Station, net: Any, state: Mapping[str, torch.Tensor], lr: float
) -> torch.optim.Optimizer:
    """The point's optimiser of ``net`` with the slots of a state."""
    optimizer = make_optimizer(net, here.point.optimizer, lr, here.options)
    slots = {name.removeprefix("slot/"): slot for name, slot in state.items() if name.startswith("slot/")}
    if slots:
        optimizer.state[net.theta_wp] = slots
    return optimizer


def slots_of(optimizer: torch.optim.Optimizer, theta_wp: torch.Tensor) -> dict[str, torch.Tensor]:
    """An optimiser's slots by their names in a state."""
    slots = optimizer.state.get(theta_wp, {})
    return {f"slot/{name}": slot for name, slot in slots.items() if torch.is_tensor(slot)}


@dataclass(frozen=True)
class LocalSteps:
    """Steps that a worker makes alone on its part of the minibatches, from weights that all begin with.

    Steps ``first`` to ``last`` (from 0, both included) of ``epoch``; the last is number ``step`` of the run.
    ``received``: one broadcast, of the weights.
    """

    worker: int
    parts: int
    step: int
    epoch: int
    first: int
    last: int
    lr: float
    received: tuple[Any]

    def carry_on(self, here: Station, frame: bytearray, held: Held, last: int, spans: Spans) -> Sums:
        """Make the steps; returns the weights times the rows seen."""
        net, point = here.net, here.point
        with spans("receive"):
            sent = self.received[0].value
        with spans("serialise"):
            net.theta_wp.copy_(unpack(sent)["theta"])
        optimizer = optimizer_of(here, net, unpack(frame), self.lr)
        rows, losses = (np.zeros(self.last + 1 - self.first, dtype) for dtype in (np.int64, np.float64))
        torch.manual_seed(derive(point.seed, "local steps", self.step, self.worker))
        for place, index in enumerate(range(self.first, self.last + 1)):
            with spans("data"):
                x_bi, y_b = here.minibatches.part(self.worker, self.parts, self.epoch, index)
            if not len(y_b):
                continue
            with spans("compute"):
                rows[place] = len(y_b)
                losses[place] = float(net.loss_and_grad(x_bi.unsqueeze(0), y_b.unsqueeze(0))) * len(y_b)
                optimizer.step()
        with spans("serialise"):
            held.after = pack(slots_of(optimizer, net.theta_wp))
        held.done = 1
        weighted_p = (net.theta_wp[0] * float(rows.sum())).numpy()
        return Sums(weighted_p, rows, losses, [])


Work = Step | LocalSteps


# What Spark calls: functions of a partition's elements


def hand_over(spec: Any, work: Work, phase: int, frames: Iterator[bytearray]) -> Iterator[Any]:
    """A worker's phase: its report and the frame that it hands over (None for nothing); of local steps, sums."""
    spans = Spans()
    with spans("serialise"):
        frame = _only(frames)
    here = station.at(spec.value)
    with spans("serialise"):
        scratch = Scratch(here.spec.token, work.worker)
        held = scratch.load(work.step)
    if held.done > phase:  # asked again for what was handed over and not kept
        held = Held()
    try:
        handed = work.carry_on(here, frame, held, phase, spans)
    except UserError as error:
        yield _refused(work, Report(problem=str(error)))
        return
    with spans("serialise"):
        scratch.save(work.step, held)
        sent = None if handed is None or isinstance(handed, Sums) else frame_of(handed)
    report = Report(held.loss, spans)
    if isinstance(handed, Sums):
        handed.reports.append(report)
        yield handed
    else:
        yield report, sent


def _refused(work: Work, report: Report) -> Any:
    if isinstance(work, LocalSteps):
        steps = work.last + 1 - work.first
        return Sums(np.empty(0, np.float32), np.zeros(steps, np.int64), np.zeros(steps), [report])
    return report, None


def advance(spec: Any, work: Work, frames: Iterator[bytearray]) -> Iterator[bytearray]:
    """A worker's state after its step, given the state before; the step is made again where it has left nothing."""
    frame = _only(frames)
    here = station.at(spec.value)
    held = Scratch(here.spec.token, work.worker).load(work.step)
    if held.after is None:
        held = Held()
        last = len(here.phases) - 1 if isinstance(work, Step) else 0
        work.carry_on(here, frame, held, last, Spans())
    yield held.after


def begin(frame: Any, nothing: Iterator[Any]) -> Iterator[bytearray]:
    """A worker's first state, out of a broadcast."""
    for _ in nothing:
        pass
    yield frame.value


def gradient(
    spec: Any, theta: Any, parts: int, step: tuple[int, int, int], part: int, nothing: Iterator[Any]
) -> Iterator[Sums]:
    """Gradients summed over the samples of part ``part``; nothing where it has none.

    ``step``: its number, its epoch and its place there (from 0). ``theta``: a broadcast of the weights.
    """
    for _ in nothing:
        pass
    spans, here = Spans(), station.at(spec.value)
    number, epoch, index = step
    try:
        with spans("data"):
            x_bi, y_b = here.minibatches.part(part, parts, epoch, index)
    except UserError as error:
        yield Sums(np.empty(0, np.float32), np.zeros(1, np.int64), np.zeros(1), [Report(problem=str(error))])
        return
    rows, net = len(y_b), here.net
    if not rows:
        return
    with spans("receive"):
        sent = theta.value
    with spans("serialise"):
        net.theta_wp.copy_(unpack(sent)["theta"])
    with spans("compute"):
        torch.manual_seed(derive(here.point.seed, "gradient", number, part))
        loss = float(net.loss_and_grad(x_bi.unsqueeze(0), y_b.unsqueeze(0)))
        values_p = net.grad_wp[0].mul(rows).numpy()
    yield Sums(values_p, np.array([rows]), np.array([loss * rows]), [Report(spans=spans)])


def prepare(spec: Any, whole: bool, worker: int, nothing: Iterator[Any]) -> Iterator[Report]:
    """Load what the worker's tasks will want, off the clock; ``whole``: they train the whole network."""
    for _ in nothing:
        pass
    here = station.at(spec.value)
    torch.optim.SGD([torch.zeros(1)])  # the first of a process has torch load a good deal
    _ = here.net if whole else here.phases
    first = worker - worker % here.members
    try:
        here.minibatches.take(range(first, first + here.members), 1, 0)
    except UserError as error:
        yield Report(problem=str(error))
        return
    yield Report()


def drain(frames: Iterator[Any]) -> Iterator[int]:
    """Have a partition computed, and say how many elements it has."""
    yield sum(1 for _ in frames)


def _only(frames: Iterator[bytearray]) -> bytearray:
    """A partition's one element; all that it has is read, or the process could not be used again."""
    (frame,) = frames
    return frame


# What is handed over and received, as frames


def frame_of(handed: Handed) -> bytearray:
    """What a segment hands over, or the driver gives back."""
    if isinstance(handed, dict):
        return pack({str(other): tensor for other, tensor in handed.items()})
    return pack({"": handed})


def of_frame(exchange: Exchange, frame: bytearray) -> Any:
    """The same again: a tensor, or for pairs a dict by the other worker's number."""
    tensors = unpack(frame)
    if exchange.kind == PAIRS:
        return {int(other): tensor for other, tensor in tensors.items()}
    return tensors[""]
