from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from condokit.data.grouped import GroupedMoments
from condokit.law.maps import maps_of
from condokit.law.noise import NoiseModel
from condokit.law.posterior import Maps, _Effects, _Sizes, posterior_of
from condokit.law.stacked import Stacked, best_scales, nodes, reduce, solve
from condokit.law.weights import pulled, shape

FREE = np.full((3, 4), np.nan)


def stacked(rng, K=4, L=3, n=40, p=3, inside=None):
    batch, level = np.repeat(np.arange(K), n), rng.integers(0, L, K * n)
    X = rng.normal(size=(L, p))[level] + rng.normal(size=(K * n, p)) * (1 + 0.2 * batch[:, None])
    D = np.column_stack(
        [np.ones(K * n), level[:, None] == np.arange(1, L), batch[:, None] == np.arange(1, K)]
    ).astype(float)
    noise = NoiseModel.of_levels(level, L, False)
    return Stacked(X, D, np.zeros(D.shape[1]), batch, K, 0, np.ones((K * n, 1)), noise), level


@pytest.mark.parametrize("units", [1.0, 1e-5, 1e5])
def test_scales_are_the_minimum(units):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(5, 6, 6))
    Q, n = A @ np.swapaxes(A, 1, 2) + 0.1 * np.eye(6), rng.uniform(1, 50, 6)
    s = best_scales(Q * units**2, n) * units
    for j in range(5):
        found = minimize(
            lambda u, j=j: 0.5 * np.exp(u) @ Q[j] @ np.exp(u) - n @ u, np.zeros(6), tol=1e-12
        )
        np.testing.assert_allclose(s[j], np.exp(found.x), rtol=1e-4)


def test_the_likelihood_is_least_and_its_curvature_is_the_covariance():
    at, _ = stacked(np.random.default_rng(1))
    found = solve(at, FREE)
    red, n = reduce(at), found.n_eff[0]

    def loss(u, j):
        s = np.exp(np.append(0.0, u))
        return 0.5 * n.sum() * np.log(s @ red.Q[j] @ s) - n[1:] @ u

    maps = maps_of(at, found)
    for j in range(3):
        u = np.log(found.s[j, 1:])
        best = minimize(loss, np.zeros(3), args=(j,), tol=1e-12)
        assert loss(u, j) == pytest.approx(best.fun, abs=1e-7)
        step, H = 1e-4, np.empty((3, 3))
        for a in range(3):
            for b in range(3):
                e, f = step * np.eye(3)[a], step * np.eye(3)[b]
                corners = loss(u + e + f, j) - loss(u + e - f, j) - loss(u - e + f, j)
                H[a, b] = (corners + loss(u - e - f, j)) / (4 * step**2)
        widen = found.dof / (found.dof - 2)
        heavy = pulled((shape(at, found)[0] - 1) / 2, found.dof)
        expected = np.linalg.inv(H) * widen * heavy[j]
        np.testing.assert_allclose(maps.cov_log[j], expected, rtol=1e-3)


@pytest.mark.parametrize("near", [None, np.ones((1, 3))])
def test_constant_features_have_finite_scales(near):
    with np.errstate(all="raise"):
        assert np.isfinite(
            best_scales(np.zeros((1, 3, 3)), np.array([50.0, 12.0, 44.0]), near)
        ).all()


def test_cells_tell_what_rows_do():
    at, level = stacked(np.random.default_rng(2))
    rows = solve(at, FREE)
    stats = GroupedMoments(12, 3)
    stats.update(at.X, at.batch * 3 + level)
    X, counts, cell = nodes(stats, np.zeros(3), np.ones(3))
    noise = NoiseModel.of_levels(cell % 3, 3, False)
    where = np.zeros(0), cell // 3, 4, 0, counts, noise
    cells = Stacked(X, None, *where)
    found = solve(cells, FREE)
    np.testing.assert_allclose(found.s, rows.s, rtol=1e-9)
    np.testing.assert_allclose(found.sigma2, rows.sigma2, rtol=1e-9)
    np.testing.assert_allclose(shape(cells, found)[0], shape(at, rows)[0], rtol=1e-9)
    a, b = maps_of(cells, found), maps_of(at, rows)
    for name in ("scale", "centre", "image", "cov_log", "cov_image"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-6, atol=1e-9)


def as_maps(d, S):
    """Return shifts alone, in standard deviations of residuals."""
    zero = np.zeros(d.shape)
    return Maps(zero + 1, zero, d, 0 * S, S, np.ones(len(d)), float(len(d)))


def test_effects_are_pulled_towards_each_other():
    rng = np.random.default_rng(0)
    p, K = 400, 6
    effect = 0.5 * rng.normal(size=(p, K))
    truth = effect[:, 1:] - effect[:, :1]
    noise = 0.4 * rng.normal(size=(p, K))
    d = truth + noise[:, 1:] - noise[:, :1]
    S = np.broadcast_to(0.16 * (np.eye(K - 1) + 1), (p, K - 1, K - 1))
    found = posterior_of(as_maps(d, S))
    mean, var = found.image, found.var_image
    # the best there is: of each effect the share .25 / (.25 + .16)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.82 * np.sqrt(np.mean((d - truth) ** 2))
    assert np.mean((mean - truth) ** 2) == pytest.approx(var.mean(), rel=0.15)
    assert (found.differs > 0.99).all()
    far = d.copy()
    far[0] += 50.0
    assert np.abs(posterior_of(as_maps(far, S)).image[0] - far[0]).max() < 0.3


