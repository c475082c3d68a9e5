"""Recurrent models against torch's own layers, packed sequences, and the equations of masks step by step."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from recurrent_reference import plain, sequences
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from training_runs import point_of, trained, whole_model

from implementations import models
from implementations.config.documents import check
from implementations.config.problems import Place, Problems
from implementations.errors import UserError
from implementations.point import Point
from implementations.seeds import torch_stream

STEPS, VALUES, CLASSES = 5, 3, 4
NAMES = ["rnn", "lstm"]


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def described(name, hidden=(7, 6), masked=False, steps=STEPS):
    return {"name": name, "steps": steps, "hidden": list(hidden), "masked": masked}


def net_of(model, workers=1, noise=0.1):
    """Workers that differ."""
    features = model["steps"] * (VALUES + model["masked"])
    net = models.build(model, features, CLASSES, workers, torch_stream(3, "init"))
    net.theta_wp += noise * torch.randn(net.theta_wp.shape, generator=torch_stream(4, "noise"))
    return net


def weights_of(net, worker=0):
    return {name: weight[worker] for name, weight in net.weights.items()}


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("hidden", [(7,), (6, 4, 6)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_are_torchs_for_every_worker(name, masked, hidden, workers):
    net = net_of(described(name, hidden, masked), workers)
    lengths = [1, 5, 3, 2, 5, 4] if masked else None
    samples = [sequences(worker, 6, STEPS, VALUES, CLASSES, lengths) for worker in range(workers)]
    net.grad_wp.fill_(float("nan"))  # whatever the buffer held before must not matter
    found = net.loss_and_grad(torch.stack([s[0] for s in samples]), torch.stack([s[2] for s in samples]))
    losses = []
    for worker, (x_bi, x_btf, y_b) in enumerate(samples):
        expected = plain(net, worker)
        loss = F.cross_entropy(expected(x_btf, lengths), y_b)
        loss.backward()
        losses.append(loss.detach())
        for weight, parameter in expected.named().items():
            torch.testing.assert_close(net.grads[weight][worker], parameter.grad, rtol=0, atol=1e-12)
        correct, summed = net.evaluate(x_bi, y_b, worker)
        assert summed == pytest.approx(6 * float(losses[-1]))
        assert correct == int((expected(x_btf, lengths).argmax(1) == y_b).sum())
    torch.testing.assert_close(found, torch.stack(losses).mean())


def by_formula(net, x_btf, real_bt):
    """Scores of cells of torch's, ``h_t = m_t h_new + (1 - m_t) h_{t-1}``, and c alike."""
    model, w = net.to_module(), dict(net.to_module().named_parameters())
    h_bti = x_btf
    for layer, units in enumerate(model.hidden):
        make = nn.LSTMCell if model.name == "lstm" else nn.RNNCell
        cell = make(h_bti.shape[2], units)
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(cell, kind).data.copy_(w[f"{kind}_l{layer}"].data)
        state, found = [x_btf.new_zeros(len(x_btf), units)] * 2, []
        for step in range(x_btf.shape[1]):
            new = (
                cell(h_bti[:, step], tuple(state)) if model.name == "lstm" else cell(h_bti[:, step], state[0])
            )
            m_b1 = real_bt[:, step : step + 1].to(x_btf.dtype)
            new = new if model.name == "lstm" else (new, state[1])
            state = [m_b1 * after + (1 - m_b1) * before for after, before in zip(new, state, strict=True)]
            found.append(state[0])
        h_bti = torch.stack(found, 1)
    return model.output(h_bti[:, -1])


