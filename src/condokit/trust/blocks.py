"""Reads tables for a fitted map, and puts comparable rows into blocks of similar confounders."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.checks import Array, listing
from condokit.compare.comparison import Comparison
from condokit.compare.overlap import propensity
from condokit.conditionals.curves import Splines
from condokit.data.arrays import ones_for_zeros, sides
from condokit.data.blocks import blocks_of
from condokit.data.covariates import Covariates
from condokit.data.disclosure import MIN_CELL, too_few
from condokit.data.missing import with_gaps
from condokit.data.reader import read_pair, read_two
from condokit.data.roles import Roles, recalled
from condokit.data.study import Study
from condokit.data.subsets import subsample, subsample_sides
from condokit.data.sums import no_rows
from condokit.data.tables import Table
from condokit.fit.estimator import how_read
from condokit.maps.base import Map

_MOST_COMPARED = 5000  # rows of a domain that are used
_MOST_OF_CURVES = 2500  # rows to which curves given confounders are fitted
_ROWS_PER_BLOCK = 40  # of both domains, given continuous confounders
_MOST_BINS = 10  # of the propensity within a category


ROLES = ("domain", "confounders", "features", "groups", "sample_weight")


def read_as_fitted(adapter: ConDoAdapter, X: Any, *roles: Any, other: Any = None) -> Study:
    """Read tables as a fitted adapter did; `roles` (see `ROLES`) replace those of its fit."""
    if not isinstance(adapter, ConDoAdapter) or not hasattr(adapter, "map_"):
        raise ValueError("'adapter' must be a fitted ConDoAdapter.")
    given = dict(zip(ROLES, roles))
    return read_for_map(
        adapter.map_, X, other, given, how_read(adapter), adapter.reference, adapter
    )


def read_for_map(
    affine: Any,
    X: Any,
    other: Any,
    given: dict[str, Any],
    how: dict[str, Any],
    reference: Any,
    adapter: ConDoAdapter | None = None,
) -> Study:
    """Read one table of both domains, or two tables; a `Study` is returned as it is.

    Roles that are not `given` are those with which the adapter was fitted. Features are those that
    the map names, in its order.
    """
    if isinstance(X, Study):
        return _in_map_order(X, affine)
    named = given["features"] is None and affine.feature_names is not None
    if named and (blocks_of(X) or Table(X)).columns is not None:
        given = given | {"features": list(affine.feature_names)}
    known = getattr(adapter, "_roles", {})
    roles = recalled(known, given if other is None else given | {"domain": ()})
    if other is None:
        label, *others = roles.values()
        return _in_map_order(read_two(X, Roles(label, *others, **how), reference), affine)
    if given["domain"] is not None:
        raise ValueError("Give 'domain', or the reference as a second table, not both.")
    own = roles["confounders"], roles["groups"], roles["sample_weight"]
    pair = Roles.of_pair((None, None), *own, features=roles["features"], **how)
    return _in_map_order(read_pair(X, other, pair, False), affine)


def known_rows(domains: Study) -> Study:
    """Return domains in memory as they are; of others, the sample of rows that is held."""
    if domains.is_whole:
        return domains
    if not domains.has_rows:
        raise no_rows()
    return with_gaps(domains.sampled())


def _in_map_order(domains: Study, affine: Map) -> Study:
    """Return the domains with the features of a map, in its order."""
    table = domains.tables[0]
    if affine.feature_names is not None and table.columns is not None:
        place = {name: j for j, name in enumerate(table.labels)}
        lacking = [name for name in affine.feature_names if name not in place]
        if lacking:
            raise ValueError(f"'features' lacks {listing(lacking)}, which the map takes.")
        return domains.of(np.array([place[name] for name in affine.feature_names]))
    n, n_taken = table.n_features, affine.n_features_in_
    if n != n_taken:
        raise ValueError(f"There are {n} features, but the map takes {n_taken}.")
    return domains


@dataclass(frozen=True)
class ComparableRows:
    """Rows of both domains whose confounders are comparable, in blocks."""

    before: Array  # (n_rows, n_features), query rows as recorded
    after: Array  # (n_rows, n_features), query rows mapped
    is_query: Array  # (n_rows,), as all that follow
    block: Array  # number of the block: same categories, similar continuous confounders
    category: Array  # number of the combination of categories
    covariates: Covariates | None  # continuous confounders, if there are any
    groups: Array | None  # the subject of each row
    row_number: Array  # in the table
    few: Array | None = None  # (n_features,), whether a domain has too few values
    min_cell: int = MIN_CELL  # rows, below which figures are not shown

    @classmethod
    def of(
        cls, domains: Study, comparison: Comparison, affine: Map, min_cell: int = MIN_CELL
    ) -> "ComparableRows":
        """Gather at most 5000 rows of each domain, evenly taken by weight, and map the query's."""
        place = comparison.place
        row_number = _evenly_taken(domains, place >= 0)
        is_query = domains.is_query[row_number]
        before = domains.rows(row_number)
        after = before.copy()
        after[is_query] = affine(before[is_query])
        category = place[row_number]
        block, covariates = category, None
        if domains.continuous:
            covariates = comparison.covariates.take(np.searchsorted(comparison.used, row_number))
            block = _blocks(covariates, is_query)
        groups = None if domains.groups is None else domains.groups[row_number]
        if groups is None and domains.weights is not None:
            groups = row_number  # a row taken twice, for its weight, is one unit of evidence
        known = ~np.isnan(after)
        few = np.array([too_few(known[s].sum(axis=0), min_cell) for s in (~is_query, is_query)])
        if domains.gaps is not None:
            _fill_gaps(before, after, 2 * block + is_query, few)
        shown = few[0] | few[1], min_cell
        return cls(before, after, is_query, block, category, covariates, groups, row_number, *shown)

    def residuals(self, X: Array) -> Array:
        r"""Return residuals given continuous confounders, with one curve for both domains.

        They are :math:`(x - \mu(z)) \bar\sigma / \sigma(z)`: freed of the mean given z, and of
        differences of the spread given z. Without continuous confounders X itself is returned,
        since blocks are then strata.
        """
        if self.covariates is None:
            return X
        return self._after_residuals if X is self.after else self._residuals(X)

    @cached_property
    def _after_residuals(self) -> Array:
        """Residuals of mapped rows, computed once for all who ask."""
        return self._residuals(self.after)

    def _residuals(self, X: Array) -> Array:
        """Return residuals of X given the continuous confounders; see `residuals`."""
        assert self.covariates is not None
        few = _even_rows(self.covariates.category)
        at = Splines().moments_at(X[few], self.covariates.take(few), self.covariates)
        return (X - at.mean) * np.sqrt(at.var.mean(axis=0) / ones_for_zeros(at.var))

    @cached_property
    def expected(self) -> Array:
        """The reference's mean of every feature given the confounders of each row."""
        there, X = ~self.is_query, self.after[~self.is_query]
        if self.covariates is not None:
            own = self.covariates.take(there)
            few = _even_rows(own.category)
            return Splines().moments_at(X[few], own.take(few), self.covariates).mean
        means = np.zeros((int(self.block.max()) + 1, X.shape[1]))
        for k in np.unique(self.block[there]):
            means[k] = X[self.block[there] == k].mean(axis=0)
        return means[self.block]

    def take(self, features: Array) -> "ComparableRows":
        """Return the same rows with some of the features."""
        few = None if self.few is None else self.few[features]
        X, Y = (one[:, features] for one in (self.before, self.after))
        return replace(self, before=X, after=Y, few=few)

    @property
    def hides_all(self) -> bool:
        """Whether no feature has values enough for figures of it to be shown."""
        return self.few is not None and bool(self.few.all())

    @property
    def rows_per_subject(self) -> float:
        """Mean rows per subject: the factor by which squared errors of means may be too small."""
        return 1.0 if self.groups is None else len(self.groups) / len(np.unique(self.groups))

    def shared_blocks(self) -> list[Array]:
        """Return the positions of the rows of each block that has rows of both domains."""
        found = [np.flatnonzero(self.block == k) for k in np.unique(self.block)]
        return [rows for rows in found if 0 < self.is_query[rows].sum() < len(rows)]

    def permuted(self, n_permutations: int, rng: np.random.Generator) -> Array:
        """Return permuted domain labels (True: query) of shape (n_rows, n_permutations).

        Labels change places within blocks. Rows of a subject stay together: subjects of one domain
        are permuted among those of their block, and subjects in both domains have their labels
        exchanged with probability 1/2.
        """
        if self.groups is None:
            return _shuffled(self.is_query, self.block, n_permutations, rng)
        _, first, subject = np.unique(self.groups, return_index=True, return_inverse=True)
        share = np.bincount(subject, self.is_query) / np.bincount(subject)
        both = (share > 0) & (share < 1)
        kind = np.where(both, -1, self.block[first])
        turned = _shuffled(self.is_query[first], kind, n_permutations, rng)
        turned[both] = (rng.random(turned.shape) < 0.5)[both]
        return turned[subject] ^ (both[subject] & self.is_query)[:, None]


