"""The online Fisher estimate against dense matrices in double precision, and what must hold of it always."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.optimizers.fisher import OnlineFisher, update


class DenseFisher:
    """The published recursion written with whole matrices and explicit inverses, of one worker."""

    def __init__(self, rank, alpha, history, period):
        self.rank, self.alpha, self.history, self.period = rank, alpha, history, period
        self.batches = 0

    def matrix(self):
        return self.q.T @ np.diag(self.d) @ self.q + self.rho * np.eye(self.dimensions)

    def settle(self, q, top, trace):
        rho = (trace - top.sum()) / (self.dimensions - len(top))
        self.q, self.d = q, np.maximum(top - rho, 1e-10)
        self.rho = max(rho, 1e-10, 1e-5 * top.max())

    def precondition(self, x):
        batch, self.dimensions = x.shape
        rank = min(self.rank, self.dimensions - 1)
        if self.batches == 0:
            values, vectors = np.linalg.eigh(x.T @ x / batch)
            self.settle(vectors[:, ::-1][:, :rank].T, values[::-1][:rank], values.sum())
        fisher = self.matrix()
        smooth = fisher + self.alpha * np.trace(fisher) / self.dimensions * np.eye(self.dimensions)
        p = x @ np.linalg.inv(smooth)
        if self.batches < 10 or (self.batches - 9) % self.period == 0:
            share = 1 - np.exp(-batch / self.history)
            target = share / batch * x.T @ x + (1 - share) * fisher
            y = self.q @ target
            _, top, q = np.linalg.svd(y, full_matrices=False)
            self.settle(q, top, np.trace(target))
        self.batches += 1
        return p * np.linalg.norm(x) / np.linalg.norm(p)


def batches(workers, batch, dimensions, count, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
    mix *= torch.logspace(0, -2, dimensions, dtype=torch.float64)
    for _ in range(count):
        x = torch.randn(workers, batch, dimensions, generator=generator, dtype=torch.float64) @ mix.T
        yield x.to(dtype)


def run(fisher, x_wbd, constant=False, scale=1.0):
    """Whole rows of gamma * P."""
    out = torch.full_like(x_wbd, float("nan"))
    one, norms, gamma = fisher.precondition(x_wbd, out, constant, scale)
    update([fisher])
    p = out if one is None else torch.cat([out, one.unsqueeze(2)], 2)
    torch.testing.assert_close(norms, torch.linalg.vector_norm(p, dim=2))
    return p * gamma.view(-1, 1, 1)


def dense_of(fisher, worker=0):
    """The estimate as a whole matrix."""
    e, d = fisher.e_wr()[worker], fisher.d_wr[worker]
    q = fisher.factor_wrd[worker].double() / e.sqrt().unsqueeze(1)
    return q.T @ torch.diag(d) @ q + fisher.rho_w[worker] * torch.eye(q.shape[1], dtype=torch.float64), q


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("rank", "batch", "dimensions"), [(3, 30, 8), (3, 6, 9), (1, 5, 4), (7, 40, 8), (99, 40, 8)]
)
def test_equals_the_dense_recursion(rank, batch, dimensions, constant):
    ours, dense = OnlineFisher(rank, 4.0, 100.0, 3), DenseFisher(rank, 4.0, 100.0, 3)
    for x in batches(1, batch, dimensions, 25):
        whole = x[0].numpy()
        if constant:
            whole = np.concatenate([whole, np.ones((batch, 1))], 1)
        np.testing.assert_allclose(run(ours, x, constant)[0], dense.precondition(whole), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(dense_of(ours)[0], dense.matrix(), rtol=1e-7, atol=1e-9)


def test_single_precision_stays_near_double():
    single, double = OnlineFisher(5, 4.0, 100.0, 2), OnlineFisher(5, 4.0, 100.0, 2)
    for x in batches(2, 40, 12, 40):
        torch.testing.assert_close(
            run(single, x.float()).double(), run(double, x), rtol=1e-3, atol=1e-3 * float(x.std())
        )


@given(
    rank=st.integers(1, 12),
    batch=st.integers(1, 20),
    dimensions=st.integers(2, 10),
    alpha=st.floats(0.1, 20),
    history=st.floats(1, 1e5),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
)
@settings(max_examples=40)
def test_invariants(rank, batch, dimensions, alpha, history, size):
    fisher = OnlineFisher(rank, alpha, history, 1)
    trace = None
    for x in batches(2, batch, dimensions, 4, dtype=torch.float32):
        x = size * x
        out = run(fisher, x)
        torch.testing.assert_close(  # preconditioning changes no total norm
            out.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1), rtol=1e-4, atol=0
        )
        assert ((out * x).sum((1, 2)) > 0).all()  # positive definite: still a direction of descent
        assert (fisher.d_wr >= 1e-10).all() and (fisher.rho_w >= 1e-10).all()
        before = trace
        trace = torch.stack([dense_of(fisher, worker)[0].trace() for worker in range(2)])
        rank_kept = fisher.d_wr.shape[1]
        assert rank_kept == min(rank, dimensions - 1)
        for worker in range(2):
            q = dense_of(fisher, worker)[1]
            torch.testing.assert_close(q @ q.T, torch.eye(rank_kept, dtype=torch.float64), rtol=0, atol=3e-5)
        if before is not None:  # tr F' = share tr(XX')/B + (1-share) tr F; a floor can only add to it
            share = 1 - np.exp(-batch / history)
            want = share / batch * x.double().square().sum((1, 2)) + (1 - share) * before
            assert (trace >= want * (1 - 1e-4)).all()
            free = fisher.d_wr.amin(1) > 1e-10  # rho's own floor is at most 1e-5 of the trace a dimension
            assert (trace <= want * (1 + 1e-3) + 1e-8)[free].all()


def test_learns_the_covariance_of_stationary_vectors():
    """With rank D-1 the estimate ends at the vectors' second moments: the exact inverse."""
    dimensions = 6
    fisher, all_x = OnlineFisher(dimensions - 1, 1.0, 20_000.0, 1), []
    for x in batches(1, 500, dimensions, 200):
        run(fisher, x)
        all_x.append(x[0])
    all_x = torch.cat(all_x)
    truth = all_x.T @ all_x / len(all_x)
    assert float((dense_of(fisher)[0] - truth).norm() / truth.norm()) < 0.03


