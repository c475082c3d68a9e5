"""Training under a layer-wise strategy: one network, one minibatch of all workers, each layer split its own way.

The variants are strategies; all do the same arithmetic up to rounding, that of one device with the whole minibatch.
``layerwise`` searches for the fastest by the cost model (Jia et al. 2018, section 5), ``data``, ``model`` and ``owt``
are what the paper compares it with, and ``single`` has one device do all the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from implementations.layerwise.options import OBJECTIVES, SYNCS
from implementations.registry import Param, Progress, Volume, method

if TYPE_CHECKING:
    from implementations.holding import Holding
    from implementations.point import Point
    from implementations.training import Plan, Training


def volume(plan: Plan) -> Volume:
    """What the plan's devices send each other in every step."""
    from implementations.layerwise import traffic

    steps, layout = plan.epochs * plan.steps_per_epoch, plan.layout
    counted = traffic.paper_bytes_of(layout).total
    return Volume(0, steps * sum(layout.sent_bytes()), steps * counted)


def holding(**parts: Any) -> Holding:
    """Each worker's parts of the network."""
    from implementations.layerwise.holding import Sharded

    return Sharded(**parts)


def checks(point: Point) -> list[str]:
    """Optimisers and first weights that need the network of a worker have none here."""
    problems = []
    if point.optimizer != "sgd":
        problems.append(f"optimizer: got {point.optimizer!r}; allowed: sgd (others need whole layers)")
    if point.init != "uniform":
        problems.append(f"init: got {point.init!r}; allowed: uniform")
    return problems


@method(
    "layerwise",
    volume=volume,
    variants=("layerwise", "data", "model", "owt", "single"),
    params={
        "plan_for": Param(
            str, "p100-nvlink", "cluster that a strategy is searched for; a file of config/clusters/"
        ),
        "objective": Param(str, "additive", "what the search minimises", choices=OBJECTIVES),
        "plan_sync": Param(str, "allreduce", "how the cost model sums gradients", choices=SYNCS),
        "degrees": Param(
            str, "powers", "degrees of a split: powers of two, or all", choices=("powers", "all")
        ),
        "device_rate": Param(
            float,
            0.0,
            "of a projection: what one device really trains, for its efficiency; 0: by its rates alone",
            unit="samples/s",
            minimum=0,
        ),
        "rate_minibatch": Param(int, 0, "samples a step at that rate; 0: the point's", minimum=0),
        "searches": Param(
            str, "none", "of a projection: which searches are timed", choices=("none", "elimination", "all")
        ),
        "search_limit_s": Param(float, 1.0, "time limit of the searches compared", unit="s", minimum=0),
    },
    checks=checks,
    exemptions={"workers_agree": "each worker holds its own parts of the network"},
    holding=holding,
    own_cost_model=True,
)
def train(run: Training) -> Iterator[Progress]:
    """``theta -= lr * gradient of the mean loss over all workers' samples`` after each minibatch."""
    optimizer = run.optimizer(run.point.lr)
    for batch in run.batches():
        loss = run.net.loss_and_grad(batch.x, batch.y, batch.step)
        optimizer.step()
        yield Progress(batch.step, batch.samples, loss, synced=True)
