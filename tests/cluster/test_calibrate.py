"""A real, hasty calibration, and what must hold of it whatever the machine's speed."""

import platform
from dataclasses import replace

import pytest
import torch
import yaml

from implementations import host
from implementations.cluster import calibrate as calibration
from implementations.cluster import machine
from implementations.errors import UserError
from implementations.optimizers.ng_sgd import NaturalGradientSGD
from implementations.point import Point

pytestmark = pytest.mark.timeout(300)  # the fixture starts processes, which takes long on a busy machine
EXTRA = {
    "label": "fc-24",
    "model": {"name": "fc", "hidden": [24]},
    "features": 12,
    "classes": 3,
    "minibatch": 8,
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The file of one quick calibration, and the lines that it reported."""
    out, lines = tmp_path_factory.mktemp("results") / "calibration" / "this-host.yaml", []
    assert calibration.calibrate(out, quick=True, shapes=[EXTRA], report=lines.append) == out
    return out, lines


def test_a_quick_calibration_makes_a_cluster_that_loads(measured):
    out, lines = measured
    cluster = machine.load("this-host", out.parents[1])
    assert (cluster.name, cluster.nodes, cluster.capacity) == ("this-host", 1, host.cores())
    assert cluster.inside_node.latency_s > 0
    assert 1e7 < cluster.inside_node.bandwidth_bytes_per_s < 1e12
    assert 1e8 < cluster.device.peak_flops < 1e14
    assert len(cluster.device.flops_by_shape) == 9
    assert str(out) in lines[-1]
    assert [path.name for path in out.parent.iterdir()] == [out.name]  # no draft left


def test_every_model_is_timed_alone_and_with_company(measured):
    cluster = machine.load(measured[0])
    busy = {1, min(2, host.cores()), min(8, host.cores())}
    for shape in [*calibration.QUICK_SHAPES, EXTRA]:
        label = "-".join(["fc", *map(str, shape["model"]["hidden"])])
        rows = [row for row in cluster.steps if (row.model, row.minibatch) == (label, shape["minibatch"])]
        assert {row.busy_ranks for row in rows if row.threads == 1} == busy
        assert {row.threads for row in rows if row.busy_ranks == 1} == {1, host.cores()}
        assert all(row.step_s > 0 and row.data_s > 0 and row.step_sd_s >= 0 for row in rows)
    extra = next(row for row in cluster.steps if row.model == "fc-24")
    assert extra.model_params == 12 * 24 + 24 + 24 * 3 + 3
    # twice forward, twice for the weights' gradient, twice for the inputs' but in the first layer
    assert extra.flops_per_sample == 6 * (12 * 24 + 24 * 3) - 2 * 12 * 24


def test_collectives_are_timed_by_algorithm_and_size(measured):
    cluster = machine.load(measured[0])
    assert set(cluster.collectives) == {("allreduce", name, 2) for name in ("library", "ring", "butterfly")}
    for rows in cluster.collectives.values():
        assert [nbytes for nbytes, _ in rows] == [4, 65_536, 1_048_576]
        assert all(seconds > 0 for _, seconds in rows)


def test_the_file_says_what_was_measured_but_not_whose_machine_it_is(measured):
    text = measured[0].read_text()
    values = yaml.safe_load(text)
    assert values["software"]["torch"] == torch.__version__
    assert values["software"]["mpi"] not in ("", "none")
    assert str(host.cores()) in values["hardware"]
    assert len(platform.node()) < 6 or platform.node() not in text  # a short name may be any word
    assert "/" not in values["source"]


def test_a_calibration_that_fails_leaves_the_old_file(tmp_path):
    out = tmp_path / "this-host.yaml"
    out.write_text("old")
    with pytest.raises(UserError, match="no-such-launcher"):
        calibration.calibrate(
            out, quick=True, settings={"command": "no-such-launcher"}, report=lambda line: None
        )
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_measuring_process_that_fails_is_told_with_its_last_words(tmp_path):
    order = {"shapes": [EXTRA | {"model": {"name": "none"}}], "quick": True, "threads": [1]}
    with pytest.raises(UserError, match=r"KeyError: 'none'\n.*doctor"):
        calibration._measure(1, order, None)


def test_the_timed_step_is_a_step_of_gradient_descent():
    """Against torch's own layers and optimiser on the same samples."""
    step = calibration._TrainingStep(EXTRA, torch.rand(50, 12))
    module = step.net.to_module()
    drawn = torch.Generator()
    drawn.set_state(step.generator.get_state())
    rows = torch.randint(50, (3, 8), generator=drawn)
    seconds = step.run(3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for index in rows:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(step.x_ni[index]), step.y_n[index]).backward()
        optimizer.step()
    flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    torch.testing.assert_close(step.net.theta_wp[0], flat)
    assert seconds.shape == (2, 3)
    assert (seconds > 0).all()


def test_shapes_of_points_are_told_once_each():
    """By the data sets' cards: digits are 8 x 8, Fashion-MNIST 28 x 28, both of ten classes."""
    fc = {"name": "fc", "hidden": [8]}
    point = Point("averaging", "sequential", "digits", fc, 1, "measured", 1, minibatch=16)
    points = [
        point,
        replace(point, seed=2),
        replace(point, minibatch=32),
        replace(point, dataset="fashion_mnist"),
        replace(point, optimizer="ng_sgd", recipe={"ng_rank_in": 7}),
    ]
    plain = {"label": "fc-8", "model": fc, "features": 64, "classes": 10, "minibatch": 16}
    *first, last = calibration.shapes_of(points)
    assert first == [plain, plain | {"minibatch": 32}, plain | {"features": 784}]
    optimizer = last.pop("optimizer")
    assert last == plain | {"label": "ng_sgd/1:fc-8"}
    assert (optimizer["name"], optimizer["ng_rank_in"]) == ("ng_sgd", 7)


def test_steps_of_rmsprop_are_shapes_of_their_own():
    fc = {"name": "fc", "hidden": [8]}
    point = Point("spark", "sequential", "digits", fc, 1, "measured", 1, minibatch=16, optimizer="rmsprop")
    (shape,) = calibration.shapes_of([replace(point, seed=2), point])
    assert shape["label"] == point.step_label == "rmsprop:fc-8"
    step = calibration._TrainingStep(shape, torch.rand(50, 64))
    assert isinstance(step.optimizer, torch.optim.RMSprop)
    assert step.run(2).shape == (2, 2) and bool(step.net.theta_wp.isfinite().all())


def test_a_step_is_timed_with_the_points_own_optimizer():
    fc = {"name": "fc", "hidden": [8]}
    point = Point("averaging", "sequential", "digits", fc, 1, "measured", 1, minibatch=16, optimizer="ng_sgd")
    (shape,) = calibration.shapes_of([point])
    step = calibration._TrainingStep(shape, torch.rand(50, 64))
    assert isinstance(step.optimizer, NaturalGradientSGD)
    before = step.net.theta_wp.clone()
    assert step.run(3).shape == (2, 3)
    assert not torch.equal(step.net.theta_wp, before) and bool(step.net.theta_wp.isfinite().all())
