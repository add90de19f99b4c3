import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import scatter_of
from sklearn.covariance import empirical_covariance

from condokit.data.grouped import GroupedMoments, effective_counts
from condokit.summaries.gaussians import gaussians_of


def gathered(X, groups, n_groups, weights=None, cuts=()):
    stats = GroupedMoments(n_groups, X.shape[1])
    edges = [0, *sorted(cuts), len(X)]
    for start, stop in zip(edges, edges[1:]):
        part = None if weights is None else weights[start:stop]
        stats.update(X[start:stop], groups[start:stop], part)
    return stats


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
    offset=st.sampled_from([0.0, 1e6]),
)
def test_any_split_gives_the_moments_of_each_group(seed, cuts, scale, offset):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(40, 3)) + offset) * scale
    groups = rng.integers(0, 4, 40)
    stats = gathered(X, groups, 5, cuts=cuts)
    for k in range(5):
        mine = X[groups == k]
        assert stats.count[k] == len(mine)
        if len(mine):
            rounding = 1e-14 * np.abs(mine).max()  # of a mean near zero
            np.testing.assert_allclose(stats.mean[k], mine.mean(axis=0), rtol=1e-12, atol=rounding)
            exact = ((mine - mine.mean(axis=0)) ** 2).sum(axis=0)
            np.testing.assert_allclose(stats.squares[k], exact, rtol=1e-7, atol=1e-12 * scale**2)


def test_merge_equals_update_in_any_order():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(90, 4)), rng.integers(0, 3, 90)
    whole = gathered(X, groups, 3)
    parts = [gathered(X[i::3], groups[i::3], 3) for i in (2, 0, 1)]
    merged = parts[0]
    for part in parts[1:]:
        merged.merge(part)
    np.testing.assert_array_equal(merged.count, whole.count)
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(merged.squares, whole.squares, rtol=1e-12)


def test_a_weight_of_two_is_two_rows_and_zero_is_none():
    rng = np.random.default_rng(1)
    X, groups = rng.normal(size=(30, 2)), rng.integers(0, 3, 30)
    weights = rng.integers(0, 3, 30)
    weighted = gathered(X, groups, 3, weights.astype(float))
    repeated = gathered(np.repeat(X, weights, axis=0), np.repeat(groups, weights), 3)
    np.testing.assert_allclose(weighted.count, repeated.count)
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-13)
    np.testing.assert_allclose(weighted.squares, repeated.squares, rtol=1e-12)


def test_constant_columns_have_exactly_no_spread():
    X = np.full((5000, 2), 0.1)
    X[::2, 1] = 1e9 / 3
    stats = gathered(X, np.arange(5000) % 2, 2, cuts=[7, 1003])
    assert (stats.squares == 0).all()


def test_negative_groups_are_left_out():
    stats = gathered(np.array([[1.0], [100.0]]), np.array([0, -1]), 1)
    assert stats.count[0] == 1
    assert stats.mean[0, 0] == 1


@pytest.mark.parametrize(("rho", "expected"), [(1.0, 50), (0.0, 500)])
def test_clusters_of_equal_or_unrelated_rows_count_once_or_fully(rho, expected):
    rng = np.random.default_rng(0)
    subject = np.repeat(np.arange(50), 10)
    shared, own = rng.normal(size=(50, 40)), rng.normal(size=(500, 40))
    X = shared[subject] if rho else own
    stats = gathered(X, np.zeros(500, int), 1)
    clusters = gathered(X, subject, 50)
    count = effective_counts(stats.count, stats.squares, clusters, np.zeros(50, int))
    assert count[0] == pytest.approx(expected, rel=0.12)


