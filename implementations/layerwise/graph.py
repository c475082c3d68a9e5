"""A network as a graph of layers: what each computes, how large its output and its parameters are. Imports no torch.

Sizes are those of one sample; the sample is dimension 0 of every tensor and has no size here. A layer's *dimensions*
are those of its output: (sample, channel, height, width) for images, (sample, channel) for vectors, (sample,) for the
loss. A *configuration* is one degree for each of them, their product the number of devices that share the layer
(section 4 of the paper); a *strategy* has one for each layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Config = tuple[int, ...]
Strategy = Mapping[str, Config]

DIMENSIONS = ("sample", "channel", "height", "width")
LETTERS = "nchw"

# What a layer may be. Those of POINTWISE give each element of the output from the same one of the input.
INPUT, CONV, POOL, LINEAR, NORM, POINTWISE, FLATTEN, ADD, MULTIPLY, CONCAT, LOSS = KINDS = (
    "input", "conv", "pool", "linear", "norm", "pointwise", "flatten", "add", "multiply", "concat", "loss",
)  # fmt: skip


@dataclass(frozen=True)
class Window:
    """What a convolution or a pooling looks at, (height, width) each."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        name: unique in the graph; of the module or function that it comes from.
        kind: one of ``KINDS``.
        inputs: names of the layers whose outputs it reads, in order; none for the input.
        out: sizes of a sample's output: (channels, height, width), (features,), or () for the loss.
        weights: trainable parameters by their own name ("weight", "bias"), in order; the first axis of each is the
            output channel, along which they are split.
        window: of a convolution or pooling.
        groups: of a convolution.
        whole_map: the output needs the input's whole height and width, and these cannot be split.
        flops: forward operations for one sample (multiply and add: two).
        settings: what else the computation needs (``function`` of a pointwise layer, ``mode`` of a pooling, ...).
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    out: tuple[int, ...]
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    window: Window | None = None
    groups: int = 1
    whole_map: bool = False
    flops: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> int:
        """Trainable parameters."""
        return sum(math.prod(shape) for shape in self.weights.values())

    @property
    def elements(self) -> int:
        """Values of a sample's output."""
        return math.prod(self.out)

    @property
    def rank(self) -> int:
        """Dimensions of the output, the sample among them."""
        return 1 + len(self.out)

    @property
    def channel_step(self) -> int:
        """The channel is split between multiples of this: a group of a convolution stays whole.

        So it does in the layers that take a convolution's configuration (``Graph``).
        """
        return self.out[0] // self.groups if self.groups > 1 else self.settings.get("channel_step", 1)

    @property
    def splittable(self) -> tuple[int, ...]:
        """How many parts each dimension but the sample can have at most."""
        if not self.out:
            return ()
        limits = [self.out[0] // self.channel_step, *self.out[1:]]
        return (limits[0], *([1] * len(limits[1:]) if self.whole_map else limits[1:]))


class Graph:
    """Layers in an order in which each comes after those it reads. The first is the input, the last the loss."""

    def __init__(self, name: str, layers: list[Layer]) -> None:
        """Raises ValueError for names that are unknown, given twice, or read before they are there."""
        self.name = name
        self.layers: dict[str, Layer] = {}
        for layer in layers:
            for read in layer.inputs:
                if read not in self.layers:
                    raise ValueError(f"layer {layer.name} reads {read}, which does not come before it")
            if layer.name in self.layers:
                raise ValueError(f"two layers are called {layer.name}")
            self.layers[layer.name] = layer
        for layer in layers:
            if layer.kind in (NORM, POINTWISE) and (step := self.layers[layer.inputs[0]].channel_step) > 1:
                settings = {**layer.settings, "channel_step": step}
                self.layers[layer.name] = dataclasses.replace(layer, settings=settings)
        self.readers: dict[str, list[tuple[str, int]]] = {name: [] for name in self.layers}
        for layer in layers:
            for place, read in enumerate(layer.inputs):
                self.readers[read].append((layer.name, place))

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers.values())

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, name: str) -> Layer:
        return self.layers[name]

    @property
    def params(self) -> int:
        """Trainable parameters of the network."""
        return sum(layer.params for layer in self)

    @property
    def flops(self) -> int:
        """Forward operations for one sample."""
        return sum(layer.flops for layer in self)

    @property
    def counted(self) -> int:
        """Layers as the paper counts them: convolutions, poolings and linear layers."""
        return sum(layer.kind in (CONV, POOL, LINEAR) for layer in self)

    def inputs(self, layer: Layer) -> list[Layer]:
        """The layers whose outputs ``layer`` reads."""
        return [self.layers[name] for name in layer.inputs]

    def leaders(self) -> dict[str, str]:
        """For each layer the one whose configuration it takes: its own, or that of what a pointwise layer reads.

        Normalisation, activations and dropout stay where their input is; the paper counts them with the layer before.
        """
        found: dict[str, str] = {}
        for layer in self:
            found[layer.name] = found[layer.inputs[0]] if layer.kind in (NORM, POINTWISE) else layer.name
        return found

    def edges(self) -> list[tuple[str, str, int]]:
        """(producer, reader, place among the reader's inputs), in order of the readers."""
        return [(name, layer.name, place) for layer in self for place, name in enumerate(layer.inputs)]


def degrees_text(config: Config) -> str:
    """A configuration in words: ``n=4 c=2``; ``1 device`` where nothing is split."""
    parts = [f"{letter}={degree}" for letter, degree in zip(LETTERS, config) if degree > 1]
    return " ".join(parts) or "1 device"
