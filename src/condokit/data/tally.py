"""One pass over blocks of rows: sums of all rows by cell, and a sample of rows.

A cell is a combination of a domain and the levels of all categorical confounders. Blocks may come
in any order and from several machines: results of blocks are merged.
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

FEWEST_OF_CELL = 64  # rows of every cell in the sample, if it has as many
_ELEMENTS = 1 << 17  # values that are added at a time, so that they stay in cache
_FEWEST_ROWS = 256  # rows that are added at a time, at least
_MOST_CROSSED = 1 << 16  # combinations of levels that are listed
_LARGE = 500  # rows of a cell on average, from which features are summed one at a time
_SLACK = 1.25  # factor by which the sample may grow before it is cut
_MARKS = 4  # features from which the hash of a row is computed
_LOOKED_AT = 10_000  # rows in which the distinct values of features are counted
_TELLING = 0.9  # share of distinct values that a feature needs to be used for hashes
_LARGEST = np.iinfo(np.uint64).max
_COLUMNS = ("key", "cell", "X", "Z", "counts", "place")  # fields of a sample
_LOCATED = ("table", "cells", "cell", "Z", "weights")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64


@dataclass
class Sample:
    """A sample of rows: all rows in their order while they are few, else those of smallest hash.

    The sample has at most a given number of rows of each domain, and at least `FEWEST_OF_CELL` rows
    of each cell that has as many. The hash of a row depends only on its values, so that neither the
    order of rows nor their division into blocks matters. Equal rows become one row with a count.
    """

    key: Array  # (n,): the hash of each row
    cell: Array
    X: Array
    Z: Array  # continuous confounders
    counts: Array  # how many rows each stands for
    place: Array  # position of each row: number of the block * 2^32 + row of the block
    is_whole: bool = True  # whether all distinct rows are in the sample

    @classmethod
    def joined(
        cls, parts: "Sequence[Sample]", side: Array, most: int
    ) -> tuple["Sample", Array | None]:
        """Join samples into one of at most `most` rows of each domain.

        Also return the limit of each cell, the largest hash with which a new row may enter the
        sample, or None if there is no limit. `side` is the domain of each cell.
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
        """Return some of the rows, with new counts."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return Sample(**columns | {"counts": counts}, is_whole=is_whole)


def fewer(
    key: Array, cell: Array, counts: Array, side: Array, most: int
) -> tuple[Array | None, Array, Array | None]:
    """Return the numbers of sampled rows (None: all), their counts, and the limits of hashes.

    If a domain has too many rows, equal rows are merged. If that is not enough, the rows of
    smallest hash are sampled, and each cell's limit is the largest hash among them.
    """
    if np.bincount(side[cell], minlength=1).max(initial=0) <= most:
        return None, counts, None
    rows, counts = distinct(key, cell, counts)
    kept, limits = least(key[rows], cell[rows], side, most)
    return rows[kept], counts[kept], None if kept.all() else limits


def distinct(key: Array, cell: Array, counts: Array) -> tuple[Array, Array]:
    """Return one row of each hash and cell, sorted by cell and hash, and their counts."""
    order = np.lexsort((key, cell))
    new = np.ones(len(key), dtype=bool)
    new[1:] = (np.diff(cell[order]) != 0) | (key[order][1:] != key[order][:-1])
    first = np.flatnonzero(new)
    return order[first], np.add.reduceat(counts[order], first) if len(first) else counts


def least(key: Array, cell: Array, side: Array, most: int) -> tuple[Array, Array]:
    """Mark the rows of smallest hash, and return each cell's limit.

    Rows are sorted by cell, then by hash.
    """
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
    """Sums and samples of some blocks; `merge` adds those of other blocks."""

    cells: dict[tuple[Any, ...], int]  # the number of each combination of levels
    moments: GroupedMoments
    samples: list[Sample]  # of single blocks; joined when they are large
    limits: Array  # of each cell: the largest hash of a row that may still enter the sample
    missing: dict[str | None, int] = field(default_factory=dict)  # values of confounders
    n_rows: int = 0

    def merge(self, other: "Tally", most: int) -> "Tally":
        """Return the tally of the blocks of both; the first must not be used afterwards."""
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
    """Return the number of each cell's domain."""
    labels = {label: k for k, label in enumerate(dict.fromkeys(key[0] for key in cells))}
    return np.array([labels[key[0]] for key in cells], dtype=np.intp)


@dataclass(frozen=True)
class Located:
    """The rows of a block, with the cell of each."""

    table: Table  # the features
    cells: dict[tuple[Any, ...], int]
    cell: Array  # the number of each row's cell, -1 if the row is left out
    Z: Array  # continuous confounders
    weights: Array | None
    missing: dict[str | None, int]


