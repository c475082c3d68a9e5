"""The bag-of-words network against torch's embedding bag and a loss over dense targets, and on sparse data."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from implementations.data.sparse import SparseRows
from implementations.models import build, narrow
from implementations.seeds import torch_stream

FEATURES, CLASSES = 30, 11


@pytest.fixture
def _double():
    """Networks in double precision: normalising a few samples amplifies rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def net_of(hidden, workers, **arguments):
    """A network whose workers differ."""
    model = {"name": "bow", "hidden": [hidden], **arguments}
    net = build(model, FEATURES, CLASSES, workers, torch_stream(3, "init"))
    net.theta_wp += 0.3 * torch.randn(net.theta_wp.shape, generator=torch_stream(4, "noise"))
    return net


def sparse(dense_wbf):
    """A dense tensor's entries that are not zero."""
    dense_nf = dense_wbf.flatten(0, 1)
    _, indices = dense_nf.nonzero(as_tuple=True)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), dense_nf.count_nonzero(1).cumsum(0)])
    return SparseRows(indices, offsets, dense_nf[dense_nf != 0], tuple(dense_wbf.shape))


def bags(workers, batch, name="x"):
    """Inputs (W, B, features) with a tenth of the features each, and the same as a dense tensor."""
    generator = torch_stream(5, name)
    dense_nf = torch.randn(workers * batch, FEATURES, generator=generator)
    dense_nf *= torch.rand(dense_nf.shape, generator=generator) < 0.1
    dense_nf[0] = 0  # a sample without any word
    dense_wbf = dense_nf.view(workers, batch, FEATURES)
    return sparse(dense_wbf), dense_wbf


def labels_of(workers, batch, most):
    """Labels (W, B), or (W, B, most) with one to ``most`` labels each, and dense targets that sum to one."""
    generator = torch_stream(6, "y")
    order = torch.rand(workers * batch, CLASSES, generator=generator).argsort(1)[:, :most]
    counts = torch.randint(1, most + 1, (len(order), 1), generator=generator)
    labels = torch.where(torch.arange(most) < counts, order, -1)
    targets = torch.zeros(len(order), CLASSES + 1).scatter_(1, labels % (CLASSES + 1), 1.0)[:, :CLASSES]
    shape = (workers, batch) if most == 1 else (workers, batch, most)
    return labels.view(shape), (targets / targets.sum(1, keepdim=True)).view(workers, batch, CLASSES)


@pytest.mark.usefixtures("_double")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    hidden=st.integers(1, 9),
    workers=st.integers(1, 4),
    batch=st.integers(2, 8),
    most=st.integers(1, 4),
    output=st.sampled_from(["mean", "norm"]),
    norm_hidden=st.booleans(),
)
def test_loss_and_gradient_equal_torchs_for_every_worker(hidden, workers, batch, most, output, norm_hidden):
    net = net_of(hidden, workers, output=output, norm_hidden=norm_hidden)
    (x_wbf, dense_wbf), (y, targets_wbc) = bags(workers, batch), labels_of(workers, batch, most)
    net.grad_wp.fill_(float("nan"))  # whatever the buffer held before must not matter
    loss, losses = net.loss_and_grad(x_wbf, y), []
    for worker in range(workers):
        module = net.to_module(worker)
        expected = F.cross_entropy(module(dense_wbf[worker]), targets_wbc[worker])
        expected.backward()
        losses.append(expected.detach())
        table_ef, *others = (parameter.grad for parameter in module.parameters())
        expected_p = torch.cat([table_ef.t().flatten(), *(grad.flatten() for grad in others)])
        torch.testing.assert_close(net.grad_wp[worker], expected_p)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_scores_equal_torchs_embedding_bag():
    net, (x_wbf, _) = net_of(8, 1, norm_hidden=False), bags(1, 6)
    bag = torch.nn.EmbeddingBag(FEATURES, 8, mode="sum", include_last_offset=True)
    bag.weight.data.copy_(net.weights["w0"][0])
    h_be = bag(x_wbf.indices, x_wbf.offsets, x_wbf.values).relu()
    expected = F.linear(h_be, net.weights["w1"][0]).detach()
    with torch.no_grad():
        torch.testing.assert_close(net.logits(x_wbf)[0], expected)


