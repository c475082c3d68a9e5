"""Networks cut over workers against plain torch, and bytes against sums written out by hand."""

import pytest
import torch

from implementations import exactness, exactness_spark
from implementations.spark import equivalence
from implementations.spark.equivalence import BATCH, NETS, Data, Net, furthest, simulated, step_bytes

FC, FILTERS, ROWS, RNN, LSTM = NETS
SINGLE = torch.float32


@pytest.mark.parametrize(("driver", "times"), [(False, 3), (True, 5)])
def test_bytes_of_a_fully_connected_step(driver, times):
    # 24 and 16 units and 10 scores forward, 24 and 16 back, of 4 workers
    assert step_bytes(FC, 4, driver) == 4 * times * BATCH * (24 + 16 + 10 + 24 + 16)


def test_bytes_of_convolutions_by_filters():
    # pooled maps of 8 x 8 and 4 x 4, 24 units, 10 scores
    forward = 8 * 64 + 12 * 16 + 24 + 10
    assert step_bytes(FILTERS, 2, False) == 4 * BATCH * (2 * forward - 10)


def test_bytes_of_convolutions_by_rows():
    # two workers exchange one row of 8 maps, 8 wide, each way, and back; then maps of 12 x 4 x 4 as units are
    rows, gathered = 2 * (8 * 8), 2 * (12 * 16 + 24) + 10
    kernels = (9 + 1) * 8 + (8 * 9 + 1) * 12
    assert step_bytes(ROWS, 2, False) == 4 * (BATCH * (2 * rows + gathered) + 2 * kernels)
    assert step_bytes(ROWS, 2, True) == 4 * (BATCH * (4 * rows + 3 * gathered) + 4 * kernels)


@pytest.mark.parametrize("net", [RNN, LSTM])
def test_bytes_of_a_recurrent_step(net):
    # states of 16 units at 6 steps there and back, 10 scores there
    assert step_bytes(net, 8, False) == 4 * 7 * BATCH * (2 * 6 * 16 + 10)


@pytest.mark.parametrize("net", NETS, ids=lambda net: f"{net.kind}-{net.cut}")
@pytest.mark.parametrize("driver", [False, True])
def test_workers_do_what_one_device_does(net, driver):
    known = Data(net)
    for optimizer in equivalence.OPTIMIZERS:
        ended = simulated(known, 4, optimizer, torch.float64, driver)
        assert furthest(ended.weights, known.one_device(optimizer, torch.float64)) < 1e-13
    ended = simulated(known, 4, "rmsprop", SINGLE, driver)
    assert furthest(ended.weights, known.one_device("rmsprop", SINGLE)) < 1e-5
    assert ended.step_bytes == step_bytes(net, 4, driver)


def test_training_moves_weights_much_more_than_that():
    known = Data(FC)
    for optimizer in equivalence.OPTIMIZERS:
        moved = furthest(known.one_device(optimizer, SINGLE), list(known.weights.values()))
        assert moved > 1e-2


def test_a_difference_is_seen():
    one = [torch.zeros(3), torch.zeros(2)]
    assert furthest([torch.zeros(3), torch.tensor([0.0, 0.5])], one) == 0.5
    assert furthest([torch.zeros(3), torch.tensor([0.0, float("nan")])], one) == float("inf")


def test_masked_is_truncated_in_the_reference():
    """A sample of length 2 has the scores of its first two steps alone."""
    module = equivalence.module_of(LSTM)
    x_bi = torch.randn(1, LSTM.features)
    x_bi.view(6, 6)[:, -1] = torch.tensor([1.0, 1, 0, 0, 0, 0])
    short = equivalence.Recurrent("lstm", 2, 5, [16], masked=False)
    short.load_state_dict(module.state_dict())
    expected = short(x_bi.view(6, 6)[:2, :-1].reshape(1, -1))
    assert torch.allclose(module(x_bi), expected, atol=1e-6)


def test_parameters_that_are_not_torchs_are_refused():
    other = Data(Net({"name": "fc", "hidden": [16, 24]}, 20))
    with pytest.raises(ValueError, match="w0 of fc"):
        equivalence.fill(FC.program(2), other, {0: torch.zeros(FC.program(2).params(0))})


def test_the_table_has_the_methods_that_are_asked_for(monkeypatch):
    monkeypatch.setattr(exactness_spark.equivalence, "NETS", NETS[:1])
    table = exactness.table("smoke", {"spark"})
    assert set(table["paper"]) == {"spark"} and set(table["evidence"]) == {"simulated"}
    assert len(table) == 2 * 2 * 2 * 2  # workers, optimisers, executions, precisions
    assert table["bytes_as_predicted"].dropna().all()
    empty = exactness.table("smoke", set())
    assert not len(empty) and {"worst_error", "strategies", "execution"} <= set(empty.columns)


def test_without_java_there_are_simulated_rows(monkeypatch, capsys):
    from implementations.cluster.spark import session
    from implementations.errors import UserError

    def refuse(*_):
        raise UserError("no Java")

    monkeypatch.setattr(session, "start", refuse)
    monkeypatch.setattr(exactness_spark.equivalence, "NETS", NETS[:1])
    table = exactness_spark.make((1,), measured=(("fc", "barrier", 1),))
    assert set(table["evidence"]) == {"simulated"} and "simulated only: no Java" in capsys.readouterr().err


def test_a_real_stage_does_what_one_device_does(spark, results):
    (row,) = exactness_spark.measured_on(spark, results, [("fc", "barrier", 2)], ["rmsprop"])
    assert row["evidence"] == "measured" and row["bytes_as_predicted"] and row["step_bytes"] == 2688
    assert 0 < row["torch_error"] < 1e-5 and row["worst_error"] < 1e-5