def test_effective_count_gives_the_variance_of_a_mean():
    """Half of the variance is shared within subjects: 20 subjects of 5 rows are worth 33 rows."""
    rng = np.random.default_rng(3)
    subject = np.repeat(np.arange(20), 5)
    X = rng.normal(size=(20, 4000))[subject] + rng.normal(size=(100, 4000))
    stats = gathered(X, np.zeros(100, int), 1)
    count = effective_counts(
        stats.count, stats.squares, gathered(X, subject, 20), np.zeros(20, int)
    )
    assert count[0] == pytest.approx(2.0 / X.mean(axis=0).var(), rel=0.1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_chunks_and_folds_merge_to_the_covariance_of_all_rows(seed, n_parts):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(1e3, 1, (60, 3)), rng.integers(-1, 3, 60)
    fold = rng.integers(0, 2, 60)
    cell = np.where(groups < 0, -1, groups + 3 * fold)
    whole = gaussians_of(scatter_of(X, groups, 3, n_parts=n_parts))
    merged = gaussians_of(scatter_of(X, cell, 6, n_parts=n_parts).without(-1, 2))
    for k in range(3):
        rows = X[groups == k]
        if len(rows) > 1:
            expected = empirical_covariance(rows) * len(rows) / (len(rows) - 1)
            np.testing.assert_allclose(whole.cov[k], expected, atol=1e-9)
            np.testing.assert_allclose(merged.cov[k], expected, atol=1e-9)
            np.testing.assert_allclose(merged.mean[k], rows.mean(axis=0))


def test_weights_count_rows_in_scatters():
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(20, 2)), rng.integers(0, 3, 20)
    groups = np.zeros(20, dtype=int)
    one = gaussians_of(scatter_of(X, groups, 1, weights.astype(float)))
    repeated = np.repeat(X, weights, axis=0)
    other = gaussians_of(scatter_of(repeated, np.zeros(len(repeated), dtype=int), 1))
    np.testing.assert_allclose(one.cov, other.cov)
    assert one.count == other.count


def test_powers_are_the_same_in_any_split():
    rng = np.random.default_rng(0)
    X, groups = 1e4 + rng.gamma(2, size=(200, 3)), rng.integers(-1, 4, 200)
    weights = rng.integers(0, 4, 200).astype(float)
    whole, parts, other = GroupedMoments(4, 3), GroupedMoments(4, 3), GroupedMoments(4, 3)
    whole.update(X, groups, weights)
    parts.update(X[:70], groups[:70], weights[:70])
    other.update(X[70:120], groups[70:120], weights[70:120])
    parts.update(X[120:], groups[120:], weights[120:])
    parts.merge(other)
    for k in range(4):
        mine = np.repeat(X[groups == k], weights[groups == k].astype(int), axis=0)
        away = mine - mine.mean(axis=0)
        for power, name in ((2, "squares"), (3, "third"), (4, "fourth")):
            expected = (away**power).sum(axis=0)
            for stats in (whole, parts):
                np.testing.assert_allclose(getattr(stats, name)[k], expected, rtol=1e-8)


def test_entries_of_sparse_rows_are_as_good_as_all_values():
    rng = np.random.default_rng(3)
    X = rng.gamma(2.0, 1.0, (500, 7)) * (rng.random((500, 7)) < 0.4)
    columns, groups = [5, 0, 3], rng.integers(-1, 4, 500)
    for weights in (None, rng.integers(0, 3, 500).astype(float)):
        one, other = (GroupedMoments(6, 3) for _ in range(2))
        one.update(X[:, columns], groups, weights)
        other.update_sparse(scipy.sparse.csr_matrix(X), columns, groups, weights)
        for name in ("count", "mean", "squares"):
            np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-10)


@pytest.mark.parametrize("d", [1, 5, 60])
def test_missing_values_are_left_out_of_their_feature_alone(d):
    rng = np.random.default_rng(d)
    X, group = 1e6 + rng.normal(size=(600, d)), rng.integers(-1, 4, 600)
    gaps, weight = rng.random(X.shape) < 0.2, rng.integers(0, 3, 600).astype(float)
    whole, parts = (GroupedMoments(4, d, products=True) for _ in range(2))
    whole.update(X, group, weight, gaps)
    for i in range(0, 600, 37):
        part = slice(i, i + 37)
        parts.update(X[part], group[part], weight[part], gaps[part])
    for k in range(4):
        for j in range(min(d, 5)):
            mine = (group == k) & ~gaps[:, j]
            x, w = X[mine, j], weight[mine]
            mean = w @ x / w.sum()
            assert whole.known[k, j] == w.sum()
            np.testing.assert_allclose(whole.mean[k, j], mean, rtol=1e-12)
            np.testing.assert_allclose(whole.fourth[k, j], w @ (x - mean) ** 4, rtol=1e-5)
    for name in ("count", "known", "mean", "squares", "third", "fourth"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(parts.products.scatter, whole.products.scatter, atol=1e-4)
    fewer, other = (GroupedMoments(2, d, products=True) for _ in range(2))
    fewer.merge(whole, np.array([0, 1, 0, -1]))
    other.update(X, np.array([-1, 0, 1, 0, -1])[group + 1], weight, gaps)
    for name in ("count", "known", "mean", "squares", "third", "fourth"):
        np.testing.assert_allclose(getattr(fewer, name), getattr(other, name), rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(fewer.products.scatter, other.products.scatter, atol=1e-4)
