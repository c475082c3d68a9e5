"""Synchronous data parallelism: the gradients of all workers are averaged after each minibatch by one all-reduce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from implementations.cluster.volume import sent_bytes
from implementations.parameters import ALGORITHM, LR_SCALING, check_algorithm, scaled_lr
from implementations.registry import Progress, Volume, method

if TYPE_CHECKING:
    from implementations.training import Plan, Training


def volume(plan: Plan) -> Volume:
    """One all-reduce of the whole gradient a step."""
    reduces = plan.epochs * plan.steps_per_epoch
    sent = sent_bytes("allreduce", plan.settings["algorithm"], plan.model_bytes, plan.workers)
    payload = plan.model_bytes if plan.workers > 1 else 0
    return Volume(reduces * payload, reduces * sum(sent))


@method(
    "data_parallel",
    volume=volume,
    params={"algorithm": ALGORITHM, "lr_scaling": LR_SCALING},
    checks=check_algorithm,
)
def train(run: Training) -> Iterator[Progress]:
    """``theta -= lr * mean over workers of grad`` after each minibatch; all workers stay equal."""
    algorithm = run.settings["algorithm"]
    optimizer = run.optimizer(scaled_lr(run.point.lr, run.settings["lr_scaling"], run.comm.size))
    for batch in run.batches():
        loss = run.net.loss_and_grad(batch.x, batch.y)
        run.comm.allreduce_(run.net.grad_wp, "mean", algorithm)
        optimizer.step()
        yield Progress(batch.step, batch.samples, loss, synced=True)
