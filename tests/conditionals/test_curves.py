import numpy as np
from problems import covariates

from condokit.conditionals.curves import Basis, CurveRegression, Products


def test_regression_is_the_gaussian_posterior():
    """Against the dense covariance C = Phi tau^2 Phi + 1 / W."""
    rng = np.random.default_rng(0)
    rows = covariates(rng.uniform(size=60))
    basis = Basis(rows, 6, None)
    Phi = basis(rows)
    W = rng.uniform(0.5, 2, (60, 2))
    regression = CurveRegression(basis, 2, 0.7)
    cov = regression.posterior(Products(Phi).gram(W))
    y = rng.normal(size=60)
    for j in range(2):
        prior = np.r_[1e8, np.full(Phi.shape[1] - 1, 0.7)]
        C = (Phi * prior) @ Phi.T + np.diag(1 / W[:, j])
        mean = prior * (Phi.T @ np.linalg.solve(C, y))
        np.testing.assert_allclose(cov[j] @ (Phi.T @ (W[:, j] * y)), mean, rtol=1e-5, atol=1e-6)
    leverage = Products(Phi).variances(cov)
    np.testing.assert_allclose(leverage[:, 0], np.einsum("nr,rs,ns->n", Phi, cov[0], Phi))
