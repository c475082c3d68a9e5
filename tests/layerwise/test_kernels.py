"""Each kernel on a block against torch on the whole map, in double precision: values and, by autograd, gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from implementations.layerwise import algebra, kernels
from implementations.layerwise.graph import (
    ADD,
    CONCAT,
    CONV,
    FLATTEN,
    LINEAR,
    MULTIPLY,
    NORM,
    POINTWISE,
    POOL,
    Layer,
    Window,
)

SIDES = (9, 8)
WINDOWS = [
    Window((3, 3), (1, 1), (1, 1)),
    Window((3, 3), (2, 2), (0, 0)),
    Window((5, 3), (2, 1), (2, 0)),
    Window((1, 1), (2, 2), (0, 0)),
    Window((3, 2), (1, 3), (1, 1), (2, 2)),
    Window((2, 2), (3, 3), (1, 1)),  # the last row is under no window
]


@pytest.fixture(autouse=True)
def draws():
    torch.manual_seed(0)


def doubles(*sizes):
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


def sizes(window):
    """Height and width of the output for maps of ``SIDES``."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(SIDES, window.kernel, window.stride, window.padding, window.dilation)
    )


def blocks(out, cut_channels):
    """Boxes of all combinations of a few ranges: whole, parts, single rows, the last ones."""
    height, width = out[1:]
    choices = [
        [(0, 3), (1, 3)],
        cut_channels,
        sorted({(0, height), (0, 1), (height // 2, height), (height - 1, height)}),
        sorted({(0, width), (width // 2, width)}),
    ]
    return itertools.product(*choices)


def cut(box):
    return tuple(slice(*one) for one in box)


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("window", WINDOWS)
def test_convolution_and_its_gradients(window, groups, bias):
    """Blocks at a border have padding on one side only."""
    out = (6, *sizes(window))
    x = doubles(3, 4, *SIDES)
    weights = {"weight": doubles(6, 4 // groups, *window.kernel)} | ({"bias": doubles(6)} if bias else {})
    y = F.conv2d(
        x, weights["weight"], weights.get("bias"), window.stride, window.padding, window.dilation, groups
    )
    assert y.shape[1:] == out
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    layer = Layer("c", CONV, ("x",), out, shapes, window, groups)
    for box in blocks(out, [(0, 6), (3, 6)]):
        read = algebra.read_box(layer, (4, *SIDES), box)
        pads = algebra.padding(layer, (4, *SIDES), box)
        piece = x.detach()[cut(read)]
        own = {name: weight.detach()[slice(*box[1])] for name, weight in weights.items()}
        close(kernels.forward(layer, [piece], own, pads), y.detach()[cut(box)])
        grad = torch.randn_like(y[cut(box)])
        wanted, *of_weights = torch.autograd.grad(
            y[cut(box)], [x, *weights.values()], grad, retain_graph=True
        )
        back = kernels.input_gradient(layer, grad, piece, own, pads)
        everywhere = torch.zeros_like(wanted)
        everywhere[cut(read)] = back
        close(everywhere, wanted)
        into = {name: torch.full_like(weight, float("nan")) for name, weight in own.items()}
        kernels.weight_gradients(layer, grad, piece, own, pads, into)
        for name, of_weight in zip(weights, of_weights):
            close(into[name], of_weight[slice(*box[1])])


@pytest.mark.parametrize(
    "pads", [((0, 0), (0, 0)), ((2, 0), (0, 1)), ((0, 3), (1, 1)), ((1, 1), (2, 0)), ((1, 0), (1, 1))]
)
def test_padding_of_both_sides_is_what_is_asked_for(pads):
    window = Window((3, 3), (2, 2), (1, 1))
    layer = Layer("c", CONV, ("x",), (2, 4, 4), {"weight": (2, 3, 3, 3)}, window)
    x, weight = doubles(2, 3, 6, 7), doubles(2, 3, 3, 3)
    (top, bottom), (left, right) = pads
    wanted = F.conv2d(F.pad(x, (left, right, top, bottom)), weight, None, 2)
    found = kernels.forward(layer, [x], {"weight": weight}, pads)
    close(found, wanted)
    grad = torch.randn_like(wanted)
    of_x, of_weight = torch.autograd.grad(wanted, (x, weight), grad)
    own = {"weight": weight.detach()}
    close(kernels.input_gradient(layer, grad, x.detach(), own, pads), of_x)
    into = {"weight": torch.zeros_like(own["weight"])}
    kernels.weight_gradients(layer, grad, x.detach(), own, pads, into)
    close(into["weight"], of_weight)


POOLS = [
    *[("max", window, True) for window in WINDOWS if 2 * max(window.padding) <= min(window.kernel)],
    *[
        ("avg", window, counted)
        for window in WINDOWS
        if window.dilation == (1, 1) and 2 * max(window.padding) <= min(window.kernel)
        for counted in (True, False)
    ],
]


@pytest.mark.parametrize(("mode", "window", "counted"), POOLS)
def test_pooling_and_its_gradient(mode, window, counted):
    out = (4, *sizes(window))
    x = doubles(3, 4, *SIDES)
    if mode == "max":
        y = F.max_pool2d(x, window.kernel, window.stride, window.padding, window.dilation)
    else:
        y = F.avg_pool2d(x, window.kernel, window.stride, window.padding, count_include_pad=counted)
    assert y.shape[1:] == out
    settings = {"mode": mode, "count_include_pad": counted}
    layer = Layer("p", POOL, ("x",), out, window=window, settings=settings)
    for box in blocks(out, [(0, 4), (1, 2)]):
        read = algebra.read_box(layer, (4, *SIDES), box)
        pads = algebra.padding(layer, (4, *SIDES), box)
        piece = x.detach()[cut(read)].requires_grad_()
        found = kernels.forward(layer, [piece], {}, pads)
        close(found, y[cut(box)])
        grad = torch.randn_like(found)
        (back,) = torch.autograd.grad(found, piece, grad)
        (wanted,) = torch.autograd.grad(y[cut(box)], x, grad, retain_graph=True)
        everywhere = torch.zeros_like(wanted)
        everywhere[cut(read)] = back
        close(everywhere, wanted)


def test_max_pooling_never_takes_the_padding():
    window = Window((3, 3), (1, 1), (1, 1))
    layer = Layer("p", POOL, ("x",), (1, 4, 4), window=window, settings={"mode": "max"})
    x = -1 - torch.rand(1, 1, 4, 4, dtype=torch.float64)
    assert kernels.forward(layer, [x], {}, ((1, 1), (1, 1))).max() < 0
    assert kernels.forward(layer, [x], {}, ((0, 1), (1, 0))).max() < 0


def test_adaptive_average():
    settings = {"mode": "adaptive_avg", "output": (4, 3)}
    layer = Layer("p", POOL, ("x",), (2, 4, 3), whole_map=True, settings=settings)
    x = doubles(3, 2, *SIDES)
    close(kernels.forward(layer, [x], {}), nn.AdaptiveAvgPool2d((4, 3))(x))


def test_linear_and_its_gradients():
    layer = Layer("w", LINEAR, ("x",), (5,), {"weight": (5, 7), "bias": (5,)})
    x, weight, bias = doubles(4, 7), doubles(5, 7), doubles(5)
    y = x @ weight.T + bias
    for part in (slice(0, 5), slice(2, 4)):
        own = {"weight": weight.detach()[part], "bias": bias.detach()[part]}
        close(kernels.forward(layer, [x], own), y[:, part])
        grad = torch.randn_like(y[:, part])
        of_x, of_weight, of_bias = torch.autograd.grad(y[:, part], (x, weight, bias), grad, retain_graph=True)
        close(kernels.input_gradient(layer, grad, x.detach(), own, ()), of_x)
        into = {name: torch.full_like(value, float("nan")) for name, value in own.items()}
        kernels.weight_gradients(layer, grad, x.detach(), own, (), into)
        close(into["weight"], of_weight[part])
        close(into["bias"], of_bias[part])
    alone = {"weight": torch.empty(5, 7, dtype=torch.float64)}  # of a layer without bias
    grad = torch.randn_like(y)
    kernels.weight_gradients(layer, grad, x.detach(), {"weight": weight.detach()}, (), alone)
    close(alone["weight"], torch.autograd.grad(x @ weight.T, weight, grad)[0])


@pytest.mark.parametrize(
    ("settings", "module"),
    [
        ({"function": "relu"}, nn.ReLU()),
        ({"function": "sigmoid"}, nn.Sigmoid()),
        ({"function": "tanh"}, nn.Tanh()),
        ({"function": "gelu"}, nn.GELU()),
        ({"function": "silu"}, nn.SiLU()),
        ({"function": "leaky_relu"}, nn.LeakyReLU()),
        ({"function": "leaky_relu", "slope": 0.3}, nn.LeakyReLU(0.3)),
        ({"function": "identity"}, nn.Identity()),
    ],
)
def test_pointwise_functions(settings, module):
    layer = Layer("f", POINTWISE, ("x",), (4, 3, 3), settings=settings)
    x = doubles(2, 4, 3, 3)
    close(kernels.forward(layer, [x], {}), module(x))


def test_layers_that_join():
    x, y, z = doubles(2, 4, 3, 3), doubles(2, 4, 3, 3), doubles(2, 1, 3, 3)
    sizes = (4, 3, 3)
    close(kernels.forward(Layer("s", ADD, ("x", "y"), sizes), [x, y], {}), x + y)
    close(kernels.forward(Layer("m", MULTIPLY, ("x", "y"), sizes), [x, y], {}), x * y)
    joined = Layer("j", CONCAT, ("x", "y", "z"), (9, 3, 3))
    close(kernels.forward(joined, [x, y, z], {})[:, 8:], z)
    nothing = torch.empty(0, 0, 0, 0, dtype=torch.float64)  # a block that has nothing of an input
    close(kernels.forward(joined, [nothing, y, nothing], {}), y)
    close(kernels.forward(Layer("f", FLATTEN, ("x",), (36,)), [x], {}), x.reshape(2, 36))


def test_parts_of_the_loss_add_up_to_torchs():
    scores, labels = doubles(5, 4), torch.tensor([0, 3, 1, 1, 2])
    parts = kernels.loss_sum(scores[:2], labels[:2]) + kernels.loss_sum(scores[2:], labels[2:])
    close(parts / 5, F.cross_entropy(scores, labels))


def test_a_kind_without_a_kernel_is_told():
    with pytest.raises(ValueError, match="layer n: a norm layer has no forward of its own"):
        kernels.forward(Layer("n", NORM, ("x",), (4,)), [torch.zeros(1, 4)], {})
