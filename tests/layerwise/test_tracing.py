"""The graph of a module: against published sizes, and computed layer by layer against the module itself."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from implementations.errors import UserError
from implementations.layerwise.graph import (
    ADD,
    CONCAT,
    CONV,
    FLATTEN,
    INPUT,
    LINEAR,
    LOSS,
    MULTIPLY,
    NORM,
    POOL,
)
from implementations.layerwise.tracing import trace
from implementations.models import build, convnets
from implementations.seeds import torch_stream

IMAGE = (4, 8, 8)
CLASSES = 5


def on_meta(name, image, classes=1000, **arguments):
    with torch.device("meta"):
        return convnets.module({"name": name, **arguments}, image, classes)


def kinds(graph):
    return Counter(layer.kind for layer in graph)


@pytest.mark.parametrize(
    ("name", "side", "parameters", "gmac", "layers"),
    [
        ("alexnet", 224, 61_100_840, 0.714, {CONV: 5, POOL: 3, LINEAR: 3}),
        ("vgg16", 224, 138_357_544, 15.47, {CONV: 13, POOL: 5, LINEAR: 3}),
        ("resnet50", 224, 25_557_032, 4.09, {CONV: 53, NORM: 53, POOL: 2, LINEAR: 1, ADD: 16}),
        ("inception_v3", 299, 23_834_568, 5.71, {CONV: 94, NORM: 94, POOL: 14, LINEAR: 1, CONCAT: 15}),
    ],
)
def test_totals_are_those_published_with_torchvision(name, side, parameters, gmac, layers):
    """Parameters and operations (multiply-adds) of its model pages; layers by the papers' tables."""
    graph = trace(on_meta(name, (3, side, side)), (3, side, side), name).graph
    assert graph.params == parameters
    assert sum(layer.flops for layer in graph if layer.kind in (CONV, LINEAR)) / 2e9 == pytest.approx(
        gmac, rel=2e-3
    )
    assert {kind: kinds(graph)[kind] for kind in layers} == layers
    others = graph.flops - sum(layer.flops for layer in graph if layer.kind in (CONV, LINEAR))
    assert 0 < others < 0.02 * graph.flops


def computed(traced, module, x):
    """The scores by what the graph alone says, with torch's functions and the module's parameters."""
    parameters, values = dict(module.named_parameters()), {}
    for layer in traced.graph:
        read = [values[name] for name in layer.inputs]
        own = {name: parameters[full] for name, full in traced.parameters.get(layer.name, {}).items()}
        assert {name: tuple(weight.shape) for name, weight in own.items()} == layer.weights
        window, settings = layer.window, layer.settings
        if layer.kind == INPUT:
            y = x
        elif layer.kind == CONV:
            bias = own.get("bias")
            y = F.conv2d(
                read[0], own["weight"], bias, window.stride, window.padding, window.dilation, layer.groups
            )
        elif layer.kind == LINEAR:
            y = F.linear(read[0], own["weight"], own.get("bias"))
        elif layer.kind == NORM:
            y = F.batch_norm(
                read[0], None, None, own.get("weight"), own.get("bias"), training=True, eps=settings["eps"]
            )
        elif layer.kind == FLATTEN:
            y = read[0].reshape(len(x), -1)
        elif layer.kind == ADD:
            y = read[0] + read[1]
        elif layer.kind == MULTIPLY:
            y = read[0] * read[1]
        elif layer.kind == CONCAT:
            y = torch.cat(read, 1)
        elif layer.kind == LOSS:
            return read[0]
        elif layer.kind == POOL and layer.whole_map:
            assert settings["mode"] == "adaptive_avg"
            y = F.adaptive_avg_pool2d(read[0], settings["output"])
        elif layer.kind == POOL:
            y = pooled(read[0], layer)
        else:
            y = {
                "identity": lambda z: z,
                "relu": torch.relu,
                "sigmoid": torch.sigmoid,
                "tanh": torch.tanh,
                "gelu": F.gelu,
                "silu": F.silu,
                "leaky_relu": lambda z, given=settings: F.leaky_relu(z, given["slope"]),
                "dropout": lambda z, given=settings: F.dropout(z, given["p"]),
            }[settings["function"]](read[0])
        assert tuple(y.shape) == (len(x), *layer.out), layer.name
        values[layer.name] = y
    raise AssertionError("no loss")


