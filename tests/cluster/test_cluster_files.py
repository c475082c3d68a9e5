"""The suite's own cluster files: each figure says where it comes from, and they load."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from implementations.cluster import machine
from implementations.errors import UserError

CONFIG = Path(__file__).parents[2] / "config"
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONFIG / "clusters").glob("*.yaml"))}
COUNTS = ("nodes", "devices_per_node", "devices")  # numbers that are choices, not figures
HOST = {
    "device": {
        "name": "a core",
        "kind": "cpu",
        "peak_flops": {"float32": {"value": 1e11, "source": "made up", "how": "assumed"}},
        "efficiency": {"value": 0.5, "source": "made up", "how": "assumed"},
        "memory_bandwidth_bytes_per_s": {"value": 1e10, "source": "made up", "how": "assumed"},
    },
    "links": {
        "inside_node": {
            "latency_s": {"value": 1e-6, "source": "made up", "how": "assumed"},
            "bandwidth_bytes_per_s": {"value": 1e10, "source": "made up", "how": "assumed"},
        }
    },
}


def figures(value, where=""):
    """Every number of a file with the mapping that holds it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, (int, float)) and not isinstance(inner, bool):
                yield f"{where}.{name}", name, value
            else:
                yield from figures(inner, f"{where}.{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from figures(inner, f"{where}[{place}]")


@pytest.fixture
def results(tmp_path):
    """A folder whose calibration is made up, for the files that are like this host."""
    host = {"name": "this-host", "description": "made up", "date": "2026-01-01", "hardware": "made up",
            "source": "made up", "nodes": 1, "devices_per_node": 2, **HOST}  # fmt: skip
    folder = tmp_path / "calibration"
    folder.mkdir()
    (folder / "this-host.yaml").write_text(yaml.safe_dump(host))
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_every_figure_names_its_source(name):
    found = [entry for entry in figures(FILES[name]) if entry[1] not in COUNTS]
    assert found
    for where, key, holder in found:
        assert key == "value", f"{name}{where} is a bare number"
        assert holder["source"].strip(), f"{name}{where} has no source"
        assert holder["how"] in ("read", "memory", "derived", "measured", "assumed")


@pytest.mark.parametrize("name", FILES)
def test_a_file_loads_under_its_own_name(name, results):
    cluster = machine.load(name, results)
    assert cluster.name == name
    assert cluster.nodes == FILES[name]["nodes"]
    seconds = cluster.communication_s("allreduce", "library", min(8, cluster.capacity), 1e6)
    assert 0 < seconds < 60


def test_networks_of_this_hosts_cores_are_a_factor_of_ten_apart(results):
    names = ("ten-megabit", "hundred-megabit", "gigabit", "ten-gigabit", "hundred-gigabit")
    links = [machine.load(f"{name}-cpu", results).between_nodes for name in names]
    for slow, fast in pairwise(links):
        assert fast.bandwidth_bytes_per_s == pytest.approx(10 * slow.bandwidth_bytes_per_s, rel=1e-3)
        assert fast.latency_s < slow.latency_s
    # payload of full frames: 1500 bytes less 52 of headers, and 38 around them on the wire
    assert links[-1].bandwidth_bytes_per_s == pytest.approx(100e9 / 8 * 1448 / 1538, rel=1e-3)


def test_eight_gpus_of_one_node_and_a_pod_of_them(results):
    node, pod = (machine.load(name, results) for name in ("h100-node", "h100-pod"))
    assert (node.capacity, pod.capacity) == (8, 256)
    # 132 multiprocessors of 128 units, a multiplication and an addition each, at 1.98 GHz
    assert node.device.peak_flops == pytest.approx(132 * 128 * 2 * 1.98e9, rel=5e-3)
    assert node.device == pod.device
    # 18 links of 25 GB/s each way are the most that NVLink can have; an adapter for each GPU, none of it shared
    assert 0.8 * 18 * 25e9 < node.inside_node.bandwidth_bytes_per_s <= 18 * 25e9
    assert 0.9 * 400e9 / 8 < pod.between_nodes.bandwidth_bytes_per_s <= 400e9 / 8
    assert not pod.between_nodes.shared
    # a ring over two nodes is as fast as its slowest link
    seconds = pod.communication_s("allreduce", "ring", 16, 1.6e9)
    assert seconds == pytest.approx(30 * (1e-5 + 1e8 / 48.5e9))


def test_tiers_name_clusters_that_there_are(results):
    for tier in ("smoke", "config", "extended", "full"):
        for name in yaml.safe_load((CONFIG / f"{tier}.yaml").read_text())["clusters"]:
            assert math.isfinite(machine.load(name, results).device.peak_flops)


def test_a_bare_number_is_refused(tmp_path, results):
    node = FILES["h100-node"]
    bare = {**node, "name": "bare", "device": {**node["device"], "efficiency": 0.6}}
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump(bare))
    with pytest.raises(UserError, match=r"device\.efficiency"):
        machine.load(tmp_path / "bare.yaml", results)
