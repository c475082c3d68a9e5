"""Time model: what a run's trace would take on a machine, without training again.

A trace says what each worker computed (model, samples, flop) and what was communicated (operation, algorithm, group,
bytes), in order. The model charges

* computation: a measured step where the machine's table has it, else one interpolated between measured steps, else
  the roofline ``flop / rate + bytes / memory bandwidth + launch overhead`` (the sum: the update and the reading of
  the weights are bound by memory while the products are not, and they do not overlap);
* data: the measured gathering of a minibatch, where the table has it;
* communication: ``machine.Cluster.communication_s``, with what it costs the step after it (``refill_s``);
* stragglers: at each collective the group waits for its slowest worker. With k steps of standard deviation s since
  the last collective, that is ``E[max of m normals] * s * sqrt(k)`` beyond the mean (steps taken as independent);
  In pairwise mixing a worker waits for one other, who waited for one before: ``expected_pair_wait`` instead;
* groups of a split communicator work side by side: of those that communicate at one place the slowest counts;
* overlap: a non-blocking collective (``iallreduce``) hides behind the computation that follows it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.integrate import quad
from scipy.stats import norm

from implementations.cluster.machine import Cluster, Step
from implementations.cluster.mixing import partners

CALIBRATED, INTERPOLATED, ROOFLINE = "calibrated table", "calibrated table, interpolated", "roofline"
_SOURCES = (CALIBRATED, INTERPOLATED, ROOFLINE)

# Columns that a trace must have; times of day and totals over workers play no part here. A column ``group`` with the
# communicator's name ("world", or "world/0:2" for colour 2 of the first split) may be there too.
TRACE_COLUMNS = [
    "step", "kind", "op", "algorithm", "group_size", "payload_bytes", "sent_bytes_max_worker", "messages", "model",
    "samples", "flops", "count",
]  # fmt: skip

# Passes over the weights in one step of plain SGD: read forward, read backward, gradient written, gradient read,
# weight read, weight written; four bytes each.
_BYTES_PER_PARAM = 6 * 4


@dataclass(frozen=True)
class StepCost:
    """One step of one worker: seconds, their standard deviation, gathering its minibatch, and whence they come."""

    step_s: float
    sd_s: float
    data_s: float
    source: str


@dataclass(frozen=True)
class Groups:
    """A trace with identical events grouped: cluster-independent, so that many machines share the work.

    ``compute`` rows are (model, samples, flops); ``comm`` rows are (op, algorithm, group size, payload, most bytes
    sent by a worker, its messages). Per event: ``group`` (row in its table), ``count`` (steps of a compute event),
    ``first`` (steps that were done before it), and for communication ``since``: how many steps of each compute group
    the workers did since they last met (events x compute groups), and ``hides``: the compute group that runs while
    a non-blocking call is under way (-1: none). A ``place`` is a run of calls without computation between them, of
    one communicator or of groups side by side; ``lane`` is the group's part of it.
    """

    compute: tuple[tuple[str, int, float], ...]
    comm: tuple[tuple[str, str, int, float, float, int], ...]
    compute_group: np.ndarray
    compute_count: np.ndarray
    compute_first: np.ndarray
    comm_group: np.ndarray
    comm_first: np.ndarray
    comm_since: np.ndarray
    comm_hides: np.ndarray
    comm_lane: np.ndarray
    lane_place: np.ndarray
    steps: int


@dataclass(frozen=True)
class Timing:
    """Predicted seconds of a run. ``train_s = compute + data + comm + straggler - overlap``."""

    steps: int
    nodes: int
    oversubscribed: bool
    compute_s: float
    data_s: float
    comm_s: float
    straggler_s: float
    overlap_s: float
    compute_source: str
    collective: str | None  # by which algorithms all-reduces go, that of most seconds first
    _groups: Groups
    _compute_event_s: np.ndarray
    _comm_event_s: np.ndarray

    @property
    def train_s(self) -> float:
        """Seconds of the whole run, without evaluation."""
        return self.compute_s + self.data_s + self.comm_s + self.straggler_s - self.overlap_s

    @property
    def step_s(self) -> float:
        """Seconds of one step, all parts together."""
        return self.train_s / self.steps if self.steps else 0.0

    def scaled(self, steps: int) -> Timing:
        """The timing of a longer run whose steps are like these: all parts in proportion."""
        times = steps / self.steps
        parts = ("compute_s", "data_s", "comm_s", "straggler_s", "overlap_s")
        longer = {name: getattr(self, name) * times for name in parts}
        return dataclasses.replace(self, steps=steps, **longer)

    def time_to(self, step: int | Sequence[int]) -> np.ndarray:
        """Seconds until ``step`` steps are done (array for an array): what was communicated in them counts."""
        events, limits = self._groups, np.atleast_1d(np.asarray(step, dtype=float))
        seconds = []
        for limit in limits:
            done = np.clip(limit - events.compute_first, 0, events.compute_count)
            sent = events.comm_first < limit
            seconds.append(float(done @ self._compute_event_s) + float(self._comm_event_s[sent].sum()))
        return np.array(seconds) if np.ndim(step) else np.float64(seconds[0])


@functools.cache
def expected_max(count: int) -> float:
    """Expected maximum of ``count`` independent standard normals: ``integral x count phi(x) Phi(x)^(count-1) dx``."""
    if count < 2:
        return 0.0
    # beyond 12 the density underflows in every count that a machine has
    return quad(lambda x: x * count * norm.pdf(x) * norm.cdf(x) ** (count - 1), -12, 12, points=[0, 2, 4])[0]


@functools.cache
def expected_pair_wait(count: int) -> float:
    """What a round of pairwise mixing takes ``count`` workers beyond its mean, in standard deviations of a round.

    With each worker as late as the later of itself and its partner, plus a standard normal, the rate at which all of
    them get later than the mean. Drawn, always alike, from hopping_ring rounds; those of the butterfly are as late, and
    those of the ring up to 14 % less (at 32 workers).
    """
    if count < 2:
        return 0.0
    draws = np.random.default_rng(0)
    # of more than a thousand workers fewer draws tell as much
    late = np.zeros((max(8 if count <= 1024 else 1, 8192 // count), count))
    settle, rounds = 100, 500  # until the spread between workers is steady; in all
    hops = (count - 1).bit_length()  # after which the partners are the same again
    from_whom = [np.array(partners("hopping_ring", count, round)) for round in range(hops)]
    for round in range(rounds):
        if round == settle:
            start = late.mean()
        late += draws.standard_normal(late.shape)
        np.maximum(late, late[:, from_whom[round % hops]], out=late)
    return float(late.mean() - start) / (rounds - settle)


def group(trace: pd.DataFrame) -> Groups:
    """The trace with identical events grouped; ValueError when a column is missing or a kind unknown."""
    missing = [name for name in TRACE_COLUMNS if name not in trace.columns]
    if missing:
        raise ValueError(f"trace lacks the columns {', '.join(missing)}")
    kind = trace["kind"].to_numpy(dtype=object)
    is_compute, is_comm = kind == "compute", kind == "comm"
    if not (is_compute | is_comm).all():
        raise ValueError(f"trace has events of kind {sorted(set(kind[~(is_compute | is_comm)]))}")
    step = trace["step"].to_numpy(dtype=np.int64)
    # whether the first step is called 0 or 1, `first` counts the steps before the event
    first = step - (step.min() if len(step) else 0)
    compute, comm = trace[is_compute], trace[is_comm]

    compute_keys, compute_group = _unique(compute, ["model", "samples", "flops"])
    count = np.maximum(compute["count"].to_numpy(dtype=np.int64), 1)
    position, comm_position = np.flatnonzero(is_compute), np.flatnonzero(is_comm)
    following = np.searchsorted(position, comm_position)  # computations before, and the next one's place
    lane, lane_place, opens = _lanes(comm, following)
    running = np.zeros((len(count) + 1, len(compute_keys)), dtype=np.int64)
    np.add.at(running, (np.arange(len(count)) + 1, compute_group), count)
    running = running.cumsum(axis=0)[following]
    # steps since the calls before the last computation; only the first call of a lane waits for stragglers
    earlier = np.searchsorted(following, following) - 1
    since = (running - np.where(earlier[:, None] >= 0, running[earlier], 0)) * opens[:, None]

    comm_keys, comm_group = _unique(
        comm, ["op", "algorithm", "group_size", "payload_bytes", "sent_bytes_max_worker", "messages"]
    )
    hides = np.full(len(comm_position), -1)
    if len(comm_position) and len(position):
        behind = following < len(position)
        waits = np.array([str(key[0]).startswith("i") for key in comm_keys])[comm_group]
        hides[behind & waits] = compute_group[following[behind & waits]]
    steps = int((first[is_compute] + count).max(initial=0))
    return Groups(
        compute=tuple((str(m), int(s), float(f)) for m, s, f in compute_keys),
        comm=tuple((str(o), str(a), int(g), float(p), float(b), int(n)) for o, a, g, p, b, n in comm_keys),
        compute_group=compute_group,
        compute_count=count,
        compute_first=first[is_compute],
        comm_group=comm_group,
        comm_first=first[is_comm],
        comm_since=since,
        comm_hides=hides,
        comm_lane=lane,
        lane_place=lane_place,
        steps=steps,
    )


def predict(
    trace: pd.DataFrame | Groups,
    cluster: Cluster,
    workers: int,
    *,
    threads: int = 1,
    model_params: int | None = None,
) -> Timing:
    """Predicted time of a run of ``workers`` workers with ``threads`` threads each on ``cluster``.

    ``model_params`` (parameters of one worker's model) finds the step in the measured table and gives the bytes of
    the roofline; without it the label and minibatch decide, and the parameters follow from the flop.
    Workers beyond the machine's devices share them in turn (``oversubscribed``).
    """
    events = trace if isinstance(trace, Groups) else group(trace)
    shared = cluster.oversubscription(workers)
    busy = cluster.busy_ranks(workers)
    costs = [
        step_cost(cluster, *key, busy=busy, threads=threads, model_params=model_params)
        for key in events.compute
    ]
    compute_s = np.array([cost.step_s for cost in costs]) * shared
    data_s = np.array([cost.data_s for cost in costs]) * shared
    variance = np.array([cost.sd_s for cost in costs]) ** 2 * shared

    call_s = np.array([cluster.communication_s(*key, workers=workers) for key in events.comm])
    names: dict[str, float] = {}
    for (op, algorithm, size, payload, *_), each_s, times in zip(
        events.comm, call_s, np.bincount(events.comm_group, minlength=len(events.comm))
    ):
        if name := cluster.chosen(op, algorithm, size, payload, workers):
            names[name] = names.get(name, 0.0) + float(each_s * times)
    slowest = np.array(
        [expected_pair_wait(key[2]) if key[0] == "mix" else expected_max(key[2]) for key in events.comm]
    )
    comm_s = call_s[events.comm_group]
    straggler_s = slowest[events.comm_group] * np.sqrt(events.comm_since @ variance)
    hides = events.comm_hides >= 0
    overlap_s = np.where(hides, np.minimum(comm_s, _at(compute_s, events.comm_hides)), 0.0)
    counts = _slowest_lanes(events, comm_s + straggler_s - overlap_s)
    comm_s, straggler_s, overlap_s = comm_s * counts, straggler_s * counts, overlap_s * counts

    done = np.bincount(events.compute_group, weights=events.compute_count, minlength=len(costs))
    return Timing(
        steps=events.steps,
        nodes=cluster.nodes_used(workers),
        oversubscribed=shared > 1,
        compute_s=float(done @ compute_s),
        data_s=float(done @ data_s),
        comm_s=float(comm_s.sum()),
        straggler_s=float(straggler_s.sum()),
        overlap_s=float(overlap_s.sum()),
        compute_source=max((cost.source for cost in costs), key=_SOURCES.index, default=ROOFLINE),
        collective=" + ".join(sorted(names, key=names.__getitem__, reverse=True)) or None,
        _groups=events,
        _compute_event_s=_at(compute_s + data_s, events.compute_group),
        _comm_event_s=comm_s + straggler_s - overlap_s,
    )


def step_cost(
    cluster: Cluster,
    model: str,
    samples: int,
    flops: float,
    *,
    busy: int = 1,
    threads: int = 1,
    model_params: int | None = None,
) -> StepCost:
    """One worker's step of ``samples`` samples and ``flops`` operations while ``busy`` ranks compute on its node.

    A measured step of the same model, minibatch and number of busy ranks; else interpolated, in logarithms, between
    measured minibatches of the same model or measured sizes at the same minibatch; else the roofline.
    """
    rows = [row for row in cluster.steps if row.threads == threads]
    # between two measured numbers of busy ranks, linearly in that number
    levels = sorted({row.busy_ranks for row in rows})
    below = max((level for level in levels if level <= busy), default=None)
    above = min((level for level in levels if level >= busy), default=None)
    if below is not None and above is not None:
        found = [
            _measured([row for row in rows if row.busy_ranks == level], model, samples, flops, model_params)
            for level in (below, above)
        ]
        if all(found):
            return _between(found[0], found[1], 0.0 if above == below else (busy - below) / (above - below))
    return _roofline(cluster, samples, flops, threads, model_params)


def _measured(
    rows: Sequence[Step], model: str, samples: int, flops: float, model_params: int | None
) -> StepCost | None:
    same = [row for row in rows if row.model == model and model_params in (None, row.model_params)]
    for row in same:
        if row.minibatch == samples:
            return StepCost(row.step_s, row.step_sd_s, row.data_s, CALIBRATED)
    found = _log_interpolate(same, [row.minibatch for row in same], samples)
    if found is None:
        # another network of the same batch: by the work of a step, which follows the parameters
        family = model.split("-")[0]
        peers = [row for row in rows if row.minibatch == samples and row.model.split("-")[0] == family]
        if model_params is None:
            found = _log_interpolate(peers, [row.flops_per_sample * row.minibatch for row in peers], flops)
        else:
            found = _log_interpolate(peers, [row.model_params for row in peers], model_params)
    return found


def _log_interpolate(rows: Sequence[Step], keys: Sequence[float], at: float) -> StepCost | None:
    """Each time at ``at``, linear in logarithms between the nearest keys; None unless bracketed."""
    below = max(((key, i) for i, key in enumerate(keys) if key <= at), default=None)
    above = min(((key, i) for i, key in enumerate(keys) if key >= at), default=None)
    if below is None or above is None:
        return None
    share = 0.0 if above[0] == below[0] else math.log(at / below[0]) / math.log(above[0] / below[0])
    low, high = rows[below[1]], rows[above[1]]

    def mix(a: float, b: float) -> float:
        return a ** (1 - share) * b**share if a > 0 and b > 0 else a + (b - a) * share

    return StepCost(
        mix(low.step_s, high.step_s),
        mix(low.step_sd_s, high.step_sd_s),
        mix(low.data_s, high.data_s),
        INTERPOLATED,
    )


def _between(low: StepCost, high: StepCost, share: float) -> StepCost:
    if share == 0:
        return low

    def mix(a: float, b: float) -> float:
        return a + (b - a) * share

    return StepCost(
        mix(low.step_s, high.step_s), mix(low.sd_s, high.sd_s), mix(low.data_s, high.data_s), INTERPOLATED
    )


def _roofline(
    cluster: Cluster, samples: int, flops: float, threads: int, model_params: int | None
) -> StepCost:
    device = cluster.device
    # a thread of a CPU rank takes a device (a core) of its own, as far as the node has them
    width = min(threads, cluster.devices_per_node) if device.kind == "cpu" else 1
    params = flops / (6 * samples) if model_params is None else model_params
    seconds = (
        flops / (device.flops_per_s(samples, flops) * width)
        + params * _BYTES_PER_PARAM / device.memory_bandwidth_bytes_per_s
        + device.launch_overhead_s
    )
    return StepCost(seconds, seconds * device.step_variation, 0.0, ROOFLINE)


def _lanes(comm: pd.DataFrame, following: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each call's lane, each lane's place, and whether a call is the first of its lane."""
    if "group" not in comm.columns or comm["group"].nunique() < 2:
        names = np.full(len(comm), "", dtype=object)
    else:
        # world/0:2/1:0 works beside world/0:1, below the split world/0; what splits further is taken in turn
        names = comm["group"].str.split("/").str[1].fillna("").to_numpy()
    splits = np.array([name.partition(":")[0] for name in names], dtype=object)
    new = np.ones(len(comm), dtype=bool)
    new[1:] = (following[1:] != following[:-1]) | (splits[1:] != splits[:-1])
    place = np.cumsum(new) - 1
    lane = (
        pd.DataFrame({"place": place, "name": names})
        .groupby(["place", "name"], sort=False)
        .ngroup()
        .to_numpy()
    )
    firsts = np.unique(lane, return_index=True)[1]
    opens = np.zeros(len(comm), dtype=np.int64)
    opens[firsts] = 1
    # only at the first place after a computation: at the next one the workers have just met
    opens *= place == place[np.searchsorted(following, following)]
    return lane, place[firsts], opens


def _slowest_lanes(events: Groups, seconds: np.ndarray) -> np.ndarray:
    """1.0 for the calls that count: those of the slowest lane of each place."""
    if not len(seconds):
        return np.ones(0)
    per_lane = np.bincount(events.comm_lane, weights=seconds, minlength=len(events.lane_place))
    # ascending by place, and in a place descending by seconds: the first of each place is its slowest
    order = np.lexsort((-per_lane, events.lane_place))
    chosen = order[np.unique(events.lane_place[order], return_index=True)[1]]
    counts = np.zeros(len(per_lane))
    counts[chosen] = 1.0
    return counts[events.comm_lane]


def _unique(frame: pd.DataFrame, columns: list[str]) -> tuple[list[tuple], np.ndarray]:
    """Distinct rows of the columns, in order of appearance, and each row's place among them."""
    if frame.empty:
        return [], np.zeros(0, dtype=np.int64)
    codes = frame.groupby(columns, sort=False, dropna=False).ngroup().to_numpy()
    places = np.unique(codes, return_index=True)[1]
    return list(frame.iloc[places][columns].itertuples(index=False, name=None)), codes


def _at(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    return values[places] if len(values) else np.zeros(len(places))
