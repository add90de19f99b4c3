"""Where rows lie in the space of confounders, to find out which sums reveal few rows."""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros

_FINEST = 256  # intervals of the range of one confounder
_MOST_BITS = 18  # log2 of the largest number of boxes
_MOST_POINTS = 400  # rows of most weight, of which all pairs are compared
_MOST_IN_SETS = 20  # rows of most weight, of which all sets are tried,
_MOST_SETS = 5000  # unless there are more sets than this


class Spots:
    """Counts of rows in small boxes of confounder space, by group, and the mean position of each.

    For a row that is the only one in its box, as isolated rows are, this is its exact position.
    Parts can be merged in any order. This is never written to a file.
    """

    def __init__(self, ranges: tuple[tuple[float, float], ...]) -> None:
        self.low, self.high = np.array(ranges, dtype=float).reshape(-1, 2).T
        p = len(self.low)
        self.finest = min(_FINEST, max(1, int(2 ** (_MOST_BITS / max(p, 1)))))
        self.part: Any = np.zeros((0, p), dtype=np.int16)
        self.group: Any = np.zeros(0, dtype=np.intp)
        self.count: Array = np.zeros(0)
        self.mean = np.zeros((0, p))

    def update(self, values: Array, groups: Array) -> None:
        """Add rows of confounders."""
        share = (values - self.low) / (self.high - self.low)
        part = np.minimum((share * self.finest).astype(np.int16), self.finest - 1)
        self._add(part, groups, np.ones(len(values)), values)

    def merge(self, other: "Spots", place: Array | None = None) -> None:
        """Add the counts of another object; `place` renumbers its groups, -1 leaves one out."""
        group = other.group if place is None else place[other.group]
        here = group >= 0
        self._add(other.part[here], group[here], other.count[here], other.mean[here])

    def _add(self, part: Array, group: Array, count: Array, mean: Array) -> None:
        """Add boxes of groups: equal boxes are merged, with their counts and mean positions."""
        every = np.column_stack([np.append(self.group, group), np.vstack([self.part, part])])
        kept, turn = np.unique(every, axis=0, return_inverse=True)
        counts: Array = np.append(self.count, count)
        number = np.ravel(turn)
        sums = counts[:, None] * np.vstack([self.mean, mean])
        self.count = np.bincount(number, counts, len(kept))
        total = [np.bincount(number, one, len(kept)) for one in sums.T]
        found = np.stack(total, axis=1) / ones_for_zeros(self.count[:, None])
        self.mean = np.clip(found, self.low, self.high)
        self.group, self.part = kept[:, 0].astype(np.intp), kept[:, 1:].astype(np.int16)


def spots_of_bins(known: Any) -> Spots:
    """Return possible positions of rows if only counts in bins are known: all ends of bins."""
    found, (n, p, n_bins) = Spots(known.basis.ranges), known.bins.shape
    step = 1 if p < 3 else n_bins // 4 if p == 3 else n_bins // 2
    for k in range(n):
        axes = []
        for j in range(p):
            here = np.flatnonzero(known.bins[k, j] > 0)
            ends = np.union1d(here, here + 1)
            ends = np.union1d(ends[::step], ends[-1:])
            low, high = known.basis.ranges[j]
            axes.append(low + (high - low) * ends / n_bins)
        at = np.stack([one.ravel() for one in np.meshgrid(*axes, indexing="ij")], axis=1)
        found.update(at, np.full(len(at), k))
    return found


def whitened(Psi: Array, scatter: Array) -> Array:
    r"""Return combinations U of columns with :math:`U U' = \Psi G^{-1} \Psi'`, G the scatter."""
    size = ones_for_zeros(np.sqrt(np.maximum(np.diag(scatter), 0.0)))
    value, vector = np.linalg.eigh(scatter / np.outer(size, size))
    good = value > 1e-12 * max(len(value), 1)
    return np.asarray(Psi / size @ (vector[:, good] / np.sqrt(value[good])))


def rows_of_most_weight(U: Array) -> Array:
    """Return the numbers of the rows of most weight, in descending order."""
    return np.argsort(-np.einsum("nr,nr->n", U, U), kind="stable")[:_MOST_POINTS]


def most_weight(U: Array, counts: Array, few: int, enough: float = 0.0) -> tuple[float, float]:
    r"""Return the largest share of a combination's weight on one row, and on `few` rows.

    A combination c of columns gives row i the weight :math:`(c' \psi_i)^2`, and all rows together
    :math:`c' G c` with the scatter G. The largest share of a set S of rows is the largest
    eigenvalue of the block :math:`K_{SS}` of :math:`K = \Psi G^{-1} \Psi' = U U'`. The second
    number is the smaller of two upper bounds over all sets, or the first bound if that is at most
    `enough`. Each row of U stands for `counts` rows.
    """
    if not U.size:
        return 0.0, 0.0
    order = rows_of_most_weight(U)
    each = np.repeat(order, np.minimum(np.ceil(counts[order]), few).astype(int))[:_MOST_POINTS]
    K = U[each] @ U[each].T
    beyond = float(K[-1, -1]) if len(each) == _MOST_POINTS else 0.0
    bound = _by_rows(np.abs(K), beyond, few)
    return float(K[0, 0]), bound if bound <= enough else min(bound, _by_sets(K, few))


def _by_rows(K: Array, beyond: float, few: int) -> float:
    """Bound the largest eigenvalue of `few` rows and columns of K by the largest row sum of |K|.

    `beyond` is the largest diagonal entry of rows that K leaves out.
    """
    rest = np.sqrt(np.diag(K) * beyond)[:, None] * np.ones(few)
    largest = -np.sort(-np.hstack([K, rest]), axis=1)[:, :few]
    return float(largest.sum(axis=1).max())


def _by_sets(K: Array, few: int) -> float:
    """Bound the largest eigenvalue of `few` rows and columns of K by trying sets of the first rows.

    The largest eigenvalue of a set is at most the sum of those of its parts A and C. A is a set of
    the first rows, whose eigenvalue is computed. That of C is at most its trace, which the diagonal
    bounds.
    """
    n = min(_MOST_IN_SETS, len(K))
    while n > few and comb(n, few) > _MOST_SETS:
        n -= 1
    following = float(np.append(np.diag(K), 0.0)[n])
    bound = few * following
    for k in range(1, min(few, n) + 1):
        sets = np.array(list(combinations(range(n), k)))
        parts = K[sets[:, :, None], sets[:, None, :]]
        bound = max(bound, float(np.linalg.eigvalsh(parts)[:, -1].max()) + (few - k) * following)
    return bound
