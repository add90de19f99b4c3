"""The plain records that flow through a fit: Domains, Strata, Support, Moments, Gaussians."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from condokit._validation import Array, NoOverlapError, listing
from condokit.drift import MOST_ROWS, Profile
from condokit.frames import Table
from condokit.links import Link
from condokit.links import apply as apply_links
from condokit.records import Sheet, hidden_counts, small_cells

PART = 1 << 16  # rows whose metadata are handled at a time


@dataclass(frozen=True)
class Strata:
    """Rows grouped by their confounder values.

    Attributes
    ----------
    names : list of str
        The confounders.
    levels : list of tuple
        One combination of confounder values per stratum.
    codes : ndarray of shape (n_rows,)
        The stratum of each row.
    count_query, count_reference : ndarray of shape (n_strata,)
        Rows (or weights) of each domain.
    """

    names: list[str]
    levels: list[tuple[Any, ...]]
    codes: Array
    count_query: Array
    count_reference: Array


@dataclass(frozen=True)
class Domains:
    """Both domains: one table or two, and what is known of their rows, stacked in that order."""

    tables: tuple[Table, ...]
    is_query: Array
    confounders: list[Confounder]
    labels: tuple[Any, Any] = ("query", "reference")
    weights: Array | None = None
    groups: Array | None = None
    keep: Array | None = None
    missing: dict[str, int] = field(default_factory=dict)
    links: tuple[Link, ...] | None = None
    gaps: tuple[Array, Array] | None = None  # missing (query, reference) values of each feature

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.tables[0].n_features

    def of(self, places: Array) -> Domains:
        """Return the domains with some of the features."""
        links = None if self.links is None else tuple(self.links[j] for j in places)
        gaps = None if self.gaps is None else (self.gaps[0][places], self.gaps[1][places])
        if gaps is not None and not any(count.any() for count in gaps):
            gaps = None
        tables = tuple(t.take(places) for t in self.tables)
        return replace(self, tables=tables, links=links, gaps=gaps)

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield (stacked row numbers, float64 rows on the scale of links) from top to bottom."""
        start = 0
        for table in self.tables:
            for rows, chunk in table.chunks():
                if self.links is not None:
                    chunk = apply_links(self.links, chunk, table.labels, table.name)
                yield slice(start + rows.start, start + rows.stop), chunk
            start += table.n_rows

    def rows(self, used: Array) -> Array:
        """Return the features of the rows with these increasing numbers, as a new array."""
        X = np.empty((len(used), self.n_features))
        for rows, chunk in self.chunks():
            first, last = np.searchsorted(used, [rows.start, rows.stop])
            X[first:last] = chunk[used[first:last] - rows.start]
        return X

    def kept(self) -> Array:
        """Mark the rows that are not left out, as a new array."""
        everyone = np.ones(len(self.is_query), dtype=bool)
        return everyone if self.keep is None else self.keep.copy()

    def side(self, query: bool, used: Array) -> Array:
        """Return the features of those rows that are of one domain, which may have its own."""
        asked = np.zeros(len(self.is_query), dtype=bool)
        asked[used] = self.is_query[used] == query
        parts = []
        start = 0
        for table in self.tables:
            for rows, chunk in table.chunks():
                wanted = asked[start + rows.start : start + rows.stop]
                if wanted.any():
                    chunk = chunk[wanted]
                    if self.links is not None:
                        chunk = apply_links(self.links, chunk, table.labels, table.name)
                    parts.append(chunk)
            start += table.n_rows
        return np.concatenate(parts)

    @property
    def is_rectangular(self) -> bool:
        """Whether the two domains have different features."""
        one, other = self.tables[0], self.tables[-1]
        if one is other or one.columns is None or other.columns is None:
            return one.n_features != other.n_features
        return one.labels != other.labels

    @property
    def continuous(self) -> list[Confounder]:
        """The confounders that are numbers."""
        return [c for c in self.confounders if c.values is not None]

    def strata(self) -> Strata:
        """Cross the categorical confounders into strata; rows that are not kept have code -1."""
        codes = np.zeros(len(self.is_query), dtype=np.int32)
        levels: list[tuple[Any, ...]] = [()]
        categorical = [c for c in self.confounders if c.values is None]
        for confounder in categorical:
            n_levels = len(confounder.levels)
            small = len(levels) * n_levels < np.iinfo(np.int32).max
            crossed = codes * n_levels if small else codes.astype(np.int64) * n_levels
            crossed += confounder.codes
            distinct, codes = _compress(crossed)
            pairs = [divmod(int(value), n_levels) for value in distinct]
            levels = [(*levels[left], confounder.levels[right]) for left, right in pairs]
        counts = np.zeros((2, len(levels)), dtype=np.int64 if self.weights is None else float)
        for start in range(0, len(codes), PART):
            rows = slice(start, start + PART)
            weights = None if self.weights is None else self.weights[rows]
            cells = 2 * codes[rows] + ~self.is_query[rows]
            if self.keep is not None:
                cells = cells[self.keep[rows]]
                weights = None if weights is None else weights[self.keep[rows]]
            counts += np.bincount(cells, weights, 2 * len(levels)).reshape(-1, 2).T
        if self.keep is not None:
            codes[~self.keep] = -1
        return Strata([c.name for c in categorical], levels, codes, counts[0], counts[1])