def test_one_device_given_the_others_is_the_posterior_of_all_at_once():
    """Of normal effects of known size, against the algebra of all differences together."""
    rng = np.random.default_rng(4)
    p, k, size = 7, 4, 0.6
    root = rng.normal(size=(p, k, k))
    S = root @ np.swapaxes(root, 1, 2) / k + 0.1 * np.eye(k)
    d = rng.normal(size=(p, k))
    one = np.ones(1)
    effects = _Effects(d, S, np.ones((p, k), dtype=bool), _Sizes(size * one, size**2, one))
    effects.consider_others()
    kept = size**2 / (size**2 + effects.c)
    square = kept * effects.c + (kept * effects.x) ** 2
    effects.learn(np.stack([kept * effects.x, square, kept]))
    mean, variance = effects.result()
    prior = size**2 * (np.eye(k) + 1)
    total = np.linalg.inv(S + prior)
    np.testing.assert_allclose(mean, np.einsum("bc,dce,de->db", prior, total, d), rtol=1e-9)
    expected = np.diag(prior) - np.einsum("bc,dce,eb->db", prior, total, prior)
    np.testing.assert_allclose(variance, expected, rtol=1e-9)
    # the reference's own effect
    reference = np.einsum("dbc,dc->d", total, d) * -(size**2)
    np.testing.assert_allclose((kept * effects.x)[:, k], reference, rtol=1e-9)


def test_only_the_batch_that_differs_is_moved():
    rng = np.random.default_rng(5)
    p, K = 50, 5
    noise = 0.15 * rng.normal(size=(p, K))
    d = noise[:, 1:] - noise[:, :1]
    d[:, 2] += rng.normal(size=p)
    S = np.broadcast_to(0.15**2 * (np.eye(K - 1) + 1), (p, K - 1, K - 1))
    found = posterior_of(as_maps(d, S))
    assert found.differs[2] > 0.99
    assert np.delete(found.differs, 2).max() < 0.5
    assert np.sqrt(np.mean(np.delete(found.image, 2, axis=1) ** 2)) < 0.05
    assert np.sqrt(np.mean((found.image[:, 2] - d[:, 2]) ** 2)) < 0.15


def test_cells_with_heavy_tails_are_fitted_by_their_moments():
    rng = np.random.default_rng(3)
    at, level = stacked(rng, n=400)
    at.X += 2 * rng.standard_t(3, at.X.shape)
    stats = GroupedMoments(12, 3)
    stats.update(at.X, at.batch * 3 + level)
    X, counts, cell = nodes(stats, np.zeros(3), np.ones(3))
    where = np.zeros(0), cell // 3, 4, 0, counts, NoiseModel.of_levels(cell % 3, 3, False)
    cells = Stacked(X, None, *where)
    found, plain = solve(cells, FREE), solve(at, FREE)
    np.testing.assert_allclose(found.s, plain.s, rtol=1e-9)
    heavy = (shape(at, plain)[0] - 1) / 2
    assert (heavy > 2).all()
    variance = maps_of(cells, found).cov_log[:, 0, 0]
    normal = maps_of(at, replace(plain, e=np.where(plain.e > 0, 1.0, -1.0) * plain.sigma2**0.5))
    believed = pulled(heavy, found.dof)
    np.testing.assert_allclose(variance, normal.cov_log[:, 0, 0] * believed, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_cells_project_as_columns_do(weighted):
    rng = np.random.default_rng(3)
    at, level = stacked(rng, K=3, L=4, n=25)
    precision = rng.uniform(0.2, 4, at.X.shape) if weighted else None
    cells = Stacked(at.X, None, np.zeros(0), at.batch, 3, 0, at.counts, at.noise)
    found = reduce(cells, precision)
    for j in range(at.X.shape[1]):
        w = np.ones(75) if precision is None else precision[:, j]
        hat = at.D @ np.linalg.inv((at.D.T * w) @ at.D) @ (at.D.T * w)
        own = j if weighted else 0
        np.testing.assert_allclose(found.h[:, own], np.minimum(np.diag(hat), 0.8), rtol=1e-9)
        n_eff = [25 - np.diag(hat)[at.batch == b].sum() for b in range(3)]
        np.testing.assert_allclose(found.n_eff[own], n_eff, rtol=1e-9)
        parts = at.X[:, [j]] * (at.batch[:, None] == np.arange(3))
        Q = parts.T @ (w[:, None] * (parts - hat @ parts))
        np.testing.assert_allclose(found.Q[j], Q, rtol=1e-7, atol=1e-9)
    assert len(np.unique(level)) == 4
