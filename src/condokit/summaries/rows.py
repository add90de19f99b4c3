"""The compared rows of both domains, read when they are needed, and moments of their strata."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from condokit.checks import Array
from condokit.compare.comparison import Comparison
from condokit.conditionals.base import moments_from
from condokit.data.arrays import is_constant, ones_for_zeros
from condokit.data.bins import Bins, side_by_side
from condokit.data.continuous import Continuous
from condokit.data.covariates import Covariates
from condokit.data.grouped import GroupedMoments
from condokit.data.study import Study
from condokit.summaries.moments import cells, without_flat

MANY_ROWS = 20_000  # from which single values of features with heavy tails are counted in bins


@dataclass(frozen=True)
class Single:
    """Values of some features, how many rows each counts for, and where they are."""

    X: Array  # (n_values, n_features), in standard units
    counts: Array  # (n_values, 1 or n_features)
    side: Array  # (n_values,): 0 for the query, 1 for the reference
    category: Array  # (n_values,)


@dataclass(frozen=True)
class Rows:
    """Rows of both domains, the query's first, in units that make each domain's features standard.

    Categories alone need no rows: `strata` has the sums of powers of every cell. Only `values`
    reads rows, of the features that are asked for.
    """

    domains: Study
    used: Array  # the numbers of the rows that are compared, increasing
    order: Array  # that puts the query's first
    n_query: int
    covariates: Covariates  # of the ordered rows, with how many rows each counts for
    strata: GroupedMoments  # of the query's strata, then of the reference's
    mean: Array  # (2, n_features) of query and reference: the units
    unit: Array
    flat: Array  # (n_features,): whether it is constant within strata in a domain
    spread: Array  # (n_features,): of the reference within strata
    groups: Array | None = None  # subjects, each wherever its rows are

    @classmethod
    def read(cls, domains: Study, comparison: Comparison, scaled: bool) -> "Rows":
        """Gather what is known of the compared rows in one pass; `scaled` if spreads are needed."""
        n_values = len(comparison.support.levels)
        kind = partial(GroupedMoments, products=True)
        stats = domains.gather(cells(domains, comparison), 2 * n_values, kind)
        tables = (stats.count, stats.mean, stats.squares, stats.count)
        query, reference = (moments_from(*half) for half in zip(*(np.split(t, 2) for t in tables)))
        _, reference, flat = without_flat(query, reference, scaled)
        # of each domain as a whole: strata with their means spread around the domain's
        count, mean, squares = (np.stack(np.split(t, 2)) for t in tables[:3])
        total = count.sum(axis=1)[:, None]
        middle = np.einsum("sk,skd->sd", count, mean) / total
        squares = squares.sum(axis=1) + np.einsum(
            "sk,skd->sd", count, (mean - middle[:, None]) ** 2
        )
        unit = np.sqrt(squares / total)
        constant = is_constant(unit, middle)
        unit = np.where(constant, np.where(constant, 1.0, unit)[::-1], unit)
        is_query = comparison.is_query
        order = np.argsort(~is_query, kind="stable")
        groups = None
        if domains.groups is not None:
            groups = np.unique(domains.groups[comparison.used][order], return_inverse=True)[1]
        return cls(
            domains,
            comparison.used,
            order,
            int(is_query.sum()),
            comparison.covariates.take(order),
            stats,
            middle,
            unit,
            flat,
            np.sqrt(comparison.support.weights @ reference.var),
            groups,
        )

    @property
    def weights(self) -> Array:
        """How many rows each counts for."""
        return self.covariates.counts

    def of(self, features: Array) -> "Rows":
        """Return some of the features."""
        if len(features) == len(self.flat):
            return self
        own = {name: getattr(self, name)[:, features] for name in ("mean", "unit")}
        own |= {name: getattr(self, name)[features] for name in ("flat", "spread")}
        domains, strata = self.domains.of(features), self.strata.of(features)
        return replace(self, domains=domains, strata=strata, **own)

    def continuous(self) -> Continuous:
        """Return what is known of continuous confounders, by the query's strata first."""
        known = self.domains.sums_only.continuous
        found = Continuous(known.basis, len(self.strata.count), len(self.flat))
        found.merge(known, self.place())
        return found

    def place(self) -> Array:
        """Return the stratum of every cell of sums, the query's first, -1 if it is not compared."""
        sums, L = self.domains.sums_only, len(self.strata.count) // 2
        place, side = np.full(len(sums.label), -1), np.arange(len(self.order)) >= self.n_query
        place[sums.cell[self.used[self.order]]] = self.covariates.category + L * side
        return place

    def complete(self, X: Array) -> "tuple[Rows, Array]":
        """Return the rows that lack no value, which then stand for those of their stratum."""
        known = np.flatnonzero(~np.isnan(X).any(axis=1))
        at, side = self.covariates, (np.arange(len(X)) >= self.n_query) * 1
        group = at.category + side * at.n_categories
        total = self.strata.n[:, 0]
        counts = at.counts[known]
        seen = np.bincount(group[known], counts, len(total))
        weights = counts * (total / ones_for_zeros(seen))[group[known]]
        covariates = replace(at.take(known), weights=weights)
        n_query = int((known < self.n_query).sum())
        own = replace(self, order=self.order[known], n_query=n_query, covariates=covariates)
        return own, X[known]

    def units(self, features: Array) -> tuple[Array, Array]:
        """Return means and spreads of some features in query and reference."""
        return self.mean[:, features], self.unit[:, features]

    def single(self, features: Array) -> "Callable[[Array], Single | None]":
        """Return how to read the values of some of these features, in standard units."""
        at, side = self.covariates, (np.arange(len(self.order)) >= self.n_query) * 1
        sums = self.domains.sums_only
        if sums is None and len(self.order) > MANY_ROWS:
            return self._binned
        if sums is None:
            return lambda part: Single(self.values(part), at.counts[:, None], side, at.category)
        known = sums.values(features)
        row = np.full(len(sums.label), -1)
        row[sums.cell[self.used[self.order]]] = np.arange(len(self.order))

        def read(part: Array) -> Single | None:
            if not {*part.tolist()} <= known.keys():
                return None
            cell, ends, counts = side_by_side([known[j].placed(row) for j in part.tolist()])
            where = side[cell][:, None], part
            X = (ends - self.mean[where]) / self.unit[where]
            return Single(X, counts, side[cell], at.category[cell])

        return read

    def _binned(self, features: Array) -> Single:
        """Return the values of features in narrow bins: fewer than rows, and as good."""
        at, stats, L = self.covariates, self.strata, len(self.strata.count) // 2
        where = np.arange(2 * L)[:, None] // L, features
        centres = (stats.mean[:, features] - self.mean[where]) / self.unit[where]
        bins = Bins(centres, stats.sd[:, features] / self.unit[where])
        group = at.category + L * (np.arange(len(self.order)) >= self.n_query)
        bins.update(self.values(features), group, at.weights)
        cell, X, counts = side_by_side([bins.values(k) for k in range(len(features))])
        return Single(X, counts, cell // L, cell % L)

    def values(self, features: Array | None = None, rows: Array | None = None) -> Array:
        """Return features in standard units, or some of them, of all rows or some."""
        some = features is not None and len(features) < self.domains.n_features
        domains = self.domains.of(features) if some and features is not None else self.domains
        mine = features if some else slice(None)
        place = self.order if rows is None else self.order[rows]
        if (place[1:] > place[:-1]).all():
            X = domains.rows(self.used[place])
        else:  # rows are read from top to bottom
            back = np.argsort(place, kind="stable")
            X = np.empty((len(place), domains.n_features))
            X[back] = domains.rows(self.used[place[back]])
        n_query = self.n_query if rows is None else int((rows < self.n_query).sum())
        for side, part in enumerate((slice(0, n_query), slice(n_query, None))):
            X[part] -= self.mean[side, mine]
            X[part] /= self.unit[side, mine]
        return X
