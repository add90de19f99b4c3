"""Groups of neighbouring rows, so large that sums over groups reveal no row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.basis import RangeBasis
from condokit.data.products import GroupedProducts

_FINEST = 256  # intervals of the range of one confounder
_MOST_BITS = 14  # log2 of the number of boxes, if each confounder has more than two intervals
_MOST_CUT = 40  # confounders whose ranges are cut
_ENOUGH = 2  # bent functions of rows that tell more than all functions of groups
_RANK = 1e-10  # share of a variance that may be rounding


@dataclass(frozen=True)
class Rule:
    """How much of a combination's weight one row may have, and `few` rows together."""

    one: float
    all: float
    few: int

    @property
    def least(self) -> float:
        """The fewest rows, all of the same weight in every combination, that keep the rule."""
        return float(np.ceil(max(self.few / self.all, self.few + 1, 1 / self.one)))


class Spots:
    r"""Sums over the rows in small boxes of confounder space, by cell; never written to a file.

    Boxes are joined into groups of neighbours. Then every row of a group has the same functions
    :math:`\phi`, those of the group's mean and spread. So each sum with functions is a linear
    combination of the sums over groups, and has at most 4 / 8 of its weight on 4 rows if groups
    have 8. Expected sums hardly change, since a group's mean of a curve is nearly the curve's value
    at the group's functions. Parts can be merged in any order.
    """

    def __init__(self, basis: RangeBasis, n_features: int) -> None:
        p = len(basis.names)
        self.basis, self.n_features = basis, n_features
        self.finest = min(_FINEST, max(2, int(2 ** (_MOST_BITS / p))))
        self.n_boxes = self.finest ** min(p, _MOST_CUT)
        self.place = np.zeros(0, dtype=np.int64)  # cell * n_boxes + box, increasing
        # of weights, their squares, and weights times `basis.quadratic` and features
        self.sums = np.zeros((0, 2 + basis.n_quadratic + n_features))
        self.largest = np.zeros(0)  # weight of a row
        self.own: dict[int, Spots] = {}  # of the rows in which an incomplete feature is known

    def update(self, X: Array, values: Array, cell: Array, weights: Array | None = None) -> None:
        """Add rows of features and confounders with the number of their cell."""
        w = np.ones(len(X)) if weights is None else weights
        X, values, cell, w = X[w > 0], values[w > 0], cell[w > 0], w[w > 0]
        gaps = np.flatnonzero(np.isnan(X).any(axis=0)).tolist()
        for j in sorted({*self.own, *gaps}):
            known = ~np.isnan(X[:, j])
            self._part(j).update(X[known][:, [j]], values[known], cell[known], w[known])
        whole = X.copy()
        whole[:, list(self.own)] = 0.0
        Q = self.basis.quadratic(values)
        sums = np.hstack([np.ones((len(X), 1)), w[:, None], Q, whole]) * w[:, None]
        self._add(self._places(values, cell), sums, w)

    def merge(self, other: "Spots", place: Array | None = None) -> None:
        """Add the sums of another object; `place` renumbers its cells, -1 leaves one out."""
        for j in sorted({*self.own, *other.own}):
            self._part(j).merge(other._part(j), place)
        cell, box = np.divmod(other.place, self.n_boxes)
        cell = cell if place is None else place[cell]
        here = cell >= 0
        self._add(cell[here] * self.n_boxes + box[here], other.sums[here], other.largest[here])

    def _part(self, j: int) -> "Spots":
        """Return the sums of the rows that know a feature; the first time, those of all rows."""
        if j not in self.own:
            self.own[j] = self.of(np.array([j]))
        return self.own[j]

    def _places(self, values: Array, cell: Array) -> Array:
        """Return the box of each row, with the number of its cell."""
        share = self.basis.standard(values)[:, :_MOST_CUT] / np.sqrt(12.0) + 0.5
        part = np.clip((share * self.finest).astype(np.int64), 0, self.finest - 1)
        return np.asarray(cell * self.n_boxes + part @ self.finest ** np.arange(part.shape[1]))

    def _add(self, place: Array, sums: Array, largest: Array) -> None:
        """Add the sums of boxes and their largest weights; equal boxes are merged."""
        place = np.append(self.place, place)
        self.place, number = np.unique(place, return_inverse=True)
        self.sums = _total(np.vstack([self.sums, sums]), number.ravel())
        before, self.largest = np.append(self.largest, largest), np.zeros(len(self.place))
        np.maximum.at(self.largest, number.ravel(), before)

    def of(self, features: Array) -> "Spots":
        """Return some of the features."""
        if len(features) == 1 and (one := self.own.get(int(features[0]))) is not None:
            return one.of(np.zeros(1, np.intp))
        part, first = Spots(self.basis, len(features)), self.sums.shape[1] - self.n_features
        part.place, columns = self.place, np.append(np.arange(first), first + features)
        part.sums, part.largest = self.sums[:, columns], self.largest
        part.own = {k: self.own[j] for k, j in enumerate(features.tolist()) if j in self.own}
        return part

    def neighbours(self, least: float, most: float = np.inf) -> Array:
        """Return the number of the group of each box.

        A group has at least `least` rows of equal weight: the sum of squared weights is at least so
        many times the square of its largest weight. A cell that has not is one group. Where `most`
        is given, a group has that part of what its cell is worth.
        """
        cell, number, n = self.cell, np.zeros(len(self.place), np.intp), 0
        for k in np.unique(cell):
            mine = np.flatnonzero(cell == k)
            size, top = self.sums[mine, 1], self.largest[mine] ** 2
            at = self.sums[mine, 2 : 2 + len(self.basis.names)] / self.sums[mine, :1]
            own = _divided(at, size, top, max(least, size.sum() / top.max() / most))
            number[mine], n = n + own, n + own.max() + 1
        return number

    def products(self, label: Array, rule: Rule) -> GroupedProducts:
        """Return products of features with `written` functions by cell."""
        found = GroupedProducts(len(label), self.basis.n_columns, self.n_features)
        X = self.sums[:, 2 + self.basis.n_quadratic :] / self.sums[:, :1]
        found.update(X, self.written(label, rule), self.cell, self.sums[:, 0])
        self._means(found.mean, rule)
        found.own = {j: one.products(label, rule) for j, one in self.own.items()}
        return found

    def _means(self, mean: Array, rule: Rule) -> None:
        """Write means of functions by cell into a table: of rows, or else of large groups.

        Means of many functions of few rows would tell what the confounders of each row are.
        """
        exact, number = self.functions(np.arange(len(self.place))), self.neighbours(2 * rule.least)
        near = self.functions(number)[number]
        for k in np.unique(self.cell):
            mine = np.flatnonzero(self.cell == k)
            Phi = exact[mine] if self._keeps(rule, exact[mine], mine) else near[mine]
            mean[k, : self.basis.n_columns] = np.average(Phi, axis=0, weights=self.sums[mine, 0])

    def written(self, label: Array, rule: Rule) -> Array:
        """Return the functions of boxes whose products are written, given the label of each cell.

        The smoothest functions of a label are those of rows, as many as the rule allows. The others
        are those of groups of neighbours, or regressed on the smoothest.
        """
        found, near = self.functions(np.arange(len(self.place))), dict[float, Array]()
        for name in np.unique(label[self.cell]):
            mine = np.flatnonzero(label[self.cell] == name)
            exact = found[mine]
            for columns, size in self._ways(rule.least):
                if size == np.inf:
                    Phi = self._regressed(exact, mine, columns)
                else:
                    if size not in near:
                        number = self.neighbours(size)
                        near[size] = self.functions(number)[number]
                    Phi = near[size][mine]
                    Phi[:, columns] = exact[:, columns]
                if not len(columns) or self._keeps(rule, Phi, mine):
                    break
            found[mine] = Phi
        return found

    def _ways(self, least: float) -> Iterator[tuple[Array, float]]:
        """Yield columns that are functions of rows, and the size of groups for the others."""
        lowest = self.basis.lowest
        for level in range(self.basis.n_bent, lowest - 1, -1):
            yield self.basis.columns(level), least
            if level >= _ENOUGH:
                yield self.basis.columns(level), np.inf
        if len(self.basis.names) > 2:  # few groups differ much in each of many confounders
            yield from ((self.basis.columns(lowest), k * least) for k in (2, 4))
        yield np.zeros(0, dtype=np.intp), least

    def _regressed(self, Phi: Array, mine: Array, columns: Array) -> Array:
        """Return functions regressed, within the cells of some boxes, on those in `columns`."""
        away, root = self._away(Phi, mine), np.sqrt(self.sums[mine, :1])
        B = np.linalg.lstsq(root * away[:, columns], root * away, rcond=None)[0]
        return np.asarray(Phi - away + away[:, columns] @ B)

    def _away(self, Phi: Array, mine: Array) -> Array:
        """Return functions of some boxes minus their means in cells."""
        cell, w = self.cell[mine], self.sums[mine, 0]
        mean = np.stack([np.bincount(cell, w * one) for one in Phi.T], axis=1)
        return np.asarray(Phi - (mean / ones_for_zeros(np.bincount(cell, w))[:, None])[cell])

    def _keeps(self, rule: Rule, Phi: Array, mine: Array) -> bool:
        """Return whether combinations of sums of some boxes with functions keep the rule.

        With functions away from the mean of the cell as rows of U, and G = U'WU with squared
        weights W, a row's largest share of a combination's weight is :math:`w^2 u'G^{-1}u`. That of
        a few rows is at most the sum of theirs.
        """
        square, top, U = self.sums[mine, 1], self.largest[mine] ** 2, self._away(Phi, mine)
        value, vector = np.linalg.eigh(_scaled(U.T @ (square[:, None] * U)))
        good = value > _RANK * len(value)
        size = ones_for_zeros(np.sqrt(square @ U**2))
        share = top * ((U / size @ vector[:, good]) ** 2 / value[good]).sum(axis=1)
        order = np.argsort(-share, kind="stable")
        rows = np.cumsum(square[order] / top[order])
        taken = np.diff(np.minimum(rows, rule.few), prepend=0.0)
        return bool(share.max() <= rule.one and taken @ share[order] <= rule.all)

    def functions(self, number: Array) -> Array:
        """Return the functions of groups, given the group of each box."""
        sums = _total(self.sums, number)
        return self.basis.of_groups(sums[:, 2 : 2 + self.basis.n_quadratic] / sums[:, :1])

    @property
    def cell(self) -> Array:
        """The cell of each box."""
        return np.asarray(self.place // self.n_boxes)

    def of_rows(self, values: Array, cell: Array, number: Array) -> Array:
        """Return the groups of rows that were added, given those of boxes."""
        return np.asarray(number[np.searchsorted(self.place, self._places(values, cell))])


def _scaled(scatter: Array) -> Array:
    """Return a scatter matrix scaled to a diagonal of ones."""
    size = ones_for_zeros(np.sqrt(np.diag(scatter)))
    return np.asarray(scatter / np.outer(size, size))


def _total(sums: Array, number: Array) -> Array:
    """Add up rows with the same number."""
    order = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    return np.add.reduceat(sums[order], first) if len(first) else sums


def _divided(at: Array, size: Array, top: Array, least: float) -> Array:
    """Divide points into groups of neighbours; return the group of each.

    The points are cut in two where the larger spread is, again and again, as long as the `size` of
    both sides is at least `least` times the largest `top` in them.
    """
    found: Any = np.zeros(len(at), dtype=np.intp)
    waiting, n = [np.arange(len(at))], 0
    while waiting:
        rows = waiting.pop()
        parts = _halves(at[rows], size[rows], top[rows], least)
        if parts is None:
            found[rows], n = n, n + 1
        else:
            waiting += [rows[part] for part in parts]
    return found


def _halves(at: Array, size: Array, top: Array, least: float) -> tuple[Array, Array] | None:
    """Return the points on both sides of the best cut, None if a side would be too small."""
    away = at - size @ at / size.sum()
    n_parts = max(size.sum() / top.max() * (1 + 1e-9) // least, 2.0)
    for j in np.argsort(-(size @ away**2), kind="stable"):
        order = np.argsort(at[:, j], kind="stable")
        before = _worth(size[order], top[order])[:-1]
        after = _worth(size[order[::-1]], top[order[::-1]])[-2::-1]
        fits = np.flatnonzero((before >= least) & (after >= least))
        if len(fits):
            share = np.cumsum(size[order])[fits] / size.sum()
            cut = fits[np.abs(share - n_parts // 2 / n_parts).argmin()] + 1
            return order[:cut], order[cut:]
    return None


def _worth(size: Array, top: Array) -> Array:
    """Return how many rows of equal weight the first points are worth, up to rounding."""
    return np.asarray(np.cumsum(size) / np.maximum.accumulate(top) * (1 + 1e-9))
