"""The recurrent program against plain torch, on workers that share out the hidden units."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from recurrent_reference import plain, sequences
from torch.utils.flop_counter import FlopCounterMode
from training_runs import point_of, trained, whole_model

from implementations import models
from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.errors import UserError
from implementations.seeds import torch_stream
from implementations.spark import nets
from implementations.spark.program import State
from implementations.spark.spmd import Spmd, combined
from implementations.spark.traffic import step_bytes

VALUES, CLASSES = 3, 5
NAMES = ["rnn", "lstm"]


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Group:
    """The workers of one group with their blocks of a network, which is ``net``."""

    def __init__(self, name, hidden, steps, masked, workers, batch):
        model = {"name": name, "steps": steps, "hidden": list(hidden), "masked": masked}
        features = steps * (VALUES + masked)
        self.net = models.build(model, features, CLASSES, 1, torch_stream(3, "init"))
        self.program = nets.program(model, features, CLASSES, workers, batch, "auto")
        longest = max(self.program.params(worker) for worker in range(workers))
        self.theta_wp, self.grad_wp = torch.zeros(workers, longest), torch.full((workers, longest), torch.nan)
        self.ledger = Ledger()
        self.comm = SimulatedCommunicator(workers, self.ledger, None)
        for worker in range(workers):
            for views, block, name in self.parts(worker, self.theta_wp):
                views.copy_(block.of(self.net.weights[name][0]))

    def parts(self, worker, flat_wp):
        """A worker's views of its row, their blocks, and the names of the weights."""
        views = self.program.views(worker, flat_wp[worker])
        return [(views[name], block, name) for name, block in self.program.blocks(worker).items()]

    def gradients(self, x_bi, y_b, driver=False):
        return Spmd(self.program, self.comm, self.theta_wp, self.grad_wp, driver).gradients([x_bi], [y_b])

    def assert_blocks_of(self, expected, flat_wp, tolerance):
        """The rows are the blocks of the tensors ``expected``, and together all of them."""
        values = 0
        for worker in range(len(flat_wp)):
            for view, block, name in self.parts(worker, flat_wp):
                torch.testing.assert_close(view, block.of(expected[name]), rtol=0, atol=tolerance)
                values += view.numel()
        assert values == sum(tensor.numel() for tensor in expected.values())


def assert_is_torchs(group, lengths, batch, tolerance, driver=False):
    """Loss and gradients of a minibatch are those of torch's layers, of packed sequences where there are masks."""
    program = group.program
    x_bi, x_btf, y_b = sequences(1, batch, program.steps, VALUES, CLASSES, lengths)
    loss = group.gradients(x_bi, y_b, driver)
    expected = plain(group.net)
    score = F.cross_entropy(expected(x_btf, lengths), y_b)
    score.backward()
    torch.testing.assert_close(loss, score.detach(), rtol=0, atol=tolerance)
    gradients = {name: parameter.grad for name, parameter in expected.named().items()}
    group.assert_blocks_of(gradients, group.grad_wp, tolerance)


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("driver", [False, True])
@pytest.mark.parametrize("lengths", [None, [1, 4, 3, 2, 4, 1]])
@pytest.mark.parametrize("hidden", [(7,), (8, 6, 5)])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_one_device(name, workers, hidden, lengths, driver):
    group = Group(name, hidden, 4, lengths is not None, workers, 6)
    assert_is_torchs(group, lengths, 6, 1e-10, driver)


