"""Ingredient 3, features given confounders: moments of each domain at the compared values."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from condokit.checks import Array
from condokit.compare.support import Support
from condokit.conditionals.base import BaseConditional
from condokit.data.arrays import columns
from condokit.data.domains import Domains, Strata
from condokit.summaries.grouped import GroupedMoments, ObservedMoments, effective_counts
from condokit.summaries.moments import Moments

_LARGEST_SQUARE = 1e150
_VARIANCE_FLOOR = 1e-4  # of the feature's pooled within-stratum variance


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
    subject count for less (see `condokit.statistics.effective_counts`). Where values are missing,
    each feature has the moments of its own rows in the strata where both domains have some.
    """

    def moments(  # noqa: D102
        self, domains: Domains, strata: Strata, support: Support
    ) -> tuple[Moments, Moments]:
        n_values = len(support.levels)
        cell = cell_of(domains, strata, support)
        stats = _gather(domains, cell, 2 * n_values)
        if domains.gaps is not None:  # what one domain alone has is not compared
            common = (stats.count[:n_values] > 0) & (stats.count[n_values:] > 0)
            _leave_out(stats, ~np.concatenate([common, common]))
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
        if domains.gaps is not None:
            _leave_out(clusters, stats.count[stratum] == 0)
        return effective_counts(stats.count, stats.squares, clusters, stratum)


def moments_from(count: Array, mean: Array, squares: Array, independent: Array) -> Moments:
    """Turn grouped sums into moments, with borrowed and floored variances."""
    dof = count - 1
    lone = dof < 0.5
    some = ~lone if lone.ndim == 1 else ~lone.all(axis=1)
    pooled = np.where(columns(lone), 0.0, squares)[some].sum(axis=0)
    pooled /= np.maximum(np.where(lone, 0.0, dof)[some].sum(axis=0), 1e-300)
    var = np.where(columns(lone), pooled, squares / columns(np.where(lone, 1.0, dof)))
    var = np.maximum(var, _VARIANCE_FLOOR * pooled)
    with np.errstate(divide="ignore"):
        precision = 1 / var
    # one subject with many rows still has a variance, if a poor one
    return Moments(
        mean, var, precision, independent, np.where(lone, 0.0, np.maximum(independent - 1, 0.5))
    )


def cell_of(domains: Domains, strata: Strata, support: Support) -> Array:
    """Return the cell of every row: query's support values, then the reference's; -1 for none."""
    cell = support.place(strata)
    cell[(cell >= 0) & ~domains.is_query] += len(support.levels)
    return cell


def _leave_out(stats: GroupedMoments, places: Array) -> None:
    """Forget what was gathered in some places of the table."""
    for table in (stats.count, stats.mean, stats.squares):
        table[places] = 0.0


def _gather(domains: Domains, groups: Array, n_groups: int) -> GroupedMoments:
    """Read all rows once."""
    kind = GroupedMoments if domains.gaps is None else ObservedMoments
    stats = kind(n_groups, domains.n_features)
    weights = domains.weights
    for rows, chunk in domains.chunks():
        with np.errstate(invalid="ignore", over="ignore"):
            stats.update(chunk, groups[rows], None if weights is None else weights[rows])
    if not stats.squares.max(initial=0.0) < _LARGEST_SQUARE:
        raise ValueError(
            "The features are too large for double precision (their squares exceed 1e150). "
            "Rescale them."
        )
    return stats
