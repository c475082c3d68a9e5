"""The many-worker network against torch's own layers and counters."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from implementations.models import build
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
