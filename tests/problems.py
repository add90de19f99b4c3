"""Random problems and small tools that several test files share."""

import numpy as np
import pytest

from condokit.summaries.covariances import Gaussians
from condokit.summaries.moments import Moments


def random_moments(rng, n_values, n_features, spread=1.0):
    var = np.exp(rng.normal(0, spread, (n_values, n_features)))
    count = rng.integers(2, 50, n_values).astype(float)
    mean = rng.normal(0, 3, (n_values, n_features))
    return Moments(mean, var, 1 / var, count, count - 1)


def two_domains(rng, n=200, n_features=3, scale=2.0, offset=5.0):
    """Draw two classes in unequal shares and a known map: X and Z of query and reference."""
    Z_query = rng.choice(["a", "b"], n, p=[0.3, 0.7])
    Z_reference = rng.choice(["a", "b"], n, p=[0.7, 0.3])

    def draw(Z):
        return rng.normal(size=(n, n_features)) + np.where(Z == "a", 4.0, 0.0)[:, None]

    return (draw(Z_query) - offset) / scale, draw(Z_reference), Z_query, Z_reference


def check_map_gradients(objective, B, c, **tolerance):
    """Compare the gradients of a function of (B, c) with central differences."""
    _, d_B, d_c = objective(B, c)
    for exact, moved in (
        (d_B, lambda step: (B + step, c)),
        (d_c, lambda step: (B, c + step)),
    ):
        for place in np.ndindex(exact.shape):
            step = np.zeros(exact.shape)
            step[place] = 1e-6
            numeric = (objective(*moved(step))[0] - objective(*moved(-step))[0]) / 2e-6
            assert exact[place] == pytest.approx(numeric, **tolerance)


def random_gaussians(rng, n_values, n_features, mean=None, cov=None, count=None):
    """Random means and covariances, or given ones."""
    if mean is None:
        mean = rng.normal(0, 2, (n_values, n_features))
    if cov is None:
        root = rng.normal(size=(n_values, n_features, n_features + 2))
        cov = root @ root.transpose(0, 2, 1)
    if count is None:
        count = rng.integers(100, 200, n_values)
    return Gaussians(mean, cov, np.asarray(count, dtype=float))


def different_features(seed, n=150):
    """Four cell types measured by two assays with five and three features."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 3, (4, 3))
    types = rng.choice(4, n)
    Y = centres[types] + rng.exponential(size=(n, 3)) - 1
    mix = rng.normal(size=(3, 5))
    X = Y @ mix + 0.1 * rng.normal(size=(n, 5)) + 2
    return X, Y, np.array(["a", "b", "c", "d"])[types]