def pooled(x, layer):
    """By unfolding: windows that reach over the edge see padding there."""
    window, settings = layer.window, layer.settings
    reach = [d * (k - 1) + 1 for d, k in zip(window.dilation, window.kernel)]
    pads = []
    for axis in (1, 0):  # F.pad starts with the last dimension
        end = (layer.out[1 + axis] - 1) * window.stride[axis] + reach[axis] - window.padding[axis]
        pads += [window.padding[axis], max(0, end - x.shape[2 + axis])]
    average = settings["mode"] == "avg"
    full = F.pad(x, pads, value=0.0 if average else -torch.inf)
    ones = F.pad(torch.ones_like(x), pads)
    columns, counts = (
        F.unfold(part, window.kernel, window.dilation, 0, window.stride).unflatten(1, (x.shape[1], -1))
        for part in (full, ones)
    )
    places = layer.out[1:]
    assert columns.shape[-1] == places[0] * places[1]
    if not average:
        y = columns.amax(2)
    elif settings["count_include_pad"]:
        y = columns.mean(2)
    else:
        y = columns.sum(2) / counts.sum(2)
    return y.unflatten(-1, places)


@pytest.mark.parametrize(
    ("name", "image", "arguments"),
    [
        ("lenet5", (1, 28, 28), {}),
        ("lenet5", (3, 32, 32), {}),
        ("alexnet", (3, 64, 64), {"width": 0.05, "dropout": 0}),
        ("alexnet", (3, 96, 96), {"width": 0.05, "dropout": 0, "fc_input": 12544}),
        ("alexnet_small", (1, 28, 28), {"width": 0.1}),
        ("vgg_small", (3, 32, 32), {"width": 0.1}),
        ("vgg16", (3, 32, 32), {"width": 0.05, "dropout": 0}),
        ("inception_v3", (3, 75, 75), {"width": 0.03, "dropout": 0}),
        ("resnet50", (3, 32, 32), {"width": 0.05}),
    ],
)
def test_the_graph_computes_what_the_network_does(name, image, arguments):
    torch.manual_seed(1)
    module = convnets.module({"name": name, **arguments}, image, CLASSES)
    check(module, image, batch=4)


def check(module, sample, batch=3):
    module = module.double().train()
    x = torch.randn(batch, *sample, generator=torch_stream(1, "x"), dtype=torch.double)
    traced = trace(module, sample, "net")
    torch.testing.assert_close(computed(traced, module, x.clone()), module(x.clone()), rtol=1e-9, atol=1e-9)
    bound = [full for of_layer in traced.parameters.values() for full in of_layer.values()]
    assert sorted(bound) == sorted(name for name, _ in module.named_parameters())
    return traced.graph


class Net(nn.Module):
    """Images through a function ``of`` module and x, then flat into a linear layer."""

    def __init__(self, of, outputs, **parts):
        super().__init__()
        self.of = of
        for name, part in parts.items():
            self.add_module(name, part)
        self.last = nn.Linear(outputs, CLASSES)

    def forward(self, x):
        return self.last(self.of(self, x))


def residual(net, x):
    h = net.conv(x)
    h += x
    return torch.flatten(h.relu_(), 1)


def gated(net, x):
    return (torch.sigmoid(net.conv(x)) * x.tanh()).mean([2, 3])


def branches(net, x):
    h = F.silu(net.relu(net.conv(x)))
    h = torch.cat((net.relu(h), F.leaky_relu(x, 0.1), torch.add(h, x)), dim=-3)
    return F.avg_pool2d(h, 3, stride=2, padding=1, count_include_pad=False).view(x.size(0), -1)


def pools(net, x):
    h = F.max_pool2d(x, (3, 2), stride=2, dilation=(2, 1), ceil_mode=True)
    h = F.adaptive_avg_pool2d(F.adaptive_avg_pool2d(h, 3), 2)
    return F.gelu(F.dropout(h, 0.0, self_training(net))).contiguous().reshape(-1, h.shape[1] * 4)


def self_training(net):
    return net.training


def kept(net, x):
    return net.flat(x.mean((-1, -2), keepdim=True).relu())