@dataclass(frozen=True)
class Confounder:
    """One confounder: distinct values and the number of each row's, or values if continuous."""

    name: str
    levels: list[Any]
    codes: Array
    values: Array | None = None

    def as_given(self) -> Array:
        """Return the value of every row."""
        if self.values is not None:
            return self.values
        levels = np.empty(len(self.levels), dtype=object)
        levels[:] = self.levels
        return levels[self.codes]


@dataclass(frozen=True)
class Support:
    """The confounder values that are compared, with their weights and the rows behind them.

    Attributes
    ----------
    names : list of str
        The confounders.
    levels : list of tuple
        One combination of confounder values per row of this table.
    weights : ndarray of shape (n_values,)
        Prior weights; they sum to one.
    count_query, count_reference : ndarray of shape (n_values,)
        Rows of each domain (sums of `sample_weight` if given).
    dropped : list of dict
        Confounder values seen in one domain only, with their counts: not compared.
    index : ndarray of shape (n_values,)
        Place of each value among all strata.
    """

    names: list[str]
    levels: list[tuple[Any, ...]]
    weights: Array
    count_query: Array
    count_reference: Array
    dropped: list[dict[str, Any]] = field(default_factory=list)
    index: Array = field(default_factory=lambda: np.empty(0, dtype=np.intp), repr=False)

    def place(self, strata: Strata) -> Array:
        """Return the place of every row among the values compared, -1 for rows that are not."""
        place = np.full(len(strata.levels) + 1, -1, dtype=np.int32)  # the last is that of code -1
        place[self.index] = np.arange(len(self.index), dtype=np.int32)
        return place[strata.codes]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the table as columns, ready for a data frame."""
        counts = {
            "weight": self.weights.tolist(),
            "n_query": self.count_query.tolist(),
            "n_reference": self.count_reference.tolist(),
        }
        return {**_level_columns(self.names, self.levels, counts), **counts}

    def __repr__(self) -> str:
        columns = self.to_dict()
        for name, counts in (("n_query", self.count_query), ("n_reference", self.count_reference)):
            columns[name] = hidden_counts(counts)
            if small_cells(counts).any():
                columns.pop("weight", None)  # it would tell them
        text = repr(Sheet(columns))
        if self.dropped:
            left_out = [tuple(row[name] for name in self.names) for row in self.dropped]
            text += f"\nnot compared (one domain only): {listing(left_out)}"
        return text


@dataclass(frozen=True)
class Moments:
    """Conditional means and variances of one domain at every support value.

    Attributes
    ----------
    mean, var : ndarray of shape (n_values, n_features)
        Mean and variance of every feature.
    precision : ndarray of shape (n_values, n_features)
        What to use for 1 / var: exactly that, or an estimate freed of its bias.
    count : ndarray of shape (n_values,) or (n_values, n_features)
        Independent rows behind each mean; of every feature where values are missing.
    dof : ndarray of shape (n_values,) or (n_values, n_features)
        Degrees of freedom behind each variance.
    """

    mean: Array
    var: Array
    precision: Array
    count: Array
    dof: Array


@dataclass(frozen=True)
class Gaussians:
    """Conditional means and covariances of one domain at every support value.

    Attributes
    ----------
    mean : ndarray of shape (n_values, n_features)
        Means.
    cov : ndarray of shape (n_values, n_features, n_features)
        Covariances.
    count : ndarray of shape (n_values,)
        Rows behind them.
    """

    mean: Array
    cov: Array
    count: Array

    def of(self, features: Array) -> Gaussians:
        """Return the marginal law of some of the features."""
        cov = self.cov[:, features[:, None], features]
        return Gaussians(self.mean[:, features], cov, self.count)

    def balanced(self, weights: Array) -> tuple[Array, Array]:
        r"""Return the mean M and the covariance of the mixture with these weights.

        :math:`\sum_n w_n [\Sigma_n + (\mu_n - M)(\mu_n - M)']`.
        """
        mean = weights @ self.mean
        between = self.mean - mean
        within = np.tensordot(weights, self.cov, axes=1)
        return mean, within + (between.T * weights) @ between


Skewness = Callable[[Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class GaussianPair:
    """Both domains as Gaussians at the support values, with the weights of these.

    Attributes
    ----------
    query, reference : Gaussians
        The domains.
    weights : ndarray of shape (n_values,)
        Prior weights; they sum to one.
    skewness : callable or None
        From axes of the query and of the reference to the skewness along them.
    """

    query: Gaussians
    reference: Gaussians
    weights: Array
    skewness: Skewness | None = None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.query.mean.shape[1]

    def of(self, features: Array) -> GaussianPair:
        """Return the marginal laws of some of the features."""
        return GaussianPair(self.query.of(features), self.reference.of(features), self.weights)

    def swapped(self) -> GaussianPair:
        """Return the pair with query and reference exchanged."""
        skewness = self.skewness
        back: Skewness | None = None
        if skewness is not None:
            back = lambda left, right: skewness(right, left)[::-1]  # noqa: E731
        return GaussianPair(self.reference, self.query, self.weights, back)


Sides = tuple[list[Array], list[Array]]


@dataclass(frozen=True)
class Samples:
    """Rows of both domains at every support value, and the weights of these.

    Rows are sorted, so that nothing depends on the order they were given in. `n_rows` is that of
    the smaller domain, where rows are not observed ones but drawn.
    """

    query: list[Array]
    reference: list[Array]
    weights: Array
    subjects: Sides | None = None
    n_rows: int | None = None

    def half(self, which: int) -> Samples:
        """Return the rows of every other subject, to learn from or to judge by.

        Where subjects are not known, equal rows, which weights make, are of one.
        """
        query, reference = self.subjects or self._distinct()
        numbers, first = np.unique(np.concatenate([*query, *reference]), return_index=True)
        chosen = numbers[np.argsort(first)][which::2]
        return self._take([[np.isin(who, chosen) for who in side] for side in (query, reference)])

    def of(self, features: Array) -> Samples:
        """Return some of the features."""
        return self.each(lambda rows: rows[:, features], lambda rows: rows[:, features])

    def thinned(self, most: int) -> Samples:
        """Return at most so many rows of each, evenly taken."""
        sides = (self.query, self.reference)
        return self._take([[evenly(len(rows), most) for rows in side] for side in sides])

    def each(
        self, of_query: Callable[[Array], Array], of_reference: Callable[[Array], Array]
    ) -> Samples:
        """Return the samples with other features."""
        query, reference = map(of_query, self.query), map(of_reference, self.reference)
        return replace(self, query=list(query), reference=list(reference))

    def _take(self, chosen: list[list[Array]]) -> Samples:
        def of(sides: Sides) -> Sides:
            query, reference = (
                [part[rows] for part, rows in zip(*both)] for both in zip(sides, chosen)
            )
            return query, reference

        subjects = None if self.subjects is None else of(self.subjects)
        query, reference = of((self.query, self.reference))
        return replace(self, query=query, reference=reference, subjects=subjects)

    def _distinct(self) -> Sides:
        """Return numbers for sorted rows, the same for equal ones."""
        start, numbers = 0, []
        for rows in [*self.query, *self.reference]:
            new = np.ones(len(rows), dtype=bool)
            new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
            numbers.append(start + np.cumsum(new))
            start += int(new.sum())
        return numbers[: len(self.query)], numbers[len(self.query) :]


def profile(domains: Domains) -> Profile:
    """Return range and moments of the query's features, from at most 5000 of the rows."""
    query = np.flatnonzero(domains.kept() & domains.is_query)
    rows = query[evenly(len(query), MOST_ROWS)]
    return Profile.of(domains.side(True, rows), len(query))