def _even_rows(category: Array) -> Array:
    """Return at most 2500 rows spread over all categories; all rows if a category would be lost."""
    every = np.arange(len(category))
    order = np.argsort(category, kind="stable")
    few = np.sort(order[subsample(len(order), _MOST_OF_CURVES)])
    return few if len(np.unique(category[few])) == len(np.unique(category)) else every


def _evenly_taken(domains: Study, compared: Array) -> Array:
    """Return at most 5000 rows of each domain; a row of weight two is taken twice.

    With weights this is systematic sampling: rows at equal steps of the cumulative weight.
    """
    if domains.weights is None:
        return np.sort(subsample_sides(domains.is_query, _MOST_COMPARED, compared))
    taken = []
    for _, side in sides(domains.is_query):
        rows = np.flatnonzero(side & compared)
        upto = np.cumsum(domains.weights[rows])
        n = max(min(round(upto[-1]), _MOST_COMPARED), 1)
        taken.append(rows[np.searchsorted(upto, (np.arange(n) + 0.5) / n * upto[-1])])
    return np.sort(np.concatenate(taken))


def _fill_gaps(before: Array, after: Array, cell: Array, few: Array) -> None:
    """Impute missing values: the mean of the cell plus the residual of a random row of the domain.

    A cell is a block in one domain. Repeating the values of a cell with few rows would make its
    spread too small, so residuals come from all cells of the domain. The residual of a row from the
    mean of n rows has the variance :math:`(1 - 1/n)`, and a value around the mean of m others
    :math:`(1 + 1/m)`; residuals are rescaled from the one to the other. In a domain with `few`
    values of a feature, all are replaced by the other domain's, so that no figure tells of them.
    """
    rng = np.random.default_rng(0)
    for j in np.flatnonzero(np.isnan(after).any(axis=0)):
        known = ~np.isnan(after[:, j])
        side = cell % 2
        if few[:, j].sum() == 1:  # the cells of this domain are the other's
            side = np.full(len(cell), few[:, j].argmin())
            known &= cell % 2 == side
        place = cell - cell % 2 + side
        n = np.bincount(place[known], minlength=int(cell.max()) + 2)
        for c in (0, 1):
            gaps, donors = (np.flatnonzero(one & (side == c)) for one in (~known, known))
            if not len(gaps):
                continue
            inner = donors[n[place[donors]] > 1]
            drawn = rng.choice(inner if len(inner) else donors, len(gaps))
            size, own = n[place[drawn]], n[place[gaps]]
            grown = np.sqrt(size / np.maximum(size - 1, 1) * (1 + 1 / np.maximum(own, 1)))
            for X in (before, after):
                sums = np.bincount(place[known], X[known, j], len(n))
                mean = np.where(n > 0, sums / np.maximum(n, 1), X[donors, j].mean())
                X[gaps, j] = mean[place[gaps]] + (X[drawn, j] - mean[place[drawn]]) * grown


def _shuffled(label: Array, block: Array, n_permutations: int, rng: Any) -> Array:
    """Return labels permuted within blocks, (n_rows, n_permutations)."""
    out = np.empty((len(label), n_permutations), dtype=bool)
    for k in np.unique(block):
        rows = np.flatnonzero(block == k)
        order = rng.random((len(rows), n_permutations)).argsort(axis=0)
        out[rows] = label[rows][order]
    return out


def _blocks(covariates: Covariates, is_query: Array) -> Array:
    """Return block numbers: within each category, bins of the propensity of about 40 rows.

    Rows with the same propensity score have the same law of confounders in both domains.
    """
    e = propensity(covariates, is_query)
    block = np.empty(len(e), dtype=np.intp)
    n_blocks = 0
    for k in np.unique(covariates.category):
        rows = np.flatnonzero(covariates.category == k)
        n_bins = int(np.clip(len(rows) // _ROWS_PER_BLOCK, 1, _MOST_BINS))
        order = np.argsort(e[rows], kind="stable")
        block[rows[order]] = n_blocks + np.arange(len(rows)) * n_bins // len(rows)
        n_blocks += n_bins
    return block
