"""The variants as loops over minibatches."""

from __future__ import annotations

from collections.abc import Iterator

from implementations.registry import Progress
from implementations.spark.options import by_driver
from implementations.spark.spmd import Spmd
from implementations.training import Training


def model(run: Training) -> Iterator[Progress]:
    """Each layer cut over the workers of a group; gradients averaged over groups (variants ``model``, ``hybrid``)."""
    layout = run.holding.layout
    run.notes["exchanges"] = layout.exchanges
    if run.point.evidence == "measured" and by_driver(run.settings):
        from implementations.spark.jobs import model_jobs

        yield from model_jobs(run)
        return
    optimizer = run.optimizer(run.point.lr)
    program = run.holding.program
    spmd = Spmd(program, run.comm, run.net.theta_wp, run.net.grad_wp, by_driver(run.settings))
    for batch in run.batches():
        groups = len(batch.y) // program.workers
        x_gbi = batch.x.view(groups, program.batch, -1)
        y_gb = batch.y.view(groups, program.batch)
        loss = spmd.gradients(x_gbi, y_gb)
        optimizer.step()
        yield Progress(batch.step, batch.samples, loss, synced=True)


def data(run: Training) -> Iterator[Progress]:
    """Each worker its samples: gradients averaged in each step, or weights after ``sync_period`` steps alone."""
    run.notes["exchanges"] = 1
    if run.point.evidence == "measured" and by_driver(run.settings):
        from implementations.spark.jobs import data_jobs

        yield from data_jobs(run)
        return
    from implementations.spark.replicas import average_

    optimizer, period = run.optimizer(run.point.lr), run.settings["sync_period"]
    for batch in run.batches():
        loss = run.net.loss_and_grad(batch.x, batch.y)
        if period == 1:
            average_(run.comm, run.net.grad_wp, by_driver(run.settings))
        optimizer.step()
        meet = batch.step_in_epoch % period == 0 or batch.last_of_epoch
        if period > 1 and meet:
            average_(run.comm, run.net.theta_wp, by_driver(run.settings))
        yield Progress(batch.step, batch.samples, loss, synced=meet)


def late(run: Training) -> Iterator[Progress]:
    """A parameter server, and gradients that are applied late (variant ``async``)."""
    from implementations.spark.asynchronous import updates

    yield from updates(run)


TRAINERS = {"model": model, "hybrid": model, "data": data, "async": late}
