"""Late gradients on simulated workers: the synchronous run, books, resumes, and what is known of convergence."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_runs import point_of, trained

from implementations import registry
from implementations.cluster.ledger import Ledger
from implementations.cluster.simulated import SimulatedCommunicator
from implementations.cluster.sockets import own_address
from implementations.errors import UserError
from implementations.spark import asynchronous
from implementations.spark.versions import History, Lateness, Served
from implementations.training import Batch, make_optimizer


def late(workers, results, staleness=0, **changes):
    params = {"staleness": staleness} | changes.pop("method_params", {})
    options = {key: changes.pop(key) for key in ("report_progress",) if key in changes}
    point = point_of("spark", workers, variant="async", method_params=params, **changes)
    return trained(point, results, **options)


# The run as the harness has it


@pytest.mark.parametrize(
    "changes", [{}, {"recipe": {"momentum": 0.5}}, {"optimizer": "rmsprop", "lr": 0.002}]
)
def test_without_staleness_it_is_the_synchronous_run(changes, results):
    synchronous = trained(point_of("spark", 4, variant="data", **changes), results)
    ours = late(4, results, **changes)
    assert torch.equal(ours.net.theta_wp, synchronous.net.theta_wp)
    assert ours.columns()["train_loss"] == synchronous.columns()["train_loss"]
    assert ours.columns()["staleness_max"] == 0


def test_one_worker_without_staleness_is_sequential_training(results):
    sequential = trained(point_of("sequential"), results)
    assert torch.equal(late(1, results).net.theta_wp, sequential.net.theta_wp)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("staleness", [0, 3])
def test_books_are_those_of_a_gradient_up_and_weights_down_for_each_worker_and_round(
    workers, staleness, results
):
    run = late(workers, results, staleness)
    columns, size = run.columns(), run.net.params_per_worker * 4
    rounds = run.step
    far = workers > 1
    assert columns["sent_bytes_total"] == columns["sent_bytes_predicted"] == 2 * far * rounds * workers * size
    assert columns["sent_bytes_max_worker"] == far * rounds * workers * size  # by the server
    volume = run.method.volume(run.training.plan)
    assert columns["payload_bytes"] == volume.payload_bytes == 2 * far * rounds * size
    assert columns["messages"] == 2 * far * rounds * workers
    assert columns["server_bytes"] == far * size
    frame = run.ledger.frame()
    calls = frame[frame["kind"] == "comm"]
    assert calls["op"].tolist() == ["push", "pull"] * (far * rounds)
    assert set(calls["algorithm"]) <= {"server"}
    assert set(calls["group_size"]) <= {workers + 1}


def test_the_same_seed_gives_the_same_bits_and_workers_agree(results):
    first, again, other = (late(3, results, 2, seed=seed).net.theta_wp for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, first[:1].expand_as(first))


class Killed(Exception):
    pass


@pytest.mark.parametrize("killed_at", [1, 2, 17, 33])
def test_a_killed_run_resumes_to_the_same_result(killed_at, results):
    """Also before there are as many versions as may be used, and with the optimiser's state."""
    changes = {"checkpoint_s": 0.0, "recipe": {"momentum": 0.5}, "seed": 20 + killed_at}
    straight = late(2, results, 4, **changes)
    straight.checkpoints.clear()

    def kill(done, total):
        if done >= killed_at:
            raise Killed

    with pytest.raises(Killed):
        late(2, results, 4, report_progress=kill, **changes)
    resumed = late(2, results, 4, **changes)
    resumed.checkpoints.clear()
    assert resumed.resumed or killed_at == 1
    assert torch.equal(resumed.net.theta_wp, straight.net.theta_wp)
    same = ("sent_bytes_total", "messages", "train_loss", "valid_loss", "staleness_mean", "staleness_max")
    assert {key: resumed.columns()[key] for key in same} == {key: straight.columns()[key] for key in same}
    assert resumed.test() == straight.test()


