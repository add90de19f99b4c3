"""The rows of both domains themselves, seen by solvers a block at a time."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from condokit.checks import Array
from condokit.compare.comparison import Comparison
from condokit.data.arrays import ones_for_zeros
from condokit.data.covariates import Covariates
from condokit.data.domains import Domains
from condokit.data.grouped import GroupedMoments
from condokit.data.subsets import mixed_order
from condokit.summaries.moments import moments_in_strata, without_flat

_BLOCK_ROWS = 1 << 12


@dataclass(frozen=True)
class Rows:
    """Rows of both domains in units that make each domain's features standard.

    A solver sees many rows only through `reduce`, and learns curves from a bounded sample
    (`thinned`); so whoever holds the rows (memory here; files read in batches, workers or sites
    elsewhere) differs only in who runs the reduction.
    """

    X: Array  # the rows that are compared
    is_query: Array
    weights: Array  # how many rows each counts for
    covariates: Covariates
    query_mean: Array  # (n_features,): the units
    query_unit: Array
    reference_mean: Array
    reference_unit: Array
    flat: Array  # (n_features,): whether it is constant within strata in a domain
    spread: Array  # (n_features,): of the reference within strata
    groups: Array | None = None  # subjects; one that is in both domains is two

    @classmethod
    def read(cls, domains: Domains, comparison: Comparison, scaled: bool) -> "Rows":
        """Gather the compared rows; `scaled` if spreads are needed."""
        # strata only tell what is constant, and whether there are rows enough
        query, reference = moments_in_strata(domains, comparison)
        query, reference, flat = without_flat(query, reference, scaled)
        spread = np.sqrt(comparison.support.weights @ reference.var)
        used, is_query = comparison.used, comparison.is_query
        X, weights = domains.rows(used), comparison.covariates.counts
        stats, side = GroupedMoments(2, X.shape[1]), (~is_query).astype(np.int32)
        parts = [slice(i, i + _BLOCK_ROWS) for i in range(0, len(X), _BLOCK_ROWS)]
        for part in parts:
            stats.update(X[part], side[part], weights[part])
        unit = ones_for_zeros(np.sqrt(stats.squares / stats.count[:, None]))
        for part in parts:
            X[part] -= stats.mean[side[part]]
            X[part] /= unit[side[part]]
        groups = None
        if domains.groups is not None:
            groups = np.unique(2 * domains.groups[used] + is_query, return_inverse=True)[1]
        units = stats.mean[0], unit[0], stats.mean[1], unit[1]
        return cls(X, is_query, weights, comparison.covariates, *units, flat, spread, groups)

    def reduce(self, kernel: "Callable[[Rows], tuple[Array, ...]]") -> tuple[Array, ...]:
        """Return the sums over blocks of rows of what a kernel returns for each."""
        total: tuple[Array, ...] = ()
        for start in range(0, len(self.X), _BLOCK_ROWS):
            sums = kernel(self.take(slice(start, start + _BLOCK_ROWS)))
            total = tuple(map(np.add, total, sums)) if total else sums
        return total

    def of(self, features: Array) -> "Rows":
        """Return some of the features."""
        units = ("query_mean", "query_unit", "reference_mean", "reference_unit")
        parts = {name: getattr(self, name)[features] for name in (*units, "flat", "spread")}
        return replace(self, X=self.X[:, features], **parts)

    def take(self, rows: Array | slice) -> "Rows":
        """Return some of the rows."""
        parts = {name: getattr(self, name)[rows] for name in ("X", "is_query", "weights")}
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, **parts, covariates=self.covariates.take(rows), groups=groups)

    def discounted(self, correlation: float) -> "Rows":
        r"""Count rows of the same subject for less, by what they are worth.

        The mean of n rows with correlation :math:`\rho` has the variance of
        :math:`n / (1 + (n - 1) \rho)` independent ones.
        """
        if self.groups is None:
            return self
        others = np.bincount(self.groups, self.weights)[self.groups] - self.weights
        return replace(self, weights=self.weights / (1 + np.maximum(others, 0.0) * correlation))

    def thinned(self, max_rows: int) -> "Rows":
        """Return at most so many rows, taken in mixed order from each domain, or all."""
        if len(self.X) <= max_rows:
            return self
        kept, order = [], mixed_order(self.X[:, :3])
        for side in (self.is_query, ~self.is_query):
            rows = order[side[order]]
            most = max(max_rows // 2, max_rows - int((~side).sum()))
            kept.append(np.sort(rows[:most]))
        return self.take(np.concatenate(kept))
