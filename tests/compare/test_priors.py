import numpy as np
import pytest
from problems import points

from condokit import ConDoAdapter, NoOverlapError, OverlapPrior, ProductPrior
from condokit.compare.priors import PRIORS
from condokit.data.kernels import column_widths
from condokit.data.study import Strata

QUERY, REFERENCE = np.array([10, 30, 0, 5]), np.array([60, 20, 7, 0])


def strata(query=QUERY, reference=REFERENCE):
    levels = [(letter,) for letter in "abcd"[: len(query)]]
    return Strata(["z"], levels, np.empty(0, int), np.array(query), np.array(reference))


def test_weights_agree_with_a_loop_over_rows_written_from_the_equation():
    """Paper: every pooled row is weighted by the product of both domains' shares of its value."""
    rows = [k for k in range(4) for _ in range(QUERY[k] + REFERENCE[k])]
    by_row = [QUERY[k] / QUERY.sum() * REFERENCE[k] / REFERENCE.sum() for k in rows]
    expected = np.array([sum(w for w, k in zip(by_row, rows) if k == j) for j in range(2)])
    support = PRIORS["paper"]().support(None, strata())
    np.testing.assert_allclose(support.weights, expected / expected.sum())


def test_the_true_product_is_half_from_each_side():
    """Half the mass on query rows weighted by the reference's share, half the other way round."""
    product = (QUERY / QUERY.sum() * REFERENCE / REFERENCE.sum())[:2]
    support = PRIORS["product"]().support(None, strata())
    np.testing.assert_allclose(support.weights, product / product.sum())


@pytest.mark.parametrize("name", PRIORS)
def test_values_of_one_domain_are_dropped_and_listed(name):
    support = PRIORS[name]().support(None, strata())
    assert support.levels == [("a",), ("b",)]
    assert support.weights.sum() == pytest.approx(1)
    assert support.dropped == [
        {"z": "c", "n_query": 0, "n_reference": 7},
        {"z": "d", "n_query": 5, "n_reference": 0},
    ]
    assert "not compared (one domain only): ('c',), ('d',)" in repr(support)


def test_no_common_value_shows_the_counts():
    with pytest.raises(NoOverlapError, match="'z' has no level in both domains") as error:
        ProductPrior().support(None, strata([30, 0], [0, 4]))
    shown = "z  n_query  n_reference\na       30            0\n1 with fewer than 5 rows\n"
    assert shown in str(error.value)


def test_wrong_variant():
    with pytest.raises(ValueError, match="'product' or 'paper'"):
        ProductPrior(variant="sqrt").support(None, strata())


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


def test_weights_vanish_outside_the_overlap():
    z = np.r_[np.linspace(0, 1, 50), np.linspace(0.5, 9, 50)]
    rows, weights = ProductPrior().points(points(z), np.arange(100) < 50)
    assert weights[z[rows] > 2].sum() < 1e-6


def test_overlap_weights_of_strata():
    expected = np.array([10 * 60 / 70, 30 * 20 / 50])
    support = PRIORS["overlap"]().support(None, strata())
    np.testing.assert_allclose(support.weights, expected / expected.sum())


@pytest.mark.parametrize("n_query", [2000, 200])
def test_overlap_weights_of_points_agree_with_the_integral(n_query):
    """Query N(1, 1), reference N(0, 1): density f_q f_r / (n_q f_q + n_r f_r)."""
    rng = np.random.default_rng(0)
    z = np.r_[rng.normal(1, 1, n_query), rng.normal(0, 1, 2000)]
    rows, weights = OverlapPrior().points(points(z), np.arange(len(z)) < n_query)
    grid = np.linspace(-6, 7, 2001)
    f_query, f_reference = np.exp(-0.5 * (grid - 1) ** 2), np.exp(-0.5 * grid**2)
    w = f_query * f_reference / (n_query * f_query + 2000 * f_reference)
    mean = w @ grid / w.sum()
    assert weights.sum() == pytest.approx(1)
    assert weights @ z[rows] == pytest.approx(mean, abs=0.1)
    spread = np.sqrt(w @ (grid - mean) ** 2 / w.sum())
    assert np.sqrt(weights @ (z[rows] - mean) ** 2) == pytest.approx(spread, abs=0.1)


def test_overlap_weights_are_better_where_sizes_differ():
    errors = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        means, spread = 2 * rng.normal(size=(2, 8)), rng.uniform(0.6, 1.6, (2, 8))
        scale, offset = rng.uniform(0.5, 2, 8), 2 * rng.normal(size=8)
        Z = [np.repeat([0, 1], rows) for rows in ((16, 4), (1000, 4000), (1600, 400))]
        query, reference, new = (means[z] + spread[z] * rng.normal(size=(len(z), 8)) for z in Z)
        for name in ("product", "overlap"):
            adapter = ConDoAdapter(
                divergence="reverse-kl", prior=name, warn_overlap=0, min_overlap=0
            ).fit_pair((query - offset) / scale, reference, *(z.astype(str) for z in Z[:2]))
            left = adapter.transform((new - offset) / scale) - new
            errors.append(np.mean((left / new.std(axis=0)) ** 2))
    product, overlap = np.sqrt(np.reshape(errors, (-1, 2)).mean(axis=0))
    assert overlap < 0.95 * product
