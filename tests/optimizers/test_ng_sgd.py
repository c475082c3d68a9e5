"""Natural-gradient SGD on networks: against SGD, against a step written out, by itself."""

import io

import pytest
import torch
import torch.nn.functional as F

from implementations.models import build
from implementations.optimizers.fisher import OnlineFisher
from implementations.optimizers.ng_sgd import NaturalGradientSGD
from implementations.seeds import torch_stream


def net_of(workers=1, hidden=(9,), features=7, classes=4, activation="sigmoid"):
    model = {"name": "fc", "hidden": list(hidden), "activation": activation}
    return build(model, features, classes, workers, torch_stream(3, "init"))


def samples(workers, count, batch=20, features=7, classes=4):
    """Minibatches of a task that a small net can learn."""
    generator = torch_stream(5, "samples")
    centres = torch.randn(classes, features, generator=generator) * 2
    for _ in range(count):
        y_wb = torch.randint(0, classes, (workers, batch), generator=generator)
        yield centres[y_wb] + torch.randn(workers, batch, features, generator=generator), y_wb


def train(net, optimizer, batches):
    losses = []
    for x_wbi, y_wb in batches:
        losses.append(float(net.loss_and_grad(x_wbi, y_wb)))
        optimizer.step()
    return losses


@pytest.mark.parametrize("hidden", [[], [9], [9, 5]])
def test_tends_to_sgd_as_alpha_grows(hidden):
    net, plain = net_of(2, hidden), net_of(2, hidden)
    optimizer = NaturalGradientSGD(net, 0.5, alpha=1e7, max_change=0)
    plain.theta_wp.grad = plain.grad_wp
    sgd = torch.optim.SGD([plain.theta_wp], lr=0.5)
    batches = list(samples(2, 15))
    train(net, optimizer, batches)
    train(plain, sgd, batches)
    torch.testing.assert_close(net.theta_wp, plain.theta_wp, rtol=1e-4, atol=1e-4)


def test_differs_from_sgd_but_descends():
    net, plain = net_of(2), net_of(2)
    NaturalGradientSGD(net, 0.5, max_change=0)
    for x_wbi, y_wb in samples(2, 3):
        net.loss_and_grad(x_wbi, y_wb)
        plain.loss_and_grad(x_wbi, y_wb)
        cosine_w = F.cosine_similarity(net.grad_wp, plain.grad_wp)
        assert ((cosine_w > 0.2) & (cosine_w < 0.999)).all()


