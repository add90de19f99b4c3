"""What one pass over blocks tells: sums of all rows by cell, and a sample of rows.

A cell is a combination of a domain and the levels of all categorical confounders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from condokit.checks import LARGEST, Array, are_moderate, check_weights, sizes
from condokit.data.columns import as_array, compress, number_levels
from condokit.data.confounders import refuse_extreme_numbers
from condokit.data.grouped import GroupedMoments
from condokit.data.tables import Table

FEWEST_OF_CELL = 64  # rows in the sample
_ELEMENTS = 1 << 17  # of rows that are added at a time, which stay in cache
_FEWEST_ROWS = 256
_MOST_CROSSED = 1 << 16  # combinations of levels that are listed
_LARGE = 500  # rows of a cell on average, whose features are summed one by one
_SLACK = 1.25  # how far the sample may grow before it is cut
_MARKS = 4  # features that tell rows apart
_LOOKED_AT = 10_000  # rows, whether a feature tells rows apart
_TELLING = 0.9  # share of distinct values of such a feature
_LARGEST = np.iinfo(np.uint64).max
_COLUMNS = ("key", "cell", "X", "Z", "counts", "place")  # of a sample
_LOCATED = ("table", "cells", "cell", "Z", "weights")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64


@dataclass
class Sample:
    """All rows, in their order, while they are few; else the distinct rows of least hash.

    Of these so many of every domain, and some of every cell. A row's hash is that of its values, so
    neither the order of rows nor their blocks matter; equal rows are one row that counts for them
    all. In each cell, the rows taken stand for the others.
    """

    key: Array  # (n,): the hash of each row
    cell: Array
    X: Array
    Z: Array  # continuous confounders
    counts: Array  # how many rows each stands for
    place: Array  # where each row is: by block, then by row
    is_whole: bool = True  # whether all distinct rows are there

    @classmethod
    def joined(
        cls, parts: "Sequence[Sample]", side: Array, most: int
    ) -> tuple["Sample", Array | None]:
        """Return the rows of several samples, at most so many of a domain.

        And the largest hash of each cell that still counts, None if all do. `side` tells the domain
        of each cell.
        """
        columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS}
        whole = cls(**columns, is_whole=all(part.is_whole for part in parts))
        rows, counts, limits = fewer(whole.key, whole.cell, whole.counts, side, most)
        if rows is None:
            order = np.argsort(whole.place) if whole.is_whole else np.arange(len(whole.key))
            return whole.take(order, whole.counts[order], whole.is_whole), None
        is_whole = whole.is_whole and limits is None
        order = np.argsort(whole.place[rows]) if is_whole else np.arange(len(rows))
        return whole.take(rows[order], counts[order], is_whole), limits

    def take(self, rows: Array, counts: Array, is_whole: bool) -> "Sample":
        """Return some of the rows, which stand for so many."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return Sample(**columns | {"counts": counts}, is_whole=is_whole)


def fewer(
    key: Array, cell: Array, counts: Array, side: Array, most: int
) -> tuple[Array | None, Array, Array | None]:
    """Return the rows that are taken, and how many each stands for; None if all are.

    If a domain has too many, equal rows are taken together; if that is not enough, those of least
    hash are taken, and the largest hash of each cell that still counts is returned as well.
    """
    if np.bincount(side[cell], minlength=1).max(initial=0) <= most:
        return None, counts, None
    rows, counts = distinct(key, cell, counts)
    kept, limits = least(key[rows], cell[rows], side, most)
    return rows[kept], counts[kept], None if kept.all() else limits


def distinct(key: Array, cell: Array, counts: Array) -> tuple[Array, Array]:
    """Return the first of all rows with the same hash in a cell, by cell and hash, and counts."""
    order = np.lexsort((key, cell))
    new = np.ones(len(key), dtype=bool)
    new[1:] = (np.diff(cell[order]) != 0) | (key[order][1:] != key[order][:-1])
    first = np.flatnonzero(new)
    return order[first], np.add.reduceat(counts[order], first) if len(first) else counts


