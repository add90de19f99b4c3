"""The pooled estimator: closed forms, agreement of its paths, equivariance, awkward data."""

import numpy as np
import pytest
from reading import from_pair
from scipy.optimize import minimize, minimize_scalar

from condokit.compare.comparison import compare
from condokit.law.design import best_scale
from condokit.law.estimate import fit_law
from condokit.law.noise import NoiseModel
from condokit.law.posterior import posterior
from condokit.law.stacked import Stacked, solve
from condokit.law.weights import degrees_of_freedom
from condokit.summaries.rows import Rows


def read(x, q, Z=None, category=None, weights=None, groups=None, has_scale=True):
    """Read rows as an adapter does."""
    columns = [] if Z is None else list(np.asarray(Z).T)
    if category is not None:
        columns.append(np.asarray([f"level {k}" for k in category], dtype=object))
    confounders = [None, None]
    if columns:
        import pandas as pd

        frame = pd.DataFrame({f"z{k}": c for k, c in enumerate(columns)})
        confounders = [frame[q], frame[~q]]
    pairs = [None if v is None else (v[q], v[~q]) for v in (weights, groups)]
    domains = from_pair(x[q], x[~q], *confounders, pairs[1], pairs[0], None, "raise")
    return Rows.read(domains, compare(domains, by_rows=True, quiet=True), has_scale)


def pooled(x, q, has_scale=True, **given):
    """Fit the plain map."""
    return fit_law(read(x, q, has_scale=has_scale, **given), has_scale).solution()


def shrunk(found):
    return posterior(found, np.ones(len(found.scale)))[0]


def draw(seed=0, n=120, d=4, K=3, m=1.5):
    rng = np.random.default_rng(seed)
    q, k = np.arange(2 * n) < n, rng.integers(0, K, 2 * n)
    z = rng.normal(size=(2 * n, 1)) + 0.4 * q[:, None]
    x = 2 * rng.normal(size=(K, d))[k] + z + rng.normal(size=(2 * n, d))
    x[q] = (x[q] - 1) / m
    return x, q, z, k


def test_the_scale_minimises_the_profile_likelihood():
    rng = np.random.default_rng(0)
    for _ in range(20):
        root = rng.normal(size=(2, 3))
        G = (root @ root.T)[np.triu_indices(2)] * 10 ** rng.uniform(-3, 3)
        dof = rng.uniform(5, 50)
        n = rng.uniform(0.1, 0.9) * dof

        def minus_log(u, G=G, n=n, dof=dof):
            m = np.exp(u)
            return -n * u + dof / 2 * np.log(G[0] + 2 * m * G[1] + m**2 * G[2])

        best = minimize_scalar(
            minus_log, bounds=(-12, 12), method="bounded", options={"xatol": 1e-9}
        )
        assert np.log(best_scale(G[:, None], n, dof)[0]) == pytest.approx(best.x, abs=1e-5)


def test_scale_and_offset_minimise_the_marginal_likelihood():
    """Against y = y0 + m y1 + b q with penalised columns as part of its covariance."""
    rng = np.random.default_rng(0)
    n, nq, weights = 40, 15, rng.uniform(0.5, 2, 40)
    z = rng.normal(size=n)
    U = np.column_stack([np.ones(n), z, np.sin(3 * z), np.cos(3 * z), np.arange(n) < nq])
    penalty = np.array([0, 0, 2.0, 2.0, 0])
    X = (z + np.sin(3 * z) + rng.normal(size=n))[:, None]
    noise = NoiseModel.of_levels(np.zeros(n, dtype=int), 1, False)
    at = Stacked(X, U, penalty, (np.arange(n) >= nq) * 1, 2, 1, weights[:, None], noise)
    found = solve(at, np.full((1, 2), np.nan))
    n_eff, dof, m = found.n_eff[0, 0], weights.sum() - 3, found.s[:, 0]
    b = -np.einsum("db,bd->d", found.s, found.reduced.T[:, -1])
    C = np.linalg.inv(np.diag(1 / weights) + U[:, 2:4] @ U[:, 2:4].T / 2)
    q, free = U[:, 4], U[:, :2]
    P = C - C @ free @ np.linalg.inv(free.T @ C @ free) @ free.T @ C
    y0, y1 = np.where(q, 0, X[:, 0]), np.where(q, X[:, 0], 0)

    def minus_log(theta):
        y = y0 + np.exp(theta[0]) * y1 + theta[1] * q
        return -n_eff * theta[0] + dof / 2 * np.log(y @ P @ y)

    best = minimize(minus_log, [0.0, 0.0], options={"gtol": 1e-9})
    assert np.log(m[0]) == pytest.approx(best.x[0], abs=1e-5)
    assert b[0] == pytest.approx(best.x[1], abs=1e-5)


@pytest.mark.parametrize("nu", [2.5, 5.0, np.inf])
def test_degrees_of_freedom_come_from_the_data(nu):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)) if np.isinf(nu) else rng.standard_t(nu, (4000, 3))
    found = degrees_of_freedom(x**2, np.ones((4000, 1)))
    assert (found >= 12).all() if np.isinf(nu) else (np.abs(np.log(found / nu)) < 0.3).all()


