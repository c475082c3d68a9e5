"""The many-worker network against torch's own layers and counters."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from implementations.models import build
from implementations.models.linear import Linear
from implementations.seeds import torch_stream


def net_of(hidden, workers, features=12, classes=5, **arguments):
    model = {"name": "fc", "hidden": hidden, **arguments}
    return build(model, features, classes, workers, torch_stream(3, "init"))


@given(
    hidden=st.lists(st.integers(1, 9), max_size=3),
    workers=st.integers(1, 5),
    batch=st.integers(1, 7),
    activation=st.sampled_from(["relu", "sigmoid", "tanh"]),
)
def test_loss_and_gradient_equal_torchs_layers_for_every_worker(hidden, workers, batch, activation):
    net = net_of(hidden, workers, activation=activation)
    net.theta_wp += 0.1 * torch.randn(net.theta_wp.shape, generator=torch_stream(4, "noise"))
    x_wbi = torch.randn(workers, batch, 12, generator=torch_stream(4, "x"))
    y_wb = torch.randint(0, 5, (workers, batch), generator=torch_stream(4, "y"))
    net.grad_wp.fill_(float("nan"))  # whatever the buffer held before must not matter
    loss = net.loss_and_grad(x_wbi, y_wb)
    losses = []
    for worker in range(workers):
        module = net.to_module(worker)
        expected = F.cross_entropy(module(x_wbi[worker]), y_wb[worker])
        expected.backward()
        losses.append(expected.detach())
        expected_p = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
        torch.testing.assert_close(net.grad_wp[worker], expected_p)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_workers_start_equal_and_within_torchs_bounds():
    net = net_of([6], 3)
    assert torch.equal(net.theta_wp[0], net.theta_wp[2])
    assert net.weights["w0"].abs().max() <= 12**-0.5
    assert net.weights["w1"].std() > 0


def test_the_initial_weights_do_not_depend_on_the_number_of_workers():
    assert torch.equal(net_of([6], 1).theta_wp[0], net_of([6], 4).theta_wp[3])


def test_parameters_equal_torchs_count():
    net = net_of([512, 512], 1, features=784, classes=10)
    assert net.params_per_worker == sum(p.numel() for p in net.to_module().parameters()) == 669_706


def test_flops_equal_torchs_counter():
    net = net_of([32, 16], 1)
    module, x_bi = net.to_module(), torch.randn(7, 12)
    with FlopCounterMode(display=False) as counter:
        module(x_bi).sum().backward()
    assert net.flops_per_sample * 7 == counter.get_total_flops()


def test_evaluation_counts_and_sums():
    net = net_of([6], 2)
    x_bi, y_b = torch.randn(9, 12), torch.randint(0, 5, (9,))
    correct, loss = net.evaluate(x_bi, y_b, worker=1)
    scores = net.to_module(1)(x_bi).detach()
    assert correct == int((scores.argmax(1) == y_b).sum())
    assert loss == pytest.approx(float(F.cross_entropy(scores, y_b, reduction="sum")), rel=1e-5)


def test_one_worker_shares_its_weights():
    net = net_of([6], 3)
    net.one_worker(1).theta_wp.zero_()
    assert not net.theta_wp[1].any() and net.theta_wp[0].any()
    assert not net.weights["w0"][1].any()


def test_the_axes_name_what_can_be_split():
    net = net_of([6, 4], 1)
    assert net.units == {"h1": 6, "h2": 4} and net.zero_units_stay
    assert net.axes == {
        "w0": ("h1", None), "b0": ("h1",), "w1": ("h2", "h1"), "b1": ("h2",), "w2": (None, "h2"), "b2": (None,),
    }  # fmt: skip


@pytest.mark.parametrize(("activation", "stay"), [("relu", True), ("tanh", True), ("sigmoid", False)])
def test_units_of_zero_weights_stay_zero_unless_the_activation_of_zero_is_not(activation, stay):
    net = net_of([6, 4], 2, activation=activation)
    net.weights["w0"][1, 3:] = net.weights["b0"][1, 3:] = net.weights["w1"][1, :, 3:] = 0
    for _ in range(3):
        net.loss_and_grad(torch.randn(2, 5, 12), torch.randint(0, 5, (2, 5)))
        net.theta_wp -= net.grad_wp
    padded = [net.weights["w0"][1, 3:], net.weights["b0"][1, 3:], net.weights["w1"][1, :, 3:]]
    assert any(part.any() for part in padded) is not stay
    assert net.zero_units_stay is stay


def test_shares_scale_the_products_in_evaluation_and_leave_training_alone():
    """As dropout does: outputs of layers with a share of their inputs, and whole biases."""
    net, x_wbi, y_wb = net_of([6, 4], 1), torch.randn(1, 7, 12), torch.randint(0, 5, (1, 7))
    net.loss_and_grad(x_wbi, y_wb)
    before_p = net.grad_wp.clone()
    net.shares = {"h1": 0.5, "h2": 0.25}
    net.loss_and_grad(x_wbi, y_wb)
    assert torch.equal(net.grad_wp, before_p)
    module = net.to_module()
    for layer, share in ((2, 0.5), (4, 0.25)):
        module[layer].weight.data.mul_(share)
    expected = F.cross_entropy(module(x_wbi[0]).detach(), y_wb[0], reduction="sum")
    assert net.evaluate(x_wbi[0], y_wb[0])[1] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch_major", [False, True])
def test_a_layer_without_bias_equals_torchs(workers, batch_major):
    x_wbi, w_woi = torch.randn(workers, 4, 6, requires_grad=True), torch.randn(workers, 5, 6)
    gy_wbo, gw_woi = torch.randn(workers, 4, 5), torch.full((workers, 5, 6), torch.nan)
    y_wbo = Linear.apply(x_wbi, w_woi.clone().requires_grad_(), None, gw_woi, None, None, batch_major)
    y_wbo.backward(gy_wbo)
    assert y_wbo.transpose(0, 1).is_contiguous() or not batch_major
    got = y_wbo.detach(), x_wbi.grad
    for worker in range(workers):
        x_bi, w_oi = (part[worker].detach().clone().requires_grad_() for part in (x_wbi, w_woi))
        y_bo = F.linear(x_bi, w_oi)
        y_bo.backward(gy_wbo[worker])
        for mine, theirs in zip((*got, gw_woi), (y_bo.detach(), x_bi.grad, w_oi.grad)):
            torch.testing.assert_close(mine[worker], theirs)
