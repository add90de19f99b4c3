"""The plain records that flow through a fit: Domains, Strata, Support, Moments, Gaussians."""

from __future__ import annotations

import numpy as np

from condokit.checks import Array


def evenly(n: int, most: int) -> Array:
    """Return at most so many of n row numbers, evenly spaced."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(np.intp)


def folds_of(cell: Array, groups: Array | None, n_folds: int, seed: int = 0) -> Array:
    """Deal rows to folds at random, evenly within every cell; rows of one subject together."""
    rng = np.random.default_rng(seed)
    fold = np.empty(len(cell), dtype=np.intp)
    if groups is not None:
        order = rng.permutation(int(groups.max()) + 1)
        return order[groups] % n_folds
    order = rng.permutation(len(cell))
    order = order[np.argsort(cell[order], kind="stable")]
    fold[order] = np.arange(len(cell)) % n_folds
    return fold
