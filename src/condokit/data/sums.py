"""Sums of all rows by cell, for studies whose tables hold only some of the rows, or none."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from condokit.checks import Array, needs_rows
from condokit.data.arrays import equal_columns, ones_for_zeros
from condokit.data.basis import RangeBasis
from condokit.data.bins import Bins, Values
from condokit.data.continuous import Continuous
from condokit.data.grouped import GroupedMoments, GroupedScatter
from condokit.data.spots import Spots
from condokit.data.subsets import subsample

MARKS = 256  # hash values, of 8 bits
_SCREENED = 64  # rows of a label that are searched for equal values
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 over the golden ratio: Fibonacci hashing


class Ties:
    """Counts of equal values of every feature by label, without the values.

    Values are counted by an 8-bit hash. Only features with equal values among 64 rows of a label
    are counted; a feature whose most frequent value has a share of 20% is practically never missed.
    """

    def __init__(self) -> None:
        self.features = np.empty(0, dtype=np.intp)  # those that are counted, increasing
        self.counts = np.zeros((0, 0, MARKS))  # (n_labels, n_counted, 256)

    def update(self, X: Array, label: Array, weights: Array | None = None) -> None:
        """Add rows, with the number of each row's label; NaN is missing."""
        suspect = np.zeros(X.shape[1], dtype=bool)
        suspect[self.features] = True
        for own in (np.flatnonzero(label == k) for k in np.unique(label)):
            few = np.sort(X[own[subsample(len(own), _SCREENED)]], axis=0)
            suspect |= (np.diff(few, axis=0) == 0).any(axis=0) | (len(own) < _SCREENED)
        self.make_room(np.flatnonzero(suspect), int(label.max(initial=-1)) + 1)
        if not len(self.features):
            return
        values = np.ascontiguousarray(X[:, self.features]) + 0.0  # -0.0 is 0.0
        mark = (values.view(np.uint64) * _MIX) >> np.uint64(56)
        n_labels, s, _ = self.counts.shape
        place = (label[:, None] * s + np.arange(s)) * MARKS + mark.astype(np.intp)
        known, each = ~np.isnan(values), None
        if weights is not None:
            each = np.broadcast_to(weights[:, None], values.shape)[known]
        found = np.bincount(place[known], each, minlength=self.counts.size)
        self.counts += found.reshape(self.counts.shape)

    def make_room(self, features: Array, n_labels: int) -> None:
        """Extend the counts to more features and labels."""
        features = np.union1d(features, self.features).astype(np.intp)
        n_labels = max(n_labels, len(self.counts))
        if len(features) == len(self.features) and n_labels == len(self.counts):
            return
        counts = np.zeros((n_labels, len(features), MARKS))
        here = np.searchsorted(features, self.features)
        counts[: len(self.counts), here] = self.counts
        self.features, self.counts = features, counts

    def of(self, places: Array) -> "Ties":
        """Return the counts of some features, renumbered by their place in `places`."""
        new, counted = Ties(), np.flatnonzero(np.isin(places, self.features))
        new.features = counted.astype(np.intp)
        new.counts = self.counts[:, np.searchsorted(self.features, places[counted])]
        return new

    def merge(self, other: "Ties", place: Array) -> None:
        """Add the counts of another object; `place` renumbers its labels."""
        self.make_room(other.features, int(place.max(initial=-1)) + 1)
        here = np.searchsorted(self.features, other.features)
        for counts, k in zip(other.counts, place):
            self.counts[k, here] += counts

    def largest(self, labels: Array, n_features: int) -> tuple[Array, Array]:
        """Estimate how many rows of some labels have each of the two most frequent values.

        The shape of this is (2, n_features). The second result is whether the most frequent value
        is zero.
        """
        found, is_zero = np.zeros((2, n_features)), np.zeros(n_features, dtype=np.bool_)
        counts = self.counts[labels[labels < len(self.counts)]].sum(axis=0)
        if len(counts):
            most = np.sort(counts, axis=1)[:, :-3:-1]
            # other values with the same hash
            others = (counts.sum(axis=1) - most.sum(axis=1)) / (MARKS - 2)
            found[:, self.features] = np.maximum(np.round(most.T - others), 0.0)
            is_zero[self.features] = counts.argmax(axis=1) == 0  # the hash of zero
        return found, is_zero


@dataclass
class CellSums:
    """All sums over the rows of cells; parts can be merged in any order.

    A cell is a domain with one level of each categorical confounder. Statistics files hold these
    sums and nothing else.
    """

    moments: GroupedMoments  # counts, missing values, powers, products of a few features
    ties: Ties = field(default_factory=Ties)  # equal values, by domain
    continuous: Continuous | None = None  # products with functions of continuous confounders
    # from a second round: binned values of heavy-tailed features, by number
    values: dict[int, Values] = field(default_factory=dict)

    @classmethod
    def empty(cls, n_features: int, basis: RangeBasis | None = None) -> "CellSums":
        """Return the sums of no rows, which will keep track of where rows lie."""
        own = None if basis is None else Continuous(basis, 0, n_features)
        if own is not None and basis is not None:
            own.spots = Spots(basis, n_features)
        return cls(GroupedMoments(0, n_features, products=True), continuous=own)

    def update(
        self,
        X: Array,
        Z: Array,
        cell: Array,
        label: Array,
        weights: Array | None = None,
        gaps: Array | None = None,
    ) -> None:
        """Add rows of features and continuous confounders; negative cells are left out."""
        self.moments.update(X, cell, weights, gaps)
        if self.continuous is not None:
            self.continuous.update(X, Z, cell, weights)
        mine = cell >= 0
        self.ties.update(X[mine], label[mine])

    def resize(self, n_cells: int) -> None:
        """Make room for more cells."""
        if n_cells > len(self.moments.count):
            self.moments = self.moments.resized(n_cells)
            self.continuous = self.continuous and self.continuous.resized(n_cells)

    def merge(self, other: "CellSums", place: Array, labels: Array) -> None:
        """Add the sums of another object; `place` and `labels` renumber its cells and labels."""
        self.moments.merge(other.moments, place)
        self.ties.merge(other.ties, labels)
        if self.continuous is not None and other.continuous is not None:
            self.continuous.merge(other.continuous, place)
        for j, values in other.values.items():
            values = values.placed(place)
            self.values[j] = self.values[j].merge(values) if j in self.values else values

    def of(self, features: Array) -> "CellSums":
        """Return some of the features."""
        own = None if self.continuous is None else self.continuous.of(features)
        number = {int(j): k for k, j in enumerate(features)}
        values = {number[j]: one for j, one in self.values.items() if j in number}
        return CellSums(self.moments.of(features), self.ties.of(features), own, values)


