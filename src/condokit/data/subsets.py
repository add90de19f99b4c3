"""How rows are subsampled, and how they are assigned to folds."""

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import sides

_GOLDEN = (5**0.5 - 1) / 2


def subsample(n: int, most: int, weights: Array | None = None) -> Array:
    """Return the numbers of at most `most` of n rows, evenly spaced and in order."""
    # Weighted rows are taken in proportion to their weights, perhaps several times, so that all
    # rows of the result have the same weight.
    if n <= most:
        return np.arange(n)
    if weights is None:
        return np.linspace(0, n - 1, most).round().astype(np.intp)
    upto = np.cumsum(weights)
    return np.searchsorted(upto, (np.arange(most) + 0.5) / most * upto[-1])


def subsample_sides(
    is_query: Array, most: int, kept: Array | None = None, order: Array | None = None
) -> Array:
    """Return the numbers of at most `most` rows of each domain, query first, evenly spaced."""
    order, taken = np.arange(len(is_query)) if order is None else order, []
    for _, side in sides(is_query):
        rows = order[(side if kept is None else side & kept)[order]]
        taken.append(np.sort(rows[subsample(len(rows), most)]))
    return np.concatenate(taken)


def mixed_order(X: Array) -> Array:
    """Return the rows in an order that looks random but depends only on their values."""
    # The key is the relative position of each value between its two neighbours, summed over
    # features: it does not depend on row order or units, and leaving out a row changes only the
    # keys of its neighbours. Rows with equal keys are ordered by steps of the golden ratio.
    key = np.zeros(len(X))
    for x in X.T:
        values, number = np.unique(x, return_inverse=True)
        if len(values) > 2:
            inner = (values[1:-1] - values[:-2]) / (values[2:] - values[:-2])
            key += np.nan_to_num(np.concatenate([[0.0], inner, [0.0]])[number])
    rank = np.empty(len(X))
    rank[np.lexsort(X.T)] = np.arange(len(X))
    return np.lexsort([rank * _GOLDEN % 1, key.round(6) % 1])


def folds(
    cell: Array,
    n_folds: int,
    groups: Array | None = None,
    order: Array | None = None,
    values: Array | None = None,
) -> Array:
    """Assign rows to folds of equal size within cells; return the fold of each row.

    Rows take turns, in the given `order` or in the order of `values`, so that results depend on
    these and not on the order of rows. All rows of a subject (`groups`) are in one fold, which is
    drawn at random.
    """
    if groups is not None:  # a subject's rows go together
        if order is not None:
            return np.unique(groups, return_inverse=True)[1] % n_folds
        rng = np.random.default_rng(0)
        return rng.permutation(int(groups.max()) + 1)[groups] % n_folds
    shuffled = np.arange(len(cell)) if order is None else order
    shuffled = shuffled if values is None else mixed_order(values)
    shuffled = shuffled[np.argsort(cell[shuffled], kind="stable")]
    # within every cell, folds start with the first
    first = np.flatnonzero(np.diff(cell[shuffled], prepend=cell[shuffled][:1] - 1))
    size = np.diff(first, append=len(cell))
    turn = np.arange(len(cell)) - np.repeat(first, size)
    if values is not None:  # contiguous folds, so that leaving out a row changes few others
        part = (turn + 0.5) / np.repeat(size, size) + cell[shuffled] * _GOLDEN
        turn = (part % 1 * n_folds).astype(np.intp)
    fold = np.empty(len(cell), dtype=np.intp)
    fold[shuffled] = turn % n_folds
    return fold
