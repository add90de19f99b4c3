"""Random problems and small tools that several test files share."""

import numpy as np
import pytest
from protocols import rmse

from condokit import ConDoAdapter
from condokit.conditionals import Moments
from condokit.data.covariates import Covariates
from condokit.data.grouped import GroupedScatter
from condokit.divergences import MomentDivergence
from condokit.divergences.paper import AffineKL
from condokit.solvers.units import Units
from condokit.summaries.factors import FactorGaussian
from condokit.summaries.gaussians import GaussianPair, Gaussians
from condokit.summaries.moments import MomentPair
from condokit.summaries.samples import Samples


class Matching(MomentDivergence):
    """A user's divergence: squared differences of means, and of variances, in the reference's."""

    def value_and_grad(self, query, reference, weights):
        w = weights.reshape(len(weights), -1)  # of every feature where values are missing
        error = (query.mean - reference.mean) * reference.precision
        excess = query.var * reference.precision - 1
        value = (w * ((query.mean - reference.mean) * error + excess**2)).sum()
        return float(value), 2 * w * error, 2 * w * excess * reference.precision


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


def random_pair(seed, n_values=3, n_features=3):
    rng = np.random.default_rng(seed)
    query, reference = (random_gaussians(rng, n_values, n_features) for _ in range(2))
    return GaussianPair(query, reference, rng.dirichlet(np.ones(n_values)))


def pushed(gaussians, A, b):
    """The law of A x + b."""
    return Gaussians(gaussians.mean @ A.T + b, A @ gaussians.cov @ A.T, gaussians.count)


def kl_written_out(A, b, pair):
    """KL divergence of mapped query from reference, from its definition."""
    total = 0.0
    for k, w in enumerate(pair.weights):
        C, S = A @ pair.query.cov[k] @ A.T, pair.reference.cov[k]
        r = A @ pair.query.mean[k] + b - pair.reference.mean[k]
        P = np.linalg.inv(S)
        logs = np.log(np.linalg.det(S)) - np.log(np.linalg.det(C))
        total += w * 0.5 * (np.trace(P @ C) + r @ P @ r - len(r) + logs)
    return total


def random_moment_pair(seed, spread=1.0, n_features=3):
    rng = np.random.default_rng(seed)
    n_values = int(rng.integers(1, 7))
    weights = rng.dirichlet(np.ones(n_values))
    query, reference = (random_moments(rng, n_values, n_features, spread) for _ in range(2))
    return pair_of(query, reference, weights)


def pair_of(query, reference, weights):
    return MomentPair(query, reference, weights, np.zeros(query.mean.shape[1], dtype=bool))


def random_samples(seed, d=3, sizes=((20, 15), (12, 25))):
    rng = np.random.default_rng(seed)
    sides = [[rng.normal(k, 1 + k, (n, d)) for k, n in enumerate(rows)] for rows in sizes]
    return Samples(sides[0], sides[1], np.array([0.3, 0.7]))


def points(Z, category=None, n_categories=1):
    Z = np.asarray(Z, float).reshape(len(Z), -1)
    return Covariates(Z, np.zeros(len(Z), int) if category is None else category, n_categories)


def scatter_of(X, groups, n_groups, weights=None, n_parts=1):
    scatter = GroupedScatter(n_groups, X.shape[1])
    for part in np.array_split(np.arange(len(X)), n_parts):
        scatter.update(X[part], groups[part], None if weights is None else weights[part])
    return scatter


def random_sides(rng, n_features=6, n_values=3):
    return [
        [
            FactorGaussian(
                rng.normal(size=n_features),
                rng.uniform(0.3, 1, n_features),
                rng.normal(size=(n_features, 2)),
            )
            for _ in range(n_values)
        ]
        for _ in range(2)
    ]


def dense(gaussian):
    return gaussian.cov.array()


def covariates(Z, category=None, n_categories=1):
    Z = np.asarray(Z, float).reshape(len(Z), -1)
    category = np.zeros(len(Z), int) if category is None else category
    return Covariates((Z - Z.mean(axis=0)) / Z.std(axis=0), category, n_categories)


def fit(pair, **parameters):
    return ConDoAdapter(**parameters).fit_pair(
        pair.X_query, pair.X_reference, pair.Z_query, pair.Z_reference
    )


def heldout_errors(pairs, **parameters):
    return [
        rmse(fit(pair, **parameters).transform(pair.X_heldout), pair.truth_heldout)
        for pair in pairs
    ]


def papers_affine_objective(w, mean_q, cov_q, mean_r, cov_r):
    """Return the paper's objective of A and b in the units of these means and covariances."""
    sides = (Gaussians(m, c, np.zeros(len(w))) for m, c in ((mean_q, cov_q), (mean_r, cov_r)))
    return AffineKL(Units(GaussianPair(*sides, w), "as given"))