@pytest.mark.parametrize(
    ("of", "outputs", "parts", "names"),
    [
        (residual, 256, {"conv": nn.Conv2d(4, 4, 3, padding="same")}, ["conv", "add", "relu_", "flatten"]),
        (
            gated,
            4,
            {"conv": nn.Conv2d(4, 4, 5, padding=2, groups=2, bias=False)},
            ["conv", "sigmoid", "tanh", "mul", "mean", "mean_1"],
        ),
        (
            branches,
            12 * 16,
            {"conv": nn.Conv2d(4, 4, 3, padding=2, dilation=2), "relu": nn.ReLU()},
            ["conv", "relu", "silu", "relu_1", "leaky_relu", "add", "cat", "avg_pool2d", "view"],
        ),
        (
            pools,
            16,
            {},
            [
                "max_pool2d",
                "adaptive_avg_pool2d",
                "adaptive_avg_pool2d_1",
                "dropout",
                "gelu",
                "contiguous",
                "reshape",
            ],
        ),
        (kept, 4, {"flat": nn.Flatten()}, ["mean", "relu", "flat"]),
    ],
)
def test_functions_count_as_the_modules_that_do_the_same(of, outputs, parts, names):
    graph = check(Net(of, outputs, **parts), IMAGE)
    assert list(graph.layers) == ["input", *names, "last", "loss"]


@pytest.mark.parametrize(
    ("layer", "out"),
    [
        (nn.Conv2d(4, 6, 3, padding="valid"), (6, 6, 6)),
        (nn.Conv2d(4, 6, (3, 1), stride=(2, 1), padding=(1, 0)), (6, 4, 8)),
        (nn.MaxPool2d(3, 2, ceil_mode=True), (4, 4, 4)),
        (nn.MaxPool2d(2, padding=1, dilation=2), (4, 4, 4)),
        (nn.AvgPool2d(2, ceil_mode=True), (4, 4, 4)),
        (nn.AdaptiveAvgPool2d((8, None)), (4, 8, 8)),
        (nn.AdaptiveAvgPool2d((4, 1)), (4, 4, 1)),
        (nn.AdaptiveAvgPool2d((3, 5)), (4, 3, 5)),
        (nn.BatchNorm2d(4, affine=False, momentum=None), (4, 8, 8)),
        (nn.LeakyReLU(0.2), (4, 8, 8)),
        (nn.Identity(), (4, 8, 8)),
    ],
)
def test_layers_of_images(layer, out):
    graph = check(nn.Sequential(layer, nn.Flatten(), nn.Linear(out[0] * out[1] * out[2], CLASSES)), IMAGE)
    assert graph["0"].out == out


def test_vectors_have_layers_too():
    layers = [
        nn.Linear(7, 6),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.GELU(),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(6, 5),
    ]
    graph = check(nn.Sequential(*layers), (7,))
    assert graph["5"].settings == {"function": "identity"}
    net = build({"name": "fc", "hidden": [6, 4]}, 7, CLASSES, 1, torch_stream(1, "init"))
    assert trace(net.to_module(), (7,), "fc").graph.params == net.params_per_worker


def test_activations_and_normalisation_stay_with_what_they_read():
    graph = trace(on_meta("resnet50", (3, 64, 64)), (3, 64, 64), "resnet50").graph
    leaders = graph.leaders()
    assert leaders["layer1.0.relu"] == leaders["layer1.0.bn1"] == "layer1.0.conv1"
    assert leaders["layer1.0.relu_2"] == leaders["add"] == "add"
    assert graph["add"].inputs == ("layer1.0.bn3", "layer1.0.downsample.1")
    assert graph["layer1.1.conv1"].inputs == ("layer1.0.relu_2",)
    assert [layer.name for layer in graph][-4:] == ["avgpool", "flatten", "fc", "loss"]
    assert set(kinds(graph)) - {"norm", "pointwise"} == {graph[name].kind for name in leaders.values()}


def test_concatenation_has_the_branches_in_order():
    graph = trace(on_meta("inception_v3", (3, 299, 299)), (3, 299, 299), "inception_v3").graph
    leaders = graph.leaders()
    branches = ["branch1x1", "branch5x5_2", "branch3x3dbl_3", "branch_pool"]
    assert [leaders[name] for name in graph["cat"].inputs] == [f"Mixed_5b.{name}.conv" for name in branches]
    assert [graph[name].out[0] for name in graph["cat"].inputs] == [64, 64, 96, 32]
    assert graph["cat"].out == (256, 35, 35) and graph["Mixed_7c.branch1x1.conv"].out == (320, 8, 8)


