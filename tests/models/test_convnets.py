"""Convolutional networks of the literature: published sizes, torchvision's names, and what they refuse."""

import pytest
import torch

from implementations import models
from implementations.config.documents import check
from implementations.config.problems import Place, Problems
from implementations.errors import UserError
from implementations.models import convnets
from implementations.point import Point
from implementations.seeds import torch_stream

# What torchvision publishes, but for LeNet-5 (LeCun et al. 1998 with a full second convolution) and AlexNet with
# 12,544 inputs to the classifier: 61,100,840 + 4096 (12,544 - 9,216).
PUBLISHED = [
    ({"name": "lenet5"}, (1, 32, 32), 10, 61_706),
    ({"name": "lenet5"}, (1, 28, 28), 10, 61_706),
    ({"name": "alexnet"}, (3, 224, 224), 1000, 61_100_840),
    ({"name": "alexnet", "fc_input": 12544}, (3, 224, 224), 1000, 74_732_328),
    ({"name": "vgg16"}, (3, 224, 224), 1000, 138_357_544),
    ({"name": "inception_v3"}, (3, 299, 299), 1000, 23_834_568),
    ({"name": "resnet50"}, (3, 224, 224), 1000, 25_557_032),
]
SMALL = [
    ({"name": "lenet5"}, 784),
    ({"name": "alexnet_small", "width": 0.1, "dropout": 0.5}, 784),
    ({"name": "alexnet_small", "width": 0.1}, 3072),
    ({"name": "vgg_small", "width": 0.1}, 784),
    ({"name": "vgg_small", "width": 0.1}, 3072),
    ({"name": "vgg16", "width": 0.05}, 3072),
    ({"name": "resnet50", "width": 0.05}, 3072),
]


def on_meta(model, image, classes):
    with torch.device("meta"):
        return convnets.module(model, image, classes)


@pytest.mark.parametrize(("model", "image", "classes", "parameters"), PUBLISHED)
def test_parameters_are_those_published(model, image, classes, parameters):
    module = on_meta(model, image, classes)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert all(parameter.is_meta for parameter in module.parameters())
    assert module(torch.empty(2, *image, device="meta")).shape == (2, classes)


@pytest.mark.parametrize(
    ("name", "side", "shapes"),
    [
        ("alexnet", 224, {"features.10.weight": (256, 256, 3, 3), "classifier.1.weight": (4096, 9216)}),
        ("vgg16", 224, {"features.28.weight": (512, 512, 3, 3), "classifier.6.weight": (1000, 4096)}),
        (
            "resnet50",
            224,
            {"layer4.2.conv3.weight": (2048, 512, 1, 1), "layer1.0.downsample.1.bias": (256,)},
        ),
        (
            "inception_v3",
            299,
            {
                "Mixed_6c.branch7x7dbl_5.conv.weight": (192, 160, 1, 7),
                "Mixed_7c.branch_pool.bn.weight": (192,),
            },
        ),
    ],
)
def test_parameters_are_called_as_in_torchvision(name, side, shapes):
    """Names and shapes of its state dictionaries."""
    state = on_meta({"name": name}, (3, side, side), 1000).state_dict()
    assert {key: tuple(state[key].shape) for key in shapes} == shapes


@pytest.mark.parametrize(("fc_input", "sides"), [(9216, (55, 27, 13, 6)), (12544, (56, 28, 14, 7))])
def test_maps_of_alexnet(fc_input, sides):
    features = on_meta({"name": "alexnet", "fc_input": fc_input}, (3, 224, 224), 1000).features
    x, seen = torch.empty(1, 3, 224, 224, device="meta"), []
    for place, layer in enumerate(features):
        x = layer(x)
        if place in (0, 2, 5, 12):
            seen.append(x.shape[-1])
    assert tuple(seen) == sides and 256 * seen[-1] ** 2 == fc_input


@pytest.mark.parametrize(
    "name", ["alexnet", "vgg16", "inception_v3", "resnet50", "alexnet_small", "vgg_small"]
)
def test_half_the_width_has_about_a_quarter_of_the_weights(name):
    image = (3, 299, 299) if name == "inception_v3" else (3, 224, 224)
    whole, half = (
        sum(weight.numel() for weight in on_meta({"name": name, "width": width}, image, 10).parameters())
        for width in (1, 0.5)
    )
    assert 0.24 < half / whole < 0.27


