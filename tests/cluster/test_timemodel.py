"""The time model against hand-made traces and known constants."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from implementations.cluster import timemodel
from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.cluster.timemodel import expected_max, expected_pair_wait, predict, step_cost
from tests.cluster.toys import BATCH, FLOPS, MODEL, PARAMS, described, events, figure, steps_table, with_links


def test_expected_maximum_of_normals():
    known = {
        1: 0.0,
        2: 1 / math.sqrt(math.pi),
        3: 1.5 / math.sqrt(math.pi),
        4: 1.02938,
        8: 1.42360,
        16: 1.76599,
    }
    for count, value in known.items():
        assert expected_max(count) == pytest.approx(value, abs=1e-5)
    assert expected_max(100) == pytest.approx(2.50759, abs=1e-5)


def test_parts_of_a_data_parallel_run():
    toy = with_links(steps=steps_table())
    timing = predict(events(100, 1, 4), toy, 4, model_params=PARAMS)
    assert timing.steps == 100
    assert timing.compute_s == pytest.approx(100 * 2e-3)  # both devices of a node are busy
    assert timing.data_s == pytest.approx(100 * 1e-5)
    assert timing.comm_s == pytest.approx(100 * 2 * 3 * (1e-5 + 10_000 / 1e9))
    assert timing.straggler_s == pytest.approx(100 * 1.02938 * 1e-4, rel=1e-5)
    assert timing.overlap_s == 0
    parts = timing.compute_s + timing.data_s + timing.comm_s + timing.straggler_s
    assert timing.train_s == pytest.approx(parts)
    assert timing.step_s == pytest.approx(parts / 100)
    assert (timing.compute_source, timing.nodes, timing.oversubscribed) == ("calibrated table", 2, False)


def test_waiting_grows_with_the_root_of_the_steps_between_two_collectives():
    toy = with_links(steps=steps_table())
    one, nine = (
        predict(events(900, period, 4), toy, 4, model_params=PARAMS).straggler_s for period in (1, 9)
    )
    assert nine == pytest.approx(one / 9 * 3)


def test_waiting_is_that_of_random_workers():
    """Against a drawn sample: m workers, k steps each, the slowest against the mean."""
    m, k, sd = 8, 10, 1e-4
    drawn = np.random.default_rng(5).normal(1e-3, sd, (20_000, m, k)).sum(axis=2)
    waits = drawn.max(axis=1) - drawn.mean(axis=1)
    toy = with_links(steps=steps_table())
    timing = predict(events(k, k, m), toy, m, model_params=PARAMS)
    assert timing.straggler_s == pytest.approx(waits.mean(), rel=0.02)


def test_who_mixes_in_pairs_waits_less_than_for_all():
    assert expected_pair_wait(1) == 0
    assert expected_pair_wait(2) == pytest.approx(
        1 / math.sqrt(math.pi), rel=0.01
    )  # the pair is all there is
    waits = [expected_pair_wait(m) for m in (2, 3, 4, 8, 16, 32)]
    assert waits == sorted(waits)
    for m in (4, 8, 16, 32):
        assert expected_max(2) < expected_pair_wait(m) < expected_max(m)
        # a walk of its own through the butterfly
        late = np.zeros((256, m))
        draws, half = np.random.default_rng(m), []
        for t in range(400):
            late += draws.normal(size=late.shape)
            late = np.maximum(late, late[:, np.arange(m) ^ (1 << t % (m.bit_length() - 1))])
            half += [late.mean()] if t in (199, 399) else []
        assert expected_pair_wait(m) == pytest.approx((half[1] - half[0]) / 200, rel=0.04)
    toy = with_links(steps=steps_table())
    mixed = events(100, 1, 4, op="mix").replace({"algorithm": {"ring": "shift-1"}})
    timing = predict(mixed, toy, 4, model_params=PARAMS)
    assert timing.comm_s == pytest.approx(100 * (1e-5 + 40_000 / 1e9))
    assert timing.straggler_s == pytest.approx(100 * expected_pair_wait(4) * 1e-4)


def test_one_worker_waits_for_nobody():
    timing = predict(events(50, 50, 1), with_links(steps=steps_table()), 1, model_params=PARAMS)
    assert (timing.comm_s, timing.straggler_s, timing.nodes) == (0, 0, 1)
    assert timing.train_s == pytest.approx(50 * (1e-3 + 1e-5))


def test_endless_bandwidth_and_no_latency_make_communication_free():
    timing = predict(events(10, 1, 8), with_links(0.0, math.inf), 8)
    assert timing.comm_s == 0
    assert timing.compute_s > 0


@given(
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(1, 8),
    st.floats(0, 1e-3),
    st.floats(1e6, 1e11),
    st.floats(1, 50),
)
def test_a_slower_network_never_shortens_a_run(steps, period, workers, latency_s, bandwidth, factor):
    trace = timemodel.group(events(steps, period, workers))
    base = predict(trace, with_links(latency_s, bandwidth), workers).train_s
    assert predict(trace, with_links(latency_s * factor, bandwidth), workers).train_s >= base * (1 - 1e-12)
    assert predict(trace, with_links(latency_s, bandwidth / factor), workers).train_s >= base * (1 - 1e-12)


@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0, 1]))
def test_time_to_a_step_adds_up_event_by_event(steps, period, workers, first):
    toy = with_links(steps=steps_table())
    trace = events(steps, period, workers, first=first)
    timing = predict(trace, toy, workers, model_params=PARAMS)
    assert float(timing.time_to(steps)) == pytest.approx(timing.train_s)
    assert float(timing.time_to(0)) == 0
    # brute force: walk through the steps
    step_s = 1e-3 * min(workers, 2) + 1e-5
    call_s = 2 * (workers - 1) * (1e-5 + 40_000 / workers / 1e9)
    clock, expected, waiting = 0.0, [0.0], 0
    for step in range(1, steps + 1):
        clock, waiting = clock + step_s, waiting + 1
        if step % period == 0 or step == steps:
            clock += call_s + expected_max(workers) * 1e-4 * math.sqrt(waiting)
            waiting = 0
        expected.append(clock)
    assert timing.time_to(range(steps + 1)) == pytest.approx(np.array(expected), abs=1e-12)


def test_a_non_blocking_collective_hides_behind_the_computation_that_follows():
    toy = with_links(steps=steps_table())
    plain, hidden = (
        predict(events(100, 1, 4, op=op), toy, 4, model_params=PARAMS) for op in ("allreduce", "iallreduce")
    )
    assert hidden.comm_s == pytest.approx(plain.comm_s)
    # the last one has nothing to hide behind
    assert hidden.overlap_s == pytest.approx(99 / 100 * plain.comm_s)
    slow = predict(
        events(100, 1, 4, op="iallreduce"), with_links(1.0, steps=steps_table()), 4, model_params=PARAMS
    )
    assert slow.overlap_s == pytest.approx(99 * 2e-3)


def side_by_side(*calls):
    """One step of computation, then calls (group, group size, payload)."""
    trace = events(1, 1, 1).assign(group=None)
    for name, size, payload in calls:
        call = events(1, 1, size, payload).iloc[1:].assign(group=name)
        trace = pd.concat([trace.astype(object), call.astype(object)], ignore_index=True)
    return trace


def test_of_groups_side_by_side_the_slowest_counts():
    toy = with_links(steps=steps_table())

    def ring_s(size, payload):
        return 2 * (size - 1) * (1e-5 + payload / size / 1e9)

    calls = [("world/0:0", 2, 1e5), ("world/0:1", 3, 2e5), ("world/0:1/0:0", 2, 1e5), ("world", 5, 3e5)]
    timing = predict(side_by_side(*calls), toy, 5, model_params=PARAMS)
    expected = max(ring_s(2, 1e5), ring_s(3, 2e5) + ring_s(2, 1e5)) + ring_s(5, 3e5)
    assert timing.comm_s == pytest.approx(expected)
    assert timing.straggler_s == pytest.approx(expected_max(3) * 1e-4)  # the group that counts meets once
    assert float(timing.time_to(1)) == pytest.approx(timing.train_s)
    # two splits, or a computation between, are places of their own
    apart = predict(side_by_side(("world/0:0", 2, 1e5), ("world/1:1", 2, 1e5)), toy, 4, model_params=PARAMS)
    assert apart.comm_s == pytest.approx(2 * ring_s(2, 1e5))
    twice = pd.concat([side_by_side(*calls[:2]), side_by_side(*calls[:2]).assign(step=2)], ignore_index=True)
    assert predict(twice, toy, 5, model_params=PARAMS).comm_s == pytest.approx(2 * ring_s(3, 2e5))


def test_workers_beyond_the_devices_take_turns():
    toy = with_links(steps=steps_table())
    timing = predict(events(10, 1, 32), toy, 32, model_params=PARAMS)
    assert timing.oversubscribed
    assert timing.compute_s == pytest.approx(10 * 2e-3 * 4)


def test_roofline_adds_products_memory_and_overhead():
    device = described()["device"] | {"launch_overhead_s": figure(1e-5), "step_variation": figure(0.1)}
    toy = with_links(device=device)
    cost = step_cost(toy, MODEL, BATCH, FLOPS, model_params=PARAMS)
    assert cost.step_s == pytest.approx(FLOPS / 5e11 + 24 * PARAMS / 1e11 + 1e-5)
    assert cost.sd_s == pytest.approx(0.1 * cost.step_s)
    assert (cost.data_s, cost.source) == (0, "roofline")
    # unknown parameters follow from the work; two threads take two cores, and there are no more
    assert step_cost(toy, MODEL, BATCH, FLOPS).step_s == pytest.approx(cost.step_s)
    two = step_cost(toy, MODEL, BATCH, FLOPS, threads=2, model_params=PARAMS).step_s
    assert two == pytest.approx(cost.step_s - FLOPS / 5e11 / 2)
    assert step_cost(toy, MODEL, BATCH, FLOPS, threads=5, model_params=PARAMS).step_s == pytest.approx(two)


GRID = [
    {"model": f"fc-{p}", "model_params": p, "flops_per_sample": 6.0 * p, "minibatch": b, "busy_ranks": r}
    | {
        "threads": t,
        "step_s": 1e-9 * p**0.8 * b**0.5 * (1 + 0.1 * r) / t,
        "step_sd_s": 1e-5,
        "data_s": 1e-7 * b,
    }
    for p, b, r, t in itertools.product((1000, 10_000, 100_000), (16, 64, 256), (1, 2), (1, 2))
]


@pytest.mark.parametrize("row", GRID[::5])
def test_the_step_table_is_hit_exactly(row):
    cost = step_cost(
        with_links(steps=GRID), row["model"], row["minibatch"], 1.0, busy=row["busy_ranks"], threads=row["threads"],
        model_params=row["model_params"],
    )  # fmt: skip
    assert (cost.step_s, cost.sd_s, cost.data_s) == (row["step_s"], row["step_sd_s"], row["data_s"])
    assert cost.source == "calibrated table"


def test_between_table_rows_a_power_law_is_met():
    """The table follows step_s = c p^0.8 b^0.5, which interpolation in logarithms reproduces."""
    toy = with_links(steps=GRID)
    cost = step_cost(toy, "fc-1000", 100, 1.0, model_params=1000)
    assert cost.step_s == pytest.approx(1e-9 * 1000**0.8 * 100**0.5 * 1.1)
    assert cost.source == "calibrated table, interpolated"
    other = step_cost(toy, "fc-30-40", 64, 6.0 * 30_000 * 64, model_params=30_000)
    assert other.step_s == pytest.approx(1e-9 * 30_000**0.8 * 64**0.5 * 1.1)
    by_work = step_cost(toy, "fc-30-40", 64, 6.0 * 30_000 * 64)
    assert by_work.step_s == pytest.approx(other.step_s)


def test_outside_the_table_the_roofline_takes_over():
    toy = with_links(steps=GRID)
    for model, samples, params in [
        ("fc-1000", 512, 1000),
        ("fc-x", 64, 10**6),
        ("fc-x", 100, 30_000),
        ("cnn", 64, 10**4),
    ]:
        assert step_cost(toy, model, samples, 1e9, model_params=params).source == "roofline"
    # the same label with other inputs is another network
    assert step_cost(toy, "fc-1000", 64, 1e9, model_params=1001).source == "calibrated table, interpolated"
    assert step_cost(toy, "fc-1000", 64, 1e9, busy=3, model_params=1000).source == "roofline"


def test_numbers_of_busy_ranks_between_measured_ones_are_interpolated():
    rows = [row | {"busy_ranks": 1 if row["busy_ranks"] == 1 else 5} for row in GRID]
    low, high = (step_cost(with_links(steps=rows), "fc-1000", 64, 1.0, busy=busy).step_s for busy in (1, 5))
    cost = step_cost(with_links(steps=rows), "fc-1000", 64, 1.0, busy=3)
    assert cost.step_s == pytest.approx((low + high) / 2)
    assert cost.source == "calibrated table, interpolated"


def test_a_trace_that_is_none_is_refused():
    with pytest.raises(ValueError, match="group_size, payload_bytes"):
        timemodel.group(pd.DataFrame({"step": [1], "kind": ["comm"], "op": ["x"], "algorithm": ["y"]}))
    with pytest.raises(ValueError, match="sleep"):
        timemodel.group(events(3, 1, 2).assign(kind="sleep"))


def test_the_trace_that_a_communicator_leaves():
    """Through the ledger that runs use: three steps of 4 workers, a split, and steps that are merged."""
    ledger = Ledger()
    world = SimulatedCommunicator(4, ledger)
    buffer, half = torch.zeros(4, 2500), torch.zeros(2, 2500)
    for ledger.step in (1, 2, 3):
        ledger.compute(MODEL, BATCH, FLOPS)
        if ledger.step == 2:
            world.allreduce_(buffer, "mean", "ring")
            for group in world.split([0, 0, 1, 1]).values():
                group.allreduce_(half, "mean", "ring")
    timing = predict(ledger.frame(), with_links(steps=steps_table()), 4, model_params=PARAMS)
    assert timing.steps == 3
    assert timing.compute_s == pytest.approx(3 * 2e-3)
    assert timing.comm_s == pytest.approx(2 * 3 * (1e-5 + 2500 / 1e9) + 2 * (1e-5 + 5000 / 1e9))
    assert timing.straggler_s == pytest.approx(expected_max(4) * 1e-4 * math.sqrt(2))
    assert float(timing.time_to(1)) == pytest.approx(2e-3 + 1e-5)


def test_an_empty_trace_takes_no_time():
    timing = predict(events(0, 1, 2), with_links(), 2)
    assert (timing.train_s, timing.step_s, timing.steps) == (0, 0, 0)