def test_operations_of_a_layer():
    layers = [
        nn.Conv2d(4, 6, 3, groups=2),
        nn.BatchNorm2d(6),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    graph = trace(nn.Sequential(*layers, nn.Dropout(), nn.Linear(24, 5)), IMAGE, "net").graph
    flops = [layer.flops for layer in graph]
    whole = 6 * 4 * 4  # each of 2 x 2 bins of a map of 3 x 3 sees 2 x 2 places
    assert flops == [0, 2 * 2 * 9 * 6 * 36, 4 * 6 * 36, 4 * 6 * 9, whole, 0, 24, 2 * 24 * 5, 4 * 5]


def branching(net, x):
    return x.flatten(1) if x.sum() > 0 else -x.flatten(1)


def in_place(net, x):
    h = F.relu(x, inplace=True)
    return (h + x).flatten(1)


def dead(net, x):
    torch.relu(x)
    return x.flatten(1)


TWICE = nn.Linear(5, 5)
TIED = nn.Linear(5, 5)
TIED.weight = TWICE.weight
FROZEN = nn.Linear(256, 5).requires_grad_(False)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (
            Net(branching, 256),
            "torch.fx cannot trace net: symbolically traced variables cannot be used as inputs",
        ),
        (Net(in_place, 256), "layer relu is a relu in place of what add reads too; needed: a new tensor"),
        (Net(dead, 256), "layer relu is a relu whose output nothing reads; needed: a network without it"),
        (Net(lambda net, x: (x + 1).flatten(1), 256), "layer add is a sum with something else than layers"),
        (
            Net(lambda net, x: (x * x.mean((2, 3), keepdim=True)).flatten(1), 256),
            "of (4, 8, 8) and (4, 1, 1)",
        ),
        (
            Net(lambda net, x: torch.cat([x, x], 2).flatten(1), 512),
            "layer cat is a cat along dimension 2; needed:",
        ),
        (
            Net(lambda net, x: x.mean(1).flatten(1), 64),
            "layer mean is a mean; needed: the mean of images over",
        ),
        (Net(lambda net, x: x.view(-1, 128), 128), "layer view is a view, which mixes samples"),
        (
            Net(lambda net, x: x.view(-1, 8, 32), 32),
            "a change of shape from (4, 8, 8) to (8, 32); needed: a vector",
        ),
        (Net(lambda net, x: x.flatten(1) @ net.last.weight.T, 256), "a tensor that the module's own code"),
        (Net(lambda net, x: x.abs().flatten(1), 256), "layer abs_1 is an abs; supported: Conv2d, MaxPool2d,"),
        (Net(lambda net, x: x.flatten(1), 99), "layer last is what does not fit its input:"),
        (Net(lambda net, x: x.chunk(2)[0].flatten(1), 256), "layer chunk is a chunk, which gives a tuple"),
        (nn.Conv2d(4, 5, 3), "a tensor that the module's own code computes with"),
        (
            nn.Sequential(nn.Conv2d(4, 5, 3)),
            "layer output is samples of the sizes (5, 6, 6); needed: one tensor of",
        ),
        (
            nn.Sequential(nn.Conv2d(4, 5, 2, padding="same")),
            "layer 0 is a Conv2d with padding 'same' and an even",
        ),
        (
            nn.Sequential(nn.Conv2d(4, 5, 3, padding_mode="circular")),
            "padding_mode 'circular'; needed: 'zeros'",
        ),
        (nn.Sequential(nn.AvgPool2d(3, 2, ceil_mode=True)), "an AvgPool2d whose ceil_mode adds windows"),
        (
            nn.Sequential(nn.AvgPool2d(2, divisor_override=3)),
            "an AvgPool2d with divisor_override; needed: none",
        ),
        (nn.Sequential(nn.MaxPool2d(2, return_indices=True)), "a MaxPool2d, which gives a tuple"),
        (nn.Sequential(nn.GELU("tanh")), "layer 0 is a GELU with approximate 'tanh'; needed: 'none'"),
        (nn.Sequential(nn.Linear(8, 8)), "layer 0 is a Linear on (4, 8, 8); needed: vectors (flatten first)"),
        (nn.Sequential(nn.LayerNorm(8)), "layer 0 is a LayerNorm; supported: Conv2d"),
        (
            nn.Sequential(nn.Flatten(), nn.Softmax(1)),
            "layer 1 is a Softmax; needed: scores without it: the loss",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(256, 5), TWICE, TWICE),
            "layer 2 is a Linear with weights that are",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(256, 5), TWICE, TIED),
            "layer 3 is a Linear with weights that are",
        ),
        (nn.Sequential(nn.Flatten(), FROZEN), "parameter 1.weight has requires_grad=False; needed: True"),
        (
            Net(lambda net, x: x.flatten(1), 256, more=nn.Linear(2, 2)),
            "no layer uses parameter more.weight; leave it",
        ),
    ],
)
def test_what_the_graph_cannot_say_is_told_in_a_line(module, says):
    with pytest.raises(UserError) as error:
        trace(module, IMAGE, "net")
    assert says in str(error.value) and "\n" not in str(error.value)
