"""A real, hasty calibration, and what must hold of it whatever the machine's speed."""

import contextlib
import platform
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from implementations import host
from implementations.cluster import calibrate as calibration
from implementations.cluster import linktimes, machine, measuring, shapes, steptimes
from implementations.cluster.hosts import network
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
    assert calibration.calibrate(out, quick=True, wanted=[EXTRA], report=lines.append) == out
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
    for shape in [*shapes.QUICK, EXTRA]:
        label = "-".join(["fc", *map(str, shape["model"]["hidden"])])
        rows = [row for row in cluster.steps if (row.model, row.minibatch) == (label, shape["minibatch"])]
        assert {row.busy_ranks for row in rows if row.threads == 1} == busy
        threads = {1} if shape is EXTRA else {1, host.cores()}  # nobody asked for more
        assert {row.threads for row in rows if row.busy_ranks == 1} == threads
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
    order = {"shapes": [EXTRA | {"model": {"name": "none"}}], "quick": True}
    with pytest.raises(UserError, match=r"KeyError: 'none'\n.*doctor"):
        measuring.measure(1, order)


def test_the_timed_step_is_a_step_of_gradient_descent():
    """Against torch's own layers and optimiser on the same samples."""
    step = steptimes.TrainingStep(EXTRA, torch.rand(50, 12))
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
    *first, last = shapes.of_points(points)
    assert first == [plain, plain | {"minibatch": 32}, plain | {"features": 784}]
    optimizer = last.pop("optimizer")
    assert last == plain | {"label": "ng_sgd/1:fc-8"}
    assert (optimizer["name"], optimizer["ng_rank_in"]) == ("ng_sgd", 7)


def test_steps_of_rmsprop_are_shapes_of_their_own():
    fc = {"name": "fc", "hidden": [8]}
    point = Point("spark", "sequential", "digits", fc, 1, "measured", 1, minibatch=16, optimizer="rmsprop")
    (shape,) = shapes.of_points([replace(point, seed=2), point])
    assert shape["label"] == point.step_label == "rmsprop:fc-8"
    step = steptimes.TrainingStep(shape, torch.rand(50, 64))
    assert isinstance(step.optimizer, torch.optim.RMSprop)
    assert step.run(2).shape == (2, 2) and bool(step.net.theta_wp.isfinite().all())


def test_a_step_is_timed_with_the_points_own_optimizer():
    fc = {"name": "fc", "hidden": [8]}
    point = Point("averaging", "sequential", "digits", fc, 1, "measured", 1, minibatch=16, optimizer="ng_sgd")
    (shape,) = shapes.of_points([point])
    step = steptimes.TrainingStep(shape, torch.rand(50, 64))
    assert isinstance(step.optimizer, NaturalGradientSGD)
    before = step.net.theta_wp.clone()
    assert step.run(3).shape == (2, 3)
    assert not torch.equal(step.net.theta_wp, before) and bool(step.net.theta_wp.isfinite().all())


class Alone:
    """One process that stands in for several."""

    rank, size, world = 0, 1, None

    def barrier(self):
        pass

    def slowest(self, seconds):
        return seconds

    def all(self, values):
        return values