def test_the_gradient_of_an_earlier_minibatch_leaves_nothing_behind():
    net = net_of(4, 2)
    for step in range(3):
        x_wbf, dense_wbf = bags(2, 5, f"x{step}")
        net.grad_wp += 1.0  # as an all-reduce might, that adds other workers' words
        net.loss_and_grad(x_wbf, labels_of(2, 5, 1)[0])
        for worker in range(2):
            unused = ~dense_wbf[worker].any(0)
            assert unused.any() and not net.grads["w0"][worker][unused].any()


def test_several_workers_train_as_each_alone():
    together = net_of(6, 3)
    alone = [net_of(6, 3).one_worker(worker) for worker in range(3)]
    for step in range(4):
        (x_wbf, dense_wbf), (y, _) = bags(3, 8, f"x{step}"), labels_of(3, 8, 3)
        together.loss_and_grad(x_wbf, y)
        together.theta_wp -= 0.1 * together.grad_wp
        for worker, one in enumerate(alone):
            own = slice(worker, worker + 1)
            one.loss_and_grad(sparse(dense_wbf[own]), y[own])
            one.theta_wp.sub_(0.1 * one.grad_wp)
    torch.testing.assert_close(together.theta_wp, torch.cat([one.theta_wp for one in alone]))


@pytest.mark.parametrize("norm_hidden", [True, False])
def test_units_of_zero_weights_stay_zero(norm_hidden):
    net = net_of(6, 2, norm_hidden=norm_hidden)
    assert net.units == {"h1": 6} and set(net.axes) == set(net.weights)
    padded = [weight[1].movedim(net.axes[name].index("h1"), 0)[4:] for name, weight in net.weights.items()]
    for part in padded:
        part.zero_()
    before_p = net.theta_wp[1].clone()
    for step in range(4):
        net.loss_and_grad(bags(2, 8, f"x{step}")[0], labels_of(2, 8, 2)[0])
        net.theta_wp -= 0.5 * net.grad_wp
    assert not any(part.any() for part in padded)
    assert not torch.equal(net.theta_wp[1], before_p)
    assert narrow({"name": "bow", "hidden": [6]}, {"h1": 4}) == {"name": "bow", "hidden": [4]}


@pytest.mark.parametrize("most", [1, 3])
def test_evaluation_counts_hits_and_sums(most):
    net, (x_wbf, dense_wbf) = net_of(16, 2), bags(1, 20)
    labels, targets_wbc = labels_of(1, 20, most)
    net.prepare_evaluation([bags(1, 50, "reference")[0].view(50, FEATURES)], worker=1)
    scores_bc = net.to_module(1).eval()(dense_wbf[0]).detach()
    hits, loss = net.evaluate(x_wbf.view(20, FEATURES), labels[0], worker=1)
    assert loss == pytest.approx(float(F.cross_entropy(scores_bc, targets_wbc[0], reduction="sum")), rel=1e-4)
    best_nk, right_nc = scores_bc.argsort(1, descending=True), targets_wbc[0] > 0
    found = [int(right_nc.gather(1, best_nk[:, :k]).sum()) / k for k in (1, 3, 5)]
    assert hits == found[0]
    np.testing.assert_allclose(net.hits(x_wbf.view(20, FEATURES), labels[0], worker=1), found)


def test_population_statistics_are_those_of_all_samples():
    net, (x_wbf, dense_wbf) = net_of(5, 1), bags(1, 40)
    net.prepare_evaluation([x_wbf.view(40, FEATURES)])
    z = dense_wbf[0] @ net.weights["w0"][0]
    norm = net.to_module()[1]
    torch.testing.assert_close(norm.running_mean, z.mean(0))
    torch.testing.assert_close(norm.running_var, z.var(0))


def test_without_normalisation_any_number_of_samples_gives_the_same_and_shares_scale_the_output():
    net, (x_wbf, _) = net_of(8, 1, norm_hidden=False, statistics="batch"), bags(1, 6)
    assert not net.needs_samples and net.evaluation_batch is None
    with torch.no_grad():
        scores = net.logits(x_wbf)
        net.shares = {"h1": 0.25}
        torch.testing.assert_close(net.logits(x_wbf), scores / 4)
        assert (net_of(8, 1).needs_samples, net_of(8, 1, statistics="batch").evaluation_batch) == (True, 128)
