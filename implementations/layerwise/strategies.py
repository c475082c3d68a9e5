"""The strategies that the found one is compared with: one rule for all layers (section 6 of the paper). Pure.

In all of them each device has its own samples of the input; what another device needs of them has to be moved.
"""

from __future__ import annotations

from collections.abc import Mapping

from implementations.errors import UserError
from implementations.layerwise import algebra
from implementations.layerwise.graph import (
    ADD,
    CONCAT,
    FLATTEN,
    INPUT,
    LINEAR,
    LOSS,
    MULTIPLY,
    NORM,
    POINTWISE,
    Config,
    Graph,
)

SINGLE, DATA, MODEL, OWT, LAYERWISE = STRATEGIES = ("single", "data", "model", "owt", "layerwise")

# What hands on another layer's output, so that its split goes on as well.
_CARRIERS = (NORM, POINTWISE, FLATTEN, ADD, MULTIPLY, CONCAT)


def fixed(name: str, graph: Graph, batch: int, devices: int) -> dict[str, Config]:
    """The configuration of each layer for ``batch`` samples in all, under one of these rules.

    * ``single``: device 0 computes everything;
    * ``data``: samples split over all devices (over as many as there are samples, if these are fewer);
    * ``model``: channels split over all devices, or as many as the layer has channels (groups of a convolution stay
      whole), for layers without parameters as well. The loss has no channels and is computed on device 0;
    * ``owt``, "one weird trick" (Krizhevsky 2014): samples split up to the first linear layer and in the loss; linear
      layers, and what adds or joins their outputs, split by channels.

    Raises UserError for another name.
    """
    if name not in STRATEGIES or name == LAYERWISE:
        raise UserError(
            f"strategy {name}: there is no such fixed one; choose from {', '.join(STRATEGIES[:-1])}"
        )
    linear = _made_of_linear(graph)
    by_leader: dict[str, Config] = {}
    for layer in graph:
        if layer.kind == INPUT or name == DATA or (name == OWT and layer.name not in linear):
            by_leader[layer.name] = (min(batch, devices), *[1] * len(layer.out))
        elif name == SINGLE or layer.kind == LOSS:
            by_leader[layer.name] = (1,) * layer.rank
        else:
            by_leader[layer.name] = (1, min(devices, layer.splittable[0]), *[1] * (len(layer.out) - 1))
    strategy = complete(graph, by_leader)
    algebra.check(graph, strategy, batch, devices)
    return strategy


def complete(graph: Graph, by_leader: Mapping[str, Config]) -> dict[str, Config]:
    """A strategy for all layers from that of the leaders, which the others take; of ``Graph.leaders``.

    Raises UserError for a leader without a configuration.
    """
    leaders = graph.leaders()
    if missing := [name for name in leaders if leaders[name] == name and name not in by_leader]:
        raise UserError(f"layer {', '.join(missing)}: the strategy does not say how to split it")
    return {name: by_leader[leader] for name, leader in leaders.items()}


def _made_of_linear(graph: Graph) -> set[str]:
    """The linear layers, and those that hand on their outputs."""
    found: set[str] = set()
    for layer in graph:
        if layer.kind == LINEAR or (layer.kind in _CARRIERS and found.intersection(layer.inputs)):
            found.add(layer.name)
    return found