def least(key: Array, cell: Array, side: Array, most: int) -> tuple[Array, Array]:
    """Mark rows of least hash, and return the largest hash of every cell that still counts."""
    limits = np.full(len(side), _LARGEST)
    first = np.searchsorted(cell, np.arange(len(side) + 1))
    kept = np.arange(len(key)) - first[cell] < FEWEST_OF_CELL
    for s in np.unique(side):
        mine = side[cell] == s
        if mine.sum() <= most:
            kept |= mine
            continue
        last = np.partition(key[mine], most - 1)[most - 1]
        kept |= mine & (key <= last)
        for c in np.flatnonzero(side == s):
            own = key[first[c] : first[c + 1]][:FEWEST_OF_CELL]
            if len(own) == FEWEST_OF_CELL:
                limits[c] = max(last, own[-1])
    return kept, limits


@dataclass
class Tally:
    """What is known of some blocks; `merge` adds that of others."""

    cells: dict[tuple[Any, ...], int]  # the number of each combination of levels
    moments: GroupedMoments
    samples: list[Sample]  # of blocks, to be joined
    limits: Array  # of each cell: the largest hash that may still get into the sample
    missing: dict[str | None, int] = field(default_factory=dict)  # of confounders
    n_rows: int = 0

    def merge(self, other: "Tally", most: int) -> "Tally":
        """Return what both know; the first is used up."""
        cells = dict(self.cells)
        for key in other.cells:
            cells.setdefault(key, len(cells))
        place = np.array([cells[key] for key in other.cells], dtype=np.intp)
        moments = self.moments
        if len(cells) > len(self.cells):
            moments = moments.resized(len(cells))
        moments.merge(other.moments, place)
        limits = np.full(len(cells), _LARGEST)
        limits[: len(self.limits)] = self.limits
        found = [replace(one, cell=place[one.cell]) for one in other.samples]
        samples, side = [*self.samples, *found], domain_of(cells)
        if sum(len(one.key) for one in samples) > _SLACK * most * (side.max(initial=0) + 1):
            sample, found_limits = Sample.joined(samples, side, most)
            samples, limits = [sample], limits if found_limits is None else found_limits
        missing = {n: k + other.missing.get(n, 0) for n, k in self.missing.items()}
        n_rows = self.n_rows + other.n_rows
        return Tally(cells, moments, samples, limits, missing, n_rows)


def domain_of(cells: dict[tuple[Any, ...], int]) -> Array:
    """Return a number of the domain of each cell."""
    labels = {label: k for k, label in enumerate(dict.fromkeys(key[0] for key in cells))}
    return np.array([labels[key[0]] for key in cells], dtype=np.intp)


@dataclass(frozen=True)
class Located:
    """The rows of a block."""

    table: Table  # their features
    cells: dict[tuple[Any, ...], int]
    cell: Array  # the number of each row's, -1 if it is left out
    Z: Array  # continuous confounders
    weights: Array | None
    missing: dict[str | None, int]


