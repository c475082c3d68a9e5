"""Normalisation with shared statistics against torch's own over all samples at once."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from implementations.layerwise import normalisation

EPS = 1e-3
CHANNELS = 5


@pytest.fixture(autouse=True)
def draws():
    torch.manual_seed(0)


def shared(pieces, weights, eps, grads=None):
    """Outputs of the devices that have the pieces, and with their gradients those of inputs and parameters."""
    count = sum(piece.numel() for piece in pieces) // pieces[0].shape[1]
    own = [normalisation.statistics(piece) for piece in pieces]
    mean = sum(normalisation.mean_part(piece, one[0], count) for piece, one in zip(pieces, own))
    variance = sum(normalisation.variance_part(piece, one, mean, count) for piece, one in zip(pieces, own))
    found = [normalisation.forward_shared(piece, mean, variance, weights, eps) for piece in pieces]
    outputs = [y for y, _ in found]
    if grads is None:
        return outputs
    parts = [normalisation.back_sums(saved, grad, weights) for (_, saved), grad in zip(found, grads)]
    sums = sum(part for _, part in parts)
    back, of_weights = [], []
    for (_, saved), (grad, _) in zip(found, parts):
        into = {name: torch.full_like(weight, float("nan")) for name, weight in weights.items()}
        back.append(normalisation.backward_shared(saved, grad, sums, count, weights, into))
        of_weights.append(into)
    return outputs, back, of_weights


def by_torch(x, weights, eps, grad):
    """Output, gradient of the input, and those of the parameters by name."""
    x = x.clone().requires_grad_()
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    y = F.batch_norm(x, None, None, leaves.get("weight"), leaves.get("bias"), training=True, eps=eps)
    back, *rest = torch.autograd.grad(y, [x, *leaves.values()], grad)
    return y.detach(), back, dict(zip(leaves, rest))


def parameters(names, dtype=torch.float64):
    return {name: torch.randn(CHANNELS, dtype=dtype) for name in names}


def split(x, cuts):
    """Pieces along the sample, or of the sample's halves along the height."""
    if cuts == "grid":
        return [piece for half in x.tensor_split(2) for piece in half.tensor_split(2, dim=2)]
    return list(x.split(cuts))


def joined(pieces, cuts):
    if cuts == "grid":
        return torch.cat([torch.cat(pieces[k : k + 2], dim=2) for k in (0, 2)])
    return torch.cat(pieces)


@pytest.mark.parametrize("names", [("weight", "bias"), ()])
@pytest.mark.parametrize(
    ("sides", "cuts"),
    [
        *itertools.product([(), (3, 4)], [[6], [3, 3], [1, 5], [2, 3, 1], [1, 2, 2, 1]]),
        ((3, 4), "grid"),
    ],
)
def test_parts_of_any_sizes_are_torchs_whole(sides, cuts, names):
    x = 3 + 2 * torch.randn(6, CHANNELS, *sides, dtype=torch.float64)
    weights, grad = parameters(names), torch.randn_like(x)
    outputs, back, of_weights = shared(split(x, cuts), weights, EPS, split(grad, cuts))
    y, of_x, of_parameters = by_torch(x, weights, EPS, grad)
    torch.testing.assert_close(joined(outputs, cuts), y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(joined(back, cuts), of_x, rtol=1e-11, atol=1e-12)
    for found in of_weights:  # the sums are the gradients of the whole, on each device
        assert set(found) == set(names)
        for name in names:
            torch.testing.assert_close(found[name], of_parameters[name], rtol=1e-11, atol=1e-12)


def test_a_device_alone_is_torch():
    x = torch.randn(6, CHANNELS, 3, 4, dtype=torch.float64)
    for names in (("weight", "bias"), ()):
        weights, grad = parameters(names), torch.randn_like(x)
        y, of_x, of_parameters = by_torch(x, weights, EPS, grad)
        found, saved = normalisation.forward_alone(x, weights, EPS)
        into = {name: torch.empty_like(weight) for name, weight in weights.items()}
        back = normalisation.backward_alone(saved, grad, weights, into)
        assert torch.equal(found, y) and torch.equal(back, of_x)
        assert all(torch.equal(into[name], of_parameters[name]) for name in names)
        assert not found.requires_grad


def test_eps_is_in_the_root():
    x = torch.tensor([[0.0], [2.0]], dtype=torch.float64)  # mean 1, variance 1
    (y,) = shared([x], {}, 3.0)
    assert y.ravel().tolist() == [-0.5, 0.5]
    (constant,) = shared([torch.full((4, 2), 7.0)], {}, EPS)
    torch.testing.assert_close(constant, torch.zeros(4, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("cuts", [[16, 16], [1, 31], [8, 8, 8, 8]])
@pytest.mark.parametrize("mean", [0.0, 1e2, 1e4])
def test_a_mean_far_from_zero_loses_no_more_digits_than_torch(mean, cuts):
    """Values of deviation 1 around it, in single precision; the truth is that of the same values in double."""
    x = mean + torch.randn(32, CHANNELS, 7, 7)
    weights, grad = parameters(("weight", "bias"), torch.float32), torch.randn_like(x)
    outputs, back, of_weights = shared(split(x, cuts), weights, 1e-5, split(grad, cuts))
    ours = (torch.cat(outputs), torch.cat(back), of_weights[0]["weight"])
    doubled = {name: weight.double() for name, weight in weights.items()}
    truth, theirs = by_torch(x.double(), doubled, 1e-5, grad.double()), by_torch(x, weights, 1e-5, grad)
    for found, torchs, exact in zip(
        ours, (*theirs[:2], theirs[2]["weight"]), (*truth[:2], truth[2]["weight"])
    ):
        scale = float(exact.abs().max())
        error, allowed = (float((one.double() - exact).abs().max()) / scale for one in (found, torchs))
        assert error <= 10 * allowed + 1e-6  # a digit is a factor of ten; rounding may fall either way
