"""Rows of one subject: a random intercept with one ratio of variances for all features."""

from dataclasses import replace

import numpy as np
from scipy import sparse

from condokit.checks import Array
from condokit.data.covariates import Covariates
from condokit.solvers.pooled.design import best_scale, level_columns
from condokit.solvers.pooled.projections import BasisProjection, residual_variance

MOST_LEVELS = 20  # whose means by subject may become columns


def without_subject(X: Array, subjects: Array | None, rho: float) -> Array:
    r"""Take :math:`1 - 1 / \sqrt{1 + n_g \rho}` of the subject's mean off its rows."""
    if subjects is None or rho == 0:
        return X
    n = len(X)
    size = np.bincount(subjects)
    sums = sparse.csr_matrix((np.ones(n), (subjects, np.arange(n))))
    part = (1 - 1 / np.sqrt(1 + size * rho)) / size
    return X - (part[:, None] * (sums @ X))[subjects]


def with_subject_means(at: Covariates, subjects: Array) -> Covariates:
    """Add the subjects' means of columns that vary both within and between subjects.

    The query differs from the reference between subjects only, and the slope between subjects is
    not that within (Mundlak): a column of the mean lets the two differ.
    """
    size = np.bincount(subjects)
    n = len(subjects)
    columns = np.column_stack([at.Z, level_columns(at)]) if at.n_categories <= MOST_LEVELS else at.Z
    sums = sparse.csr_matrix((np.ones(n), (subjects, np.arange(n))))
    mean = (sums @ columns / size[:, None])[subjects]
    total = np.maximum(columns.var(0), 1e-300)
    between = mean.var(0) / total
    # the mean of n independent rows varies by 1 / n even if subjects are alike
    varies = (between < 0.98) & (between > 0.02 + 1.5 * len(size) / n)
    if not varies.any() or len(size) < 8 * (1 + varies.sum()):
        return at
    added = mean[:, varies]
    added = (added - added.mean(0)) / np.maximum(added.std(0), 1e-300)
    return replace(at, Z=np.column_stack([at.Z, added]))


def subject_projection(
    U: Array, penalty: Array, nq: int, weights: Array, subjects: Array | None, rho: float
) -> BasisProjection:
    """Return the projection off columns that were freed of subjects as the features are."""
    last = int((penalty == 0).sum()) - 1
    return BasisProjection(without_subject(U, subjects, rho), penalty, last, nq, weights)


def subject_ratio(
    U: Array, penalty: Array, X: Array, nq: int, weights: Array, subjects: Array, fixed: Array
) -> float:
    """Return the variance between subjects over that within, by pooled restricted likelihood."""
    size = np.bincount(subjects)
    if len(size) == len(X) or len(size) < 4:
        return 0.0
    best, found = -np.inf, 0.0
    for rho in (0.0, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0, 7.0, 15.0, 40.0):
        projection = subject_projection(U, penalty, nq, weights, subjects, rho)
        red = projection.solve(without_subject(X, subjects, rho), None)
        dof = max(float(weights.sum()) - projection.rank, 1.0)
        m = np.where(np.isnan(fixed), best_scale(red.G, red.n_eff, dof), fixed)
        s2 = residual_variance(red, m, dof)
        sign, log = np.linalg.slogdet(projection.B)
        value = np.mean(red.n_eff * np.log(m) - 0.5 * dof * np.log(s2))
        value += 0.5 * log - 0.5 * np.log1p(size * rho).sum()
        if value > best + 1e-9:
            best, found = value, rho
    return found