@dataclass(frozen=True)
class Reading:
    """Says how a block is read: which column has which role, and how rows are sampled."""

    features: list[Any]  # names, or positions in an array
    # by name: a column, or the values of all rows; the domain comes first, under the name None
    categorical: dict[str | None, Any]
    continuous: dict[str, Any]
    weight: Any
    marks: Array  # features from which the hash of a row is computed
    most: int  # rows of a domain in the sample
    starts: Array | None = None  # where every block begins, if roles are arrays of all rows
    number: int = 0  # of the block

    def located(self, block: Any) -> "Located":
        """Return a block's features, and the cells, confounders and weights of its rows."""
        table = Table(block)
        n = table.n_rows
        crossed = self._columns(table, self.categorical)
        coded = [number_levels(column, str(name)) for name, column in crossed]
        Z = np.empty((n, len(self.continuous)))
        for j, (name, column) in enumerate(self._columns(table, self.continuous)):
            Z[:, j] = as_array(column, np.float64)
            refuse_extreme_numbers(name, Z[:, j])
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
        """Return the sums and the sample of a block.

        Rows whose hash is beyond the limit of their cell so far cannot be in the final sample.
        """
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
        """Merge the results of two blocks."""
        return one.merge(other, self.most)

    def of_block(self, number: int) -> "Reading":
        """Return how one block is read, with its part of the values given for all rows."""
        if self.starts is None:
            return replace(self, number=number)
        rows = slice(*self.starts[number : number + 2].tolist())
        own: dict[str, Any] = {"starts": None, "number": number}
        for part in ("categorical", "continuous"):
            own[part] = {name: given[rows] for name, given in getattr(self, part).items()}
        return replace(self, **own, weight=None if self.weight is None else self.weight[rows])

    def _columns(self, table: Table, roles: dict[Any, Any]) -> Any:
        """Yield names and values of roles, given as names of columns or as values."""
        for name, given in roles.items():
            is_name = isinstance(given, str)
            yield name, table.column(str(name), given) if is_name else given


@dataclass(frozen=True)
class Pass:
    """Another pass over blocks, after the cells were numbered in the first."""

    reading: Reading
    cells: dict[tuple[Any, ...], int]
    make: Callable[[], Any]  # returns an empty object with `update` and `merge`
    features: Array | None = None  # the numbers of features that are read; None: all
    has_confounders: bool = False  # whether `update` takes continuous confounders as well

    def of_block(self, number: int) -> "Pass":
        """Return the pass of one block."""
        return replace(self, reading=self.reading.of_block(number))

    def __call__(self, block: Any, so_far: Any) -> Any:
        """Return the result of one block."""
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
        """Merge the results of two blocks."""
        one.merge(other)
        return one


def _add(
    moments: GroupedMoments, X: Array, cell: Array, weights: Array | None, table: Table
) -> Array:
    """Add rows to moments; return their cells, -1 for rows in which all values are missing."""
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
    """Return features from which rows are hashed: a few with mostly distinct values, else all."""
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
    """Return a 64-bit hash of every row: of some features, or of all where one of these is NaN."""
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
    """Return numbers whose bits look random (the finalizer of splitmix64)."""
    for shift, factor in zip((30, 27), _MIX):
        key = (key ^ (key >> np.uint64(shift))) * factor
    return key ^ (key >> np.uint64(31))


def _add_bits(total: Array, column: Array, number: int) -> None:
    """Add the bits of a column to `total`, times an odd number that depends on the column."""
    bits = (column + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    bits ^= bits >> np.uint64(29)
    own = np.array([number + 1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits *= _mixed(own) | np.uint64(1)
    total += bits


def _crossed(
    coded: list[tuple[list[Any], Array]], n: int
) -> tuple[dict[tuple[Any, ...], int], Array]:
    """Return the combinations of levels that occur, and each row's combination, -1 if missing."""
    code, lost = np.zeros(n, dtype=np.int32), None
    combinations: list[tuple[Any, ...]] = [()]
    for levels, codes in coded:
        if codes.min(initial=0) < 0:
            lost = codes < 0 if lost is None else lost | (codes < 0)
            codes = np.maximum(codes, 0)
        levels = levels or [None]
        if len(combinations) * len(levels) > _MOST_CROSSED:  # most of which do not occur
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
    """Return each cell's limit of hashes, from the blocks merged so far."""
    limits = np.full(max(len(cells), 1), _LARGEST)
    for key, k in cells.items() if so_far is not None else ():
        if so_far is not None and key in so_far.cells:
            limits[k] = so_far.limits[so_far.cells[key]]
    return limits
