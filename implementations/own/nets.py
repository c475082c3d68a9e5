"""A user's network for a method and a data set: a point's ``model``, or one line that says why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from implementations import models
from implementations.errors import UserError
from implementations.layerwise import tracing
from implementations.models import user
from implementations.own import chain

ANY = (
    "sequential, data_parallel, averaging, spark with variant data or async"  # train whatever has a gradient
)
NAME = "user"


@dataclass(frozen=True)
class Fitted:
    """A network that takes the samples of a data set; ``sample``: the sizes that it takes them in."""

    path: str
    arguments: Mapping[str, Any]
    sample: tuple[int, ...]
    module: nn.Module

    @property
    def model(self) -> dict[str, Any]:
        """As a point has it."""
        described = {"name": NAME, "path": self.path, "input": list(self.sample)}
        return described | ({"args": dict(self.arguments)} if self.arguments else {})


def fitted(path: str, arguments: Mapping[str, Any], shape: Sequence[int], classes: int) -> Fitted:
    """The network, tried out on samples of ``shape``, flat ones, or ones with a channel in front, in this order.

    UserError of the first of these where it takes none.
    """
    shape = tuple(shape)
    problems = []
    for sample in dict.fromkeys([shape, (prod(shape),), *([(1, *shape)] if len(shape) == 2 else [])]):
        try:
            return Fitted(path, arguments, sample, user.made_for(path, arguments, sample, classes, seed=0))
        except UserError as error:
            problems.append(error)
    raise problems[0]


def splits_units(method: str, variant: str | None) -> bool:
    """Whether the method cuts layers by their units, which the suite's own networks alone tell it."""
    return method == "ist" or (method == "spark" and variant in ("model", "hybrid", None))


def model_for(net: Fitted, method: str, variant: str | None = None) -> dict[str, Any]:
    """The point's model for a method: the network as it is, or the suite's own network that it equals.

    UserError in one line where the method cannot take it, with those that can.
    """
    if method == "layerwise":
        try:
            tracing.trace(net.module, net.sample, net.path)
        except UserError as error:
            raise UserError(f"method layerwise: {error}; methods that take any network: {ANY}") from None
    if not splits_units(method, variant):
        return net.model
    with_variant = f"{method} with variant {variant or 'model'}" if method == "spark" else method
    try:
        return models.without_defaults(chain.described(tracing.trace(net.module, net.sample, net.path).graph))
    except (UserError, chain.NoChain) as error:
        raise UserError(
            f"method {with_variant}: splits hidden units, and cannot tell those of {net.path} ({error}); it takes "
            f"{chain.TAKEN}; methods that take any network: {ANY}"
        ) from None
