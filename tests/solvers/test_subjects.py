"""Subjects: sums against dense matrices, the ratio of variances, and designs with known answers."""

from dataclasses import replace

import numpy as np
import pytest

from condokit.solvers.pooled.noise import NoiseModel
from condokit.solvers.pooled.stacked import Stacked, reduce, solve
from condokit.solvers.pooled.subjects import Subjects


def rows(seed, n=40, K=3, d=2, rho=2.5):
    """Rows of K batches, some of samples with a level of their own, some alone."""
    rng = np.random.default_rng(seed)
    batch, z = rng.integers(0, K, n), rng.normal(size=n)
    groups = rng.integers(0, 14, n)
    groups[:6] = np.arange(20, 26)  # alone
    bridge = np.where(groups < 4, groups, -1)
    U = np.column_stack([np.ones(n), z, np.sin(3 * z), np.cos(3 * z)])
    U[bridge >= 0] = 0
    D = np.column_stack([U, batch[:, None] == np.arange(1, K)])
    penalty = np.r_[0, 0, 2.0, 3.0, np.zeros(K - 1)]
    noise = NoiseModel.of_levels(np.zeros(n, dtype=int), 1, False)
    who = Subjects.of(groups, bridge, batch, K), np.atleast_1d(rho)
    at = Stacked(rng.normal(size=(n, d)), D, penalty, batch, K, 0, np.ones((n, 1)), noise, *who)
    return at, groups, bridge, rng


def dense(at, groups, bridge, w, j):
    """Return Q, n and B of feature j from matrices of rows by rows, free levels as columns."""
    rho, K, unknown = (
        at.rho[min(j, len(at.rho) - 1)],
        at.n_batches,
        at.counts[:, -1 if j else 0] == 0,
    )
    here, random = ~unknown, bridge < 0
    V = np.diag(1 / np.where(here, w, 1.0))
    for g in np.unique(groups[random]):
        mine = (groups == g) & random & here
        if mine.any():
            V += rho * np.outer(mine, mine) * mine.sum() / w[mine].sum()
    samples = bridge[:, None] == np.unique(bridge[~random])
    D = np.column_stack([at.D[:, :4], samples, at.D[:, 4:]])[here]
    penalty = np.r_[at.penalty[:4], np.zeros(samples.shape[1]), at.penalty[4:]]
    Vi = np.linalg.inv(V[np.ix_(here, here)])
    B = np.linalg.inv(D.T @ Vi @ D + np.diag(penalty))
    X = np.where(at.batch == np.arange(K)[:, None], at.X[:, j], 0.0)[:, here]
    VX, VD = Vi @ X.T, Vi @ D
    Q = X @ VX - (X @ VD) @ B @ (VD.T @ X.T)
    each = (D * (VD @ B))[:, penalty == 0].sum(1)
    n = [(1 - each)[at.batch[here] == b].sum() for b in range(K)]
    return Q, n, B[-K + 1 :, -K + 1 :]


@pytest.mark.parametrize("kind", ["equal", "shared", "each", "missing", "ratios"])
def test_sums_over_subjects_are_those_of_the_whole_covariance(kind):
    at, groups, bridge, rng = rows(0, rho=[0.4, 9.0] if kind == "ratios" else 2.5)
    n = len(groups)
    precision = (
        None
        if kind in ("equal", "ratios")
        else rng.uniform(0.3, 3, (n, 1 if kind == "shared" else 2))
    )
    if kind == "missing":
        counts = np.ones((n, 2))
        counts[[3, 9, 17, 25], 1] = 0
        at = replace(at, counts=counts, X=at.X * counts)
    found = reduce(at, precision)
    for j in range(2):
        w = np.ones(n) if precision is None else precision[:, min(j, precision.shape[1] - 1)]
        Q, n_eff, B = dense(at, groups, bridge, w, j)
        k = min(j, len(found.n_eff) - 1)
        np.testing.assert_allclose(found.Q[j], Q, atol=1e-8)
        np.testing.assert_allclose(found.n_eff[k], n_eff, atol=1e-8)
        np.testing.assert_allclose(found.B[:, :, k], B, atol=1e-8)


def test_residuals_are_independent_once_subjects_are_taken_off():
    rng = np.random.default_rng(0)
    n = 90
    batch, groups = np.arange(n) % 2, np.r_[np.arange(60) // 3, 100 + np.arange(30)]
    who = Subjects.of(groups, None, batch, 2), np.array([4.0])
    noise = NoiseModel.of_levels(np.zeros(n, dtype=int), 1, False)
    D = np.column_stack([np.ones(n), batch == 0])
    level = 2 * rng.normal(size=(130, 3000))[groups]
    X = level + rng.normal(size=(n, 3000))
    at = Stacked(X, D, np.zeros(2), batch, 2, 1, np.ones((n, 1)), noise, *who)
    found = solve(at, np.ones((3000, 2)))
    assert found.sigma2.mean() == pytest.approx(1, abs=0.01)
    products = found.e @ found.e.T / 3000
    np.testing.assert_allclose(np.diag(products) / (1 - found.reduced.h[:, 0]), 1, atol=0.15)
    assert np.abs(products - np.diag(np.diag(products))).max() < 0.12
