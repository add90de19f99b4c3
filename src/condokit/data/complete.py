"""Functions of confounders that some sites could not write, filled in from the others."""

from copy import deepcopy

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.basis import RangeBasis
from condokit.data.continuous import Continuous
from condokit.data.products import GroupedProducts

_IN_BIN = 4  # points at which functions are averaged over a bin


def completed(known: Continuous, label: Array) -> Continuous:
    r"""Return sums in which all groups know the same functions, those of half of the rows.

    A group knows the functions :math:`\phi_k` of a confounder up to its level. Of the next one,
    :math:`\phi_m`, counts in bins tell about its mean, and its regression B on those that are
    known, with a residual of variance V. Its products with others follow. Its slope beyond these is
    that of other labels, in standard deviations of what is left of a feature: what a law says that
    all labels share, up to scale. So the group says nothing of the bend that the others do not.
    """
    count = known.products.count
    every = np.unique(known.level[count > 0])
    if len(every) < 2:
        return known
    # the highest level of half of the rows: few would tell too little of what others lack
    top = max(k for k in every if 2 * count[known.level >= k].sum() >= count.sum())
    new = deepcopy(known)
    new.restrict(top)
    parts = [new.products, *new.products.own.values(), *new.robust.values()]
    for one in parts:
        _complete(one, new.level, new.bins, known.basis, label, int(top))
    new.level = np.maximum(new.level, top)
    return new


def _complete(
    one: GroupedProducts, level: Array, bins: Array, basis: RangeBasis, label: Array, top: int
) -> None:
    """Fill in the columns of groups below the highest level."""
    columns, p = basis.columns(top), len(basis.names)
    best = (level == top) & (one.count > 0)
    if not best.any():
        return
    slopes = _slopes(one, best, label, columns)  # (n_columns, n_features), in units of residuals
    r = one.n_columns
    for g in np.flatnonzero((level < top) & (one.count > 0)):
        n, scatter, first = one.count[g], one.scatter[g], len(basis.columns(int(level[g])))
        c = GroupedProducts.of(_one_group(one, g), np.arange(one.n_features)).roots()[1][0]
        left = np.sqrt(np.maximum(one.squares[g] / n - (c**2).sum(axis=0), 0.0))
        for k in range(first, len(columns)):
            m = columns[k]
            owner = _owner(basis, int(m))
            here = [i for i in columns[:k] if _owner(basis, int(i)) == owner] if owner >= 0 else []
            if owner < 0:  # a product of two confounders: as if it did not vary
                continue
            at, share = _points(basis, bins[g], owner)
            Phi = at[:, [*here, m]]
            away = Phi - share @ Phi
            C = (share[:, None] * away).T @ away
            B = np.linalg.lstsq(C[:-1, :-1], C[:-1, -1], rcond=1e-10)[0]
            V = max(float(C[-1, -1] - B @ C[:-1, -1]), 0.0)
            mean = share @ Phi
            one.mean[g, m] = mean[-1] + B @ (one.mean[g, here] - mean[:-1])
            row = B @ scatter[here]  # products with all columns and features
            row[r:] += n * V * slopes[k] * left
            scatter[m] = row
            scatter[:, m] = scatter[m, :r]
            scatter[m, m] = row[here] @ B + n * V
    assert p == bins.shape[1]


def _one_group(one: GroupedProducts, g: int) -> GroupedProducts:
    """Return the products of one group."""
    part = GroupedProducts(1, one.n_columns, one.n_features)
    part.count, part.mean = one.count[[g]], one.mean[[g]]
    part.scatter, part.squares = one.scatter[[g]], one.squares[[g]]
    return part


def _owner(basis: RangeBasis, column: int) -> int:
    """Return of which confounder a column is a function, -1 for products of two."""
    p = len(basis.names)
    if column < p:
        return column
    column -= p + basis.n_pairs
    return -1 if column < 0 else column // basis.n_bent


def _points(basis: RangeBasis, bins: Array, j: int) -> tuple[Array, Array]:
    """Return functions at points of the bins of a confounder, and the share of rows of each."""
    (low, high), n = basis.ranges[j], bins.shape[1]
    at = np.tile([(a + b) / 2 for a, b in basis.ranges], (_IN_BIN * n, 1))
    at[:, j] = low + (high - low) * (np.arange(_IN_BIN * n) + 0.5) / (_IN_BIN * n)
    share = np.repeat(bins[j], _IN_BIN)
    return basis(at), share / ones_for_zeros(share.sum())


def _slopes(one: GroupedProducts, best: Array, label: Array, columns: Array) -> Array:
    """Return slopes on what each column adds to those before, in units of residuals."""
    total, weight = 0.0, 0.0
    for name in np.unique(label[best]):
        mine = np.flatnonzero(best & (label == name))
        L, c, n = one.pooled(mine, columns)
        squares = one.squares[mine].sum(axis=0) / n - (c**2).sum(axis=0)
        unit = ones_for_zeros(np.sqrt(np.maximum(squares, 0.0)))
        total = total + n * c / ones_for_zeros(np.diag(L))[:, None] / unit
        weight += n
    return np.asarray(total / weight)
