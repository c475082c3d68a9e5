"""Small machines and traces that the tests of the time model share."""

import copy

import pandas as pd

from implementations.cluster import machine, timemodel

MODEL, PARAMS, BATCH = "fc-100", 10_000, 64
FLOPS = 6.0 * PARAMS * BATCH


def figure(value: float) -> dict:
    return {"value": value, "source": "the test", "how": "assumed"}


def described(**changes) -> dict:
    """A complete cluster file's values: four nodes of two devices."""
    link = {"latency_s": figure(1e-6), "bandwidth_bytes_per_s": figure(1e10)}
    values = {
        "name": "toy",
        "description": "a toy",
        "date": "2026-01-31",
        "hardware": "none",
        "source": "the test",
        "nodes": 4,
        "devices_per_node": 2,
        "device": {
            "name": "toy device",
            "kind": "cpu",
            "peak_flops": {"float32": figure(1e12)},
            "efficiency": figure(0.5),
            "memory_bandwidth_bytes_per_s": figure(1e11),
        },
        "links": {
            "inside_node": link,
            "between_nodes": {"latency_s": figure(1e-5), "bandwidth_bytes_per_s": figure(1e9)},
        },
    }
    return copy.deepcopy(values | changes)


def events(steps: int, period: int, workers: int, payload: float = 40_000.0, first: int = 1, op="allreduce"):
    """The trace of ``steps`` steps with an all-reduce after every ``period``-th; equal computations are merged."""
    rows, start = [], 0
    while start < steps:
        length = min(period, steps - start)
        compute = {"step": first + start, "kind": "compute", "count": length}
        rows.append(compute | {"model": MODEL, "samples": BATCH, "flops": FLOPS})
        start += length
        if workers > 1:
            sent = 2 * (workers - 1) * payload / workers
            call = {"step": first + start - 1, "kind": "comm", "op": op, "algorithm": "ring", "count": 1}
            call |= {"group_size": workers, "payload_bytes": payload, "sent_bytes_max_worker": sent}
            rows.append(call | {"messages": 2 * (workers - 1)})
    return pd.DataFrame(rows, columns=timemodel.TRACE_COLUMNS)


def steps_table():
    return [
        {"model": MODEL, "model_params": PARAMS, "flops_per_sample": FLOPS / BATCH, "minibatch": BATCH}
        | {"busy_ranks": ranks, "step_s": 1e-3 * ranks, "step_sd_s": 1e-4, "data_s": 1e-5}
        for ranks in (1, 2)
    ]


def with_links(latency_s: float = 1e-5, bandwidth: float = 1e9, **changes):
    link = {"latency_s": figure(latency_s), "bandwidth_bytes_per_s": figure(bandwidth)}
    return machine.build(described(links={"inside_node": link, "between_nodes": link}, **changes))
