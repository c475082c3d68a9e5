"""Convolutional networks cut by filters and by rows of images, against plain autograd of the same network."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from training_runs import point_of, trained, whole_model

from implementations.errors import UserError
from implementations.spark import nets
from implementations.spark.cnn import FilterProgram
from implementations.spark.rows import RowProgram
from implementations.spark.traffic import step_bytes
from tests.spark.programs import Steps, network, one_by_one, samples

CUTS = {"filters": FilterProgram, "rows": RowProgram}
NETS = [
    ({"name": "cnn", "filters": [9, 11], "kernel": 5, "hidden": [13]}, (1, 12, 12), 10),
    ({"name": "cnn", "filters": [8, 9, 10], "kernel": 3, "hidden": []}, (3, 13, 13), 10),  # 13 -> 6 -> 3 -> 1
    ({"name": "cnn", "filters": [8], "kernel": 1, "hidden": [9, 8]}, (1, 7, 7), 11),
    ({"name": "cnn", "filters": [8, 8], "hidden": [8]}, (1, 4, 4), 8),  # kernels larger than the map
]
LR = 0.1


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def scores(model, image, weights, x_bi):
    """The network written out."""
    a, parameters = x_bi.view(-1, *image), iter(weights.values())
    for _ in model["filters"]:
        z = F.conv2d(a, next(parameters), next(parameters), padding=model.get("kernel", 5) // 2)
        a = F.max_pool2d(F.relu(z), 2)
    a = a.flatten(1)
    for _ in model["hidden"]:
        a = F.relu(F.linear(a, next(parameters), next(parameters)))
    return F.linear(a, next(parameters), next(parameters))


def autograd(model, image, weights, x_bi, y_b):
    """Loss and gradients of whole parameters by plain torch."""
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    loss = F.cross_entropy(scores(model, image, weights, x_bi), y_b)
    return loss.detach(), dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def assert_close(found, expected, tolerance=1e-12):
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("model", "image", "classes"), NETS)
@pytest.mark.usefixtures("_double")
def test_five_steps_are_those_of_one_device(model, image, classes, cut, workers):
    features, batch = math.prod(image), 5
    net = network(model, features, classes)
    expected = {name: weight[0].clone() for name, weight in net.weights.items()}
    steps = Steps(nets.program(model, features, classes, workers, batch, cut), net)
    for step in range(5):
        x_bi, y_b = samples(batch, features, classes, seed=step)
        loss, gradients = autograd(model, image, expected, x_bi, y_b)
        for name, gradient in gradients.items():
            expected[name] -= LR * gradient
        torch.testing.assert_close(steps.step([x_bi], [y_b], LR), loss)
        assert_close(steps.grads(), gradients)
    assert_close(steps.weights(), expected)


@pytest.mark.parametrize("driver", [False, True])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.usefixtures("_double")
def test_groups_and_a_driver_change_nothing(cut, driver):
    model, image, classes = NETS[0]
    features, batch = math.prod(image), 4
    net = network(model, features, classes)
    steps = Steps(nets.program(model, features, classes, 3, batch, cut), net, groups=2, driver=driver)
    x_bi, y_b = samples(2 * batch, features, classes)
    weights = {name: weight[0] for name, weight in net.weights.items()}
    loss, gradients = autograd(model, image, weights, x_bi, y_b)
    torch.testing.assert_close(steps.gradients(x_bi.view(2, batch, -1), y_b.view(2, batch)), loss)
    assert_close(steps.grads(), gradients)
    # the second group has the same gradients
    assert torch.equal(steps.grad_wp[:3], steps.grad_wp[3:])


@st.composite
def _cases(draw):
    side, kernel = draw(st.integers(4, 12)), draw(st.sampled_from([1, 3, 5]))
    filters = draw(st.lists(st.integers(1, 6), min_size=1, max_size=side.bit_length() - 1))
    hidden = draw(st.lists(st.integers(1, 5), max_size=2))
    model = {"name": "cnn", "filters": filters, "kernel": kernel, "hidden": hidden}
    image = (draw(st.sampled_from([1, 3])), side, side)
    return model, image, draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(2, 5))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.usefixtures("_double")
@given(_cases())
@settings(max_examples=40)
def test_any_sizes_have_the_gradients_of_autograd(cut, case):
    """Fewer filters, units, classes or rows than workers among them: some own nothing of a layer."""
    model, image, workers, batch, classes = case
    features = math.prod(image)
    net = network(model, features, classes)
    x_bi, y_b = samples(batch, features, classes)
    program = CUTS[cut](model, features, classes, workers, batch)
    found, found_loss = one_by_one(program, net, x_bi, y_b)
    loss, gradients = autograd(model, image, {n: w[0] for n, w in net.weights.items()}, x_bi, y_b)
    torch.testing.assert_close(found_loss, loss)
    assert_close(found, gradients)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.usefixtures("_double")
def test_replicated_kernels_stay_equal_to_the_last_bit(workers):
    model, image, classes = NETS[1]
    features = math.prod(image)
    program = RowProgram(model, features, classes, workers, 3)
    steps = Steps(program, network(model, features, classes))
    before_wp = steps.theta_wp.clone()
    for seed in range(3):
        steps.step(*([part] for part in samples(3, features, classes, seed)))
    kernels = 10 * 9 * 9 + 10 + 9 * 8 * 9 + 9 + 8 * 3 * 9 + 8  # filters * channels * 3 * 3 and biases
    assert (steps.theta_wp[:, :kernels] == steps.theta_wp[0, :kernels]).all()
    assert not torch.equal(steps.theta_wp, before_wp)


# Bytes of a step of 28 x 28 images, two convolutions of 5 x 5 (28 -> 14 -> 7), 64 hidden units and 10 classes.
MNIST = {"name": "cnn", "filters": [16, 24], "kernel": 5, "hidden": [64]}


def counted(cut, workers, batch, driver):
    program = nets.program(MNIST, 784, 10, workers, batch, cut)
    steps = Steps(program, network(MNIST, 784, 10), driver=driver)
    steps.gradients(*([part] for part in samples(batch, 784, 10)))
    assert steps.ledger.sent_bytes_total == step_bytes(program.exchanges, workers, driver)
    return steps.ledger.sent_bytes_total


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_bytes_of_a_cut_by_filters(workers):
    """A ring's all-gather or reduce-scatter puts n values on k - 1 links; a driver gets and gives n and k n."""
    batch = 3
    values = batch * (
        16 * 14 * 14 + 24 * 7 * 7 + 64
    )  # pooled maps and hidden units, once forward, once backward
    scores_ = batch * 10
    assert counted("filters", workers, batch, driver=False) == 4 * (workers - 1) * (2 * values + scores_)
    assert counted("filters", workers, batch, driver=True) == 4 * (workers + 1) * (2 * values + scores_)


