"""Periodic model averaging: each worker runs its own optimiser on its own shard; every K minibatches weights are mixed.

Su and Chen 2015, section 2: local steps ``theta_r -= lr * g_r``, then ``theta_r <- (1/m) sum_r theta_r`` by one
all-reduce. The learning rate may be scaled with the number of workers, since averaging m models keeps only the mean
of their moves. The models are averaged at the end of each epoch too, as there one of them is evaluated and kept.

With another ``mixing`` than all-reduce, workers average in pairs: after a round they still differ, so that worker 0's
model is what is evaluated, and one full average ends the run (the butterfly of the paper's drafts; as there, the
first epoch averages fully).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from implementations.cluster.mixing import PAIRWISE, partners
from implementations.cluster.volume import sent_bytes
from implementations.parameters import ALGORITHM, LR_SCALING, check_algorithm, scaled_lr
from implementations.registry import Param, Progress, Volume, method

if TYPE_CHECKING:
    from implementations.point import Point
    from implementations.training import Plan, Training

PARAMS = {
    "sync_period": Param(
        int, 10, "minibatches between two averages (the paper's K)", "minibatches", minimum=1
    ),
    "mixing": Param(
        str,
        "allreduce",
        "who averages with whom: all, or pairs that change",
        choices=("allreduce", *PAIRWISE),
    ),
    "content": Param(str, "parameters", "what is averaged", choices=("parameters", "with_momentum")),
    "algorithm": ALGORITHM,
    "lr_scaling": LR_SCALING,
}


def checks(point: Point) -> list[str]:
    """Butterflies need a power of two of workers, and momentum can be averaged where there is some."""
    problems = check_algorithm(point)
    params, workers = point.method_params, point.workers
    if params.get("mixing") == "butterfly" and workers & (workers - 1):
        problems.append(f"workers: got {workers}; allowed: a power of two with mixing butterfly")
    if params.get("content") == "with_momentum" and not point.recipe.get("momentum"):
        problems.append("content: got 'with_momentum'; allowed: parameters, as the optimizer has no momentum")
    return problems


def volume(plan: Plan) -> Volume:
    """``ceil(steps / K)`` averages an epoch (the last one closes it); in pairs, after the first epoch, P b each.

    ``paper_bytes`` counts as the paper's text does: what one rank sends, ``2 (m-1)/m P b`` a reduce.
    """
    settings, workers = plan.settings, plan.workers
    per_epoch = -(-plan.steps_per_epoch // settings["sync_period"])
    pairs = 0 if settings["mixing"] == "allreduce" else per_epoch * max(0, plan.epochs - 1)
    fulls = per_epoch * plan.epochs - pairs + (settings["mixing"] != "allreduce")
    size = plan.model_bytes * (1 if settings["content"] == "parameters" else 2)
    full = sum(sent_bytes("allreduce", settings["algorithm"], size, workers))
    paper_bytes = fulls * 2 * (workers - 1) * size // workers + (pairs * size if workers > 1 else 0)
    payload = size if workers > 1 else 0
    return Volume((fulls + pairs) * payload, fulls * full + pairs * payload * workers, paper_bytes)


@method("averaging", volume=volume, params=PARAMS, checks=checks)
def train(run: Training) -> Iterator[Progress]:
    """K local steps, then one average of the weights."""
    settings = run.settings
    period, mixing = settings["sync_period"], settings["mixing"]
    optimizer = run.optimizer(scaled_lr(run.point.lr, settings["lr_scaling"], run.comm.size))
    rounds = -(-run.plan.steps_per_epoch // period)  # of an epoch
    for batch in run.batches():
        loss = run.net.loss_and_grad(batch.x, batch.y)
        optimizer.step()
        average = batch.step_in_epoch % period == 0 or batch.last_of_epoch
        epoch = (batch.step - 1) // run.plan.steps_per_epoch
        full = mixing == "allreduce" or epoch == 0
        if average:
            if batch.last_of_epoch and full == (mixing == "allreduce"):  # as the point mixes
                run.measure_drift()
            done = epoch * rounds + (batch.step_in_epoch - 1) // period
            _average(run, None if full else partners(mixing, run.comm.size, done))
        yield Progress(batch.step, batch.samples, loss, synced=average and full)
    if mixing != "allreduce":
        run.keep_own()
        _average(run, None)


def _average(run: Training, sources: list[int] | None) -> None:
    """Average what is to be averaged over all workers, or of each with the one it hears from."""
    buffers = [run.net.theta_wp]
    if run.settings["content"] == "with_momentum":
        buffers.append(run.moves_wp)
    for buffer in buffers:
        if sources is None:
            run.comm.allreduce_(buffer, "mean", run.settings["algorithm"])
        else:
            run.comm.mix_(buffer, sources)
