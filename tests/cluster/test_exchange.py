"""Direct messages of known sizes among simulated workers: what arrives, and what is booked."""

import numpy as np
import pytest
import torch

from implementations.clock import Clock
from implementations.cluster.exchange import Exchange
from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator


def exchange(shapes, size=4, dtype=torch.float32, ledger=None):
    return Exchange(SimulatedCommunicator(size, ledger or Ledger()), shapes, dtype)


def blocks(shapes, dtype=torch.float32, seed=0):
    stream = torch.Generator().manual_seed(seed)
    return {pair: torch.randint(0, 99, shape, generator=stream).to(dtype) for pair, shape in shapes.items()}


MESSAGES = {
    "scatter": {(1, 0): (3,), (1, 2): (2, 2), (1, 3): (5,)},
    "gather": {(0, 2): (3,), (1, 2): (1, 4), (3, 2): (7,)},
    "alltoall": {(0, 1): (3,), (1, 0): (2, 5), (2, 3): (4,), (3, 0): (1,)},
}


@pytest.mark.parametrize("op", MESSAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_what_is_sent_arrives_and_is_booked(op, dtype):
    shapes, ledger = MESSAGES[op], Ledger(Clock(), keep_times=True)
    made = exchange(shapes, dtype=dtype, ledger=ledger)
    assert sorted(made.sends) == sorted(shapes)
    sent = blocks(shapes, dtype)
    received = made.start(sent)()
    assert set(received) == set(shapes)
    assert all(torch.equal(received[pair], block) for pair, block in sent.items())
    of_each = np.zeros(4, dtype=int)
    for (source, _), shape in shapes.items():
        of_each[source] += np.prod(shape) * dtype.itemsize
    assert ledger.sent_bytes_total == of_each.sum()
    assert ledger.sent_bytes_max_worker == ledger.payload_bytes == of_each.max()
    assert ledger.messages == len(shapes)
    assert ledger.handed_bytes == 0  # one process hands nothing to MPI
    (row,) = ledger.frame().to_dict("records")
    assert (row["kind"], row["op"], row["algorithm"], row["group"], row["group_size"]) == (
        "comm", op, "direct", "world", 4,
    )  # fmt: skip
    assert row["end_s"] >= row["start_s"] and ledger.clock.seconds["comm"] > 0


def test_each_start_is_a_call_of_its_own():
    shapes, ledger = MESSAGES["alltoall"], Ledger()
    made = exchange(shapes, ledger=ledger)
    once = 4 * sum(np.prod(shape) for shape in shapes.values())
    for step in (1, 2, 3):
        ledger.step = step
        made.start(blocks(shapes, seed=step))()
    assert ledger.sent_bytes_total == 3 * once
    assert ledger.frame()["step"].tolist() == [1, 2, 3]


def test_several_in_flight_do_not_meet():
    ledger = Ledger(keep_times=True)
    comm = SimulatedCommunicator(4, ledger)
    made = {op: Exchange(comm, shapes, torch.float32) for op, shapes in MESSAGES.items()}
    sent = {(op, seed): blocks(MESSAGES[op], seed=seed) for seed in (1, 2) for op in MESSAGES}
    waits = {key: made[key[0]].start(values) for key, values in sent.items()}
    for key in reversed(waits):  # waited for in another order than started
        received = waits[key]()
        assert all(torch.equal(received[pair], block) for pair, block in sent[key].items())
    frame = ledger.frame()
    assert frame["op"].tolist() == list(MESSAGES) * 2
    assert (frame["end_s"] >= frame["start_s"]).all()
    assert (np.diff(frame["end_s"]) < 0).all()  # ended in that order


def test_nothing_is_booked_while_the_ledger_is_muted():
    ledger = Ledger(keep_times=True)
    made = exchange(MESSAGES["gather"], ledger=ledger)
    sent = blocks(MESSAGES["gather"])
    with ledger.muted():
        received = made.start(sent)()
    assert all(torch.equal(received[pair], block) for pair, block in sent.items())
    assert ledger.frame().empty and ledger.sent_bytes_total == ledger.handed_bytes == 0
    made.start(sent)()
    assert len(ledger.frame()) == 1 and ledger.sent_bytes_total == 4 * 14


def test_a_block_within_a_process_is_handed_over_as_it_is():
    made = exchange({(0, 1): (1000,)}, size=2)
    block = torch.zeros(1000)
    assert made.start({(0, 1): block})()[0, 1].data_ptr() == block.data_ptr()


def test_groups_of_a_split_are_charged_by_their_place_in_the_world():
    ledger = Ledger()
    group = SimulatedCommunicator(4, ledger).split([0, 1, 0, 1])[1]  # workers 1 and 3
    received = Exchange(group, {(0, 1): (6,)}, torch.float32).start({(0, 1): torch.ones(6)})()
    assert torch.equal(received[0, 1], torch.ones(6))
    row = ledger.frame().iloc[0]
    assert (row["group"], row["group_size"], row["op"]) == ("world/0:1", 2, "scatter")
    assert ledger._totals()[1].tolist() == [0, 24, 0, 0]
