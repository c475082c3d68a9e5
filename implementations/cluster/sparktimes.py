"""Measures what Spark costs on this machine: a job, its tasks, and the bytes between driver and tasks.

A session of two slots is started in a process of its own (``python -m implementations.cluster.sparktimes ANSWER``),
as the measured points have one. Times are medians over jobs in turn; rates are slopes over the sizes, so that what a
job takes anyway is not charged to its bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil

from implementations import host, lifeline
from implementations.cluster import launcher, ownership
from implementations.errors import UserError

SLOTS = 2
TASKS = (1, 2, 4)
SIZES = (0, 1_000_000, 4_000_000)  # bytes that each task hands over, or is handed
ROUNDS, QUICK_ROUNDS = 7, 3
LIMIT_S = 120.0


def section(quick: bool = False) -> dict[str, Any]:
    """The section ``spark`` of this host's cluster file; UserError where no session starts."""
    with ownership.folder("calibrate") as folder:
        answer = folder / "answer.json"
        command = [sys.executable, "-m", "implementations.cluster.sparktimes", str(answer), str(int(quick))]
        output, errors, code = launcher._run(command, launcher.rank_environment(1), LIMIT_S)
        if code != 0 or not answer.is_file():
            said = (errors or output).strip().splitlines()
            raise UserError(f"Spark's jobs were not timed: {said[-1] if said else f'exit code {code}'}")
        found = json.loads(answer.read_text())
    values = figures(found["tasks_s"], found["up_s"], found["down_s"])
    sources = {
        "job_s": f"empty jobs of {', '.join(map(str, TASKS))} tasks on {SLOTS} slots, at no task",
        "task_s": "the same, each task more",
        "up_bytes_per_s": f"{SLOTS} tasks that return up to {SIZES[-1] / 1e6:g} MB each, by bytes returned",
        "down_bytes_per_s": f"a broadcast of up to {SIZES[-1] / 1e6:g} MB read by {SLOTS} tasks, by bytes read",
        "start_s": "until the session is there and its Python workers have run a job",
        "memory_bytes": "this machine's memory over its cores",
    }
    values |= {
        "start_s": found["start_s"],
        "memory_bytes": psutil.virtual_memory().total / host.cores(),
    }
    return {
        name: {"value": float(f"{values[name]:.4g}"), "source": source, "how": "measured"}
        for name, source in sources.items()
    }


def figures(tasks_s: dict[str, float], up_s: dict[str, float], down_s: dict[str, float]) -> dict[str, float]:
    """Constants of jobs from median seconds, by number of tasks, and by bytes of each of ``SLOTS`` tasks."""
    job_s, task_s = _line(tasks_s)
    return {
        "job_s": max(job_s, 0.0) if task_s >= 0 else float(np.median(list(tasks_s.values()))),
        "task_s": max(task_s, 0.0),
        "up_bytes_per_s": SLOTS * _rate(up_s),
        "down_bytes_per_s": SLOTS * _rate(down_s),
    }


def _line(seconds: dict[str, float]) -> tuple[float, float]:
    """Intercept and slope by least squares."""
    slope, intercept = np.polyfit([float(key) for key in seconds], list(seconds.values()), 1)
    return float(intercept), float(slope)


def _rate(seconds: dict[str, float]) -> float:
    """Bytes a second; on a machine too busy to show a slope, those of the largest with all that its job took."""
    _, slope = _line(seconds)
    largest = max(seconds, key=float)
    return 1 / slope if slope > 0 else float(largest) / seconds[largest]


# What runs in the measuring process


def measure(quick: bool) -> dict[str, Any]:
    """Median seconds of jobs, by tasks and by bytes; starts a session and ends it."""
    from implementations.cluster.spark import session

    began = perf_counter()
    with session.start(SLOTS, "local") as spark:
        context = spark.context
        _run_tasks(context, SLOTS)
        start_s = perf_counter() - began
        shared: dict[int, Any] = {}

        def down(size: int) -> None:
            shared[size] = context.broadcast(bytes(size))
            value = shared.pop(size)
            context.parallelize(range(SLOTS), SLOTS).map(lambda _: len(value.value)).collect()
            value.destroy()

        jobs: dict[str, dict[int, Callable[[], Any]]] = {
            "tasks_s": {count: lambda count=count: _run_tasks(context, count) for count in TASKS},
            "up_s": {
                size: lambda size=size: (
                    context.parallelize(range(SLOTS), SLOTS).map(lambda _: bytes(size)).collect()
                )
                for size in SIZES
            },
            "down_s": {size: lambda size=size: down(size) for size in SIZES},
        }
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(1 + (QUICK_ROUNDS if quick else ROUNDS)):
            for part, calls in jobs.items():
                for key, call in calls.items():
                    since = perf_counter()
                    call()
                    times.setdefault((part, key), []).append(perf_counter() - since)
    medians: dict[str, Any] = {part: {} for part in jobs}
    for (part, key), seconds in times.items():
        medians[part][str(key)] = float(np.median(seconds[1:]))
    return medians | {"start_s": start_s}


def _run_tasks(context: Any, count: int) -> None:
    context.parallelize(range(count), count).map(lambda value: value).collect()


if __name__ == "__main__":
    lifeline.hold_on()
    Path(sys.argv[1]).write_text(json.dumps(measure(sys.argv[2] == "1")))
