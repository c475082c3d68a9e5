"""The ledger: every communication of a run by bytes and messages, and the run's trace, at the price of a list append.

Totals are exact integers over the whole world, also where a process sees only its own worker: each call charges every
member of its group by the closed forms of ``volume``. Messages are those of the algorithm, not the blocks
into which a transport cuts large ones. ``handed_bytes`` counts, apart from that, what this process has really given to
MPI in point-to-point messages, so that the forms can be checked against it.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
import pandas as pd
import torch

from implementations.clock import Clock
from implementations.cluster.volume import Traffic

FRAME_COLUMNS = (
    "step", "kind", "op", "algorithm", "group", "group_size", "payload_bytes", "sent_bytes_total",
    "sent_bytes_max_worker", "messages", "model", "samples", "flops", "count", "start_s", "end_s",
)  # fmt: skip
_NO_TIME = float("nan")


class Ledger:
    """Books of one process. ``step`` is set by whoever drives the training; events carry it."""

    def __init__(self, clock: Clock | None = None, keep_times: bool = False) -> None:
        """``clock`` gets the seconds of calls as ``comm``; ``keep_times``: note when each call began and ended."""
        self.clock, self.keep_times = clock, keep_times
        self.step = 0
        self.handed_bytes = 0
        self._muted = False
        # An event is a number of a kind (what happened, described once) and a few numbers of its own.
        self._kinds: list[dict[str, Any]] = []
        self._kind_of: dict[Any, int] = {}
        self._uses: list[int] = []  # per kind, events not yet in the totals
        self._events, self._steps, self._counts = array("q"), array("q"), array("q")
        self._starts, self._ends = array("d"), array("d")
        self._per_worker = np.zeros(
            (3, 0), dtype=np.int64
        )  # payload, sent, messages of each worker of the world
        self._began = perf_counter()

    # Writing

    def kind(self, op: str, algorithm: str, group: str, workers: tuple[int, ...], form: Traffic) -> int:
        """The number of this kind of call, for ``call`` and ``issue``: which group of world workers does what."""
        key = (op, algorithm, group, workers, form)
        found = self._kind_of.get(key)
        if found is not None:
            return found
        return self._add_kind(
            key,
            {
                "kind": "comm",
                "op": op,
                "algorithm": algorithm,
                "group": group,
                "workers": list(workers),
                "payload_bytes": form.payload_bytes,
                "sent_bytes": list(form.sent_bytes),
                "received_bytes": list(form.received_bytes),
                "messages": list(form.messages),
            },
        )

    def call(self, kind: int = -1) -> Call:
        """A block that is one call, charged to the clock; its kind may be set inside (``block.kind = ...``)."""
        return Call(self, kind)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """A block whose calls are not booked: trying out what a run will do."""
        handed, self._muted = self.handed_bytes, True
        try:
            yield
        finally:
            self.handed_bytes, self._muted = handed, False

    def issue(self, kind: int) -> int:
        """Note a call that goes on in the background; returns its place, for ``finish``."""
        self._append(kind, self._now(), _NO_TIME)
        return len(self._events) - 1

    def finish(self, place: int) -> None:
        """The call at ``place`` has ended now."""
        if self.keep_times and not self._muted:
            self._ends[place] = self._now()

    def compute(self, model: str, samples: int, flops: float) -> None:
        """Each worker computes one step of ``model`` on ``samples`` samples, ``flops`` operations."""
        key = (model, samples, flops)
        kind = self._kind_of.get(key)
        if kind is None:
            what = {"kind": "compute", "model": model, "samples": int(samples), "flops": float(flops)}
            kind = self._add_kind(key, what)
        if self._events and self._events[-1] == kind:
            self._counts[-1] += 1
            return
        self._append(kind, _NO_TIME, _NO_TIME)

    def _now(self) -> float:
        """Seconds since the ledger's start, where times are kept; a device has then done what came before."""
        if not self.keep_times:
            return _NO_TIME
        return (perf_counter() if self.clock is None else self.clock.now()) - self._began

    def _append(self, kind: int, start_s: float, end_s: float) -> None:
        if self._muted:
            return
        self._uses[kind] += 1
        self._events.append(kind)
        self._steps.append(self.step)
        self._counts.append(1)
        self._starts.append(start_s)
        self._ends.append(end_s)

    def _add_kind(self, key: Any, what: dict[str, Any]) -> int:
        self._kind_of[key] = number = len(self._kinds)
        self._kinds.append(what)
        self._uses.append(0)
        return number

    # Reading

    @property
    def payload_bytes(self) -> int:
        """Bytes of buffers that a worker asked to be communicated, over all calls (the worker with most)."""
        return int(self._totals()[0].max(initial=0))

    @property
    def sent_bytes_total(self) -> int:
        """Bytes put on the wire by all workers together."""
        return int(self._totals()[1].sum())

    @property
    def sent_bytes_max_worker(self) -> int:
        """Bytes put on the wire by the worker that sent most."""
        return int(self._totals()[1].max(initial=0))

    @property
    def messages(self) -> int:
        """Messages of the algorithms, sent by all workers together."""
        return int(self._totals()[2].sum())

    def totals(self, maximum: Callable[[np.ndarray], np.ndarray] | None = None) -> dict[str, int]:
        """The four totals. ``maximum`` (elementwise, over processes) completes them after calls of split groups.

        A process takes part in all calls of the workers that it hosts and so knows their sums; of other workers it
        knows at most as much. Without split groups all processes know all sums and ``maximum`` is not needed.
        """
        known = self._totals()
        if maximum is not None:
            workers = int(maximum(np.array([known.shape[1]], dtype=np.int64))[0])
            padded = np.zeros((3, workers), dtype=np.int64)
            padded[:, : known.shape[1]] = known
            known = maximum(padded.ravel()).reshape(3, workers)
        payload, sent, messages = known
        return {
            "payload_bytes": int(payload.max(initial=0)),
            "sent_bytes_total": int(sent.sum()),
            "sent_bytes_max_worker": int(sent.max(initial=0)),
            "messages": int(messages.sum()),
        }

    def frame(self) -> pd.DataFrame:
        """The trace, one row an event, in order; columns ``FRAME_COLUMNS``.

        For communication ``payload_bytes`` and ``messages`` are those of the worker with most; ``group`` tells the
        groups of a split apart (they work side by side). Computation rows stand for ``count`` equal steps, the first
        of them ``step``. Times are seconds since the ledger's start, NaN where not kept.
        """
        kinds = [_row(what) for what in self._kinds]
        table = pd.DataFrame(kinds, columns=["kind", *_row_columns()])
        frame = table.iloc[np.frombuffer(self._events, dtype=np.int64)].reset_index(drop=True)
        for name, values in (("step", self._steps), ("count", self._counts)):
            frame[name] = np.array(values, dtype=np.int64)
        for name, values in (("start_s", self._starts), ("end_s", self._ends)):
            frame[name] = np.array(values, dtype=np.float64)
        integers = [
            "group_size",
            "payload_bytes",
            "sent_bytes_total",
            "sent_bytes_max_worker",
            "messages",
            "samples",
        ]
        return frame.astype(dict.fromkeys(integers, np.int64) | {"flops": np.float64})[list(FRAME_COLUMNS)]

    def _totals(self) -> np.ndarray:
        for number, uses in enumerate(self._uses):
            if uses and self._kinds[number]["kind"] == "comm":
                self._charge(self._kinds[number], uses)
            self._uses[number] = 0
        return self._per_worker

    def _charge(self, what: dict[str, Any], times: int) -> None:
        workers = what["workers"]
        missing = max(workers) + 1 - self._per_worker.shape[1]
        if missing > 0:
            self._per_worker = np.pad(self._per_worker, ((0, 0), (0, missing)))
        self._per_worker[0, workers] += what["payload_bytes"] * times
        self._per_worker[1, workers] += np.array(what["sent_bytes"], dtype=np.int64) * times
        self._per_worker[2, workers] += np.array(what["messages"], dtype=np.int64) * times

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """All of it as tensors and plain values, for a checkpoint."""
        integers = {"events": self._events, "steps": self._steps, "counts": self._counts}
        reals = {"starts": self._starts, "ends": self._ends}
        return {
            "step": self.step,
            "handed_bytes": self.handed_bytes,
            "elapsed_s": perf_counter() - self._began,
            "kinds": json.dumps(self._kinds),
            **{name: torch.tensor(values, dtype=torch.int64) for name, values in integers.items()},
            **{name: torch.tensor(values, dtype=torch.float64) for name, values in reals.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from ``state()`` as if the time since had not passed; what this ledger held is forgotten."""
        self.step, self.handed_bytes = state["step"], state["handed_bytes"]
        self._began = perf_counter() - state["elapsed_s"]
        # Communicators keep numbers of kinds: those known here keep theirs, and the saved ones are renumbered.
        numbers = np.array([self._number_of(what) for what in json.loads(state["kinds"])], dtype=np.int64)
        events = numbers[state["events"].numpy()] if len(state["events"]) else np.zeros(0, dtype=np.int64)
        self._events = array("q", events.tobytes())
        self._steps = array("q", state["steps"].numpy().tobytes())
        self._counts = array("q", state["counts"].numpy().tobytes())
        self._starts = array("d", state["starts"].numpy().tobytes())
        self._ends = array("d", state["ends"].numpy().tobytes())
        self._uses = np.bincount(events, minlength=len(self._kinds)).tolist()
        self._per_worker = np.zeros((3, 0), dtype=np.int64)

    def _number_of(self, what: dict[str, Any]) -> int:
        if what["kind"] == "compute":
            key: Any = (what["model"], what["samples"], what["flops"])
            found = self._kind_of.get(key)
            return self._add_kind(key, what) if found is None else found
        form = Traffic(
            what["payload_bytes"],
            *(tuple(what[name]) for name in ("sent_bytes", "received_bytes", "messages")),
        )
        return self.kind(what["op"], what["algorithm"], what["group"], tuple(what["workers"]), form)


class Call:
    """One communication call as a block: clock and times. A call that raises is not booked, nor one without a kind."""

    __slots__ = ("_block", "_ledger", "_start_s", "kind")

    def __init__(self, ledger: Ledger, kind: int) -> None:
        self._ledger, self.kind = ledger, kind

    def __enter__(self) -> Call:
        ledger = self._ledger
        self._block = ledger.clock("comm") if ledger.clock is not None else None
        if self._block is not None:
            self._block.__enter__()
        self._start_s = ledger._now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ledger = self._ledger
        if kind is None and self.kind >= 0:
            ledger._append(self.kind, self._start_s, ledger._now())
        if self._block is not None:
            self._block.__exit__(kind, error, trace)


def _row_columns() -> tuple[str, ...]:
    own = ("step", "kind", "count", "start_s", "end_s")
    return tuple(name for name in FRAME_COLUMNS if name not in own)


def _row(what: dict[str, Any]) -> tuple[Any, ...]:
    """Kind and ``_row_columns`` of a kind of event; absent words are None, absent numbers 0."""
    if what["kind"] == "compute":
        return ("compute", None, None, None, 0, 0, 0, 0, 0, what["model"], what["samples"], what["flops"])
    sent = what["sent_bytes"]
    return (
        "comm", what["op"], what["algorithm"], what["group"], len(sent), what["payload_bytes"], sum(sent), max(sent),
        max(what["messages"]), None, 0, 0.0,
    )  # fmt: skip