def test_steps_are_timed_in_rounds(monkeypatch):
    """A slow spell of the machine falls on all shapes alike: the median of a shape's blocks leaves it out.

    A fake step of 1 ms, and in the second round of 5 ms; single steps alternate by 0.2 ms inside every block.
    """
    called = []

    class Step:
        net = type("Net", (), {"params_per_worker": 7, "flops_per_sample": 11})

        def __init__(self, shape, x_ni):
            self.name, self.blocks = shape["label"], 0

        def run(self, steps):
            if steps > steptimes.COLD + 1:  # neither warming up nor cold
                self.blocks += 1
                called.append(self.name)
            step_s = (5e-3 if self.blocks == 2 else 1e-3) + 1e-4 * (-1.0) ** np.arange(steps)
            return np.stack([step_s, np.full(steps, 1e-5)])

    monkeypatch.setattr(steptimes, "TrainingStep", Step)
    asked = [EXTRA | {"label": name} for name in ("a", "b")]
    rows = steptimes.rows(asked, 1, True, Alone())
    assert called == ["a", "b"] * steptimes.QUICK_BLOCKS
    for row in rows:
        assert row["step_s"] == pytest.approx(1e-3, rel=0.01) and row["data_s"] == pytest.approx(1e-5)
        assert row["step_iqr_s"] == pytest.approx(2e-4)  # the drift between blocks is no variation of steps
        assert row["step_sd_s"] == pytest.approx(2e-4 / 1.349)
        assert (row["model_params"], row["flops_per_sample"], row["repeats"]) == (7, 11.0, 3)


def test_what_steps_and_exchanges_take_longer_by_turns():
    """5 ms together: 3 of the step, 1 of the call, 0.25 until the slowest is done."""
    assert linktimes.extra_s(5e-3, 3e-3, 1e-3, 0.25e-3) == pytest.approx(0.75e-3)


@pytest.mark.parametrize(
    "bits_per_s, large, sizes",
    [
        (None, 16_000_000, [4, 4096, 65_536, 262_144, 1 << 20, 4 << 20, 16 << 20, 64 << 20]),
        (100_000_000, 3_125_000, [4, 4096, 65_536, 262_144, 1 << 20]),
        (10_000_000, 312_500, [4, 4096, 65_536, 262_144]),
        (1000, 4096, [4, 4096]),
    ],
)
def test_a_slow_network_is_measured_by_what_it_carries_in_a_quarter_of_a_second(bits_per_s, large, sizes):
    assert calibration.sizes_at(bits_per_s, quick=False) == (large, sizes)


def test_shapes_are_timed_by_the_threads_that_are_asked_for():
    four = EXTRA | {"label": "four", "threads": 4}
    every = shapes.wanted([EXTRA, four, EXTRA], quick=True, cores=2)
    labels = [shape["label"] for shape in every]
    assert labels == ["fc-64-64", "fc-128-128", "fc-256-256", "fc-24", "four"]
    assert [shape["label"] for shape in shapes.by(1, every)] == labels
    assert [shape["label"] for shape in shapes.by(2, every)] == labels[:3]
    assert shapes.by(4, every) == [EXTRA | {"label": "four"}]
    assert not any("threads" in shape for shape in shapes.by(1, every))


FOUND = {
    "link": {"latency_s": 1e-4, "bandwidth_bytes_per_s": 11.8e6},
    "collectives": [
        {
            "op": "allreduce",
            "algorithm": "library",
            "ranks": 2,
            "bytes": 4,
            "seconds": 2e-4,
            "iqr_s": 0.0,
            "repeats": 7,
        }
    ],
}


@pytest.fixture
def emulated(monkeypatch, tmp_path, measured):
    """Hosts that are never made, between which ``FOUND`` is measured; a folder with this host's file."""
    asked = []

    @contextlib.contextmanager
    def up(roles, bits_per_s):
        yield (tuple(roles), bits_per_s)

    def measure(ranks, order, settings, hosts):
        asked.append((ranks, order, hosts))
        return FOUND

    monkeypatch.setattr(network, "up", up)
    monkeypatch.setattr(calibration, "measure", measure)
    folder = tmp_path / "results" / "calibration"
    folder.mkdir(parents=True)
    shutil.copy(measured[0], folder / "this-host.yaml")
    return folder, asked