@given(data=st.data(), name=st.sampled_from(NAMES), workers=st.integers(1, 4), steps=st.integers(1, 5))
def test_gradients_for_any_sizes_and_lengths(data, name, workers, steps):
    hidden = data.draw(st.lists(st.integers(workers, 6), min_size=1, max_size=3))
    batch = data.draw(st.integers(1, 4))
    some = st.lists(st.integers(1, steps), min_size=batch, max_size=batch)
    lengths = data.draw(st.none() | some)
    group = Group(name, hidden, steps, lengths is not None, workers, batch)
    assert_is_torchs(group, lengths, batch, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_masks_with_holes_are_those_of_the_model(name):
    group = Group(name, (5, 4), 6, True, 3, 8)
    x_bi, _, y_b = sequences(1, 8, 6, VALUES, CLASSES, [6] * 8)
    x_bi = x_bi.view(8, 6, -1).clone()
    x_bi[..., -1] = torch.randint(0, 2, (8, 6), generator=torch_stream(2, "masks"))
    x_bi[0, :, -1] = 0  # a sample of padding alone
    x_bi = x_bi.flatten(1)
    loss = group.net.loss_and_grad(x_bi.unsqueeze(0), y_b.unsqueeze(0))
    torch.testing.assert_close(group.gradients(x_bi, y_b), loss)
    expected = {key: grad[0] for key, grad in group.net.grads.items()}
    group.assert_blocks_of(expected, group.grad_wp, 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_neither_loss_nor_gradient(name):
    group, seen = Group(name, (5, 4), 4, True, 2, 3), []
    for padding in (0.0, 7.0, 1e30, float("inf"), float("nan")):
        x_bi, _, y_b = sequences(1, 3, 4, VALUES, CLASSES, [1, 4, 2], padding)
        seen.append((group.gradients(x_bi, y_b), group.grad_wp.nan_to_num(nan=9.0)))
    assert all(torch.equal(loss, seen[0][0]) and torch.equal(grad, seen[0][1]) for loss, grad in seen)
    group.gradients(sequences(2, 3, 4, VALUES, CLASSES, [1, 4, 2])[0], y_b)
    assert not torch.equal(group.grad_wp.nan_to_num(nan=9.0), seen[0][1])


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_weights_after_steps_of_sgd(name, workers):
    group = Group(name, (6, 5), 4, False, workers, 6)
    expected = plain(group.net)
    theirs = torch.optim.SGD(expected.parameters(), lr=0.3)
    ours = torch.optim.SGD([group.theta_wp], lr=0.3)
    group.grad_wp.zero_()
    group.theta_wp.grad = group.grad_wp
    for seed in range(5):
        x_bi, x_btf, y_b = sequences(seed, 6, 4, VALUES, CLASSES)
        group.gradients(x_bi, y_b)
        ours.step()
        theirs.zero_grad()
        F.cross_entropy(expected(x_btf), y_b).backward()
        theirs.step()
    weights = {key: parameter.data for key, parameter in expected.named().items()}
    group.assert_blocks_of(weights, group.theta_wp, 1e-12)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_states_and_scores(name, workers):
    """Between workers each exchange puts k - 1 copies of the whole on the wire. The driver is sent blocks and sends
    wholes where it gathers, and the other way round where it sums."""
    steps, hidden, batch = 4, (7, 5), 3
    group = Group(name, hidden, steps, False, workers, batch)
    x_bi, _, y_b = sequences(1, batch, steps, VALUES, CLASSES)
    states, copies = steps * sum(hidden), workers - 1
    assert len(group.program.exchanges) == 2 * 2 * steps + 2 and group.program.exchanges[-1] is None
    group.gradients(x_bi, y_b)
    between = 4 * batch * copies * (2 * states + CLASSES)
    assert group.ledger.sent_bytes_total == step_bytes(group.program.exchanges, workers, False) == between
    assert len(group.ledger.frame()) == (0 if workers == 1 else 2 * 2 * steps + 1)
    group.gradients(x_bi, y_b, driver=True)
    through = 4 * batch * (1 + workers) * (2 * states + CLASSES) if workers > 1 else 0
    assert group.ledger.sent_bytes_total == between + through
    if workers > 1:
        assert step_bytes(group.program.exchanges, workers, True) == through


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_segment_needs_what_is_saved_and_nothing_else(name, masked):
    """Saved state is copied between segments, as plain arrays; received tensors are not written to."""
    group = Group(name, (5, 4), 3, masked, 2, 4)
    x_bi, _, y_b = sequences(1, 4, 3, VALUES, CLASSES, [1, 3, 2, 3] if masked else None)
    expected = group.gradients(x_bi, y_b), group.grad_wp.clone()
    rows = range(2)
    views = [
        [{n: v for v, _, n in group.parts(r, flat)} for r in rows] for flat in (group.theta_wp, group.grad_wp)
    ]
    group.grad_wp.fill_(torch.nan)
    states = [State(views[0][r], views[1][r], x_bi, y_b) for r in rows]
    received = [None] * 2
    for segment, exchange in enumerate(group.program.exchanges):
        versions = [tensor._version for tensor in received if tensor is not None]
        handed = [group.program.run(segment, r, states[r], received[r]) for r in rows]
        assert versions == [tensor._version for tensor in received if tensor is not None]
        for state in states:
            assert not any(tensor.requires_grad for tensor in state.saved.values())
            arrays = {key: tensor.numpy() for key, tensor in state.saved.items()}
            state.saved = {key: torch.from_numpy(array) for key, array in copy.deepcopy(arrays).items()}
        if exchange is not None:
            for r in rows:
                shape = exchange.block_shape(r) if exchange.kind == "gather" else exchange.shape
                assert tuple(handed[r].shape) == shape
            received = combined(exchange, handed)
    assert handed == [None, None] and not any(state.saved for state in states)
    assert all(torch.equal(state.loss, expected[0]) for state in states)
    for worker in rows:
        own = group.program.params(worker)
        torch.testing.assert_close(group.grad_wp[worker, :own], expected[1][worker, :own])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_that_torch_counts(name, workers):
    group = Group(name, (7, 6), 4, False, workers, 2)
    x_bi, _, y_b = sequences(1, 2, 4, VALUES, CLASSES)
    with FlopCounterMode(display=False) as counter:
        group.gradients(x_bi, y_b)
    flops = sum(group.program.flops_per_sample(worker) for worker in range(workers))
    assert flops == counter.get_total_flops() / 2 == group.net.flops_per_sample


@pytest.mark.parametrize("name", NAMES)
def test_runs_are_those_of_one_device(name, results):
    """Up to rounding, also with one worker: one device trains on torch's own layers, which sum in another order."""
    model = {"name": name, "steps": 8, "hidden": [10, 7]}
    changes = {"model": model, "data_size": 240, "sharding": "reshuffled", "lr": 0.1}
    expected = trained(point_of("sequential", 1, minibatch=12, **changes), results)
    one = trained(point_of("spark", 1, minibatch=12, **changes), results)
    torch.testing.assert_close(whole_model(one), whole_model(expected), rtol=0, atol=1e-5)
    runs = [
        trained(
            point_of("spark", workers, minibatch=12 // workers, variant=variant, **more, **changes), results
        )
        for workers, variant, more in (
            (3, "model", {}),
            (3, "model", {"method_params": {"execution": "job_per_exchange"}}),
            (4, "hybrid", {"method_params": {"group_size": 2}}),
        )
    ]
    for run in runs:
        columns = run.columns()
        assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"] > 0
        torch.testing.assert_close(whole_model(run), whole_model(expected), rtol=0, atol=1e-5)


def test_samples_that_are_no_sequences_are_refused():
    with pytest.raises(UserError, match="model rnn: got samples of 10 values; needed: 4 steps"):
        nets.program({"name": "rnn", "steps": 4, "hidden": [8]}, 10, 5, 2, 4, "auto")
