"""Both domains as they were read: tables, confounders, and what is known of their rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from condokit.checks import LARGEST, Array, refuse_extremes, sizes
from condokit.data.links import Link
from condokit.data.links import apply as apply_links
from condokit.data.tables import Table

PART = 1 << 16  # rows whose metadata are handled at a time
_MARKS = 3  # features by which rows are told apart
_FEW = 4  # times fewer rows than there are, which are read one by one


@dataclass(frozen=True)
class Strata:
    """Rows grouped by their confounder values."""

    names: list[str]  # the confounders
    levels: list[tuple[Any, ...]]  # one combination of confounder values per stratum
    codes: Array  # (n_rows,): the stratum of each row
    # (n_strata,): rows (or weights) of each domain
    count_query: Array
    count_reference: Array


@dataclass(frozen=True)
class Domains:
    """Both domains: one table or two, and what is known of their rows, stacked in that order."""

    tables: tuple[Table, ...]
    is_query: Array
    confounders: "list[Confounder]"
    labels: tuple[Any, Any] = ("query", "reference")
    weights: Array | None = None
    groups: Array | None = None
    keep: Array | None = None
    links: tuple[Link, ...] | None = None
    gaps: tuple[Array, Array] | None = None  # missing (query, reference) values of each feature
    # columns that are not features, and why, where no features were named
    left: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # columns that are neither features nor have another role
    n_mostly_zero: int = 0  # variables of AnnData that are no features, unless all are so
    noise: "Noise | None" = None  # of confounders that were calibrated
    # `Sums` of all rows: the tables then hold some of them, or one that stands for many
    sums: Any = None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.tables[0].n_features

    @property
    def entries(self) -> Any:
        """All columns of the one table as a sparse matrix, None if they are not one."""
        return self.tables[0].entries if len(self.tables) == 1 and self.links is None else None

    @property
    def is_mostly_zero(self) -> bool:
        """Whether all features are, so that nothing is to be mapped."""
        return self.n_mostly_zero > 0 and self.n_features == self.tables[0].width

    def of(self, places: Array) -> "Domains":
        """Return the domains with some of the features."""
        links, gaps = None, None
        if self.links is not None:
            links = tuple(self.links[j] for j in places)
        if self.gaps is not None and any(count[places].any() for count in self.gaps):
            gaps = self.gaps[0][places], self.gaps[1][places]
        tables = tuple(table.take(places) for table in self.tables)
        sums = self.sums and self.sums.of(places)
        weights = self.weights if sums is None else sums.weights
        return replace(self, tables=tables, links=links, gaps=gaps, sums=sums, weights=weights)

    def sampled(self) -> "Domains":
        """Return the rows of the tables alone, for what cannot be found from sums of all rows."""
        # taken in proportion to what they stand for, so that all count alike, but for a few twice
        counts, weights = np.ones(len(self.is_query)), self.weights
        for side in (self.is_query, ~self.is_query):
            if weights is not None:
                upto = np.cumsum(weights[side] / weights[side].mean())
                counts[side] = np.diff(np.floor(upto + 0.5), prepend=0.0)
        keep, same = self.kept() & (counts > 0), (counts == 1).all()
        return replace(self, sums=None, weights=None if same else counts, keep=keep, gaps=None)

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield (stacked row numbers, float64 rows on the scale of links) from top to bottom."""
        if self.sums is not None and not self.sums.are_rows:
            raise self.sums.no_rows()
        start = 0
        for table in self.tables:
            for rows, chunk in table.chunks():
                yield slice(start + rows.start, start + rows.stop), self._linked(table, chunk)
            start += table.n_rows

    def rows(self, used: Array) -> Array:
        """Return the features of the rows with these increasing numbers, as a new array."""
        if self.entries is not None:
            return self.tables[0].read(used)
        # each domain may have features of its own, and then all these rows are of one domain
        table = self.tables[0 if self.is_query[used[:1]].any() else -1]
        X = np.empty((len(used), table.n_features))
        if _FEW * len(used) < len(self.is_query) and not any(t.is_slow for t in self.tables):
            self._read_few(used, X)
            return X
        for rows, chunk in self.chunks():
            first, last = np.searchsorted(used, [rows.start, rows.stop])
            if first < last:
                here = used[first:last] - rows.start
                np.take(chunk, here, axis=0, out=X[first:last], mode="clip")
        return X

    def _read_few(self, used: Array, X: Array) -> None:
        """Read some rows into an array, and no others."""
        if self.sums is not None and not self.sums.are_rows:
            raise self.sums.no_rows()
        start = 0
        for table in self.tables:
            first, last = np.searchsorted(used, [start, start + table.n_rows])
            if first < last:
                X[first:last] = self._linked(table, table.read(used[first:last] - start))
            start += table.n_rows

    def _linked(self, table: Table, rows: Array) -> Array:
        """Return rows of a table on the scale of links."""
        if self.links is None:
            return rows
        with np.errstate(over="ignore"):
            linked = apply_links(self.links, rows, table.labels, table.name)
        where = f"{table.name} on the scale of its links"
        refuse_extremes(where, table.labels, sizes(linked), LARGEST)
        return linked

    def marks(self) -> Array:
        """Return a few features of every row, by which rows are told apart."""
        few = self.of(np.arange(min(_MARKS, self.n_features)))
        return few.rows(np.arange(len(self.is_query)))

    def kept(self) -> Array:
        """Mark the rows that are not left out, as a new array."""
        return np.ones(len(self.is_query), bool) if self.keep is None else self.keep.copy()

    def side(self, query: bool, used: Array) -> Array:
        """Return the features of those rows that are of one domain, which may have its own."""
        return self.rows(used[self.is_query[used] == query])

    @property
    def is_rectangular(self) -> bool:
        """Whether the two domains have different features."""
        one, other = self.tables[0], self.tables[-1]
        if one is other or one.columns is None or other.columns is None:
            return one.n_features != other.n_features
        return one.labels != other.labels

    @property
    def continuous(self) -> "list[Confounder]":
        """The confounders that are numbers, and whose values are known of every row."""
        return [c for c in self.confounders if c.values is not None]

    @property
    def missing(self) -> dict[str, int]:
        """How many rows lack a confounder, by its name."""
        return {c.name: c.n_missing for c in self.confounders if c.n_missing}

    def strata(self) -> Strata:
        """Cross the categorical confounders into strata; rows that are not kept have code -1."""
        codes = np.zeros(len(self.is_query), dtype=np.int32)
        levels: list[tuple[Any, ...]] = [()]
        categorical = [c for c in self.confounders if not c.is_number]
        for confounder in categorical:
            n_levels = len(confounder.levels)
            small = len(levels) * n_levels < np.iinfo(np.int32).max
            crossed = codes * n_levels if small else codes.astype(np.int64) * n_levels
            crossed += confounder.codes
            distinct, codes = compress(crossed)
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
        counts = counts if self.sums is None else counts.round(6)  # whole numbers, but for rounding
        return Strata([c.name for c in categorical], levels, codes, counts[0], counts[1])


