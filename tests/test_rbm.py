"""Restricted Boltzmann machines against enumeration, closed forms and data they should come to model."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from implementations.data.dataset import Stored
from implementations.errors import Diverged, UserError
from implementations.models.fc import FullyConnected
from implementations.models.sigmoid_init import initialise_sigmoid
from implementations.rbm import (
    Rbm,
    RbmSettings,
    Trainer,
    cached_pretrain,
    expectations,
    negative_phase,
    pretrain,
    start_from,
)
from implementations.seeds import torch_stream


def held(x_nv):
    """Samples with these inputs."""
    return Stored(x_nv, torch.zeros(len(x_nv), dtype=torch.int64))


def tiny(gaussian=False, visible=4, hidden=3, size=0.8, seed=1):
    g = torch.Generator().manual_seed(seed)
    parts = (torch.randn(shape, generator=g) * size for shape in [(hidden, visible), (visible,), (hidden,)])
    return Rbm(*parts, gaussian=gaussian)


def states(units):
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=units)))


def energy(rbm, v, h):
    """By definition, of every v (rows) with every h (columns)."""
    own = (v - rbm.a_v).square().sum(1) / 2 if rbm.gaussian else -(v @ rbm.a_v)
    return own[:, None] - v @ rbm.w_hv.T @ h.T - (h @ rbm.b_h)[None]


@pytest.mark.parametrize("gaussian", [False, True])
def test_free_energy_equals_the_sum_over_hidden_states(gaussian):
    rbm = tiny(gaussian)
    v = torch.randn(6, 4) if gaussian else states(4)
    torch.testing.assert_close(rbm.free_energy(v), -torch.logsumexp(-energy(rbm, v, states(3)), 1))


@pytest.mark.parametrize("gaussian", [False, True])
def test_conditional_means_equal_enumeration(gaussian):
    rbm = tiny(gaussian)
    v = torch.randn(5, 4) if gaussian else states(4)
    p_h = torch.softmax(-energy(rbm, v, states(3)), 1)
    torch.testing.assert_close(rbm.hidden(v), p_h @ states(3))
    if not gaussian:
        p_v = torch.softmax(-energy(rbm, states(4), states(3)).T, 1)
        torch.testing.assert_close(rbm.visible(states(3)), p_v @ states(4))


def exact_gradient(rbm, data):
    """Of the mean log likelihood by W, a and b, by autograd through the enumerated partition function."""
    leaves = [part.clone().requires_grad_() for part in (rbm.w_hv, rbm.a_v, rbm.b_h)]
    model = Rbm(*leaves, gaussian=False)
    scores_of_all = torch.logsumexp(-energy(model, states(len(rbm.a_v)), states(len(rbm.b_h))), 1)
    scores = torch.logsumexp(-energy(model, data, states(len(rbm.b_h))), 1)
    return torch.autograd.grad((scores - torch.logsumexp(scores_of_all, 0)).mean(), leaves)


def test_many_gibbs_steps_give_the_exact_gradient():
    """Positive minus negative phase, with a chain long enough to forget where it started."""
    rbm, generator = tiny(), torch.Generator().manual_seed(2)
    data = torch.bernoulli(torch.full((50, 4), 0.7), generator=generator)
    positive = expectations(data, rbm.hidden(data))
    chains = rbm.hidden(data).repeat(2000, 1)  # 100,000 chains: standard error of a mean below 0.0016
    negative = expectations(*negative_phase(rbm, chains, generator, steps=40, sample_last=True))
    for plus, minus, exact in zip(positive, negative, exact_gradient(rbm, data)):
        torch.testing.assert_close(plus - minus, exact, rtol=0, atol=0.008)


@pytest.mark.parametrize("momentum", [0.0, 0.75])
@pytest.mark.parametrize("gaussian", [False, True])
def test_one_update_moves_by_the_expected_contrastive_divergence(gaussian, momentum):
    """The expectation over hidden states by enumeration, for one data vector, repeated."""
    start = tiny(gaussian, size=0.3)
    v = torch.tensor([[0.9, -0.7, 0.3, 1.2]]) if gaussian else torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    rate, l2 = 0.2, 0.01
    settings = RbmSettings(
        gaussian_lr=rate, bernoulli_lr=rate, l2=l2, momentum=momentum, momentum_rule="nominal"
    )
    rate *= 1 - momentum
    p_h = start.hidden(v)
    weights = torch.where(states(3) > 0, p_h, 1 - p_h).prod(1)
    negative_v = start.visible(states(3))
    negative_h = start.hidden(negative_v)
    want = (
        rate * (p_h.T @ v - (weights[:, None] * negative_h).T @ negative_v - l2 * start.w_hv),
        rate * (v[0] - weights @ negative_v),
        rate * (p_h[0] - weights @ negative_h),
    )
    rbm = Rbm(start.w_hv.clone(), start.a_v.clone(), start.b_h.clone(), gaussian)
    Trainer(rbm, settings, torch.Generator().manual_seed(3)).step(v.repeat(400_000, 1))
    for new, old, move in zip((rbm.w_hv, rbm.a_v, rbm.b_h), (start.w_hv, start.a_v, start.b_h), want):
        torch.testing.assert_close(new - old, move, rtol=0, atol=rate * 0.01)


def test_momentum_repeats_the_last_move():
    """With a rate of zero after the first step only the momentum is left."""
    rbm = tiny(visible=6, hidden=5)
    trainer = Trainer(rbm, RbmSettings(momentum_max=0.9), torch.Generator().manual_seed(1))
    data = torch.bernoulli(torch.full((20, 6), 0.5))
    before = rbm.w_hv.clone()
    trainer.step(data)
    first = rbm.w_hv - before
    trainer._base_rate = 0.0
    before = rbm.w_hv.clone()
    trainer.step(data)
    torch.testing.assert_close(rbm.w_hv - before, 0.9 * first, rtol=1e-3, atol=1e-7)


def test_momentum_rules():
    nominal = RbmSettings(momentum_rule="nominal")
    seen = [nominal.momentum_after(n) for n in (0, 499_999, 500_000, 10_000_000, 20_000_000, 10**9)]
    assert seen == pytest.approx([0.5, 0.5, 0.51, 0.7, 0.9, 0.9])
    assert {RbmSettings().momentum_after(n) for n in (0, 10**7)} == {0.9}
    with pytest.raises(UserError, match="momentum_rule: got 'x'; allowed: with-bug, nominal"):
        RbmSettings(momentum_rule="x")


def test_guard_shrinks_weights_and_drops_the_update():
    rbm = Rbm(torch.full((5, 4), 3.0), torch.ones(4), torch.ones(5), gaussian=True)
    trainer = Trainer(rbm, RbmSettings(), torch.Generator().manual_seed(1))
    v = torch.randn(200, 4, generator=torch.Generator().manual_seed(4))
    trainer.step(v)
    assert trainer.guarded == 1
    scale = float(rbm.a_v[0])
    assert scale < 0.5  # data spread / reconstruction spread
    assert torch.equal(rbm.w_hv, torch.full((5, 4), 3.0 * scale)) and torch.equal(
        rbm.b_h, rbm.a_v[:1].expand(5)
    )
    assert trainer._damping == 0.9 and not trainer._moves[0].any()


def test_guard_lowers_the_rate_until_the_momentum_changes():
    settings = RbmSettings(momentum_rule="nominal", momentum_step_samples=50)
    trainer = Trainer(tiny(gaussian=True, size=0.01), settings, torch.Generator().manual_seed(1))
    trainer._damping, dampings = 0.81, []
    trainer._momentum = 0.5
    for _ in range(3):
        trainer.step(torch.randn(25, 4, generator=torch.Generator().manual_seed(4)))
        dampings.append(trainer._damping)
    assert dampings == [0.81, 0.81, 1.0]


def patterns(count, seed, features=20, noise=0.4):
    """Standardised features with a few causes."""
    causes = torch.randn(4, features, generator=torch.Generator().manual_seed(7))
    g = torch.Generator().manual_seed(seed)
    x = torch.bernoulli(torch.full((count, 4), 0.5), generator=g) @ causes
    x += noise * torch.randn(count, features, generator=g)
    return (x - x.mean(0)) / x.std(0)


SETTINGS = RbmSettings(gaussian_epochs=8, bernoulli_epochs=8)


@pytest.fixture(scope="module")
def trained():
    return pretrain(held(patterns(3000, 1)), [16, 12], SETTINGS, seed=5, held_out=held(patterns(1000, 2)))


def test_reconstruction_error_falls(trained):
    for machine in range(2):
        errors = [row["reconstruction"] for row in trained.log if row["machine"] == machine]
        assert len(errors) == 8
        assert errors[-1] < 0.8 * errors[0]
        assert errors[-1] == pytest.approx(min(errors), rel=0.1)
    # better than the best constant, whose error is the variance
    assert trained.log[7]["reconstruction"] < 0.6


def test_held_out_samples_are_as_likely_as_training_ones_and_random_ones_are_not(trained):
    w_hv, b_h = trained.layers[0]
    gaps = [row["free_energy_gap"] for row in trained.log[:8]]
    rbm = Rbm(w_hv, torch.zeros(20), b_h, gaussian=True)
    train = patterns(3000, 1)
    shuffled = torch.stack(
        [column[torch.randperm(3000)] for column in train.T]
    ).T  # same marginals, no structure
    contrast = float(rbm.free_energy(shuffled).mean() - rbm.free_energy(train).mean())
    assert contrast > 1
    assert max(map(abs, gaps)) < 0.25 * contrast


def test_the_gap_of_a_few_samples_grows_as_they_are_learnt_by_heart():
    few = patterns(30, 1, noise=1.0)
    settings = RbmSettings(gaussian_epochs=300, gaussian_lr=0.05, minibatch=10)
    log = pretrain(held(few), [40], settings, seed=5, held_out=held(patterns(500, 2, noise=1.0))).log
    assert log[-1]["free_energy_gap"] > log[0]["free_energy_gap"] + 1


def test_visible_biases_of_later_machines_are_the_logit_of_mean_activations():
    """Without epochs the second machine is still as it started; its biases reproduce the means."""
    from implementations.rbm import _new_machine

    x = patterns(500, 1)
    below = Rbm(
        torch.randn(6, 20, generator=torch.Generator().manual_seed(1)), torch.zeros(20), torch.zeros(6), True
    )
    machine = _new_machine(held(x), [below], 5, RbmSettings(), torch.Generator().manual_seed(1))
    torch.testing.assert_close(machine.a_v.sigmoid(), below.hidden(x).mean(0))
    assert not machine.gaussian and not machine.b_h.any()


def test_same_seed_same_bits_and_another_seed_others():
    x, settings = patterns(400, 1), RbmSettings(gaussian_epochs=1)
    first, again, other = (pretrain(held(x), [8, 6], settings, seed).layers for seed in (1, 1, 2))
    for (w1, b1), (w2, b2), (w3, _) in zip(first, again, other):
        assert torch.equal(w1, w2) and torch.equal(b1, b2) and not torch.equal(w1, w3)


def test_adding_a_layer_leaves_those_below():
    x, settings = patterns(400, 1), RbmSettings(gaussian_epochs=1)
    assert torch.equal(
        pretrain(held(x), [8], settings, 1).layers[0][0], pretrain(held(x), [8, 6], settings, 1).layers[0][0]
    )


def test_fewer_samples_than_a_minibatch_and_wrong_features():
    assert pretrain(held(patterns(30, 1)), [5], RbmSettings(), 1).layers[0][0].isfinite().all()
    bad = patterns(30, 1)
    bad[3, 2] = math.nan
    for x in (bad, bad[:0]):
        with pytest.raises(UserError, match="empty or not finite"):
            pretrain(held(x), [5], RbmSettings(), 1)


@pytest.mark.parametrize(("machine", "rates"), [(1, {"gaussian_lr": 1e38}), (2, {"bernoulli_lr": 1e38})])
def test_weights_that_are_not_finite_are_named_with_the_way_out(machine, rates):
    settings = RbmSettings(**rates, gaussian_epochs=3, bernoulli_epochs=3)
    with pytest.raises(Diverged, match=f"machine {machine} are not finite; lower rbm_{next(iter(rates))}"):
        pretrain(held(patterns(300, 1)), [5, 4], settings, 1)


def test_cache_returns_the_same_and_depends_on_everything(tmp_path, monkeypatch):
    x, settings = patterns(200, 1), RbmSettings(gaussian_epochs=1)
    first = cached_pretrain(tmp_path / "kept", "abc", lambda: (held(x), None), [8, 6], settings, 1)
    (path,) = (tmp_path / "kept").glob("*.pt")
    with monkeypatch.context() as patch:
        patch.setattr("implementations.rbm.pretrain", None)  # a second call must not train
        again = cached_pretrain(tmp_path / "kept", "abc", lambda: (held(x), None), [8, 6], settings, 1)
    assert again.log == first.log
    for (w1, b1), (w2, b2) in zip(first.layers, again.layers):
        assert torch.equal(w1, w2) and torch.equal(b1, b2)
    others = [
        ("abd", [8, 6], settings, 1),
        ("abc", [8], settings, 1),
        ("abc", [8, 6], RbmSettings(gaussian_epochs=1, l2=0.0), 1),
        ("abc", [8, 6], settings, 2),
    ]
    for number, (data_hash, hidden, other, seed) in enumerate(others, start=2):
        cached_pretrain(tmp_path / "kept", data_hash, lambda: (held(x), None), hidden, other, seed)
        assert len(list((tmp_path / "kept").glob("*.pt"))) == number
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a file of torch"):
        path.write_bytes(damaged)
        made = cached_pretrain(tmp_path / "kept", "abc", lambda: (held(x), None), [8, 6], settings, 1)
        assert torch.equal(made.layers[1][0], first.layers[1][0])
        assert torch.equal(torch.load(path, weights_only=True)["layers"][0][0], first.layers[0][0])


def test_start_puts_the_layers_into_every_worker():
    x = patterns(200, 1)
    pretrained = pretrain(held(x), [8, 6], RbmSettings(gaussian_epochs=1), 1)
    net, plain = FullyConnected([20, 8, 6, 5], 3, "sigmoid"), FullyConnected([20, 8, 6, 5], 3, "sigmoid")
    start_from(net, pretrained, torch_stream(1, "init"))
    initialise_sigmoid(plain, torch_stream(1, "init"))
    for layer in range(2):
        assert torch.equal(net.weights[f"w{layer}"][2], pretrained.layers[layer][0])
        assert torch.equal(net.weights[f"b{layer}"][1], pretrained.layers[layer][1])
    assert torch.equal(net.weights["w2"], plain.weights["w2"]) and not net.weights["b2"].any()
    below = F.sigmoid(F.linear(F.sigmoid(F.linear(x, *pretrained.layers[0])), *pretrained.layers[1]))
    expected = F.linear(below, net.weights["w2"][0], net.weights["b2"][0])
    with torch.no_grad():
        torch.testing.assert_close(net.logits(x.expand(3, -1, -1))[1], expected)
    with pytest.raises(UserError, match=r"sizes \[\(8, 20\), \(6, 8\)\] do not fit"):
        start_from(FullyConnected([20, 8, 5], 1, "sigmoid"), pretrained, torch_stream(1, "init"))


def test_random_start_of_the_recipe():
    net = FullyConnected([440, 300, 300, 100], 2, "sigmoid")
    initialise_sigmoid(net, torch_stream(1, "init"))
    for layer, (inputs, outputs) in enumerate([(440, 300), (300, 300), (300, 100)]):
        want = 3.5 * math.sqrt(2 / (inputs + outputs))
        assert float(net.weights[f"w{layer}"][0].std()) == pytest.approx(want, rel=0.02)
    biases = net.weights["b0"][0]
    assert biases.min() >= -4 and biases.max() <= 0 and float(biases.mean()) == pytest.approx(-2, abs=0.3)
    assert not net.weights["b2"].any()
    assert torch.equal(net.theta_wp[0], net.theta_wp[1])
