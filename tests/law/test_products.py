"""Continuous confounders from products: rows that stand for them, and the fit on these."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from condokit.data.basis import RangeBasis
from condokit.data.continuous import Continuous
from condokit.data.covariates import Covariates
from condokit.data.grouped import GroupedMoments
from condokit.law import estimate
from condokit.law.estimate import Discrete, Frame, fit_law, law_of_products
from condokit.law.products import node_rows, residual_kurtosis
from condokit.law.stacked import solve
from condokit.law.weights import fit_weights

sys.path.insert(0, str(Path(__file__).parent))
from test_estimate import read  # noqa: E402

AGES = RangeBasis.of({"age": (18, 95)})


def people(seed=0, n=1500, d=4, K=3, curve=np.square, spread=0.4, m=1.5):
    """Return features, which are query rows, ages, levels: variances of levels differ."""
    rng = np.random.default_rng(seed)
    q, k = np.arange(2 * n) < n, rng.integers(0, K, 2 * n)
    age = np.clip(rng.normal(50 + 6 * q, 14, 2 * n), 18.5, 94.5)
    x = rng.normal(size=(K, d))[k] + np.outer(curve((age - 50) / 14), rng.uniform(0.5, 1.5, d))
    x += np.exp(spread * (k - (K - 1) / 2))[:, None] * rng.normal(size=x.shape)
    x[q] = (x[q] - 1) / m
    return x, q, age[:, None], k


def gathered(x, q, Z, k, basis=AGES, n_parts=1, seed=0):
    """Gather products in some order and split, merged as a tree."""
    L, order = int(k.max()) + 1, np.random.default_rng(seed).permutation(len(x))
    parts = []
    for rows in np.array_split(order, n_parts):
        part = Continuous(basis, 2 * L, x.shape[1])
        part.update(x[rows], Z[rows], (k + L * ~q)[rows])
        parts.append(part)
    while len(parts) > 1:
        parts[0].merge(parts.pop())
        parts = [*parts[1:], parts[0]]
    return parts[0]


def fit_products(rows, continuous):
    none = np.zeros(len(rows.flat), dtype=bool)
    fixed = np.column_stack([np.full(len(none), np.nan), np.ones(len(none))])
    return estimate.fit_products(rows, continuous, fixed, Discrete(none, none, none)).solution()


def test_node_rows_have_the_products_of_all_rows():
    x, q, Z, k = people()
    nodes = node_rows(gathered(x, q, Z, k).products)
    group, Phi = k + 3 * ~q, AGES(Z)
    for g in range(6):
        rows, mine = group == g, nodes.group == g
        w = nodes.counts[mine, 0]
        np.testing.assert_allclose(w.sum(), rows.sum())
        D, N = (np.column_stack([np.ones(len(P)), P]) for P in (Phi[rows], nodes.Phi[mine]))
        for A, B, a, b in ((D, D, N, N), (D, x[rows], N, nodes.X[mine])):
            exact = A.T @ B
            size = np.sqrt(np.outer((A**2).sum(0), (B**2).sum(0)))
            np.testing.assert_allclose((a.T * w) @ b / size, exact / size, atol=1e-11)
        np.testing.assert_allclose(w @ nodes.X[mine] ** 2, (x[rows] ** 2).sum(0))


def test_node_rows_have_the_kurtosis_of_residuals():
    x, q, Z, k = people(d=2)
    kurtosis = np.array([3.0, 9.0])
    nodes = node_rows(gathered(x, q, Z, k).products, kurtosis)
    D = np.column_stack([np.ones(len(nodes.X)), nodes.Phi])
    for j, g in ((0, 0), (1, 0), (0, 4), (1, 4)):
        w, mine = nodes.counts[:, j] * (nodes.group == g), nodes.group == g
        theta = np.linalg.lstsq(np.sqrt(w)[:, None] * D, np.sqrt(w) * nodes.X[:, j], rcond=None)[0]
        e = (nodes.X[:, j] - D @ theta)[mine]
        second, fourth = (w[mine] @ e**p / w.sum() for p in (2, 4))
        assert fourth / second**2 == pytest.approx(kurtosis[j])


@pytest.mark.parametrize("tails", [False, True])
def test_heavy_tails_are_told_from_curves(tails):
    rng, found = np.random.default_rng(0), []
    for seed in range(10):
        x, q, Z, k = people(seed, n=2500)
        x += 2 * rng.standard_t(3, x.shape) if tails else 0.0
        stats = GroupedMoments(6, 4)
        stats.update(x, k + 3 * ~q)
        found.append(residual_kurtosis(stats, gathered(x, q, Z, k))[1])
    assert np.mean(found) > 0.8 if tails else not np.any(found)


@pytest.mark.parametrize("n_parts", [1, 7, 40])
@pytest.mark.parametrize(("curve", "K"), [(np.square, 3), (lambda t: t, 1), (np.cos, 2)])
def test_the_fit_is_that_of_all_rows_with_the_same_columns(curve, K, n_parts):
    x, q, Z, k = people(curve=curve, K=K)
    rows = read(x, q, Z=Z, category=k)
    continuous = gathered(x, q, Z, k, n_parts=n_parts, seed=n_parts)
    products = continuous.products
    free = np.column_stack([np.full(4, np.nan), np.ones(4)])
    number, units = estimate.together_of(rows, products), (rows.mean, rows.unit)
    law, _ = law_of_products(continuous, units, ~rows.flat, free, number)
    found = fit_products(rows, continuous)
    law.frame = Frame(Covariates(AGES(Z), k, K), (~q).astype(int), 2, 1)
    law.noise = type(law.noise).of_levels(k, K, law.noise.levels)
    all_rows = law.stacked((x - rows.mean[(~q) * 1]) / rows.unit[(~q) * 1])
    exact = solve(all_rows, free)
    if K > 1:
        exact = fit_weights(all_rows, exact, free, np.zeros(4, bool), law.n_effective)
    np.testing.assert_allclose(found.scale * rows.unit[0] / rows.unit[1], exact.s[:, 0], rtol=1e-8)
    T = exact.reduced.T[:, -1]
    np.testing.assert_allclose(found.centre, rows.mean[0] + T[0] * rows.unit[0], atol=1e-8)
    np.testing.assert_allclose(found.image, rows.mean[1] - T[1] * rows.unit[1], atol=1e-8)


@pytest.mark.parametrize("spread", [0.0, 0.4])
@pytest.mark.parametrize("curve", [np.zeros_like, lambda t: t])
def test_lines_are_those_of_the_fit_on_rows(curve, spread):
    x, q, Z, k = people(curve=curve, spread=spread)
    rows = read(x, q, Z=Z, category=k)
    one, other = fit_products(rows, gathered(x, q, Z, k)), fit_law(rows, True).solution()
    np.testing.assert_allclose(one.scale, other.scale, rtol=1e-6)
    np.testing.assert_allclose(one.offset, other.offset, atol=1e-6)
    np.testing.assert_allclose(one.se_log_scale, other.se_log_scale, rtol=0.1)
    np.testing.assert_allclose(one.se_image, other.se_image, rtol=0.02)


@pytest.mark.parametrize("curve", [np.square, lambda t: np.exp(t / 2), lambda t: np.sin(2 * t)])
def test_curves_are_those_of_the_fit_on_rows_within_a_tenth_of_an_error(curve):
    away = []
    for seed in range(4):
        x, q, Z, k = people(seed, curve=curve)
        rows = read(x, q, Z=Z, category=k)
        one, other = fit_products(rows, gathered(x, q, Z, k)), fit_law(rows, True).solution()
        away.append(np.log(one.scale / other.scale) / other.se_log_scale)
        image = one.image + one.scale * (other.centre - one.centre)
        away.append((image - other.image) / other.se_image)
        assert one.law["mean"] == ["curve 0"]
    assert np.sqrt(np.mean(np.square(away))) < 0.1
    assert np.abs(away).max() < 0.25


def test_features_with_gaps_are_fitted_from_the_rows_that_have_them():
    x, q, Z, k = people(d=3)
    gone = np.random.default_rng(2).random(len(x)) < 0.3
    whole = fit_products(read(x, q, Z=Z, category=k), gathered(x, q, Z, k))
    rows = read(x, q, Z=Z, category=k)
    known = [v[~gone] for v in (x[:, [1]], q, Z, k)]
    own = read(known[0], known[1], Z=known[2], category=known[3])
    x[gone, 1] = np.nan
    for table, part in ((rows.mean, own.mean), (rows.unit, own.unit)):
        table[:, 1] = part[:, 0]
    found = fit_products(rows, gathered(x, q, Z, k, n_parts=5))
    alone = fit_products(own, gathered(*known))
    np.testing.assert_allclose(found.scale[1], alone.scale[0], rtol=1e-9)
    np.testing.assert_allclose(found.offset[1], alone.offset[0], rtol=1e-8)
    np.testing.assert_allclose(found.scale[[0, 2]], whole.scale[[0, 2]], rtol=1e-2)


def test_a_basis_is_the_same_after_a_file_and_refuses_what_is_out_of_its_range():
    again = RangeBasis.from_dict(json.loads(json.dumps(AGES.to_dict())))
    ages = np.linspace(18, 95, 50)[:, None]
    assert again == AGES
    np.testing.assert_array_equal(again(ages), AGES(ages))
    with pytest.raises(
        ValueError, match=r"2 values of 'age' .* range 18 to 95 .0 missing, 1 below, 1 above"
    ):
        AGES(np.array([[17.0], [40.0], [96.0]]))


def test_a_basis_of_two_confounders_finds_an_interaction():
    rng = np.random.default_rng(3)
    x, q, Z, k = people(curve=np.zeros_like, K=2, spread=0.0)
    Z = np.column_stack([Z, rng.uniform(0, 1, len(x)) ** (1 + q)])
    wave = ((Z[:, 0] - 50) / 14) * (Z[:, 1] - 0.5) * 4 * np.where(q, 1 / 1.5, 1)
    x += wave[:, None]
    basis = RangeBasis.of({"age": (18, 95), "dose": (0, 1)})
    found = fit_products(read(x, q, Z=Z, category=k), gathered(x, q, Z, k, basis))
    assert "products" in found.law["mean"]
    assert (np.abs(np.log(found.scale / 1.5)) < 4 * found.se_log_scale).all()
