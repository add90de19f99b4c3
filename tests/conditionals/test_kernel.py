import re
import warnings

import numpy as np
import pytest
from problems import points
from protocols import rmse

from condokit import ConDoAdapter, KernelSmoother, ProductPrior
from condokit.data.covariates import Covariates
from condokit.data.kernels import column_widths, rbf_delta, spread_points
from condokit.divergences import DIVERGENCES
from condokit.fit.fit_map import Recipe
from condokit.maps.families import MAPS


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

    Z_query, truth = draw(90, [0.7, 0.2, 0.1])
    Z_reference, x = draw(100, [0.1, 0.2, 0.7])

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
        ConDoAdapter(divergence="ot", prior=ProductPrior(kernel=kernel)).fit_pair(
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


def words(rng, n, shares):
    """Return words, and features that follow how many of their letters are c or g."""
    Z = np.array(["".join(w) for w in rng.choice(list("acgt"), (n, 6), p=shares)], dtype=object)
    count = np.array([word.count("c") + word.count("g") for word in Z])
    return np.column_stack([count, -0.5 * count]) + rng.exponential(size=(n, 2)), Z


def alike(left, right):
    one, other = (
        np.array([word.count("c") + word.count("g") for word in side]) for side in (left, right)
    )
    return 3 * np.exp(-((one[:, None] - other) ** 2))


BY_WORDS = {"prior": ProductPrior(kernel=alike), "conditional": KernelSmoother(kernel=alike)}


@pytest.mark.parametrize("kind", [*MAPS, "auto"])
def test_a_kernel_of_words_works_with_every_map_and_divergence_or_is_refused(kind, monkeypatch):
    rng = np.random.default_rng(0)
    truth, Z_query = words(rng, 60, [0.3, 0.2, 0.2, 0.3])
    Y, Z_reference = words(rng, 66, [0.2, 0.3, 0.3, 0.2])
    rows = (2 * truth + 3, Y, Z_query, Z_reference)
    free = kind not in ("identity", "shift", "orthogonal")  # maps with the right scale
    plain = None
    for name in ("auto", *DIVERGENCES):
        adapter = ConDoAdapter(kind, divergence=name, **BY_WORDS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a matrix is not determined by one line of means
            try:
                error = rmse(adapter.fit_pair(*rows).transform(rows[0]), truth)
            except ValueError as refused:
                with monkeypatch.context() as patch:  # with a reason, before anything is computed
                    patch.setattr(Recipe, "compare", None)
                    with pytest.raises(ValueError, match=re.escape(str(refused))):
                        adapter.fit_pair(*rows)
                continue
        assert np.isfinite(error)
        if free:
            plain = plain or rmse(
                ConDoAdapter(shrinkage=None).fit_pair(*rows[:2]).map_(rows[0]), truth
            )
            assert error < plain, name
    adapter = ConDoAdapter(divergence="likelihood", **BY_WORDS)
    with pytest.raises(ValueError, match="'prior' is not used by divergence='likelihood'"):
        adapter.fit_pair(*rows)


def test_confounders_may_be_arrays():
    rng = np.random.default_rng(0)
    sides = [rng.uniform(a, a + 4, (80, 3)) for a in (0, 1)]
    X, Y = (side @ [[1, 0], [0, 1], [1, -1]] + 0.3 * rng.normal(size=(80, 2)) for side in sides)

    def near(left, right):
        return np.exp(-0.5 * ((left[:, None].astype(float) - right) ** 2).sum(axis=2))

    adapter = ConDoAdapter(
        "affine",
        prior=ProductPrior(kernel=near),
        conditional=KernelSmoother(kernel=near),
        min_overlap=0.0,
        warn_overlap=0.0,
    ).fit_pair(0.5 * X - 1, Y, *sides)
    plain = ConDoAdapter("affine").fit_pair(0.5 * X - 1, Y)
    assert rmse(adapter.transform(0.5 * X - 1), X) < 0.5 * rmse(plain.transform(0.5 * X - 1), X)


def test_points_far_from_each_other_are_chosen():
    Z = np.array([0.0, 0.1, 5.0, 5.1, 9.0])
    points = Covariates(Z[:, None][:, :0], np.zeros(5, int), 1, Z)
    weights = np.array([0.1, 0.3, 0.2, 0.2, 0.2])

    def near(left, right):
        return 4 * np.exp(-((left[:, None] - right) ** 2))

    chosen, nearest, everyone = spread_points(near, points, weights, points, 3)
    assert Z[chosen[0]] == 0.1
    assert sorted(np.round(Z[chosen])) == [0, 5, 9]
    assert (np.abs(Z - Z[chosen][nearest]) <= 0.11).all()
    np.testing.assert_array_equal(nearest, everyone)
    every, *_ = spread_points(near, points, weights, points, 60)
    assert sorted(every) == list(range(5))
    alike = Covariates(np.empty((4, 0)), np.zeros(4, int), 1, np.zeros(4))
    assert len(spread_points(near, alike, np.ones(4), alike, 60)[0]) == 1
