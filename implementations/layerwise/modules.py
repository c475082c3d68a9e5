"""What a graph says of a torch module: its kind, window, settings and operations, or why it has no place there.

Operations are forward ones for a sample, a multiply and an add being two; biases are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from implementations.layerwise.graph import CONV, FLATTEN, LINEAR, NORM, POINTWISE, POOL, Window

SUPPORTED = (
    "Conv2d, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Linear, BatchNorm1d/2d, ReLU, Sigmoid, Tanh, GELU, SiLU, "
    "LeakyReLU, Dropout, Identity, Flatten, their functions, +, *, cat over channels and mean over the map"
)
NORM_FLOPS = 4  # for each element: subtract, scale, scale, add

Sizes = tuple[int, ...]
Fields = dict[str, Any]  # of Layer: kind, window, groups, whole_map, flops, settings

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
    nn.LeakyReLU: "leaky_relu",
    nn.Identity: "identity",
    nn.Dropout: "dropout",
}


class Unsupported(Exception):
    """A layer that the graph has no place for: what it is, and what it should be instead."""

    def __init__(self, what: str, needed: str | None = None) -> None:
        super().__init__(f"{what}; " + (f"needed: {needed}" if needed else f"supported: {SUPPORTED}"))


def fields(module: nn.Module, source: Sizes, out: Sizes) -> Fields:
    """The fields of the layer that turns samples of the sizes ``source`` into ones of ``out``.

    Raises Unsupported.
    """
    describe = _DESCRIBED.get(type(module))
    if describe is None:
        loss = isinstance(module, nn.Softmax | nn.LogSoftmax)
        raise Unsupported(_called(module), "scores without it: the loss applies it" if loss else None)
    return describe(module, source, out)


def identity() -> Fields:
    """Of a layer that gives what it reads."""
    return {"kind": POINTWISE, "settings": {"function": "identity"}}


def flattening(source: Sizes, out: Sizes) -> Fields:
    """Of a change of shape; Unsupported unless it keeps a sample's shape or gives a vector of all of it."""
    if out == source:
        return identity()
    if out == (math.prod(source),):
        return {"kind": FLATTEN}
    raise Unsupported(f"a change of shape from {source} to {out}", "a vector of all of a sample")


