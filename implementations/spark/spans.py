"""How the wall time of a job is told apart into what its tasks did, and what passed before, between and after them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise

# Where tasks do different things at once, the moment counts as the first of these.
LABELS = ("compute", "data", "serialise", "receive")

Span = tuple[str, float, float]  # label, begin and end in seconds of the machine's clock


class Spans(list[Span]):
    """What one task did when; a block is measured with ``with spans(label): ...``."""

    @contextmanager
    def __call__(self, label: str) -> Iterator[None]:
        """A block that is ``label``, one of ``LABELS``."""
        began = time.time()
        try:
            yield
        finally:
            self.append((label, began, time.time()))


def split(spans: Iterable[Span], began: float, ended: float) -> Mapping[str, float]:
    """Seconds of each label, of ``schedule`` and of ``return``; together exactly the wall from ``began`` to ``ended``.

    ``schedule`` is when no task did anything, up to the end of the last one; from then on results ``return``.
    A moment in which any task computes is one of computing: it is the wall that is split, not the processors' time.
    Spans are cut to the job's; clocks of other machines may be a little off.
    """
    clipped = [(label, max(start, began), min(stop, ended)) for label, start, stop in spans]
    clipped = [span for span in clipped if span[1] < span[2]]
    edges = sorted({edge for _, *both in clipped for edge in both})
    seconds = dict.fromkeys((*LABELS, "schedule", "return"), 0.0)
    for left, right in pairwise(edges):
        active = {label for label, start, stop in clipped if start <= left and right <= stop}
        label = next((label for label in LABELS if label in active), None)
        if label:
            seconds[label] += right - left
    seconds["return"] = ended - edges[-1] if edges else 0.0
    seconds["schedule"] = ended - began - sum(seconds.values())
    return seconds
