"""Traffic of a whole run by closed form; the ledger's count is held against it."""

from __future__ import annotations

from implementations.cluster.volume import sent_bytes
from implementations.registry import Volume
from implementations.spark.options import by_driver
from implementations.spark.program import SUM, Exchange
from implementations.spark.traffic import ITEM, between_workers, step_bytes, through_driver
from implementations.spark.versions import Served
from implementations.training import Plan


def of_plan(plan: Plan) -> Volume:
    """Of model parallelism and hybrids by the program's exchanges, of the others by the model's size."""
    steps = plan.epochs * plan.steps_per_epoch
    if isinstance(plan.layout, Served):
        each = 2 * plan.model_bytes if plan.workers > 1 else 0  # a push and a pull
        return Volume(steps * each, steps * plan.layout.round_bytes)
    if plan.layout is not None:
        return _of_layout(plan, steps)
    driver, values = by_driver(plan.settings), plan.model_bytes // ITEM
    period = plan.settings["sync_period"]
    averages = plan.epochs * -(-plan.steps_per_epoch // period)
    if driver:
        parts = plan.settings["partitions"] or plan.workers
        each = through_driver(Exchange(SUM, (values,)), parts).total
    elif plan.workers == 1:
        return Volume(0, 0)
    else:
        each = sum(sent_bytes("allreduce", "library", plan.model_bytes, plan.workers))
    return Volume(averages * plan.model_bytes, averages * each)


def _of_layout(plan: Plan, steps: int) -> Volume:
    layout = plan.layout
    program, groups = layout.program, layout.groups
    total = 0
    if program.workers > 1:
        total += groups * step_bytes(program.exchanges, program.workers, layout.driver)
    if groups > 1:
        # rows are as long as the longest
        longest = max(program.params(place) for place in range(program.workers))
        gradient = Exchange(SUM, (longest,))
        each = (
            through_driver(gradient, groups).total
            if layout.driver
            else sum(between_workers(gradient, groups))
        )
        total += program.workers * each
    return Volume(0, steps * total)
