"""Base class of estimators of features given confounders, their result, and that of strata."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from condokit.checks import Array
from condokit.data.arrays import precisions
from condokit.data.covariates import Covariates
from condokit.data.grouped import GroupedMoments

VARIANCE_FLOOR = 1e-4  # smallest variance, as a share of the pooled within-stratum variance


@dataclass(frozen=True)
class Moments:
    """Conditional means and variances of one domain at every support value.

    Parameters
    ----------
    mean, var : ndarray of shape (n_values, n_features)
        Means and variances given the confounder value.
    precision : ndarray of shape (n_values, n_features)
        The estimate of 1 / variance: either 1 / var, or one without the bias that 1 / var has with
        few rows.
    count, dof : ndarray of shape (n_values,)
        Number of independent rows behind each mean, and degrees of freedom of each variance.

    Examples
    --------
    >>> import numpy as np
    >>> from condokit.conditionals import Moments
    >>> mean, var = np.zeros((2, 1)), np.ones((2, 1))
    >>> Moments(mean, var, 1 / var, np.array([10, 20]), np.array([9, 19])).count
    array([10, 20])
    """

    mean: Array
    var: Array
    precision: Array
    count: Array
    dof: Array

    @property
    def variance_of_mean(self) -> Array:
        """The sampling variance of the means, var / n: (n_values, n_features)."""
        return self.var / np.maximum(self.count, 1.0)[:, None]

    @property
    def variance_of_variance(self) -> Array:
        """The sampling variance of the variances of Gaussian rows, 2 var^2 / dof."""
        return 2 * self.var**2 / np.maximum(self.dof, 1.0)[:, None]

    def of(self, values: slice | Array) -> "Moments":
        """Return the moments at some of the values."""
        return Moments(*(part[values] for part in vars(self).values()))


class Conditional(BaseEstimator, ABC):
    """Base class of estimators of features given confounders, applied to one domain at a time.

    An estimator of your own needs `moments_at` only.

    Examples
    --------
    >>> import numpy as np
    >>> from condokit import ConDoAdapter, datasets
    >>> from condokit.conditionals import Conditional, Moments
    >>> class SameEverywhere(Conditional):
    ...     def moments_at(self, X, covariates, at):
    ...         n, var = len(at.Z), np.tile(X.var(axis=0), (len(at.Z), 1))
    ...         rows = np.full(n, float(len(X)))
    ...         return Moments(np.tile(X.mean(axis=0), (n, 1)), var, 1 / var, rows, rows - 1)
    >>> p = datasets.make_continuous1d(random_state=0)
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence="ot", conditional=SameEverywhere()).fit_pair(*data)
    >>> bool(np.isclose(adapter.transform(p.X_query).mean(), p.X_reference.mean(), rtol=0.1))
    True
    """

    # whether estimates borrow from neighbouring confounder values; otherwise by strata
    is_smooth: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = False  # whether rows may have weights
    # whether it has a method `sample_at` that draws `n_draws` rows with the seed `random_state`
    imputes_rows: ClassVar[bool] = False

    @abstractmethod
    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:
        """Estimate the moments of features at given confounder values.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
            Features of the rows of one domain.
        covariates : Covariates
            Confounders of the same rows: `Z` the continuous ones (n_rows, n_columns), `category`
            the number of the combination of categories, `counts` how many rows each row counts for.
        at : Covariates
            The confounder values at which the domains are compared, one row for each value.

        Returns
        -------
        Moments
            Means and variances at these values.
        """


class Stratified(Conditional):
    r"""Means and variances within each stratum, in one pass over the rows.

    Variances have the divisor n - 1. A stratum with one row gets the pooled within-stratum variance
    of its domain, and no variance is below 1e-4 times that. With `groups`, rows of one subject
    count for less (see `condokit.data.grouped.effective_counts`).

    Examples
    --------
    >>> from condokit import ConDoAdapter, Stratified, datasets
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> adapter = ConDoAdapter(divergence="ot", conditional=Stratified()).fit_pair(*data)
    >>> adapter.map_.scale.round(1)
    array([0.5])
    """

    is_smooth = False
    takes_weights = True

    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:  # noqa: D102
        stats = GroupedMoments(covariates.n_categories, X.shape[1])
        stats.update(X, covariates.category, covariates.weights)
        return moments_from(stats.count, stats.mean, stats.squares, stats.count).of(at.category)


def moments_from(count: Array, mean: Array, squares: Array, independent: Array) -> Moments:
    """Turn sums by stratum into moments; see `Stratified` for variances.

    `count` are rows and `independent` effective rows, if rows of one subject are correlated.
    """
    dof = count - 1
    lone = dof < 0.5
    pooled = squares[~lone].sum(axis=0) / max(float(dof[~lone].sum()), 1e-300)
    var = np.where(lone[:, None], pooled, squares / np.where(lone, 1.0, dof)[:, None])
    var = np.maximum(var, VARIANCE_FLOOR * pooled)
    # a single subject with many rows still shows a variance, though a poor one
    poor = np.where(lone, 0.0, np.maximum(independent - 1, 0.5))
    return Moments(mean, var, precisions(var), independent, poor)
