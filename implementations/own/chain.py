"""A fully connected chain of layers as one of the suite's own networks, whose units can be dealt out. No torch here."""

from __future__ import annotations

from typing import Any

from implementations.layerwise.graph import FLATTEN, INPUT, LINEAR, LOSS, NORM, POINTWISE, Graph, Layer

TAKEN = "a chain of Linear with ReLU, Sigmoid or Tanh, or of Linear(bias=False), BatchNorm1d and ReLU"
_ACTIVATIONS = ("relu", "sigmoid", "tanh")
_EPS = 1e-5  # of the suite's batch normalisation


class NoChain(Exception):
    """The network is none; the text says what is in the way."""


def described(graph: Graph) -> dict[str, Any]:
    """``fc`` or ``fc_bn`` with the widths of the graph's layers, as a point's model; raises NoChain.

    The parameters are the same in number and kind, and so are their first values' distributions if the network has
    torch's own; arguments that go without saying are left out.
    """
    layers = _in_a_row(graph)
    words = [_word(layer) for layer in layers]
    linears = [layer for layer in layers if layer.kind == LINEAR]
    widths = [layer.out[0] for layer in linears[:-1]]
    if not widths:
        raise NoChain("it has no hidden layer")
    biased = ["bias" in layer.weights for layer in linears]
    if all(biased):
        return _plain(words, widths)
    if not any(biased):
        return _normalised(layers, words, widths)
    raise NoChain("some Linear layers have a bias, and others none")


def _plain(words: list[str], widths: list[int]) -> dict[str, Any]:
    activation = words[1]
    if activation not in _ACTIVATIONS or words != ["linear", *[activation, "linear"] * len(widths)]:
        raise NoChain(f"its layers are {', '.join(words)}")
    return {"name": "fc", "hidden": widths} | ({"activation": activation} if activation != "relu" else {})


def _normalised(layers: list[Layer], words: list[str], widths: list[int]) -> dict[str, Any]:
    hidden = ["linear", "norm", "relu"]
    dropped = words[3:4] == ["dropout"]
    if dropped:
        hidden.append("dropout")
    mean = [*hidden * len(widths), "linear"]
    if words not in (mean, [*mean, "norm"]):
        raise NoChain(f"its layers are {', '.join(words)}")
    norms = [layer for layer in layers if layer.kind == NORM]
    output = "norm" if words[-1] == "norm" else "mean"
    scaled = [bool(layer.weights) for layer in norms]
    if scaled != [True] * len(widths) + [False] * (output == "norm"):
        raise NoChain("BatchNorm1d must be affine, and the one of the scores must not")
    if any(layer.settings["eps"] != _EPS for layer in norms):
        raise NoChain(f"BatchNorm1d must have eps {_EPS:g}")
    model = {"name": "fc_bn", "hidden": widths} | ({"output": output} if output != "norm" else {})
    rates = {layer.settings["p"] for layer in layers if _word(layer) == "dropout"}
    if len(rates) > 1:
        raise NoChain(f"its Dropout layers have several rates: {sorted(rates)}")
    return model | ({"dropout": rates.pop()} if rates else {})


def _in_a_row(graph: Graph) -> list[Layer]:
    """The layers that compute, one after another; NoChain where the network branches."""
    layers, before = [], None
    for layer in graph:
        if before is not None and layer.inputs != (before.name,):
            raise NoChain(f"{layer.name} does not read the layer before it")
        before = layer
        if layer.kind in (INPUT, LOSS, FLATTEN):
            continue
        if layer.kind == POINTWISE and layer.settings["function"] == "identity":
            continue
        if layer.kind == POINTWISE and layer.settings.get("p") == 0:
            continue
        if layer.kind not in (LINEAR, POINTWISE, NORM):
            raise NoChain(f"{layer.name} is of kind {layer.kind}")
        layers.append(layer)
    if not layers or layers[0].kind != LINEAR:
        raise NoChain("it does not begin with a Linear")
    return layers


def _word(layer: Layer) -> str:
    return layer.settings["function"] if layer.kind == POINTWISE else layer.kind
