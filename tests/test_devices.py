"""Where a run's tensors lie, on a device that is none (``fake_gpu``); and which GPU a rank takes."""

import dataclasses
import types

import fake_gpu
import pytest
import torch
import torch.distributed as dist
from training_runs import METHODS, Killed, kill_after, point_of, trained, whole_model

from implementations import devices, models
from implementations.clock import Clock
from implementations.cluster.distributed import DistributedCommunicator
from implementations.data.sparse import SparseRows
from implementations.devices import Device
from implementations.harness import run_point
from implementations.seeds import torch_stream


@pytest.fixture
def gpu():
    fake_gpu.install()
    with fake_gpu.active() as module:
        yield module


@pytest.fixture(scope="module")
def alone():
    """A process group of this process, which joins nobody."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def on_gpu(point):
    return dataclasses.replace(point, device=fake_gpu.NAME)


def both(point, results):
    """A point's runs there and on the CPU."""
    return (trained(one, results, DistributedCommunicator) for one in (on_gpu(point), point))


def measured(method, **changes):
    return point_of(method, evidence="measured", **changes)


def assert_alike(ours, theirs):
    """The arithmetic is the same, so the bits are."""
    assert {ours.net.theta_wp.device.type, ours.net.grad_wp.device.type} == {fake_gpu.NAME}
    assert torch.equal(whole_model(ours).cpu(), whole_model(theirs))
    assert ours.test() == theirs.test()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_computes_there_what_it_computes_on_a_cpu(method, results, gpu, alone):
    assert_alike(*both(measured(method), results))


IMAGES = {"name": "cnn", "filters": [4], "kernel": 3, "hidden": [8]}
# no recurrent ones: torch wants kernels for whole cells from any GPU
MANY = [
    {"model": {"name": "fc_bn", "hidden": [16]}},
    {"model": {"name": "fc_bn", "hidden": [16], "statistics": "batch", "dropout": 0.3}},
    {"model": IMAGES, "gradient_norms": True},
    {"model": {"name": "vgg_small", "width": 0.1, "dropout": 0.2}, "data_size": 64},
    {"model": {"name": "resnet", "hidden": [4, 6], "blocks": [1, 2]}, "data_size": 64},
    {"optimizer": "rmsprop", "lr": 0.002},
    {"recipe": {"momentum": 0.5}, "schedule": "exponential"},
    {
        "model": {"name": "fc", "hidden": [12], "activation": "sigmoid"},
        "init": "random",
        "optimizer": "ng_sgd",
    },
    {"model": {"name": "fc", "hidden": [12], "activation": "sigmoid"}, "init": "rbm"},
]


@pytest.mark.parametrize("changes", MANY, ids=str)
def test_every_model_and_recipe(changes, results, gpu, alone):
    assert_alike(*both(measured("sequential", epochs=1, **changes), results))


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("ist", {"method_params": {"server": "partitioned"}, "model": {"name": "fc_bn", "hidden": [16]}}),
        ("layerwise", {"model": IMAGES}),
        ("layerwise", {"model": {"name": "vgg_small", "width": 0.1}, "data_size": 64}),
        ("spark", {"model": IMAGES}),
        ("spark", {"model": IMAGES, "method_params": {"cut": "rows"}}),
        ("spark", {"variant": "data"}),
        ("spark", {"variant": "async", "method_params": {"staleness": 2}}),
        ("averaging", {"method_params": {"content": "with_momentum"}, "recipe": {"momentum": 0.5}}),
        ("data_parallel", {"method_params": {"algorithm": "ring"}}),
    ],
    ids=str,
)
def test_what_methods_split_and_exchange(method, changes, results, gpu, alone):
    assert_alike(*both(measured(method, **({"epochs": 1} | changes)), results))


@pytest.mark.parametrize("statistics", ["population", "batch"])
def test_bags_of_words(statistics, gpu):
    """Loss, gradients and scores of two workers, whose inputs are compressed rows."""
    indices = torch.tensor([0, 3, 2, 5, 1, 0, 4, 6, 3])
    x = SparseRows(indices, torch.tensor([0, 2, 3, 6, 9]), torch.linspace(0.5, 1, 9), (2, 2, 7))
    labels = torch.tensor([[[1, -1], [0, 2]], [[3, -1], [2, -1]]])
    model = {"name": "bow", "hidden": [5], "statistics": statistics}
    found = []
    for device in (torch.device(fake_gpu.NAME), torch.device("cpu")):
        with device:
            net = models.build(model, 7, 4, 2, torch_stream(1, "init"))
        assert net.theta_wp.device.type == device.type
        loss = net.loss_and_grad(x.to(device), labels.to(device))
        one = SparseRows(x.indices, x.offsets, x.values, (4, 7)).to(device)
        net.prepare_evaluation([one])
        right, summed = net.evaluate(one, labels.view(4, 2).to(device))
        found.append((loss.cpu(), net.grad_wp.cpu(), one.dense().cpu(), torch.tensor([right, summed])))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def test_the_device_draws_no_first_weights(gpu):
    """A CPU generator gives the same ones, and is as far on afterwards."""
    for model in ({"name": "fc", "hidden": [5]}, {"name": "vgg_small", "width": 0.1}, IMAGES):
        generators = torch_stream(1, "init"), torch_stream(1, "init")
        with torch.device(fake_gpu.NAME):
            ours = models.build(model, 64, 10, 2, generators[0])
        theirs = models.build(model, 64, 10, 2, generators[1])
        assert torch.equal(ours.theta_wp.cpu(), theirs.theta_wp)
        assert torch.equal(*(generator.get_state() for generator in generators))


