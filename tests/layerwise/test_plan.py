"""Plans against element by element counts: who reads, sends and holds what."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from implementations.errors import UserError
from implementations.layerwise import algebra, strategies, tracing
from implementations.layerwise.equivalence import Reference, random_strategy
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
)
from implementations.layerwise.plan import Plan
from tests.layerwise.networks import branched, chain, conv, flatten, image, linear, loss, pool


def parts(layer, config, batch):
    """For each dimension of the output the indices of each part, by numpy."""
    steps = [1, layer.out[0] // layer.groups if layer.groups > 1 else 1, 1, 1]
    return [
        [part.ravel() for part in np.array_split(np.arange(size).reshape(-1, step), degree)]
        for size, step, degree in zip((batch, *layer.out), steps, config)
    ]


def owned(layer, config, batch):
    """The indices of each device's block, a list for each dimension."""
    cuts = parts(layer, config, batch)
    places = [np.unravel_index(k, config) for k in range(math.prod(config))]
    return [[cut[place] for cut, place in zip(cuts, at)] for at in places]


def owner_table(layer, config, batch):
    """The device that has each element of the output."""
    table = np.full((batch, *layer.out), -1)
    for device, block in enumerate(owned(layer, config, batch)):
        table[np.ix_(*block)] = device
    assert (table >= 0).all()
    return table


def under_windows(layer, axis, wanted, size):
    """Rows or columns of the input that the windows of some rows or columns of the output look at."""
    window = layer.window
    seen = {
        row * window.stride[axis] - window.padding[axis] + k * window.dilation[axis]
        for row in wanted
        for k in range(window.kernel[axis])
    }
    return sorted(seen & set(range(size)))


