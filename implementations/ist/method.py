"""Independent subnet training: each worker trains a narrow subnet for J steps, then the units are dealt out anew.

Yuan, Wolfe, Dun, Tang, Kyrillidis, Jermaine 2022 (PVLDB 15(8), arXiv 1910.02120), section 3. Nothing is averaged:
groups are disjoint, so that blocks are copied back. What is evaluated is the full net.

Variant ``faithful`` is the authors' published code: each worker shuffles the whole training set by itself (sharding
``independent``), batch statistics at test (``statistics: batch`` of the model), plain SGD; with ``lost_steps`` also
its slips: the central server is given the weights one step before the end of a window, so that the last step is
thrown away (but for the epoch's last one, after which it is given them again), and the partitioned one never gets the
last window of an epoch unless it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from implementations.errors import UserError
from implementations.registry import Param, Progress, Volume, method

if TYPE_CHECKING:
    from implementations.holding import Holding
    from implementations.point import Point
    from implementations.training import Plan, Training

PARAMS = {
    "sync_period": Param(
        int, 20, "local steps between two draws of the subnets (the paper's J)", "steps", minimum=1
    ),
    "server": Param(
        str,
        "central",
        "who stores the full net: worker 0, or each worker its share of the units",
        choices=("central", "partitioned"),
    ),
    "partition": Param(
        str,
        "uniform",
        "uniform: all units of a layer are dealt out; stratified: those of each worker's share apart",
        choices=("uniform", "stratified"),
    ),
    "redraw": Param(bool, True, "whether the subnets are drawn anew each round"),
    "overlap": Param(
        float, 0.0, "further units of each subnet, drawn from the others, as a share of its own", minimum=0.0
    ),
    "lost_steps": Param(bool, False, "faithful only: steps are lost as in the published code"),
}


def subnets(**parts: Any) -> Holding:
    """The subnets of the hosted workers."""
    from implementations.ist.subnets import Subnets  # loads torch

    return Subnets(**parts)


def worker_model(point: Point) -> dict[str, Any]:
    """The subnet of the worker with most units, as a model is described."""
    from implementations import models
    from implementations.ist import partition

    params = {name: point.method_params.get(name, PARAMS[name].default) for name in ("partition", "overlap")}
    units = models.split_units(point.model)
    least = dict.fromkeys(units, models.least_units(point.model))
    sizes = partition.sizes_by_label(units, point.workers, least, **params)
    return models.narrow(point.model, {label: max(of_label) for label, of_label in sizes.items()})


def checks(point: Point) -> list[str]:
    """What a point cannot have here, as lines ``key: got X; allowed: Y``."""
    params, problems = point.method_params, []
    if point.optimizer != "sgd":
        problems.append(
            f"optimizer: got {point.optimizer!r}; allowed: sgd (estimates do not move with the units)"
        )
    if point.init != "uniform":
        problems.append(f"init: got {point.init!r}; allowed: uniform")
    if point.model.get("activation") == "sigmoid":
        problems.append("model: got activation 'sigmoid'; allowed: relu | tanh (an absent unit must give 0)")
    if point.schedule == "newbob":
        problems.append(
            "schedule: got 'newbob'; allowed: constant | exponential (the end must be known beforehand)"
        )
    if params.get("lost_steps") and point.variant != "faithful":
        problems.append(
            "lost_steps: got True; allowed: False (the published slips belong to variant faithful)"
        )
    if params.get("lost_steps") and params.get("sync_period", 20) < 2:
        problems.append(
            "sync_period: got 1; allowed: at least 2 with lost_steps, which drops one of each window"
        )
    if point.variant == "faithful":
        if point.sharding != "independent":
            problems.append(f"sharding: got {point.sharding!r}; allowed: independent with variant faithful")
        if point.model.get("statistics") != "batch":
            problems.append("model: allowed: statistics batch with variant faithful, as published")
    hidden = point.model.get("hidden")
    if not hidden:
        problems.append(f"model: got {point.model['name']!r}; allowed: one with hidden layers to split")
        return problems
    if "blocks" in point.model:  # residual blocks: subnets share them where there are too few
        return problems
    narrowest = min(hidden)
    if point.workers > narrowest:
        problems.append(
            f"workers: got {point.workers}; allowed: at most {narrowest}, the units of the narrowest layer"
        )
    elif params.get("partition") == "stratified" and point.workers**2 > narrowest:
        problems.append(
            f"workers: got {point.workers}; allowed: at most {int(narrowest**0.5)} with partition stratified, "
            f"as each of the workers' shares of {narrowest} units is cut as often"
        )
    return problems


def pushes(place: int, last_of_epoch: bool, settings: dict[str, Any]) -> bool:
    """Whether the subnets are written back after step ``place`` (0, 1, ...) of their window."""
    period = settings["sync_period"]
    if not settings["lost_steps"]:
        return place == period - 1 or last_of_epoch
    if settings["server"] == "partitioned":
        return place == period - 1
    return place == period - 2 or last_of_epoch


def volume(plan: Plan) -> Volume:
    """Both ways: ``2 b (P_in + P_out + P_bn + P_hid / n)`` a round, less what a worker stores itself.

    ``paper_bytes`` counts as the paper does: what one worker gets and gives back, wherever it is stored.
    """
    from implementations.ist import partition

    settings, workers, layout = plan.settings, plan.workers, plan.layout
    period, per_epoch = settings["sync_period"], plan.steps_per_epoch
    windows = -(-per_epoch // period)
    ends = [
        sum(
            pushes(step % period, step == per_epoch - 1, settings)
            for step in range(window * period, min(per_epoch, (window + 1) * period))
        )
        for window in range(windows)
    ]
    stores = partition.stored(layout.units, workers, settings["server"])
    options = {name: settings[name] for name in ("partition", "redraw", "overlap")}
    # How much of a subnet is stored where depends on the draw; its size does not.
    varies = settings["server"] == "partitioned" and settings["redraw"]
    counts = None
    sent = paper = busiest = 0
    for round in range(windows * plan.epochs):
        if counts is None or varies:
            groups = partition.draw(
                layout.units, workers, plan.seed, round, min_units=layout.min_units, **options
            ).units
            counts = partition.blocks_of(layout, groups, stores)
            network, of_subnet = counts.sent, int(counts.of_workers().max())
        ways = 1 + ends[round % windows]
        sent += 4 * network * ways
        paper += 4 * of_subnet * ways
        busiest += 4 * (int(counts.of_sources().max()) + (ways - 1) * of_subnet)
    return Volume(busiest if workers > 1 else 0, sent, paper if workers > 1 else 0)


@method(
    "ist",
    volume=volume,
    variants=("corrected", "faithful"),
    params=PARAMS,
    checks=checks,
    holding=subnets,
    worker_model=worker_model,
    exemptions={"workers_agree": "each worker holds a subnet of its own; the full net is with the server"},
)
def train(run: Training) -> Iterator[Progress]:
    """Deal out, J local steps, write back."""
    settings, held, plan = run.settings, run.holding, run.plan
    period = settings["sync_period"]
    if settings["lost_steps"] and settings["server"] == "partitioned" and period > plan.steps_per_epoch:
        raise UserError(
            f"sync_period {period} with lost_steps: an epoch has {plan.steps_per_epoch} steps, so that nothing would "
            f"ever be written back; lower sync_period"
        )
    moves = (
        settings["redraw"] and run.comm.size > 1
    )  # whether a unit may be another worker's in the next round
    optimizer = run.optimizer(run.point.lr)
    if not run.done_steps:
        run.comm.ledger.step = 1
        held.scatter(0)
    round = _round_of(run.done_steps, plan, period)
    for batch in run.batches():
        place = (batch.step_in_epoch - 1) % period
        loss = run.net.loss_and_grad(batch.x, batch.y)
        optimizer.step()
        if pushes(place, batch.last_of_epoch, settings):
            held.gather(round)
        if place == period - 1 or batch.last_of_epoch:
            round += 1
            if batch.step < plan.epochs * plan.steps_per_epoch:
                held.scatter(round)
                if moves and run.moves_wp is not None:
                    run.moves_wp.zero_()  # of units that other workers have now
        yield Progress(batch.step, batch.samples, loss, synced=True)


def _round_of(done_steps: int, plan: Plan, period: int) -> int:
    """The round, counted over the run from 0, that the step after ``done_steps`` is in."""
    epochs, steps = divmod(done_steps, plan.steps_per_epoch)
    return epochs * -(-plan.steps_per_epoch // period) + steps // period