@dataclass(frozen=True)
class Confounder:
    """One confounder: levels and the number of each row's if categorical, else numbers."""

    name: str
    is_number: bool = False  # whether it is continuous
    levels: list[Any] = field(default_factory=list)  # the distinct values of categories
    codes: Array = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    values: Array | None = None  # of a number: that of every row, None where rows are not known
    range: tuple[float, float] | None = None  # of a number without rows: where values can lie
    n_missing: int = 0  # rows that lack it
    may_be_codes: bool = False  # whether values are integers, and few

    @property
    def kind(self) -> str:
        """What it is called in records."""
        return "continuous" if self.is_number else "categorical"

    def as_given(self) -> Array:
        """Return the value of every row."""
        if self.values is not None:
            return self.values
        levels = np.empty(len(self.levels), dtype=object)
        levels[:] = self.levels
        return levels[self.codes]


@dataclass(frozen=True)
class Noise:
    """Confounders as they were measured, and how much of them is error."""

    confounders: list[Confounder]
    # by name: the share of the variance that is signal, or repeated measurements, one row each
    shares: dict[str, Any]
    site: Array  # (n_rows,): the number of the domain of each row
    labels: Any  # of these domains


def cell_names(names: list[str], levels: list[tuple[Any, ...]]) -> list[str]:
    """Return what combinations of categories are called; "all" without any."""
    return [
        " and ".join(f"{name} = {value}" for name, value in zip(names, level)) or "all"
        for level in levels
    ]


def compress(values: Array) -> tuple[Array, Array]:
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
