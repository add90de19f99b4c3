"""Rows of one subject: a random intercept with one ratio of variances for all features."""

from dataclasses import replace

import numpy as np
from scipy import sparse

from condokit.checks import Array
from condokit.data.covariates import Covariates
from condokit.solvers.pooled.design import level_columns

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