def same(a, b, tol=1e-6):
    for name in ("scale", "centre", "image", "se_log_scale", "se_image"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=tol, atol=tol)


def test_moments_and_rows_agree():
    x, q, _, k = draw()
    a = pooled(x, q, category=k)
    b = pooled(x, q, category=k, groups=np.arange(len(x)))  # every row a subject
    np.testing.assert_allclose(a.scale, b.scale, rtol=1e-4)
    np.testing.assert_allclose(a.image, b.image, atol=1e-3)
    np.testing.assert_allclose(a.se_log_scale, b.se_log_scale, rtol=2e-2)


@pytest.mark.parametrize("kind", ["none", "category", "continuous", "mixed", "subjects"])
@pytest.mark.parametrize("tails", [False, True])
def test_plain_is_equivariant_and_order_free(kind, tails):
    x, q, z, k = draw(1)
    if tails:
        x = x + np.random.default_rng(5).standard_t(2, x.shape)
    args = {
        "none": {},
        "category": {"category": k},
        "continuous": {"Z": z},
        "mixed": {"Z": z, "category": k},
        "subjects": {"Z": z, "groups": np.arange(len(x)) // 3},
    }[kind]
    a = pooled(x, q, **args)
    y = x * 7 + 100
    b = pooled(y, q, **args)
    np.testing.assert_allclose(b.scale, a.scale, rtol=1e-6)
    np.testing.assert_allclose(b.image, 7 * a.image + 100, rtol=1e-6)
    y = np.where(q[:, None], 1000 * x, x)
    c = pooled(y, q, **args)
    np.testing.assert_allclose(1000 * c.scale, a.scale, rtol=1e-6)
    order = np.random.default_rng(2).permutation(len(x))
    moved = {n: v[order] if isinstance(v, np.ndarray) else v for n, v in args.items()}
    same(a, pooled(x[order], q[order], **moved), 1e-5)
    s = shrunk(a)
    t = shrunk(c)
    np.testing.assert_allclose(1000 * t.scale, s.scale, rtol=0.05)


def test_weights_count_rows():
    x, q, z, k = draw(2, n=60)
    twice = np.r_[np.arange(len(x)), np.arange(len(x))]
    for args in ({"category": k}, {"Z": z}):
        doubled = {n: v[twice] for n, v in args.items()}
        a = pooled(x, q, weights=np.full(len(x), 2.0), **args)
        b = pooled(x[twice], q[twice], **doubled)
        np.testing.assert_allclose(a.scale, b.scale, rtol=1e-4)
        np.testing.assert_allclose(a.se_image, b.se_image, rtol=0.05)


def test_rare_discrete_and_constant_features():
    rng = np.random.default_rng(0)
    n = 200
    q, z = np.arange(2 * n) < n, rng.normal(size=(2 * n, 1))
    x = np.column_stack(
        [
            rng.uniform(size=2 * n) < 0.97,
            rng.poisson(0.05, 2 * n),
            rng.poisson(3, 2 * n),
            np.ones(2 * n),
            np.where(q, 1.0, rng.normal(size=2 * n)),
            np.round(rng.normal(size=2 * n), 1),
        ]
    ).astype(float)
    for args in ({"Z": z}, {"category": (z[:, 0] > 0).astype(int)}):
        f = pooled(x, q, **args)
        s = shrunk(f)
        np.testing.assert_array_equal(f.law["discrete"], [True, False, False, False, False, False])
        np.testing.assert_array_equal(f.law["mostly_zero"], np.arange(6) == 1)
        np.testing.assert_allclose(f.scale[[0, 3, 4]], 1.0)
        assert (f.scale[[1, 2, 5]] != 1).all()
        np.testing.assert_array_equal(s.image[1] - s.scale[1] * s.centre[1], 0.0)
        assert np.isfinite(s.image).all()
        assert np.isfinite(s.se_image).all()
        assert (np.abs(np.log(s.scale)) < np.log(3)).all()


@pytest.mark.parametrize("p", [0, 1, 8, 32])
@pytest.mark.parametrize(("nq", "nr"), [(2, 7), (5, 5), (8, 7), (14, 14)])
def test_few_rows_do_not_explode(p, nq, nr):
    rng = np.random.default_rng(p + nq)
    x, q = rng.normal(size=(nq + nr, 50)), np.arange(nq + nr) < nq
    f = pooled(x, q, Z=rng.normal(size=(nq + nr, p)) if p else None)
    s = shrunk(f)
    for value in (s.scale, s.image, s.se_image, s.se_log_scale):
        assert np.isfinite(value).all()
    assert s.scale.max() < 3
    assert s.scale.min() > 1 / 3
    assert np.abs(s.image - s.centre).max() < 4


def test_shift_alone():
    x, q, z, k = draw(3)
    for args in ({"Z": z}, {"category": k}):
        f = pooled(x, q, has_scale=False, **args)
        np.testing.assert_allclose(f.scale, 1.0)
        assert (f.se_log_scale == 0).all()
