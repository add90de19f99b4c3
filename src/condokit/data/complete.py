"""Functions of confounders that some sites could not write, imputed from the other sites."""

from copy import deepcopy
from typing import NamedTuple

import numpy as np

from condokit.checks import Array
from condokit.data.arrays import ones_for_zeros
from condokit.data.basis import RangeBasis
from condokit.data.continuous import Continuous
from condokit.data.products import GroupedProducts

_IN_BIN = 4  # points at which functions are averaged over a bin


def completed(known: Continuous, label: Array) -> tuple[Continuous, dict[int, Array]]:
    r"""Return sums in which all groups have the same functions: those that half of the rows have.

    A group has the functions :math:`\phi_k` of a confounder up to its level. For the next function
    :math:`\phi_m`, the histogram of the confounder gives its mean and its regression B on the lower
    functions, with residual variance V; its products with other columns follow from these. The
    slope of a feature on the residual of :math:`\phi_m` is taken from the other labels, in units of
    the feature's residual standard deviation, which the model assumes all labels share. So the
    group adds no information of its own about the bend.

    Binned values of heavy-tailed features (by number) are residuals from the functions that a group
    has. The second result is the factor by which these are wider than residuals from all functions.
    """
    count = known.products.count
    every = np.unique(known.level[count > 0])
    if len(every) < 2:
        return known, {}
    # the highest level that half of the rows have, as slopes of few rows would be imprecise
    top = max(k for k in every if 2 * count[known.level >= k].sum() >= count.sum())
    new = deepcopy(known)
    new.restrict(top)
    how = new.level, new.bins, known.basis, label, int(top)
    for one in (new.products, *new.products.own.values()):
        _complete(one, *how)
    wider = {j: _complete(one, *how)[:, 0] for j, one in new.robust.items()}
    new.level = np.maximum(new.level, top)
    return new, wider


def _complete(
    one: GroupedProducts, level: Array, bins: Array, basis: RangeBasis, label: Array, top: int
) -> Array:
    """Fill in columns of groups below the highest level; return how much wider residuals are."""
    columns, r = basis.columns(top), one.n_columns
    best, wider = (level == top) & (one.count > 0), np.ones((len(level), one.n_features))
    if not best.any():
        return wider
    slopes = _slopes(one, best, label, columns)  # (n_columns, n_features), in units of residuals
    for g in np.flatnonzero((level < top) & (one.count > 0)):
        n, scatter, first = one.count[g], one.scatter[g], len(basis.columns(int(level[g])))
        steps = [_next(basis, bins[g], columns[:k], columns[k]) for k in range(first, len(columns))]
        c = _one_group(one, int(g)).roots()[1][0]
        left = np.maximum(one.squares[g] / n - (c**2).sum(axis=0), 0.0)
        # the higher functions would explain a part of the present residual variance
        more = sum(step.left * slopes[first + k] ** 2 for k, step in enumerate(steps))
        wider[g] = np.sqrt(1 + more)
        left = np.sqrt(left) / wider[g]
        for k, step in enumerate(steps, first):
            m, here, B = columns[k], step.here, step.slopes
            one.mean[g, m] = step.mean[-1] + B @ (one.mean[g, here] - step.mean[:-1])
            row = B @ scatter[here]  # products with all columns and features
            row[r:] += n * step.left * slopes[k] * left
            scatter[m] = row
            scatter[:, m] = scatter[m, :r]
            scatter[m, m] = row[here] @ B + n * step.left
    return wider


class _Step(NamedTuple):
    """The regression of a function on the lower functions of the same confounder, from bins."""

    here: list[int]  # the lower functions
    mean: Array  # of the lower functions, and of the function itself
    slopes: Array
    left: float  # residual variance


def _next(basis: RangeBasis, bins: Array, before: Array, column: int) -> _Step:
    """Regress a function on lower ones; products of two confounders are taken as constant."""
    owner = _owner(basis, int(column))
    if owner < 0:
        return _Step([], np.zeros(1), np.zeros(0), 0.0)
    here = [int(i) for i in before if _owner(basis, int(i)) == owner]
    at, share = _points(basis, bins, owner)
    Phi = at[:, [*here, column]]
    away = Phi - share @ Phi
    C = (share[:, None] * away).T @ away
    B = np.linalg.lstsq(C[:-1, :-1], C[:-1, -1], rcond=1e-10)[0]
    return _Step(here, share @ Phi, B, max(float(C[-1, -1] - B @ C[:-1, -1]), 0.0))


def _one_group(one: GroupedProducts, g: int) -> GroupedProducts:
    """Return the products of one group."""
    part = GroupedProducts(1, one.n_columns, one.n_features)
    part.count, part.mean = one.count[[g]], one.mean[[g]]
    part.scatter, part.squares = one.scatter[[g]], one.squares[[g]]
    return part


def _owner(basis: RangeBasis, column: int) -> int:
    """Return the confounder of which a column is a function, -1 for products of two."""
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
    """Return slopes on what each column adds to earlier ones, in residual sd of features."""
    total, weight = np.zeros((len(columns), one.n_features)), 0.0
    for name in np.unique(label[best]):
        mine = np.flatnonzero(best & (label == name))
        L, c, n = one.pooled(mine, columns)
        squares = one.squares[mine].sum(axis=0) / n - (c**2).sum(axis=0)
        unit = ones_for_zeros(np.sqrt(np.maximum(squares, 0.0)))
        total = total + n * c / ones_for_zeros(np.diag(L))[:, None] / unit
        weight += n
    return total / weight
