"""Smooth curves of many features at once: a basis of the confounders, and a regression on it.

Every feature has a mean and a log-variance that are sums of ridge-penalised blocks of basis
functions; the variance of each block's coefficients comes from the data (empirical Bayes), so
blocks that a feature does not need vanish. All features share the basis, which makes the work a few
matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from condokit.checks import Array


@dataclass(frozen=True)
class Covariates:
    """Confounders as numbers: continuous columns in standard units, and the crossed category.

    Attributes
    ----------
    Z : ndarray of shape (n_rows, n_continuous)
        Continuous columns with mean 0 and variance 1 over both domains.
    category : ndarray of shape (n_rows,)
        Number of the combination of categorical values.
    n_categories : int
        How many combinations there are.
    objects : ndarray of shape (n_rows,) or (n_rows, n_confounders), or None
        The confounders as they were given, for a user's kernel.
    weights : ndarray of shape (n_rows,) or None
        How many rows each row counts for; None is one.
    """

    Z: Array
    category: Array
    n_categories: int
    objects: Array | None = None
    weights: Array | None = None

    @property
    def counts(self) -> Array:
        """How many rows each row counts for."""
        return np.ones(len(self.Z)) if self.weights is None else self.weights

    def take(self, rows: Array | slice) -> Covariates:
        """Return some of the rows."""
        objects = None if self.objects is None else self.objects[rows]
        weights = None if self.weights is None else self.weights[rows]
        return Covariates(self.Z[rows], self.category[rows], self.n_categories, objects, weights)

    def thinned(self, most: int) -> Array:
        """Return the numbers of at most so many rows, evenly taken; all rows if there are fewer."""
        n = len(self.Z)
        if n <= most:
            return np.arange(n)
        if self.weights is None:
            return np.linspace(0, n - 1, most).round().astype(np.intp)
        upto = np.cumsum(self.weights)
        return np.searchsorted(upto, (np.arange(most) + 0.5) / most * upto[-1])
