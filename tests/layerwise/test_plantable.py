"""Tables of plans, against text written down by hand."""

import pytest

from implementations.layerwise.graph import Graph, Layer, Window
from implementations.layerwise.plantable import comparison_table, plan_table


@pytest.fixture
def net() -> Graph:
    three = Window((3, 3), padding=(1, 1))
    return Graph(
        "small",
        [
            Layer("input", "input", (), (3, 8, 8)),
            Layer(
                "features.0", "conv", ("input",), (64, 8, 8), {"weight": (64, 3, 3, 3), "bias": (64,)}, three
            ),
            Layer("features.1", "norm", ("features.0",), (64, 8, 8), {"weight": (64,), "bias": (64,)}),
            Layer("features.2", "pointwise", ("features.1",), (64, 8, 8)),
            Layer("features.3", "conv", ("features.2",), (4, 8, 8), {"weight": (4, 64, 3, 3)}, three),
            Layer("features.4", "pool", ("features.3",), (4, 4, 4), window=Window((2, 2), (2, 2))),
            Layer("flatten", "flatten", ("features.4",), (64,)),
            Layer("fc", "linear", ("flatten",), (10,), {"weight": (10, 64), "bias": (10,)}),
            Layer("loss", "loss", ("fc",), ()),
        ],
    )


@pytest.fixture
def strategy(net) -> dict[str, tuple[int, ...]]:
    by_sample = {name: (4, 1, 1, 1) for name in net.layers if net[name].rank == 4}
    return {**by_sample, "flatten": (2, 1), "fc": (1, 2), "loss": (1,)}


def test_plan_in_the_terminal(net, strategy):
    assert plan_table(net, strategy, 4) == "\n".join(
        [
            "layers                     kind            split     output     parameters  devices",
            "-------------------------  --------------  --------  ---------  ----------  -------",
            "input                      input           n=4       3 x 8 x 8           -      4/4",
            "features.0 ... features.4  2 conv, 1 pool  n=4       4 x 4 x 4       4,224      4/4",
            "flatten                    flatten         n=2       64                  -      2/4",
            "fc                         linear          c=2       10                650      2/4",
            "loss                       loss            1 device  1                   -      1/4",
        ]
    )


def test_plan_counts_every_parameter_once(net, strategy):
    lines = plan_table(net, strategy, 4).splitlines()[2:]
    counts = [line.split()[-2].replace(",", "") for line in lines]
    assert sum(int(count) for count in counts if count != "-") == net.params


def test_plan_in_markdown(net, strategy):
    lines = plan_table(net, strategy, 4, markdown=True).splitlines()
    assert lines[1].replace("-", "").replace(" ", "") == "|||||:|:|"
    assert lines[3].split("|")[3].strip() == "n=4"
    assert len({len(line) for line in lines}) == 1


def test_layers_with_another_configuration_between_them_stay_apart(net, strategy):
    lines = plan_table(net, {**strategy, "features.3": (1, 2, 2, 1)}, 4).splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["features.0", "features.3", "features.4"]
    assert "c=2 h=2" in lines[4]


def test_comparison():
    rows = [
        {
            "strategy": "data",
            "step_s": 0.25,
            "samples_per_s": 512.0,
            "network_bytes": 2_000_000_000,
            "state_bytes_max": 1_500_000,
        },
        {"strategy": "single", "state_bytes_max": 12e6, "step_s": None, "reason": "over the memory limit"},
    ]
    assert comparison_table(rows) == "\n".join(
        [
            "strategy                        step (ms)  samples/s  sent (MB)  fullest device (MB)",
            "------------------------------  ---------  ---------  ---------  -------------------",
            "data                               250.00      512.0   2,000.00                  1.5",
            "single (over the memory limit)          -          -          -                 12.0",
        ]
    )
    assert comparison_table(rows, markdown=True).splitlines()[0].startswith("| strategy ")
