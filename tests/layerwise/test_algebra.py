"""The partition algebra against index sets worked out element by element, and against torch on whole tensors."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from implementations.errors import UserError
from implementations.layerwise import algebra
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
    POINTWISE,
    POOL,
    Graph,
    Layer,
    Window,
)

ELEMENTWISE = (NORM, POINTWISE, ADD, MULTIPLY)
BATCHES = st.integers(1, 3)


def pairs(low, high):
    return st.tuples(st.integers(low, high), st.integers(low, high))


# Graphs of one layer and what it reads


def source(name, out):
    return Layer(name, INPUT, (), out)


@st.composite
def windows(draw, kinds=(CONV, POOL), dilated=True, padded=None):
    """A convolution or a pooling (with the last window cut off or not: ceil mode) of an image."""
    kind = draw(st.sampled_from(kinds))
    kernel, stride = draw(pairs(1, 4)), draw(pairs(1, 3))
    dilation = draw(pairs(1, 2)) if dilated else (1, 1)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    # torch pools with at most half a kernel of padding; a convolution's windows touch the image somewhere
    most = [r - 1 if kind == CONV else k // 2 for r, k in zip(reach, kernel)]
    padding = tuple(draw(st.integers(0, one)) for one in most)
    height, width = (draw(st.integers(max(1, r - 2 * p), 8)) for r, p in zip(reach, padding))
    window = Window(kernel, stride, padding, dilation)
    ceil = kind == POOL and draw(st.booleans())
    spatial = []
    for size, k, s, p in zip((height, width), reach, stride, padding):
        count = (size + 2 * p - k) // s + 1
        # torch: one more if the division has a rest, unless that window would start behind the image
        if ceil and (size + 2 * p - k) % s and count * s < size + p:
            count += 1
        spatial.append(count)
    groups = draw(st.integers(1, 3)) if kind == CONV else 1
    channels = groups * draw(st.integers(1, 2))
    out = groups * draw(st.integers(1, 3)) if kind == CONV else channels
    weights = {"weight": (out, channels // groups, *kernel), "bias": (out,)} if kind == CONV else {}
    settings = {} if kind == CONV else {"mode": draw(st.sampled_from(["max", "avg"])), "ceil": ceil}
    layer = Layer("it", kind, ("x",), (out, *spatial), weights, window, groups, settings=settings)
    return Graph("one", [source("x", (channels, height, width)), layer])


@st.composite
def others(draw):
    """A graph of one layer of any other kind, that reads one layer or several."""
    kind = draw(st.sampled_from([LINEAR, FLATTEN, CONCAT, LOSS, "global", *ELEMENTWISE]))
    image = draw(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)))
    features = draw(st.integers(1, 9))
    if kind == LINEAR:
        out = draw(st.integers(1, 9))
        weights = {"weight": (out, features), "bias": (out,)}
        return Graph("one", [source("x", (features,)), Layer("it", LINEAR, ("x",), (out,), weights)])
    if kind == LOSS:
        return Graph("one", [source("x", (features,)), Layer("it", LOSS, ("x",), ())])
    if kind == FLATTEN:
        layer = Layer("it", FLATTEN, ("x",), (math.prod(image),))
        return Graph("one", [source("x", image), layer])
    if kind == "global":
        layer = Layer("it", POOL, ("x",), (image[0], 2, 1), whole_map=True, settings={"mode": "avg"})
        return Graph("one", [source("x", image), layer])
    shape = draw(st.sampled_from([image, (features,)]))
    if kind == CONCAT:
        counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        parts = [source(f"x{place}", (count, *shape[1:])) for place, count in enumerate(counts)]
        out = (sum(counts), *shape[1:])
    else:
        parts = [source(f"x{place}", shape) for place in range(2 if kind in (ADD, MULTIPLY) else 1)]
        out = shape
    return Graph("one", [*parts, Layer("it", kind, tuple(part.name for part in parts), out)])


GRAPHS = st.one_of(windows(), others())


@st.composite
def configs(draw, layer, batch, most=4):
    """Any allowed configuration, however many devices it takes."""
    return tuple(draw(st.integers(1, min(most, limit))) for limit in (batch, *layer.splittable))


# What an element of the output needs, by the definition of each layer


def taps(window, axis, place, size):
    """Input indices under the window of an output index, those in the padding left out."""
    first = place * window.stride[axis] - window.padding[axis]
    seen = [first + tap * window.dilation[axis] for tap in range(window.kernel[axis])]
    return [index for index in seen if 0 <= index < size]


def needed_by(graph, layer, place, element):
    """Index lists, one a dimension of the ``place``-th input, whose product an output element needs."""
    shape = graph[layer.inputs[place]].out
    sample, inner = [element[0]], element[1:]
    everything = [list(range(size)) for size in shape]
    if layer.kind == CONV:
        group = inner[0] // (layer.out[0] // layer.groups)
        per_group = shape[0] // layer.groups
        channels = list(range(group * per_group, (group + 1) * per_group))
        return [
            sample,
            channels,
            *(taps(layer.window, axis, inner[1 + axis], shape[1 + axis]) for axis in (0, 1)),
        ]
    if layer.kind == POOL and layer.whole_map:
        return [sample, [inner[0]], *everything[1:]]
    if layer.kind == POOL:
        return [
            sample,
            [inner[0]],
            *(taps(layer.window, axis, inner[1 + axis], shape[1 + axis]) for axis in (0, 1)),
        ]
    if layer.kind in (LINEAR, LOSS):
        return [sample, *everything]
    if layer.kind == FLATTEN:
        return [sample, *([int(index)] for index in np.unravel_index(inner[0], shape))]
    if layer.kind == CONCAT:
        before = sum(graph[name].out[0] for name in layer.inputs[:place])
        own = [inner[0] - before] if 0 <= inner[0] - before < shape[0] else []
        return [sample, own, *([index] for index in inner[1:])]
    return [[index] for index in element]


def indices(box):
    return itertools.product(*(range(low, high) for low, high in box))


def needed(graph, layer, place, block, batch):
    """Boolean array over the whole input: what the block needs."""
    mask = np.zeros((batch, *graph[layer.inputs[place]].out), bool)
    for element in indices(block):
        mask[np.ix_(*needed_by(graph, layer, place, element))] = True
    return mask


def smallest_box(mask):
    """None where nothing is set."""
    if not mask.any():
        return None
    return tuple((int(where.min()), int(where.max()) + 1) for where in np.nonzero(mask))


def is_gapless(layer):
    """Whether windows one after another leave out no input index between them."""
    window = layer.window
    return window is None or all(
        dilation == 1 and stride <= kernel
        for dilation, stride, kernel in zip(window.dilation, window.stride, window.kernel)
    )


def channels_of_groups(graph, layer, channels):
    """The input channels that a range of output channels needs."""
    if layer.kind == POOL:
        return channels
    groups = [channel * layer.groups // layer.out[0] for channel in range(*channels)]
    per_group = graph["x"].out[0] // layer.groups
    return (min(groups) * per_group, (max(groups) + 1) * per_group)


def padded_range(layer, axis, block):
    """First and last index, below 0 or above the image too, under the windows of the block."""
    window = layer.window
    firsts = [place * window.stride[axis] - window.padding[axis] for place in range(*block[2 + axis])]
    seen = [first + tap * window.dilation[axis] for first in firsts for tap in range(window.kernel[axis])]
    return min(seen), max(seen)


# Blocks


def filled(shape, boxes):
    """How often each element is in a box."""
    count = np.zeros(shape, int)
    for box in boxes:
        count[tuple(slice(low, high) for low, high in box)] += 1
    return count


@given(graph=GRAPHS, batch=st.integers(1, 7), data=st.data())
def test_blocks_cut_the_output_once_and_evenly(graph, batch, data):
    layer = graph["it"]
    config = data.draw(configs(layer, batch, 7))
    blocks = algebra.blocks(layer, config, batch)
    assert len(blocks) == math.prod(config)
    assert (filled((batch, *layer.out), blocks) == 1).all()
    steps = (1, layer.out[0] // layer.groups if layer.groups > 1 else 1, 1, 1)
    for axis, (degree, size) in enumerate(zip(config, (batch, *layer.out))):
        found = sorted({box[axis] for box in blocks})
        lengths = [high - low for low, high in found]
        assert lengths == [
            steps[axis] * len(part) for part in np.array_split(range(size // steps[axis]), degree)
        ]
    # row-major: the device's number written in the digits of the configuration
    grid = [sorted({box[axis] for box in blocks}) for axis in range(len(config))]
    for device, box in enumerate(blocks):
        places = np.unravel_index(device, config)
        assert box == tuple(cuts[place] for cuts, place in zip(grid, places))


# What is read


@given(graph=GRAPHS, batch=BATCHES, data=st.data())
def test_a_block_reads_the_smallest_box_of_what_it_needs(graph, batch, data):
    layer = graph["it"]
    config = data.draw(configs(layer, batch))
    for place in range(len(layer.inputs)):
        read = algebra.reads(graph, layer, place, config, batch)
        for block, box in zip(algebra.blocks(layer, config, batch), read, strict=True):
            smallest = smallest_box(needed(graph, layer, place, block, batch))
            if is_gapless(layer):
                assert box == smallest or (smallest is None and algebra.volume(box) == 0)
                continue
            # An operation takes all between its first and its last window, what they leap over too.
            assert box[:2] == (block[0], channels_of_groups(graph, layer, block[1]))
            for axis, size in enumerate(graph["x"].out[1:]):
                first, last = padded_range(layer, axis, block)
                assert box[2 + axis] == (max(first, 0), min(last, size - 1) + 1)
                if smallest is not None:
                    low, high = smallest[2 + axis]
                    assert box[2 + axis][0] <= low < high <= box[2 + axis][1]


@given(graph=others(), data=st.data())
def test_any_box_of_the_output_reads_the_smallest_box(graph, data):
    """Not only those that a configuration cuts."""
    layer, batch = graph["it"], 2
    block = []
    for size in (batch, *layer.out):
        low = data.draw(st.integers(0, size - 1))
        block.append((low, data.draw(st.integers(low + 1, size))))
    for place in range(len(layer.inputs)):
        smallest = smallest_box(needed(graph, layer, place, tuple(block), batch))
        box = algebra.input_box(graph, layer, place, tuple(block))
        assert box == smallest or (smallest is None and algebra.volume(box) == 0)
    empty = data.draw(
        st.integers(0, len(block) - 1)
    )  # an empty block, in one dimension or more, reads nothing
    block[empty] = (1, 1)
    assert algebra.volume(algebra.input_box(graph, layer, 0, tuple(block))) == 0


@pytest.mark.parametrize(
    ("features", "box"),
    [
        ((0, 12), ((0, 1), (0, 3), (0, 4))),  # a channel
        ((6, 7), ((0, 1), (1, 2), (2, 3))),  # a value
        ((4, 8), ((0, 1), (1, 2), (0, 4))),  # a row
        ((5, 7), ((0, 1), (1, 2), (1, 3))),  # of a row
        ((3, 5), ((0, 1), (0, 2), (0, 4))),  # over the end of a row
        ((11, 13), ((0, 2), (0, 3), (0, 4))),  # over the end of a channel
        ((6, 19), ((0, 2), (0, 3), (0, 4))),  # from a place in one channel to the same in the next
        ((12, 24), ((1, 2), (0, 3), (0, 4))),
    ],
)
def test_flattened_features_of_a_small_image(features, box):
    layer = Layer("it", FLATTEN, ("x",), (24,))
    assert algebra.read_box(layer, (2, 3, 4), ((0, 5), features)) == ((0, 5), *box)


@given(graph=windows(), batch=BATCHES, data=st.data())
def test_padding_is_what_the_windows_lack(graph, batch, data):
    layer = graph["it"]
    config = data.draw(configs(layer, batch))
    for block in algebra.blocks(layer, config, batch):
        pads = algebra.padding(layer, graph["x"].out, block)
        for axis, (size, (before, behind)) in enumerate(zip(graph["x"].out[1:], pads, strict=True)):
            first, last = padded_range(layer, axis, block)
            outside = [index for index in range(first, last + 1) if not 0 <= index < size]
            assert before == sum(index < 0 for index in outside)
            assert behind == sum(index >= size for index in outside)
        assert [algebra.reach(layer, axis) for axis in (0, 1)] == [
            1 + (tap - 1) * step for tap, step in zip(layer.window.kernel, layer.window.dilation)
        ]


# Torch on whole tensors


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def part(tensor, box):
    return tensor[tuple(slice(low, high) for low, high in box)]


def with_padding(layer, x_nchw, block, value=0.0):
    box = algebra.read_box(layer, tuple(x_nchw.shape[1:]), block)
    (top, bottom), (left, right) = algebra.padding(layer, tuple(x_nchw.shape[1:]), block)
    return F.pad(part(x_nchw, box), (left, right, top, bottom), value=value)


@given(graph=windows(kinds=(CONV,)), batch=BATCHES, data=st.data())
def test_a_block_of_a_convolution_out_of_what_it_reads(graph, batch, data):
    layer, window = graph["it"], graph["it"].window
    weight, bias = normal(*layer.weights["weight"]), normal(*layer.weights["bias"])
    x_nchw = normal(batch, *graph["x"].out)
    options = {"stride": window.stride, "dilation": window.dilation}
    whole = F.conv2d(x_nchw, weight, bias, padding=window.padding, groups=layer.groups, **options)
    assert whole.shape == (batch, *layer.out)
    config = data.draw(configs(layer, batch))
    for device, block in enumerate(algebra.blocks(layer, config, batch)):
        low, high = algebra.shard(layer, config, batch, device)
        assert (low, high) == block[1]
        shapes = algebra.shard_shapes(layer, (low, high))
        own = {"weight": weight[low:high], "bias": bias[low:high]}
        assert {name: tuple(one.shape) for name, one in own.items()} == shapes
        groups = (high - low) * layer.groups // layer.out[0] if layer.groups > 1 else 1
        found = F.conv2d(
            with_padding(layer, x_nchw, block), own["weight"], own["bias"], groups=groups, **options
        )
        torch.testing.assert_close(found, part(whole, block), rtol=0, atol=1e-12)


@given(graph=windows(kinds=(POOL,), dilated=False), batch=BATCHES, data=st.data())
def test_a_block_of_a_pooling_out_of_what_it_reads(graph, batch, data):
    layer, window = graph["it"], graph["it"].window
    x_nchw = normal(batch, *graph["x"].out)
    mode, ceil = layer.settings["mode"], layer.settings["ceil"]
    assume(mode == "max" or not ceil)  # torch then divides by fewer at the rim; no matter of boxes
    pool, fill = (F.max_pool2d, -math.inf) if mode == "max" else (F.avg_pool2d, 0.0)
    whole = pool(x_nchw, window.kernel, window.stride, window.padding, ceil_mode=ceil)
    assert whole.shape == (batch, *layer.out)
    for block in algebra.blocks(layer, data.draw(configs(layer, batch)), batch):
        found = pool(with_padding(layer, x_nchw, block, fill), window.kernel, window.stride)
        torch.testing.assert_close(found, part(whole, block), rtol=0, atol=1e-12)


@given(graph=windows(kinds=(CONV,)), batch=BATCHES, data=st.data())
def test_gradients_of_blocks_add_up_to_the_whole_gradient(graph, batch, data):
    """Back through the same boxes: what several blocks read gets the sum of what they send back."""
    layer, window = graph["it"], graph["it"].window
    weight = normal(*layer.weights["weight"])
    x_nchw, sent = normal(batch, *graph["x"].out).requires_grad_(), normal(batch, *layer.out)
    options = {"stride": window.stride, "dilation": window.dilation}
    whole = F.conv2d(x_nchw, weight, None, padding=window.padding, groups=layer.groups, **options)
    (expected,) = torch.autograd.grad(whole, x_nchw, sent)
    found = torch.zeros_like(expected)
    for block in algebra.blocks(layer, data.draw(configs(layer, batch)), batch):
        low, high = block[1]
        groups = (high - low) * layer.groups // layer.out[0] if layer.groups > 1 else 1
        made = F.conv2d(with_padding(layer, x_nchw, block), weight[low:high], None, groups=groups, **options)
        found += torch.autograd.grad(made, x_nchw, part(sent, block))[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


# What moves


@given(graph=GRAPHS, batch=BATCHES, data=st.data())
def test_moves_tile_what_is_read_and_come_from_its_owner(graph, batch, data):
    layer = graph["it"]
    config = data.draw(configs(layer, batch, 3))
    for place, name in enumerate(layer.inputs):
        made_by = graph[name]
        own_config = data.draw(configs(made_by, batch, 3))
        owned = algebra.blocks(made_by, own_config, batch)
        read = algebra.reads(graph, layer, place, config, batch)
        found = algebra.moves(owned, read)
        shape = (batch, *made_by.out)
        owner = np.full(shape, -1)
        for device, box in enumerate(owned):
            owner[tuple(slice(low, high) for low, high in box)] = device
        devices = max(len(owned), len(read))
        expected = np.zeros((devices, devices), int)
        for target, wanted in enumerate(read):
            mine = [move for move in found if move.target == target]
            assert np.array_equal(filled(shape, [move.box for move in mine]), filled(shape, [wanted]))
            for move in mine:
                assert {owner[index] for index in indices(move.box)} == {move.source}
            for index in indices(wanted):
                if owner[index] != target:
                    expected[owner[index], target] += 1
        assert len({(move.source, move.target) for move in found}) == len(found)  # one message a pair
        assert algebra.moved_elements(found, devices) == expected.tolist()


def test_what_stays_costs_nothing():
    """Layers of one configuration move nothing but halos; those of another, what they lack."""
    x, y = source("x", (4, 8, 8)), Layer("it", POINTWISE, ("x",), (4, 8, 8))
    graph = Graph("two", [x, y])

    def moved(first, then):
        owned = algebra.blocks(x, first, 4)
        return np.array(algebra.moved_elements(algebra.moves(owned, algebra.reads(graph, y, 0, then, 4)), 4))

    for config in ((4, 1, 1, 1), (1, 4, 1, 1), (1, 1, 2, 2), (2, 1, 1, 2)):
        assert not moved(config, config).any()
    # by samples, then by channels: each gives 3 of its 4 quarters away, an all-to-all
    expected = 64 * (1 - np.eye(4))
    assert (moved((4, 1, 1, 1), (1, 4, 1, 1)) == expected).all()
    # to one device: it keeps its own quarter
    assert moved((4, 1, 1, 1), (1, 1, 1, 1)).sum() == 3 * 256


def test_halos_of_a_3_by_3_convolution():
    """Rows in 4 parts: the inner ones read a row of each neighbour, and send as many."""
    x = source("x", (5, 8, 6))
    conv = Layer("it", CONV, ("x",), (7, 8, 6), {"weight": (7, 5, 3, 3)}, Window((3, 3), (1, 1), (1, 1)))
    graph, config = Graph("two", [x, conv]), (1, 1, 4, 1)
    found = algebra.moves(algebra.blocks(x, config, 2), algebra.reads(graph, conv, 0, config, 2))
    row = 2 * 5 * 6
    table = algebra.moved_elements(found, 4)
    assert table == [[row * (abs(a - b) == 1) for b in range(4)] for a in range(4)]


# Replicas and shards


@given(graph=GRAPHS, batch=BATCHES, data=st.data())
def test_replicas_share_out_the_devices_and_hold_equal_channels(graph, batch, data):
    layer = graph["it"]
    config = data.draw(configs(layer, batch))
    groups, blocks = algebra.replicas(config), algebra.blocks(layer, config, batch)
    assert sorted(itertools.chain(*groups)) == list(range(math.prod(config)))
    parts = config[1] if len(config) > 1 else 1
    assert len(groups) == parts and {len(group) for group in groups} == {math.prod(config) // parts}
    for group in groups:
        assert list(group) == sorted(group)
        assert len({blocks[device][1:2] for device in group}) == 1
        assert len({algebra.shard(layer, config, batch, device) for device in group}) == 1
    firsts = [algebra.shard(layer, config, batch, group[0]) for group in groups]
    if layer.weights:  # a group each holds every parameter once
        assert [index for low, high in firsts for index in range(low, high)] == list(range(layer.out[0]))
        sizes = [algebra.shard_shapes(layer, one) for one in firsts]
        held = sum(math.prod(shape) for shapes in sizes for shape in shapes.values())
        assert held == layer.params == sum(map(math.prod, layer.weights.values()))
    else:
        assert set(firsts) == {None}
    assert algebra.shard(layer, config, batch, math.prod(config)) is None  # idle devices hold nothing


# Configurations


@pytest.mark.parametrize("devices", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("out", [(512, 28, 28), (4096,), ()])
def test_as_many_configurations_as_the_closed_form(devices, out):
    """The exponents of the degrees, and what is left of log2 N, are a composition of it."""
    kind = {3: POINTWISE, 1: LINEAR, 0: LOSS}[len(out)]
    found = algebra.configurations(Layer("it", kind, ("x",), out), 512, devices)
    rank, log = 1 + len(out), int(math.log2(devices))
    assert len(found) == math.comb(log + rank, rank)
    assert len(found) == {4: (1, 5, 15, 35, 70), 2: (1, 3, 6, 10, 15), 1: (1, 2, 3, 4, 5)}[rank][log]
    used_up = algebra.configurations(Layer("it", kind, ("x",), out), 512, devices, idle=False)
    assert len(used_up) == math.comb(log + rank - 1, rank - 1)
    assert {math.prod(config) for config in used_up} == {devices}


@given(
    graph=GRAPHS,
    batch=st.integers(1, 7),
    devices=st.integers(1, 8),
    degrees=st.sampled_from(["powers", "all"]),
)
def test_configurations_are_all_that_are_allowed(graph, batch, devices, degrees):
    """Sizes are prime, uneven or one; every tuple of degrees is tried."""
    layer = graph["it"]
    powers = {1, 2, 4, 8}
    expected = []
    limits = [batch, *layer.out]
    if len(layer.out) and layer.groups > 1:
        limits[1] = layer.groups
    if layer.whole_map:
        limits[2:] = [1, 1]
    for config in itertools.product(range(1, devices + 1), repeat=layer.rank):
        fits = math.prod(config) <= devices and all(map(int.__le__, config, limits))
        if fits and (degrees == "all" or powers.issuperset(config)):
            expected.append(config)
        assert bool(algebra.problems(layer, config, batch, devices)) != fits
    assert algebra.configurations(layer, batch, devices, degrees) == expected
    most = max(map(math.prod, expected))
    assert algebra.configurations(layer, batch, devices, degrees, idle=False) == [
        config for config in expected if math.prod(config) == most
    ]


def test_a_group_of_a_convolution_stays_whole():
    weights = {"weight": (12, 2, 3, 3)}
    layer = Layer("it", CONV, ("x",), (12, 5, 5), weights, Window((3, 3), padding=(1, 1)), groups=3)
    found = Counter(config[1] for config in algebra.configurations(layer, 1, 16))
    assert set(found) == {1, 2}  # of 3 groups
    assert [box[1] for box in algebra.blocks(layer, (1, 2, 1, 1), 1)] == [(0, 8), (8, 12)]
    assert algebra.read_box(layer, (6, 5, 5), ((0, 1), (8, 12), (0, 5), (0, 5)))[1] == (4, 6)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ((8, 1, 1, 1), "layer conv1: n=8, but it has only 4 there"),
        ((1, 8, 1, 1), "layer conv1: c=8, but it has only 6 there"),
        ((1, 1, 4, 1), "layer conv1: h=4, but it has only 3 there"),
        ((1, 1, 1, 2), "layer conv1: w=2, but it cannot be split there"),
        ((0, 1, 1, 1), "layer conv1: n=0; a degree is at least 1"),
        ((4, 4, 1, 1), r"layer conv1: \(4, 4, 1, 1\) takes 16 devices of 8"),
        ((2, 2), r"layer conv1: configuration \(2, 2\); needs 4 degrees"),
        (None, "layer conv1: the strategy does not say how to split it"),
    ],
)
def test_what_is_refused_is_named(config, said):
    graph = Graph("two", [source("x", (1, 3, 1)), Layer("conv1", POINTWISE, ("x",), (6, 3, 1))])
    strategy = {"x": (4, 1, 1, 1)} | ({"conv1": config} if config else {})
    with pytest.raises(UserError, match=f"^{said}$"):
        algebra.check(graph, strategy, 4, 8)
    algebra.check(graph, {"x": (4, 1, 1, 1), "conv1": (2, 2, 1, 1)}, 4, 8)


def test_all_that_is_refused_is_named_line_by_line():
    graph = Graph("two", [source("x", (6, 3, 3)), Layer("it", POINTWISE, ("x",), (6, 3, 3))])
    with pytest.raises(UserError) as raised:
        algebra.check(graph, {"x": (8, 1, 1, 1), "it": (1, 7, 4, 1), "fc9": (1, 1)}, 4, 32)
    lines = str(raised.value).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "layer fc9: the network has no such layer",
        "layer x: n=8",
        "layer it: c=7",
        "layer it: h=4",
    ]


# Boxes


@given(data=st.data(), rank=st.integers(1, 4))
def test_overlaps_volumes_and_places_as_sets_of_indices(data, rank):
    def box():
        lows = [data.draw(st.integers(0, 4)) for _ in range(rank)]
        return tuple((low, low + data.draw(st.integers(0, 4))) for low in lows)

    first, second = box(), box()
    shared = set(indices(first)) & set(indices(second))
    assert set(indices(algebra.overlap(first, second))) == shared
    assert algebra.volume(algebra.overlap(first, second)) == len(shared)
    assert algebra.volume(first) == len(set(indices(first))) == math.prod(algebra.shape(first))
    if shared:  # of a tensor that holds the first box, the part that the second shares
        values = np.arange(9**rank).reshape([9] * rank)
        both = algebra.overlap(first, second)
        held = part(values, first)[algebra.relative(both, first)]
        assert np.array_equal(held, part(values, both))
