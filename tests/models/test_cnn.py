"""The plain convolutional network: its sizes, its module and its runs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from training_runs import point_of, trained

from implementations import models
from implementations.config.documents import check
from implementations.config.problems import Place, Problems
from implementations.errors import UserError
from implementations.models import cnn
from implementations.seeds import torch_stream

LENET = {"name": "cnn", "filters": [32, 64], "kernel": 5, "hidden": [512]}


def plain(filters=(32, 64), kernel=5):
    """Of 28 x 28 images, written out."""
    return nn.Sequential(
        nn.Conv2d(1, filters[0], kernel, padding=kernel // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(filters[0], filters[1], kernel, padding=kernel // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(filters[1] * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def build(model, features, classes=10, workers=1):
    return models.build(model, features, classes, workers, torch_stream(3, "init"))


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_loss_and_gradients_are_torch_s(kernel):
    net = build({**LENET, "filters": [4, 6], "kernel": kernel}, 784, workers=2)
    net.theta_wp[1] *= 0.5
    generator = torch.Generator().manual_seed(1)
    x_wbi = torch.randn(2, 3, 784, generator=generator)
    y_wb = torch.randint(10, (2, 3), generator=generator)
    losses = []
    loss = net.loss_and_grad(x_wbi, y_wb)
    for worker in range(2):
        module = plain((4, 6), kernel)
        for parameter, weight in zip(module.parameters(), net.weights.values(), strict=True):
            parameter.data.copy_(weight[worker])
        losses.append(F.cross_entropy(module(x_wbi[worker].view(3, 1, 28, 28)), y_wb[worker]))
        losses[-1].backward()
        for parameter, gradient in zip(module.parameters(), net.grads.values(), strict=True):
            torch.testing.assert_close(gradient[worker], parameter.grad)
    torch.testing.assert_close(loss, torch.stack(losses).mean().detach())


def test_parameters_and_operations_are_those_of_the_module():
    net = build(LENET, 784)
    assert net.params_per_worker == (32 * 25 + 32) + (64 * 32 * 25 + 64) + (3136 * 512 + 512) + 5130
    assert list(net.weights)[:2] == list(cnn.parameter_names("conv", 0))
    assert list(net.weights)[-2:] == list(cnn.parameter_names("fc", 1))
    with FlopCounterMode(display=False) as counter:
        plain()(torch.zeros(2, 1, 28, 28)).sum().backward()
    assert net.flops_per_sample == counter.get_total_flops() / 2


def test_a_net_without_memory_has_its_sizes():
    with torch.device("meta"):
        net = build(LENET, 784, workers=2)
    assert net.theta_wp.is_meta and net.theta_wp.shape == (2, build(LENET, 784).params_per_worker)


def test_first_weights_are_drawn_by_torch_s_rule():
    net, bounds = build(LENET, 784), []
    for fan_in in (25, 32 * 25, 3136, 512):
        bounds += [fan_in**-0.5] * 2
    for bound, weight in zip(bounds, net.weights.values(), strict=True):
        assert 0.7 * bound < weight.abs().max() <= bound


def test_odd_sides_lose_their_last_row_and_colours_are_three_channels():
    net = cnn.sizes(3 * 13 * 13, 5, [4, 6], [7], 3)
    assert net.maps == ((3, 13, 13), (4, 6, 6), (6, 3, 3)) and net.widths == (54, 7, 5)
    assert cnn.module(net)(torch.zeros(2, 3, 13, 13)).shape == (2, 5)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (36, r"images of 6x6 are too small for 3 poolings .*; allowed: at most 2 filters"),
        (7, "model cnn: got samples of 7 values; needed: square images"),
    ],
)
def test_images_that_do_not_fit_are_refused(features, message):
    with pytest.raises(UserError, match=message):
        build({"name": "cnn", "filters": [4, 4, 4], "hidden": []}, features)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [({"kernel": 4}, "kernel"), ({"filters": []}, "filters"), ({"hidden": None}, "hidden")],
)
def test_config_names_what_is_wrong_with_a_description(changes, wrong):
    problems = Problems()
    check({**LENET, **changes}, models.BUILDERS["cnn"]["schema"], Place("model"), problems)
    with pytest.raises(UserError, match=f"model: {wrong}: got"):
        problems.raise_if_any()


def test_a_point_s_label_reads_well():
    assert point_of("sequential", model=LENET).model_label == "cnn-512_filters32-64_kernel5"
    usual = models.without_defaults(LENET)
    assert point_of("sequential", model=usual).model_label == "cnn-512_filters32-64"


@pytest.mark.parametrize(
    ("method", "workers"), [("sequential", 1), ("data_parallel", 2), ("averaging", 2), ("layerwise", 2)]
)
def test_methods_train_it(method, workers, results):
    model = {"name": "cnn", "filters": [4, 6], "kernel": 3, "hidden": [12]}
    run = trained(point_of(method, workers, model=model), results)
    assert run.test()["accuracy"] > 0.3  # chance: 0.1