@pytest.mark.usefixtures("_double")
@given(data=st.data(), name=st.sampled_from(NAMES), hidden=st.sampled_from([(3,), (4, 3)]))
def test_any_mask_carries_states_over_its_padding(data, name, hidden):
    steps, batch = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    rows = st.lists(st.booleans(), min_size=steps, max_size=steps)
    real_bt = torch.tensor(data.draw(st.lists(rows, min_size=batch, max_size=batch)))
    net = net_of(described(name, hidden, True, steps))
    x_btf = torch.randn(batch, steps, VALUES, generator=torch_stream(5, "x"))
    x_bi = torch.cat([x_btf, real_bt.unsqueeze(2).to(x_btf.dtype)], 2).flatten(1)
    found = net.logits(x_bi.unsqueeze(0))[0]
    torch.testing.assert_close(found, by_formula(net, x_btf, real_bt), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_neither_loss_nor_gradient(name):
    net, lengths = net_of(described(name, masked=True)), [2, 5, 1, 3]
    seen = []
    for padding in (0.0, 7.0, 1e30, float("inf"), float("nan")):
        x_bi, _, y_b = sequences(1, 4, STEPS, VALUES, CLASSES, lengths, padding)
        seen.append((net.loss_and_grad(x_bi.unsqueeze(0), y_b.unsqueeze(0)), net.grad_wp.clone()))
    assert all(torch.equal(loss, seen[0][0]) and torch.equal(grad, seen[0][1]) for loss, grad in seen)
    assert seen[0][1].isfinite().all() and seen[0][1].abs().max() > 0


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("name", NAMES)
def test_a_masked_sample_is_the_truncated_one(name):
    """Padded by no step or by many, in a minibatch of its own without masks."""
    for length in (1, 3, 5):
        short, long = net_of(described(name, steps=length)), net_of(described(name, masked=True))
        assert torch.equal(short.theta_wp, long.theta_wp)
        x_bi, x_btf, y_b = sequences(1, 4, STEPS, VALUES, CLASSES, [length] * 4, padding=9.0)
        y_1b = y_b.unsqueeze(0)
        loss = short.loss_and_grad(x_btf[:, :length].flatten(1).unsqueeze(0), y_1b)
        torch.testing.assert_close(long.loss_and_grad(x_bi.unsqueeze(0), y_1b), loss)
        torch.testing.assert_close(long.grad_wp, short.grad_wp, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_first_weights_are_torchs(name):
    """The same draws, in the same order, as ``nn.RNN`` and ``nn.LSTM`` make."""
    torch.manual_seed(5)
    expected = (nn.LSTM if name == "lstm" else nn.RNN)(VALUES, 20, num_layers=2)
    net = models.build(described(name, (20, 20)), 15, CLASSES, 3, torch.Generator().manual_seed(5))
    for weight, parameter in expected.named_parameters():
        for worker in range(3):
            assert torch.equal(net.weights[weight][worker], parameter.data), weight
    for weight in ("output.weight", "output.bias"):
        assert 0 < net.weights[weight].abs().max() <= 1 / math.sqrt(20)


@pytest.mark.parametrize("hidden", [(7,), (6, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_of_a_loop_over_steps(name, hidden):
    net = net_of(described(name, hidden))
    w, batch = {key: weight.clone().requires_grad_() for key, weight in weights_of(net).items()}, 2
    with FlopCounterMode(display=False) as counter:
        below = list(torch.randn(STEPS, batch, VALUES))
        for layer in range(len(hidden)):
            states = []
            for step in range(STEPS):
                z = below[step] @ w[f"weight_ih_l{layer}"].t()
                if step:
                    z = z + states[-1] @ w[f"weight_hh_l{layer}"].t()
                states.append(torch.tanh(z[:, : hidden[layer]]) + 0 * z.sum(1, keepdim=True))
            below = states
        (below[-1] @ w["output.weight"].t()).sum().backward()
    assert net.flops_per_sample == counter.get_total_flops() / batch


@pytest.mark.parametrize("name", NAMES)
def test_methods_train_it(name, results):
    """Two workers with half a minibatch each end as one with all of it; averaging takes it as it is."""
    model = {"name": name, "steps": 8, "hidden": [12]}
    changes = {"model": model, "data_size": 240, "sharding": "reshuffled", "epochs": 1}
    split, averaged, one = (
        trained(point_of(method, workers, minibatch=16 // workers, **changes), results)
        for method, workers in (("data_parallel", 2), ("averaging", 2), ("sequential", 1))
    )
    torch.testing.assert_close(split.net.theta_wp, one.net.theta_wp.expand(2, -1), rtol=0, atol=1e-5)
    assert averaged.net.params_per_worker == one.net.params_per_worker
    assert (whole_model(averaged) - whole_model(one)).abs().max() < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_the_digits_row_by_row(name, results):
    model = {"name": name, "steps": 8, "hidden": [32]}
    point = point_of("sequential", model=model, data_size=960, epochs=10, lr=0.1)
    assert trained(point, results).test()["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("model", "features", "says"),
    [
        (described("lstm", steps=27), 784, "got samples of 784 values; needed: 27 steps of equally many"),
        (described("rnn", steps=4, masked=True), 4, "needed: 4 steps of a value and a mask each"),
    ],
)
def test_samples_that_are_no_sequences_are_refused(model, features, says):
    with pytest.raises(UserError, match=says):
        models.build(model, features, 10, 1, torch.Generator())


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ({"name": "lstm", "steps": 28, "hidden": [128]}, ""),
        ({"name": "lstm", "steps": 28, "hidden": [128], "masked": False}, ""),
        ({"name": "rnn", "hidden": [128]}, "steps: got nothing; allowed: integer >= 1"),
        ({"name": "rnn", "steps": 0, "hidden": [8]}, "steps: got 0; allowed: integer >= 1"),
        ({"name": "rnn", "steps": 4, "hidden": [8], "masked": 1}, "masked: got 1"),
    ],
)
def test_config_says_what_it_refuses(description, says):
    problems = Problems()
    check(description, models.BUILDERS[description["name"]]["schema"], Place("model"), problems)
    if not says:
        problems.raise_if_any()
        return
    with pytest.raises(UserError, match=says):
        problems.raise_if_any()


@pytest.mark.parametrize(
    ("masked", "label"), [(False, "lstm-128-64_steps28"), (True, "lstm-128-64_masked_steps28")]
)
def test_label(masked, label):
    model = models.without_defaults(described("lstm", (128, 64), masked, 28))
    assert Point("spark", "spark", "digits", model, 1, "simulated", 1).model_label == label


def test_sizes_take_no_memory():
    model = {"name": "lstm", "steps": 12, "hidden": [9, 5], "masked": True}
    with torch.device("meta"):
        sizes = models.build(model, 12 * 4, 6, 2, torch.Generator())
    expected = nn.ModuleList([nn.LSTM(3, 9), nn.LSTM(9, 5), nn.Linear(5, 6)])
    assert sizes.theta_wp.is_meta
    assert sizes.params_per_worker == sum(parameter.numel() for parameter in expected.parameters())
