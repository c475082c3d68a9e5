"""Variant ``async``: a parameter server with versions, and gradients that are applied late by at most s of them.

A review of the paper says that it trains asynchronously, with a proof for late and reordered updates; its abstract does
not, and its body could not be read. So this is a definition of our own, and no reproduction of theirs.

In round t = 1, 2, ... each of the m workers hands in one gradient, of its own minibatch, and the server makes one
update from their mean, by the point's optimiser: version t is made of version t - 1. Worker j computes its gradient
with version t - 1 - d, where ``d <= min(s, t - 1)`` and s is the parameter ``staleness``. With s = 0 that is data
parallelism.

* Simulated: d is drawn for each worker and round, uniformly from what is allowed, or is the most that is allowed
  (parameter ``delay``). Drawn delays are independent, so that a worker may go back to older weights than it had,
  which no real one does.
* Measured: time decides. A worker pushes its gradient, takes the newest version there is, and goes on; it waits only
  while it would be more than s rounds ahead of the newest version, hence of the slowest worker. The server keeps
  gradients of later rounds until theirs is complete. Before evaluations and planned checkpoints the workers wait for
  each other, and so they do about once a second, when the harness has them agree.

The usual server applies each gradient as it arrives, over m. This one takes a round's together: momentum and RMSprop
then see what they see in the synchronous run, s = 0 equals it for every optimiser, and both kinds of evidence have one
definition. What it costs is that a fast worker's gradient is of use only when the slowest one's has come.

What is known of convergence. For a quadratic whose curvatures lie in [mu, L] let a = eta L. With d = s always, gradient
descent ``x_(t+1) = x_t - a x_(t-s)`` converges if and only if ``a < 2 sin(pi / (2 (2 s + 1)))`` (Levin and May 1976).
With any delays up to s, and any number of workers, ``a <= 1 / (2 s + 1)`` suffices: in the eigenbasis
``x_(t+1) = (1 - a) x_t + a (x_t - x_(t-d))``, and the bracket is at most ``a s`` times the largest value M of the last
2 s + 1 versions, so that ``|x_(t+1)| <= (1 - a + a^2 s) M <= (1 - a / 2) M``: the error falls by ``1 - eta mu / 2`` at
least in every 2 s + 1 rounds.

The trace of a run has pushes and pulls as calls of all workers; a time model that lets collectives wait for the
slowest worker takes no advantage of asynchrony.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from implementations.cluster.communicator import Communicator
from implementations.cluster.sockets import own_address
from implementations.errors import UserError
from implementations.point import Point
from implementations.registry import Progress
from implementations.seeds import numpy_stream
from implementations.spark.server import Address, Client, ParameterServer
from implementations.training import Batch, Optimizer, Training


def updates(run: Training) -> Iterator[Progress]:
    """The rounds of a run, simulated or measured; leaves the notes staleness_mean and staleness_max."""
    if run.point.evidence == "measured" and run.comm.size > 1:
        yield from _measured(run)
    else:
        yield from _simulated(run)


def delays(point: Point, settings: dict[str, Any], step: int, workers: int) -> list[int]:
    """By how many versions each worker's gradient is late in round ``step``; at most ``staleness`` and ``step`` - 1."""
    most = min(settings["staleness"], step - 1)
    if most == 0 or settings["delay"] == "most":
        return [most] * workers
    return numpy_stream(point.seed, "delays", step).integers(0, most + 1, workers).tolist()


def _simulated(run: Training) -> Iterator[Progress]:
    optimizer, comm, net = run.optimizer(run.point.lr), run.comm, run.net
    history, lateness = run.holding.history, run.holding.lateness
    push, pull = run.holding.layout.book(comm.ledger)
    alone = run.point.evidence == "measured"  # one real worker is never late
    for batch in run.batches():
        late_m = [0] * comm.size if alone else delays(run.point, run.settings, batch.step, comm.size)
        late_w = [late_m[worker] for worker in comm.hosted]
        history.rewind_(net.theta_wp, late_w)
        loss = net.loss_and_grad(batch.x, batch.y)
        with comm.ledger.call(push), comm.ledger.muted():
            comm.allreduce_(net.grad_wp, "mean")
        history.renew_(net.theta_wp)
        optimizer.step()
        with comm.ledger.call(pull):
            pass  # every row has made the server's update
        lateness.add(late_w)
        if batch.last_of_epoch:
            run.notes |= lateness.columns(comm)
        yield Progress(batch.step, batch.samples, loss, synced=True)
    run.notes |= lateness.columns(comm)


def _measured(run: Training) -> Iterator[Progress]:
    optimizer, comm, lateness = run.optimizer(run.point.lr), run.comm, run.holding.lateness
    net = run.holding.replica or run.net  # worker 0's process has the server's weights in ``run.net``
    weights_p, gradient_p = net.theta_wp[0].numpy(), net.grad_wp[0].numpy()
    push, pull = run.holding.layout.book(comm.ledger)
    with _connected(run, optimizer) as client:
        version = client.pull(weights_p)
        for batch in run.batches():
            lateness.add([batch.step - 1 - version])
            loss = net.loss_and_grad(batch.x, batch.y)
            together = _meets(run.point, batch)
            wanted = batch.step if together else batch.step - run.settings["staleness"]
            with comm.ledger.call(push):
                client.push(gradient_p, batch.step, wanted, optimizer.param_groups[0]["lr"])
            with comm.ledger.call(pull):
                version = client.pull(weights_p)
            if batch.last_of_epoch:
                run.notes |= lateness.columns(comm)
            yield Progress(batch.step, batch.samples, loss, synced=together)
    run.notes |= lateness.columns(comm)


def _meets(point: Point, batch: Batch) -> bool:
    """Whether all workers take the version of this very round after it: an evaluation or a checkpoint is next."""
    every = point.checkpoint_steps
    return batch.last_of_epoch or bool(every and batch.step % every == 0)


@contextmanager
def _connected(run: Training, optimizer: Optimizer) -> Iterator[Client]:
    """The hosted worker's connection; worker 0's process serves meanwhile. Collective at its beginning."""
    server, problem = None, None
    if 0 in run.comm.hosted:
        try:
            server = _serve(run, optimizer)
        except (UserError, OSError) as error:
            problem = error
    client = None
    try:
        client = Client(_tell(run.comm, server, problem), run.comm.hosted[0])
        yield client
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        if client is not None:
            client.fail(reason)
        if server is not None:
            server.stop(f"worker 0 failed: {reason}")
        raise
    client.leave()
    if server is not None:
        server.close()


def _serve(run: Training, optimizer: Optimizer) -> ParameterServer:
    net = run.net

    def apply(mean_p: np.ndarray, rate: float) -> None:
        net.grad_wp[0].copy_(torch.from_numpy(mean_p))
        for group in optimizer.param_groups:
            group["lr"] = rate  # of the epoch that the gradients are of
        optimizer.step()

    return ParameterServer(run.comm.size, net.theta_wp[0].numpy(), apply, run.done_steps, own_address())


def _tell(comm: Communicator, server: ParameterServer | None, problem: Exception | None) -> Address:
    """The server's address on all processes. UserError on all where there is no server."""
    told = torch.zeros(3, dtype=torch.int64)
    if server is not None:
        address = server.address
        number = int.from_bytes(socket.inet_aton(address.host), "big")
        told = torch.tensor([number, address.port, address.token])
    number, port, token = comm.control_bcast(told).tolist()
    if not port:
        raise UserError(f"no parameter server: {problem or 'worker 0 could not start it and tells why'}")
    return Address(socket.inet_ntoa(number.to_bytes(4, "big")), port, token)
