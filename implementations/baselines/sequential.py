"""Minibatch SGD on one worker: what every speedup is measured against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from implementations.registry import Progress, Volume, method

if TYPE_CHECKING:
    from implementations.training import Plan, Training


def volume(plan: Plan) -> Volume:
    """One worker sends nothing."""
    return Volume(0, 0)


@method("sequential", volume=volume, one_worker_only=True)
def train(run: Training) -> Iterator[Progress]:
    """``theta -= lr * grad`` after each minibatch."""
    optimizer = run.optimizer(run.point.lr)
    for batch in run.batches():
        loss = run.net.loss_and_grad(batch.x, batch.y)
        optimizer.step()
        yield Progress(batch.step, batch.samples, loss, synced=True)
