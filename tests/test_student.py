"""The pooled estimator: agreement of its paths, equivariance, and data as users have them."""

import numpy as np
import pytest
from student.estimate import fit_pooled
from student.priors import shrink


def draw(seed=0, n=120, d=4, K=3, m=1.5):
    rng = np.random.default_rng(seed)
    q, k = np.arange(2 * n) < n, rng.integers(0, K, 2 * n)
    z = rng.normal(size=(2 * n, 1)) + 0.4 * q[:, None]
    x = 2 * rng.normal(size=(K, d))[k] + z + rng.normal(size=(2 * n, d))
    x[q] = (x[q] - 1) / m
    return x, q, z, k


def same(a, b, tol=1e-6):
    for name in ("scale", "centre", "image", "se_log_scale", "se_image"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=tol, atol=tol)


def test_moments_and_rows_agree():
    x, q, _, k = draw()
    a = fit_pooled(x, q, None, k, 3)
    b = fit_pooled(x, q, None, k, 3, groups=np.arange(len(x)))  # every row a subject
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
        "category": {"category": k, "n_categories": 3},
        "continuous": {"Z": z},
        "mixed": {"Z": z, "category": k, "n_categories": 3},
        "subjects": {"Z": z, "groups": np.arange(len(x)) // 3},
    }[kind]
    a = fit_pooled(x, q, **args)
    y = x * 7 + 100
    b = fit_pooled(y, q, **args)
    np.testing.assert_allclose(b.scale, a.scale, rtol=1e-6)
    np.testing.assert_allclose(b.image, 7 * a.image + 100, rtol=1e-6)
    y = np.where(q[:, None], 1000 * x, x)
    c = fit_pooled(y, q, **args)
    np.testing.assert_allclose(1000 * c.scale, a.scale, rtol=1e-6)
    order = np.random.default_rng(2).permutation(len(x))
    moved = {n: v[order] if isinstance(v, np.ndarray) else v for n, v in args.items()}
    same(a, fit_pooled(x[order], q[order], **moved), 1e-5)
    s = shrink(a)
    t = shrink(c)
    np.testing.assert_allclose(1000 * t.scale, s.scale, rtol=0.05)


def test_weights_count_rows():
    x, q, z, k = draw(2, n=60)
    twice = np.r_[np.arange(len(x)), np.arange(len(x))]
    for args in ({"category": k, "n_categories": 3}, {"Z": z}):
        doubled = {n: v[twice] if isinstance(v, np.ndarray) else v for n, v in args.items()}
        a = fit_pooled(x, q, weights=np.full(len(x), 2.0), **args)
        b = fit_pooled(x[twice], q[twice], **doubled)
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
    for args in ({"Z": z}, {"category": (z[:, 0] > 0).astype(int), "n_categories": 2}):
        f = fit_pooled(x, q, **args)
        s = shrink(f)
        assert f.shift_only[[0, 1, 3, 4]].all()
        assert not f.shift_only[[2, 5]].any()
        np.testing.assert_allclose(s.scale[f.shift_only], 1.0)
        assert np.isfinite(s.image).all()
        assert np.isfinite(s.se_image).all()
        assert (np.abs(np.log(s.scale)) < np.log(3)).all()


@pytest.mark.parametrize("p", [0, 1, 8, 32])
@pytest.mark.parametrize(("nq", "nr"), [(2, 7), (5, 5), (8, 7), (14, 14)])
def test_few_rows_do_not_explode(p, nq, nr):
    rng = np.random.default_rng(p + nq)
    x, q = rng.normal(size=(nq + nr, 50)), np.arange(nq + nr) < nq
    f = fit_pooled(x, q, rng.normal(size=(nq + nr, p)))
    s = shrink(f)
    for value in (s.scale, s.image, s.se_image, s.se_log_scale):
        assert np.isfinite(value).all()
    assert s.scale.max() < 3
    assert s.scale.min() > 1 / 3
    assert np.abs(s.image - s.centre).max() < 4


def test_shift_alone():
    x, q, z, k = draw(3)
    for args in ({"Z": z}, {"category": k, "n_categories": 3}):
        f = fit_pooled(x, q, has_scale=False, **args)
        np.testing.assert_allclose(f.scale, 1.0)
        assert (f.se_log_scale == 0).all()