def evenly(n: int, most: int) -> Array:
    """Return at most so many of n row numbers, evenly spaced."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(np.intp)


def cell_names(names: list[str], levels: list[tuple[Any, ...]]) -> list[str]:
    """Return what combinations of categories are called; "all" without any."""
    return [
        " and ".join(f"{name} = {value}" for name, value in zip(names, level)) or "all"
        for level in levels
    ]


def no_overlap(strata: Strata) -> NoOverlapError:
    """Word the error for domains that share no stratum, with the table of counts."""
    counts = {
        "n_query": hidden_counts(strata.count_query),
        "n_reference": hidden_counts(strata.count_reference),
    }
    columns = {**_level_columns(strata.names, strata.levels, counts), **counts}
    if len(strata.names) == 1:
        what = f"confounder {strata.names[0]!r} has no level in both domains"
    else:
        what = f"no combination of the confounders {listing(strata.names)} occurs in both domains"
    return NoOverlapError(
        f"{what}.\n{Sheet(columns)!r}\nAdaptation compares like with like: leave a confounder "
        "out, merge its levels, or add samples."
    )


def _level_columns(
    names: list[str], levels: list[tuple[Any, ...]], others: dict[str, list[Any]]
) -> dict[str, list[Any]]:
    """Return one column per confounder, renamed if another column has its name."""
    columns = {}
    for j, name in enumerate(names):
        values = [level[j] for level in levels]
        distinct = set(values)
        if len({str(value) for value in distinct}) < len(distinct):  # 1 and "1" are two levels
            values = [repr(value) for value in values]
        columns[f"{name} (confounder)" if name in others else name] = values
    return columns


def _compress(values: Array) -> tuple[Array, Array]:
    """Return the distinct non-negative integers and each row's number among them."""
    if values.max() > 4 * len(values) + 1_000_000:
        distinct, codes = np.unique(values, return_inverse=True)
        return distinct, codes.astype(np.int32)
    seen = np.zeros(int(values.max()) + 1, dtype=bool)
    seen[values] = True
    distinct = np.flatnonzero(seen)
    number = np.zeros(len(seen), dtype=np.int32)
    number[distinct] = np.arange(len(distinct))
    return distinct, number[values]
