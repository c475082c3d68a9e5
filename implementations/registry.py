"""The methods of the suite: what each declares, and where it lives.

A method module declares itself with ``@method(...)`` on its training function. Nothing here imports torch, so that
config can be checked, and points counted, in a moment.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from implementations.holding import Holding
    from implementations.point import Point
    from implementations.training import Plan, Training

# One line per method; adding a method means adding its module here (docs/adding-a-method.md).
MODULES = {
    "sequential": "implementations.baselines.sequential",
    "data_parallel": "implementations.baselines.data_parallel",
    "averaging": "implementations.averaging.method",
    "ist": "implementations.ist.method",
    "layerwise": "implementations.layerwise.method",
    "spark": "implementations.spark.method",
}


@dataclass(frozen=True)
class Param:
    """A parameter of a method: its type, default, allowed values, unit and meaning."""

    type: type
    default: Any
    help: str
    unit: str = ""
    choices: tuple[Any, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None

    @property
    def allowed(self) -> str:
        """The allowed values in words, for error messages and tables."""
        if self.choices is not None:
            return " | ".join(map(str, self.choices))
        bound = "" if self.minimum is None else f" >= {self.minimum}"
        bound += "" if self.maximum is None else f" <= {self.maximum}"
        return f"{self.type.__name__}{bound}{f' ({self.unit})' if self.unit else ''}"

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` has the type and lies in the allowed range."""
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not self.type:
            return False
        if self.choices is not None:
            return value in self.choices
        if self.type is float and not math.isfinite(value):
            return False
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )


@dataclass(frozen=True)
class Progress:
    """What a method yields after each step: the loss is the mean over this process's workers (0-d tensor).

    ``synced`` says that all workers hold the same weights now, so that evaluating one of them evaluates the model.
    """

    step: int
    samples: int
    loss: Any
    synced: bool


@dataclass(frozen=True)
class Volume:
    """Traffic of a whole run by closed form. Bytes: ``payload`` of one worker, ``sent_total`` of all together."""

    payload_bytes: int
    sent_bytes_total: int
    paper_bytes: int | None = None


@dataclass(frozen=True)
class Method:
    """A registered method. ``exemptions`` maps a contract it must break, by name, to the reason.

    ``holding`` makes what a process holds of the network, where that is not a whole replica a worker, and
    ``worker_model`` describes what a worker trains then (the largest). Times of a method with its ``own_cost_model``
    are not predicted from traces. ``reads`` tells whose samples a process wants, given the workers that it hosts;
    ``runs_on`` what starts the workers of measured points: "mpi" or "spark".
    """

    name: str
    variants: tuple[str, ...]
    params: Mapping[str, Param]
    train: Callable[[Training], Iterator[Progress]]
    volume: Callable[[Plan], Volume]
    checks: Callable[[Point], list[str]]
    one_worker_only: bool = False
    exemptions: Mapping[str, str] = field(default_factory=dict)
    holding: Callable[..., Holding] | None = None
    worker_model: Callable[[Point], dict[str, Any]] = lambda point: point.model
    own_cost_model: bool = False
    reads: Callable[[Point, dict[str, Any], tuple[int, ...]], tuple[int, ...]] = (
        lambda point, settings, hosted: hosted
    )
    runs_on: str = "mpi"

    def worker_point(self, point: Point) -> Point:
        """The point with the model that a worker trains, whose steps are timed."""
        return dataclasses.replace(point, model=self.worker_model(point))

    def settings(self, point: Point) -> dict[str, Any]:
        """The point's method parameters with the defaults filled in."""
        return {name: point.method_params.get(name, param.default) for name, param in self.params.items()}

    def session(self, point: Point) -> str | None:
        """The kind of Spark cluster that a point needs a session on; None where no Spark starts its workers."""
        if point.evidence != "measured" or self.runs_on != "spark":
            return None
        return self.settings(point)["cluster"]

    def has_ranks(self, point: Point) -> bool:
        """Whether the point's workers are processes that a launcher of ranks starts."""
        return point.evidence == "measured" and self.session(point) is None

    def check(self, point: Point) -> list[str]:
        """Everything about the point that this method cannot run, as lines ``key: got X; allowed: Y``."""
        problems = []
        if point.variant not in self.variants:
            problems.append(f"variant: got {point.variant!r}; allowed: {' | '.join(self.variants)}")
        for name, value in point.method_params.items():
            if name not in self.params:
                allowed = ", ".join(self.params) or "none"
                problems.append(f"{name}: {self.name} has no such parameter; allowed: {allowed}")
            elif not self.params[name].accepts(value):
                problems.append(f"{name}: got {value!r}; allowed: {self.params[name].allowed}")
        if self.one_worker_only and point.workers != 1:
            problems.append(f"workers: got {point.workers}; allowed: 1 ({self.name} has one worker)")
        return problems if problems else self.checks(point)


METHODS: dict[str, Method] = {}


def method(
    name: str,
    *,
    volume: Callable[[Plan], Volume],
    params: Mapping[str, Param] | None = None,
    variants: tuple[str, ...] = ("default",),
    checks: Callable[[Point], list[str]] = lambda point: [],
    one_worker_only: bool = False,
    exemptions: Mapping[str, str] | None = None,
    holding: Callable[..., Holding] | None = None,
    worker_model: Callable[[Point], dict[str, Any]] = lambda point: point.model,
    own_cost_model: bool = False,
    reads: Callable[
        [Point, dict[str, Any], tuple[int, ...]], tuple[int, ...]
    ] = lambda point, settings, hosted: hosted,
    runs_on: str = "mpi",
) -> Callable[[Callable[[Training], Iterator[Progress]]], Callable[[Training], Iterator[Progress]]]:
    """Register the decorated training function as the method ``name``."""

    def register(train: Callable[[Training], Iterator[Progress]]) -> Callable[[Training], Iterator[Progress]]:
        METHODS[name] = Method(
            name,
            variants,
            dict(params or {}),
            train,
            volume,
            checks,
            one_worker_only,
            dict(exemptions or {}),
            holding,
            worker_model,
            own_cost_model,
            reads,
            runs_on,
        )
        return train

    return register


def load() -> dict[str, Method]:
    """Every registered method by name; imports the method modules (which need no torch)."""
    for module in MODULES.values():
        importlib.import_module(module)
    return METHODS


def get(name: str) -> Method:
    """The method called ``name``; KeyError when there is none."""
    importlib.import_module(MODULES[name])
    return METHODS[name]
