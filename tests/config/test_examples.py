"""The examples for clusters load, ask for what they are there for, and fail in one line where it is not to be had."""

from urllib.parse import urlsplit

import pytest
from rich.console import Console

from implementations import config, registry
from implementations.cluster.launcher import mpi_command
from implementations.errors import UserError
from implementations.progress import Bar
from implementations.record import read, record_path
from implementations.run import Job, run_points


@pytest.fixture(params=["cluster-example", "gpu", "process-groups", "spark-standalone", "spark-kubernetes"])
def example(request, root):
    """Its name and settings."""
    folder = root / "config" if request.param == "cluster-example" else root / "config/examples"
    return request.param, config.load(folder / f"{request.param}.yaml")


def test_there_are_no_others(root):
    names = {path.stem for path in (root / "config/examples").glob("*.yaml")}
    assert names == {"gpu", "process-groups", "spark-standalone", "spark-kubernetes"}


def test_what_an_example_is_there_for(example):
    name, settings = example
    measured = [point for point in settings.points if point.evidence == "measured"]
    ranks = [point for point in measured if registry.get(point.method).has_ranks(point)]
    simulated = [point for point in settings.points if point.evidence == "simulated"]
    assert {(point.device, point.transport) for point in simulated} <= {("cpu", "mpi")}
    if name == "cluster-example":
        assert settings.launcher["command"] == "srun"
        assert max(point.workers for point in ranks) == 32
    elif name == "gpu":
        assert {(point.device, point.transport) for point in ranks} == {("cuda", "torch")} and len(
            ranks
        ) == len(measured)
    elif name == "process-groups":
        pairs = {
            (point.method, point.workers, point.repeat, point.transport)
            for point in ranks
            if point.workers > 1
        }
        assert {pair[:3] for pair in pairs if pair[3] == "mpi"} == {
            pair[:3] for pair in pairs if pair[3] == "torch"
        }
    else:
        on_spark = [point for point in measured if point not in ranks]
        assert on_spark and {point.method_params["cluster"] for point in on_spark} == {"given"}
        master = settings.spark["master"]
        scheme = "spark://" if name == "spark-standalone" else "k8s://https://"
        assert master.startswith(scheme)
        assert urlsplit("//" + master.removeprefix(scheme)).port


def test_executors_reach_the_driver_by_the_ports_that_the_service_has(root):
    import yaml

    properties = config.load(root / "config/examples/spark-kubernetes.yaml").spark["properties"]
    documents = {
        one["kind"]: one for one in yaml.safe_load_all((root / "profiles/kubernetes/job.yaml").read_text())
    }
    service, pod = documents["Service"], documents["Job"]["spec"]["template"]
    ports = {one["port"] for one in service["spec"]["ports"]}
    assert ports == {properties["spark.driver.port"], properties["spark.blockManager.port"]}
    assert properties["spark.driver.host"].split(".")[0] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    account = properties["spark.kubernetes.authenticate.serviceAccountName"]
    assert account == pod["spec"]["serviceAccountName"] == documents["ServiceAccount"]["metadata"]["name"]
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    (container,) = pod["spec"]["containers"]
    mounted = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim.shared"
    shared = mounted[properties[f"{prefix}.mount.path"]]
    assert shared["persistentVolumeClaim"]["claimName"] == properties[f"{prefix}.options.claimName"]


def test_a_launcher_that_is_not_there_fails_when_points_run(root, results, tmp_path, monkeypatch):
    """In one line, and not before: config is read where nothing is launched."""
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = config.load(root / "config/cluster-example.yaml")
    with pytest.raises(UserError, match=r"'srun'.*launcher.command.*was not found"):
        mpi_command(2, settings.launcher)
    (tmp_path / "data").symlink_to(results / "data")
    from training_runs import point_of

    point = point_of("averaging", 2, evidence="measured", processes=2)
    run_points([point], Job(tmp_path, settings.launcher), Bar(Console(quiet=True)))
    values = read(record_path(tmp_path, point.run_id))
    assert values["status"] == "failed" and "'srun'" in values["reason"] and "\n" not in values["reason"]
