"""Kernel densities, the product prior of continuous confounders, and the kernel smoother."""

import numpy as np
import pytest
from protocols import EFFECTS, continuous1d, mixed, rmse

from condokit import Chained, ConDoAdapter, KernelSmoother, ProductPrior, Splines
from condokit.compare import kernels as kernels_module
from condokit.data.kernels import column_widths, density, likelihood_factor, rbf_delta
from condokit.data.covariates import Covariates


def points(Z, category=None, n_categories=1):
    Z = np.asarray(Z, float).reshape(len(Z), -1)
    return Covariates(Z, np.zeros(len(Z), int) if category is None else category, n_categories)


def test_rbf_times_delta_agrees_with_a_loop():
    rng = np.random.default_rng(0)
    left = points(rng.normal(size=(5, 2)), np.array([0, 1, 0, 1, 1]), 2)
    right = points(rng.normal(size=(4, 2)), np.array([0, 0, 1, 1]), 2)
    width = np.array([0.5, 2.0])
    K = rbf_delta(left, right, width)
    for i in range(5):
        for j in range(4):
            square = (((left.Z[i] - right.Z[j]) / width) ** 2).sum()
            same = left.category[i] == right.category[j]
            assert K[i, j] == pytest.approx(np.exp(-square / 2) * same)


def test_the_binned_density_is_the_direct_one(monkeypatch):
    rng = np.random.default_rng(0)
    at, data = points(rng.normal(size=500)), points(rng.normal(size=3000) * 1.5)
    width = column_widths(data)
    direct = density(at, data, width, None)
    monkeypatch.setattr(kernels_module, "_MOST_ELEMENTS", 1000)
    binned = density(at, data, width, None)
    np.testing.assert_allclose(binned, direct, atol=1e-4 * direct.max())