def test_training_improves_with_late_gradients(results):
    run = late(4, results, 3, epochs=8, data_size=None)
    losses = [row["valid_loss"] for row in run.curve]
    assert losses[-1] < 0.5 * losses[0]
    columns = run.columns()
    assert columns["staleness_max"] == 3
    assert columns["staleness_mean"] == pytest.approx(1.5, abs=0.2)  # drawn evenly from 0 to 3
    most = late(4, results, 3, method_params={"delay": "most"}).columns()
    assert most["staleness_mean"] == pytest.approx(
        3 - (3 + 2 + 1) / most["steps"]
    )  # none is late at the start


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "data", "method_params": {"staleness": 2}}, "staleness: got 2 with variant data; allowed: 0"),
        ({"method_params": {"execution": "job_per_exchange"}}, "execution: got 'job_per_exchange'; allowed: barrier"),
        ({"method_params": {"delay": "most"}, "evidence": "measured"}, "delay: got 'most'"),
        ({"method_params": {"staleness": -1}}, "staleness: got -1; allowed: int >= 0"),
        ({"schedule": "newbob", "recipe": {"reject_worse": True}}, "reject_worse: got True; allowed: False"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes, message):
    point = point_of("spark", 2, **({"variant": "async"} | changes))
    (problem,) = registry.get("spark").check(point)
    assert problem.startswith(message)


# Its parts


@pytest.mark.parametrize("workers", [1, 4])
def test_delays_are_even_and_keep_to_the_bound(workers):
    point = point_of("spark", workers, variant="async")
    options = {"staleness": 4, "delay": "uniform"}
    drawn = [asynchronous.delays(point, options, step, workers) for step in range(1, 2001)]
    for step, one in enumerate(drawn, 1):
        assert len(one) == workers and all(0 <= delay <= min(4, step - 1) for delay in one)
    counts = np.bincount(np.ravel(drawn[4:]), minlength=5) / np.size(drawn[4:])
    assert counts == pytest.approx(np.full(5, 0.2), abs=0.04)
    assert drawn == [asynchronous.delays(point, options, step, workers) for step in range(1, 2001)]
    options["delay"] = "most"
    assert asynchronous.delays(point, options, 3, workers) == [2] * workers
    assert asynchronous.delays(point, options, 30, workers) == [4] * workers