@dataclass(frozen=True)
class Reading:
    """How a block is read: which columns are what."""

    features: list[Any]  # names, or positions in an array
    # by name, None is the domain, which comes first: a column, or the values of all rows
    categorical: dict[str | None, Any]
    continuous: dict[str, Any]
    weight: Any
    marks: Array  # features that tell rows apart
    most: int  # rows of a domain in the sample
    starts: Array | None = None  # where every block begins, if roles are arrays of all rows
    number: int = 0  # of the block

    def located(self, block: Any) -> "Located":
        """Return the features of a block, and what is known of its rows."""
        table = Table(block)
        n = table.n_rows
        crossed = self._columns(table, self.categorical)
        coded = [number_levels(column, str(name)) for name, column in crossed]
        Z = np.empty((n, len(self.continuous)))
        for j, (name, column) in enumerate(self._columns(table, self.continuous)):
            Z[:, j] = _numbers(column, name)
        cells, cell = _crossed(coded, n)
        gaps = [codes < 0 for _, codes in coded] + list(np.isnan(Z).T)
        names = [*self.categorical, *self.continuous]
        missing = {name: int(own.sum()) for name, own in zip(names, gaps)}
        cell[np.isnan(Z).any(axis=1)] = -1
        weights = None
        if self.weight is not None:
            [(_, column)] = self._columns(table, {"sample_weight": self.weight})
            weights = check_weights(as_array(column), n, "X")
            cell[weights == 0] = -1
        return Located(table.select(self.features), cells, cell, Z, weights, missing)

    def __call__(self, block: Any, so_far: Tally | None) -> Tally:
        """Return what a block tells."""
        found = self.located(block)
        chosen, cells, cell, Z, weights = (getattr(found, name) for name in _LOCATED)
        d, n = chosen.n_features, chosen.n_rows
        columns, moments = chosen.vectors(), GroupedMoments(len(cells), d)
        large = weights is None and n > _LARGE * len(cells)
        large = large and moments.update_columns(columns, cell)
        if not large:
            for start in range(0, n, step := max(_FEWEST_ROWS, _ELEMENTS // d)):
                rows = slice(start, start + step)
                w = None if weights is None else weights[rows]
                X = np.column_stack([column[rows] for column in columns])
                cell[rows] = _add(moments, X, cell[rows], w, chosen)
        key = hashes(columns, Z, self.marks)
        taken = np.flatnonzero((cell >= 0) & (key <= _limits(cells, so_far)[cell]))
        counts = np.ones(len(taken)) if weights is None else weights[taken]
        is_whole = len(taken) == np.count_nonzero(cell >= 0)
        side = domain_of(cells)
        some, counts, limits = fewer(key[taken], cell[taken], counts, side, self.most)
        taken, is_whole = taken if some is None else taken[some], is_whole and limits is None
        limits = np.full(len(cells), _LARGEST) if limits is None else limits
        X = np.column_stack([column[taken] for column in columns])
        place = taken + (np.int64(self.number) << 32)
        sample = Sample(key[taken], cell[taken], X, Z[taken], counts, place, is_whole)
        return Tally(cells, moments, [sample], limits, found.missing, n)

    def merge(self, one: Tally, other: Tally) -> Tally:
        """Return what two results of blocks tell together."""
        return one.merge(other, self.most)

    def of_block(self, number: int) -> "Reading":
        """Return how one block is read, with its own part of values that are given for all rows."""
        if self.starts is None:
            return replace(self, number=number)
        rows = slice(*self.starts[number : number + 2].tolist())
        crossed, others = (
            {name: given[rows] for name, given in part.items()}
            for part in (self.categorical, self.continuous)
        )
        own: dict[str, Any] = {"categorical": crossed, "continuous": others, "starts": None}
        own["number"] = number
        return replace(self, **own, weight=None if self.weight is None else self.weight[rows])

    def _columns(self, table: Table, roles: dict[Any, Any]) -> Any:
        for name, given in roles.items():
            is_name = isinstance(given, str)
            yield name, table.column(str(name), given) if is_name else given


@dataclass(frozen=True)
class Pass:
    """Another pass over blocks, whose cells have numbers by now."""

    reading: Reading
    cells: dict[tuple[Any, ...], int]
    make: Callable[[], Any]  # something empty to `update`, and to `merge` with others
    features: Array | None = None  # some of them
    has_confounders: bool = False  # whether it is told of continuous confounders as well

    def of_block(self, number: int) -> "Pass":
        """Return the pass of one block."""
        return replace(self, reading=self.reading.of_block(number))

    def __call__(self, block: Any, so_far: Any) -> Any:
        """Return what a block tells."""
        result, found = self.make(), self.reading.located(block)
        place = np.array([*(self.cells[key] for key in found.cells), -1])
        cell = place[found.cell]
        table = found.table if self.features is None else found.table.take(self.features)
        for rows, X in table.chunks():
            Z = (found.Z[rows],) if self.has_confounders else ()
            w = None if found.weights is None else found.weights[rows]
            result.update(X, *Z, cell[rows], w)
        return result

    def merge(self, one: Any, other: Any) -> Any:
        """Return what two results of blocks tell together."""
        one.merge(other)
        return one


def _add(
    moments: GroupedMoments, X: Array, cell: Array, weights: Array | None, table: Table
) -> Array:
    """Add rows to moments, and return their cells, -1 of those without any value."""
    gaps = None
    if not are_moderate(X):
        if (sizes(X) > LARGEST).any():
            table.refuse_extremes()
        gaps = np.isnan(X)
        if gaps.any():
            cell = np.where(gaps.all(axis=1), -1, cell)
        else:
            gaps = None
    moments.update(X, cell, weights, gaps)
    return cell


def marks_of(X: Array) -> Array:
    """Return features by which rows are told apart: some of nearly distinct values, or else all."""
    X = X[:_LOOKED_AT]
    telling = list[int]()
    for j, x in enumerate(X.T):
        known = x[~np.isnan(x)]
        if 2 * len(known) > len(x) and len(np.unique(known)) > _TELLING * len(known):
            telling.append(j)
        if len(telling) == _MARKS:
            return np.array(telling)
    return np.arange(X.shape[1])


def hashes(columns: Sequence[Array], Z: Array, marks: Array) -> Array:
    """Return a 64-bit hash of the values of every row, by some features where these are known."""
    numbers = np.arange(len(columns) + Z.shape[1])
    key, lost = np.zeros(len(Z), dtype=np.uint64), np.zeros(len(Z), dtype=bool)
    for j in marks:
        _add_bits(key, columns[j], j)
        lost |= np.isnan(columns[j])
    for column, j in zip(Z.T, numbers[len(columns) :]):
        _add_bits(key, column, j)
    if len(marks) < len(columns) and lost.any():
        some = key[lost]
        for column, j in zip(columns, numbers):
            _add_bits(some, column[lost], j)
        key[lost] = some
    return _mixed(key)


def _mixed(key: Array) -> Array:
    """Return 64-bit numbers that look random, after splitmix64."""
    for shift, factor in zip((30, 27), _MIX):
        key = (key ^ (key >> np.uint64(shift))) * factor
    return key ^ (key >> np.uint64(31))


def _add_bits(total: Array, column: Array, number: int) -> None:
    """Add the bits of a column, times an odd number of its own."""
    bits = (column + 0.0).view(np.uint64)  # one zero
    bits ^= bits >> np.uint64(29)
    own = np.array([number + 1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits *= _mixed(own) | np.uint64(1)
    total += bits


def _crossed(
    coded: list[tuple[list[Any], Array]], n: int
) -> tuple[dict[tuple[Any, ...], int], Array]:
    """Return the combinations of levels that occur, and that of each row; -1 if one is missing."""
    code, lost = np.zeros(n, dtype=np.int32), None
    combinations: list[tuple[Any, ...]] = [()]
    for levels, codes in coded:
        if codes.min(initial=0) < 0:
            lost = codes < 0 if lost is None else lost | (codes < 0)
            codes = np.maximum(codes, 0)
        levels = levels or [None]
        if len(combinations) * len(levels) > _MOST_CROSSED:  # of which few occur
            distinct, code = compress(code)
            combinations = [combinations[k] for k in distinct]
        code = code * np.int32(len(levels)) + codes
        combinations = [(*key, level) for key in combinations for level in levels]
    count = np.bincount(code if lost is None else code[~lost], minlength=len(combinations))
    place = np.where(count > 0, np.cumsum(count > 0) - 1, -1)
    cells = {key: int(place[k]) for k, key in enumerate(combinations) if count[k]}
    cell = place[code]
    if lost is not None:
        cell[lost] = -1
    return cells, cell


def _limits(cells: dict[tuple[Any, ...], int], so_far: Tally | None) -> Array:
    limits = np.full(max(len(cells), 1), _LARGEST)
    for key, k in cells.items() if so_far is not None else ():
        if so_far is not None and key in so_far.cells:
            limits[k] = so_far.limits[so_far.cells[key]]
    return limits


def _numbers(column: Any, name: str) -> Array:
    values = as_array(column, np.float64)
    refuse_extreme_numbers(name, values)
    return values
