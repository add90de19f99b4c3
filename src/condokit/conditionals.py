"""Ingredient 3, features given confounders: moments of each domain at the compared values."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from sklearn.base import BaseEstimator

from condokit._validation import Array
from condokit.domains import Domains, Moments, Strata, Support
from condokit.kernels import Kernel, call, column_widths, rbf_delta
from condokit.smoothing import Covariates
from condokit.statistics import GroupedMoments, effective_counts

_MOST_SMOOTHED = 2000  # rows of a domain that a kernel smoother uses
_FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4)
_LARGEST_SQUARE = 1e150
_VARIANCE_FLOOR = 1e-4  # of the feature's pooled within-stratum variance


class BaseConditional(BaseEstimator, ABC):
    """An estimator of the features of each domain given the confounders."""


class SmoothConditional(BaseConditional):
    """An estimator for confounders of any kind, one domain at a time."""

    @abstractmethod
    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:
        """Return the moments of features X, known at `covariates`, at other confounder values."""


class KernelSmoother(SmoothConditional):
    r"""Local linear means, and smoothed squared residuals as variances.

    One matrix of smoothing weights serves all features. The bandwidth is a multiple of Silverman's,
    chosen by leave-one-out likelihood over all features.

    Parameters
    ----------
    bandwidth : float or None, default=None
        Factor of Silverman's bandwidth. None chooses it by leave-one-out likelihood.
    kernel : callable or None, default=None
        k(Z1, Z2) -> matrix on the confounders as they are given; means are then local averages.
    """

    def __init__(self, bandwidth: float | None = None, kernel: Kernel | None = None) -> None:
        self.bandwidth = bandwidth
        self.kernel = kernel

    def moments_at(self, X: Array, covariates: Covariates, at: Covariates) -> Moments:  # noqa: D102
        if len(X) > _MOST_SMOOTHED:
            rows = np.linspace(0, len(X) - 1, _MOST_SMOOTHED).round().astype(int)
            X, covariates = X[rows], covariates.take(rows)
        factors = _FACTORS if self.bandwidth is None else (self.bandwidth,)
        if self.kernel is not None or covariates.Z.shape[1] == 0:
            factors = (1.0,)
        width = column_widths(covariates.Z)
        tried = [self._at_rows(X, covariates, factor * width) for factor in factors]
        _, width, square = max(tried, key=lambda fit: fit[0])
        K = self._weights(at, covariates, width)
        average = K / K.sum(axis=1, keepdims=True)
        mean = self._smoother(at, covariates, K) @ X
        pooled = square.mean(axis=0)
        var = np.maximum(average @ square, _VARIANCE_FLOOR * pooled)
        count = 1 / (average**2).sum(axis=1)
        with np.errstate(divide="ignore"):
            return Moments(mean, var, 1 / var, count, np.maximum(count - 1, 0.5))

    def _at_rows(
        self, X: Array, covariates: Covariates, width: Array
    ) -> tuple[float, Array, Array]:
        """Return the leave-one-out likelihood, the bandwidths, and squared residuals."""
        K = self._weights(covariates, covariates, width)
        L = self._smoother(covariates, covariates, K)
        left_out = np.maximum(1 - np.diag(L), 0.05)[:, None]
        square = ((X - L @ X) / left_out) ** 2
        others = K.copy()
        np.fill_diagonal(others, 0.0)
        total = np.maximum(others.sum(axis=1, keepdims=True), 1e-300)
        pooled = np.maximum(square.mean(axis=0), 1e-300)
        var = np.maximum(others @ square / total, 1e-3 * pooled)
        likelihood = -0.5 * (np.log(var) + square / var).mean()
        # residuals of the curve itself, not of curves without the row
        return float(likelihood), width, square * left_out

    def _weights(self, left: Covariates, right: Covariates, width: Array) -> Array:
        if self.kernel is not None:
            K = call(self.kernel, left, right)
        elif right.Z.shape[1] == 0:
            K = (left.category[:, None] == right.category).astype(float)
        else:
            K = rbf_delta(left, right, width)
        K += 1e-12 * max(float(K.max()), 1e-300)  # far from all rows, every row counts a little
        return K

    def _smoother(self, left: Covariates, right: Covariates, K: Array) -> Array:
        """Return the rows of weights that give the local linear mean at every left point."""
        p = 0 if self.kernel is not None else right.Z.shape[1]
        if p == 0:
            return K / K.sum(axis=1, keepdims=True)
        K = K / K.sum(axis=1, keepdims=True)
        mean = K @ right.Z
        first = mean - left.Z
        squares = (right.Z[:, :, None] * right.Z[:, None, :]).reshape(len(right.Z), -1)
        second = (K @ squares).reshape(-1, p, p)
        second -= mean[:, :, None] * mean[:, None, :]  # local covariance
        trace = np.trace(second, axis1=1, axis2=2) / p
        second += (1e-3 * trace[:, None, None] + 1e-12) * np.eye(p)
        slope = np.linalg.solve(second, first[:, :, None])[:, :, 0]
        tilt = slope @ right.Z.T
        tilt -= (mean * slope).sum(axis=1)[:, None] + 1.0
        K *= -tilt
        return K


class StrataConditional(BaseConditional):
    """An estimator for categorical confounders, all rows in one pass."""

    @abstractmethod
    def moments(
        self, domains: Domains, strata: Strata, support: Support
    ) -> tuple[Moments, Moments]:
        """Return the moments of (query, reference) at the support values."""


class Stratified(StrataConditional):
    r"""Means and variances within each stratum, in one pass over the rows.

    Variances have the divisor n - 1. A stratum with one row borrows the pooled within-stratum
    variance of its domain, and no variance is taken below 1e-4 of that. With `groups`, rows of one
    subject count for less (see `condokit.statistics.effective_counts`).
    """

    def moments(  # noqa: D102
        self, domains: Domains, strata: Strata, support: Support
    ) -> tuple[Moments, Moments]:
        n_values = len(support.levels)
        place = np.full(len(strata.levels), -1, dtype=np.int32)
        place[support.index] = np.arange(n_values, dtype=np.int32)
        cell = place[strata.codes]
        cell[(cell >= 0) & ~domains.is_query] += n_values
        stats = _gather(domains, cell, 2 * n_values)
        counts = stats.count
        if domains.groups is not None:
            counts = self._independent(domains, cell, stats)
        halves = (slice(None, n_values), slice(n_values, None))
        query, reference = (
            moments_from(stats.count[h], stats.mean[h], stats.squares[h], counts[h]) for h in halves
        )
        return query, reference

    @staticmethod
    def _independent(domains: Domains, cell: Array, stats: GroupedMoments) -> Array:
        """Return the number of independent rows in each cell."""
        assert domains.groups is not None
        used = cell >= 0
        pairs = cell.astype(np.int64) * (domains.groups.max() + 1) + domains.groups
        distinct, codes = np.unique(pairs[used], return_inverse=True)
        cluster = np.full(len(cell), -1, dtype=np.int64)
        cluster[used] = codes
        clusters = _gather(domains, cluster, len(distinct))
        stratum = distinct // (domains.groups.max() + 1)
        return effective_counts(stats.count, stats.squares, clusters, stratum)


def moments_from(count: Array, mean: Array, squares: Array, independent: Array) -> Moments:
    """Turn grouped sums into moments, with borrowed and floored variances."""
    dof = count - 1
    lone = dof < 0.5
    pooled = squares[~lone].sum(axis=0) / max(float(dof[~lone].sum()), 1e-300)
    var = squares / np.where(lone, 1.0, dof)[:, None]
    var[lone] = pooled
    var = np.maximum(var, _VARIANCE_FLOOR * pooled)
    with np.errstate(divide="ignore"):
        precision = 1 / var
    # one subject with many rows still has a variance, if a poor one
    return Moments(
        mean, var, precision, independent, np.where(lone, 0.0, np.maximum(independent - 1, 0.5))
    )


def _gather(domains: Domains, groups: Array, n_groups: int) -> GroupedMoments:
    """Read all rows once, and refuse NaN and infinity."""
    stats = GroupedMoments(n_groups, domains.n_features)
    weights = domains.weights
    for rows, chunk in domains.chunks():
        with np.errstate(invalid="ignore", over="ignore"):
            if groups[rows].min() < 0 and not np.isfinite(chunk.sum()):
                domains.refuse_non_finite()  # also in rows that are not compared
            stats.update(chunk, groups[rows], None if weights is None else weights[rows])
    if not stats.squares.max(initial=0.0) < _LARGEST_SQUARE:
        domains.refuse_non_finite()
        raise ValueError(
            "The features are too large for double precision (their squares exceed 1e150). "
            "Rescale them."
        )
    return stats


CONDITIONALS: dict[str, type[BaseConditional]] = {
    "stratified": Stratified,
    "kernel": KernelSmoother,
}