def test_workers_are_independent():
    together = OnlineFisher(3, 4.0, 100.0, 2)
    alone = [OnlineFisher(3, 4.0, 100.0, 2) for _ in range(3)]
    for x in batches(3, 10, 7, 20):
        out = run(together, x, constant=True)
        for worker, fisher in enumerate(alone):
            torch.testing.assert_close(out[worker : worker + 1], run(fisher, x[worker : worker + 1], True))


def test_estimates_updated_together_equal_those_updated_alone():
    """Whatever their dimensions, ranks and batches; some are not due, and one has diverged."""
    sizes = [
        (12, 3, 9, 1),
        (20, 3, 15, 1),
        (12, 5, 9, 1),
        (12, 3, 9, 2),
        (12, 3, 9, 1),
    ]  # batch, rank, dimensions
    together = [OnlineFisher(rank, 4.0 + n, 100.0, period) for n, (_, rank, _, period) in enumerate(sizes)]
    alone = [OnlineFisher(rank, 4.0 + n, 100.0, period) for n, (_, rank, _, period) in enumerate(sizes)]
    streams = [batches(2, batch, dimensions, 15, seed=n) for n, (batch, _, dimensions, _) in enumerate(sizes)]
    for step, all_x in enumerate(zip(*streams, strict=True)):
        if step == 12:
            all_x[-1][:, 0, 0] = float("nan")
        for fisher, other, x in zip(together, alone, all_x):
            fisher.precondition(x, torch.empty_like(x))
            other.precondition(x, torch.empty_like(x))
            update([other])
        update(together)
    for fisher, other in zip(together, alone):
        for name, value in fisher.state().items():
            torch.testing.assert_close(value, other.state()[name])


def test_an_update_that_is_due_is_in_the_state_and_in_the_next_batch():
    early, late = OnlineFisher(3, 4.0, 100.0, 1), OnlineFisher(3, 4.0, 100.0, 1)
    first, second = batches(1, 10, 7, 2)
    run(early, first)
    late.precondition(first, torch.empty_like(first))
    assert torch.equal(late.state()["factor_wrd"], early.factor_wrd)
    late.precondition(first, torch.empty_like(first))
    run(early, first)
    torch.testing.assert_close(run(late, second), run(early, second))


def test_directions_stay_orthonormal_in_single_precision():
    """Over many updates and six orders of magnitude of the eigenvalues."""
    fisher, generator = OnlineFisher(10, 4.0, 2000.0, 1), torch.Generator().manual_seed(0)
    spread = torch.logspace(0, -3, 40)
    for _ in range(300):
        run(fisher, torch.randn(2, 50, 40, generator=generator) * spread)
    for worker in range(2):
        q = dense_of(fisher, worker)[1]
        torch.testing.assert_close(q @ q.T, torch.eye(10, dtype=torch.float64), rtol=0, atol=1e-5)


def test_scale_acts_on_the_estimate_only():
    scaled, plain = OnlineFisher(3, 4.0, 100.0, 1), OnlineFisher(3, 4.0, 100.0, 1)
    for x in batches(1, 10, 7, 12):
        torch.testing.assert_close(run(scaled, x, scale=64.0) * 64, run(plain, 64 * x))
    torch.testing.assert_close(scaled.rho_w, plain.rho_w)


def test_updates_the_first_ten_batches_then_every_period():
    fisher, changed = OnlineFisher(2, 4.0, 100.0, 4), []
    for x in batches(1, 10, 6, 22):
        before = fisher.factor_wrd
        run(fisher, x)
        changed.append(fisher.factor_wrd is not before)
    assert [n for n, one in enumerate(changed, start=1) if one] == [*range(1, 11), 14, 18, 22]


def test_vectors_of_zeros_and_of_one_dimension_pass_unchanged():
    fisher = OnlineFisher(4, 4.0, 100.0, 1)
    for _ in range(3):
        assert not run(fisher, torch.zeros(2, 5, 3)).any()
    x = torch.randn(2, 5, 3)
    assert run(fisher, x).isfinite().all()
    one = torch.randn(2, 5, 1)
    assert torch.equal(run(OnlineFisher(4, 4.0, 100.0, 1), one), one)


@pytest.mark.parametrize("when", [0, 3])
def test_values_that_are_not_finite_come_back_as_such_without_an_error(when):
    fisher = OnlineFisher(2, 4.0, 100.0, 1)
    for step, x in enumerate(batches(1, 10, 6, 5)):
        if step == when:
            x[0, 2, 1] = float("inf")
            out = torch.empty_like(x)
            fisher.precondition(x, out)
            assert not out.isfinite().all()
        else:
            assert run(fisher, x).isfinite().all()