@dataclass(frozen=True)
class Sums:
    """The sums of all rows of a study, and the cells of the rows in its tables."""

    cells: CellSums
    label: Array  # (n_cells,): the number of each cell's label
    cell: Array  # (n_rows,): the cell of each row of the tables
    by_cell: bool = True  # whether products of features are known by cell, not only by domain
    are_rows: bool = False  # whether the tables hold rows; if not, they have one row per cell
    counts: Array | None = None  # (n_rows,): how many equal rows each row of the tables stands for
    # again(make, features) reads all rows once more: `make` returns an empty object with `update`
    # (features, continuous confounders, cells, weights or None) and `merge`
    again: Callable[..., Any] | None = None
    is_whole: bool = False  # whether the tables hold all rows
    made_of: tuple[Any, ...] = ()  # the tables, weights and links that were summed

    @property
    def moments(self) -> GroupedMoments:
        """The moments of cells."""
        return self.cells.moments

    @property
    def continuous(self) -> Continuous | None:
        """Sums with continuous confounders by cell."""
        return self.cells.continuous

    def values(self, features: Array) -> dict[int, Values]:
        """Return binned values of heavy-tailed features; those of a file if rows are not known."""
        if self.again is None or not len(features):
            return self.cells.values
        moments = self.cells.moments
        empty = partial(Bins, moments.mean[:, features], moments.sd[:, features])
        bins = self.again(empty, features, has_confounders=False)
        return {int(j): bins.values(k) for k, j in enumerate(features)}

    def of(self, places: Array) -> "Sums":
        """Return the sums of some of the features."""
        whole = self.again

        def again(make: Any, features: Array, **how: Any) -> Any:
            """Read features again by their numbers in the whole table."""
            return whole and whole(make, features=places[features], **how)

        return replace(self, cells=self.cells.of(places), again=whole and again)

    def groups_of_cells(self, groups: Array) -> Array:
        """Return the group of each cell, given that of each row of the tables; -1 is none."""
        of_cell, used = np.full(len(self.label), -1), self.cell >= 0
        of_cell[self.cell[used]] = groups[used]
        return of_cell

    def are_whole_cells(self, groups: Array) -> bool:
        """Return whether all rows of a cell have the same group."""
        return bool((np.append(self.groups_of_cells(groups), -1)[self.cell] == groups).all())

    def gather(self, groups: Array, found: Any) -> Any:
        """Add up the moments of the cells of each group, given the group of each row."""
        of_cell = self.groups_of_cells(groups)
        whole: Any = self.moments
        if not hasattr(found, "third"):
            if not self.has_covariances:
                raise no_rows()
            whole = whole.products
            if self.again is not None:  # in another pass
                n, d = self.moments.mean.shape
                empty = partial(GroupedScatter, n, d)
                whole = self.again(empty, np.arange(d), has_confounders=False)
        found.merge(whole, of_cell)
        return found

    @property
    def has_covariances(self) -> bool:
        """Whether covariances of all features are known by cell: for few features, not in files."""
        moments = self.moments
        whole = moments.products is not None and len(moments.few) == moments.mean.shape[1]
        return moments.known is None and (self.again is not None or (self.by_cell and whole))

    @property
    def weights(self) -> Array:
        """How many rows each row of the tables stands for."""
        counts = np.ones(len(self.cell)) if self.counts is None else self.counts
        n_rows = np.bincount(self.cell, counts, minlength=len(self.label))
        return counts * (self.moments.count / ones_for_zeros(n_rows))[self.cell]

    def alike(self) -> Iterator[tuple[Array, Array]]:
        """Yield features with equal counts of values in all cells, and which rows have values."""
        known = self.moments.n_values
        for features in equal_columns(known):
            yield features, (known[:, features[0]] > 0)[self.cell]

    def most_frequent(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return counts of the two most frequent values in the rows' domains, (2, n_features).

        Also returns whether the first is zero, and the count of all values.
        """
        cells = np.unique(self.cell[rows])
        n = self.moments.n[cells].sum(axis=0)
        d = self.moments.mean.shape[1]
        found, is_zero = self.cells.ties.largest(np.unique(self.label[cells]), d)
        return np.minimum(found, n), is_zero, np.broadcast_to(n, d)


def no_rows() -> ValueError:
    """Return the error that single rows are needed, but not known."""
    text = "This needs single rows, which statistics do not contain. Statistics allow "
    text += "{@map='location-scale'} or 'shift', with {@divergence='likelihood'} or a divergence "
    text += "between moments. A matrix of few features needs statistics that were not read from a "
    return needs_rows(text + "file.")