def test_densities_of_large_data_need_no_large_matrix():
    import tracemalloc

    rng = np.random.default_rng(0)
    for columns in (1, 3):
        data = points(rng.normal(size=(200_000, columns)))
        tracemalloc.start()
        values = density(data.take(slice(0, 1000)), data, column_widths(data), None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 150e6
        assert (values > 0).all()


def test_product_weights_agree_with_a_loop_written_from_the_definition():
    rng = np.random.default_rng(0)
    z = rng.normal(size=30)
    is_query = np.arange(30) < 12
    rows, weights = ProductPrior().points(points(z), is_query)
    h = [column_widths(points(z[side]))[0] for side in (is_query, ~is_query)]

    def f(x, side):
        return np.mean(np.exp(-0.5 * ((x - z[is_query == (side == 0)]) / h[side]) ** 2))

    expected = np.array([f(z[i], 1) if is_query[i] else f(z[i], 0) for i in rows])
    expected[is_query[rows]] /= 2 * expected[is_query[rows]].sum()
    expected[~is_query[rows]] /= 2 * expected[~is_query[rows]].sum()
    np.testing.assert_allclose(weights, expected)
    rows, paper = ProductPrior("paper").points(points(z), is_query)
    product = np.array([f(z[i], 0) * f(z[i], 1) for i in rows])
    np.testing.assert_allclose(paper, product / product.sum())


def left_out_likelihood(data, width):
    """Mean log-density of every row, from the other rows, in a loop over rows."""
    total = 0.0
    for i in range(len(data.Z)):
        others = np.delete(np.arange(len(data.Z)), i)
        square = (((data.Z[others] - data.Z[i]) / width) ** 2).sum(axis=1)
        same = data.category[others] == data.category[i]
        total += np.log(max((np.exp(-square / 2) * same).sum(), 1e-12))
    return total / len(data.Z) - np.log(width).sum()


@pytest.mark.parametrize("shape", ["normal", "uniform", "two bumps", "plane", "categories"])
def test_the_likeliest_bandwidth_is_that_of_a_search_by_brute_force(shape):
    rng = np.random.default_rng(0)
    category = None
    Z = rng.normal(size=(120, 2 if shape == "plane" else 1))
    if shape == "uniform":
        Z = rng.uniform(size=(120, 1))
    if shape == "two bumps":
        Z = 0.1 * Z + np.repeat([[0.0], [3.0]], 60, axis=0)
    if shape == "categories":
        category = np.arange(120) % 3
    data = points(Z, category, 3 if shape == "categories" else 1)
    width = column_widths(data)
    found = left_out_likelihood(data, likelihood_factor(data, width) * width)
    tried = [left_out_likelihood(data, f * width) for f in np.geomspace(1 / 32, 4, 60)]
    assert found > max(tried) - 1e-3
    if shape == "two bumps":  # Silverman's is far too wide
        assert found > left_out_likelihood(data, width) + 0.5


def test_bandwidths_by_likelihood_in_the_prior():
    rng = np.random.default_rng(0)
    z = np.r_[0.1 * rng.normal(size=100), 3 + 0.1 * rng.normal(size=100), rng.normal(size=200)]
    is_query = np.arange(400) < 200
    sides = [points(z[side]) for side in (is_query, ~is_query)]
    factors = [likelihood_factor(side, column_widths(side)) for side in sides]
    assert factors[0] < 0.3 < factors[1]
    _, chosen = ProductPrior(bandwidth="likelihood").points(points(z), is_query)
    f_query, f_reference = (
        density(points(z), side, factor * column_widths(side), None)
        for side, factor in zip(sides, factors)
    )
    expected = np.where(is_query, f_reference, f_query)
    for side in (is_query, ~is_query):
        expected[side] /= 2 * expected[side].sum()
    np.testing.assert_allclose(chosen, expected)
    many = points(np.tile(sides[0].Z, (100, 1)) + 0.01 * rng.normal(size=(20_000, 1)))
    assert likelihood_factor(many, column_widths(many)) < 0.3
    with pytest.raises(ValueError, match="kernel of your own"):
        ProductPrior(kernel=lambda a, b: a, bandwidth="likelihood").points(points(z), is_query)


def test_weights_vanish_outside_the_overlap():
    z = np.r_[np.linspace(0, 1, 50), np.linspace(0.5, 9, 50)]
    rows, weights = ProductPrior().points(points(z), np.arange(100) < 50)
    assert weights[z[rows] > 2].sum() < 1e-6


def test_local_linear_means_reproduce_a_line():
    rng = np.random.default_rng(0)
    rows = points(rng.uniform(size=(80, 2)))
    line = 1 + rows.Z @ np.array([[2.0, 0.0], [-3.0, 1.0]])
    at = points(rng.uniform(0.2, 0.8, size=(10, 2)))
    moments = KernelSmoother(bandwidth=1.0).moments_at(line, rows, at)
    exact = 1 + at.Z @ np.array([[2.0, 0.0], [-3.0, 1.0]])
    np.testing.assert_allclose(moments.mean, exact, atol=5e-3)


@pytest.mark.parametrize("columns", [1, 2])
def test_local_lines_agree_with_weighted_least_squares(columns):
    rng = np.random.default_rng(0)
    rows, at = points(rng.normal(size=(60, columns))), points(rng.normal(size=(5, columns)))
    X = rng.normal(size=(60, 40)) + 1e6  # many features take another way than few
    for n_features in (1, 40):
        smoother = KernelSmoother(bandwidth=1.5)
        moments = smoother.moments_at(X[:, :n_features], rows, at)
        K = rbf_delta(at, rows, 1.5 * column_widths(rows))
        for i in range(5):
            root = np.sqrt(K[i] / K[i].sum())[:, None]
            middle = root.T**2 @ rows.Z
            design = np.column_stack([np.ones(60), rows.Z - middle])
            spread = ((root * (rows.Z - middle)) ** 2).sum() / columns
            ridge = np.sqrt(1e-3 * spread) * np.eye(columns + 1)[1:]
            left = np.vstack([root * design, ridge])
            right = np.vstack([root * X[:, :n_features], np.zeros((columns, n_features))])
            beta = np.linalg.lstsq(left, right, rcond=None)[0]
            line = np.r_[1, (at.Z[i] - middle[0])] @ beta
            np.testing.assert_allclose(moments.mean[i] - 1e6, line - 1e6, atol=1e-6)


@pytest.mark.parametrize("columns", [0, 1])
def test_rare_categories_borrow_the_spread_of_all(columns):
    rng = np.random.default_rng(0)
    category = np.repeat([0, 1, 2], [60, 60, 1])
    Z = rng.normal(size=(121, columns))
    Z[-1] = 0.0
    X = (5.0 * category + rng.normal(size=121))[:, None]
    at = points(np.zeros((3, columns)), np.arange(3), 3)
    moments = KernelSmoother().moments_at(X, points(Z, category, 3), at)
    np.testing.assert_allclose(np.sqrt(moments.var[:, 0]), 1, atol=0.3)
    assert moments.mean[2, 0] == pytest.approx(10, abs=3)


def test_the_bandwidth_follows_the_curve():
    """Wide for a line, narrow for waves: better than either fixed at both."""
    rng = np.random.default_rng(0)
    z = rng.uniform(-1.7, 1.7, 300)
    at = points(np.linspace(-1.5, 1.5, 50))
    errors = {None: [], 2.0: [], 0.25: []}
    for f in (lambda z: z, lambda z: np.sin(12 * z)):
        X = (f(z) + 0.3 * rng.normal(size=300))[:, None]
        for bandwidth, error in errors.items():
            moments = KernelSmoother(bandwidth).moments_at(X, points(z), at)
            error.append(rmse(moments.mean, f(at.Z)))
    assert errors[None][0] < 0.8 * errors[0.25][0]
    assert errors[None][1] < 0.8 * errors[2.0][1]


@pytest.mark.parametrize("smoother", [KernelSmoother(), Splines()], ids=repr)
def test_curve_and_spread_are_found(smoother):
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, 1500)
    X = (np.sin(3 * z) + (0.2 + 0.2 * (z > 0)) * rng.normal(size=1500))[:, None]
    at = points(np.array([-0.5, 0.5]))
    moments = smoother.moments_at(X, points(z), at)
    np.testing.assert_allclose(moments.mean[:, 0], np.sin([-1.5, 1.5]), atol=0.06)
    np.testing.assert_allclose(np.sqrt(moments.var[:, 0]), [0.2, 0.4], rtol=0.2)


