"""A study: rows of any number of domains, their roles, and the sums of all rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from condokit.checks import LARGEST, Array, listing, refusal, refuse_extremes, sizes, warn
from condokit.data.columns import CHUNK_ROWS, compress
from condokit.data.continuous import Continuous
from condokit.data.grouped import GroupedMoments, GroupedScatter
from condokit.data.links import Link
from condokit.data.links import apply as apply_links
from condokit.data.sums import Sums, no_rows
from condokit.data.tables import Table

_MARKS = 3  # features that serve to recognise equal rows
_MANY_VALUES = 20_000_000  # values of a sparse table that may be made dense, at most
_FEW = 4  # if at most one row in four is wanted, only these are read


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
class Confounder:
    """One confounder: categorical, with levels and codes of rows, or continuous, with numbers."""

    name: str
    is_number: bool = False  # whether it is continuous
    levels: list[Any] = field(default_factory=list)  # the distinct values of categories
    codes: Array = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # level of each row
    values: Array | None = None  # continuous: the number of each row, None without rows
    range: tuple[float, float] | None = None  # continuous, without rows: the declared range
    n_missing: int = 0  # rows without a value
    may_be_codes: bool = False  # whether it has few distinct whole numbers

    @property
    def kind(self) -> str:
        """Return "continuous" or "categorical", as records call it."""
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
    # by name: the share of the variance that is signal, or repeated measurements of every row
    shares: dict[str, Any]
    site: Array  # (n_rows,): the domain of each row
    labels: Any  # of the domains


@dataclass(frozen=True)
class Study:
    """Rows of all domains, in one table or two stacked ones, with confounders and sums.

    Domain k has the name `labels[k]`, and `code` is the domain of each row. In a study of two
    domains, 0 is the query and 1 the reference. In a study of more, the reference is the largest
    domain until a fit names another.
    """

    tables: tuple[Table, ...]
    code: Array
    confounders: list[Confounder]
    labels: tuple[Any, ...] = ("query", "reference")
    reference: int = 1
    weights: Array | None = None
    groups: Array | None = None
    # bridges, samples that were measured in several domains: the number of each row's, or -1
    samples: Array | None = None
    keep: Array | None = None  # marks the rows that are used; None: all
    links: tuple[Link, ...] | None = None
    gaps: tuple[Array, ...] | None = None  # numbers of missing values of features, by domain
    # columns that were not taken as features, and why, if no features were named
    left: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # columns that are neither features nor have another role
    noise: Noise | None = None  # of confounders that were calibrated
    sums: Sums | None = None  # by cell; the tables may then hold only some of the rows, or none
    wanted: Any = None  # the label of the reference, if the statistics name one

    @cached_property
    def is_query(self) -> Array:
        """Mark the rows that are not of the reference."""
        return self.code != self.reference

    @property
    def is_whole(self) -> bool:
        """Whether the tables hold all rows."""
        return self.sums is None or self.sums.is_whole

    @property
    def has_rows(self) -> bool:
        """Whether the tables hold rows, all or some; otherwise they have one row per cell."""
        return self.sums is None or self.sums.are_rows

    @property
    def sums_only(self) -> Any:
        """The sums of all rows if the tables do not hold all rows, else None."""
        return None if self.is_whole else self.sums

    @property
    def products(self) -> Continuous | None:
        """Sums with functions of continuous confounders, if there are only sums."""
        return None if self.sums is None else self.sums.continuous

    @property
    def rows_behind(self) -> Array:
        """How many rows each row of the tables stands for, whatever the user's weights."""
        if self.sums is None or self.is_whole:
            return np.ones(len(self.code))
        return self.sums.weights

    def gather(self, groups: Array, n_groups: int, kind: Any = GroupedMoments) -> Any:
        """Return the moments of groups of rows: from the sums of cells, or by reading the rows.

        `groups` has the group of each row, -1 for none; `kind` is the class of the result.
        """
        found = kind(n_groups, self.n_features)
        has_powers = hasattr(found, "third")
        if self.sums is not None:
            can_add_cells = has_powers and self._sums_are_current()
            if not self.is_whole or (can_add_cells and self.sums.are_whole_cells(groups)):
                return self.sums.gather(groups, found)
        many = self.entries is not None and self.entries.shape[0] * self.n_features > _MANY_VALUES
        if many and has_powers and found.products is not None:
            found.update_sparse(self.entries, self.tables[0].positions, groups, self.weights)
            found.products = self.of(found.few).gather(groups, n_groups, GroupedScatter)
            return found
        for rows, chunk in self.chunks():
            weights = None if self.weights is None else self.weights[rows]
            gaps = (np.isnan(chunk),) if has_powers and self.gaps is not None else ()
            found.update(chunk, groups[rows], weights, *gaps)
        return found

    def _sums_are_current(self) -> bool:
        """Return whether tables, weights and links are still those that were summed."""
        now = self.tables, self.weights, self.links
        return self.sums is not None and all(
            one is other for one, other in zip(self.sums.made_of, now)
        )

    @property
    def n_domains(self) -> int:
        """How many domains there are."""
        return len(self.labels)

    def divided(self, is_query: Array, labels: Any = None, **changes: Any) -> "Study":
        """Return the same rows as two domains, query and reference."""
        code, gaps = (~is_query).astype(np.intp), None
        if self.gaps is not None and not self.is_rectangular:
            sides = (np.unique(self.code[code == k]) for k in range(2))
            gaps = tuple(np.sum([self.gaps[k] for k in side], axis=0) for side in sides)
        own: dict[str, Any] = {"labels": labels or self.labels, "reference": 1, "gaps": gaps}
        return replace(self, code=code, **own | changes)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.tables[0].n_features

    @property
    def entries(self) -> Any:
        """All columns as one sparse matrix, None if the table is not sparse."""
        return self.tables[0].entries if len(self.tables) == 1 and self.links is None else None

    def of(self, places: Array) -> "Study":
        """Return the study with some of the features."""
        links, gaps = None, None
        if self.links is not None:
            links = tuple(self.links[j] for j in places)
        if self.gaps is not None and any(count[places].any() for count in self.gaps):
            gaps = tuple(count[places] for count in self.gaps)
        tables = tuple(table.take(places) for table in self.tables)
        sums, weights = self.sums and self.sums.of(places), self.weights
        if sums is not None and not self.is_whole:
            weights = sums.weights
        elif sums is not None:
            now = tables, weights, links
            sums = replace(sums, made_of=now) if self._sums_are_current() else None
        return replace(self, tables=tables, links=links, gaps=gaps, sums=sums, weights=weights)

    def sampled(self) -> "Study":
        """Return a study of the sampled rows only, for what cannot be computed from sums."""
        # Each is taken in proportion to the rows that it stands for, so that nearly all have the
        # same weight and a few count twice.
        counts, weights = np.ones(len(self.is_query)), self.weights
        for side in (self.is_query, ~self.is_query):
            if weights is not None:
                upto = np.cumsum(weights[side] / weights[side].mean())
                counts[side] = np.diff(np.floor(upto + 0.5), prepend=0.0)
        keep, same = self.kept() & (counts > 0), (counts == 1).all()
        return replace(self, sums=None, weights=None if same else counts, keep=keep, gaps=None)

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield (stacked row numbers, float64 rows on the scale of links) from top to bottom."""
        if not self.has_rows:
            raise no_rows()
        start = 0
        for table in self.tables:
            for rows, chunk in table.chunks():
                yield slice(start + rows.start, start + rows.stop), self._linked(table, chunk)
            start += table.n_rows

    def rows(self, used: Array) -> Array:
        """Return the features of the rows with these increasing numbers, as a new array."""
        if self.entries is not None:
            return self.tables[0].read(used)
        # the two domains may have different features; then all these rows are of one domain
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
        """Read only the rows with these numbers into an array."""
        if not self.has_rows:
            raise no_rows()
        start = 0
        for table in self.tables:
            first, last = np.searchsorted(used, [start, start + table.n_rows])
            if first < last:
                X[first:last] = self._linked(table, table.read(used[first:last] - start))
            start += table.n_rows

    def _linked(self, table: Table, rows: Array) -> Array:
        """Return rows of a table on the scale of the links, such as logarithms."""
        if self.links is None:
            return rows
        with np.errstate(over="ignore"):
            linked = apply_links(self.links, rows, table.labels, table.name)
        where = f"{table.name} on the scale of its links"
        refuse_extremes(where, table.labels, sizes(linked), LARGEST)
        return linked

    def marks(self) -> Array:
        """Return a few features of every row, from which equal rows can be recognised."""
        few = self.of(np.arange(min(_MARKS, self.n_features)))
        return few.rows(np.arange(len(self.is_query)))

    def kept(self) -> Array:
        """Mark the rows that are not left out, as a new array."""
        return np.ones(len(self.is_query), bool) if self.keep is None else self.keep.copy()

    def side(self, query: bool, used: Array) -> Array:
        """Return the features of those rows that belong to the query, or to the reference."""
        return self.rows(used[self.is_query[used] == query])

    @property
    def is_rectangular(self) -> bool:
        """Whether the two domains have different features."""
        one, other = self.tables[0], self.tables[-1]
        if one is other or one.columns is None or other.columns is None:
            return one.n_features != other.n_features
        return one.labels != other.labels

    @property
    def continuous(self) -> list[Confounder]:
        """The confounders that are numbers, and whose values are known of every row."""
        return [c for c in self.confounders if c.values is not None]

    @property
    def missing(self) -> dict[str, int]:
        """The number of rows without a value, by confounder."""
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
        for start in range(0, len(codes), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            weights = None if self.weights is None else self.weights[rows]
            cells = 2 * codes[rows] + ~self.is_query[rows]
            if self.keep is not None:
                cells = cells[self.keep[rows]]
                weights = None if weights is None else weights[self.keep[rows]]
            counts += np.bincount(cells, weights, 2 * len(levels)).reshape(-1, 2).T
        if self.keep is not None:
            codes[~self.keep] = -1
        counts = counts if self.is_whole else counts.round(6)  # whole numbers, but for rounding
        return Strata([c.name for c in categorical], levels, codes, counts[0], counts[1])

    def compared(self) -> "Study":
        """Return the study if it has batches to compare; warn of bridges that look wrong."""
        if self.n_domains < 2:
            text = "{@'batch'} has only the label {only}, so that there is nothing to compare. "
            text += "Give rows of another batch as well."
            raise refusal(text, only=listing(self.labels))
        if self.samples is None:
            return self
        if not self.n_bridges:
            text = "No value of {@'bridge'} occurs in two batches, so that there are no bridges."
            if not self.confounders:
                raise refusal(text + " Without bridges and {@`confounders`} nothing is comparable.")
            warn("no-bridges", text, UserWarning)
        rows = np.column_stack([self.bridge, self.code, self.strata().codes])
        there = np.unique(rows[(rows >= 0).all(axis=1)], axis=0)[:, :2]
        pairs, kinds = np.unique(there, axis=0, return_counts=True)
        if n := len(np.unique(pairs[kinds > 1, 0])):
            text = "{n} of {all} samples in {@'bridge'} have different confounders within a batch. "
            text += "Each value must identify one sample, and be missing for all other rows."
            warn("mixed-samples", text, UserWarning, n=n, all=self.n_bridges)
        return self

    def moments(self) -> GroupedMoments:
        """Return the moments of domains."""
        found: GroupedMoments = self.gather(np.where(self.kept(), self.code, -1), self.n_domains)
        return found

    def size(self, b: int) -> float:
        """Return the number of rows, or the sum of weights, of a batch."""
        rows, weights = self.among(b), self.weights
        return float(rows.sum() if weights is None else weights[rows].sum())

    def with_bridges(self, sample: Array) -> "Study":
        """Return the study with bridges: those of the samples that are in several batches."""
        bridge = in_several(sample, self.code, self.kept())
        return replace(self, samples=bridge)

    def with_known_features(self, common: bool) -> "Study":
        """Refuse features without any value in a batch; with `common`, leave them out."""
        if self.gaps is None:
            return self
        absent = self.moments().n_values == 0
        if not absent.any():
            return self
        if common and not absent.any(axis=0).all():
            places = np.flatnonzero(~absent.any(axis=0))
            return self.of(places)
        b = int(absent.any(axis=1).argmax())
        text = "All values of {names} are missing in the batch {batch!r}. Leave these features out "
        text += "with {@`features`}, or use only features that all batches have with "
        text += "{@features='common'}."
        names = listing(self.tables[0].names_of(absent[b]))
        raise refusal(text, names=names, batch=self.labels[b])

    def refuse_unbridged(self, reference: int, batches: list[int], fewest: int) -> None:
        """Refuse features that too few bridges have, if there are no confounders.

        Two batches can be compared by a feature if `fewest` bridges have a value of it in both.
        """
        if self.confounders or not self.n_bridges:
            return
        rows = np.flatnonzero(self.bridge >= 0)
        there = np.zeros((self.n_domains, self.n_bridges, self.n_features), dtype=bool)
        known = ~np.isnan(self.rows(rows))
        np.logical_or.at(there, (self.code[rows], self.bridge[rows]), known)
        of_feature = np.moveaxis(there, 2, 0).astype(np.float32)
        compared = of_feature @ np.swapaxes(of_feature, 1, 2) >= fewest
        reached = np.zeros((len(compared), self.n_domains), dtype=bool)
        reached[:, reference] = True
        for _ in batches:  # as many steps as a path can have
            reached |= (compared & reached[:, None]).any(axis=2)
        for b in batches:
            if not reached[:, b].all():
                text = "Bridges do not determine the map of {names} in the batch {batch!r}: fewer "
                text += "than {fewest} samples have a value both there and in a batch with a path "
                text += "to the reference. Name confounders as well, measure more samples again, "
                text += "or leave such features out with {@`features`}."
                text += " A shift alone needs 2: {@map='shift'}." if fewest > 2 else ""
                names = listing(self.tables[0].names_of(~reached[:, b]))
                raise refusal(text, names=names, batch=self.labels[b], fewest=fewest)

    def merged(self, new: int, reference: Any) -> "Study":
        """Return two domains: a new one as the query, and all mapped ones as the reference."""
        both = self.divided(self.code == new, (self.labels[new], reference))
        return both.with_bridges(self.bridge)

    @property
    def bridge(self) -> Array:
        """The number of each row's sample if it is in several domains, else -1."""
        return np.full(len(self.code), -1) if self.samples is None else self.samples

    @property
    def n_bridges(self) -> int:
        """How many samples are in several domains."""
        return int(self.bridge.max(initial=-1)) + 1

    def among(self, *domains: int) -> Array:
        """Mark the rows of some domains that are not left out."""
        return self.kept() & np.isin(self.code, domains)

    def counts(self, codes: Array, n_levels: int) -> Array:
        """Return the number of rows, or sum of weights, of every batch and level."""
        kept = self.kept() & (codes >= 0)
        weights = None if self.weights is None else self.weights[kept]
        cells = self.code[kept] * n_levels + codes[kept]
        size = self.n_domains * n_levels
        return np.bincount(cells, weights, size).reshape(-1, n_levels).astype(float)

    def pair(self, query: int, reference: int) -> "Study":
        """Return two of the domains as query and reference; rows of others are left out."""
        labels, keep = (self.labels[query], self.labels[reference]), self.among(query, reference)
        gaps = None
        if self.gaps is not None and (self.gaps[query].any() or self.gaps[reference].any()):
            gaps = self.gaps[query], self.gaps[reference]
        return self.divided(self.code == query, labels, keep=keep, gaps=gaps)


def cell_names(names: list[str], levels: list[tuple[Any, ...]]) -> list[str]:
    """Return names of combinations of levels, such as "sex = F and site = A"."""
    return [
        " and ".join(f"{name} = {value}" for name, value in zip(names, level)) or "all"
        for level in levels
    ]


def in_several(sample: Array, batch: Array, kept: Array) -> Array:
    """Return the number of each row's sample, -1 if the sample is not in several batches."""
    kept = kept & (sample >= 0)
    pairs = np.unique(np.column_stack([sample, batch])[kept], axis=0)
    several = np.flatnonzero(np.bincount(pairs[:, 0], minlength=1) > 1)
    number = np.full(max(int(sample.max(initial=0)) + 1, 1), -1)
    number[several] = np.arange(len(several))
    return np.where(kept, number[np.maximum(sample, 0)], -1)