@pytest.mark.parametrize("rule", ["standard", "author"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("max_change", [0, 0.01, 0.075, 1e6])
def test_one_layer_step_equals_the_step_written_out(rule, reduction, max_change):
    """From explicit inverses, in Kaldi's terms: summed derivatives, a 1 behind the inputs, one limit per layer."""
    lr, batch = 0.4, 20
    net = net_of(1, [])
    optimizer = NaturalGradientSGD(
        net, lr, rank_in=3, rank_out=2, max_change=max_change, max_change_rule=rule, reduction=reduction
    )
    for x_wbi, y_wb in samples(1, 12, batch):
        old = torch.cat([net.weights["w0"][0], net.weights["b0"][0].unsqueeze(1)], 1).double()
        estimates = [
            dense_estimate(side) for side in (fisher_of(optimizer, "in"), fisher_of(optimizer, "out"))
        ]
        x = torch.cat([x_wbi[0], torch.ones(batch, 1)], 1).double()
        scores = (x @ old.T).requires_grad_()
        F.cross_entropy(scores, y_wb[0], reduction="sum").backward()
        net.loss_and_grad(x_wbi, y_wb)
        optimizer.step()
        if estimates[0] is not None:
            pin, pout = (rows @ torch.linalg.inv(matrix) for rows, matrix in zip((x, scores.grad), estimates))
            pin *= x.norm() / pin.norm()
            pout *= scores.grad.norm() / pout.norm()
            eta = lr if reduction == "sum" else lr / batch
            change = (pin.norm(dim=1) * pout.norm(dim=1)).sum() * (eta if rule == "standard" else 1)
            factor = min(1.0, max_change * batch / float(change)) if max_change else 1.0
            want = old - eta * factor * pout.T @ pin
            new = torch.cat([net.weights["w0"][0], net.weights["b0"][0].unsqueeze(1)], 1)
            torch.testing.assert_close((new - old).double(), want - old, rtol=2e-3, atol=2e-6)


def fisher_of(optimizer, side):
    return optimizer.state[f"w0.{side}"]


def dense_estimate(state, alpha=4.0):
    """The smoothed Fisher matrix before a step."""
    if state["factor_wrd"] is None:
        return None
    d, rho, factor = state["d_wr"][0], state["rho_w"][0], state["factor_wrd"][0].double()
    q = F.normalize(factor, dim=1)
    fisher = q.T @ torch.diag(d) @ q + rho * torch.eye(q.shape[1], dtype=torch.float64)
    return fisher + alpha * fisher.trace() / len(fisher) * torch.eye(len(fisher), dtype=torch.float64)


def test_the_estimates_see_each_samples_own_derivative():
    """Not the mean loss's, which shrinks with the minibatch towards the absolute floors."""
    net, (x_wbi, y_wb) = net_of(1, []), next(samples(1, 1, batch=50))
    optimizer = NaturalGradientSGD(net, 0.1)
    probabilities = torch.softmax(net.logits(x_wbi)[0].detach(), 1)
    square = (probabilities - F.one_hot(y_wb[0], 4)).square().sum(1).mean()
    net.loss_and_grad(x_wbi, y_wb)
    state = fisher_of(optimizer, "out")
    assert float(state["d_wr"].sum() + 4 * state["rho_w"]) == pytest.approx(float(square), rel=1e-4)


def test_the_authors_rule_bounds_a_step_by_the_rate_and_nothing_else():
    """At a large rate the layer moves by eta * c per sample; the standard rule stops it at c."""
    moved = {}
    for rule in ("standard", "author"):
        net = net_of(1, [])
        optimizer = NaturalGradientSGD(net, 50.0, max_change=0.01, max_change_rule=rule, reduction="sum")
        before = net.theta_wp.clone()
        train(net, optimizer, samples(1, 1, batch=20))
        moved[rule] = float((net.theta_wp - before).norm())
    assert moved["standard"] <= 0.01 * 20
    assert moved["author"] == pytest.approx(50 * moved["standard"], rel=1e-4)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_loss_falls_faster_than_sgd_at_the_same_rate(activation):
    batches = list(samples(1, 120))
    net, plain = net_of(1, [16, 16], activation=activation), net_of(1, [16, 16], activation=activation)
    ours = train(net, NaturalGradientSGD(net, 0.2), batches)
    plain.theta_wp.grad = plain.grad_wp
    sgd = train(plain, torch.optim.SGD([plain.theta_wp], lr=0.2), batches)
    assert sum(ours[-20:]) < 0.5 * sum(ours[:20])
    assert sum(ours[-20:]) < sum(sgd[-20:])


def test_stacked_workers_equal_separate_ones():
    together = net_of(3, [9, 5])
    batches = list(samples(3, 16))
    train(together, NaturalGradientSGD(together, 0.1), batches)
    for worker in range(3):
        alone = net_of(1, [9, 5])
        one = slice(worker, worker + 1)
        train(alone, NaturalGradientSGD(alone, 0.1), [(x[one], y[one]) for x, y in batches])
        torch.testing.assert_close(together.theta_wp[one], alone.theta_wp, rtol=1e-4, atol=1e-5)


def test_a_rerun_gives_the_same_bits():
    ends = []
    for _ in range(2):
        net = net_of(1, [9, 5])
        train(net, NaturalGradientSGD(net, 0.1), samples(1, 16))
        ends.append(net.theta_wp)
    assert torch.equal(*ends)


@pytest.mark.parametrize("stop", [0, 1, 7, 13])
def test_goes_on_from_a_saved_state_with_the_same_bits(stop):
    batches = list(samples(2, 20))
    whole = net_of(2)
    train(whole, NaturalGradientSGD(whole, 0.1), batches)
    first = net_of(2)
    optimizer = NaturalGradientSGD(first, 0.1)
    train(first, optimizer, batches[:stop])
    file = io.BytesIO()
    torch.save({"theta": first.theta_wp, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second = net_of(2)
    second.theta_wp.copy_(state["theta"])
    resumed = NaturalGradientSGD(second, 9.0)
    resumed.load_state_dict(state["optimizer"])
    train(second, resumed, batches[stop:])
    assert torch.equal(second.theta_wp, whole.theta_wp)


@pytest.mark.parametrize("fresh", [True, False])
def test_estimates_start_afresh_at_an_epoch_where_asked(fresh):
    net = net_of(1)
    optimizer = NaturalGradientSGD(net, 0.1, fresh_each_epoch=fresh)
    train(net, optimizer, samples(1, 3))
    optimizer.new_epoch()
    assert {state["batches"] for state in optimizer.state.values()} == ({0} if fresh else {3})


def test_evaluation_leaves_the_estimates_alone():
    net = net_of(2)
    optimizer = NaturalGradientSGD(net, 0.1)
    net.evaluate(torch.randn(5, 7), torch.zeros(5, dtype=torch.int64))
    one = net.one_worker(1)
    one.loss_and_grad(torch.randn(1, 5, 7), torch.zeros(1, 5, dtype=torch.int64))
    assert {state["batches"] for state in optimizer.state.values()} == {0}


def test_a_rate_changed_in_the_group_is_used():
    net = net_of(1)
    optimizer = NaturalGradientSGD(net, 0.1)
    optimizer.param_groups[0]["lr"] = 0.0
    before = net.theta_wp.clone()
    train(net, optimizer, samples(1, 2))
    assert torch.equal(net.theta_wp, before)


def test_a_loss_that_is_not_finite_raises_nothing():
    net = net_of(1)
    optimizer = NaturalGradientSGD(net, 0.1)
    train(net, optimizer, samples(1, 3))
    net.theta_wp.fill_(float("nan"))
    assert train(net, optimizer, samples(1, 3))[-1] != 0
    assert not net.theta_wp.isfinite().any()


@pytest.mark.parametrize("arguments", [{"max_change_rule": "other"}, {"reduction": "median"}])
def test_unknown_choices_are_named(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}: got '.*'; allowed: "):
        NaturalGradientSGD(net_of(1), 0.1, **arguments)


def test_the_estimate_of_one_layer_has_the_ranks_asked_for():
    net = net_of(2, [30], features=25)
    optimizer = NaturalGradientSGD(net, 0.1, rank_in=6, rank_out=11)
    train(net, optimizer, samples(2, 1, features=25))
    assert optimizer.state["w0.in"]["factor_wrd"].shape == (2, 6, 26)
    assert optimizer.state["w0.out"]["factor_wrd"].shape == (2, 11, 30)
    assert optimizer.state["w1.out"]["factor_wrd"].shape == (2, 3, 4)  # as many as 4 classes allow
    assert isinstance(OnlineFisher(3, 4.0, 2000.0, 4).state()["batches"], int)


def test_a_network_without_affine_layers_is_refused():
    net = net_of(1)
    bare = type("Bare", (type(net),), {"affine_layers": ()})([7, 4], 1, "relu")
    with pytest.raises(ValueError, match="Bare has no affine layers"):
        NaturalGradientSGD(bare, 0.1)


def test_the_state_counts_as_the_harness_counts_it():
    """Tensors with the axis of workers first, so that bytes divide by the number of workers."""
    net = net_of(2)
    optimizer = NaturalGradientSGD(net, 0.1)
    train(net, optimizer, samples(2, 2))
    tensors = [slot for slots in optimizer.state.values() for slot in slots.values() if torch.is_tensor(slot)]
    assert len(tensors) == 3 * 2 * 2
    assert all(len(tensor) == 2 and tensor.dim() > 0 for tensor in tensors)
