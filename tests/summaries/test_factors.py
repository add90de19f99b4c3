import numpy as np
from problems import dense

from condokit.summaries.factors import factor_gaussians


def test_factors_keep_the_variances_and_find_the_leading_axes():
    rng = np.random.default_rng(0)
    F = rng.normal(size=(50, 2)) * 2
    residual = rng.normal(size=(400, 2)) @ F.T + 0.5 * rng.normal(size=(400, 50))
    [gaussian] = factor_gaussians(residual, np.zeros(400, dtype=int), np.zeros((1, 50)))
    np.testing.assert_allclose(np.diag(dense(gaussian)), residual.var(axis=0), rtol=0.05)
    error = np.linalg.norm(dense(gaussian) - F @ F.T - 0.25 * np.eye(50))
    assert error < 0.2 * np.linalg.norm(F @ F.T)
