"""The jobs of a step: runs of segments between two exchanges that workers cannot make by themselves."""

from __future__ import annotations

from dataclasses import dataclass

from implementations.spark.program import SUM, Exchange, Program


@dataclass(frozen=True)
class Phase:
    """What a worker does in one job.

    segments: of the program, in order; none where gradients have only to be applied.
    exchange: what follows; None after the last phase, which updates the weights.
    across: whether the exchange is the sum of gradients over groups, of blocks of equal place.
    """

    segments: range
    exchange: Exchange | None
    across: bool = False


def phases(program: Program, groups: int) -> tuple[Phase, ...]:
    """The phases of a step of ``groups`` groups; a lone worker makes its exchanges itself and needs one phase."""
    found, first = [], 0
    for segment, exchange in enumerate(program.exchanges):
        if exchange is not None and program.workers > 1:
            found.append(Phase(range(first, segment + 1), exchange))
            first = segment + 1
    rest = range(first, program.segments)
    if groups == 1:
        return (*found, Phase(rest, None))
    # rows are as long as the longest
    gradient = Exchange(SUM, (max(program.params(place) for place in range(program.workers)),))
    return (
        *found,
        Phase(rest, gradient, across=True),
        Phase(range(program.segments, program.segments), None),
    )
