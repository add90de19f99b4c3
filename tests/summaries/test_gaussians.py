import numpy as np
import pytest
from problems import scatter_of

from condokit.data.subsets import folds
from condokit.summaries.gaussians import Shares, choose_shares, gaussians_of, regularise


def test_a_lone_row_borrows_the_pooled_covariance():
    X = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [9.0, 9.0]])
    gaussians = gaussians_of(scatter_of(X, np.array([0, 0, 0, 1]), 2))
    np.testing.assert_array_equal(gaussians.cov[1], gaussians.cov[0])


def test_regularising_keeps_variances_and_is_never_singular():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 6))
    gaussians = gaussians_of(scatter_of(X, np.repeat([0, 1, 2], 4), 3))
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
        return choose_shares(scatter_of(X, groups + 4 * fold, 20), 5)

    same = np.eye(20) + 0.5
    assert chosen([same] * 4, 20).pooled >= 0.75
    assert chosen([np.eye(20)] * 4, 20).diagonal >= 0.1
    roots = rng.normal(size=(4, 3, 3))
    different = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(3)
    assert chosen(list(different * np.array([1, 20, 1, 50])[:, None, None]), 3).pooled == 0