@pytest.mark.parametrize(("model", "features"), SMALL)
def test_first_weights_come_from_the_generator_alone(model, features):
    state = torch.get_rng_state()
    first, again, other = (
        models.build(model, features, 10, 2, torch_stream(seed, "init")).theta_wp for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first[0], first[1]) and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("model", "features"), SMALL)
def test_first_scores_are_neither_lost_nor_out_of_bounds(model, features):
    net = models.build(model, features, 10, 1, torch_stream(1, "init"))
    scores = net.logits(torch.randn(1, 8, features, generator=torch_stream(1, "x")))
    assert 1e-4 < scores.std(1).mean() < 10


def test_weights_follow_their_rules():
    net = models.build({"name": "lenet5"}, 3072, 10, 1, torch_stream(1, "init"))
    weight = net.weights["features.3.weight"]  # uniform in +-1/sqrt(fan-in): variance 1 / (3 fan-in)
    assert weight.abs().max() <= 150**-0.5 and weight.var() == pytest.approx(1 / 450, rel=0.05)
    net = models.build({"name": "vgg_small"}, 3072, 10, 1, torch_stream(1, "init"))
    assert net.weights["features.7.weight"].var() == pytest.approx(2 / 576, rel=0.02)  # He et al.
    assert not net.weights["features.7.bias"].any() and net.weights["classifier.3.bias"].any()
    net = models.build({"name": "resnet50", "width": 0.1}, 3072, 10, 1, torch_stream(1, "init"))
    assert (net.weights["bn1.weight"] == 1).all() and not net.weights["bn1.bias"].any()


@pytest.mark.parametrize(
    ("model", "features", "says"),
    [
        (
            {"name": "lenet5"},
            50,
            "model lenet5: got samples of 50 values; needed: square images of 3 channels or 1",
        ),
        ({"name": "lenet5"}, 64, "model lenet5: images of 8x8 are too small for it"),
        ({"name": "alexnet"}, 784, "model alexnet: images of 28x28 are too small for it"),
        ({"name": "vgg16"}, 784, "model vgg16: images of 28x28 are too small for it"),
        ({"name": "inception_v3"}, 3072, "model inception_v3: images of 32x32 are too small for it"),
        ({"name": "vgg16", "image": 224}, 3072, "model vgg16: got images of 32x32; needed: 224x224"),
    ],
)
def test_images_that_do_not_fit_are_refused(model, features, says):
    with pytest.raises(UserError) as error:
        models.build(model, features, 10, 1, torch.Generator())
    assert str(error.value) == says


def test_images_must_be_square():
    with pytest.raises(UserError, match="model lenet5: got images of 32x28; needed: square ones"):
        on_meta({"name": "lenet5"}, (1, 32, 28), 10)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"name": "lenet5", "width": 2}, "width: got an unknown key; allowed: name, image"),
        ({"name": "alexnet", "width": 0}, "width: got 0; allowed: number > 0"),
        ({"name": "alexnet", "fc_input": 4096}, "fc_input: got 4096; allowed: 9216 | 12544"),
        ({"name": "vgg16", "dropout": 1}, "dropout: got 1; allowed: number >= 0 and < 1"),
        ({"name": "resnet50", "image": 0}, "image: got 0; allowed: integer >= 1"),
        ({"name": "alexnet", "image": 224, "width": 0.25, "fc_input": 12544}, ""),
    ],
)
def test_arguments_are_checked(model, says):
    problems = Problems()
    check(model, models.BUILDERS[model["name"]]["schema"], Place("model"), problems)
    if not says:
        problems.raise_if_any()
        return
    with pytest.raises(UserError) as error:
        problems.raise_if_any()
    assert says in str(error.value)


def test_labels_and_defaults():
    written = {"name": "alexnet", "width": 1, "dropout": 0.5, "fc_input": 12544, "image": 224}
    plain = models.without_defaults(written)
    assert plain == {"name": "alexnet", "fc_input": 12544, "image": 224}
    assert Point("p", "m", "d", plain, 1, "simulated", 1).model_label == "alexnet_fc_input12544_image224"
    assert models.check(plain) == [] and models.split_units(plain) == {}