def test_a_history_gives_each_row_its_version():
    history, theta_wp = History(2), torch.zeros(3, 2)
    for version in range(6):
        theta_wp.fill_(float(version))
        most = min(version, 2)
        wanted = [0, most, most // 2]
        history.rewind_(theta_wp, wanted)
        assert theta_wp[:, 0].tolist() == [version - late for late in wanted]
        history.renew_(theta_wp)
        assert theta_wp.tolist() == [[version, version]] * 3
        copy = History(2)
        copy.restore(history.state())
        assert len(copy) == len(history) == min(version + 1, 2)
        history = copy


def test_a_worker_alone_books_nothing():
    ledger = Ledger()
    assert Served(1, 100).book(ledger) == (-1, -1)
    assert Served(1, 100).round_bytes == 0
    assert Served(3, 100).round_bytes == 600


def test_workers_are_reached_where_gloo_is(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with pytest.raises(UserError, match="nowhere0 has no IPv4 address"):
        own_address()


# Convergence, on quadratics: no network, but the rounds of ``asynchronous.updates``


class Quadratic:
    """``sum_i curvature_i x_i^2 / 2``, the same for every worker."""

    def __init__(self, curvatures, workers):
        self.curvatures = torch.tensor(curvatures, dtype=torch.float64)
        self.theta_wp = torch.ones(workers, len(curvatures), dtype=torch.float64)
        self.grad_wp = torch.zeros_like(self.theta_wp)

    def loss_and_grad(self, x, y):
        torch.mul(self.theta_wp, self.curvatures, out=self.grad_wp)
        return (self.theta_wp * self.grad_wp).sum(1).mean() / 2


def descended(curvatures, lr, rounds, staleness, workers=1, delay="most"):
    """The versions 0 .. rounds, (rounds + 1, P), as float64."""
    net = Quadratic(curvatures, workers)
    comm = SimulatedCommunicator(workers, Ledger())
    holding = SimpleNamespace(
        history=History(staleness), lateness=Lateness(), layout=Served(workers, 8 * len(curvatures))
    )
    nothing = torch.empty(0)
    run = SimpleNamespace(
        point=point_of("spark", workers, variant="async", lr=lr),
        settings={"staleness": staleness, "delay": delay},
        comm=comm,
        net=net,
        holding=holding,
        optimizer=lambda rate: make_optimizer(net, "sgd", rate, {"momentum": 0.0}),
        batches=lambda: (Batch(t, t, t == rounds, 1, nothing, nothing) for t in range(1, rounds + 1)),
        notes={},
    )
    versions = [net.theta_wp[0].clone()]
    for progress in asynchronous.updates(run):
        assert progress.synced
        versions.append(net.theta_wp[0].clone())
    return torch.stack(versions).numpy(), run


@pytest.mark.parametrize("staleness", [0, 1, 2, 4, 8, 16])
def test_a_constant_delay_is_stable_up_to_the_exact_limit_and_not_beyond(staleness):
    """``x_(t+1) = x_t - a x_(t-s)`` (Levin and May 1976); the growth is that of the largest root of its polynomial."""
    limit = 2 * np.sin(np.pi / (2 * (2 * staleness + 1)))
    curvature, rounds = 3.0, 200 + 150 * staleness
    found = {}
    for share in (0.93, 1.07):
        versions, _ = descended([curvature], share * limit / curvature, rounds, staleness)
        sizes = np.abs(versions[:, 0])
        window = rounds // 3
        early, late_on = sizes[rounds - 2 * window : -window].max(), sizes[-window:].max()
        polynomial = np.zeros(staleness + 2)
        polynomial[0], polynomial[1], polynomial[-1] = 1.0, -1.0, polynomial[-1] + share * limit
        if staleness == 0:
            polynomial = np.array([1.0, share * limit - 1.0])
        growth = np.abs(np.roots(polynomial)).max()
        assert np.log(late_on / early) / window == pytest.approx(np.log(growth), rel=0.1)
        found[share] = late_on / early
    assert found[0.93] < 1 < found[1.07]


def test_a_rate_that_is_fine_without_staleness_diverges_with_it():
    versions, _ = descended([1.0, 0.3], 1.5, 200, 0)
    assert np.abs(versions[-1]).max() < 1e-9
    versions, _ = descended([1.0, 0.3], 1.5, 200, 2)
    assert np.abs(versions[-1]).max() > 1e9


@settings(max_examples=40)
@given(
    staleness=st.integers(0, 6),
    workers=st.integers(1, 4),
    share=st.floats(0.05, 1.0),
    curvatures=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=3),
    pattern=st.lists(st.integers(0, 6), min_size=1, max_size=23),
)
def test_any_delays_converge_at_the_safe_rate(staleness, workers, share, curvatures, pattern):
    """With ``eta L <= 1 / (2 s + 1)`` every window of 2 s + 1 rounds takes off ``eta mu / 2`` (derived in the module).

    The weights are also those of the recursion written out.
    """
    drawn = {}

    def delays(point, options, step, count):
        most = min(options["staleness"], step - 1)
        drawn[step] = [min(pattern[(step * count + worker) % len(pattern)], most) for worker in range(count)]
        return drawn[step]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asynchronous, "delays", delays)
        lr, rounds = share / (max(curvatures) * (2 * staleness + 1)), 60
        versions, run = descended(curvatures, lr, rounds, staleness, workers)
    expected = [np.ones(len(curvatures))]
    for t in range(1, rounds + 1):
        means = np.mean([expected[t - 1 - late] for late in drawn[t]], axis=0)
        expected.append(expected[-1] - lr * np.array(curvatures) * means)
    np.testing.assert_allclose(versions, expected, rtol=1e-9, atol=1e-12)
    windows = np.arange(rounds + 1) // (2 * staleness + 1)
    bound = (1 - lr * min(curvatures) / 2) ** windows
    assert (np.abs(versions).max(1) <= bound * (1 + 1e-9)).all()
    every = np.concatenate(list(drawn.values()))
    assert run.notes == {"staleness_mean": pytest.approx(every.mean()), "staleness_max": every.max()}
