"""Histograms of heavy-tailed features, fine enough to replace rows in fits of Student's t."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros

# The unit of u = asinh((x - centre) / unit), in standard deviations of the cell: within one unit of
# the centre bins are equally wide, farther out their width is proportional to the distance.
NARROW = 0.02  # of bins in memory
BROAD = 0.25  # of groups in files, which must not reveal values
_WIDTH = 0.1  # width of a bin in u
_COARSE = 0.4  # width of a group in u
OF_ERROR = 0.1  # of a standard error, to which numbers in files are rounded
_STEPS = 4.0  # rounding steps in the width of a group, times the root of its count
_BOTH = np.array([[-1.0], [1.0]])
_MOST = 180  # bins on either side of the centre; values beyond count in the last


class Bins:
    r"""Counts of values of every cell in bins of :math:`u = asinh((x - c) / .02 s)`.

    c and s are mean and standard deviation of the cell. The width of a bin is a tenth of its
    distance from the centre, because the weights of Student's t change slowly there. The sums of u
    and u^2 in each bin are kept as well, so that a bin can be replaced by two values,
    :math:`c + .02 s \sinh(\bar u \pm sd_u)`, each with half of the count.
    """

    def __init__(self, mean: Array, sd: Array) -> None:
        self.mean, self.unit = mean, NARROW * ones_for_zeros(sd)  # (n_cells, n_features)
        self.sums = np.zeros((3, mean.shape[1], len(mean), 2 * _MOST + 1))  # of powers 0 to 2

    def update(self, X: Array, cell: Array, weights: Array | None = None) -> None:
        """Add rows with the number of their cell, -1 to leave one out; NaN is missing."""
        used = cell >= 0
        X, cell = X[used], cell[used]
        w = np.ones(len(X)) if weights is None else weights[used]
        size = self.sums.shape[2] * self.sums.shape[3]
        for j, x in enumerate(X.T):
            u = np.arcsinh((x - self.mean[cell, j]) / self.unit[cell, j]) / _WIDTH
            known = ~np.isnan(u)
            u = u[known]
            place = np.clip(np.rint(u), -_MOST, _MOST)
            u -= place
            number = cell[known] * self.sums.shape[3] + place.astype(np.intp) + _MOST
            for k in range(3):
                power_sums = np.bincount(number, w[known] * u**k, size)
                self.sums[k, j] += power_sums.reshape(self.sums.shape[2:])

    def merge(self, other: "Bins") -> None:
        """Add the counts of another object with the same cells."""
        self.sums += other.sums

    def values(self, j: int) -> "Values":
        """Return the bins of a feature that are not empty, each as two values."""
        count, first, second = self.sums[:, j]
        cell, place = np.nonzero(count)
        n = count[cell, place]
        mean = first[cell, place] / n
        sd = np.sqrt(np.maximum(second[cell, place] / n - mean**2, 0.0))
        u = _WIDTH * (place - _MOST + mean + _BOTH * sd)
        return Values(cell, n, self.mean[cell, j] + self.unit[cell, j] * np.sinh(u))


@dataclass(frozen=True)
class Values:
    """Bins of a feature: each has a count, and two values that reproduce its mean and variance."""

    cell: Array  # (n,): the cell of each bin
    count: Array  # (n,)
    ends: Array  # (2, n): the two values, each of half of the rows

    @classmethod
    def joined(cls, parts: "Iterable[Values]") -> "Values":
        """Return the values of all parts together; empty if there is no part."""
        none = cls(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros((2, 0)))
        fields = zip(*((one.cell, one.count, one.ends) for one in (none, *parts)))
        return cls(*(np.concatenate(arrays, axis=-1) for arrays in fields))

    def merge(self, other: "Values") -> "Values":
        """Return the values of both."""
        return Values.joined([self, other])

    def coarser(self, least: float, mean: Array, sd: Array) -> "Values":
        r"""Return groups of at least `least` rows, coarse enough not to reveal values.

        Groups have ends on a grid of :math:`u = asinh((x - c) / .25 s)`, a tenth of a standard
        deviation wide at the centre and 0.4 times the distance from it further out. Mean and spread
        of u in a group of n rows are rounded to a quarter of its width over the root of n, about a
        standard error, and counts to a tenth of their standard error, so that many combinations of
        rounded values fit these numbers. `mean` and `sd` are those of cells as they are written;
        cells with fewer rows are left out.
        """
        parts = []
        for k in np.unique(self.cell):
            mine, unit = np.flatnonzero(self.cell == k), BROAD * (sd[k] or 1.0)
            u = np.arcsinh((self.ends[:, mine] - mean[k]) / unit)
            order = np.argsort(u.sum(axis=0), kind="stable")
            u, count = u[:, order], self.count[mine[order]]
            if count.sum() < least:
                continue
            _, place = np.unique(np.floor(u.mean(axis=0) / _COARSE), return_inverse=True)
            group = enough(np.bincount(place, count), least)[place]
            n = np.bincount(group, count)
            middle = np.bincount(group, count * u.mean(axis=0)) / n
            square = np.bincount(group, count * ((u - middle[group]) ** 2).mean(axis=0)) / n
            first = np.flatnonzero(np.diff(group, prepend=-1))
            last = np.append(first[1:], len(group)) - 1
            ends = np.floor(u.mean(axis=0) / _COARSE)
            width = _COARSE * (ends[last] - ends[first] + 1)
            step = width / _STEPS / np.sqrt(n)
            middle = np.rint(middle / step) * step
            spread = np.rint(np.sqrt(square) / step) * step
            fine = np.maximum(np.rint(OF_ERROR * np.sqrt(n)), 1.0)
            n = fine * np.rint(n / fine)
            ends = mean[k] + unit * np.sinh(middle + _BOTH * spread)
            parts.append(Values(np.full(len(n), k), n, ends))
        return Values.joined(parts)

    def placed(self, place: Array) -> "Values":
        """Renumber the cells; those with a negative new number are left out."""
        kept = place[self.cell] >= 0
        return Values(place[self.cell][kept], self.count[kept], self.ends[:, kept])


def side_by_side(features: list[Values]) -> tuple[Array, Array, Array]:
    """Return cells, and the values and counts of several features as columns of matrices.

    A cell has as many rows as the feature with most bins needs; shorter columns are filled up with
    values of count zero.
    """
    size = 1 + max(int(values.cell.max(initial=-1)) for values in features)
    most = np.max([np.bincount(values.cell, minlength=size) for values in features], axis=0)
    first = np.concatenate([[0], np.cumsum(2 * most)])
    X, counts = np.zeros((2, int(first[-1]), len(features)))
    for j, values in enumerate(features):
        order = np.argsort(values.cell, kind="stable")
        cell = values.cell[order]
        rank = np.arange(len(cell)) - np.searchsorted(cell, cell)
        for end in range(2):
            place = first[cell] + 2 * rank + end
            X[place, j], counts[place, j] = values.ends[end, order], values.count[order] / 2
    return np.repeat(np.arange(size), 2 * most), X, counts


def enough(count: Array, least: float) -> Array:
    """Return numbers of groups of neighbouring bins, with at least `least` rows in each."""
    group, total, number = np.zeros(len(count), dtype=np.intp), 0.0, 0
    for i, n in enumerate(count):
        group[i], total = number, total + n
        if total >= least:
            number, total = number + 1, 0.0
    if total > 0 and number > 0:  # too few rows at the end: they join the group before
        group[group == number] = number - 1
    return group
