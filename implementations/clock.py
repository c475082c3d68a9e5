"""Wall time of one process split into labelled parts, by nested meters that never count a second twice."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from types import TracebackType

LABELS = ("data", "compute", "comm", "eval", "other")


class Clock:
    """Charges each moment to the innermost open label; a nested block is subtracted from the block around it.

    Time outside every block is charged to nothing: ``uncovered_s`` tells how much the labels have missed.
    """

    def __init__(self, synchronise: Callable[[], None] | None = None) -> None:
        """``synchronise`` waits for what a device still does for the open label; called where labels change."""
        self._synchronise = synchronise
        self.seconds: dict[str, float] = dict.fromkeys(LABELS, 0.0)
        self._blocks = {label: _Block(self, label) for label in LABELS}
        self._open: list[str] = []
        self._since = self._start = perf_counter()
        self._carried_s = 0.0

    def __call__(self, label: str) -> _Block:
        """A block whose time is charged to ``label``, one of ``LABELS`` (KeyError otherwise)."""
        return self._blocks[label]

    def _charge(self) -> None:
        now = self.now()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def now(self) -> float:
        """The present moment of ``perf_counter``, when all that was started before has ended."""
        if self._synchronise is not None:
            self._synchronise()
        return perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds since the clock was made, and those of earlier runs that ``restore`` brought back."""
        return self._carried_s + perf_counter() - self._start

    @property
    def uncovered_s(self) -> float:
        """Wall seconds that no label covered (exact only while no block is open)."""
        return self.wall_s - sum(self.seconds.values())

    @property
    def training_s(self) -> float:
        """Wall seconds without evaluation, up to now: the clock of speed and of time to target."""
        running = perf_counter() - self._since if self._open and self._open[-1] == "eval" else 0.0
        return self.wall_s - self.seconds["eval"] - running

    def restart(self) -> None:
        """Begin at zero; what was charged before is forgotten."""
        self.restore({**dict.fromkeys(LABELS, 0.0), "wall": 0.0})

    def snapshot(self) -> dict[str, float]:
        """The parts and the wall, for a checkpoint."""
        return {**self.seconds, "wall": self.wall_s}

    def restore(self, snapshot: dict[str, float]) -> None:
        """Go on from a snapshot, as if the time since it was made had not passed."""
        self._carried_s = snapshot["wall"]
        self.seconds = {label: snapshot[label] for label in LABELS}
        self._since = self._start = perf_counter()


class _Block:
    """The context of one label; holds nothing of its own, so one serves all nested and repeated uses."""

    __slots__ = ("_clock", "_label")

    def __init__(self, clock: Clock, label: str) -> None:
        self._clock, self._label = clock, label

    def __enter__(self) -> None:
        self._clock._charge()
        self._clock._open.append(self._label)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock._charge()
        self._clock._open.pop()
