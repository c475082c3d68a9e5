"""What every program keeps, whatever its network and cut: drawn at random."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.spark import nets
from implementations.spark.program import GATHER, PAIRS, SCATTER_SUM, SUM
from implementations.spark.traffic import step_bytes
from tests.spark.programs import Steps, network, one_by_one, samples, shapes_of, wanted_shapes

CUTS = ["fc", "cnn-filters", "cnn-rows", "rnn", "lstm"]
WIDTH = st.integers(5, 9)


@st.composite
def _nets(draw, kind):
    """A network with units enough for five workers, and the values of its samples."""
    name = kind.partition("-")[0]
    hidden = draw(st.lists(WIDTH, min_size=name != "cnn", max_size=2))
    if name == "fc":
        features = draw(st.integers(1, 6))
        return {
            "name": name,
            "hidden": hidden,
            "activation": draw(st.sampled_from(["relu", "tanh"])),
        }, features
    if name == "cnn":
        side = draw(st.integers(4, 11))
        filters = draw(st.lists(WIDTH, min_size=1, max_size=side.bit_length() - 1))
        return {
            "name": name,
            "filters": filters,
            "kernel": draw(st.sampled_from([1, 3, 5])),
            "hidden": hidden,
        }, side**2
    steps, values = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return {"name": name, "steps": steps, "hidden": hidden}, steps * values


def programs(test):
    """The test with every kind of program, of 1 to 5 workers: ``test(kind, program, net, x_bi, y_b)``."""

    @pytest.mark.parametrize("kind", CUTS)
    @given(st.data())
    @settings(max_examples=12)
    def drawn(kind, data):
        model, features = data.draw(_nets(kind))
        workers, batch = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
        classes = data.draw(st.integers(2, 7))
        cut = kind.partition("-")[2] or "auto"
        program = nets.program(model, features, classes, workers, batch, cut)
        net = network(model, features, classes)
        test(kind, program, net, *samples(batch, features, classes))

    drawn.__name__, drawn.__doc__ = test.__name__, test.__doc__
    return drawn


@programs
def test_blocks_tile_each_parameter(kind, program, net, x_bi, y_b):
    """Each value has one owner, or all where it is replicated; names and order are the whole network's."""
    owners = {name: torch.zeros(weight[0].shape) for name, weight in net.weights.items()}
    for worker in range(program.workers):
        blocks = program.blocks(worker)
        assert list(blocks) == list(net.weights)
        assert program.params(worker) == sum(math.prod(block.own_shape) for block in blocks.values())
        for name, block in blocks.items():
            assert math.prod(block.shape) == owners[name].numel()
            block.of(owners[name]).add_(1)
    for name, count in owners.items():
        replicated = kind == "cnn-rows" and name.startswith("conv")
        assert (count == (program.workers if replicated else 1)).all()


@programs
def test_segments_hand_over_what_exchanges_say(kind, program, net, x_bi, y_b):
    """Shapes are known before, to all; nothing follows the last segment."""
    seen = []

    def look(exchange, handed):
        seen.append(exchange)
        if exchange.kind in (GATHER, SCATTER_SUM):
            assert len(exchange.sizes) == program.workers
            assert sum(exchange.sizes) == exchange.shape[exchange.axis]
        assert all(source != target for source, target in exchange.pairs)
        for worker, one in enumerate(handed):
            assert shapes_of(one) == wanted_shapes(exchange, worker)
            tensors = one.values() if isinstance(one, dict) else [one]
            assert exchange.values(worker) == sum(tensor.numel() for tensor in tensors)

    one_by_one(program, net, x_bi, y_b, look)
    assert program.exchanges[-1] is None and program.segments == len(program.exchanges)
    assert seen == [exchange for exchange in program.exchanges if exchange is not None]
    assert {exchange.kind for exchange in seen} <= {GATHER, SCATTER_SUM, SUM, PAIRS}


@programs
def test_operations_are_shared_out(kind, program, net, x_bi, y_b):
    """Shares add up to the whole network's, less the rows that pooling drops."""
    total = sum(program.flops_per_sample(worker) for worker in range(program.workers))
    if kind != "cnn-rows":
        assert total == net.flops_per_sample
        return
    dropped = 0
    for layer, (channels, height, width) in enumerate(program.net.maps[:-1]):
        each = channels * program.net.kernel**2 * program.net.maps[layer + 1][0] * width
        dropped += (6 if layer else 4) * (height % 2) * each
    assert total == net.flops_per_sample - dropped


@programs
def test_gradients_are_the_network_s_own(kind, program, net, x_bi, y_b):
    """Whichever way the segments are run, and whoever carries the exchanges."""
    loss = net.loss_and_grad(x_bi.unsqueeze(0), y_b.unsqueeze(0))
    expected = {name: gradient[0] for name, gradient in net.grads.items()}
    ways = [one_by_one(program, net, x_bi, y_b)]
    for driver in (False, True):
        steps = Steps(program, net, driver=driver)
        its_loss = steps.gradients([x_bi], [y_b])
        ways.append((steps.grads(), its_loss))
        counted = step_bytes(program.exchanges, program.workers, driver) if program.workers > 1 else 0
        assert steps.ledger.sent_bytes_total == counted
    for gradients, its_loss in ways:
        torch.testing.assert_close(its_loss, loss, rtol=1e-5, atol=1e-6)
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5)
