"""Ingredient 3, features given confounders: moments of each domain at the compared values."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from sklearn.base import BaseEstimator

from condokit._validation import Array
from condokit.domains import Domains, Moments, Strata, Support
from condokit.statistics import GroupedMoments, effective_counts

_LARGEST_SQUARE = 1e150
_VARIANCE_FLOOR = 1e-4  # of the feature's pooled within-stratum variance


class BaseConditional(BaseEstimator, ABC):
    """An estimator of the features of each domain given the confounders."""

    @abstractmethod
    def moments(
        self, domains: Domains, strata: Strata, support: Support
    ) -> tuple[Moments, Moments]:
        """Return the moments of (query, reference) at the support values."""


class Stratified(BaseConditional):
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


CONDITIONALS: dict[str, type[BaseConditional]] = {"stratified": Stratified}
