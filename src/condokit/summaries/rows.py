"""Pooled conditional likelihood: one curve for reference rows and mapped query rows together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import positive
from condokit.data.covariates import Covariates
from condokit.data.domains import Domains
from condokit.summaries.grouped import GroupedMoments

_CHUNK_ROWS = 1 << 12


@dataclass(frozen=True)
class Rows:
    """Rows of both domains in units that make each domain's features standard."""

    X: Array
    is_query: Array
    weights: Array
    covariates: Covariates
    query_mean: Array
    query_unit: Array
    reference_mean: Array
    reference_unit: Array
    groups: Array | None = None

    @classmethod
    def read(cls, domains: Domains, covariates: Covariates, used: Array) -> Rows:
        """Gather the compared rows."""
        X = domains.rows(used)
        is_query = domains.is_query[used]
        weights = np.ones(len(used)) if domains.weights is None else domains.weights[used]
        stats = GroupedMoments(2, X.shape[1])
        parts = [slice(i, i + _CHUNK_ROWS) for i in range(0, len(X), _CHUNK_ROWS)]
        for part in parts:
            stats.update(X[part], (~is_query[part]).astype(np.int32), weights[part])
        unit = np.sqrt(stats.squares / stats.count[:, None])
        unit = positive(unit)
        for part in parts:
            side = (~is_query[part]).astype(np.int32)
            X[part] -= stats.mean[side]
            X[part] /= unit[side]
        groups = None
        if domains.groups is not None:  # a subject in both domains is two
            groups = np.unique(2 * domains.groups[used] + is_query, return_inverse=True)[1]
        units = stats.mean[0], unit[0], stats.mean[1], unit[1]
        return cls(X, is_query, weights, covariates, *units, groups)

    def of(self, features: Array) -> Rows:
        """Return some of the features."""
        units = ("query_mean", "query_unit", "reference_mean", "reference_unit")
        parts = {name: getattr(self, name)[features] for name in units}
        return replace(self, X=self.X[:, features], **parts)

    def take(self, rows: Array | slice) -> Rows:
        """Return some of the rows."""
        return replace(
            self,
            X=self.X[rows],
            is_query=self.is_query[rows],
            weights=self.weights[rows],
            covariates=self.covariates.take(rows),
            groups=None if self.groups is None else self.groups[rows],
        )

    def discounted(self, correlation: float) -> Rows:
        r"""Count rows of the same subject for less, by what they are worth.

        The mean of n rows with correlation :math:`\rho` has the variance of
        :math:`n / (1 + (n - 1) \rho)` independent ones.
        """
        if self.groups is None:
            return self
        others = np.bincount(self.groups, self.weights)[self.groups] - self.weights
        return replace(self, weights=self.weights / (1 + np.maximum(others, 0.0) * correlation))

    def thinned(self, max_rows: int) -> Rows:
        """Return at most so many rows, taken at random from each domain, or all."""
        if len(self.X) <= max_rows:
            return self
        rng = np.random.default_rng(0)
        kept = []
        for side in (self.is_query, ~self.is_query):
            rows = np.flatnonzero(side)
            n = min(len(rows), max(max_rows // 2, max_rows - int((~side).sum())))
            kept.append(np.sort(rng.choice(rows, n, replace=False)))
        return self.take(np.concatenate(kept))
