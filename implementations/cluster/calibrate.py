"""Measures this machine, alone, into cluster files: training steps, data gathering, collectives, links, roofline.

python -m implementations calibrate --out results/calibration/this-host.yaml [--quick]
python -m implementations calibrate --network emulated-100mbit      (root) emulated hosts and what joins them

What is measured are primitives, never the runs that the time model is held against. Steps are those of the training
loop, each by model and minibatch, with one process computing and with every core computing (they share caches and
memory). Messages and collectives run through MPI as in training, and between processes joined as Spark's tasks are.
Each part runs in fresh processes (``measuring``), started and threaded as those of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import yaml

from implementations import host, record
from implementations.cluster import clusterfile, launcher, linktimes, machine, shapes, sparktimes
from implementations.cluster.measuring import measure
from implementations.errors import UserError

_QUIET_PERCENT = 15.0
HOSTS = 2  # that the links of a network are measured between
_SLOWEST_S = 0.25  # a message, or an all-reduce, over a slow network should take at most about this

Report = Callable[[str], None]


def _print(line: str) -> None:
    print(line, flush=True)


def calibrate(
    out: str | Path,
    quick: bool = False,
    wanted: Sequence[dict[str, Any]] | None = None,
    *,
    settings: dict[str, Any] | None = None,
    spark: bool = False,
    report: Report = _print,
) -> Path:
    """Measure this host and write the cluster file ``out`` atomically; returns its path.

    ``wanted``: what to time besides the fixed list, as ``shapes.of_points`` gives those of a list of points.
    ``settings``: config's ``launcher``.
    ``spark``: time Spark's jobs too; where it does not start, the file has nothing of them, which is said.
    ``quick``: few sizes and blocks, for a smoke run; the numbers are rough.
    Raises UserError when MPI is missing or a measuring process fails.
    """
    out = Path(out)
    began = perf_counter()
    cores = host.cores()
    everything = shapes.wanted(wanted or [], quick, cores)
    one_thread = shapes.by(1, everything)
    ranks_for_steps = sorted({min(2, cores), min(cores, 8)} - {1})
    ranks_for_collectives = [2] if quick else sorted({2, 4, *ranks_for_steps})

    launcher.find_launcher(settings)  # rather now than after the first part
    report(f"calibrate: {len(one_thread)} models and minibatches on {cores} cores")
    others_percent = psutil.cpu_percent(interval=0.5)
    if others_percent > _QUIET_PERCENT:
        report(
            f"calibrate: other work takes {others_percent:.0f} % of the processor; the numbers will be too slow"
        )
    alone = measure(1, {"shapes": one_thread, "quick": quick, "device": True}, settings)
    steps = [{**row, "busy_ranks": 1} for row in alone["steps"]]
    for threads in sorted({shape.get("threads", 1) for shape in everything} - {1}):
        several = shapes.by(threads, everything)
        part = measure(1, {"shapes": several, "quick": quick}, settings, threads=threads)
        steps += [{**row, "busy_ranks": 1} for row in part["steps"]]
    exchanged: dict[str, Any] = {"collectives": [], "refills": []}
    for ranks in sorted({*ranks_for_steps, *ranks_for_collectives}):
        report(f"calibrate: {ranks} ranks" + ("" if ranks <= cores else f" on {cores} cores"))
        part = measure(
            ranks, _order(ranks, one_thread, quick, ranks_for_steps, ranks_for_collectives), settings
        )
        if "company" in part:
            rows = at_pace_of(alone["steps"], part["steps"], part["company"])
            steps += [{**row, "busy_ranks": ranks} for row in rows]
        for name in ("collectives", "refills"):
            exchanged[name] += part.get(name, [])
        for name in ("link", "tasks"):
            exchanged.setdefault(name, part.get(name))
        # with every core at work each has less of the memory's bandwidth: that is what training sees
        for name in ("memory_bytes_per_s", "packing_bytes_per_s"):
            alone[name] = part.get(name, alone[name])
        alone["mpi"] = part["mpi"]

    values = clusterfile.of_this_host(alone, steps, exchanged, quick, others_percent)
    if spark:
        report(f"calibrate: a Spark session of {sparktimes.SLOTS} slots")
        try:
            values["spark"] = sparktimes.section(quick)
        except UserError as error:
            report(f"calibrate: nothing of Spark: {error}")
    _write(values, out)
    report(f"calibrate: {out} written after {perf_counter() - began:.0f} s")
    return out


def at_pace_of(
    alone: list[dict[str, Any]], together: list[dict[str, Any]], ratio: float
) -> list[dict[str, Any]]:
    """Rows of ranks that were busy together, at the pace that the machine had while one was timed ``alone``.

    ``ratio``: of ``steptimes.company``. A machine that others share is faster in one minute than in the next, and
    speedups come from the two kinds of row.
    """
    key = shapes.PACE["label"], shapes.PACE["minibatch"], 1
    before, now = (
        next(row["step_s"] for row in rows if (row["model"], row["minibatch"], row["threads"]) == key)
        for rows in (alone, together)
    )
    factor = before * ratio / now
    seconds = ("step_s", "step_sd_s", "step_iqr_s", "data_s")
    return [row | {name: row[name] * factor for name in seconds} for row in together]


def _order(
    ranks: int,
    one_thread: list[dict[str, Any]],
    quick: bool,
    for_steps: Sequence[int],
    for_collectives: Sequence[int],
) -> dict[str, Any]:
    """What ``ranks`` processes measure. Caches are refilled, and Spark's tasks met, by two with a core each."""
    order: dict[str, Any] = {"quick": quick}
    if ranks in for_steps:
        order |= {"shapes": one_thread, "company": True}
    if ranks in for_collectives:
        order["link"] = {"largest_bytes": linktimes.LARGE_BYTES}
        order["collectives"] = {"sizes": linktimes.QUICK_SIZES if quick else linktimes.SIZES}
    if ranks == min(host.cores(), 8):
        order["memory"] = True
    if ranks == 2:
        order["tasks"] = True
        order["refills"] = shapes.EXCHANGING[1:3] if quick else shapes.EXCHANGING
    return order


