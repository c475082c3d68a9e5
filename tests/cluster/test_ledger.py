import io

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from implementations.clock import Clock
from implementations.cluster.ledger import FRAME_COLUMNS, Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.cluster.volume import sent_bytes


def a_run(ledger, steps=6, workers=4, period=2):
    comm = SimulatedCommunicator(workers, ledger)
    theta = torch.zeros(workers, 10)
    for step in range(1, steps + 1):
        ledger.step = step
        ledger.compute("fc-10", 64, 1000)
        if step % period == 0:
            comm.allreduce_(theta, "mean", "ring")
    return comm


def test_trace_merges_equal_steps_between_communications():
    ledger = Ledger()
    a_run(ledger)
    frame = ledger.frame()
    assert tuple(frame.columns) == FRAME_COLUMNS
    assert frame["kind"].tolist() == ["compute", "comm"] * 3
    assert frame["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert frame["count"].tolist() == [2, 1] * 3
    comm = frame[frame["kind"] == "comm"].iloc[0]
    assert (comm["op"], comm["algorithm"], comm["group"], comm["group_size"]) == (
        "allreduce", "ring", "world", 4,
    )  # fmt: skip
    assert (comm["payload_bytes"], comm["sent_bytes_total"], comm["messages"]) == (40, 2 * 3 * 40, 6)
    assert comm["sent_bytes_max_worker"] == max(sent_bytes("allreduce", "ring", 40, 4))
    compute = frame.iloc[0]
    assert (compute["model"], compute["samples"], compute["flops"]) == ("fc-10", 64, 1000.0)
    assert frame[["start_s", "end_s"]].isna().all().all()


def test_other_computations_are_not_merged():
    ledger = Ledger()
    for model, samples in [("a", 1), ("a", 1), ("a", 2), ("b", 2), ("b", 2)]:
        ledger.compute(model, samples, 5)
    assert ledger.frame()["count"].tolist() == [2, 1, 2]


def test_empty_trace_has_its_columns():
    frame = Ledger().frame()
    assert tuple(frame.columns) == FRAME_COLUMNS and frame.empty
    assert Ledger().sent_bytes_max_worker == Ledger().payload_bytes == 0


def test_trace_survives_parquet(tmp_path):
    ledger = Ledger(keep_times=True)
    a_run(ledger)
    ledger.frame().to_parquet(tmp_path / "trace.parquet", index=False)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "trace.parquet"), ledger.frame())


def test_totals_are_sums_over_calls():
    ledger = Ledger()
    a_run(ledger)
    per_call = sent_bytes("allreduce", "ring", 40, 4)
    assert ledger.payload_bytes == 3 * 40
    assert ledger.sent_bytes_total == 3 * sum(per_call) == ledger.frame()["sent_bytes_total"].sum()
    assert ledger.sent_bytes_max_worker == 3 * max(per_call)
    assert ledger.messages == 3 * 4 * 6
    assert isinstance(ledger.sent_bytes_total, int)
    assert ledger.totals() == ledger.totals(lambda values: values)


def test_totals_stay_exact_beyond_floating_point():
    ledger = Ledger()
    comm = SimulatedCommunicator(2, ledger)
    one = ledger.kind("bcast", "library", comm.label, comm.workers, _traffic(2**60 + 1))
    for _ in range(3):
        with ledger.call(one):
            pass
    assert ledger.sent_bytes_total == 3 * (2**60 + 1)


def _traffic(sent):
    from implementations.cluster.volume import Traffic

    return Traffic(sent, (sent, 0), (0, sent), (1, 0))


def test_times_are_in_order_and_within_the_clock():
    clock = Clock()
    ledger = Ledger(clock, keep_times=True)
    a_run(ledger, steps=40, period=1)
    comm = ledger.frame().query("kind == 'comm'")
    assert (comm["end_s"] >= comm["start_s"]).all()
    assert (comm["start_s"].to_numpy()[1:] >= comm["end_s"].to_numpy()[:-1]).all()
    assert 0 < (comm["end_s"] - comm["start_s"]).sum() <= clock.seconds["comm"] <= clock.wall_s


def test_comm_inside_compute_is_charged_once():
    clock = Clock()
    comm = SimulatedCommunicator(8, Ledger(clock))
    values = torch.zeros(8, 100_000)
    with clock("compute"):
        comm.allreduce_(values)
    assert clock.seconds["comm"] > 0
    assert clock.uncovered_s >= 0


def test_a_call_that_raises_is_not_booked():
    clock = Clock()
    ledger = Ledger(clock)
    kind = ledger.kind("bcast", "library", "world", (0, 1), _traffic(4))
    with pytest.raises(RuntimeError), ledger.call(kind):
        raise RuntimeError("link down")
    assert ledger.frame().empty and ledger.sent_bytes_total == 0
    with clock("other"):  # and the clock's block was closed
        pass


@given(steps=st.integers(0, 12), more=st.integers(0, 6), period=st.integers(1, 4), warm=st.booleans())
def test_a_restored_ledger_goes_on_as_if_nothing_had_happened(steps, more, period, warm):
    straight = Ledger()
    a_run(straight, steps + more, period=period)
    first = Ledger()
    a_run(first, steps, period=period)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second = Ledger()
    comm = SimulatedCommunicator(4, second)
    theta = torch.zeros(4, 10)
    if warm:  # kinds get other numbers than in the saved ledger
        comm.bcast_(torch.zeros(4, 3), root=1)
        comm.allreduce_(theta, "mean", "ring")
    second.restore(torch.load(file, weights_only=True))
    assert second.totals() == first.totals()
    for step in range(steps + 1, steps + more + 1):
        second.step = step
        second.compute("fc-10", 64, 1000)
        if step % period == 0:
            comm.allreduce_(theta, "mean", "ring")
    pd.testing.assert_frame_equal(second.frame(), straight.frame())
    assert second.totals() == straight.totals()


def test_restored_times_go_on():
    first = Ledger(keep_times=True)
    a_run(first)
    second = Ledger(keep_times=True)
    second.restore(first.state())
    a_run(second)
    starts = second.frame()["start_s"].dropna().to_numpy()
    assert (np.diff(starts) >= 0).all() and len(starts) == 6


def test_groups_of_a_split_complete_each_other():
    """Two processes that each know their own group's calls; the elementwise maximum knows all."""
    ledgers = []
    for group in (0, 1):
        ledger = Ledger()
        comm = SimulatedCommunicator(4, ledger)
        comm.allreduce_(torch.zeros(4, 5))
        groups = comm.split([0, 0, 1, 1])
        for _ in range(group + 1):
            groups[group].allreduce_(torch.zeros(2, 8), "sum", "star")
        ledgers.append(ledger)

    calls = iter([[4], None])

    def maximum(values):  # what a reduction over both processes would return
        sizes = next(calls)
        if sizes is not None:
            return np.array(sizes)
        both = [ledger._totals().ravel() for ledger in ledgers]
        return np.maximum(*both)

    totals = ledgers[0].totals(maximum)
    world = 2 * 3 * 20
    assert totals["sent_bytes_total"] == world + 2 * 32 + 2 * 2 * 32
    assert totals["payload_bytes"] == 20 + 2 * 32
    assert totals["sent_bytes_max_worker"] == max(sent_bytes("allreduce", "library", 20, 4)[2:]) + 2 * 32
