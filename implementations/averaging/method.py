"""Periodic model averaging: each worker runs SGD on its own shard; every K minibatches the weights are averaged.

Su and Chen 2015, section 2: local steps ``theta_r -= lr * g_r``, then ``theta_r <- (1/m) sum_r theta_r`` by one
all-reduce. The learning rate may be scaled with the number of workers, since averaging m models keeps only the mean
of their moves. The models are averaged at the end of each epoch too, as there one of them is evaluated and kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from implementations.cluster.volume import sent_bytes
from implementations.parameters import ALGORITHM, LR_SCALING, check_algorithm, scaled_lr
from implementations.registry import Param, Progress, Volume, method

if TYPE_CHECKING:
    from implementations.training import Plan, Training

PARAMS = {
    "sync_period": Param(
        int, 10, "minibatches between two averages (the paper's K)", "minibatches", minimum=1
    ),
    "algorithm": ALGORITHM,
    "lr_scaling": LR_SCALING,
}


def volume(plan: Plan) -> Volume:
    """``ceil(steps / K)`` all-reduces of all parameters an epoch (the last one closes the epoch).

    ``paper_bytes`` counts as the paper's text does: what one rank sends, ``2 (m-1)/m P b`` a reduce.
    """
    reduces = plan.epochs * -(-plan.steps_per_epoch // plan.settings["sync_period"])
    sent = sent_bytes("allreduce", plan.settings["algorithm"], plan.model_bytes, plan.workers)
    payload = plan.model_bytes if plan.workers > 1 else 0
    paper_bytes = reduces * 2 * (plan.workers - 1) * plan.model_bytes // plan.workers
    return Volume(reduces * payload, reduces * sum(sent), paper_bytes)


@method("averaging", volume=volume, params=PARAMS, checks=check_algorithm)
def train(run: Training) -> Iterator[Progress]:
    """K local steps, then one all-reduce of the weights."""
    period, algorithm = run.settings["sync_period"], run.settings["algorithm"]
    optimizer = run.optimizer(scaled_lr(run.point.lr, run.settings["lr_scaling"], run.comm.size))
    for batch in run.batches():
        loss = run.net.loss_and_grad(batch.x, batch.y)
        optimizer.step()
        average = batch.step_in_epoch % period == 0 or batch.last_of_epoch
        if average:
            run.comm.allreduce_(run.net.theta_wp, "mean", algorithm)
        yield Progress(batch.step, batch.samples, loss, synced=average)
