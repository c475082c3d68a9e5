"""The fixed strategies, against configurations written down by hand."""

import pytest

from implementations.errors import UserError
from implementations.layerwise import algebra, strategies
from implementations.layerwise.graph import Graph, Layer, Window


@pytest.fixture
def net() -> Graph:
    """Every kind that a rule tells apart: a grouped convolution, a sum over two paths, a norm, linear layers."""
    three = Window((3, 3), padding=(1, 1))
    return Graph(
        "small",
        [
            Layer("input", "input", (), (3, 8, 8)),
            Layer("conv1", "conv", ("input",), (6, 8, 8), {"weight": (6, 3, 3, 3)}, three),
            Layer("norm1", "norm", ("conv1",), (6, 8, 8), {"weight": (6,), "bias": (6,)}),
            Layer("relu1", "pointwise", ("norm1",), (6, 8, 8)),
            Layer("conv2", "conv", ("relu1",), (6, 8, 8), {"weight": (6, 3, 3, 3)}, three, groups=2),
            Layer("add", "add", ("conv2", "relu1"), (6, 8, 8)),
            Layer("pool", "pool", ("add",), (6, 4, 4), window=Window((2, 2), (2, 2))),
            Layer("flatten", "flatten", ("pool",), (96,)),
            Layer("fc1", "linear", ("flatten",), (32,), {"weight": (32, 96), "bias": (32,)}),
            Layer("relu2", "pointwise", ("fc1",), (32,)),
            Layer("fc2", "linear", ("relu2",), (32,), {"weight": (32, 32)}),
            Layer("sum", "add", ("fc2", "relu2"), (32,)),
            Layer("fc3", "linear", ("sum",), (3,), {"weight": (3, 32)}),
            Layer("loss", "loss", ("fc3",), ()),
        ],
    )


def test_single_computes_all_on_one_device_and_reads_on_all(net):
    found = strategies.fixed("single", net, 8, 4)
    assert found["input"] == (4, 1, 1, 1)
    assert {config for name, config in found.items() if name != "input"} == {(1, 1, 1, 1), (1, 1), (1,)}


def test_data_splits_all_samples(net):
    found = strategies.fixed("data", net, 8, 4)
    assert set(found.values()) == {(4, 1, 1, 1), (4, 1), (4,)}
    assert set(strategies.fixed("data", net, 3, 4).values()) == {(3, 1, 1, 1), (3, 1), (3,)}


def test_model_splits_all_channels_as_far_as_there_are_any(net):
    assert strategies.fixed("model", net, 8, 4) == {
        "input": (4, 1, 1, 1),
        "conv1": (1, 4, 1, 1),
        "norm1": (1, 4, 1, 1),
        "relu1": (1, 4, 1, 1),
        "conv2": (1, 2, 1, 1),
        "add": (1, 4, 1, 1),
        "pool": (1, 4, 1, 1),
        "flatten": (1, 4),
        "fc1": (1, 4),
        "relu2": (1, 4),
        "fc2": (1, 4),
        "sum": (1, 4),
        "fc3": (1, 3),
        "loss": (1,),
    }


def test_one_weird_trick_changes_at_the_first_linear_layer(net):
    by_sample = ["input", "conv1", "norm1", "relu1", "conv2", "add", "pool"]
    assert strategies.fixed("owt", net, 8, 4) == {
        **dict.fromkeys(by_sample, (4, 1, 1, 1)),
        "flatten": (4, 1),
        **dict.fromkeys(["fc1", "relu2", "fc2", "sum"], (1, 4)),
        "fc3": (1, 3),
        "loss": (4,),
    }


@pytest.mark.parametrize("name", [name for name in strategies.STRATEGIES if name != "layerwise"])
@pytest.mark.parametrize(("batch", "devices"), [(1, 1), (2, 16), (32, 5)])
def test_all_are_allowed_and_followers_follow(net, name, batch, devices):
    found = strategies.fixed(name, net, batch, devices)
    algebra.check(net, found, batch, devices)
    assert all(found[layer] == found[leader] for layer, leader in net.leaders().items())
    if devices == 1:
        assert {degree for config in found.values() for degree in config} == {1}


@pytest.mark.parametrize("name", ["layerwise", "best"])
def test_what_is_no_fixed_strategy_is_refused(net, name):
    with pytest.raises(UserError, match=f"strategy {name}: .* single, data, model, owt"):
        strategies.fixed(name, net, 8, 4)


def test_completing_needs_all_leaders(net):
    given = strategies.fixed("owt", net, 8, 4)
    leaders = {name: given[name] for name in set(net.leaders().values())}
    assert strategies.complete(net, leaders) == given
    del leaders["fc2"]
    with pytest.raises(UserError, match="layer fc2"):
        strategies.complete(net, leaders)
