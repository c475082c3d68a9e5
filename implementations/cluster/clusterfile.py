"""The values of the cluster files that calibration writes, from what was measured."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version
from typing import Any

import numpy as np
import psutil

from implementations import host
from implementations.cluster import machine

# More hosts than anybody emulates on one machine.
MOST_HOSTS = 64


def of_this_host(
    alone: dict[str, Any],
    steps: list[dict[str, Any]],
    exchanged: dict[str, Any],
    quick: bool,
    others_percent: float,
) -> dict[str, Any]:
    """This machine.

    ``alone``: what one process found; ``exchanged``: ``link``, ``tasks``, ``collectives``, ``refills``.
    ``others_percent``: of the processor, what other work took.
    """
    cores = host.cores()
    cpu, memory_gib = host.cpu_model(), psutil.virtual_memory().total / 2**30
    variation = float(np.median([row["step_sd_s"] / row["step_s"] for row in steps]))
    links = {"inside_node": _link(exchanged["link"], "two ranks", machine_memory=True)}
    if exchanged.get("tasks"):
        links["tasks"] = _link(exchanged["tasks"], "two processes joined by TCP", machine_memory=True)
    return {
        "name": machine.THIS_HOST,
        "description": "This machine, measured" + _haste(quick),
        "date": _today(),
        "hardware": f"{cpu}, {cores} cores, {memory_gib:.0f} GiB memory",
        "source": "python -m implementations calibrate"
        + (" --quick" if quick else "")
        + f"; other work took {others_percent:.0f} % of the processor as it began",
        "nodes": 1,
        "devices_per_node": cores,
        "device": {
            "name": f"one core of {cpu}",
            "kind": "cpu",
            "peak_flops": {
                "float32": measured(alone["peak_flops"], "square matrix product, one thread, best rate")
            },
            "flops_by_shape": [
                {**row, "flops_per_s": short(row["flops_per_s"])} for row in alone["flops_by_shape"]
            ],
            "memory_bandwidth_bytes_per_s": measured(
                alone["memory_bytes_per_s"], "copy of 64 MB, bytes read and written, all cores at once"
            ),
            "packing_bytes_per_s": measured(
                alone["packing_bytes_per_s"],
                "half the rows of a matrix cut out, or put back, all cores at once",
            ),
            "launch_overhead_s": measured(
                alone["overhead_s"], "training step of a network of 8 units, one sample"
            ),
            "step_variation": measured(variation, "median over the step table"),
        },
        "steps": _rows(steps),
        "links": links,
        "collectives": _rows(exchanged["collectives"]),
        "refills": _rows(exchanged["refills"]),
        "software": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "mpi4py": version("mpi4py"),
            "mpi": alone["mpi"],
        },
    }


def of_network(name: str, exchanged: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Emulated hosts of this machine, one worker each: they share its cores, and what joins them was measured."""
    return {
        "name": name,
        "description": "Emulated hosts of this machine, what joins them measured" + _haste(quick),
        "date": _today(),
        "hardware": "network namespaces joined by veth pairs, TCP",
        "source": f"python -m implementations calibrate --network {name}",
        "like": machine.THIS_HOST,
        "nodes": MOST_HOSTS,
        "devices_per_node": 1,
        "shared_devices": host.cores(),
        "links": {"between_nodes": _link(exchanged["link"], "ranks on two hosts") | {"per": "node"}},
        "collectives": _rows(exchanged["collectives"]),
    }


def _link(figures: dict[str, float], between: str, machine_memory: bool = False) -> dict[str, Any]:
    values = {
        "latency_s": measured(figures["latency_s"], f"4-byte exchange of {between}, one way"),
        "bandwidth_bytes_per_s": measured(
            figures["bandwidth_bytes_per_s"], f"large exchange of {between}, each way at once"
        ),
    }
    return values | ({"per": "device"} if machine_memory else {})


def measured(value: float, what: str) -> dict[str, Any]:
    """A figure of the file with its source."""
    return {"value": short(value), "source": what, "how": "measured"}


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: short(value) for key, value in row.items()} for row in rows]


def short(value: Any) -> Any:
    """Four digits: more would claim what was not measured."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _haste(quick: bool) -> str:
    return " in haste (--quick)" if quick else ""


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