def test_what_joins_emulated_hosts_becomes_a_cluster_like_this_host(emulated):
    folder, asked = emulated
    (made,) = calibration.calibrate_networks(["emulated-100mbit"], folder, report=lambda line: None)
    ((ranks, order, hosts),) = asked
    assert (ranks, hosts) == (2, (("h0", "h1"), 100_000_000))
    assert order["collectives"]["sizes"][-1] == 1 << 20 and "shapes" not in order
    cluster, here = (machine.load(name, folder.parent) for name in ("emulated-100mbit", "this-host"))
    assert made == folder / "emulated-100mbit.yaml" and cluster.name == "emulated-100mbit"
    assert (cluster.devices_per_node, cluster.devices) == (1, host.cores())
    assert cluster.steps == here.steps and cluster.device == here.device
    assert cluster.between_nodes.bandwidth_bytes_per_s == 11.8e6
    assert cluster.communication_s("allreduce", "library", 2, 4) == pytest.approx(2e-4, rel=0.1)


def test_networks_that_cannot_be_had_are_told_and_their_old_files_go(emulated, monkeypatch):
    folder, _ = emulated
    (folder / "emulated-10mbit.yaml").write_text("old")

    def up(roles, bits_per_s):
        raise network.Unavailable("only root may")

    monkeypatch.setattr(network, "up", up)
    lines = []
    assert calibration.calibrate_networks(["emulated-10mbit"], folder, report=lines.append) == []
    assert lines == ["calibrate: nothing of emulated-10mbit: only root may"]
    assert [path.name for path in folder.iterdir()] == ["this-host.yaml"]


def test_networks_are_those_of_measured_points():
    point = Point("suite", "sequential", "digits", {"name": "fc", "hidden": [8]}, 1, "measured", 1)
    points = [
        point,
        replace(point, network="emulated-10mbit"),
        replace(point, network="emulated"),
        replace(point, network="emulated-10mbit", seed=2),
        replace(point, network="gigabit-cpu", evidence="projected"),
    ]
    assert calibration.networks_of(points) == ["emulated", "emulated-10mbit"]


def test_a_network_is_measured_after_the_machine(tmp_path):
    with pytest.raises(machine.NotCalibrated, match="this-host"):
        calibration.calibrate_network("emulated-10mbit", tmp_path / "calibration" / "emulated-10mbit.yaml")


def test_the_file_has_tasks_and_refills(measured):
    cluster = machine.load(measured[0])
    assert cluster.tasks.latency_s > 0 and 1e6 < cluster.tasks.bandwidth_bytes_per_s < 1e12
    sizes = [nbytes for nbytes, _ in cluster.refills[2]]
    # networks of the fixed list: 784-192-192-10 and 784-512-512-10, 4 bytes a parameter
    assert sizes == [4 * (785 * 192 + 193 * 192 + 193 * 10), 4 * (785 * 512 + 513 * 512 + 513 * 10)]
    assert all(seconds >= 0 for _, seconds in cluster.refills[2])


def test_rows_of_ranks_in_company_are_at_the_pace_of_those_alone():
    """The machine was twice as fast in the second session; one rank's step takes 1.1 times as long in company."""
    pace = {"model": shapes.PACE["label"], "minibatch": shapes.PACE["minibatch"], "threads": 1}
    other = {"model": "fc-9", "minibatch": 8, "threads": 1}
    seconds = ("step_s", "step_sd_s", "step_iqr_s", "data_s")
    alone = [row | dict.fromkeys(seconds, 2.0) for row in (other, pace)]
    together = [pace | dict.fromkeys(seconds, 1.1), other | dict.fromkeys(seconds, 3.0) | {"repeats": 9}]
    first, second = calibration.at_pace_of(alone, together, 1.1)
    assert first["step_s"] == pytest.approx(2.2)
    assert [second[name] for name in seconds] == pytest.approx([6.0] * 4) and second["repeats"] == 9


def test_company_is_dear_only_where_cores_are_shared(tmp_path):
    ratio = measuring.measure(2, {"company": True, "quick": True})["company"]
    assert 0.5 < ratio < 10  # a core each takes about as long as one rank alone; a busy machine takes longer