def needed(graph, layer, place, block):
    """The least and the largest index, in each dimension, of what a block needs of an input; None if of nothing."""
    source = graph.inputs(layer)[place]
    match layer.kind:
        case _ if layer.kind in (POINTWISE, NORM, ADD, MULTIPLY):
            found = block
        case _ if layer.kind in (LINEAR, LOSS):
            found = [block[0], *map(range, source.out)]
        case _ if layer.kind == POOL:
            maps = [under_windows(layer, a, block[2 + a], source.out[1 + a]) for a in range(2)]
            found = [block[0], block[1], *maps]
        case _ if layer.kind == CONV:
            inner, outer = source.out[0] // layer.groups, layer.out[0] // layer.groups
            channels = {c // outer * inner + k for c in block[1] for k in range(inner)}
            maps = [under_windows(layer, a, block[2 + a], source.out[1 + a]) for a in range(2)]
            found = [block[0], sorted(channels), *maps]
        case _ if layer.kind == FLATTEN:
            found = [block[0], *map(np.unique, np.unravel_index(block[1], source.out))]
        case _ if layer.kind == CONCAT:
            first = sum(one.out[0] for one in graph.inputs(layer)[:place])
            channels = [c - first for c in block[1] if first <= c < first + source.out[0]]
            found = [block[0], channels, *block[2:]]
    if not all(len(indices) for indices in found):
        return None
    return [(min(indices), max(indices) + 1) for indices in found]


def counted_bytes(graph, strategy, batch, devices, itemsize):
    """What each device sends directly, and the payloads of all-reduces with their groups."""
    sent, summed = np.zeros(devices), []
    for layer in graph:
        config = strategy[layer.name]
        blocks = owned(layer, config, batch)
        for place, source in enumerate(graph.inputs(layer)):
            owner = owner_table(source, strategy[source.name], batch)
            for device, block in enumerate(blocks):
                box = needed(graph, layer, place, block)
                if box is None:
                    continue
                whose, counts = np.unique(owner[tuple(slice(*one) for one in box)], return_counts=True)
                for other, count in zip(whose, counts):
                    if other != device:
                        sent[other] += count * itemsize
                        if source.kind != INPUT:  # its gradient comes back
                            sent[device] += count * itemsize
        if layer.weights:
            # the devices of each channel; what they sum is of the channels that they all have
            groups = {}
            for device, block in enumerate(blocks):
                groups.setdefault(tuple(block[1]), []).append(device)
            for channels, group in groups.items():
                if layer.kind == NORM:  # mean, variance, and two sums backward
                    summed += [(group, len(channels) * many * itemsize) for many in (1, 1, 2)]
                else:
                    values = sum(math.prod(shape[1:]) for shape in layer.weights.values())
                    summed.append((group, len(channels) * values * itemsize))
    drew = owner_table(graph["input"], strategy["input"], batch)[(slice(None), *[0] * 3)]
    computes = owner_table(graph["loss"], strategy["loss"], batch)
    for source, target in zip(drew, computes):
        sent[source] += 8 * (source != target)
    return sent, summed


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_sent_bytes_are_those_of_every_element_that_another_device_has(devices, itemsize):
    graph, batch = branched(), 6
    draws = np.random.default_rng(devices)
    for _ in range(6):
        strategy = random_strategy(graph, batch, devices, draws)
        found = np.array(Plan(graph, strategy, batch, devices).sent_bytes(itemsize))
        direct, summed = counted_bytes(graph, strategy, batch, devices, itemsize)
        # an all-reduce along a ring sends 2 (r - 1) times its bytes in all
        assert found.sum() == direct.sum() + sum(2 * (len(group) - 1) * nbytes for group, nbytes in summed)
        # and each device its r-th part of that, but for chunks that differ by one value
        slack = np.zeros(devices)
        for group, nbytes in summed:
            direct[group] += 2 * (len(group) - 1) / len(group) * nbytes
            slack[group] += 2 * (len(group) - 1) * itemsize
        assert (abs(found - direct) <= slack).all()


def test_labels_go_to_who_computes_the_loss_in_eight_bytes():
    graph, batch = chain(), 10
    plan = Plan(graph, strategies.fixed("single", graph, batch, 4), batch, 4)
    samples = [3, 3, 2, 2]  # numpy.array_split's
    assert plan.sent_bytes() == [0, *(count * (8 + 4 * 3 * 8 * 8) for count in samples[1:])]
    data = Plan(graph, strategies.fixed("data", graph, batch, 4), batch, 4)
    assert not data.labels.far()
    model = Plan(graph, strategies.fixed("model", graph, batch, 4), batch, 4)
    labels = {pair: algebra.volume(box) for pair, box in model.labels.far().items()}
    assert labels == {(1, 0): 3, (2, 0): 2, (3, 0): 2}


@pytest.mark.parametrize("devices", [1, 2, 4, 5])
def test_every_parameter_is_held_by_exactly_its_replicas(devices):
    graph, batch = branched(), 6
    draws = np.random.default_rng(10 + devices)
    for _ in range(5):
        strategy = random_strategy(graph, batch, devices, draws)
        plan = Plan(graph, strategy, batch, devices)
        holders = {
            (layer.name, name): np.zeros((devices, *shape), dtype=int)
            for layer in graph
            for name, shape in layer.weights.items()
        }
        for device, slots in enumerate(plan.slots):
            ends = [0, *np.cumsum([slot.size for slot in slots])]
            assert [slot.start for slot in slots] == ends[:-1] and plan.params(device) == ends[-1]
            for slot in slots:
                part = holders[slot.layer, slot.weight][device, slice(*slot.channels)]
                assert part.shape == slot.shape
                part += 1
        for (name, _), held in holders.items():
            wanted = np.zeros_like(held)
            for device, block in enumerate(owned(graph[name], strategy[name], batch)):
                wanted[device, block[1]] = 1
            assert (held == wanted).all()
            owners = sorted(plan.owners[name])
            assert (held[owners].sum(0) == 1).all()  # they have all of it, and nothing twice
            # and none but the first of those that hold a part
            assert all((held[:device] * held[device]).sum() == 0 for device in owners)
        assert plan.most_params == max(map(plan.params, range(devices)))


def test_parameters_of_fixed_strategies_by_hand():
    graph, batch = chain(), 8
    a, b, w, v = 8 * 28, 12 * 73, 20 * 193, 4 * 21
    held = {
        "single": [a + b + w + v, 0, 0, 0],
        "data": [a + b + w + v] * 4,
        "model": [(a + b + w + v) // 4] * 4,
        "owt": [a + b + (w + v) // 4] * 4,
    }
    for name, wanted in held.items():
        plan = Plan(graph, strategies.fixed(name, graph, batch, 4), batch, 4)
        assert list(map(plan.params, range(4))) == wanted
    slots = Plan(graph, strategies.fixed("model", graph, batch, 4), batch, 4).slots[1]
    assert [(slot.layer, slot.weight, slot.channels) for slot in slots[:2]] == [
        ("a", "weight", (2, 4)),
        ("a", "bias", (2, 4)),
    ]


def test_what_is_summed_by_hand():
    graph, batch = branched(), 6
    strategy = random_strategy(graph, batch, 1, np.random.default_rng(0))
    strategy |= {"w": (2, 2), "v": (1, 4), "a": (1, 1, 2, 1), "n": (2, 1, 1, 1)}
    found = {
        (stage.layer.name, part): (group, n)
        for stage, part, group, n in Plan(graph, strategy, batch, 4).synced
    }
    features = graph["f"].out[0]
    assert found == {
        ("a", 0): ((0, 1), 6 * 28),
        ("w", 0): ((0, 2), 5 * (features + 1)),
        ("w", 1): ((1, 3), 5 * (features + 1)),
    }  # none for the normalisation, whose gradients are its sums


def test_the_busiest_devices_share():
    graph, batch = chain(), 8
    for name, share in (("single", 1), ("data", 1 / 4)):
        plan = Plan(graph, strategies.fixed(name, graph, batch, 4), batch, 4)
        assert plan.busiest_share == pytest.approx(share)
    # the loss is computed by one device
    plan = Plan(graph, strategies.fixed("model", graph, batch, 4), batch, 4)
    of_loss = graph["loss"].flops / graph.flops
    assert plan.busiest_share == pytest.approx((1 - of_loss) / 4 + of_loss)


def unseen_rows():
    """Windows of three in steps of two over eight rows and columns: the last ones are under none."""
    x = image(2, 8, 8)
    a = conv("a", x, 4, 3, 1, 1)
    b = conv("b", a, 4, 3, 2, 0)
    p = pool("p", a, 3, 2)
    f, g = flatten("f", b), flatten("g", p)
    s = linear("s", f, 5)
    return Graph("unseen", [x, a, b, p, f, g, s, loss(s)])


def test_a_whole_map_is_taken_as_it_lies():
    graph, batch = unseen_rows(), 4
    for name in ("b", "p"):
        plan = Plan(graph, strategies.fixed("data", graph, batch, 2), batch, 2)
        stage = next(stage for stage in plan.stages if stage.layer.name == name)
        (edge,) = stage.edges
        assert edge.read == plan.stages[1].blocks and not edge.far()  # all eight rows, though seven would do
        assert stage.pads == (((0, 0), (0, 0)),) * 2
    # a device that has half of the map reads no row more than it needs
    strategy = strategies.fixed("data", graph, batch, 2) | {"a": (1, 1, 2, 1), "b": (1, 1, 1, 2)}
    plan = Plan(graph, strategy, batch, 2)
    (edge,) = next(stage for stage in plan.stages if stage.layer.name == "b").edges
    assert [box[2:] for box in edge.read] == [((0, 7), (0, 5)), ((0, 7), (4, 7))]
    # nor does one that has the map of half of its samples
    plan = Plan(graph, strategy | {"a": (2, 1, 1, 1), "b": (1, 1, 1, 1)}, batch, 2)
    (edge,) = next(stage for stage in plan.stages if stage.layer.name == "b").edges
    assert edge.read == (((0, 4), (0, 4), (0, 7), (0, 7)),)
    assert edge.far() == {(1, 0): ((2, 4), (0, 4), (0, 7), (0, 7))}


def test_rows_under_no_window_change_nothing():
    """Against torch, with every way to have the map and to split the convolution."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    traced = tracing.trace(module, (2, 8, 8), "net")
    x, labels = torch.randn(4, 2, 8, 8, dtype=torch.float64), torch.tensor([0, 2, 1, 2])
    reference = Reference(module.double(), traced, x, labels)
    base = strategies.fixed("data", traced.graph, 4, 2)
    splits = [(1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]
    for before in splits:
        for config in splits:
            found = reference.difference(base | {"0": before, "1": config}, 2)
            assert found.worst < 1e-12 and found.bytes_as_predicted


def test_a_strategy_that_does_not_fit_is_refused():
    graph = chain()
    good = strategies.fixed("data", graph, 4, 2)
    for changed, told in (
        ({"a": (2, 1, 1)}, "layer a: configuration (2, 1, 1); needs 4 degrees"),
        ({"a": (1, 1, 1, 4)}, "layer a: (1, 1, 1, 4) takes 4 devices of 2"),
        ({"w": (5, 1)}, "layer w: n=5, but it has only 4 there"),
        ({"zz": (1,)}, "layer zz: the network has no such layer"),
    ):
        with pytest.raises(UserError) as caught:
            Plan(graph, good | changed, 4, 2)
        assert told in str(caught.value)
    with pytest.raises(UserError, match="layer v: the strategy does not say how to split it"):
        Plan(graph, {name: config for name, config in good.items() if name != "v"}, 4, 2)
