"""Small networks, made by hand or at random, that the tests of the cost model share."""

import math

import numpy as np

from implementations.layerwise.graph import (
    ADD,
    CONCAT,
    CONV,
    FLATTEN,
    INPUT,
    LINEAR,
    LOSS,
    NORM,
    POINTWISE,
    POOL,
    Graph,
    Layer,
    Window,
)


def image(channels, height, width):
    return Layer("input", INPUT, (), (channels, height, width))


def conv(name, source, channels, kernel=3, stride=1, padding=1, groups=1, sides=None):
    window = Window(sides or (kernel, kernel), (stride, stride), (padding, padding))
    size = [(n + 2 * padding - k) // stride + 1 for n, k in zip(source.out[1:], window.kernel)]
    weights = {"weight": (channels, source.out[0] // groups, *window.kernel), "bias": (channels,)}
    flops = 2 * math.prod(size) * math.prod(weights["weight"])
    return Layer(name, CONV, (source.name,), (channels, *size), weights, window, groups, flops=flops)


def pool(name, source, kernel=2, stride=2, padding=0):
    size = [(n + 2 * padding - kernel) // stride + 1 for n in source.out[1:]]
    window = Window((kernel, kernel), (stride, stride), (padding, padding))
    settings = {"mode": "max"}
    return Layer(name, POOL, (source.name,), (source.out[0], *size), window=window, settings=settings)


def relu(name, source):
    return Layer(name, POINTWISE, (source.name,), source.out, settings={"function": "relu"})


def norm(name, source):
    weights = {"weight": source.out[:1], "bias": source.out[:1]}
    return Layer(name, NORM, (source.name,), source.out, weights, settings={"eps": 1e-5, "momentum": 0.1})


def flatten(name, source):
    return Layer(name, FLATTEN, (source.name,), (source.elements,))


def linear(name, source, features):
    weights = {"weight": (features, source.out[0]), "bias": (features,)}
    return Layer(name, LINEAR, (source.name,), (features,), weights, flops=2 * features * source.out[0])


def concat(name, *sources):
    channels = sum(source.out[0] for source in sources)
    return Layer(name, CONCAT, tuple(s.name for s in sources), (channels, *sources[0].out[1:]))


def loss(source):
    return Layer("loss", LOSS, (source.name,), (), flops=4 * source.out[0])


def branched():
    """All kinds of layers, odd sizes, a residual and branches."""
    x = image(3, 13, 11)
    a = conv("a", x, 6, 3, 2)
    n = norm("n", a)
    r = relu("r", n)
    b, c = conv("b", r, 4, 1, padding=0), conv("c", r, 6, padding=1, groups=2)
    s = Layer("s", ADD, ("r", "c"), r.out)
    p = pool("p", r, 3, 1, 1)
    j = concat("j", b, s, p)
    q = pool("q", j, 3, 2)
    f = flatten("f", q)
    w = linear("w", f, 10)
    t = relu("t", w)
    v = linear("v", t, 5)
    return Graph("branched", [x, a, n, r, b, c, s, p, j, q, f, w, t, v, loss(v)])


def chain(features=20):
    """Two convolutions and two linear layers."""
    x = image(3, 8, 8)
    a = conv("a", x, 8)
    r = relu("r", a)
    p = pool("p", r)
    b = conv("b", p, 12)
    f = flatten("f", b)
    w = linear("w", f, features)
    v = linear("v", w, 4)
    return Graph("chain", [x, a, r, p, b, f, w, v, loss(v)])


def vgg16(classes=1000):
    """VGG-16 at 224 pixels, without its activations, which have no parameters and do not move."""
    layers = [image(3, 224, 224)]
    for block, (channels, count) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]):
        for index in range(count):
            layers.append(conv(f"conv{block}.{index}", layers[-1], channels))
        layers.append(pool(f"pool{block}", layers[-1]))
    layers.append(flatten("flatten", layers[-1]))
    for name, features in (("fc1", 4096), ("fc2", 4096), ("fc3", classes)):
        layers.append(linear(name, layers[-1], features))
    return Graph("vgg16", [*layers, loss(layers[-1])])


def alexnet(side=7, classes=1000):
    """AlexNet as the paper's bytes imply it: maps of 56, 28, 14 and 7, so that the first linear layer reads 12,544."""
    layers = [image(3, 224, 224)]

    def add(layer):
        layers.append(layer)

    add(conv("conv1", layers[-1], 64, 11, 4, 4))
    add(pool("pool1", layers[-1]))
    add(conv("conv2", layers[-1], 192, 5, 1, 2))
    add(pool("pool2", layers[-1]))
    for name, channels in (("conv3", 384), ("conv4", 256), ("conv5", 256)):
        add(conv(name, layers[-1], channels))
    add(pool("pool5", layers[-1]))
    assert layers[-1].out == (256, side, side)
    add(flatten("flatten", layers[-1]))
    for name, features in (("fc1", 4096), ("fc2", 4096), ("fc3", classes)):
        add(linear(name, layers[-1], features))
    return Graph("alexnet", [*layers, loss(layers[-1])])


def random_network(draws: np.random.Generator):
    """A few convolutions and poolings one after the other, then a linear layer."""
    layers = [image(int(draws.integers(1, 4)), int(draws.integers(6, 12)), int(draws.integers(6, 12)))]
    for index in range(int(draws.integers(1, 4))):
        kernel, stride = int(draws.integers(1, 4)), int(draws.integers(1, 3))
        padding = int(draws.integers(0, (kernel + 1) // 2 + 1)) if kernel > 1 else 0
        if draws.random() < 0.5:
            made = conv(f"c{index}", layers[-1], int(draws.integers(1, 7)), kernel, stride, padding)
        else:
            made = pool(f"p{index}", layers[-1], max(2, kernel), stride, min(padding, max(2, kernel) // 2))
        if min(made.out[1:]) < 1:
            break
        layers.append(made)
    layers.append(flatten("f", layers[-1]))
    layers.append(linear("w", layers[-1], int(draws.integers(2, 9))))
    return Graph("random", [*layers, loss(layers[-1])])
