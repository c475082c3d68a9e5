"""Runs on a real GPU; skipped where torch sees none. One rank, or two where there are two GPUs.

Products are summed in another order than on a CPU, and convolutions may use shorter numbers, so that weights agree
roughly; what is counted agrees to the byte.
"""

import dataclasses

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from training_runs import METHODS, Killed, kill_after, point_of, trained, whole_model

from implementations import record, registry
from implementations.clock import Clock
from implementations.cluster import rendezvous
from implementations.cluster.distributed import DistributedCommunicator
from implementations.devices import Device
from implementations.progress import Bar
from implementations.run import Job, run_points

NAME = "cuda"
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.skipif(not GPUS, reason="device cuda: torch sees no GPU here"),
    pytest.mark.timeout(300),
]
SAME = ("sent_bytes_total", "messages", "steps", "samples", "state_bytes_per_worker", "worker_params")


@pytest.fixture(scope="module")
def alone():
    """A process group of this process, gloo and NCCL."""
    world = rendezvous.World(0, 1, lambda words: [words], lambda: 0, dist.HashStore())
    rendezvous.join(world, NAME, 60.0)
    yield lambda ledger: DistributedCommunicator(ledger, None)
    rendezvous.leave()


def on_gpu(point):
    return dataclasses.replace(point, device=NAME, transport="torch")


def measured(method, **changes):
    return point_of(method, evidence="measured", **changes)


def assert_alike(point, results, communicator):
    """The run on the GPU and that on the CPU, which both start from the same bits."""
    ours, theirs = (trained(one, results, communicator) for one in (on_gpu(point), point))
    assert {ours.net.theta_wp.device.type, ours.net.grad_wp.device.type} == {NAME}
    torch.testing.assert_close(whole_model(ours).cpu(), whole_model(theirs), rtol=0.02, atol=0.02)
    columns, reference = ours.columns(), theirs.columns()
    assert {name: columns[name] for name in SAME} == {name: reference[name] for name in SAME}
    assert columns["train_loss"] == pytest.approx(reference["train_loss"], rel=0.02)
    assert ours.test()["accuracy"] == pytest.approx(theirs.test()["accuracy"], abs=0.03)
    return columns


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method, results, alone):
    columns = assert_alike(measured(method), results, alone)
    assert columns["gpu"] and columns["peak_device_bytes"] >= columns["state_bytes_per_worker"]


IMAGES = {"name": "cnn", "filters": [4], "kernel": 3, "hidden": [8]}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("sequential", {"model": {"name": "fc_bn", "hidden": [16]}}),
        ("sequential", {"model": IMAGES, "gradient_norms": True}),
        ("sequential", {"model": {"name": "rnn", "steps": 8, "hidden": [6]}}),
        ("sequential", {"model": {"name": "lstm", "steps": 8, "hidden": [6, 5]}}),
        ("sequential", {"model": {"name": "resnet", "hidden": [4, 6], "blocks": [1, 2]}, "data_size": 64}),
        ("sequential", {"optimizer": "rmsprop", "lr": 0.002}),
        (
            "sequential",
            {
                "model": {"name": "fc", "hidden": [12], "activation": "sigmoid"},
                "init": "random",
                "optimizer": "ng_sgd",
                "lr": 0.02,
            },
        ),
        ("ist", {"method_params": {"server": "partitioned"}, "model": {"name": "fc_bn", "hidden": [16]}}),
        ("layerwise", {"model": IMAGES}),
        ("spark", {"model": IMAGES}),
        ("spark", {"model": {"name": "lstm", "steps": 8, "hidden": [6]}}),
        ("spark", {"variant": "data"}),
    ],
    ids=str,
)
def test_every_kind_of_model_and_recipe(method, changes, results, alone):
    assert_alike(measured(method, epochs=1, minibatch=16, **({"lr": 0.05} | changes)), results, alone)


def test_a_killed_run_resumes(results, alone):
    model = {"name": "fc_bn", "hidden": [16], "dropout": 0.3}
    point = on_gpu(measured("sequential", model=model, checkpoint_s=0.0, recipe={"momentum": 0.5}))
    straight = trained(point, results, alone)
    straight.checkpoints.clear()
    with pytest.raises(Killed):
        trained(point, results, alone, report_progress=kill_after(20))
    resumed = trained(point, results, alone)
    resumed.checkpoints.clear()
    assert resumed.resumed
    torch.testing.assert_close(resumed.net.theta_wp, straight.net.theta_wp, rtol=0, atol=1e-4)


def test_the_clock_waits_for_the_device():
    """Work that a call only starts is charged to the label that started it."""
    device = Device(NAME)
    big = torch.rand(4096, 4096, device=device.torch)
    (big @ big).sum().item()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    clock = Clock(device.synchronise)
    with clock("compute"):
        begin.record()
        for _ in range(20):
            big @ big
        end.record()
        with clock("comm"):
            pass
    assert clock.seconds["compute"] >= begin.elapsed_time(end) / 1000
    assert clock.seconds["comm"] < 0.5 * clock.seconds["compute"]


def run(points, results, tmp_path):
    (tmp_path / "data").symlink_to(results / "data")
    job = Job(tmp_path, {"command": "auto", "args": []})
    statuses = run_points(points, job, Bar(Console(quiet=True)))
    return statuses, [record.read(record.record_path(tmp_path, point.run_id)) for point in points]


def test_points_of_a_tier_run_there(results, tmp_path):
    points = [on_gpu(measured(name)) for name in METHODS if registry.get(name).runs_on == "mpi"]
    statuses, records = run(points, results, tmp_path)
    assert set(statuses.values()) == {"ok"}
    for values in records:
        assert (values["device"], values["transport"]) == (NAME, "torch")
        assert values["gpu"] == torch.cuda.get_device_name(0)


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs: NCCL joins no two ranks on one")
def test_two_ranks_joined_by_nccl(results, tmp_path):
    points = [
        on_gpu(point_of(name, 2, evidence="measured", processes=2))
        for name in METHODS
        if registry.get(name).runs_on == "mpi" and not registry.get(name).one_worker_only
    ]
    statuses, records = run(points, results, tmp_path)
    assert set(statuses.values()) == {"ok"}
    for values in records:
        assert values["sent_bytes_total"] == values["sent_bytes_predicted"] > 0


@pytest.mark.skipif(GPUS != 1, reason="needs exactly one GPU")
def test_ranks_that_would_share_a_gpu_are_skipped(results, tmp_path):
    point = on_gpu(point_of("averaging", 2, evidence="measured", processes=2))
    statuses, (values,) = run([point], results, tmp_path)
    assert statuses[point.run_id] == "skipped"
    assert "share a GPU" in values["reason"] and "Traceback" not in values["reason"]
