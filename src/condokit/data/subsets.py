"""Some of the rows: the one way to take fewer of them, and the one way to deal them to folds."""

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import sides


def subsample(n: int, most: int, weights: Array | None = None, seed: int | None = None) -> Array:
    """Return the numbers of at most so many of n rows, in order; all if there are no more."""
    # Evenly spaced, or at random with a seed. Of weighted rows, each is taken in proportion to its
    # weight, perhaps several times, so that those taken count alike.
    if n <= most:
        return np.arange(n)
    if seed is not None:
        rng = np.random.default_rng(seed)
        share = None if weights is None else weights / weights.sum()
        return np.sort(rng.choice(n, most, replace=weights is not None, p=share))
    if weights is None:
        return np.linspace(0, n - 1, most).round().astype(np.intp)
    upto = np.cumsum(weights)
    return np.searchsorted(upto, (np.arange(most) + 0.5) / most * upto[-1])


def subsample_sides(is_query: Array, most: int, kept: Array | None = None) -> Array:
    """Return the numbers of at most so many rows of each domain, query rows first, evenly taken."""
    taken = []
    for _, side in sides(is_query):
        rows = np.flatnonzero(side if kept is None else side & kept)
        taken.append(rows[subsample(len(rows), most)])
    return np.concatenate(taken)


def folds(
    cell: Array,
    n_folds: int,
    groups: Array | None = None,
    order: Array | None = None,
    seed: int = 0,
) -> Array:
    """Deal rows to folds, at random or in order, evenly within cells; a subject's go together."""
    rng = np.random.default_rng(seed)
    if groups is not None:
        if order is not None:
            return np.unique(groups, return_inverse=True)[1] % n_folds
        return rng.permutation(int(groups.max()) + 1)[groups] % n_folds
    turn = np.arange(len(cell))
    shuffled = rng.permutation(len(cell)) if order is None else order
    shuffled = shuffled[np.argsort(cell[shuffled], kind="stable")]
    if order is not None:  # every cell begins with the first fold
        first = np.flatnonzero(np.diff(cell[shuffled], prepend=cell[shuffled][:1] - 1))
        turn = turn - np.repeat(first, np.diff(first, append=len(cell)))
    fold = np.empty(len(cell), dtype=np.intp)
    fold[shuffled] = turn % n_folds
    return fold