# Rows of the 14 that others need, by workers: with 2, pooled rows of the second convolution are 4 and 3, so that the
# first worker reads rows 0 to 9 of 14 and the second 6 to 13, of which they own 7 each: 3 and 1 move.
# With 4, 2 2 2 1 pooled rows read 0-5, 2-9, 6-13, 10-13 and 4 4 3 3 are owned:
# 4 5 | 2 3 and 8 9 | 6 7 and 11 12 13 | 10.
@pytest.mark.parametrize(("workers", "moved"), [(2, 3 + 1), (4, 2 + 4 + 5 + 1)])
def test_bytes_of_a_cut_by_rows(workers, moved):
    batch, kernels = 3, 16 * 25 + 16 + 24 * 16 * 25 + 24
    halo = batch * moved * 16 * 14  # all channels, and whole rows; the same backward
    gathered = batch * (24 * 7 * 7 + 64)
    links = (workers - 1) * (2 * gathered + batch * 10)
    assert counted("rows", workers, batch, driver=False) == 4 * (
        2 * halo + links + 2 * (workers - 1) * kernels
    )
    driver = (workers + 1) * (2 * gathered + batch * 10) + 2 * 2 * halo + 2 * workers * kernels
    assert counted("rows", workers, batch, driver=True) == 4 * driver


def test_rows_that_a_worker_needs_may_be_those_of_several_others():
    """Seven pooled rows on eight workers: the last computes nothing, and thin blocks have far neighbours."""
    program = RowProgram({"name": "cnn", "filters": [2, 2], "kernel": 9, "hidden": []}, 28 * 28, 10, 8, 1)
    halo = program.exchanges[0]
    # of 14 rows 2 2 2 2 2 2 1 1 are owned; worker 3 computes rows 6 and 7 and reads 2 to 11
    assert sorted(source for source, target in halo.pairs if target == 3) == [1, 2, 4, 5]
    assert not any(target == 7 for _, target in halo.pairs)
    assert program.flops_per_sample(7) == program.dense.flops_per_sample(7, True) + 4 * 2 * 81 * 28 * 2


@pytest.mark.parametrize("cut", CUTS)
def test_one_worker_trains_as_one_device(cut, results):
    model = {"name": "cnn", "filters": [4, 6], "kernel": 3, "hidden": [12]}
    ours = trained(point_of("spark", model=model, method_params={"cut": cut}), results)
    theirs = trained(point_of("sequential", model=model), results)
    assert torch.equal(ours.net.theta_wp, theirs.net.theta_wp)
    assert ours.columns()["sent_bytes_total"] == 0


@pytest.mark.parametrize("execution", ["barrier", "job_per_exchange"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("workers", [2, 4])
def test_a_run_ends_where_that_of_replicas_does(cut, workers, execution, results):
    """Replicas that average their gradients in each step make the steps of one device with all samples."""
    model = {"name": "cnn", "filters": [4, 6], "kernel": 3, "hidden": [12]}
    settings_ = {"cut": cut, "execution": execution}
    run = trained(point_of("spark", workers, model=model, minibatch=4, method_params=settings_), results)
    replicas = trained(point_of("data_parallel", workers, model=model, minibatch=4), results)
    torch.testing.assert_close(whole_model(run), whole_model(replicas), rtol=1e-4, atol=1e-5)
    columns = run.columns()
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"] > 0


def test_too_few_filters_are_refused_by_name():
    with pytest.raises(UserError, match="model cnn has a layer of 3 units for 4 workers"):
        nets.program({"name": "cnn", "filters": [8, 3], "hidden": [8]}, 784, 10, 4, 8, "filters")


def test_too_small_images_are_refused_by_name():
    model = {"name": "cnn", "filters": [4, 4, 4], "hidden": []}
    with pytest.raises(UserError, match=r"images of 6x6 are too small .* allowed: at most 2 filters"):
        nets.program(model, 36, 10, 2, 8, "rows")