@pytest.mark.parametrize("columns", [1, 2, 6])
@pytest.mark.parametrize(
    "smoother", [KernelSmoother(), KernelSmoother(0.7), Splines()], ids=["kernel", "0.7", "splines"]
)
def test_weights_are_repeated_rows(smoother, columns):
    rng = np.random.default_rng(0)
    Z, category = rng.normal(size=(60, columns)), rng.integers(0, 2, 60)
    X = np.column_stack([np.sin(2 * Z[:, 0]) + category, Z[:, 0] ** 2]) + rng.normal(size=(60, 2))
    times = rng.integers(1, 4, 60)
    weighted = Covariates(Z, category, 2, weights=times.astype(float))
    repeated = points(Z.repeat(times, axis=0), category.repeat(times), 2)
    at = points(rng.normal(size=(9, columns)), np.arange(9) % 2, 2)
    one = smoother.moments_at(X, weighted, at)
    two = smoother.moments_at(X.repeat(times, axis=0), repeated, at)
    for name in ("mean", "var", "count"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-6)
    plain = smoother.moments_at(X, points(Z, category, 2), at)
    assert np.abs(plain.mean - one.mean).max() > 0.01


def test_weights_are_repeated_rows_in_densities(monkeypatch):
    rng = np.random.default_rng(0)
    z, times = rng.normal(size=200), rng.integers(1, 4, 200)
    weighted = Covariates(z[:, None], np.zeros(200, int), 1, weights=times.astype(float))
    repeated = points(z.repeat(times))
    width = column_widths(repeated)
    np.testing.assert_allclose(column_widths(weighted), width)
    assert likelihood_factor(weighted, width) == pytest.approx(likelihood_factor(repeated, width))
    at = points(rng.normal(size=50))
    direct = density(at, repeated, width, None)
    np.testing.assert_allclose(density(at, weighted, width, None), direct)
    monkeypatch.setattr(kernels_module, "_MOST_ELEMENTS", 1000)
    np.testing.assert_allclose(density(at, weighted, width, None), direct, atol=1e-4 * direct.max())
    spread = times / times.sum() @ z
    monkeypatch.setattr(kernels_module, "_MOST_CENTRES", 100)
    plane = Covariates(np.column_stack([z, z]), weighted.category, 1, weights=weighted.weights)
    few = density(plane, plane, np.ones(2), None)
    assert np.isfinite(few).all()
    assert np.average(z[weighted.thinned(100)]) == pytest.approx(spread, abs=0.1)


@pytest.mark.parametrize("prior", ["product", "paper", "uniform"])
@pytest.mark.parametrize("conditional", ["kernel", "splines"])
def test_maps_with_weights_are_those_of_repeated_rows(conditional, prior):
    pair = continuous1d("heteroscedastic", 2)
    times = np.random.default_rng(0).integers(1, 4, 100)
    adapter = ConDoAdapter(divergence="reverse-kl", conditional=conditional, prior=prior)
    weighted = adapter.fit_pair(
        pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference,
        sample_weight=(times, None),
    ).map_  # fmt: skip
    repeated = adapter.fit_pair(
        pair.X_query.repeat(times, axis=0), pair.X_reference,
        pair.Z_query.repeat(times, axis=0), pair.Z_reference,
    ).map_  # fmt: skip
    plain = adapter.fit_pair(pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference).map_
    rtol = 1e-6 if conditional == "kernel" else 2e-3  # confounders are in slightly other units
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=rtol)
    assert abs(plain.scale[0] / repeated.scale[0] - 1) > 2 * rtol