def networks_of(points: Sequence[Any]) -> list[str]:
    """The networks of emulated hosts that measured points name."""
    from implementations.cluster.hosts import plan

    named = {point.network for point in points if point.evidence == "measured"}
    return sorted(filter(plan.is_emulated, named))


def calibrate_network(
    name: str,
    out: str | Path,
    quick: bool = False,
    *,
    settings: dict[str, Any] | None = None,
    report: Report = _print,
) -> Path:
    """Measure what joins emulated hosts of the network ``name``, between two of them, into a cluster file.

    Raises UserError where hosts cannot be emulated (``hosts.network.Unavailable``) or measuring fails.
    """
    from implementations.cluster.hosts import network, plan

    out, rate = Path(out), plan.rate_of(name)
    began = perf_counter()
    machine.find(machine.THIS_HOST, out.parents[1])  # rather now than after measuring
    with network.up(plan.worker_roles(HOSTS), rate) as hosts:
        largest, sizes = sizes_at(rate, quick)
        # of the others the links tell enough: there the wire is what takes the time
        timed = {"sizes": sizes, "algorithms": ["library", "ring"]}
        order = {"quick": quick, "link": {"largest_bytes": largest}, "collectives": timed}
        exchanged = measure(HOSTS, order, settings, hosts=hosts)
    _write(clusterfile.of_network(name, exchanged, quick), out)
    report(f"calibrate: {out} written after {perf_counter() - began:.0f} s")
    return out


def calibrate_networks(
    names: Sequence[str],
    folder: str | Path,
    quick: bool = False,
    *,
    settings: dict[str, Any] | None = None,
    report: Report = _print,
) -> list[Path]:
    """The files of these networks, of those that can be had; of the others any old file goes, and it is said why."""
    made = []
    for name in names:
        out = Path(folder) / f"{name}.yaml"
        try:
            made.append(calibrate_network(name, out, quick, settings=settings, report=report))
        except UserError as error:
            out.unlink(missing_ok=True)
            report(f"calibrate: nothing of {name}: {error}")
    return made


def sizes_at(bits_per_s: int | None, quick: bool) -> tuple[int, list[int]]:
    """Bytes of the large message, and of the all-reduces, that a network carries in reasonable time."""
    sizes = linktimes.QUICK_SIZES if quick else linktimes.SIZES
    if bits_per_s is None:
        return linktimes.LARGE_BYTES, list(sizes)
    most = max(int(_SLOWEST_S * bits_per_s / 8), sizes[1])
    return min(linktimes.LARGE_BYTES, most // 4 * 4), [size for size in sizes if size <= most]


def _write(values: dict[str, Any], out: Path) -> None:
    """The file, if it would load."""
    machine.build(machine.complete(values, out.parents[1], source=str(out)), str(out))
    record.write_text(out, yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=180))