@pytest.mark.parametrize(
    "changes", [{"optimizer": "ng_sgd"}, {"recipe": {"momentum": 0.5}, "schedule": "newbob"}]
)
def test_a_checkpoint_from_there(changes, results, gpu, alone):
    """Is read into CPU memory, and goes from there to the device: a rank may take another GPU the next time."""

    point = on_gpu(measured("averaging", checkpoint_s=0.0, data_size=160, seed=21, **changes))
    straight = trained(point, results, DistributedCommunicator)
    straight.checkpoints.clear()
    with pytest.raises(Killed):
        trained(point, results, DistributedCommunicator, report_progress=kill_after(20))
    resumed = trained(point, results, DistributedCommunicator)
    resumed.checkpoints.clear()
    assert resumed.resumed
    assert torch.equal(resumed.net.theta_wp.cpu(), straight.net.theta_wp.cpu())


def test_the_record_of_a_run_there(results, gpu, alone):
    before = gpu.synchronised
    point = on_gpu(measured("averaging", seed=22))
    values = run_point(point, DistributedCommunicator, results)
    assert values["status"] == "ok"
    assert (values["gpu"], values["peak_device_bytes"]) == ("a device that is none", 10**6)
    assert values["resident_bytes"] == 0  # of what was allocated, as that device tells it
    # data, compute, other and back of each step, at least; and not at each of its operations
    assert 3 * values["steps"] < gpu.synchronised - before < 12 * values["steps"]


def test_a_clock_waits_for_the_device_where_labels_change():
    done, waited = [], []
    clock = Clock(lambda: (waited.append(len(done)), done.clear()))
    with clock("compute"):
        done.append("started")
        with clock("comm"):
            done.append("sent")
    assert waited == [0, 1, 1, 0]


def test_a_cpu_needs_none_of_it():
    device = Device()
    assert device.synchronise is None and device.columns() == {} and device.random_state() is None
    assert device.used_bytes() > 10**6
    samples = types.SimpleNamespace(take=lambda rows: (rows, rows))
    rows = torch.arange(3)
    assert device.take(samples, rows)[0] is rows
    state = torch.get_rng_state()
    with device.undisturbed(), device.building():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("environment", "local"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_RANK": "5"}, 1),
        ({"MPI_LOCALRANKID": "2", "PMI_RANK": "5"}, 2),
        ({"SLURM_LOCALID": "3", "SLURM_PROCID": "5"}, 3),
        ({"LOCAL_RANK": "0", "RANK": "5"}, 0),
        # inherited from the batch script that started mpiexec, where it is the script's own
        ({"SLURM_LOCALID": "0", "SLURM_PROCID": "0"}, 7),
        ({"SLURM_LOCALID": "0", "SLURM_PROCID": "0", "MPI_LOCALRANKID": "1", "PMI_RANK": "5"}, 1),
        ({"LOCAL_RANK": "x", "RANK": "5"}, 7),
        ({}, 7),
    ],
)
def test_the_number_of_a_rank_on_its_host(environment, local):
    assert devices.local_rank(5, lambda: 7, environment) == local


class Host:
    """torch.cuda of a host, as one rank sees it."""

    def __init__(self, uuids):
        self.uuids, self.chosen = uuids, None

    def is_available(self):
        return bool(self.uuids)

    def device_count(self):
        return len(self.uuids)

    def set_device(self, index):
        self.chosen = index

    def get_device_properties(self, index):
        return types.SimpleNamespace(uuid=self.uuids[index])


def taken(monkeypatch, seen):
    """What each rank, in order of ``seen`` (the GPUs that it sees), takes; and what all of them are told."""
    hosts, told = [Host(uuids) for uuids in seen], []

    def run(gather):
        answers = []
        for rank, host in enumerate(hosts):
            monkeypatch.setattr(torch, "get_device_module", lambda name, host=host: host)
            answers.append(devices.take_up("cuda", rank, rank, gather))
        return answers

    run(lambda words: told.append(words) or [""])
    answers = run(lambda words: told)
    assert len(set(answers)) == 1
    return [host.chosen for host in hosts], answers[0]


@pytest.mark.parametrize(
    ("seen", "chosen", "reason"),
    [
        (["ab", "ab"], [0, 1], None),
        (["a", "b"], [0, 0], None),  # the launcher shows each its own
        (["", ""], [None, None], "device cuda: torch sees no GPU here"),
        (["ab", ""], [0, None], "device cuda: torch sees no GPU here"),
        (["ab"] * 3, [0, 1, None], "device cuda: rank 2 is number 3 on its host, where torch sees 2 GPUs"),
        (["a", "a"], [0, 0], "device cuda: 2 ranks share a GPU; each needs one of its own"),
    ],
)
def test_each_rank_takes_a_gpu_of_its_own_or_all_say_why_not(monkeypatch, seen, chosen, reason):
    assert taken(monkeypatch, seen) == (chosen, reason)


def test_every_rank_has_a_cpu():
    assert devices.take_up("cpu", 0, 0, lambda words: pytest.fail("nothing is to be agreed on")) is None
