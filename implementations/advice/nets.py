"""A network to be advised on: what each cost model needs to know of it."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import torch
from torch import nn

from implementations import models
from implementations.advice import targets
from implementations.errors import UserError
from implementations.layerwise import tracing
from implementations.layerwise.graph import Graph
from implementations.own import nets as own_nets
from implementations.seeds import torch_stream
from implementations.spark import costs as spark_costs

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Subject:
    """A network and the data that it is for.

    model: as a point has it. split_model: the suite's own network that it equals, whose units can be dealt out, or why
        there is none. graph: its layers, or why they cannot be told apart.
    """

    label: str
    model: dict[str, Any]
    shape: tuple[int, ...]
    classes: int
    samples: int
    params: int
    flops: int  # of a training sample
    kind: str
    split_model: dict[str, Any] | str
    graph: Graph | str
    traces: dict[Any, Any] = field(default_factory=dict)  # what was projected, for any machine

    @property
    def sizes(self) -> dict[str, Any]:
        """As a data set's card has them."""
        return {"train": self.samples, "input_shape": list(self.shape), "classes": self.classes}

    @property
    def features(self) -> int:
        """Values of a sample."""
        return math.prod(self.shape)

    @functools.cached_property
    def spark_net(self) -> spark_costs.Net:
        """For Spark's cost model, which cuts the layers of its own kinds; all others are one block."""
        described = self.split_model if isinstance(self.split_model, dict) else self.model
        if described["name"] in spark_costs.KINDS:
            return spark_costs.net(described, self.features, self.classes)
        return spark_costs.Net("any", (spark_costs.Layer(1, self.flops, self.params),), (), (), self.features)

    @property
    def cuts_layers(self) -> bool:
        """Whether Spark's model parallelism knows how to cut it."""
        return self.spark_net.kind in spark_costs.KINDS


def subject(
    name: str,
    shape: Sequence[int],
    classes: int,
    samples: int,
    arguments: Mapping[str, Any] | None = None,
    label: str | None = None,
) -> Subject:
    """The network of that name: ``MODULE:CLASS`` of the user's, or one of the suite's, as ``fc-512-512``.

    A suite's network may be a mapping in JSON. UserError for what cannot be found or does not take the samples.
    """
    shape = tuple(shape)
    if ":" in name and not name.startswith("{"):
        return _own(name, shape, classes, samples, arguments or {})
    model = _described(name)
    try:
        with torch.device("meta"):
            net = models.build(model, math.prod(shape), classes, 1, torch_stream(0, "init"))
            module = net.to_module()
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"--model {name}: {error}") from None
    splittable = bool(models.split_units(model))
    return Subject(
        label or name, model, shape, classes, samples, net.params_per_worker, net.flops_per_sample,
        targets.kind_of(model["name"]),
        model if splittable else f"model {model['name']} has no units that could be dealt out",
        _graph(module, getattr(net, "sample", (math.prod(shape),)), name),
    )  # fmt: skip


def _own(
    name: str, shape: tuple[int, ...], classes: int, samples: int, arguments: Mapping[str, Any]
) -> Subject:
    fitted = own_nets.fitted(name, arguments, shape, classes)
    try:
        split_model: dict[str, Any] | str = own_nets.model_for(fitted, "ist")
    except UserError as error:
        split_model = str(error).removeprefix("method ist: ")
    with torch.device("meta"):
        net = models.build(fitted.model, math.prod(shape), classes, 1, torch_stream(0, "init"))
    parts = list(fitted.module.modules())
    kind = targets.CONNECTED
    if any(isinstance(part, _CONVOLUTIONS) for part in parts):
        kind = targets.CONVOLUTIONAL
    elif any(isinstance(part, nn.RNNBase) for part in parts):
        kind = targets.RECURRENT
    graph = _graph(fitted.module, fitted.sample, name)
    return Subject(
        name,
        fitted.model,
        shape,
        classes,
        samples,
        net.params_per_worker,
        net.flops_per_sample,
        kind,
        split_model,
        graph,
    )


def _described(name: str) -> dict[str, Any]:
    from implementations.config.check import split_model

    try:
        model = json.loads(name) if name.startswith("{") else split_model(name)
    except ValueError:
        model = {"name": name}
    known = [one for one in models.BUILDERS if one != own_nets.NAME]
    if not isinstance(model, dict) or model.get("name") not in known:
        raise UserError(
            f"--model {name}: write MODULE:CLASS of yours, or one of {', '.join(known)} (as fc-512-512)"
        )
    builder = models.BUILDERS[model["name"]]
    if builder["inputs"] != "dense":
        raise UserError(f"--model {name}: takes sparse samples, whose steps take no known time")
    fault = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(builder["schema"]).iter_errors(model)
    )
    if fault is not None:
        raise UserError(f"--model {name}: {fault.message}; write sizes behind the name, as in fc-512-512")
    return models.without_defaults(model)


def _graph(module: nn.Module, sample: tuple[int, ...], name: str) -> Graph | str:
    try:
        return tracing.trace(module, sample, name).graph
    except UserError as error:
        return str(error)
