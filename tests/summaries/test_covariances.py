import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import empirical_covariance

from condokit.data.subsets import folds
from condokit.summaries.covariances import GroupedScatter, Shares, choose_shares, regularise


def gathered(X, groups, n_groups, weights=None, n_parts=1):
    scatter = GroupedScatter(n_groups, X.shape[1])
    for part in np.array_split(np.arange(len(X)), n_parts):
        scatter.update(X[part], groups[part], None if weights is None else weights[part])
    return scatter


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_chunks_and_folds_merge_to_the_covariance_of_all_rows(seed, n_parts):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(1e3, 1, (60, 3)), rng.integers(-1, 3, 60)
    fold = rng.integers(0, 2, 60)
    cell = np.where(groups < 0, -1, groups + 3 * fold)
    whole = gathered(X, groups, 3, n_parts=n_parts).gaussians()
    merged = gathered(X, cell, 6, n_parts=n_parts).without(-1, 2).gaussians()
    for k in range(3):
        rows = X[groups == k]
        if len(rows) > 1:
            expected = empirical_covariance(rows) * len(rows) / (len(rows) - 1)
            np.testing.assert_allclose(whole.cov[k], expected, atol=1e-9)
            np.testing.assert_allclose(merged.cov[k], expected, atol=1e-9)
            np.testing.assert_allclose(merged.mean[k], rows.mean(axis=0))


def test_weights_count_rows():
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(20, 2)), rng.integers(0, 3, 20)
    groups = np.zeros(20, dtype=int)
    one = gathered(X, groups, 1, weights.astype(float)).gaussians()
    repeated = np.repeat(X, weights, axis=0)
    other = gathered(repeated, np.zeros(len(repeated), dtype=int), 1).gaussians()
    np.testing.assert_allclose(one.cov, other.cov)
    assert one.count == other.count


def test_a_lone_row_borrows_the_pooled_covariance():
    X = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [9.0, 9.0]])
    gaussians = gathered(X, np.array([0, 0, 0, 1]), 2).gaussians()
    np.testing.assert_array_equal(gaussians.cov[1], gaussians.cov[0])


def test_regularising_keeps_variances_and_is_never_singular():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 6))
    gaussians = gathered(X, np.repeat([0, 1, 2], 4), 3).gaussians()
    half = regularise(gaussians, Shares(0.0, 0.5))
    np.testing.assert_allclose(np.einsum("kii->ki", half.cov), np.einsum("kii->ki", gaussians.cov))
    off = gaussians.cov[0, 0, 1]
    assert half.cov[0, 0, 1] == pytest.approx(off / 2)
    assert np.linalg.matrix_rank(gaussians.cov[0]) == 3
    assert np.linalg.eigvalsh(half.cov).min() > 0
    pooled = regularise(gaussians, Shares(1.0, 0.0)).cov
    np.testing.assert_allclose(pooled[0], gaussians.cov.mean(axis=0))
    np.testing.assert_allclose(pooled[0], pooled[1])


def test_the_shares_follow_the_data():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 50)
    fold = folds(groups, 5)

    def chosen(covs, n_features):
        X = np.concatenate([rng.multivariate_normal(np.zeros(n_features), C, 50) for C in covs])
        return choose_shares(gathered(X, groups + 4 * fold, 20), 5)

    same = np.eye(20) + 0.5
    assert chosen([same] * 4, 20).pooled >= 0.75
    assert chosen([np.eye(20)] * 4, 20).diagonal >= 0.1
    roots = rng.normal(size=(4, 3, 3))
    different = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(3)
    assert chosen(list(different * np.array([1, 20, 1, 50])[:, None, None]), 3).pooled == 0


def test_folds_are_even_within_cells_and_keep_subjects_together():
    cell = np.repeat([0, 1, 2], [10, 25, 5])
    fold = folds(cell, 5)
    for k in range(3):
        counts = np.bincount(fold[cell == k], minlength=5)
        assert counts.max() - counts.min() <= 1
    subjects = np.repeat(np.arange(13), 3)
    fold = folds(np.zeros(39, dtype=int), 4, subjects)
    assert all(len(set(fold[subjects == s])) == 1 for s in range(13))
    assert len(set(fold)) == 4
