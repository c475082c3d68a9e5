"""Programs run by simulated workers of this process, for tests; the segments one by one, as anyone may run them."""

import copy

import torch

from implementations import models
from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.spark.program import PAIRS, State
from implementations.spark.spmd import Spmd, combined


def network(model, features, classes, seed=1):
    """The whole network of one worker."""
    return models.build(model, features, classes, 1, torch.Generator().manual_seed(seed))


def samples(count, features, classes, seed=2):
    """Inputs (b, i) and labels (b,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, generator=generator), torch.randint(
        classes, (count,), generator=generator
    )


def split(program, weights, workers=None):
    """Flat weights (w, p) of workers that own their blocks of ``weights``, a dict of whole parameters."""
    workers = program.workers if workers is None else workers
    theta_wp = torch.zeros(workers, max(program.params(place) for place in range(program.workers)))
    for row in range(workers):
        views = program.views(row % program.workers, theta_wp[row])
        for name, block in program.blocks(row % program.workers).items():
            views[name].copy_(block.of(weights[name]))
    return theta_wp


def joined(program, flat_wp, shapes, worker_of=lambda place: place):
    """Whole parameters out of the blocks of ``flat_wp``; replicated ones are those of the last worker."""
    whole = {name: torch.full(shape, torch.nan) for name, shape in shapes.items()}
    for place in range(program.workers):
        views = program.views(place, flat_wp[worker_of(place)])
        for name, block in program.blocks(place).items():
            block.of(whole[name]).copy_(views[name])
    return whole


class Steps:
    """Steps of SGD by simulated workers in groups, from the weights of ``net``."""

    def __init__(self, program, net, groups=1, driver=False):
        self.program, self.ledger = program, Ledger()
        self._shapes = {name: tuple(weight[0].shape) for name, weight in net.weights.items()}
        workers = groups * program.workers
        self.theta_wp = split(program, {name: weight[0] for name, weight in net.weights.items()}, workers)
        self.grad_wp = torch.full_like(self.theta_wp, 7.0)  # what was there must not matter
        comm = SimulatedCommunicator(workers, self.ledger, None)
        self._spmd = Spmd(program, comm, self.theta_wp, self.grad_wp, driver)

    def gradients(self, x_gbi, y_gb):
        """Loss (0-d); the gradients are then in ``grad_wp``."""
        return self._spmd.gradients(x_gbi, y_gb)

    def step(self, x_gbi, y_gb, lr=0.1):
        """One step; returns the loss."""
        loss = self.gradients(x_gbi, y_gb)
        self.theta_wp -= lr * self.grad_wp
        return loss

    def weights(self):
        """Whole parameters, of the first group."""
        return joined(self.program, self.theta_wp, self._shapes)

    def grads(self):
        """Whole gradients, of the first group."""
        return joined(self.program, self.grad_wp, self._shapes)


def one_by_one(program, net, x_bi, y_b, look=lambda exchange, handed: None):
    """A step's gradients as a dict of whole parameters, and its loss.

    All that a worker keeps between two segments is copied, as it is when it travels; what it receives must be left as
    it is. ``look`` sees what the workers hand over in each exchange.
    """
    weights = {name: weight[0] for name, weight in net.weights.items()}
    theta_wp = split(program, weights)
    grad_wp = torch.full_like(theta_wp, 7.0)
    states = [
        State(program.views(worker, theta_wp[worker]), program.views(worker, grad_wp[worker]), x_bi, y_b)
        for worker in range(program.workers)
    ]
    received = [None] * program.workers
    for segment, exchange in enumerate(program.exchanges):
        handed, before = [], copy.deepcopy(received)
        for worker, state in enumerate(states):
            state.saved = copy.deepcopy(state.saved)
            handed.append(program.run(segment, worker, state, received[worker]))
        torch.testing.assert_close(received, before, rtol=0, atol=0)
        received = [None] * program.workers
        if exchange is not None:
            look(exchange, handed)
            received = combined(exchange, handed)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    return joined(program, grad_wp, shapes), states[0].loss


def shapes_of(handed):
    """Shape of what a segment hands over, by target where there are several."""
    return (
        {target: tuple(part.shape) for target, part in handed.items()}
        if isinstance(handed, dict)
        else tuple(handed.shape)
    )


def wanted_shapes(exchange, worker):
    """Shapes that an exchange wants from a worker, as ``shapes_of``."""
    if exchange.kind == PAIRS:
        return {target: shape for (source, target), shape in exchange.pairs.items() if source == worker}
    return exchange.block_shape(worker) if exchange.kind == "gather" else exchange.shape
