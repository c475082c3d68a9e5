"""What all models share: their descriptions, and nets that have sizes and no memory."""

import pytest
import torch

from implementations import models
from implementations.config.documents import check
from implementations.config.problems import Place, Problems
from implementations.errors import UserError
from implementations.point import Point

FEATURES = 48
RESNET = {"name": "resnet", "hidden": [4, 6], "blocks": [2, 3]}
DESCRIPTIONS = [
    {"name": "fc", "hidden": [6, 4]},
    {"name": "fc_bn", "hidden": [6, 4]},
    {"name": "bow", "hidden": [6]},
    {"name": "bow", "hidden": [6], "norm_hidden": False, "output": "norm"},
    RESNET,
    {**RESNET, "split": [2, 1]},
]


def problems_of(description):
    """What config says of a description."""
    problems = Problems()
    check(description, models.BUILDERS[description["name"]]["schema"], Place("model"), problems)
    try:
        problems.raise_if_any()
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_a_description_tells_the_units_of_its_net(description):
    assert problems_of(description) == "" and models.check(description) == []
    net = models.build(description, FEATURES, 5, 2, torch.Generator())
    assert models.split_units(description) == net.units
    assert set(net.min_units.values()) == {models.least_units(description)}


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_a_narrow_net_has_the_blocks_of_its_units(description):
    net = models.build(description, FEATURES, 5, 1, torch.Generator())
    fewer = {label: count - 1 for label, count in net.units.items()}
    small = models.build(models.narrow(description, fewer), FEATURES, 5, 1, torch.Generator())
    assert small.units == fewer and small.axes == net.axes
    for name, labels in net.axes.items():
        expected = [
            fewer.get(label, size) for label, size in zip(labels, net.weights[name].shape[1:], strict=True)
        ]
        assert list(small.weights[name].shape[1:]) == expected


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_a_net_without_memory_has_its_sizes(description):
    net = models.build(description, FEATURES, 5, 1, torch.Generator())
    with torch.device("meta"):
        sizes = models.build(description, FEATURES, 5, 1, torch.Generator())
    assert sizes.theta_wp.is_meta and sizes.grad_wp.is_meta
    assert (sizes.params_per_worker, sizes.flops_per_sample, sizes.units) == (
        net.params_per_worker,
        net.flops_per_sample,
        net.units,
    )


@pytest.mark.parametrize(
    ("description", "says"),
    [
        (
            {"name": "fc_bn", "hidden": [8], "dropout": 1},
            "dropout: got 1; allowed: number >= 0 and < 1",
        ),
        ({"name": "fc_bn", "hidden": [8], "statistics": "running"}, "allowed: population | batch"),
        ({"name": "fc_bn", "hidden": [8], "ouput": "mean"}, "did you mean output?"),
        ({"name": "bow", "hidden": [8, 8]}, "hidden: got [8, 8]; allowed: array of one integer >= 1"),
        ({"name": "resnet", "hidden": [8]}, "blocks: got nothing; allowed: array of integer >= 0"),
        ({**RESNET, "split": [1, 1]}, "split: got [1, 1]; allowed: each value once"),
    ],
)
def test_mistakes_in_a_description_are_told(description, says):
    assert says in problems_of(description)


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ({**RESNET, "blocks": [1]}, "blocks: got [1]; allowed: a number for each of hidden [4, 6]"),
        ({**RESNET, "split": [3]}, "split: got [3]; allowed: sections 1 to 2"),
    ],
)
def test_arguments_that_do_not_fit_together_are_told(description, says):
    assert problems_of(description) == "" and models.check(description) == [says]


def test_defaults_need_not_be_written():
    plain = {"name": "fc_bn", "hidden": [8]}
    written = {**plain, "output": "norm", "statistics": "population", "dropout": 0.0}
    assert models.without_defaults(written) == models.without_defaults(plain) == plain
    other = {"name": "fc_bn", "hidden": [8], "output": "mean"}
    assert models.without_defaults(other) == other


@pytest.mark.parametrize(
    ("description", "label"),
    [
        ({"name": "fc", "hidden": [512, 512]}, "fc-512-512"),
        ({"name": "fc", "hidden": [64], "activation": "sigmoid"}, "fc-64"),
        ({"name": "fc", "hidden": []}, "fc"),
        ({"name": "fc_bn", "hidden": [8, 8]}, "fc_bn-8-8"),
        (
            {"name": "fc_bn", "hidden": [8], "statistics": "batch", "dropout": 0.75},
            "fc_bn-8_dropout0.75_batch",
        ),
        ({"name": "fc_bn", "hidden": [8], "output": "mean"}, "fc_bn-8_mean"),
        ({"name": "bow", "hidden": [8], "norm_hidden": False}, "bow-8_no_norm_hidden"),
        ({"name": "resnet", "hidden": [16, 32, 64], "blocks": [3, 3, 3]}, "resnet-16-32-64_blocks3-3-3"),
        ({**RESNET, "split": [1, 2], "min_blocks": 2}, "resnet-4-6_blocks2-3_min_blocks2_split1-2"),
    ],
)
def test_the_label_says_what_makes_a_net_another(description, label):
    assert Point("p", "m", "d", description, 1, "simulated", 1).model_label == label
