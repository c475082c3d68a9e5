"""Bytes that a step moves: those that are really sent, those that the paper counts, and readings of its Figure 8.

The paper does not define what it counts. From the bars of its Figure 8, whose unit "GB" behaves as 2**30 bytes:

* data parallelism: each device sends all gradients to a parameter server and gets all parameters, 8 bytes for each
  parameter and device, the server's own device included;
* model parallelism: each layer's output once, however many devices read it, and forward only;
* one weird trick: the above for convolutions, and the inputs of linear layers gathered by all devices, forward and
  backward, with or without the part that a device has anyway;
* one device: the batch of images, which the other bars do not have.

``paper_bytes`` counts one way for all strategies: parameters as in the first, and activations where they move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from implementations.layerwise import algebra
from implementations.layerwise.graph import CONV, LINEAR, LOSS, POOL, Graph, Strategy
from implementations.layerwise.plan import Plan

ITEMSIZE = 4
GIB = 2**30


def network_bytes(graph: Graph, strategy: Strategy, batch: int, devices: int) -> int:
    """Bytes that all devices together send in a step of the executor; ``Plan.sent_bytes`` has each one's."""
    return sum(Plan(graph, strategy, batch, devices).sent_bytes(ITEMSIZE))


@dataclass(frozen=True)
class PaperBytes:
    """Bytes of a step in the paper's way: of parameters, of activations and their gradients, of the batch of images."""

    parameters: int
    activations: int
    images: int

    @property
    def total(self) -> int:
        """What a bar shows: the images where nothing else moves, as with one device."""
        return self.parameters + self.activations or self.images


def paper_bytes(graph: Graph, strategy: Strategy, batch: int) -> PaperBytes:
    """What a step of a strategy moves, as the paper counts.

    A parameter whose channel r > 1 devices have costs each of them a gradient sent and a value got, 8 r bytes
    (``parameters``). An element that a device reads and another has moves forward and its gradient backward, or only
    forward if it is of the input (``activations``).
    """
    return paper_bytes_of(Plan(graph, strategy, batch, max(map(math.prod, strategy.values()))))


def paper_bytes_of(plan: Plan) -> PaperBytes:
    """The same of a plan."""
    parameters = activations = 0
    for stage in plan.stages:
        replicas = len(stage.groups[0])
        if replicas > 1:
            parameters += 2 * ITEMSIZE * stage.layer.params * replicas
        for edge in stage.edges:
            moved = sum(map(algebra.volume, edge.far().values()))
            activations += (1 + edge.gradient) * ITEMSIZE * moved
    images = ITEMSIZE * plan.batch * plan.stages[0].layer.elements
    return PaperBytes(parameters, activations, images)


# Readings of Figure 8: bytes by a few numbers of a network. B is the batch of all devices.


def figure8_data(params: int, devices: int) -> int:
    """Data parallelism: ``8 P N``."""
    return 2 * ITEMSIZE * params * devices


def figure8_model(activations: int, batch: int) -> int:
    """Model parallelism: ``4 B A``, A values of all layers' outputs for one sample. Linear in N as the batch is."""
    return ITEMSIZE * batch * activations


def figure8_owt(conv_params: int, with_own: int, without_own: int, devices: int, batch: int) -> int:
    """One weird trick: ``8 P_conv N``, and inputs of linear layers gathered by all devices, both ways.

    ``with_own`` values of a sample are counted for all N devices that read them, ``without_own`` for the N - 1 that do
    not have them. The bars fit, for AlexNet, the first linear layer's 12,544 with the own part and no other layer; for
    VGG-16 its 25,088 without, and the two others' 8,192 with it.
    """
    gathered = with_own * devices + without_own * (devices - 1)
    return figure8_data(conv_params, devices) + 2 * ITEMSIZE * batch * gathered


def figure8_layerwise(conv_params: int, features: int, readers: int, devices: int, batch: int) -> int:
    """Layer-wise: convolutions data parallel, ``features`` values read by ``readers`` devices at any N (AlexNet: 2)."""
    return figure8_data(conv_params, devices) + 2 * ITEMSIZE * batch * features * readers


def activations_of(graph: Graph) -> int:
    """Values of a sample in the outputs of the layers that the paper counts: those with parameters and poolings."""
    return sum(layer.elements for layer in graph if layer.kind in (CONV, POOL, LINEAR))


def conv_params(graph: Graph) -> int:
    """Parameters of all layers but the linear ones."""
    return sum(layer.params for layer in graph if layer.kind not in (LINEAR, LOSS))
