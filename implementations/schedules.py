"""Learning-rate schedules that look at an epoch's end only: Newbob and exponential decay, as pure state machines.

Ask ``rate`` for the epoch to come, report its held-out metric to ``observe``, stop when ``finished``.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

CRITERIA = ("accuracy", "loss")


class Schedule(Protocol):
    """What a training loop needs of a schedule."""

    @property
    def rate(self) -> float:
        """The learning rate of the epoch to come."""

    @property
    def finished(self) -> bool:
        """Whether training should stop."""

    def observe(self, metric: float) -> bool:
        """Report the held-out metric after an epoch; False asks for a return to the last accepted weights."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""


class _PlainState:
    """Saves and restores a dataclass of plain values."""

    def state_dict(self) -> dict[str, Any]:
        """All settings and the state."""
        return asdict(self)  # type: ignore[call-overload]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned; its settings too."""
        for field in fields(self):  # type: ignore[arg-type]
            setattr(self, field.name, state[field.name])


@dataclass
class Exponential(_PlainState):
    """``lr * final^((e-1)/(E-1))`` in epoch e of E: from ``lr`` down to ``final`` times it, constant in an epoch.

    Su and Chen 2015, section 3 (0.01 over 15 epochs).
    """

    lr: float
    epochs: int
    final: float = 0.01
    epoch: int = 0  # epochs observed

    @property
    def rate(self) -> float:
        """The learning rate of the epoch to come (of the last one, after the end)."""
        if self.epochs == 1:
            return self.lr
        return self.lr * self.final ** (min(self.epoch, self.epochs - 1) / (self.epochs - 1))

    @property
    def finished(self) -> bool:
        """Whether all epochs are done."""
        return self.epoch >= self.epochs

    def observe(self, metric: float) -> bool:
        """Count an epoch; the metric does not matter."""
        self.epoch += 1
        return True


@dataclass
class Newbob(_PlainState):
    """Halve the rate each epoch once an epoch gains little; stop once, while halving, one gains next to nothing.

    'accuracy' is the paper's criterion: the gain is the difference of held-out frame accuracies (fractions), halving
    begins below 0.005 and training stops below 0.001. 'loss' is that of the recipe's script: the gain is the fall of
    the held-out loss relative to what it was, customarily with 0.01 and 0.001 (``Newbob.of_loss``). With
    ``reject_worse`` an epoch that does not improve is undone, and the next is compared with the last accepted one.
    A metric that is not a number is no improvement.

    The first epoch is compared with ``best``, the metric before training; where that is None, it gains infinitely.
    """

    lr: float
    start_below: float = 0.005
    stop_below: float = 0.001
    factor: float = 0.5
    max_epochs: int = 20
    criterion: str = "accuracy"
    reject_worse: bool = False
    best: float | None = None  # of the last accepted epoch
    epoch: int = 0
    halving: bool = False
    stopped: bool = False

    def __post_init__(self) -> None:
        if self.criterion not in CRITERIA:
            raise ValueError(f"criterion: got {self.criterion!r}; allowed: {', '.join(CRITERIA)}")

    @classmethod
    def of_loss(cls, lr: float, **settings: Any) -> Newbob:
        """With the thresholds and the rejection of the recipe's script."""
        defaults = {"start_below": 0.01, "stop_below": 0.001, "criterion": "loss", "reject_worse": True}
        return cls(lr, **(defaults | settings))

    @property
    def rate(self) -> float:
        """The learning rate of the epoch to come."""
        return self.lr

    @property
    def finished(self) -> bool:
        """Whether it stopped or all epochs are used up."""
        return self.stopped or self.epoch >= self.max_epochs

    def observe(self, metric: float) -> bool:
        """Report the held-out metric after an epoch; False asks for a return to the last accepted weights."""
        self.epoch += 1
        gain = self._gain(metric)
        accepted = gain > 0 or not self.reject_worse
        if accepted:
            self.best = metric
        if self.halving and gain < self.stop_below:
            self.stopped = True
        self.halving = self.halving or gain < self.start_below
        if self.halving:
            self.lr *= self.factor
        return accepted

    def _gain(self, metric: float) -> float:
        if math.isnan(metric):
            return -math.inf
        if self.best is None or math.isnan(self.best):
            return math.inf
        if self.criterion == "accuracy":
            return metric - self.best
        return (self.best - metric) / self.best if self.best else -metric
