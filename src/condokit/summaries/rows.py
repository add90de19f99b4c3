"""The compared rows of all domains, read only when needed, and moments of their strata."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from condokit.checks import Array
from condokit.compare.comparison import Comparison
from condokit.conditionals.base import Moments, moments_from
from condokit.data.arrays import is_constant, ones_for_zeros
from condokit.data.bins import Bins, side_by_side
from condokit.data.continuous import Continuous
from condokit.data.covariates import Covariates, crossed
from condokit.data.grouped import GroupedMoments
from condokit.data.study import Study
from condokit.summaries.moments import is_flat, without_flat

MANY_ROWS = 20_000  # above this, values of features with heavy tails are binned


@dataclass(frozen=True)
class Single:
    """Values of some features, how many rows each stands for, and their domain and level."""

    X: Array  # (n_values, n_features), in standard units
    counts: Array  # (n_values, 1 or n_features)
    batch: Array  # (n_values,): the number of the domain
    category: Array  # (n_values,)


@dataclass(frozen=True)
class Rows:
    """Rows of K domains, one domain after another, in standard units of each domain.

    Two domains are the query, then the reference. If all confounders are categories, no rows are
    needed: `strata` has the sums of powers of every cell. Only `values` reads rows, of the
    requested features.
    """

    domains: Study
    used: Array  # the numbers of the rows that are compared, increasing
    order: Array  # the permutation of these that sorts rows by domain
    batch: Array  # domains of the ordered rows: 0, ..., K - 1
    reference: int
    covariates: Covariates  # of the ordered rows, with how many rows each counts for
    strata: GroupedMoments  # of the strata of the first domain, then of the next
    mean: Array  # (K, n_features): mean of each domain, and
    unit: Array  # (K, n_features): standard deviation; standard units are (x - mean) / unit
    flat: Array  # (n_features,): whether it is constant within strata in a domain
    spread: Array  # (n_features,): of the reference within strata
    groups: Array | None = None  # subjects, each wherever its rows are
    bridge: Array | None = None  # samples that were measured in several domains, -1 for others

    @classmethod
    def read(cls, domains: Study, comparison: Comparison, scaled: bool) -> "Rows":
        """Gather what is known of two domains; `scaled` if the map has scales."""
        L, used = len(comparison.support.levels), comparison.used
        place = np.where(domains.is_query | (comparison.place < 0), 0, L) + comparison.place
        batch = 1 - comparison.is_query
        rows = cls._gathered(domains, used, batch, place, comparison.covariates, 2, 1)
        query, reference = rows._moments()
        _, reference, flat = without_flat(query, reference, scaled)
        spread = np.sqrt(comparison.support.weights @ reference.var)
        return replace(rows, flat=flat, spread=spread)

    @classmethod
    def among(cls, study: Study, batches: list[int], reference: int) -> "Rows":
        """Gather what is known of some domains of a study, given by number."""
        chosen = study.among(*batches)
        if study.n_bridges and not study.confounders:
            chosen &= study.bridge >= 0  # without confounders, only bridge samples can be compared
        used, number = np.flatnonzero(chosen), np.full(study.n_domains, -1)
        number[batches] = np.arange(len(batches))
        batch, at = number[study.code[used]], crossed(study, used)
        place = np.full(len(study.code), -1, dtype=np.intp)
        place[used] = batch * at.n_categories + at.category
        where = len(batches), batches.index(reference)
        rows = cls._gathered(study, used, batch, place, at, *where)
        several = [own for own in rows._moments() if (own.dof > 0).any()]
        flat = [rows.flat, *(is_flat(own.mean, own.var) for own in several)]
        return replace(rows, flat=np.any(flat, axis=0))

    @classmethod
    def _gathered(
        cls, study: Study, used: Array, batch: Array, place: Array, at: Covariates, *where: int
    ) -> "Rows":
        """Gather strata; `place` is the stratum of every row, -1 for rows that are not compared.

        `where` are the number of domains and that of the reference.
        """
        (K, reference), kind = where, partial(GroupedMoments, products=True)
        stats = study.gather(place, K * at.n_categories, kind)
        # domains as a whole: squares within strata plus those of the strata's means
        n, mean, squares = (np.stack(np.split(t, K)) for t in (stats.n, stats.mean, stats.squares))
        total = ones_for_zeros(n.sum(axis=1))
        middle = (n * mean).sum(axis=1) / total
        squares = squares.sum(axis=1) + (n * (mean - middle[:, None]) ** 2).sum(axis=1)
        unit = np.sqrt(squares / total)
        unit = np.where(constant := is_constant(unit, middle), 0.0, unit)
        # a domain of equal values has the unit of the others
        varies = np.maximum((unit > 0).sum(axis=0), 1)
        unit = np.where(unit > 0, unit, ones_for_zeros(np.sqrt((unit**2).sum(axis=0) / varies)))
        order, groups, bridge = np.argsort(batch, kind="stable"), None, None
        if study.groups is not None:
            groups = np.unique(study.groups[used][order], return_inverse=True)[1]
        if study.n_bridges and (study.bridge[used] >= 0).any():
            bridge = study.bridge[used][order]
        flat = np.asarray(constant.any(axis=0))
        known = batch[order], reference, at.take(order), stats, middle, unit
        return cls(study, used, order, *known, flat, np.ones(len(flat)), groups, bridge)

    def _moments(self) -> list[Moments]:
        """Return the moments of the strata of every domain."""
        tables = self.strata.count, self.strata.mean, self.strata.squares
        parts = zip(*(np.split(table, self.n_batches) for table in tables))
        return [moments_from(n, mean, squares, n) for n, mean, squares in parts]

    @property
    def n_batches(self) -> int:
        """The number of domains."""
        return len(self.mean)

    @property
    def n_query(self) -> int:
        """The rows of the first domain."""
        return int(np.searchsorted(self.batch, 1))

    @property
    def by_batch(self) -> list[Array]:
        """The numbers of the rows of every domain."""
        edges = np.searchsorted(self.batch, np.arange(1, self.n_batches))
        return np.split(np.arange(len(self.batch)), edges)

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
        """Return what is known of continuous confounders, by the strata of domains."""
        known = self.domains.sums_only.continuous
        found = Continuous(known.basis, len(self.strata.count), len(self.flat))
        found.merge(known, self.place())
        return found

    @property
    def cell(self) -> Array:
        """The stratum of every row, by domain."""
        return self.covariates.category + self.covariates.n_categories * self.batch

    def place(self) -> Array:
        """Return the stratum of every cell of the sums, by domain; -1 if it is not compared."""
        sums = self.domains.sums_only
        place = np.full(len(sums.label), -1)
        place[sums.cell[self.used[self.order]]] = self.cell
        return place

    def complete(self, X: Array) -> "tuple[Rows, Array]":
        """Return the complete rows, weighted so that they stand for all rows of their stratum."""
        known = np.flatnonzero(~np.isnan(X).any(axis=1))
        at, cell, total = self.covariates, self.cell[known], self.strata.n[:, 0]
        counts = at.counts[known]
        seen = np.bincount(cell, counts, len(total))
        weights = counts * (total / ones_for_zeros(seen))[cell]
        covariates = replace(at.take(known), weights=weights)
        order, batch = self.order[known], self.batch[known]
        return replace(self, order=order, batch=batch, covariates=covariates), X[known]

    def units(self, features: Array) -> tuple[Array, Array]:
        """Return means and spreads of some features in all domains."""
        return self.mean[:, features], self.unit[:, features]

    def single(self, features: Array) -> "Callable[[Array], Single | None]":
        """Return a function that reads values of some of these features, in standard units."""
        at, sums = self.covariates, self.domains.sums_only
        if sums is None and len(self.order) > MANY_ROWS:
            return self._binned
        if sums is None:
            return self._each
        known = sums.values(features)
        row = np.full(len(sums.label), -1)
        row[sums.cell[self.used[self.order]]] = np.arange(len(self.order))

        def read(part: Array) -> Single | None:
            """Return the values of a part of the features, None if some are unknown."""
            if not {*part.tolist()} <= known.keys():
                return None
            cell, ends, counts = side_by_side([known[j].placed(row) for j in part.tolist()])
            where = self.batch[cell][:, None], part
            X = (ends - self.mean[where]) / self.unit[where]
            return Single(X, counts, self.batch[cell], at.category[cell])

        return read

    def _each(self, features: Array) -> Single:
        """Return the values of all rows, unbinned."""
        X, counts = self.values(features), self.weights[:, None]
        if self.domains.gaps is not None:
            counts, X = counts * ~np.isnan(X), np.nan_to_num(X)
        return Single(X, counts, self.batch, self.covariates.category)

    def _binned(self, features: Array) -> Single:
        """Return the values in narrow bins: fewer numbers than rows, and as good for fits of t."""
        at, stats, L = self.covariates, self.strata, self.covariates.n_categories
        where = np.arange(len(stats.count))[:, None] // L, features
        centres = (stats.mean[:, features] - self.mean[where]) / self.unit[where]
        bins = Bins(centres, stats.sd[:, features] / self.unit[where])
        bins.update(self.values(features), self.cell, at.weights)
        cell, X, counts = side_by_side([bins.values(k) for k in range(len(features))])
        return Single(X, counts, cell // L, cell % L)

    def values(self, features: Array | None = None, rows: Array | None = None) -> Array:
        """Return features of rows in standard units, (n_rows, n_features); None stands for all."""
        some = features is not None and len(features) < self.domains.n_features
        domains = self.domains.of(features) if some and features is not None else self.domains
        mine = features if some else slice(None)
        place, batch = (t if rows is None else t[rows] for t in (self.order, self.batch))
        if (place[1:] > place[:-1]).all():
            X = domains.rows(self.used[place])
        else:  # rows are read from top to bottom
            back = np.argsort(place, kind="stable")
            X = np.empty((len(place), domains.n_features))
            X[back] = domains.rows(self.used[place[back]])
        for b in range(self.n_batches):
            own = slice(*np.searchsorted(batch, [b, b + 1]))
            X[own] -= self.mean[b, mine]
            X[own] /= self.unit[b, mine]
        return X