def test_samples_keep_the_correlations_between_features():
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, 400)
    noise = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 400)
    X = np.column_stack([z, -z]) * 3 + noise
    for smoother in (KernelSmoother(), Splines()):
        draws = smoother.sample_at(X, points(z), points(np.array([-0.5, 0.5])), 500, rng)
        assert draws.shape == (2, 500, 2)
        np.testing.assert_allclose(draws.mean(axis=1), [[-1.5, 1.5], [1.5, -1.5]], atol=0.35)
        for k in range(2):
            assert np.corrcoef(draws[k].T)[0, 1] == pytest.approx(0.8, abs=0.1)


def test_chained_imputation():
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, 400)
    X = np.column_stack([z, -z]) * 3 + 0.5 * rng.normal(size=(400, 2))
    chained = Chained(n_draws=20)
    moments = chained.moments_at(X, points(z), points(np.array([-0.5, 0.5])))
    np.testing.assert_allclose(moments.mean, [[-1.5, 1.5], [1.5, -1.5]], atol=0.5)
    np.testing.assert_array_equal(
        chained.moments_at(X, points(z), points(np.array([0.0]))).mean,
        chained.moments_at(X, points(z), points(np.array([0.0]))).mean,
    )
    errors = []
    for seed in range(3):
        pair = continuous1d("homoscedastic", seed)
        adapter = ConDoAdapter(divergence="reverse-kl", conditional="chained").fit_pair(
            pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
        )
        errors.append(rmse(adapter.transform(pair.X_heldout), pair.truth_heldout))
    assert np.mean(errors) < 2


def test_chained_imputation_names_its_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ModuleNotFoundError, match=r"condokit\[lightgbm\]"):
        Chained().moments_at(np.ones((3, 1)), points(np.arange(3)), points(np.arange(1)))


@pytest.mark.parametrize("conditional", ["kernel", "splines"])
@pytest.mark.parametrize("divergence", ["reverse-kl", "ot"])
def test_the_map_is_found_given_a_continuous_confounder(divergence, conditional):
    for effect, at_most in zip(EFFECTS, (1.0, 2.2, 1.2)):
        errors = []
        for seed in range(20):
            pair = continuous1d(effect, seed)
            adapter = ConDoAdapter(divergence=divergence, conditional=conditional).fit_pair(
                pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
            )
            errors.append(rmse(adapter.transform(pair.X_heldout), pair.truth_heldout))
        assert np.mean(errors) < at_most
    assert adapter.map_se_ is None


@pytest.mark.parametrize("conditional", ["kernel", "splines"])
def test_mixed_confounders(conditional):
    pair = mixed(0)
    adapter = ConDoAdapter(
        divergence="reverse-kl", conditional=conditional, warn_overlap=0
    ).fit_pair(pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference)
    assert rmse(adapter.transform(pair.X_heldout), pair.truth_heldout) < 1


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def test_any_kernel_on_any_objects():
    """Barcodes with reading errors: the feature depends on the barcode's letters."""
    rng = np.random.default_rng(0)
    true = ["aaaaaa", "bbbbbb", "cccccc"]

    def draw(n, shares):
        which = rng.choice(3, n, p=shares)
        names = []
        for k in which:
            letters = list(true[k])
            letters[rng.integers(6)] = rng.choice(list("abcxyz"))
            names.append("".join(letters))
        return np.array(names), np.array([0.0, 4.0, 8.0])[which] + rng.normal(size=n)

    Z_query, truth = draw(150, [0.7, 0.2, 0.1])
    Z_reference, x = draw(200, [0.1, 0.2, 0.7])

    def kernel(left, right):
        return np.array([[np.exp(-(edit_distance(a, b) ** 2)) for b in right] for a in left])

    X_query = 2 * truth[:, None] + 5
    adapter = ConDoAdapter(
        divergence="reverse-kl",
        prior=ProductPrior(kernel=kernel),
        conditional=KernelSmoother(kernel=kernel),
    ).fit_pair(X_query, x[:, None], Z_query, Z_reference)
    plain = ConDoAdapter(shrinkage=None).fit_pair(X_query, x[:, None])
    error = rmse(adapter.transform(X_query)[:, 0], truth)
    assert error < 0.5
    assert error < 0.3 * rmse(plain.transform(X_query)[:, 0], truth)
    with pytest.raises(ValueError, match="given to both prior and conditional"):
        ConDoAdapter(prior=ProductPrior(kernel=kernel)).fit_pair(
            X_query, x[:, None], Z_query, Z_reference
        )

    def wrong(left, right):
        return np.ones((2, 2))

    with pytest.raises(ValueError, match="must return a matrix of shape"):
        ConDoAdapter(
            divergence="ot",
            prior=ProductPrior(kernel=wrong),
            conditional=KernelSmoother(kernel=wrong),
        ).fit_pair(X_query, x[:, None], Z_query, Z_reference)