def average(source: Sizes, out: Sizes) -> Fields:
    """Of adaptive average pooling; plain pooling where all windows are alike."""
    if out == source:
        return identity()
    if all(size % kept == 0 for size, kept in zip(source[1:], out[1:])):
        height, width = (size // kept for size, kept in zip(source[1:], out[1:]))
        window = Window((height, width), (height, width))
        return _pooling("avg", window, out)
    covered = [sum(map(_length, _bins(size, kept))) for size, kept in zip(source[1:], out[1:])]
    return {
        "kind": POOL,
        "whole_map": True,
        "flops": out[0] * math.prod(covered),
        "settings": {"mode": "adaptive_avg", "output": out[1:]},
    }


def _convolution(module: nn.Conv2d, source: Sizes, out: Sizes) -> Fields:
    if module.padding_mode != "zeros":
        raise Unsupported(f"a Conv2d with padding_mode {module.padding_mode!r}", "'zeros'")
    padding = module.padding
    if padding == "valid":
        padding = (0, 0)
    elif padding == "same":
        added = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size)]
        if any(size % 2 for size in added):
            raise Unsupported("a Conv2d with padding 'same' and an even kernel", "an odd one")
        padding = (added[0] // 2, added[1] // 2)
    window = Window(module.kernel_size, module.stride, padding, module.dilation)
    if any(window.padding[axis] >= _span(window, axis) for axis in (0, 1)):
        raise Unsupported("a Conv2d with padding as wide as its window", "a narrower padding")
    return {
        "kind": CONV,
        "window": window,
        "groups": module.groups,
        "flops": 2 * math.prod(module.weight.shape[1:]) * math.prod(out),
    }


def _linear(module: nn.Linear, source: Sizes, out: Sizes) -> Fields:
    if len(source) != 1:
        raise Unsupported(f"a Linear on {source}", "vectors (flatten first)")
    return {"kind": LINEAR, "flops": 2 * module.in_features * module.out_features}


def _norm(module: nn.BatchNorm1d | nn.BatchNorm2d, source: Sizes, out: Sizes) -> Fields:
    if len(source) not in (1, 3):
        raise Unsupported(f"{_called(module)} on {source}", "vectors or images")
    return {
        "kind": NORM,
        "flops": NORM_FLOPS * math.prod(out),
        "settings": {"eps": module.eps, "momentum": module.momentum},
    }


def _pointwise(module: nn.Module, source: Sizes, out: Sizes) -> Fields:
    settings: dict[str, Any] = {"function": _ACTIVATIONS[type(module)]}
    match module:
        case nn.Identity():
            return identity()
        case nn.Dropout():
            settings["p"] = module.p
        case nn.LeakyReLU():
            settings["slope"] = module.negative_slope
        case nn.GELU() if module.approximate != "none":
            raise Unsupported(f"a GELU with approximate {module.approximate!r}", "'none'")
    return {"kind": POINTWISE, "flops": math.prod(out), "settings": settings}


def _pool(module: nn.MaxPool2d | nn.AvgPool2d, source: Sizes, out: Sizes) -> Fields:
    mode = "max" if isinstance(module, nn.MaxPool2d) else "avg"
    if len(source) != 3:
        raise Unsupported(f"{_called(module)} on {source}", "images (channels, height, width)")
    if getattr(module, "divisor_override", None):
        raise Unsupported("an AvgPool2d with divisor_override", "none")
    stride = module.stride if module.stride else module.kernel_size  # a function may be given an empty one
    dilation = getattr(module, "dilation", 1)
    window = Window(*map(_pair, (module.kernel_size, stride, module.padding, dilation)))
    inside = tuple(_inside(size, window, axis) for axis, size in enumerate(source[1:]))
    if mode == "avg" and out[1:] != inside:
        raise Unsupported("an AvgPool2d whose ceil_mode adds windows over the edge", "ceil_mode=False")
    return _pooling(mode, window, out, getattr(module, "count_include_pad", True))


def _pooling(mode: str, window: Window, out: Sizes, count_include_pad: bool = True) -> Fields:
    return {
        "kind": POOL,
        "window": window,
        "flops": math.prod(window.kernel) * math.prod(out),
        "settings": {"mode": mode, "count_include_pad": count_include_pad},
    }


def _adaptive(module: nn.AdaptiveAvgPool2d, source: Sizes, out: Sizes) -> Fields:
    if len(source) != 3:
        raise Unsupported(f"an AdaptiveAvgPool2d on {source}", "images (channels, height, width)")
    return average(source, out)


def _flatten(module: nn.Flatten, source: Sizes, out: Sizes) -> Fields:
    return flattening(source, out)


_DESCRIBED: dict[type[nn.Module], Callable[[Any, Sizes, Sizes], Fields]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _norm),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d), _pool),
    nn.AdaptiveAvgPool2d: _adaptive,
    nn.Flatten: _flatten,
    **dict.fromkeys(_ACTIVATIONS, _pointwise),
}


def _called(module: nn.Module) -> str:
    name = type(module).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return (value, value)
    return (value[0], value[-1])


def _inside(size: int, window: Window, axis: int) -> int:
    """Windows that fit into an input and its padding along height (0) or width (1)."""
    return (size + 2 * window.padding[axis] - _span(window, axis)) // window.stride[axis] + 1


def _span(window: Window, axis: int) -> int:
    """Values that a window spans."""
    return window.dilation[axis] * (window.kernel[axis] - 1) + 1


def _bins(size: int, bins: int) -> list[tuple[int, int]]:
    """What adaptive pooling averages, along one side."""
    return [(k * size // bins, -(-(k + 1) * size // bins)) for k in range(bins)]


def _length(part: tuple[int, int]) -> int:
    return part[1] - part[0]
